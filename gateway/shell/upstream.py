"""Engines, from the door's side: connections for each token, and one exchange at a time on each.

A connection is kept when its answer is over, for the next request of the same token. What turns out to have been closed
meanwhile, before a byte of an answer came, is asked once more on a new connection, if the request may be. When a token
is forgotten, so are all of its connections, whatever was on its way.

What this file may not do: know what is asked or answered. It says what happened (`events.py`).
"""

import asyncio
import errno
import socket
import ssl
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httptools

from gateway.rules import events as e
from sidecar.http.http_exchange import hop_by_hop
from sidecar.wire.sockets import address_of

IDLE_MOST = 256
"""Connections that are kept for each token."""
ENDING_S = 1.0
"""The end of an answer whose content is complete may take so long, before its connection is closed instead."""
_LARGE_BYTES = 64 << 10
_FULL_RETRY_S, _FULL_RETRIES = 0.005, 200
_PORTS = {"http": 80, "https": 443}
_HOP = frozenset({b"connection", b"keep-alive", b"transfer-encoding", b"content-length", b"trailer", b"upgrade", b"te"})

Tell = Callable[[e.Event], None]


class Upstreams:
    """All connections to the engines of one pair."""

    def __init__(self, loop: asyncio.AbstractEventLoop, tell: Tell) -> None:
        self.loop = loop
        self.tell = tell
        self._idle: dict[int, list[_Connection]] = {}
        self._all: dict[int, set[_Connection]] = {}
        self._exchanges: dict[tuple[int, int], _Exchange] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._forgotten = 0
        """The newest token of which nothing is wanted any more: a connection that is made too late isn't kept."""
        self.drains = 0
        """The token of an engine that drains. No connection to it is kept: by those it sees what is under way."""
        self.paused: set[int] = set()
        """Requests whose clients don't read."""

    # -- effects ---------------------------------------------------------------------------------------------------

    def ask(self, ask: e.Ask, hear: Tell | None = None) -> None:
        """`hear`: is told of the answer, instead of `tell`."""
        exchange = self._exchanges[ask.request, ask.leg] = _Exchange(ask, hear or self.tell)
        idle = self._idle.get(ask.token)
        while idle and ask.again:
            connection = idle.pop()
            if not connection.closed:
                connection.begin(exchange, reused=True)
                self.tell(e.Connected(ask.token, ask.request))
                return
        self._connect(exchange)

    def look(self, look: e.Look) -> None:
        task = self.loop.create_task(self._look(look))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _look(self, look: e.Look) -> None:
        connection = _Connection(self, look.token)
        try:
            await _connect(self.loop, look.url, connection)
        except (OSError, ValueError):
            self.tell(e.Unreachable(look.token))
            return
        self.tell(e.Connected(look.token, 0))
        self.keep(connection)

    def drop(self, drop: e.Drop) -> None:
        exchange = self._exchanges.pop((drop.request, drop.leg), None)
        if exchange is None:
            return
        exchange.wanted = False
        if exchange.connection is not None:
            exchange.connection.leave(ending=drop.ending)

    def drain(self, token: int) -> None:
        """0: none does."""
        self.drains = token
        for connection in self._idle.pop(token, ()):
            connection.close()

    def forget(self, token: int) -> None:
        self._forgotten = max(self._forgotten, token)
        self._idle.pop(token, None)
        for connection in list(self._all.get(token, ())):
            connection.close()

    def pause(self, request: int, pause: bool) -> None:
        """Its client doesn't read, or reads again."""
        (self.paused.add if pause else self.paused.discard)(request)
        for (number, _), exchange in self._exchanges.items():
            if number == request and exchange.connection is not None:
                exchange.connection.pause(pause)

    def close(self) -> None:
        for token in list(self._all):
            self.forget(token)
        for task in self._tasks:
            task.cancel()

    # -- connections -----------------------------------------------------------------------------------------------

    def _connect(self, exchange: "_Exchange", *, again: bool = False) -> None:
        task = self.loop.create_task(self._open(exchange, again))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _open(self, exchange: "_Exchange", again: bool) -> None:
        ask = exchange.ask
        connection = _Connection(self, ask.token)
        try:
            await _connect(self.loop, ask.url, connection)
        except (OSError, ValueError) as error:
            if exchange.wanted:
                self._exchanges.pop((ask.request, ask.leg), None)
                why = f"{ask.url} can't be reached: {error.strerror if isinstance(error, OSError) else error}"
                exchange.tell((e.Broke if again else e.NotSent)(ask.request, ask.leg, why))
            return
        self.tell(e.Connected(ask.token, ask.request if exchange.wanted else 0))
        if exchange.wanted:
            connection.begin(exchange, reused=False)
        else:
            self.keep(connection)

    def opened(self, connection: "_Connection") -> None:
        self._all.setdefault(connection.token, set()).add(connection)

    def keep(self, connection: "_Connection") -> None:
        """It may be used again."""
        token = connection.token
        known = token > self._forgotten and token != self.drains and connection in self._all.get(token, ())
        idle = self._idle.setdefault(token, []) if known else []
        if known and len(idle) < IDLE_MOST:
            idle.append(connection)
        else:
            connection.close()

    def lost(self, connection: "_Connection") -> None:
        known = self._all.get(connection.token)
        if known is not None:
            known.discard(connection)
            if not known:
                del self._all[connection.token]
                self._idle.pop(connection.token, None)

    def finished(self, ask: e.Ask) -> None:
        self._exchanges.pop((ask.request, ask.leg), None)

    def try_again(self, exchange: "_Exchange") -> None:
        exchange.connection = None
        self._connect(exchange, again=True)


