"""Prometheus metrics over HTTP: GET /metrics and nothing else.

One daemon thread blocks in accept and answers one scrape at a time, each within a few seconds: a program at rest
makes no wake-up for its metrics, and a slow client holds up nobody but the next scrape. (The standard library's
serve_forever wakes twice a second.)

What this file may not do: know any metric. Each program makes its own in a registry of its own. The client library is
an extra and imported when metrics are asked for. Collectors run in this thread: they may read, not change, what
others own.
"""

import socket
import threading
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry

_EXCHANGE_S = 5.0  # for everything that one client may take
_REQUEST_BYTES_MAX = 8 << 10
_PLAIN_TEXT = "text/plain; charset=utf-8"
_REASONS = {200: "OK", 500: "Internal Server Error"}


class MetricsUnavailable(Exception):
    """Metrics were asked for and can't be served."""


def new_registry() -> "CollectorRegistry":
    """A registry of one's own: the library's default one is shared by everything in the process."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise MetricsUnavailable(
            "metrics need the package prometheus-client: pip install 'gpu-failover[metrics]'"
        ) from error
    return CollectorRegistry()


def serve(address: tuple[str, int], registry: "CollectorRegistry") -> tuple[str, int]:
    """Starts to serve and returns at once, with the host and port that it listens on (port 0 = any)."""
    host, port = address
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        listener = socket.create_server((host, port), family=family)
    except OSError as error:
        raise MetricsUnavailable(f"can't listen on {host}:{port} for metrics: {error.strerror or error}") from error
    threading.Thread(target=_serve_forever, args=(listener, registry), name="metrics", daemon=True).start()
    bound = listener.getsockname()
    return bound[0], bound[1]


def _serve_forever(listener: socket.socket, registry: "CollectorRegistry") -> None:
    while True:
        try:
            client, _ = listener.accept()
        except OSError:
            # The client was gone before it was accepted, or this process has no descriptor left. Wait a moment, so
            # that the second doesn't spin.
            time.sleep(0.1)
            continue
        with client:
            try:
                _answer(client, registry, time.monotonic() + _EXCHANGE_S)
            except OSError:
                continue  # it took too long or hung up; the next scrape is another connection


def _answer(client: socket.socket, registry: "CollectorRegistry", deadline: float) -> None:
    method, path = _request(client, deadline)
    if method not in ("GET", "HEAD"):
        status, kind, body = "405 Method Not Allowed", _PLAIN_TEXT, b"only GET\n"
    elif path.split("?")[0] != "/metrics":
        status, kind, body = "404 Not Found", _PLAIN_TEXT, b"metrics are at /metrics\n"
    else:
        code, kind, body = page(registry)
        status = f"{code} {_REASONS[code]}"
    head = f"HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
    client.settimeout(_left(deadline))
    client.sendall(head.encode("ascii") + (b"" if method == "HEAD" else body))


def _request(client: socket.socket, deadline: float) -> tuple[str, str]:
    data = b""
    while b"\r\n\r\n" not in data:
        client.settimeout(_left(deadline))
        more = client.recv(_REQUEST_BYTES_MAX)
        if not more or len(data) > _REQUEST_BYTES_MAX:
            raise ConnectionError("no HTTP request")
        data += more
    words = data.split(b"\r\n", 1)[0].decode("latin-1").split(" ")
    return words[0], words[1] if len(words) == 3 else ""


def page(registry: "CollectorRegistry") -> tuple[int, str, bytes]:
    """What a scrape gets: HTTP status, content type, body. For servers that have a port of their own."""
    from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

    try:
        return 200, CONTENT_TYPE_LATEST, generate_latest(registry)
    except Exception as error:  # a program's collector: whatever it raises is that scrape's answer, not our end
        return 500, _PLAIN_TEXT, f"{type(error).__name__}: {error}\n".encode()


def _left(deadline: float) -> float:
    left = deadline - time.monotonic()
    if left <= 0:
        raise TimeoutError("the client took too long")
    return left
