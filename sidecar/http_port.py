"""A small HTTP port for probes and metrics, in the program's own loop: an answer says that the loop turns.

    port = HttpPort(options.metrics, loop, {"/metrics": metrics.page_of(registry)})

`/live` is always there. A page is made in the loop, so it has to be made quickly; a page that asks others belongs in
`slow` and is made in a thread. No client can hold up the loop or keep others out:

* One request a connection. A client has `EXCHANGE_S` for all of it, and `HEAD_BYTES_MOST` for what it asks.
* When too many are there, the one that came first has to go.
* What a client doesn't read waits in its connection, and ends with it.
* A page that can't be made is answered with 500, and costs nobody else anything.

What this file may not do: know what a page says, or speak HTTP for a service. The door has a library for that.
"""

import contextlib
import ctypes
import os
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import Enum

from sidecar import tcp
from sidecar.loop import Loop
from sidecar.tcp import CannotListen as CannotListen

EXCHANGE_S = 10.0
CLIENTS_MOST = 64
HEAD_BYTES_MOST = 8 << 10
THROWN_AWAY_MOST = 1 << 20
ACCEPTS_AT_A_TIME = 16
DEAF_S = 1.0
"""After a connection could not be accepted (there is no descriptor left, say): trying again at once would keep a
processor busy."""
TEXT, JSON = "text/plain; charset=utf-8", "application/json"
_REASONS = {
    200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 431: "Request Header Fields Too Large",
    500: "Internal Server Error", 501: "Not Implemented", 503: "Service Unavailable",
}  # fmt: skip
_NEVER = float("inf")


@dataclass(frozen=True)
class Page:
    body: bytes
    status: int = 200
    kind: str = TEXT


MakePage = Callable[[], Page]


def text(line: str, status: int = 200) -> Page:
    return Page(f"{line}\n".encode(), status)


class _Phase(Enum):
    ASKING = "asking"
    WAITING = "waiting"
    """For a slow page."""
    READING = "reading"
    """It is given its answer."""
    LEAVING = "leaving"
    """It has its answer. What it still sends is thrown away: closing before would take the answer from it, too."""


