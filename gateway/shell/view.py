"""The page at `/failover/`, and what it shows: as JSON (`/failover/state`), and live (`/failover/events`).

The document (`gateway/rules/view.py`; another one is that of many models) is made at most every `LEAST_S`, and once for
all that want it; each that watches gets it when something has changed, and every `BEAT_S`. One that doesn't read gets
the newest when it does, and nothing is kept for it; only so many watch at a time. What this file may not do: change
anything, or know what it shows.
"""

import asyncio
import base64
import hashlib
import re
from collections.abc import Callable
from pathlib import Path

import msgspec

from gateway.rules import errors
from sidecar.http.http_exchange import Reply, Request

LEAST_S, BEAT_S = 0.1, 1.0
WATCHERS_MOST = 32
PAGE = Path(__file__).with_name("page.html")
_SAFE = [(b"x-content-type-options", b"nosniff"), (b"referrer-policy", b"no-referrer")]
_NEW = (b"cache-control", b"no-store")


class Live:
    """A document, once or for as long as one watches."""

    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], object], path: str) -> None:
        """`path`: where it is said once."""
        self._loop, self._look, self._path = loop, look, path
        self._watchers: dict[Reply, bool] = {}
        """Whether each has room for more."""
        self._made: tuple[float, bytes] = (-1e9, b"")
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0

    def changed(self) -> None:
        """Something that it shows."""
        if self._watchers:
            self._at(max(self._loop.time(), self._made[0] + LEAST_S))

    def close(self) -> None:
        """All that watch are told the end."""
        for reply in list(self._watchers):
            self._leave(reply)
            reply.end()

    def state(self, request: Request, reply: Reply) -> None:
        reply.send(200, self._document(self._loop.time()) + b"\n", [*errors.JSON, _NEW, *_SAFE])

    def events(self, request: Request, reply: Reply, *, counts: bool = True) -> None:
        """`counts`: others may keep it out."""
        if counts and len(self._watchers) >= WATCHERS_MOST:
            why = f"{WATCHERS_MOST} watch already; {self._path} says the same once"
            reply.send(503, errors.body(503, why), [*errors.JSON, (b"retry-after", b"5")])
            return
        headers = [(b"content-type", b"text/event-stream"), _NEW, (b"x-accel-buffering", b"no"), *_SAFE]
        if request.method == "HEAD":
            reply.send(200, b"", headers)
            return
        self._watchers[reply] = True
        reply.gone = lambda: self._leave(reply)
        reply.room = lambda room: self._mind(reply, room)
        reply.open(200, headers)
        reply.stream(_event(self._document(self._loop.time())))
        if self._timer is None:
            self._at(self._loop.time() + BEAT_S)

    # -- those that watch ------------------------------------------------------------------------------------------

    def _mind(self, reply: Reply, room: bool) -> None:
        if reply in self._watchers:
            self._watchers[reply] = room

    def _leave(self, reply: Reply) -> None:
        self._watchers.pop(reply, None)
        if not self._watchers and self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _at(self, at: float) -> None:
        if self._timer is not None and self._due <= at:
            return
        if self._timer is not None:
            self._timer.cancel()
        self._timer, self._due = self._loop.call_at(at, self._tell), at

    def _tell(self) -> None:
        self._timer = None
        now = max(self._loop.time(), self._due)  # a loop may run a timer a rounding early, again and again
        self._at(now + BEAT_S)  # first: whatever happens below, they are told again
        event = _event(self._document(now))
        if self._made[0] < now:  # it was made for another one, and may lack what has changed since
            self._at(self._made[0] + LEAST_S)
        for reply in [reply for reply, room in self._watchers.items() if room]:
            reply.stream(event)

    def _document(self, now: float) -> bytes:
        if now >= self._made[0] + LEAST_S:
            self._made = now, msgspec.json.encode(self._look())
        return self._made[1]


class View(Live):
    def __init__(self, loop: asyncio.AbstractEventLoop, look: Callable[[], object]) -> None:
        super().__init__(loop, look, "/failover/state")
        self.pages: dict[str, Callable[[Request, Reply], None]] = {
            "/failover/": self._page,
            "/failover/state": self.state,
            "/failover/events": self.events,
        }
        page = PAGE.read_bytes()
        self._whole, self._headers = page, [(b"content-type", b"text/html; charset=utf-8"), *_headers(page)]

    def _page(self, request: Request, reply: Reply) -> None:
        reply.send(200, self._whole, self._headers)


def _event(document: bytes) -> bytes:
    return b"data: " + document + b"\n\n"


def _headers(page: bytes) -> list[tuple[bytes, bytes]]:
    """What a browser may do with the page: run what stands in it, and ask this door."""
    allowed = [
        kind + b"-src " + b" ".join(_hash(text) for text in re.findall(b"<%b>(.*?)</%b>" % (tag, tag), page, re.DOTALL))
        for kind, tag in ((b"style", b"style"), (b"script", b"script"))
    ]
    rules = [b"default-src 'none'", *allowed, b"connect-src 'self'", b"img-src data:", b"base-uri 'none'"]
    rules += [b"form-action 'none'", b"frame-ancestors 'none'"]
    return [(b"content-security-policy", b"; ".join(rules)), (b"cache-control", b"no-cache"), *_SAFE]


def _hash(text: bytes) -> bytes:
    return b"'sha256-%b'" % base64.b64encode(hashlib.sha256(text).digest())
