"""One request and its answer, as the program that answers sees them. `http_server.py` has the connections.

What this file may not do: touch a socket, or keep time. A reply writes through its connection alone.
"""

from collections.abc import Callable, Iterable
from http import HTTPStatus
from typing import Protocol

Headers = Iterable[tuple[bytes, bytes]]
BEGINNING = b"HTTP/1.1 "
"""Every answer begins so, whatever the client speaks."""
REASONS = {status.value: status.phrase.encode() for status in HTTPStatus}
_FIRST_LINES = {status: b"%b%d %b" % (BEGINNING, status, reason) for status, reason in REASONS.items()}


class Request:
    __slots__ = ("body", "chunked", "client", "headers", "held", "keeps", "method", "path", "peer", "target")

    def __init__(
        self, method: str, target: bytes, headers: list[tuple[bytes, bytes]], body: bytes = b"", peer: str = ""
    ) -> None:
        self.method = method
        self.target = target
        """As it was sent: path and query."""
        self.path = target.partition(b"?")[0].decode("latin-1")
        self.headers = headers
        """Names in lower case."""
        self.body = body
        self.peer = peer
        self.chunked = self.keeps = True
        """The client understands chunks; it would send more by the same connection."""
        self.client, self.held = "", 0
        """The client to which it is put down, and so much of `Bodies` is this request's."""

    def header(self, name: bytes, otherwise: bytes = b"") -> bytes:
        for key, value in self.headers:
            if key == name:
                return value
        return otherwise


_NONE: frozenset[bytes] = frozenset()


def hop_by_hop(headers: list[tuple[bytes, bytes]]) -> frozenset[bytes]:
    """The headers that `Connection:` names: they are for this connection, and go no further."""
    for name, value in headers:
        if name == b"connection" and value not in (b"keep-alive", b"close"):
            break
    else:
        return _NONE
    said = [value for name, value in headers if name == b"connection"]
    return frozenset(token.strip().lower() for value in said for token in value.split(b","))


Handler = Callable[[Request, "Reply"], None]


def nothing(*_: object) -> None:
    pass


class Connection(Protocol):
    """What a reply needs of the connection that its request came by."""

    @property
    def unsent(self) -> int: ...

    def write(self, reply: "Reply", data: bytes) -> None: ...

    def answered(self, reply: "Reply") -> None: ...

    def break_off(self, reply: "Reply") -> None: ...


class Reply:
    """The answer to one request. When the client has gone, whatever is said here goes nowhere."""

    __slots__ = ("_connection", "_headless", "chunked", "gone", "keeps", "room")

    def __init__(self, connection: Connection, *, chunked: bool, headless: bool, keeps: bool) -> None:
        self._connection = connection
        self.chunked = chunked
        """The client understands chunks; else an answer of unknown length ends with its connection."""
        self._headless = headless
        self.keeps = keeps
        """Its connection goes on after it."""
        self.gone: Callable[[], None] = nothing
        """Called once if the client goes before the answer is complete."""
        self.room: Callable[[bool], None] = nothing
        """Called with False when the client doesn't read fast enough, with True when it has caught up."""

    def send(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole answer."""
        length = b"content-length: %d" % len(body)
        self._connection.write(self, self._head(status, headers, length, b"" if self._headless else body))
        self._connection.answered(self)

    def open(self, status: int, headers: Headers = ()) -> None:
        """An answer whose length isn't known yet; `stream` and `end` follow."""
        self.keeps = self.keeps and self.chunked
        self._connection.write(self, self._head(status, headers, b"transfer-encoding: chunked" * self.chunked))

    def stream(self, data: bytes) -> None:
        if not self._headless and data:
            self._connection.write(self, b"%x\r\n%b\r\n" % (len(data), data) if self.chunked else data)

    def end(self) -> None:
        if self.chunked and not self._headless:
            self._connection.write(self, b"0\r\n\r\n")
        self._connection.answered(self)

    def abort(self) -> None:
        """The answer breaks off behind what has been written, and does not look complete."""
        self._connection.break_off(self)

    @property
    def unsent(self) -> int:
        return self._connection.unsent

    def _head(self, status: int, headers: Headers, length: bytes, body: bytes = b"") -> bytes:
        lines = [_FIRST_LINES.get(status) or b"%b%d " % (BEGINNING, status), *map(b": ".join, headers)]
        if length and status not in (204, 304):
            lines.append(length)
        if not self.keeps:
            lines.append(b"connection: close")
        elif not self.chunked:
            lines.append(b"connection: keep-alive")  # in HTTP/1.0 it goes without saying that it is closed
        lines += (b"", body)
        return b"\r\n".join(lines)