@dataclass(eq=False)
class _Client:
    sock: socket.socket
    until: float
    phase: _Phase = _Phase.ASKING
    asked: bytes = b""
    thrown_away: int = 0
    """Bytes that came after its question."""
    head_only: bool = False
    answer: memoryview = field(default_factory=lambda: memoryview(b""))


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
        self._clients: deque[_Client] = deque()
        """The one that came first stands first, so it is also the first whose time is over."""
        self._waiting: dict[str, list[_Client]] = {}
        """Slow page -> those who want it. One thread makes it for all who were there when it began."""
        self._being_made: set[str] = set()
        self._made: deque[tuple[str, list[_Client], Page]] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._timer = _Timer()
        self._deaf_until = _NEVER
        """When it listens again; infinite while it does."""
        loop.add(self._bell, self._on_bell)
        loop.add(self._timer.fd, self._on_time)
        loop.add(self._listener.fileno(), self._on_connect)

    def close(self) -> None:
        for client in list(self._clients):
            self._hang_up(client)
        for fd in (self._listener.fileno(), self._bell, self._timer.fd):
            self._loop.remove(fd)
        self._listener.close()
        self._timer.close()
        # The bell stays: a thread that still makes a page rings it.

    # -- who comes, and whose time is over -------------------------------------------------------------------------

    def _on_connect(self, _: int) -> None:
        for _turn in range(ACCEPTS_AT_A_TIME):
            try:
                sock, _address = self._listener.accept()
            except BlockingIOError:
                return
            except ConnectionError:
                continue  # it left before it was let in
            except OSError:
                self._loop.remove(self._listener.fileno())
                self._deaf_until = time.monotonic() + DEAF_S
                self._set_timer()
                return
            self._let_in(sock)

    def _let_in(self, sock: socket.socket) -> None:
        if len(self._clients) >= CLIENTS_MOST:
            self._hang_up(self._clients[0])
        sock.setblocking(False)
        client = _Client(sock, time.monotonic() + EXCHANGE_S)
        self._clients.append(client)
        self._listen_to(client)
        self._set_timer()

    def _listen_to(self, client: _Client) -> None:
        self._loop.add(client.sock.fileno(), lambda what: self._on_ready(client, what))

    def _on_time(self, _: int) -> None:
        self._timer.read()
        now = time.monotonic()
        while self._clients and now >= self._clients[0].until:
            self._hang_up(self._clients[0])
        if now >= self._deaf_until:
            self._deaf_until = _NEVER
            self._loop.add(self._listener.fileno(), self._on_connect)
        self._set_timer()

    def _set_timer(self) -> None:
        self._timer.set(min(self._clients[0].until if self._clients else _NEVER, self._deaf_until))

    def _hang_up(self, client: _Client) -> None:
        if client in self._clients:
            self._clients.remove(client)
            self._loop.remove(client.sock.fileno())
            client.sock.close()
            self._set_timer()

    # -- one exchange ----------------------------------------------------------------------------------------------

    def _on_ready(self, client: _Client, what: int) -> None:
        if client not in self._clients:
            return
        try:
            if what & select.EPOLLOUT and client.phase is _Phase.READING:
                self._give(client)
            if what & ~select.EPOLLOUT:
                self._hear(client)
        except OSError:
            self._hang_up(client)  # it has gone

    def _hear(self, client: _Client) -> None:
        try:
            more = client.sock.recv(HEAD_BYTES_MOST)
        except BlockingIOError:
            return
        if not more:
            self._on_end(client)
        elif client.phase is _Phase.ASKING:
            client.asked += more
            if b"\r\n\r\n" in client.asked or b"\n\n" in client.asked:
                self._answer(client)
            elif len(client.asked) > HEAD_BYTES_MOST:
                self._send(client, text(f"a request may have {HEAD_BYTES_MOST} bytes", 431))
        else:
            client.thrown_away += len(more)
            if client.thrown_away > THROWN_AWAY_MOST:
                self._hang_up(client)

    def _on_end(self, client: _Client) -> None:
        """It sends nothing more. A client that waits for a slow page may still read it."""
        if client.phase is _Phase.WAITING:
            self._loop.remove(client.sock.fileno())  # an end of file is readable for ever
        else:
            self._hang_up(client)

    def _answer(self, client: _Client) -> None:
        method, path = _asked(client.asked)
        client.asked, client.head_only = b"", method == "HEAD"
        if not method:
            self._send(client, text("this is no HTTP request", 400))
        elif method not in ("GET", "HEAD"):
            self._send(client, text("only GET and HEAD are answered here", 405))
        elif path in self._slow:
            client.phase = _Phase.WAITING
            self._waiting.setdefault(path, []).append(client)
            self._make(path)
        elif path in self._pages:
            self._send(client, _made(self._pages[path]))
        else:
            self._send(client, text(f"there are {', '.join(sorted({*self._pages, *self._slow}))}", 404))

    def _send(self, client: _Client, page: Page) -> None:
        head = f"HTTP/1.1 {page.status} {_REASONS.get(page.status, '')}\r\nContent-Type: {page.kind}\r\n"
        head += f"Content-Length: {len(page.body)}\r\nConnection: close\r\n\r\n"
        client.answer = memoryview(head.encode("latin-1") + (b"" if client.head_only else page.body))
        client.phase = _Phase.READING
        self._give(client)

    def _give(self, client: _Client) -> None:
        """As much of its answer as it takes now. Raises OSError when it has gone."""
        with contextlib.suppress(BlockingIOError):
            client.answer = client.answer[client.sock.send(client.answer) :]
        fd, left = client.sock.fileno(), bool(client.answer)
        if fd not in self._loop.handlers:  # it had sent all that it had to, and waited
            self._listen_to(client)
        if left:
            self._loop.only_when_writable(fd)
        else:
            self._loop.also_when_writable(fd, False)
            client.phase = _Phase.LEAVING
            client.sock.shutdown(socket.SHUT_WR)

    # -- slow pages ------------------------------------------------------------------------------------------------

    def _make(self, path: str) -> None:
        """In a thread, unless one is at it: those who came since get the next one."""
        if path in self._being_made:
            return
        self._being_made.add(path)
        clients = self._waiting.pop(path)

        def work() -> None:
            self._made.append((path, clients, _made(self._slow[path])))
            os.eventfd_write(self._bell, 1)

        threading.Thread(target=work, name=f"page {path}", daemon=True).start()

    def _on_bell(self, _: int) -> None:
        os.eventfd_read(self._bell)
        while self._made:
            path, clients, page = self._made.popleft()
            self._being_made.discard(path)
            for client in clients:
                if client in self._clients:
                    try:
                        self._send(client, page)
                    except OSError:
                        self._hang_up(client)
            if path in self._waiting:
                self._make(path)


def _made(make: MakePage) -> Page:
    try:
        return make()
    except Exception as error:  # whatever a page raises is the answer of this request, and not the program's end
        return text(f"{type(error).__name__}: {error}", 500)


def _asked(request: bytes) -> tuple[str, str]:
    """The method, empty if this is no HTTP, and the path."""
    words = request.partition(b"\n")[0].decode("latin-1").split()
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        return "", ""
    return words[0], words[1].partition("?")[0]


class _Timer:
    """A time at which a descriptor becomes readable. Python has no timerfd before 3.13."""

    def __init__(self) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self.fd: int = self._libc.timerfd_create(time.CLOCK_MONOTONIC, os.O_NONBLOCK | os.O_CLOEXEC)
        if self.fd < 0:
            raise OSError(ctypes.get_errno(), "timerfd_create")
        self._at = _NEVER

    def set(self, at: float) -> None:
        """By the monotonic clock; infinite: never."""
        if at == self._at:
            return
        self._at = at
        seconds, part = (0, 0.0) if at == _NEVER else (int(at), at % 1)
        absolute = 1
        self._libc.timerfd_settime(self.fd, absolute, struct.pack("4l", 0, 0, seconds, int(part * 1e9)), None)

    def read(self) -> None:
        self._at = _NEVER
        try:
            os.read(self.fd, 8)
        except BlockingIOError:
            return

    def close(self) -> None:
        os.close(self.fd)
