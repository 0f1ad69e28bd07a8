"""The server's side of HTTP/1.1 on asyncio: the connections and their limits.

A request is handed on when it is whole. Headers, body, connections, and the time that each may take are bounded.
A client that breaks a rule gets a sentence where that is possible, and loses its connection; no other notices. One
that only closes its sending half is still answered; one that has gone altogether is noticed (`_look_whether_it_left`).

Nothing is gathered before it is sent: asyncio turns Nagle's algorithm off, and what is written goes into the socket in
the same call. When a client doesn't read, the program is told (`Reply.room`).

How bytes become requests stands in `http_requests.py`, what a request and its answer are to the program in
`http_exchange.py`.

What this file may not do: know what is asked, or keep time for the program that answers. It runs in one loop's thread.
"""

import asyncio
import ipaddress
import select
import socket
from collections.abc import Callable
from dataclasses import dataclass

from sidecar.http.http_exchange import BEGINNING, REASONS, Handler, Headers, Reply, nothing
from sidecar.http.http_requests import CONTINUE, Bodies, Heads, LetIn, RequestReader, every_caller

_EARLY_PIECE = 64 << 10
"""So much is read at a time of what came while another request was answered: it may be thousands of small ones."""
_BACKLOG = 4096
"""asyncio would set it to 100, whatever it was: a client behind a hundred others then waits for a second."""
_RESET_FIRST_S, _RESET_MOST_S = 0.02, 5.0
_LEFT = select.POLLHUP | select.POLLERR
_LEAST_READ = 16 << 10
"""A client that reads less in `Limits.unread_s` doesn't read."""


@dataclass(frozen=True)
class Limits:
    connections: int = 1000
    """When there are more, the one that has been idle longest goes; if none is idle, the new one."""
    first_goes: bool = False
    """If none is idle, the one that came first goes instead: none has much to ask, and none may keep others out."""
    header_bytes: int = 16 << 10
    body_bytes: int = 1 << 20
    bodies_bytes: int = 1 << 30
    """All requests that are being received or answered, together; and so much of answers that aren't read."""
    client_bodies_bytes: int = 256 << 20
    """Those of one client."""
    unread_bytes: int = 4 << 20
    """A client for whom more waits loses its connection."""
    unread_s: float = 60.0
    """So does one that hasn't read for so long what waits for it."""
    request_s: float = 10.0
    """From a request's first byte to its last."""
    idle_s: float = 75.0
    """Between two requests of one connection, and for the rest of an answer to be read."""
    linger_s: float = 1.0
    """A client that still sends what isn't wanted can read why, for so long."""


Refusal = Callable[[int, str], bytes]
"""Status and why -> a JSON body that says so."""


