"""Prometheus metrics: a registry of one's own, and the page that a scrape gets.

    registry = metrics.new_registry()
    port = metrics.serve(address, registry, loop)       # /metrics, and /live, which the program's own loop answers

The client library is an extra and loaded when metrics are asked for. What this file may not do: know any metric, or
how one listens (`http_port.py`).
"""

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from sidecar.http.http_port import CannotListen, HttpPort, MakePage, Page
from sidecar.kernel.port_owner import way_out
from sidecar.machine.loop import Loop
from sidecar.terminal.extras import how_to_get
from sidecar.wire.tcp import named

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


class MetricsUnavailable(Exception):
    """Metrics were asked for and can't be served."""


def new_registry() -> "CollectorRegistry":
    """A registry of one's own: the library's default one is shared by everything in the process."""
    try:
        from prometheus_client import CollectorRegistry
    except ImportError as error:
        raise MetricsUnavailable(f"metrics need the package prometheus-client: {how_to_get('metrics')}") from error
    return CollectorRegistry()


def page_of(registry: "CollectorRegistry") -> Callable[[], Page]:
    """Makes the page. A collector that raises costs one scrape: the port answers 500."""

    def page() -> Page:
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return Page(generate_latest(registry), kind=CONTENT_TYPE_LATEST)

    return page


def serve(
    address: tuple[str, int],
    registry: "CollectorRegistry",
    loop: Loop,
    pages: Mapping[str, MakePage] | None = None,
    slow: Mapping[str, MakePage] | None = None,
) -> HttpPort:
    """Serves in the program's own loop from now on (port 0 = any): `/live` is an answer only while that loop turns.
    The metrics' page is made in a thread, because it may take longer than the loop can wait; so are those of `slow`.
    `pages`: more of them, or another `/live`.
    """
    try:
        return HttpPort(address, loop, pages or {}, slow={"/metrics": page_of(registry), **(slow or {})})
    except CannotListen as error:
        why = way_out(error, "--metrics")
        raise MetricsUnavailable(f"can't listen on {named(*address)} for metrics: {why}") from error
