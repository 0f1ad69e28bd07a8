"""The server's side of HTTP/1.1 on asyncio: httptools (llhttp) keeps its rules; here are connections and their limits.

A request is handed on when it is whole. Headers, body, connections, and the time that each may take are bounded.
Whoever breaks a rule gets a sentence where that is possible, and loses its connection; nobody else notices. A client
that only closes its sending half is still answered: it is asked with an interim response whether it still reads.

Nothing is gathered before it is sent: asyncio turns Nagle's algorithm off, and what is written goes into the socket in
the same call. When a client doesn't read, whoever answers is told (`Reply.room`).

What a request and its answer are to the one who answers stands in `http_exchange.py`.

What this file may not do: know what is asked, or keep time for the one who answers. It runs in one loop's thread.
"""

import asyncio
import socket
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import httptools

from sidecar.http_exchange import REASONS, Handler, Reply, Request, nothing

_EARLY_BYTES = 256 << 10
"""What a client may send of its next requests while one is being answered; then it isn't read any more."""
_BACKLOG = 4096
"""asyncio would set it to 100, whatever it was: who comes behind a hundred others then waits for a second."""
_RESET_FIRST_S, _RESET_MOST_S = 0.02, 5.0


@dataclass(frozen=True)
class Limits:
    connections: int = 1000
    """When there are more, the one that has been idle longest goes, or the new one."""
    header_bytes: int = 16 << 10
    body_bytes: int = 1 << 20
    bodies_bytes: int = 1 << 30
    """All requests that are being received or answered, together."""
    unread_bytes: int = 4 << 20
    """A client for whom more waits loses its connection."""
    request_s: float = 10.0
    """From a request's first byte to its last."""
    idle_s: float = 75.0
    """Between two requests of one connection, and for the rest of an answer to be read."""
    linger_s: float = 1.0
    """Whoever is still sending what nobody wants can read why, for so long."""


Refusal = Callable[[int, str], bytes]
"""Status and why -> a JSON body that says so."""


