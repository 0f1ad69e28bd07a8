"""What is answered by its path alone: the controller's port, and a requester's ports."""

import asyncio
from collections.abc import Callable, Mapping

import msgspec

from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_requests import Refused
from sidecar.http.http_server import HttpServer, Limits
from sidecar.wire import tcp

_TEXT, _JSON = [(b"content-type", b"text/plain; charset=utf-8")], [(b"content-type", b"application/json")]
_LIMITS = Limits(connections=64, first_goes=True, body_bytes=16 << 10, request_s=10, idle_s=30)
Get = Callable[[Reply], None]
Post = Callable[[Request, Reply], None]


def say(reply: Reply, line: str, status: int = 200) -> None:
    reply.send(status, f"{line}\n".encode(), _TEXT)


def show(reply: Reply, value: object, status: int = 200) -> None:
    reply.send(status, msgspec.json.encode(value) + b"\n", _JSON)


def refuse(reply: Reply, status: int, why: str) -> None:
    reply.send(status, _error(why), _JSON)


async def serve(address: tuple[str, int], gets: Mapping[str, Get], posts: Mapping[str, Post]) -> HttpServer:
    """Raises CannotListen."""

    def let_in(request: Request, has_body: bool) -> str | Refused:
        if request.path in posts:
            return "" if request.method == "POST" else Refused(405, f"{request.path} takes POST", [(b"allow", b"POST")])
        if request.path not in gets:
            return Refused(404, f"there are {', '.join([*gets, *posts])}")
        return "" if request.method in ("GET", "HEAD") and not has_body else Refused(405, f"{request.path} takes GET")

    def handle(request: Request, reply: Reply) -> None:
        if request.path in posts:
            posts[request.path](request, reply)
        else:
            gets[request.path](reply)

    listener = tcp.listen(*address)
    server = HttpServer(asyncio.get_running_loop(), handle, lambda _, why: _error(why), _LIMITS, let_in)
    await server.listen(listener)
    return server


def _error(why: str) -> bytes:
    return msgspec.json.encode({"error": why}) + b"\n"
