"""The probes as pages of the shim's port: what `probes.py` answers, in HTTP's words."""

import json
from collections.abc import Callable

from engine_shim.rules import probes
from engine_shim.rules.lifecycle import Lifecycle
from engine_shim.shell.metrics import registry_of
from sidecar.http import metrics
from sidecar.http.http_port import JSON, MakePage, Page, text


def pages(machine: Lifecycle, clock: Callable[[], float]) -> dict[str, MakePage]:
    """Path -> what makes its page."""

    def probe(ask: probes.Probe) -> MakePage:
        def page() -> Page:
            answer = ask(machine, clock())
            return text(answer.why, answer.status)

        return page

    def state() -> Page:
        return Page(json.dumps(probes.state(machine, clock())).encode() + b"\n", kind=JSON)

    def figures() -> Page:
        try:
            return metrics.page_of(registry_of(machine, clock))()
        except metrics.MetricsUnavailable as error:
            return text(str(error), 501)

    return {**{path: probe(ask) for path, ask in probes.PROBES.items()}, "/state": state, "/metrics": figures}