class HttpServer:
    """Everything here runs in the loop's thread, but for the constructor and `unsent`."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Handler, refusal: Refusal, limits: Limits) -> None:
        self.loop = loop
        self.handle = handle
        self.refusal = refusal
        self.limits = limits
        self.connections: set[_Connection] = set()
        self.idle: dict[_Connection, None] = {}
        """Those without a request, longest first."""
        self.bodies_bytes = 0
        self.closing = False
        """Every answer is its connection's last."""
        self._servers: list[asyncio.Server] = []
        self._sweep: asyncio.TimerHandle | None = None
        shortest = min(limits.request_s, limits.idle_s, limits.linger_s)
        self._sweep_s = min(1.0, max(shortest / 4, 0.02))

    async def listen(self, listener: socket.socket) -> None:
        """It has its address, and becomes the server's."""

        def make() -> asyncio.Protocol:
            return _Connection(self)

        if listener.family == socket.AF_UNIX:
            self._servers.append(await self.loop.create_unix_server(make, sock=listener, backlog=_BACKLOG))
        else:
            self._servers.append(await self.loop.create_server(make, sock=listener, backlog=_BACKLOG))

    @property
    def unsent(self) -> bool:
        """Somebody has not read all of its answer. May be asked from any thread."""
        return any(connection.unsent for connection in list(self.connections))

    def stop_accepting(self) -> None:
        """Nobody else comes by the addresses that it has now. It may be given others."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def stop_listening(self) -> None:
        """No new connections; whoever is here is served on, and not kept afterwards."""
        self.closing = True
        self.stop_accepting()
        for connection in list(self.idle):
            connection.close()

    def close(self) -> None:
        """No new connections, and the old ones break off."""
        self.stop_listening()
        if self._sweep is not None:
            self._sweep.cancel()
        for connection in list(self.connections):
            connection.close()

    def watch(self) -> None:
        """Deadlines are looked at a few times in the shortest of them, all at once: a timer for each would cost more
        than a small request.
        """
        if self._sweep is None and self.connections:
            self._sweep = self.loop.call_later(self._sweep_s, self._look)

    def _look(self) -> None:
        self._sweep = None
        now = self.loop.time()
        for connection in [late for late in self.connections if late.deadline <= now]:
            connection.late()
        self.watch()


class _Connection(asyncio.Protocol):
    __slots__ = (
        "_answering_bytes", "_begun", "_body", "_body_bytes", "_early", "_ended", "_head_bytes", "_headed", "_headers",
        "_late", "_loop", "_over", "_parser", "_peer", "_ready", "_refused", "_reply", "_room", "_said", "_server",
        "_target", "_transport", "deadline",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = server.loop
        self._parser = httptools.HttpRequestParser(self)
        self._transport: asyncio.Transport | None = None
        self._peer = ""
        self._ready: deque[tuple[Request, bool, bool, bool]] = deque()
        """Requests that are whole, with what their replies have to know."""
        self._early = bytearray()
        self._reply: Reply | None = None
        self._room = True
        self._over = False
        """Nothing is read any more."""
        self._ended = False
        """The client has said its last."""
        self._said = False
        """Something of the answer is out."""
        self._answering_bytes = 0
        self._refused: tuple[int, str] | None = None
        self.deadline = float("inf")
        self._late: Callable[[], None] = self.close
        self._clear()

    def _clear(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        """Those of a head, or of what comes behind a body in chunks."""
        self._headed = False
        self._begun = False
        """Something of a request is here."""

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._peer = _named(transport.get_extra_info("peername"))
        server = self._server
        server.connections.add(self)
        if len(server.connections) > server.limits.connections:
            longest = next(iter(server.idle), None)
            if longest is None:
                self._refuse(503, "there are too many connections")
                return
            longest.close()
        self._rest()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._reply is not None:
            self._early += data
            if len(self._early) > _EARLY_BYTES and self._transport is not None:
                self._transport.pause_reading()
            return
        self._feed(data)
        if not self._over:
            self._next()

    def eof_received(self) -> bool:
        """It may have closed its sending half only, and wait for the answer. One that has gone altogether answers
        whatever is written to it with a reset.
        """
        self._ended = True
        reply = self._reply
        if self._over or self._transport is None or reply is None:
            return False
        if reply.chunked and not self._said:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._loop.call_later(_RESET_FIRST_S, self._look_for_a_reset, reply, _RESET_FIRST_S)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        server = self._server
        server.connections.discard(self)
        server.idle.pop(self, None)
        self.deadline = float("inf")
        server.bodies_bytes -= self._body_bytes + sum(len(request.body) for request, *_ in self._ready)
        self._body_bytes = 0
        self._ready.clear()
        self._forget()
        reply, self._reply = self._reply, None
        if reply is not None:
            gone, reply.gone, reply.room = reply.gone, nothing, nothing
            gone()

    def pause_writing(self) -> None:
        self._room = False
        if self._reply is not None:
            self._reply.room(False)

    def resume_writing(self) -> None:
        self._room = True
        if self._reply is not None:
            self._reply.room(True)

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    def _look_for_a_reset(self, reply: Reply, waited_s: float) -> None:
        """Nobody else does: asyncio doesn't look at a socket that has said its last."""
        if reply is not self._reply or self._transport is None:
            return
        sock = self._transport.get_extra_info("socket")
        if sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self._transport.abort()
            return
        wait_s = min(2 * waited_s, _RESET_MOST_S)
        self._loop.call_later(wait_s, self._look_for_a_reset, reply, wait_s)

    # -- the parser says -------------------------------------------------------------------------------------------

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:  # what comes behind a body in chunks is no header: anything could be slipped in there
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._headed = True
        limits = self._server.limits
        size = sum(len(name) + len(value) for name, value in self._headers) + len(self._target)
        if size > limits.header_bytes:
            self._refused = (431, f"the headers of a request may have {limits.header_bytes} bytes")
            return
        hosts = said = 0
        expects = False
        for name, value in self._headers:
            if name == b"content-length":
                said = int(value)
            elif name == b"host":
                hosts += 1
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
        if hosts > 1 or (hosts == 0 and self._parser.get_http_version() == "1.1"):
            self._refused = (400, "a request names one host")
        elif said > limits.body_bytes:
            self._refused = (413, f"a request may have {limits.body_bytes} bytes, and this one has {said}")
        elif expects and self._transport is not None:
            self._transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")

    def on_body(self, data: bytes) -> None:
        if self._refused is not None:
            return
        self._body.append(data)
        self._body_bytes += len(data)
        server = self._server
        server.bodies_bytes += len(data)
        if self._body_bytes > server.limits.body_bytes:
            self._refused = (413, f"a request may have {server.limits.body_bytes} bytes, and this one has more")
        elif server.bodies_bytes > server.limits.bodies_bytes:
            self._refused = (503, "too many large requests at a time")

    def on_message_complete(self) -> None:
        if self._refused is not None:
            return
        parser = self._parser
        method = parser.get_method().decode("ascii")
        chunked = parser.get_http_version() == "1.1"
        keeps = parser.should_keep_alive() and method != "CONNECT"
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        request = Request(method, self._target, self._headers, body, self._peer)
        self._ready.append((request, chunked, method == "HEAD", keeps))
        self._clear()

    # -- one request after the other -------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        if not self._begun:
            self._begun = True
            self._server.idle.pop(self, None)
            self._within(self._server.limits.request_s, self._too_slow)
        had = self._body_bytes
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self._ready:
                self._stay(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self._refused = self._refused or (400, f"this is no HTTP that can be answered: {error}")
        if self._body_bytes > had:
            self._head_bytes = 0
        limit = self._server.limits.header_bytes
        unfinished = not self._ready and not self._refused
        if unfinished and self._head_bytes > limit + _slack(self._headers):
            self._refused = (431, f"the headers of a request may have {limit} bytes")

    def _stay(self, rest: bytes) -> None:
        """A client that would rather go on otherwise (HTTP/2 say) takes an answer in HTTP/1.1. The parser takes all
        behind the head for that other protocol's: so it is given the head once more, without the offer.
        """
        request, chunked, headless, keeps = self._ready.pop()
        if request.method == "CONNECT":
            self._ready.append((request, chunked, headless, keeps))
            return
        head = [b"%b %b HTTP/1.%d\r\n" % (request.method.encode(), request.target, chunked)]
        head += [b"%b: %b\r\n" % header for header in request.headers if header[0] not in (b"upgrade", b"expect")]
        self._parser = httptools.HttpRequestParser(self)
        self._feed(b"".join((*head, b"\r\n", rest)))

    def _next(self) -> None:
        """Hands on the next request that is whole, or says what is wrong with it."""
        while self._reply is None and not self._over:
            if self._ready:
                self._take()
                continue
            if self._refused is not None:
                status, why = self._refused
                self._refuse(status, why)
            elif self._early:
                data = bytes(self._early)
                self._early.clear()
                if self._transport is not None:
                    self._transport.resume_reading()
                self._feed(data)
                continue
            elif self._ended:
                self.close()
            elif not self._begun:
                self._rest()
            elif self.deadline == float("inf"):
                self._within(self._server.limits.request_s, self._too_slow)
            return

    def _take(self) -> None:
        request, chunked, headless, keeps = self._ready.popleft()
        self.deadline = float("inf")
        self._said = False
        keeps = keeps and not self._ended and not self._server.closing
        reply = self._reply = Reply(self, chunked=chunked, headless=headless, keeps=keeps)
        self._answering_bytes = len(request.body)
        self._server.handle(request, reply)
        if self._reply is reply and not self._room:
            reply.room(False)

    def _rest(self) -> None:
        """Nothing is asked at the moment."""
        self._server.idle[self] = None
        self._within(self._server.limits.idle_s, self.close)
        self._server.watch()

    def _forget(self) -> None:
        """The request that was answered."""
        self._server.bodies_bytes -= self._answering_bytes
        self._answering_bytes = 0

    # -- from the replies ------------------------------------------------------------------------------------------

    def write(self, reply: Reply, data: bytes) -> None:
        transport = self._transport
        if reply is not self._reply or transport is None:
            return
        self._said = True
        transport.write(data)
        if not self._room and transport.get_write_buffer_size() > self._server.limits.unread_bytes:
            transport.abort()

    def answered(self, reply: Reply) -> None:
        if reply is not self._reply:
            return
        self._reply = None
        reply.gone = reply.room = nothing
        self._forget()
        if not reply.keeps or self._server.closing:
            self._linger()
        elif self._early or self._ready:
            self._loop.call_soon(self._next)  # not from within: it may have sent a thousand requests
        else:
            self._next()

    def break_off(self, reply: Reply) -> None:
        """What was written still arrives; then the connection ends without the answer's end. Where only that end would
        tell the client that it has all, the connection is reset instead.
        """
        if reply is not self._reply:
            return
        self._reply = None
        reply.gone = reply.room = nothing
        self._forget()
        if reply.chunked:
            self._linger()
        else:
            self.close()

    # -- how it ends -----------------------------------------------------------------------------------------------

    def late(self) -> None:
        self.deadline = float("inf")
        self._late()

    def close(self) -> None:
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, status: int, why: str) -> None:
        """Says why, if that can still be said, and ends."""
        self._server.idle.pop(self, None)
        self._forget()
        if self._transport is not None and not self._over:
            body = self._server.refusal(status, why)
            self._transport.write(
                b"HTTP/1.1 %d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\nconnection: close\r\n\r\n%b"
                % (status, REASONS.get(status, b""), len(body), body)
            )
        self._linger()

    def _linger(self) -> None:
        """A connection that is closed while its client still sends is reset, and what was said is lost."""
        self._over = True
        transport = self._transport
        if transport is None or transport.is_closing():
            return
        if self._ended:
            transport.close()
            return
        if transport.can_write_eof():
            transport.write_eof()
        transport.resume_reading()
        self._within(self._server.limits.linger_s, self._end_lingering)

    def _end_lingering(self) -> None:
        if self.unsent:
            self._within(self._server.limits.idle_s, self.close)
        else:
            self.close()

    def _too_slow(self) -> None:
        self._refuse(408, f"a request has to be complete within {self._server.limits.request_s:g} s")

    def _within(self, seconds: float, what: Callable[[], None]) -> None:
        """The one thing that this connection waits for."""
        self.deadline = self._loop.time() + seconds
        self._late = what
        self._server.watch()


def _slack(headers: list[tuple[bytes, bytes]]) -> int:
    """What stands between a request's headers: they are counted without it when they are complete."""
    return 4 * len(headers) + 64


def _named(peer: object) -> str:
    return str(peer[0]) if isinstance(peer, tuple) and peer else "unix"
