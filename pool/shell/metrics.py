"""The pool as Prometheus metrics, model by model, made of what people see (`Listing`)."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pool.entries import ModelShown, State
from pool.rules.messages import Listing
from sidecar.http import metrics

if TYPE_CHECKING:
    from prometheus_client import Metric


COUNTERS = {
    "swaps": "How often a model was waked",
    "failures": "How often a model couldn't be started or waked",
    "awake_seconds": "How long a model was awake",
    "pauses": "Answers that were paused by a swap",
}


class Metrics:
    """Raises MetricsUnavailable where there is no client library."""

    def __init__(self) -> None:
        self.registry = metrics.new_registry()
        self.listing = Listing()
        self.registry.register(self)

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        def gauge(name: str, what: str, labels: tuple[str, ...] = ("model",)) -> GaugeMetricFamily:
            return GaugeMetricFamily(f"failover_pool_{name}", what, labels=labels)

        listing = self.listing
        state = gauge("model_state", "1 for the state that a model is in, 0 for the others", ("model", "state"))
        counted = {
            name: CounterMetricFamily(f"failover_pool_{name}", what, labels=["model"])
            for name, what in COUNTERS.items()
        }
        requests = gauge("demand", "Requests at the doors, by what they do", ("model", "kind"))
        memory = gauge("memory_bytes", "What a model has beside its weights, by where", ("model", "where"))
        tiers = gauge("weights_bytes", "What a model's weights take: device, or parked", ("model", "tier"))
        estimate = gauge("estimate_seconds", "Until a request that comes now could be answered")
        waited = gauge("oldest_wait_seconds", "How long the first of the requests that wait, or are paused, has")
        for model in listing.models:
            waited.add_metric([model.name], model.waited_s)
            for each in State:
                state.add_metric([model.name, each.value], float(model.state is each))
            for name, counter in counted.items():
                counter.add_metric([model.name], getattr(model, name.replace("seconds", "s")))
            for kind in ("waiting", "streaming", "paused"):
                requests.add_metric([model.name, kind], getattr(model, kind))
            for where, size in held(model).items():
                memory.add_metric([model.name, where], size)
            for tier, by_device in (("device", model.weights), ("parked", model.parked)):
                tiers.add_metric([model.name, tier], sum(by_device.values()))
            if model.estimate_ms is not None:
                estimate.add_metric([model.name], model.estimate_ms / 1000)
        yield from (state, *counted.values(), requests, waited, memory, tiers, estimate)
        whole = {
            "swapping_share": "How much of the last ten minutes a device served no model because of a swap",
            "quantum_s": "How long others may be awake, in seconds, before it is a paused answer's turn again",
        }
        values = {name: float(getattr(listing, name)) for name in whole}
        whole["alarms"], values["alarms"] = "What is wrong at the moment", len(listing.alarms)
        whole["acts"] = "1 while launcher and ledger answer: else no model is waked or put to sleep"
        values["acts"] = float(not listing.waiting_for)
        for name, what in whole.items():
            family = gauge(name.replace("quantum_s", "quantum_seconds"), what, ())
            family.add_metric([], values[name])
            yield family


def held(model: ModelShown) -> dict[str, int]:
    """Where it has memory now."""
    if not model.runs or model.state is State.STOPPING:
        return {}
    awake = model.state in (State.AWAKE, State.WAKING, State.DRAINING)
    host = {"host": model.asleep_bytes["host"]} if "host" in model.asleep_bytes else {}
    return {**model.bytes, **host} if awake else dict(model.asleep_bytes)