class HttpServer:
    """Everything here runs in the loop's thread, but for the constructor and `unsent`."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        handle: Handler,
        refusal: Refusal,
        limits: Limits,
        let_in: LetIn = every_caller,
    ) -> None:
        """`let_in` is asked when a request's head is complete; only what it lets in is read on."""
        self.loop = loop
        self.let_in = let_in
        self.handle = handle
        self.refusal = refusal
        self.limits = limits
        self.connections: dict[_Connection, None] = {}
        """In the order of their coming."""
        self.idle: dict[_Connection, None] = {}
        """Those without a request, longest first."""
        self.stuck: dict[_Connection, None] = {}
        """Those that don't read, longest first."""
        self.bodies = Bodies(limits.bodies_bytes, limits.client_bodies_bytes)
        self.heads: Heads = {}
        self.closing = False
        """Every answer is its connection's last."""
        self._servers: list[asyncio.Server] = []
        self.sweep: asyncio.TimerHandle | None = None
        shortest = min(limits.request_s, limits.idle_s, limits.linger_s, limits.unread_s)
        self._sweep_s = min(1.0, max(shortest / 4, 0.02))

    async def listen(self, listener: socket.socket, backlog: int = _BACKLOG) -> None:
        """It has its address, and becomes the server's. (Without a descriptor left, asyncio fails `backlog` times.)"""

        def make() -> asyncio.Protocol:
            return _Connection(self)

        if listener.family == socket.AF_UNIX:
            self._servers.append(await self.loop.create_unix_server(make, sock=listener, backlog=backlog))
        else:
            self._servers.append(await self.loop.create_server(make, sock=listener, backlog=backlog))

    @property
    def unsent(self) -> bool:
        """A client has not read all of its answer. May be asked from any thread."""
        return any(connection.unsent for connection in list(self.connections))

    def stop_accepting(self) -> None:
        """No new client comes by the addresses that it has now. It may be given others."""
        for server in self._servers:
            server.close()
        self._servers.clear()

    def break_off(self) -> None:
        """The clients that are here have to come again."""
        for connection in list(self.connections):
            connection.close()

    def stop_listening(self) -> None:
        """No new connections; those that are here are served on, and not kept afterwards."""
        self.closing = True
        self.stop_accepting()
        for connection in list(self.idle):
            connection.close()

    def close(self) -> None:
        """No new connections, and the old ones break off."""
        self.stop_listening()
        if self.sweep is not None:
            self.sweep.cancel()
        self.break_off()

    def watch(self) -> None:
        """Deadlines are looked at a few times in the shortest of them, all at once: a timer for each would cost more
        than a small request.
        """
        if self.sweep is None and self.connections:
            self.sweep = self.loop.call_later(self._sweep_s, self._look)

    def _look(self) -> None:
        self.sweep = None
        now = self.loop.time()
        for connection in [late for late in self.connections if late.deadline <= now]:
            connection.time_is_over()
        waits = 0
        for connection in reversed(list(self.stuck)):
            waits += connection.unsent
            if connection.does_not_read(now) or waits > self.limits.bodies_bytes:
                connection.close()
        self.watch()


