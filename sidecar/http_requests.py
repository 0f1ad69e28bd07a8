"""The bytes of one connection, read as requests: httptools (llhttp) keeps the rules of HTTP/1.1, here are the limits.

Whole requests wait in `ready`; for what breaks a rule `refused` has a status and a sentence, and nothing more is read.

What this file may not do: touch a socket, keep time, or know who answers.
"""

import re
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import httptools

from sidecar.http_exchange import Request

_NO_VERSION = "a request's first line ends with the version of HTTP that it is"
_ABSOLUTE = re.compile(rb"https?://[^/?#]+", re.IGNORECASE)
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


@dataclass(slots=True)
class Bodies:
    """All that are being received or answered, whoever sent them."""

    most: int
    bytes: int = 0


class Whole(NamedTuple):
    request: Request
    chunked: bool
    """The client understands chunks."""
    keeps: bool
    """It would send more by the same connection."""


class RequestReader:
    __slots__ = (
        "_bodies", "_body", "_body_bytes", "_go_on", "_head_bytes", "_headed", "_headers", "_most_body", "_most_head",
        "_parser", "_target", "begun", "peer", "ready", "refused",
    )  # fmt: skip

    def __init__(self, most_head: int, most_body: int, bodies: Bodies, go_on: Callable[[], None]) -> None:
        """`go_on`: the client waits for a word before it sends the body."""
        self._most_head, self._most_body, self._bodies, self._go_on = most_head, most_body, bodies, go_on
        self._parser = httptools.HttpRequestParser(self)
        self.peer = ""
        self.ready: deque[Whole] = deque()
        self.refused: tuple[int, str] | None = None
        self._clear()

    def _clear(self) -> None:
        self._target = b""
        self._headers: list[tuple[bytes, bytes]] = []
        self._body: list[bytes] = []
        self._body_bytes = 0
        self._head_bytes = 0
        """Those of a head, or of what comes behind a body in chunks."""
        self._headed = False
        self.begun = False
        """Something of a request is here."""

    def feed(self, data: bytes) -> None:
        self.begun = True
        had = self._body_bytes
        self._head_bytes += len(data)
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade as upgrade:
            if self.ready:
                self._stay(data[upgrade.args[0] :])
        except httptools.HttpParserError as error:
            self.refused = self.refused or (400, f"this is no HTTP that can be answered: {error}")
        if self._body_bytes > had:
            self._head_bytes = 0
        unfinished = not self.ready and not self.refused
        if unfinished and self._head_bytes > self._most_head + _slack(self._headers):
            self.refused = (431, f"the headers of a request may have {self._most_head} bytes")

    def drop(self) -> None:
        """The client has gone: nobody answers what is here."""
        self._bodies.bytes -= self._body_bytes + sum(len(whole.request.body) for whole in self.ready)
        self._body_bytes = 0
        self.ready.clear()

    def _stay(self, rest: bytes) -> None:
        """A client that would rather go on otherwise (HTTP/2 say) takes an answer in HTTP/1.1. The parser takes all
        behind the head for that other protocol's: so it is given the head once more, without the offer.
        """
        whole = self.ready.pop()
        request = whole.request
        if request.method == "CONNECT":
            self.ready.append(whole)
            return
        head = [b"%b %b HTTP/1.%d\r\n" % (request.method.encode(), request.target, whole.chunked)]
        head += [b"%b: %b\r\n" % header for header in request.headers if header[0] not in (b"upgrade", b"expect")]
        self._parser = httptools.HttpRequestParser(self)
        self.feed(b"".join((*head, b"\r\n", rest)))

    # -- the parser says -------------------------------------------------------------------------------------------

    def on_url(self, target: bytes) -> None:
        self._target += target

    def on_header(self, name: bytes, value: bytes) -> None:
        if not self._headed:  # what comes behind a body in chunks is no header: anything could be slipped in there
            self._headers.append((name.lower(), value))

    def on_headers_complete(self) -> None:
        self._headed = True
        size = sum(len(name) + len(value) for name, value in self._headers) + len(self._target)
        if size > self._most_head:
            self.refused = (431, f"the headers of a request may have {self._most_head} bytes")
            return
        version = self._parser.get_http_version()
        hosts = said = 0
        expects = False
        codings = []
        for name, value in self._headers:
            if name == b"content-length":
                said = int(value)
            elif name == b"host":
                hosts += 1
            elif name == b"expect":
                expects = value.lower() == b"100-continue"
            elif name == b"transfer-encoding":
                codings.append(value.strip().lower())
        if version not in ("1.0", "1.1"):
            self.refused = (505, "this speaks HTTP/1.1 and HTTP/1.0") if version == "2.0" else (400, _NO_VERSION)
        elif codings and (codings != [b"chunked"] or version == "1.0"):
            self.refused = (400, "a body may be sent in chunks, by HTTP 1.1, and in no other coding")
        elif hosts > 1 or (hosts == 0 and version == "1.1"):
            self.refused = (400, "a request names one host")
        elif said > self._most_body:
            self.refused = (413, f"a request may have {self._most_body} bytes, and this one has {said}")
        elif expects:
            self._go_on()

    def on_body(self, data: bytes) -> None:
        if self.refused is not None:
            return
        self._body.append(data)
        self._body_bytes += len(data)
        self._bodies.bytes += len(data)
        if self._body_bytes > self._most_body:
            self.refused = (413, f"a request may have {self._most_body} bytes, and this one has more")
        elif self._bodies.bytes > self._bodies.most:
            self.refused = (503, "too many large requests at a time")

    def on_message_complete(self) -> None:
        if self.refused is not None:
            return
        parser = self._parser
        method = parser.get_method().decode("ascii")
        chunked = parser.get_http_version() == "1.1"
        keeps = parser.should_keep_alive() and method != "CONNECT"
        body = self._body[0] if len(self._body) == 1 else b"".join(self._body)
        target = self._target if self._target[:1] == b"/" else _in_origin_form(self._target)
        self.ready.append(Whole(Request(method, target, self._headers, body, self.peer), chunked, keeps))
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
