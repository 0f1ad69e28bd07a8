"""The bytes of one connection, read as requests: httptools (llhttp) keeps the rules of HTTP/1.1, here are the limits.

Whole requests wait in `ready`; for what breaks a rule `refused` has a status and a sentence, and nothing more is read.

What this file may not do: touch a socket, keep time, or know what answers.
"""

import re
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

import httptools

from sidecar.http.http_exchange import Headers, Request, nothing

_NO_VERSION = "a request's first line ends with the version of HTTP that it is"
_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"
_MOST_HEADERS = 256
_MOST_UNCOUNTED = 64
"""Requests that are put down to no client, and wait for their turn on one connection."""
_KNOWN_MOST, _KNOWN_BYTES = 512, 4096
"""Heads that are known again, and how long one of them may be."""
_NOT_PLAIN = re.compile(rb"\n(?:transfer-encoding|upgrade|expect):", re.IGNORECASE)
_REQUEST_BYTES, _HEADER_BYTES = 1024, 128
"""What a request and a header take beside their own bytes: a thousand small ones take more than they say."""


class Refused(NamedTuple):
    status: int
    why: str
    headers: Headers = ()


LetIn = Callable[[Request, bool], str | Refused | None]
"""A request's head, and whether a body follows -> the client to which it is put down ("": the address from where it
comes; None: to none, it has no body and is let in however full it is), or why it isn't let in. Nothing of its body
has been kept by then."""


def every_caller(request: Request, has_body: bool) -> str:
    return ""


class Bodies:
    """What is held of requests that are being received or answered: of all, and of each client."""

    __slots__ = ("_each", "bytes", "most", "most_each")

    def __init__(self, most: int, most_each: int) -> None:
        self.most, self.most_each = most, most_each
        self.bytes = 0
        self._each: dict[str, int] = {}

    def hold(self, client: str, count: int) -> bool:
        """False when `refuses` has something to say."""
        self.bytes += count
        now = self._each.get(client, 0) + count
        if now:
            self._each[client] = now
        else:
            self._each.pop(client, None)
        return now <= self.most_each and self.bytes <= self.most

    def refuses(self, client: str) -> Refused | None:
        if self._each.get(client, 0) > self.most_each:
            why = f"requests of this client that are being received or answered have {self.most_each} bytes already"
            return Refused(429, why, [(b"retry-after", b"1")])
        if self.bytes > self.most:
            return Refused(503, "too many large requests at a time", [(b"retry-after", b"1")])
        return None


class Head(NamedTuple):
    """A head as it was read, of a request that came in one piece."""

    method: str
    target: bytes
    headers: list[tuple[bytes, bytes]]
    size: int
    chunked: bool
    keeps: bool
    length: int
    """The body's."""


Heads = dict[bytes, Head]
"""A client sends the same head again and again, and in the same bytes the parser would find the same."""


