"""A port for probes and metrics, beside a program's own loop: an answer says that this loop turns.

    port = HttpPort(options.metrics, loop, {"/metrics": metrics.page_of(registry)})

`/live` is always there. A page is made in the program's loop, so it has to be made quickly; a page that asks others
belongs in `slow` and is made in a thread, once for all that wait for it. HTTP is spoken in another thread, by the one
server that the house has (`http_server.py`): no client can hold up the program's loop. That thread, and all that it has
to load, begin with the first client; until then the port costs a program two descriptors.

One request a connection, and `EXCHANGE_S` for each part of it. When too many clients are there, the one that has asked
nothing for longest has to go, or the one that came first. A page that can't be made is answered with 500.

What this file may not do: know what a page says, or read HTTP.
"""

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from sidecar.machine.loop import Inbox, Loop
from sidecar.terminal.logs import complain
from sidecar.wire import tcp
from sidecar.wire.tcp import CannotListen as CannotListen

if TYPE_CHECKING:  # loaded with the first client: a program that starts has no time for it
    import asyncio

    from sidecar.http.http_exchange import Reply, Request
    from sidecar.http.http_requests import Refused

EXCHANGE_S, LINGER_S = 10.0, 1.0
CLIENTS_MOST = 64
_BACKLOG, _COMPLAINTS_MOST = 16, 8
HEAD_BYTES_MOST = 8 << 10
UNREAD_BYTES_MOST = 64 << 20
TEXT, JSON = "text/plain; charset=utf-8", "application/json"


@dataclass(frozen=True)
class Page:
    body: bytes
    status: int = 200
    kind: str = TEXT


MakePage = Callable[[], Page]


def text(line: str, status: int = 200) -> Page:
    return Page(f"{line}\n".encode(), status)


class HttpPort:
    def __init__(
        self,
        address: tuple[str, int],
        loop: Loop,
        pages: Mapping[str, MakePage],
        slow: Mapping[str, MakePage] | None = None,
    ) -> None:
        """Listens from now on. An empty host means every address, IPv4 and IPv6. Raises CannotListen."""
        self._listener = tcp.listen(*address)
        bound = self._listener.getsockname()
        self.address: tuple[str, int] = bound[0], bound[1]
        """Where it listens: host and port."""
        self._loop = loop
        self._pages = {"/live": lambda: text("alive"), **pages}
        self._slow = dict(slow or {})
        self._asked: Inbox[tuple[MakePage, Reply]] = Inbox(loop, self._on_asked)
        """Pages for the program's loop to make."""
        self._waiting: dict[str, list[Reply]] = {}
        """Slow page -> the clients that want it. One thread makes it for all that were there when it began."""
        self._being_made: set[str] = set()
        self._http: asyncio.AbstractEventLoop | None = None
        """The loop of the thread that speaks HTTP, while there is one."""
        self._stop: Callable[[], None] = self._listener.close
        loop.add(self._listener.fileno(), self._on_first_client)

    def close(self) -> None:
        self._asked.close()
        self._loop.remove(self._listener.fileno())
        http, stop, self._stop = self._http, self._stop, lambda: None
        if http is None:
            stop()
        else:
            http.call_soon_threadsafe(stop)

    # -- in the program's loop -------------------------------------------------------------------------------------

    def _on_first_client(self, _: int) -> None:
        self._loop.remove(self._listener.fileno())
        threading.Thread(target=self._serve, name="http port", daemon=True).start()

    def _on_asked(self, asked: "tuple[MakePage, Reply]") -> None:
        assert self._http is not None
        make, reply = asked
        self._http.call_soon_threadsafe(_send, reply, _made(make))

    # -- in the thread that speaks HTTP ----------------------------------------------------------------------------

    def _serve(self) -> None:
        import asyncio

        asyncio.run(self._exchange())

    async def _exchange(self) -> None:
        import asyncio

        from sidecar.http.http_server import HttpServer, Limits

        limits = Limits(
            connections=CLIENTS_MOST,
            first_goes=True,
            header_bytes=HEAD_BYTES_MOST,
            unread_bytes=UNREAD_BYTES_MOST,
            unread_s=EXCHANGE_S,
            request_s=EXCHANGE_S,
            idle_s=EXCHANGE_S,
            linger_s=LINGER_S,
        )
        loop, over = asyncio.get_running_loop(), asyncio.Event()
        server = HttpServer(loop, self._answer, _refusal, limits, _only_get)
        loop.set_exception_handler(_complain_once())
        await server.listen(self._listener, _BACKLOG)
        self._stop, self._http = over.set, loop
        await over.wait()
        server.close()

    def _answer(self, request: "Request", reply: "Reply") -> None:
        path, reply.keeps = request.path, False
        if path in self._slow:
            self._waiting.setdefault(path, []).append(reply)
            self._make(path)
        elif path in self._pages:
            self._asked.give((self._pages[path], reply))
        else:
            _send(reply, text(f"there are {', '.join(sorted({*self._pages, *self._slow}))}", 404))

    def _make(self, path: str) -> None:
        """In a thread, unless one is at it: clients that have come since get the next one."""
        if path in self._being_made:
            return
        self._being_made.add(path)
        replies = self._waiting.pop(path)

        def work() -> None:
            page, http = _made(self._slow[path]), self._http
            assert http is not None
            http.call_soon_threadsafe(self._send_made, path, page, replies)

        threading.Thread(target=work, name=f"page {path}", daemon=True).start()

    def _send_made(self, path: str, page: Page, replies: "list[Reply]") -> None:
        self._being_made.discard(path)
        for reply in replies:
            _send(reply, page)
        if path in self._waiting:
            self._make(path)


def _complain_once() -> Callable[[object, Mapping[str, object]], None]:
    """No descriptor may be left for a long time, and asyncio says so with each try to accept."""
    said: set[str] = set()

    def complain_once(_: object, context: Mapping[str, object]) -> None:
        what = f"port for probes: {context.get('message')}: {context.get('exception')}"
        if what not in said and len(said) < _COMPLAINTS_MOST:
            said.add(what)
            complain(what)

    return complain_once


def _made(make: MakePage) -> Page:
    try:
        return make()
    except Exception as error:  # whatever a page raises is the answer of this request, and not the program's end
        return text(f"{type(error).__name__}: {error}", 500)


def _send(reply: "Reply", page: Page) -> None:
    reply.send(page.status, page.body, [(b"content-type", page.kind.encode())])


def _only_get(request: "Request", has_body: bool) -> "str | Refused":
    from sidecar.http.http_requests import Refused

    if request.method in ("GET", "HEAD"):
        return ""
    return Refused(405, "only GET and HEAD are answered here", [(b"allow", b"GET, HEAD")])


def _refusal(status: int, why: str) -> bytes:
    return msgspec.json.encode({"error": why}) + b"\n"
