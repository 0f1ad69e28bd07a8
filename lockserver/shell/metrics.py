"""The lock as Prometheus metrics: how it is, and how often and how long it changed hands.

The server's loop hands over every state that it publishes; what is counted is counted from how one state follows
another. The page that a scrape gets is made in a thread (`sidecar/http/metrics.py`). What this file may not do: keep
the loop waiting, or know more than the public status. The client library is an extra, loaded when metrics are asked
for.
"""

import math
import os
import time
from collections.abc import Callable, Iterable
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

from lockserver.rules.messages import Status
from sidecar.http import metrics

if TYPE_CHECKING:
    from prometheus_client import Metric

STATES = ("FREE", "HELD", "FENCING", "RECOVERING")
BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300)


class Page:
    """What a scrape gets: one lock's metrics, or those of many, each with the label `run_dir`."""

    def __init__(self, *, many: bool) -> None:
        """Raises MetricsUnavailable where there is no client library."""
        self.registry = metrics.new_registry()
        self._label = many
        self._locks: dict[Path, Metrics] = {}
        self.registry.register(self)

    def of(self, run_dir: Path) -> Callable[[Status], None]:
        """What is told this lock's states."""
        self._locks[run_dir] = counted = Metrics(run_dir)
        return counted.observe

    def collect(self) -> "Iterable[Metric]":
        from prometheus_client import Metric

        families: dict[str, Metric] = {}
        for run_dir, one in list(self._locks.items()):
            if self._label and not run_dir.exists():
                continue  # it has ended with its directory
            more = {"run_dir": str(run_dir)} if self._label else {}
            for found in one.registry.collect():
                family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
                family.samples += [sample._replace(labels={**sample.labels, **more}) for sample in found.samples]
        return families.values()


class Metrics:
    """Raises MetricsUnavailable where there is no client library."""

    def __init__(self, run_dir: Path, clock: Callable[[], float] = time.monotonic) -> None:
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
        self._resting = gauge("resting", "1 if the lock is at rest: no engine is granted until it is waked")
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
        gauge(
            "unserved_seconds", "For how long no engine has served that should, as far as this server knows"
        ).set_function(lambda: 0 if self._unserved_since is None else self._clock() - self._unserved_since)
        room = "at the run directory, where each grant is written"
        gauge("run_dir_free_bytes", f"Bytes that are free {room}").set_function(lambda: _room(run_dir)[0])
        gauge("run_dir_free_inodes", f"Files that could be made {room}").set_function(lambda: _room(run_dir)[1])
        self._clock = clock
        self._unserved_since: float | None = clock()
        self._last: Status | None = None
        self._lost_at: float | None = None

    def observe(self, status: Status) -> None:
        """The state from now on."""
        self._count(self._last, status)
        self._last = status
        for state, gauge in self._states.items():
            gauge.set(state == status.state)
        holder = status.holder
        if (
            status.resting
            or status.state == "RECOVERING"
            or (status.state == "HELD" and holder is not None and holder.endpoint)
        ):
            self._unserved_since = None
        elif self._unserved_since is None:
            self._unserved_since = self._clock()
        self._token.set(status.token)
        self._waiters.set(status.waiters_total)
        self._ready.set(sum(waiter.ready for waiter in status.waiters))
        self._members.set(sum(member.alive for member in holder.members) if holder is not None else 0)
        self._resting.set(status.resting)
        self._verified.set(status.memory == "verified")
        self._alarms.set(len(status.alarms))
        self._granted_at.set(_seconds(holder.granted_at) if holder is not None else 0)

    def _count(self, last: Status | None, status: Status) -> None:
        if last is None:
            return  # whom a new server finds it has not granted
        granted = status.state == "HELD" and status.holder is not None and status.holder.token > last.token
        gave_back = status.state == "FREE" and status.resting
        if last.state == "HELD" and (status.state != "HELD" or granted) and not gave_back:
            self._fencings.inc()
            self._lost_at = self._clock()
        if granted:
            self._grants.inc()
        if granted or status.state == "FREE":
            if self._lost_at is not None:
                self._durations.observe(self._clock() - self._lost_at)
            self._lost_at = None


def _room(path: Path) -> tuple[float, float]:
    """Bytes and inodes; no number where it can't be asked, and any number of inodes where they aren't counted."""
    try:
        space = os.statvfs(path)
    except OSError:
        return math.nan, math.nan
    return space.f_frsize * space.f_bavail, space.f_favail if space.f_files else math.inf


def _seconds(stamp: str) -> float:
    try:
        return datetime.fromisoformat(stamp).timestamp()
    except ValueError:
        return 0.0