class _Connection(asyncio.Protocol):
    __slots__ = (
        "_asked_by", "_early", "_ended", "_held", "_late", "_loop", "_nudged", "_over", "_reader", "_reply", "_room",
        "_said", "_server", "_stuck_since", "_transport", "_unread", "deadline",
    )  # fmt: skip

    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._loop = server.loop
        limits = server.limits
        self._reader = RequestReader(
            limits.header_bytes, limits.body_bytes, server.bodies, server.let_in, self._go_on, server.heads
        )
        self._transport: asyncio.Transport | None = None
        self._early = bytearray()
        self._reply: Reply | None = None
        self._room = True
        self._over = False
        """Nothing is read any more."""
        self._ended = False
        """The client has said its last."""
        self._said = False
        """Something of the answer is out."""
        self._nudged = 0
        """How many bytes are out of what every answer begins with."""
        self._asked_by, self._held = "", 0
        """What is held of the request that is being answered; its body is with its handler."""
        self._stuck_since = 0.0
        self._unread = 0
        """When it stopped reading there was so much for it, or has come since then."""
        self.deadline = float("inf")
        self._late: Callable[[], None] = self.close

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._reader.peer = peer = _named(transport.get_extra_info("peername"))
        self._reader.home = _home(peer)
        server = self._server
        server.connections[self] = None
        if len(server.connections) > server.limits.connections:
            longest = next(iter(server.idle), None)
            if longest is None and server.limits.first_goes:
                longest = next(iter(server.connections))
            if longest is None:
                self._refuse(503, "there are too many connections")
                return
            server.idle.pop(longest, None)  # at once: others may come before it is closed
            server.connections.pop(longest, None)
            longest.close()
        self._rest()

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        if self._reply is not None or not self._room:
            self._keep_early(data)
            return
        self._feed(data)
        if self._reader.ready and self._room and not self._over:
            self._take()
        if self._reply is None and not self._over:
            self._next()

    def eof_received(self) -> bool:
        """It may have closed its sending half only, and wait for the answer."""
        looked, self._ended = self._ended, True
        reply = self._reply
        if self._over or self._transport is None:
            return False
        if reply is None:
            return bool(self._reader.ready or self._early)  # they have their turn when there is room
        if not looked:
            self._look_whether_it_left(reply, _RESET_FIRST_S)
        return True

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        server = self._server
        server.connections.pop(self, None)
        server.idle.pop(self, None)
        server.stuck.pop(self, None)
        self.deadline, self._late = float("inf"), nothing  # each of these would keep it alive, and its bodies with it
        self._transport = None
        self._server.bodies.hold(self._reader.home, -len(self._early))
        self._early.clear()
        self._reader.drop()
        self._forget()
        reply, self._reply = self._reply, None
        if reply is not None:
            gone, reply.gone, reply.room = reply.gone, nothing, nothing
            gone()

    def pause_writing(self) -> None:
        self._room = False
        self._mark_stuck(self._loop.time())
        self._server.stuck[self] = None
        if self._reply is not None:
            self._reply.room(False)

    def resume_writing(self) -> None:
        self._room = True
        self._server.stuck.pop(self, None)
        if self._reply is not None:
            self._reply.room(True)
        elif not self._over:
            self._next()

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- clients that don't read, and clients that have gone -------------------------------------------------------

    def _mark_stuck(self, now: float) -> None:
        self._stuck_since, self._unread = now, self.unsent

    def does_not_read(self, now: float) -> bool:
        if self._unread - self.unsent >= _LEAST_READ:
            self._mark_stuck(now)
        return now >= self._stuck_since + self._server.limits.unread_s

    def _look_whether_it_left(self, reply: Reply, next_s: float) -> None:
        """A socket that has said its last looks the same whether its other half is closed as well, until something is
        sent to it: then there is a reset. In HTTP/1.0 no interim response may be sent; but every answer begins with
        the same bytes, so these are sent now, one with each look (a client may have read the first ones before it
        left), and the rest when it is there. asyncio doesn't look at such a socket.
        """
        if reply is not self._reply or self._transport is None:
            return
        if not self._said and self._nudged < len(BEGINNING):
            self._transport.write(BEGINNING[self._nudged : self._nudged + 1])
            self._nudged += 1
        if self._socket_is_closed():
            self._transport.abort()
            return
        later_s = min(2 * next_s, _RESET_MOST_S)
        self._loop.call_later(next_s, self._look_whether_it_left, reply, later_s)

    def _socket_is_closed(self) -> bool:
        assert self._transport is not None
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), _LEFT)
        return bool(poll.poll(0))

    # -- one request after the other -------------------------------------------------------------------------------

    def _feed(self, data: bytes) -> None:
        reader = self._reader
        begins = not reader.begun
        reader.feed(data)
        if begins:
            self._server.idle.pop(self, None)
            if reader.begun:  # else it is whole already
                self._within(self._server.limits.request_s, self._too_slow)

    def _go_on(self) -> None:
        if self._transport is not None:
            self._transport.write(CONTINUE)

    def _next(self) -> None:
        """Hands on the next request that is whole, or says what is wrong with it."""
        reader = self._reader
        while self._reply is None and not self._over and self._room:
            if reader.ready:
                self._take()
                continue
            if reader.refused is not None:
                self._refuse(*reader.refused)
            elif self._early:
                self._feed(self._take_early())
                continue
            elif self._ended:
                self.close()
            elif not reader.begun:
                self._rest()
            elif self.deadline == float("inf"):
                self._within(self._server.limits.request_s, self._too_slow)
            return

    def _keep_early(self, data: bytes) -> None:
        """What came before the answer to the request before. It is read on: else its client could leave unseen."""
        limits, bodies, home = self._server.limits, self._server.bodies, self._reader.home
        self._early += data
        bodies.hold(home, len(data))
        most = limits.header_bytes + (limits.body_bytes if self._asked_by else 0)  # no body stays that isn't let in
        if len(self._early) > most or bodies.refuses(home) is not None:
            self.close()

    def _take_early(self) -> bytes:
        data = bytes(self._early[:_EARLY_PIECE])
        del self._early[:_EARLY_PIECE]
        self._server.bodies.hold(self._reader.home, -len(data))
        return data

    def _take(self) -> None:
        reader = self._reader
        request = reader.ready.popleft()
        self._asked_by, self._held = request.client, request.held
        self.deadline = float("inf")
        self._said, self._nudged = False, 0
        asks_more = not self._ended or bool(reader.ready or self._early)
        keeps = request.keeps and asks_more and not self._server.closing
        reply = self._reply = Reply(self, chunked=request.chunked, headless=request.method == "HEAD", keeps=keeps)
        self._server.handle(request, reply)
        if self._reply is not reply:
            return
        if not self._room:
            reply.room(False)
        if self._ended:
            self._loop.call_later(_RESET_FIRST_S, self._look_whether_it_left, reply, 2 * _RESET_FIRST_S)

    def _rest(self) -> None:
        """Nothing is asked at the moment."""
        server = self._server
        server.idle[self] = None
        self.deadline, self._late = self._loop.time() + server.limits.idle_s, self.close
        if server.sweep is None:
            server.watch()

    def _forget(self) -> None:
        """The request that was answered."""
        if self._held:
            self._server.bodies.hold(self._asked_by, -self._held)
        self._held = 0

    # -- from the replies ------------------------------------------------------------------------------------------

    def write(self, reply: Reply, data: bytes) -> None:
        transport = self._transport
        if reply is not self._reply or transport is None:
            return
        if self._nudged:
            data = data[self._nudged :]
            self._nudged = 0
        self._said = True
        transport.write(data)
        if not self._room:
            self._unread += len(data)
            if transport.get_write_buffer_size() > self._server.limits.unread_bytes:
                transport.abort()

    def answered(self, reply: Reply) -> None:
        if not self._end_reply(reply):
            return
        reader = self._reader
        if not reply.keeps or self._server.closing:
            self._linger()
        elif self._early or reader.ready:
            self._loop.call_soon(self._next)  # not from within: it may have sent a thousand requests
        elif reader.begun or reader.refused is not None or self._ended or self._over or not self._room:
            self._next()
        else:
            self._rest()

    def break_off(self, reply: Reply) -> None:
        """What was written still arrives; then the connection ends without the answer's end. Where only that end would
        tell the client that it has all, the connection is reset instead.
        """
        if not self._end_reply(reply):
            return
        if reply.chunked:
            self._linger()
        else:
            self.close()

    def _end_reply(self, reply: Reply) -> bool:
        """False: it was over before."""
        if reply is not self._reply:
            return False
        self._reply = None
        reply.gone = reply.room = nothing
        self._forget()
        return True

    # -- how it ends -----------------------------------------------------------------------------------------------

    def time_is_over(self) -> None:
        self.deadline = float("inf")
        self._late()

    def close(self) -> None:
        self._over = True
        if self._transport is not None:
            self._transport.abort()

    def _refuse(self, status: int, why: str, headers: Headers = ()) -> None:
        """Says why, if that can still be said, and ends."""
        self._server.idle.pop(self, None)
        self._reader.drop()
        self._forget()
        if self._transport is not None and not self._over:
            body = self._server.refusal(status, why)
            more = [b"%b: %b\r\n" % header for header in headers]
            self._transport.write(
                b"%b%d %b\r\ncontent-type: application/json\r\ncontent-length: %d\r\n%bconnection: close\r\n\r\n%b"
                % (BEGINNING, status, REASONS.get(status, b""), len(body), b"".join(more), body)
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
        if self._server.sweep is None:
            self._server.watch()


def _home(peer: str) -> str:
    """To whom it is put down: of IPv6 a client has a whole network."""
    if ":" not in peer or peer.startswith("::ffff:"):
        return peer
    try:
        return str(ipaddress.ip_network((peer.partition("%")[0], 64), strict=False))
    except ValueError:
        return peer


def _named(peer: object) -> str:
    return str(peer[0]) if isinstance(peer, tuple) and peer else "unix"
