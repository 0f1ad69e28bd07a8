"""The client's side of HTTP/1.1 on asyncio: an answer, or a stream of lines, from one place at a time.

    http = HttpClient()
    answer = await http.ask("GET", "http://10.0.0.1:8000/ready", timeout_s=5)
    async with http.stream("http://10.0.0.1:8000/failover/models?watch=1", timeout_s=5) as lines:
        async for line in lines: ...

A connection is used again when its answer is over. Nothing is asked twice: what may have been heard and wasn't answered
is the caller's to judge (`Unanswered`). Headers, an answer's length, a line and the time of each step are bounded.

What this file may not do: know what is asked. The door has its own client (`gateway/shell/upstream.py`), which passes
answers on while they come.
"""

import asyncio
import ssl
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from string import punctuation
from typing import Any
from urllib.parse import quote, urlsplit

import httptools

from sidecar.wire import tcp

_READ_BYTES = 64 << 10
_IDLE_MOST = 32
_MOST_HEADERS = 256
_BREAKS = (OSError, EOFError, httptools.HttpParserError, httptools.HttpParserUpgrade)
"""By which an exchange ends before its answer does. An upgrade (101) was asked for by nobody."""
Tls = Callable[[], ssl.SSLContext]


class Unanswered(Exception):
    """A sentence: nothing answered, or no answer that is one."""


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    """Names in lower case."""
    body: bytes


@dataclass(frozen=True)
class _Place:
    host: str
    port: int
    tls: bool


class HttpClient:
    def __init__(self, tls: Tls = ssl.create_default_context, *, body_bytes: int = 64 << 20) -> None:
        """`tls`: by which a connection is judged, each time that one is opened."""
        self._tls = tls
        self._body_bytes = body_bytes
        self._idle: dict[_Place, list[_Connection]] = {}

    async def ask(
        self,
        method: str,
        url: str,
        body: bytes = b"",
        headers: Mapping[str, str] | None = None,
        *,
        timeout_s: float,
    ) -> Answer:
        """Raises Unanswered."""
        place, target = _split(url)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await self._connected(place)
                connection.send(method, place, target, body, headers or {})
                await connection.read(self._body_bytes)
        except _BREAKS as error:
            if connection is not None:
                connection.close()
            raise Unanswered(f"{url}: {_why(error, timeout_s)}") from None
        except asyncio.CancelledError:
            if connection is not None:
                connection.close()
            raise
        if connection.keeps and len(self._idle.setdefault(place, [])) < _IDLE_MOST:
            self._idle[place].append(connection)
        else:
            connection.close()
        self._look_at_one()
        return Answer(connection.status, connection.headers, bytes(connection.body))

    @asynccontextmanager
    async def stream(
        self, url: str, headers: Mapping[str, str] | None = None, *, timeout_s: float, line_bytes: int = 16 << 20
    ) -> AsyncIterator["tuple[int, AsyncIterator[bytes]]"]:
        """The status, and the answer's lines as they come, without their ends. `timeout_s` is for the beginning."""
        place, target = _split(url)
        connection: _Connection | None = None
        try:
            async with asyncio.timeout(timeout_s):
                connection = await _Connection.open(place, self._tls)
                connection.send("GET", place, target, b"", headers or {})
                while not connection.begun:
                    await connection.more()
        except _BREAKS as error:
            if connection is not None:
                connection.close()
            raise Unanswered(f"{url}: {_why(error, timeout_s)}") from None
        try:
            yield connection.status, _lines(connection, url, line_bytes)
        finally:
            connection.close()

    async def _connected(self, place: _Place) -> "_Connection":
        idle = self._idle.get(place, [])
        while idle:
            connection = idle.pop()
            if connection.usable:
                connection.clear()
                return connection
            connection.close()
        return await _Connection.open(place, self._tls)

    def _look_at_one(self) -> None:
        """Places have their turns. What the far end has closed stays open here otherwise: for ever, of pods that go."""
        for place in [*self._idle][:1]:
            connections = self._idle.pop(place)
            if usable := [connection for connection in connections if connection.usable]:
                self._idle[place] = usable
            for connection in {*connections}.difference(usable):
                connection.close()

    def close(self) -> None:
        for connections in self._idle.values():
            for connection in connections:
                connection.close()
        self._idle.clear()


