"""Prometheus metrics: a registry of one's own, and the page that a scrape gets.

    registry = metrics.new_registry()
    port = HttpPort(address, loop, {"/metrics": metrics.page_of(registry)})

The client library is an extra and loaded when metrics are asked for. What this file may not do: know any metric, or
listen (`http_port.py`).
"""

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from sidecar.http_port import CannotListen, HttpPort, Page
from sidecar.loop import Loop
from sidecar.tcp import named

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


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


def page_of(registry: "CollectorRegistry") -> Callable[[], Page]:
    """Makes the page. A collector that raises costs one scrape: the port answers 500."""

    def page() -> Page:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Page(generate_latest(registry), kind=CONTENT_TYPE_LATEST)

    return page


def serve(address: tuple[str, int], registry: "CollectorRegistry") -> tuple[str, int]:
    """Serves in a loop and a thread of its own. Returns the host and port (port 0 = any). To go, once every program
    has its port in its own loop.
    """
    loop = Loop()
    try:
        port = HttpPort(address, loop, {"/metrics": page_of(registry)})
    except CannotListen as error:
        raise MetricsUnavailable(f"can't listen on {named(*address)} for metrics: {error.why}") from error

    def turn() -> None:
        while True:
            for fd, what in loop.poll():
                handler = loop.handlers.get(fd)
                if handler is not None:
                    handler(what)

    threading.Thread(target=turn, name="metrics", daemon=True).start()
    return port.address
