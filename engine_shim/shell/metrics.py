"""The shim's counters as Prometheus metrics. They are made from `counters.py` and the machine when they are asked for,
and not before: the client library, which is an extra, then doesn't make the start slower.

What this file may not do: count anything itself.
"""

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from engine_shim.rules import probes
from engine_shim.rules.counters import BUCKETS_S, Durations
from engine_shim.rules.events import State
from engine_shim.rules.lifecycle import Lifecycle, TreePhase
from sidecar.http import metrics

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry, Metric
    from prometheus_client.core import HistogramMetricFamily

Clock = Callable[[], float]


def registry_of(machine: Lifecycle, clock: Clock = time.monotonic) -> "CollectorRegistry":
    """Raises MetricsUnavailable where the library isn't there."""
    registry = metrics.new_registry()
    registry.register(_Collector(machine, clock))
    return registry


def prepare() -> None:
    """Loads the library; to be called once, in a thread. It takes a tenth of a second, far longer on a busy machine,
    and the first scrape would hold up the probes for that long.
    """
    with contextlib.suppress(metrics.MetricsUnavailable):
        metrics.new_registry()


class _Collector:
    def __init__(self, machine: Lifecycle, clock: Clock) -> None:
        self._machine = machine
        self._clock = clock

    def collect(self) -> "Iterator[Metric]":
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        machine, counters, now = self._machine, self._machine.counters, self._clock()

        def gauge(name: str, what: str, value: float) -> "Metric":
            return GaugeMetricFamily(f"failover_engine_{name}", what, value=value)

        def counter(name: str, what: str, value: float) -> "Metric":
            return CounterMetricFamily(f"failover_engine_{name}", what, value=value)

        states = GaugeMetricFamily(
            "failover_engine_state", "1 for the state that the engine is in, 0 for the others", labels=["state"]
        )
        entered = GaugeMetricFamily(
            "failover_engine_state_entered_timestamp_seconds",
            "When each state was last entered, in seconds since 1970; 0: never",
            labels=["state"],
        )
        for state in State:
            states.add_metric([state.value], state is machine.state)
            entered.add_metric([state.value], counters.entered_at.get(state, 0.0))
        yield states
        yield entered
        moves = CounterMetricFamily("failover_engine_transitions", "Changes of state", labels=["before", "after"])
        for (before, after), count in counters.transitions.items():
            moves.add_metric([before.value, after.value], count)
        yield moves
        ready = probes.ready(machine, now).ok
        yield gauge("live", "1 if /live says 200", probes.live(machine, now).ok)
        yield gauge("ready", "1 if it serves or could take over now", ready)
        yield gauge(
            "standby_ready", "1 if it is a standby that could take over now", ready and machine.state is State.STANDBY
        )
        yield gauge("redundant", "1 if some engine serves and another could take over", machine.counterparts.redundant)
        yield gauge("token", "Fencing token of its last grant in this start; 0: none", machine.token)
        yield gauge("queued", "Requests that wait or are being worked on", machine.queued)
        yield gauge("processes", "Registered processes", len(machine.processes) * (machine.tree is TreePhase.ALIVE))
        yield counter("starts", "Starts of the engine by this shim", counters.starts)
        yield counter("deaths", "Ends of a started engine that were not asked for", counters.deaths)
        yield counter("failovers", "Times that it took over from another holder", counters.failovers)
        yield counter("kv_blocks_adopted", "Blocks of predecessors' KV caches that it took over", counters.kv_adopted)
        dropped = CounterMetricFamily(
            "failover_engine_kv_blocks_dropped", "Blocks of them that were there and not believed", labels=["why"]
        )
        woken = CounterMetricFamily(
            "failover_engine_kv_wakes",
            "Wakes, by why not all of the predecessor's KV cache was taken over; none: all of it was",
            labels=["why"],
        )
        for why, count in (counters.kv_wakes or {"none": 0}).items():
            dropped.add_metric([why], counters.kv_dropped[why])
            woken.add_metric([why], count)
        yield dropped
        yield woken
        phases = _histogram("phase_duration_seconds", "How long each part of the way took", ["phase"])
        for name, spent in counters.phases.items():
            _add(phases, [name], spent)
        yield phases
        restored = _histogram(
            "redundancy_restore_seconds", "From an engine's end to its next start's being ready to take over", []
        )
        _add(restored, [], counters.restored)
        yield restored


def _histogram(name: str, what: str, labels: list[str]) -> "HistogramMetricFamily":
    from prometheus_client.core import HistogramMetricFamily

    return HistogramMetricFamily(f"failover_engine_{name}", what, labels=labels)


def _add(family: "HistogramMetricFamily", labels: list[str], spent: Durations) -> None:
    buckets, so_far = [], 0
    for most, count in zip((*map(str, BUCKETS_S), "+Inf"), spent.counts, strict=True):
        so_far += count
        buckets.append((most, so_far))
    family.add_metric(labels, buckets, sum_value=spent.sum_s)