async def _lines(connection: "_Connection", url: str, line_bytes: int) -> AsyncIterator[bytes]:
    try:
        while True:
            *lines, rest = bytes(connection.body).split(b"\n")
            connection.body = bytearray(rest)
            for line in lines:
                yield line
            if connection.complete:
                if rest:
                    yield rest
                return
            if len(rest) > line_bytes:
                raise Unanswered(f"{url}: a line has more than {line_bytes} bytes")
            await connection.more()
    except _BREAKS as error:
        raise Unanswered(f"{url}: {_why(error, 0)}") from None


def _split(url: str) -> tuple[_Place, str]:
    try:
        parts = urlsplit(url)
        tls = parts.scheme == "https"
        place = _Place(parts.hostname or "", parts.port or (443 if tls else 80), tls)
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        return place, quote(target, safe=punctuation)
    except ValueError as error:
        raise Unanswered(f"{url}: {error}") from None


def _why(error: BaseException, timeout_s: float) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer within {timeout_s:g} s"
    if isinstance(error, EOFError):
        return "it closed the connection"
    if isinstance(error, httptools.HttpParserUpgrade):
        return "it answers 101, and goes on with something other than HTTP"
    if isinstance(error, httptools.HttpParserError):
        return f"what it answers is no HTTP: {error.__context__ or error}"
    return (error.strerror if isinstance(error, OSError) else "") or f"{type(error).__name__}: {error}"


class _Connection:
    """One exchange after the other. The parser tells it what it reads (`on_...`)."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.clear()

    @classmethod
    async def open(cls, place: _Place, tls: Tls) -> "_Connection":
        reader, writer = await asyncio.open_connection(place.host, place.port, ssl=tls() if place.tls else None)
        tcp.probe(writer.get_extra_info("socket"))
        return cls(reader, writer)

    def clear(self) -> None:
        self._parser: Any = httptools.HttpResponseParser(self)
        self.status = 0
        self.headers: dict[str, str] = {}
        self.body = bytearray()
        self.begun = self.complete = self.keeps = False
        self._framed = False
        self._received = 0

    @property
    def usable(self) -> bool:
        return not self._reader.at_eof() and not self._writer.is_closing()

    def send(self, method: str, place: _Place, target: str, body: bytes, headers: Mapping[str, str]) -> None:
        host = f"[{place.host}]" if ":" in place.host else place.host
        lines = [f"{method} {target} HTTP/1.1", f"host: {host}:{place.port}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if body or method in ("POST", "PUT", "PATCH"):
            lines.append(f"content-length: {len(body)}")
        self._writer.write("\r\n".join((*lines, "", "")).encode() + body)

    async def read(self, body_bytes: int) -> None:
        while not self.complete:
            await self.more()
            if self._received > body_bytes:
                raise OSError(0, f"the answer has more than {body_bytes} bytes")

    async def more(self) -> None:
        data = await self._reader.read(_READ_BYTES)
        self._received += len(data)
        if data:
            self._parser.feed_data(data)
        elif self.begun and not self._framed:
            self.complete = True  # its end is the connection's
        else:
            raise EOFError

    def close(self) -> None:
        self._writer.close()

    def on_header(self, name: bytes, value: bytes) -> None:
        if len(self.headers) >= _MOST_HEADERS:
            raise httptools.HttpParserError("too many headers")
        self.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        self.begun = self.status >= 200
        bodiless = self.status in (204, 304)
        self._framed = bodiless or "content-length" in self.headers or "transfer-encoding" in self.headers

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        if self.begun:  # else it is an interim response
            self.complete = True
            self.keeps = self._framed and self._parser.should_keep_alive()