class RequestReader:
    __slots__ = (
        "__weakref__", "_ask", "_bodies", "_body", "_body_bytes", "_client", "_go_on", "_head_bytes", "_headed",
        "_headers", "_heads", "_held", "_most_body", "_most_head", "_parser", "_request", "_target",
        "_uncounted", "_version", "begun", "home", "peer", "ready", "refused",
    )  # fmt: skip

    def __init__(
        self,
        most_head: int,
        most_body: int,
        bodies: Bodies,
        let_in: LetIn,
        go_on: Callable[[], None],
        heads: Heads | None = None,
    ) -> None:
        """`go_on`: the client waits for a word before it sends the body. `heads`: those that are known already."""
        self._most_head, self._most_body, self._bodies = most_head, most_body, bodies
        self._heads: Heads = {} if heads is None else heads
        self._ask, self._go_on = let_in, go_on
        self._parser: Any = httptools.HttpRequestParser(self)
        self._version = ""
        self.peer = ""
        self.home = ""
        """The client, while `let_in` has named none."""
        self.ready: deque[Request] = deque()
        self.refused: Refused | None = None
        self._clear()

    def _clear(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._request: Request | None = None
        self._client = self.home
        self._held = self._uncounted = 0
        """What is counted of it, and what has come since."""
        self._body: bytes | bytearray = b""
        """One piece as it came, or all of them in one: thousands of pieces would take many times what is counted."""
        self._body_bytes = 0
        self._head_bytes = 0
        """Those of a head, or of what comes behind a body in chunks."""
        self._headed = False
        self.begun = False
        """Something of a request is here."""

    def feed(self, data: bytes) -> None:
        if self.begun:
            self._read(data)
            return
        self.begun = True
        end = data.find(b"\r\n\r\n") + 4
        head = self._heads.get(data[:end])
        if head is not None and len(data) == end + head.length:
            self._read_again(head, data[end:])
            return
        had = len(self.ready)
        self._read(data)
        if len(self.ready) == had + 1 and not self.begun and self.refused is None:
            self._know_again(data, end, self.ready[-1])

    def _read_again(self, head: Head, body: bytes) -> None:
        self._let_in(
            Request(head.method, head.target, head.headers, body, self.peer), head.size, head.length > 0, False
        )
        if self.refused is None:
            self._uncounted += head.length
            self._complete(head.chunked, head.keeps)

    def _know_again(self, data: bytes, end: int, request: Request) -> None:
        """The only request of this piece, if its head was all that told where it ends."""
        length = len(request.body)
        if len(data) != end + length or end > _KNOWN_BYTES or _NOT_PLAIN.search(data, 0, end):
            return
        if len(self._heads) >= _KNOWN_MOST:
            self._heads.clear()
        size = len(request.target) + sum(len(name) + len(value) for name, value in request.headers)
        self._heads[data[:end]] = Head(
            request.method, request.target, request.headers, size, request.chunked, request.keeps, length
        )

    def _read(self, data: bytes) -> None:
        had = self._body_bytes
        self._head_bytes += len(data)
        rest: bytes | memoryview = data
        try:
            while rest:
                try:
                    self._parser.feed_data(rest)
                    break
                except httptools.HttpParserUpgrade as upgrade:
                    rest = memoryview(rest)[upgrade.args[0] :] if self.refused is None and self._stay() else b""
        except httptools.HttpParserError as error:
            self._refuse(400, f"this is no HTTP that can be answered: {error}")
        if self._uncounted:
            self._count()
        if self.ready or self.refused is not None:
            return
        if self._body_bytes > had:
            self._head_bytes = 0
        if self._head_bytes > self._most_head + _slack(self._headers):
            self._refuse_large_head()
        elif not self._headed:
            self._uncounted = self._head_bytes + _HEADER_BYTES * len(self._headers) - self._held
            self._count()

    def drop(self) -> None:
        """The client has gone: what is here goes with it. The parser knows this reader, and would keep it alive."""
        while self.ready:
            request = self.ready.popleft()
            self._bodies.hold(request.client, -request.held)
        self._let_go()
        self._parser = None
        self._ask, self._go_on = every_caller, nothing

    def _let_go(self) -> None:
        """What is here of a request that isn't whole."""
        if self._held:
            self._bodies.hold(self._client, -self._held)
        self._held = self._uncounted = 0
        self._body, self._headers, self._request = b"", [], None

    def _count(self) -> None:
        count, self._uncounted = self._uncounted, 0
        self._held += count
        if not self._bodies.hold(self._client, count):
            refused = self._bodies.refuses(self._client)
            assert refused is not None
            self._refuse(*refused)

    def _refuse(self, status: int, why: str, headers: Headers = ()) -> None:
        if self.refused is None:
            self.refused = Refused(status, why, headers)
            self._let_go()

    def _refuse_large_head(self) -> None:
        self._refuse(431, f"the headers of a request may have {self._most_head} bytes, and be {_MOST_HEADERS}")

    def _stay(self) -> bool:
        """A client that would rather go on otherwise (HTTP/2 say) takes an answer in HTTP/1.1. The parser takes all
        behind the head for that other protocol's: so it is given the head once more, without the offer.
        """
        if self.ready[-1].method == "CONNECT":
            return False
        request = self.ready.pop()
        self._bodies.hold(request.client, -request.held)
        head = [b"%b %b HTTP/1.%d\r\n" % (request.method.encode(), request.target, request.chunked)]
        head += [b"%b: %b\r\n" % header for header in request.headers if header[0] not in (b"upgrade", b"expect")]
        self._parser = httptools.HttpRequestParser(self)
        self.begun = True
        self._parser.feed_data(b"".join((*head, b"\r\n")))
        return True

    # -- the parser says -------------------------------------------------------------------------------------------

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if self.refused is None and not self._headed:  # behind a body in chunks anything could be slipped in
            self._headers.append((name.lower(), value))
            if len(self._headers) > _MOST_HEADERS:
                self._refuse_large_head()

    def on_headers_complete(self) -> None:
        if self.refused is not None:
            return
        self._headed = True
        version = self._version = self._parser.get_http_version()
        size = len(self._target)
        hosts = said = 0
        has_body = expects = False
        codings = []
        for name, value in self._headers:
            size += len(name) + len(value)
            if name == b"content-length":
                said = int(value)
                has_body = has_body or said > 0
            elif name == b"transfer-encoding":
                has_body = True
                codings.append(value.strip().lower())
            elif name == b"host":
                hosts += 1
            elif name == b"expect":
                expects = version != "1.0" and value.lower() == b"100-continue"
        if size > self._most_head:
            self._refuse_large_head()
        elif version not in ("1.0", "1.1"):
            self._refuse(*((505, "this speaks HTTP/1.1 and HTTP/1.0") if version == "2.0" else (400, _NO_VERSION)))
        elif codings and (codings != [b"chunked"] or version == "1.0"):
            self._refuse(400, "a body may be sent in chunks, by HTTP 1.1, and in no other coding")
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self._refuse(400, "a request names one host")
        elif said > self._most_body:
            self._refuse(413, f"a request may have {self._most_body} bytes, and this one has {said}")
        else:
            method = self._parser.get_method().decode("ascii")
            target = self._target if self._target[:1] == b"/" else _in_origin_form(self._target)
            self._let_in(Request(method, target, self._headers, b"", self.peer), size, has_body, expects)

    def _let_in(self, request: Request, size: int, has_body: bool, expects: bool) -> None:
        self._request = request
        client = self._ask(request, has_body)
        if isinstance(client, Refused):
            self._refuse(*client)
            return
        if self._held:
            self._bodies.hold(self._client, -self._held)
        self._client, self._held = self.home if client == "" else client or "", 0
        self._uncounted = 0
        if client is None:
            if len(self.ready) >= _MOST_UNCOUNTED:
                why = f"at most {_MOST_UNCOUNTED} such requests may be sent before the first of them is answered"
                self._refuse(429, why, [(b"retry-after", b"1")])
            return
        self._uncounted = _REQUEST_BYTES + size + _HEADER_BYTES * len(request.headers)
        if expects:
            self._count()
            if self.refused is None:
                self._go_on()

    def on_body(self, data: bytes) -> None:
        if self.refused is not None:
            return
        if not self._body:
            self._body = data
        else:
            if isinstance(self._body, bytes):
                self._body = bytearray(self._body)
            self._body += data
        self._body_bytes += len(data)
        if self._body_bytes > self._most_body:
            self._refuse(413, f"a request may have {self._most_body} bytes, and this one has more")
        else:
            self._uncounted += len(data)

    def on_message_complete(self) -> None:
        if self._request is not None:
            self._request.body = self._body if type(self._body) is bytes else bytes(self._body)
        self._complete(self._version == "1.1", self._parser.should_keep_alive())

    def _complete(self, chunked: bool, keeps: bool) -> None:
        request = self._request
        if self._uncounted:
            self._count()
        if self.refused is not None or request is None:
            return
        request.chunked, request.keeps = chunked, keeps and request.method != "CONNECT"
        request.client, request.held = self._client, self._held
        self.ready.append(request)
        self._clear()


def _in_origin_form(target: bytes) -> bytes:
    """What a client sends that takes this for a proxy means the same: the path and the query count."""
    named = _ABSOLUTE.match(target)
    if named is None:
        return target
    rest = target[named.end() :]
    return rest if rest[:1] == b"/" else b"/" + rest


def _slack(headers: list[tuple[bytes, bytes]]) -> int:
    """What stands between a request's headers: they are counted without it when they are complete."""
    return 4 * len(headers) + 64
