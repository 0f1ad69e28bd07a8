"""What is answered by its path alone: the controller's port, and a requester's ports."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_port import JSON, MakePage, Page
from sidecar.http.http_requests import Refused
from sidecar.http.http_server import HttpServer, Limits
from sidecar.wire import tcp

_LIMITS = Limits(connections=64, first_goes=True, body_bytes=16 << 10, request_s=10, idle_s=30)
Post = Callable[[Request], Page]


def json(value: object, status: int = 200) -> Page:
    return Page(msgspec.json.encode(value) + b"\n", status, JSON)


def refusal(status: int, why: str) -> Page:
    return json({"error": why}, status)


async def serve(address: tuple[str, int], gets: Mapping[str, MakePage], posts: Mapping[str, Post]) -> HttpServer:
    """Raises CannotListen."""

    def let_in(request: Request, has_body: bool) -> str | Refused:
        if request.path in posts:
            return "" if request.method == "POST" else Refused(405, f"{request.path} takes POST", [(b"allow", b"POST")])
        if request.path not in gets:
            return Refused(404, f"there are {', '.join([*gets, *posts])}")
        return "" if request.method in ("GET", "HEAD") and not has_body else Refused(405, f"{request.path} takes GET")

    def handle(request: Request, reply: Reply) -> None:
        page = posts[request.path](request) if request.path in posts else gets[request.path]()
        reply.send(page.status, page.body, [(b"content-type", page.kind.encode())])

    listener = tcp.listen(*address)
    server = HttpServer(asyncio.get_running_loop(), handle, lambda *refused: refusal(*refused).body, _LIMITS, let_in)
    await server.listen(listener)
    return server
