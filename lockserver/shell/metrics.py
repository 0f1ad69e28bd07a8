"""The lock as Prometheus metrics: how it is, and how often and how long it changed hands.

The server's loop hands over every state that it publishes; what is counted is counted from how one state follows
another. The page that a scrape gets is made in a thread (`sidecar/http/metrics.py`). What this file may not do: keep
the loop waiting, or know more than the public status. The client library is an extra, loaded when metrics are asked
for.
"""

import time
from collections.abc import Callable
from datetime import datetime

from lockserver.rules.messages import Status
from sidecar.http import metrics

STATES = ("FREE", "HELD", "FENCING", "RECOVERING")
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Metrics:
    """Raises MetricsUnavailable where there is no client library."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.registry = metrics.new_registry()
        from prometheus_client import Counter, Gauge, Histogram

        def gauge(name: str, what: str) -> Gauge:
            return Gauge(f"failover_lock_{name}", what, registry=self.registry)

        states = Gauge(
            "failover_lock_state",
            "1 for the state that the lock is in, 0 for the others",
            ["state"],
            registry=self.registry,
        )
        self._states = {state: states.labels(state=state) for state in STATES}
        self._token = gauge("token", "The newest fencing token; it grows with every grant")
        self._waiters = gauge("waiters", "Engines in the queue")
        self._ready = gauge(
            "waiters_ready",
            "Engines in the queue that could be granted; 0 while the lock is held: no engine would take over",
        )
        self._members = gauge("members", "Living processes of the holder")
        self._verified = gauge("memory_verified", "1 if the holder's memory was seen to be free at its grant")
        self._alarms = gauge("alarms", "Alarms that last")
        self._granted_at = gauge(
            "granted_timestamp_seconds", "When the holder was granted, in seconds since 1970; 0 without a holder"
        )
        self._grants = Counter("failover_lock_grants", "Grants by this server", registry=self.registry)
        self._fencings = Counter(
            "failover_lock_fencings", "Holders lost: how often the proof of an end was begun", registry=self.registry
        )
        self._durations = Histogram(
            "failover_lock_fencing_duration_seconds",
            "From the loss of a holder to the next grant; where no engine waits, to the proof of its end",
            buckets=BUCKETS_S,
            registry=self.registry,
        )
        self._clock = clock
        self._last: Status | None = None
        self._lost_at: float | None = None

    def observe(self, status: Status) -> None:
        """The state from now on."""
        self._count(self._last, status)
        self._last = status
        for state, gauge in self._states.items():
            gauge.set(state == status.state)
        holder = status.holder
        self._token.set(status.token)
        self._waiters.set(status.waiters_total)
        self._ready.set(sum(waiter.ready for waiter in status.waiters))
        self._members.set(sum(member.alive for member in holder.members) if holder is not None else 0)
        self._verified.set(status.memory == "verified")
        self._alarms.set(len(status.alarms))
        self._granted_at.set(_seconds(holder.granted_at) if holder is not None else 0)

    def _count(self, last: Status | None, status: Status) -> None:
        if last is None:
            return  # whom a new server finds it has not granted
        granted = status.state == "HELD" and status.holder is not None and status.holder.token > last.token
        if last.state == "HELD" and (status.state != "HELD" or granted):
            self._fencings.inc()
            self._lost_at = self._clock()
        if granted:
            self._grants.inc()
        if granted or status.state == "FREE":
            if self._lost_at is not None:
                self._durations.observe(self._clock() - self._lost_at)
            self._lost_at = None


def _seconds(stamp: str) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
