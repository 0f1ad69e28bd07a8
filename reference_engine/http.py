"""HTTP/1.1 on asyncio: h11 keeps its rules, and here are the connections and their limits.

A request is handed on when it is whole. Headers, body, and the time that both may take are bounded; so is what waits
for a client that doesn't read. Whoever breaks a rule gets a sentence where that is possible, and loses its connection;
nobody else notices. Nothing is gathered before it is sent: asyncio turns Nagle's algorithm off (TCP_NODELAY), and a
token's chunk goes into the socket in the call that brings it.

What this file may not do: know what is asked (`app.py`).
"""

import asyncio
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import h11

MAX_CONNECTIONS = 1000


@dataclass(frozen=True)
class Limits:
    header_bytes: int = 16 << 10
    body_bytes: int = 1 << 20
    unread_bytes: int = 4 << 20
    request_s: float = 10.0
    """From a request's first byte to its last."""
    idle_s: float = 75.0
    """Between two requests of one connection, and for the rest of an answer to be read."""
    linger_s: float = 1.0
    """Whoever is still sending what nobody wants can read why, for so long."""


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[bytes, bytes]
    body: bytes


Headers = Sequence[tuple[str, str]]
Handler = Callable[[Request, "Reply"], None]
Refusal = Callable[[int, str], bytes]
"""Status and why -> the body that says so."""


class Reply:
    """The answer to one request. When the client has gone, whatever is said here goes nowhere."""

    def __init__(self, connection: "_Connection") -> None:
        self._connection = connection
        self.gone: Callable[[], None] = lambda: None
        """Called once if the client goes before the answer is complete."""
        self.without_body = False

    def send(self, status: int, body: bytes, headers: Headers = ()) -> None:
        self._start(status, [("content-type", "application/json"), ("content-length", str(len(body))), *headers])
        if not self.without_body:
            self._connection.write(self, h11.Data(data=body))
        self.end()

    def open_stream(self) -> None:
        self._start(200, [("content-type", "text/event-stream; charset=utf-8"), ("cache-control", "no-cache")])

    def stream(self, data: bytes) -> None:
        self._connection.write(self, h11.Data(data=data))

    def end(self) -> None:
        self._connection.write(self, h11.EndOfMessage())

    def abort(self) -> None:
        """The answer breaks off, as it does when a process dies."""
        self._connection.abort(self)

    def _start(self, status: int, headers: Headers) -> None:
        self._connection.write(self, h11.Response(status_code=status, headers=list(headers)))


class HttpServer:
    """Everything here runs in the loop's thread, but for the constructor."""

    def __init__(self, loop: asyncio.AbstractEventLoop, handle: Handler, refusal: Refusal, limits: Limits) -> None:
        self.loop = loop
        self.handle = handle
        self.refusal = refusal
        self.limits = limits
        self.connections: set[_Connection] = set()
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """It has its address, and becomes the server's."""
        make = self._protocol
        if listener.family == socket.AF_UNIX:
            self._server = await self.loop.create_unix_server(make, sock=listener)
        else:
            self._server = await self.loop.create_server(make, sock=listener)

    @property
    def unsent(self) -> bool:
        """Somebody has not read all of its answer. May be asked from any thread."""
        return any(connection.unsent for connection in list(self.connections))

    def close(self) -> None:
        """No new connections, and the old ones break off."""
        if self._server is not None:
            self._server.close()
            self._server = None
        for connection in list(self.connections):
            connection.abort()

    def _protocol(self) -> "_Connection":
        return _Connection(self)


