"""The probes over HTTP, in the shim's own loop: whoever hears an answer knows that the loop turns.

One request a connection. Nothing a client does can make the loop wait: what it doesn't send, or doesn't read, is its
own loss, and when too many are open the oldest goes. What this file may not do: know what an answer means.
"""

import json
import socket
from collections.abc import Callable

from engine_shim import probes
from engine_shim.lifecycle import Lifecycle
from engine_shim.metrics import registry_of
from sidecar import metrics
from sidecar.loop import Loop

MOST_OPEN = 64
MOST_BYTES = 8 << 10
ACCEPTS_AT_A_TIME = 16
_TEXT, _JSON = "text/plain; charset=utf-8", "application/json"
_REASONS = {200: "OK", 400: "Bad Request", 404: "Not Found", 405: "Method Not Allowed", 500: "Internal Server Error"}
_REASONS |= {501: "Not Implemented", 503: "Service Unavailable"}


class CannotListen(Exception):
    """Where the probes were to be nobody can listen; the text says why."""


class ProbePort:
    def __init__(self, address: tuple[str, int], loop: Loop, machine: Lifecycle, clock: Callable[[], float]) -> None:
        host, port = address
        try:
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            self._listener = socket.create_server((host, port), family=family, backlog=128)
        except OSError as error:
            why = (error.strerror or str(error)).partition(" (while")[0]  # where create_server repeats the address
            raise CannotListen(f"the probes can't listen on {host}:{port}: {why}; give another --probe") from None
        self._listener.setblocking(False)
        self._loop = loop
        self._machine = machine
        self._clock = clock
        self._open: dict[socket.socket, bytes] = {}
        """Clients that have not said everything yet; the oldest first."""
        bound = self._listener.getsockname()
        self.address: tuple[str, int] = bound[0], bound[1]
        loop.add(self._listener.fileno(), self._on_connect)

    def close(self) -> None:
        self._loop.remove(self._listener.fileno())
        self._listener.close()
        for client in list(self._open):
            self._hang_up(client)

    def _on_connect(self, _: int) -> None:
        for _turn in range(ACCEPTS_AT_A_TIME):
            try:
                client, _address = self._listener.accept()
            except BlockingIOError:
                return
            except OSError:  # no descriptor left, say: one of those who are here makes room, for the next round
                if self._open:
                    self._hang_up(next(iter(self._open)))
                return
            if len(self._open) >= MOST_OPEN:
                self._hang_up(next(iter(self._open)))
            client.setblocking(False)
            self._open[client] = b""
            self._loop.add(client.fileno(), lambda _, client=client: self._on_readable(client))  # type: ignore[misc]

    def _on_readable(self, client: socket.socket) -> None:
        if client not in self._open:
            return
        try:
            more = client.recv(MOST_BYTES)
        except BlockingIOError:
            return
        except OSError:
            more = b""
        said = self._open[client] = self._open[client] + more
        if b"\r\n\r\n" in said or b"\n\n" in said:
            self._answer(client, said)
        elif not more or len(said) > MOST_BYTES:
            self._hang_up(client)

    def _answer(self, client: socket.socket, request: bytes) -> None:
        words = request.split(b"\n", 1)[0].decode("latin-1").split()
        method, path = (words[0], words[1].split("?")[0]) if len(words) == 3 else ("", "")
        status, kind, body = self._page(method, path)
        head = f"HTTP/1.1 {status} {_REASONS[status]}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n"
        whole = (head + "Connection: close\r\n\r\n").encode("ascii") + (b"" if method == "HEAD" else body)
        try:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, max(len(whole) * 2, 1 << 16))
            client.send(whole)  # what doesn't fit the buffer of somebody who doesn't read is lost to him
            client.shutdown(socket.SHUT_WR)
        except OSError:
            pass
        finally:
            self._hang_up(client)

    def _page(self, method: str, path: str) -> tuple[int, str, bytes]:
        if not method:
            return 400, _TEXT, b"this is no HTTP request\n"
        if method not in ("GET", "HEAD"):
            return 405, _TEXT, b"only GET\n"
        machine, now = self._machine, self._clock()
        if path in probes.PROBES:
            answer = probes.PROBES[path](machine, now)
            return answer.status, _TEXT, f"{answer.why}\n".encode()
        if path == "/state":
            return 200, _JSON, json.dumps(probes.state(machine, now)).encode() + b"\n"
        if path == "/metrics":
            try:
                return metrics.page(registry_of(machine, self._clock))
            except metrics.MetricsUnavailable as error:
                return 501, _TEXT, f"{error}\n".encode()
        return 404, _TEXT, f"here are {', '.join(probes.PATHS)}\n".encode()

    def _hang_up(self, client: socket.socket) -> None:
        if self._open.pop(client, None) is not None:
            self._loop.remove(client.fileno())
            client.close()