class _Exchange:
    __slots__ = ("ask", "connection", "tell", "wanted")

    def __init__(self, ask: e.Ask, tell: Tell) -> None:
        self.ask = ask
        self.tell = tell
        self.wanted = True
        self.connection: _Connection | None = None


class _Connection(asyncio.Protocol):
    __slots__ = (
        "_body", "_complete", "_ending", "_exchange", "_framed", "_headers", "_hops", "_keeps", "_length", "_parser",
        "_paused", "_reused", "_said", "_status", "_transport", "_ups", "closed", "token",
    )  # fmt: skip

    def __init__(self, upstreams: Upstreams, token: int) -> None:
        self._ups = upstreams
        self.token = token
        self._transport: asyncio.Transport | None = None
        self._exchange: _Exchange | None = None
        self.closed = False
        self._paused = self._reused = False
        self._parser: Any = httptools.HttpResponseParser(self)
        """One for all answers: it is asked for another only when it has read one to its very end."""
        self._clear()

    def _clear(self) -> None:
        self._headers: list[tuple[bytes, bytes]] = []
        self._hops: list[tuple[bytes, bytes]] = []
        """Those that say which others go no further."""
        self._body: list[bytes] = []
        self._length: int | None = None
        self._framed = False
        """The answer says itself where it ends."""
        self._status = 0
        self._said = False
        """A byte of the answer has come."""
        self._complete = self._keeps = False
        """What comes behind a complete answer is no request's: it is not looked at, and the connection isn't kept."""
        self._ending = False
        """Only the end of an answer is to come, and no client waits for it."""

    # -- exchanges -------------------------------------------------------------------------------------------------

    def begin(self, exchange: _Exchange, *, reused: bool) -> None:
        transport = self._transport
        if transport is None or self.closed:
            self._ups.try_again(exchange)
            return
        self._exchange, self._reused = exchange, reused
        exchange.connection = self
        ask = exchange.ask
        lines = [b"%b %b HTTP/1.1" % (ask.method.encode(), ask.target), *map(b": ".join, ask.headers)]
        if ask.body or ask.method not in ("GET", "HEAD", "OPTIONS", "DELETE"):
            lines.append(b"content-length: %d" % len(ask.body))
        lines.append(b"")
        if len(ask.body) > _LARGE_BYTES:  # what waits to be sent is then the request's own body, and no copy of it
            lines.append(b"")
            transport.write(b"\r\n".join(lines))
            transport.write(ask.body)
        else:
            lines.append(ask.body)
            transport.write(b"\r\n".join(lines))
        if ask.request in self._ups.paused:
            self.pause(True)

    def leave(self, *, ending: bool) -> None:
        """The rest of the answer isn't wanted."""
        self._exchange = None
        if not ending or self._transport is None:
            self.close()
            return
        self._ending = True
        if not self._complete:
            self.pause(False)
            self._ups.loop.call_later(ENDING_S, self._end, self._headers)

    def _end(self, headers: object) -> None:
        if self._headers is headers and self._ending:  # and it is still the same answer's end
            self.close()

    def pause(self, pause: bool) -> None:
        if self._transport is not None and not self.closed and pause is not self._paused:
            self._paused = pause
            (self._transport.pause_reading if pause else self._transport.resume_reading)()

    def close(self) -> None:
        """Nothing is said about it any more."""
        self._exchange, self.closed = None, True
        if self._transport is not None:
            self._transport.abort()

    # -- asyncio ---------------------------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport  # type: ignore[assignment]
        self._ups.opened(self)

    def data_received(self, data: bytes) -> None:
        if self.closed:
            return
        if self._exchange is None and not self._ending:
            self.close()  # nothing was asked for
            return
        headed, self._said = self._status != 0, True
        wrong = ""
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            wrong = str(error) or type(error).__name__
        if wrong and self._complete:
            wrong, self._keeps = "", False
        exchange, ended, heard = self._exchange, self._complete and not wrong, None
        if exchange is not None:
            begins = self._status and not headed
            head = e.Head(self._status, self._for_others(), self._length) if begins else None
            heard = e.Heard(exchange.ask.request, exchange.ask.leg, head, self._take_body(), ended)
        if ended:
            self._finish()
        if exchange is not None and exchange.wanted and heard is not None and (heard.head or heard.data or ended):
            exchange.tell(heard)
        if wrong:
            self._give_up(f"its HTTP can't be read: {wrong}", malformed=True)

    def _for_others(self) -> e.Headers:
        if not self._hops:
            return self._headers
        hidden = hop_by_hop(self._hops)
        return [header for header in self._headers if header[0] not in hidden]

    def _take_body(self) -> bytes:
        body, self._body = self._body, []
        return body[0] if len(body) == 1 else b"".join(body)

    def _finish(self) -> None:
        """The answer is complete, and the connection can be used for another."""
        exchange, self._exchange = self._exchange, None
        if exchange is not None:
            self._ups.finished(exchange.ask)
        if self._keeps and not self.closed and self._transport is not None:
            self._clear()
            if self._paused:  # the client that had this answer may not have read
                self.pause(False)
            self._ups.keep(self)
        else:
            self.close()

    def _give_up(self, why: str, *, malformed: bool = False) -> None:
        exchange, self._exchange = self._exchange, None
        self.close()
        if exchange is not None and exchange.wanted:
            self._ups.finished(exchange.ask)
            exchange.tell(e.Broke(exchange.ask.request, exchange.ask.leg, why, malformed))

    def connection_lost(self, error: Exception | None) -> None:
        self.closed, self._transport, self._parser = True, None, None  # the parser knows it, and would keep it alive
        self._ups.lost(self)
        exchange = self._exchange
        if exchange is None or not exchange.wanted:
            return
        if not self._said and self._reused and exchange.ask.again:
            self._exchange = None
            self._ups.try_again(exchange)
        elif not self._said:
            self._give_up("its connection ended before it answered")
        elif self._status and not self._framed:
            self._give_up("its answer doesn't say how long it is, and ended with its connection")
        else:
            self._give_up("its connection ended in the middle of the answer")

    # -- the parser says -------------------------------------------------------------------------------------------

    def on_message_begin(self) -> None:
        self._keeps = self._keeps and not self._complete

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._complete:
            return
        name = name.lower()
        if name not in _HOP:
            self._headers.append((name, value))
        elif name == b"content-length":
            self._length, self._framed = int(value), True
        elif name == b"transfer-encoding":
            self._framed = True
        elif name == b"connection" and value != b"keep-alive":
            self._hops.append((name, value))

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if self._complete:
            return
        if status < 200:
            self._headers, self._hops = [], []
            self._framed, self._length = False, None
        else:
            self._status = status
            self._framed = self._framed or status in (204, 304)

    def on_body(self, data: bytes) -> None:
        if not self._complete:
            self._body.append(data)

    def on_message_complete(self) -> None:
        if self._status and not self._complete:
            self._complete = True
            self._keeps = self._parser.should_keep_alive()  # it can't say any more when this returns


@cache
def _trusted() -> ssl.SSLContext:
    """Whose certificates this machine trusts: read once, for it takes a while."""
    return ssl.create_default_context()


async def _connect(loop: asyncio.AbstractEventLoop, url: str, connection: _Connection) -> None:
    """Raises OSError or ValueError."""
    if not url.startswith("unix:"):
        at = urlsplit(url)
        if at.scheme not in _PORTS or at.hostname is None:
            raise ValueError(f"{url!r} is no address that the door can use")
        secure = _trusted() if at.scheme == "https" else None
        await loop.create_connection(lambda: connection, at.hostname, at.port or _PORTS[at.scheme], ssl=secure)
        return
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
    try:
        for left in range(_FULL_RETRIES, -1, -1):
            try:
                with address_of(Path(url.removeprefix("unix:"))) as address:
                    sock.connect(address)
                break
            except BlockingIOError as error:  # more are waiting to be accepted than the engine allows
                if error.errno != errno.EAGAIN or not left:
                    raise
                await asyncio.sleep(_FULL_RETRY_S)
        await loop.create_unix_connection(lambda: connection, sock=sock)
    except BaseException:
        sock.close()
        raise