class _Connection(asyncio.Protocol):
    def __init__(self, server: HttpServer) -> None:
        self._server = server
        self._limits = server.limits
        self._http = h11.Connection(h11.SERVER, max_incomplete_event_size=server.limits.header_bytes)
        self._transport: asyncio.Transport | None = None
        self._request: h11.Request | None = None
        self._body = bytearray()
        self._reply: Reply | None = None
        self._timer: asyncio.TimerHandle | None = None
        self._begun = False
        """Something of a request is here."""
        self._over = False
        """Nothing is read any more."""

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._server.connections.add(self)
        if len(self._server.connections) > MAX_CONNECTIONS:
            self._refuse(503, "too many connections")
        else:
            self._within(self._limits.idle_s, self._close)

    def data_received(self, data: bytes) -> None:
        if self._over:
            return
        self._http.receive_data(data)
        if self._reply is None:
            self._begin()
            self._pump()
        elif len(self._http.trailing_data[0]) > self._limits.body_bytes:
            self.abort()  # it may send its next request early, but not all of its requests

    def connection_lost(self, error: Exception | None) -> None:
        self._over = True
        self._server.connections.discard(self)
        self._within(0, None)
        reply, self._reply = self._reply, None
        if reply is not None:
            reply.gone()

    @property
    def unsent(self) -> int:
        return 0 if self._transport is None else self._transport.get_write_buffer_size()

    # -- from the replies ------------------------------------------------------------------------------------------

    def write(self, reply: Reply, event: h11.Event) -> None:
        if reply is not self._reply or self._transport is None:
            return
        data = self._http.send(event)
        if data:
            self._transport.write(data)
        if self._transport.get_write_buffer_size() > self._limits.unread_bytes:
            self._transport.abort()
        elif isinstance(event, h11.EndOfMessage):
            self._answered()

    def abort(self, reply: Reply | None = None) -> None:
        if self._transport is not None and reply in (None, self._reply):
            self._transport.abort()

    # -- one request after the other -------------------------------------------------------------------------------

    def _begin(self) -> None:
        if not self._begun:
            self._begun = True
            self._within(self._limits.request_s, self._too_slow)

    def _pump(self) -> None:
        """Takes what has come, as far as that goes."""
        while not self._over:
            try:
                event = self._http.next_event()
            except h11.RemoteProtocolError as error:
                self._refuse(error.error_status_hint, f"this is no HTTP that can be answered: {error}")
                return
            if event is h11.NEED_DATA:
                self._say_go_on()
                return
            if event is h11.PAUSED or isinstance(event, h11.ConnectionClosed):
                return
            if isinstance(event, h11.Request):
                self._request = event
                self._body.clear()
                if sum(len(name) + len(value) for name, value in event.headers) > self._limits.header_bytes:
                    # h11 looks only at headers that aren't all there yet: it depends on how they come
                    self._refuse(431, f"the headers of a request may have {self._limits.header_bytes} bytes")
                said = dict(event.headers).get(b"content-length", b"0")
                if len(said) > 18 or int(said) > self._limits.body_bytes:
                    self._too_large()
            elif isinstance(event, h11.Data):
                self._body += event.data
                if len(self._body) > self._limits.body_bytes:
                    self._too_large()
            elif isinstance(event, h11.EndOfMessage):
                self._handle()

    def _handle(self) -> None:
        request, self._request = self._request, None
        if request is None:
            return
        self._begun = False
        self._within(0, None)
        reply = self._reply = Reply(self)
        reply.without_body = request.method == b"HEAD"
        headers = {bytes(name): bytes(value) for name, value in request.headers}
        path = request.target.partition(b"?")[0].decode("ascii", "replace")
        self._server.handle(Request(request.method.decode("ascii"), path, headers, bytes(self._body)), reply)

    def _answered(self) -> None:
        self._reply = None
        if self._http.our_state is h11.DONE and self._http.their_state is h11.DONE and not self._over:
            self._within(self._limits.idle_s, self._close)
            self._http.start_next_cycle()
            if self._http.trailing_data[0]:
                self._begin()
                self._server.loop.call_soon(self._pump)  # not from within: it may have sent a thousand requests
        else:
            self._linger()

    def _say_go_on(self) -> None:
        if self._http.they_are_waiting_for_100_continue and self._transport is not None:
            self._transport.write(self._http.send(h11.InformationalResponse(status_code=100, headers=[])) or b"")

    # -- how it ends -----------------------------------------------------------------------------------------------

    def _refuse(self, status: int, why: str) -> None:
        """Says why, if that can still be said, and ends."""
        if self._transport is None or self._over:
            return
        self._over = True
        if self._http.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = self._server.refusal(status, why)
            headers = [
                ("content-type", "application/json"),
                ("content-length", str(len(body))),
                ("connection", "close"),
            ]
            for event in (h11.Response(status_code=status, headers=headers), h11.Data(data=body), h11.EndOfMessage()):
                self._transport.write(self._http.send(event) or b"")
        self._linger()

    def _linger(self) -> None:
        """A connection that is closed while its client still sends is reset, and what was said is lost."""
        self._over = True
        if self._transport is not None and not self._transport.is_closing():
            if self._transport.can_write_eof():
                self._transport.write_eof()
            self._within(self._limits.linger_s, self._close)

    def _close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def _too_large(self) -> None:
        self._refuse(413, f"a request may have {self._limits.body_bytes} bytes, and this one has more")

    def _too_slow(self) -> None:
        self._refuse(408, f"a request has to be complete within {self._limits.request_s:g} s")

    def _within(self, seconds: float, what: Callable[[], None] | None) -> None:
        """The one thing that this connection waits for."""
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._server.loop.call_later(seconds, what) if what is not None else None
