"""What the controller shows: /live, /ready, /metrics, and /dual-pods, of which `dualctl status` is made."""

from collections.abc import Iterator
from typing import Any

import msgspec

from dual_pods.rules.machine import Machine
from dual_pods.rules.place import View
from dual_pods.rules.plan import Phase
from dual_pods.shell import answering
from dual_pods.shell.controller import Controller
from sidecar.http import metrics
from sidecar.http.http_port import MakePage, Page, text

_READY_S = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class Pages:
    def __init__(self, controller: Controller) -> None:
        from prometheus_client import Histogram

        self._controller = controller
        registry = metrics.new_registry()
        self._ready_s = Histogram(
            "dual_pods_ready_seconds", "From a requester's creation until it is Ready, by what made it so",
            ["by"], buckets=_READY_S, registry=None,
        )  # fmt: skip
        registry.register(self)
        self.pages: dict[str, MakePage] = {
            "/live": lambda: text("alive"),
            "/ready": self._ready,
            "/metrics": metrics.page_of(registry),
            "/dual-pods": lambda: answering.json(state(controller)),
        }

    def _ready(self) -> Page:
        """The one that waits to lead is ready while it sees the Lease; one that leads, while it sees the cluster."""
        blind = self._controller.blind
        return text(blind or "ready", 503 if blind else 200)

    def collect(self) -> Iterator[Any]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        controller, work = self._controller, self._controller.work
        while controller.ready_s:
            by, seconds = controller.ready_s.pop()
            self._ready_s.labels(by).observe(seconds)
        yield from self._ready_s.collect()
        yield GaugeMetricFamily("dual_pods_leader", "1 while this controller leads", value=float(work is not None))
        blind = float(bool(controller.blind))
        yield GaugeMetricFamily("dual_pods_blind", "1 while it doesn't see the cluster: /ready says why", value=blind)
        requests = float(controller.kube.requests)
        yield CounterMetricFamily("dual_pods_api_requests_total", "Requests to the API server", value=requests)
        waits = GaugeMetricFamily("dual_pods_requesters", "Requesters, by how far they are", labels=["phase"])
        phases = [phase for phase, _ in work.machine.waits.values()] if work is not None else []
        for phase in Phase:
            waits.add_metric([phase.value], float(phases.count(phase)))
        yield waits
        for name, what in _HELP.items():
            count = controller.counts[name] + (work.machine.counts[name] if work is not None else 0)
            yield CounterMetricFamily(f"dual_pods_{name}_total", what, value=float(count))


_HELP = {
    "wakes": "Sleeping instances that were asked to wake",
    "launches": "Instances, or server pods, that were asked for",
    "sleeps": "Instances that were put to sleep, because their requester had gone",
    "deletions": "Instances that were asked to end",
    "evictions": "Sleeping instances that had to go because their memory was needed",
    "failures": "Instances that failed to start or to wake",
    "faults": "Faults of the controller's own while it asked or wrote one pod, as its log tells",
}


def state(controller: Controller) -> dict[str, Any]:
    """Requesters, server pods and their instances, and what each waits for."""
    machine = controller.work.machine if controller.work is not None else Machine(controller.options.settings)
    requesters, servers = [], []
    for place in machine.places.values():
        view = View(place)
        for uid, requester in place.requesters.items():
            phase, sentence = machine.waits.get(uid, (Phase.STARTING, ""))
            server, instance = view.bound.get(uid, (None, ""))
            requesters.append({
                "name": requester.name, "node": requester.node, "phase": phase.value,
                "says": sentence, "accelerators": list(place.accelerators.get(uid, ())), "instance": instance,
                "server": server.name if server is not None else "", "created": requester.created,
            })  # fmt: skip
        names = {uid: requester.name for uid, requester in place.requesters.items()}
        for each in place.servers.values():
            instances = [
                msgspec.to_builtins(seen.it, order="deterministic") | {"requester": names.get(seen.bound, "")}
                for seen in view.instances
                if seen.server.uid == each.uid
            ]
            how = "ended" if each.ended else "leaving" if each.leaving else "running" if each.running else "starting"
            why = each.why or ("" if place.node is not None else f"node {each.node} isn't there")
            servers.append({"name": each.name, "node": each.node, "how": how, "why": why, "instances": instances})
    its = {"leads": controller.work is not None, "blind": controller.blind, "token": controller.lease.token}
    for those in (requesters, servers):
        those.sort(key=lambda it: (it["node"], it["name"]))
    return {**its, "requesters": requesters, "servers": servers}
