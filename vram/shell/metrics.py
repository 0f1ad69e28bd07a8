"""The ledger as Prometheus metrics. The server's loop hands over every status that it publishes; what is counted is
counted from how one follows another. What this file may not do: know more than the public status.
"""

import time
from collections.abc import Callable
from datetime import datetime

from sidecar.http import metrics
from vram.rules.messages import Status

KINDS = ("total", "leased", "returning", "foreign", "available")


class Metrics:
    """Raises MetricsUnavailable where there is no client library."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.registry = metrics.new_registry()
        from prometheus_client import Counter, Gauge

        def gauge(name: str, what: str, labels: tuple[str, ...] = ()) -> Gauge:
            return Gauge(f"failover_vram_{name}", what, labels, registry=self.registry)

        what = "Bytes of each device: total; leased; returning: given back and not seen to be free; foreign: in use by "
        self._bytes = gauge("bytes", f"{what}what holds no lease; available: could be leased now", ("device", "kind"))
        self._verified = gauge("memory_verified", "1 where the device's memory can be read", ("device",))
        self._leases = gauge("leases", "Leases")
        self._waiters = gauge("waiters", "Leases that are waited for")
        what = "For how long the one that has waited longest has waited; 0 if none does"
        gauge("oldest_wait_seconds", what).set_function(lambda: clock() - self._since if self._since else 0)
        self._alarms = gauge("alarms", "Alarms that last")
        self._grants = Counter("failover_vram_grants", "Leases granted by this server", registry=self.registry)
        what = "Holders that were asked to give back"
        self._asked = Counter("failover_vram_asked", what, registry=self.registry)
        self._since = 0.0
        self._seen: dict[int, str] | None = None

    def observe(self, status: Status) -> None:
        """What is so from now on."""
        for device in status.devices:
            for kind in KINDS:
                self._bytes.labels(device.device, kind).set(getattr(device, kind))
            self._verified.labels(device.device).set(device.free is not None)
        self._leases.set(status.leases_total)
        self._waiters.set(status.waiters_total)
        self._alarms.set(len(status.alarms))
        self._since = min((datetime.fromisoformat(waiter.since).timestamp() for waiter in status.waiters), default=0.0)
        states = {lease.lease: lease.state for lease in status.leases}
        seen, self._seen = self._seen, states
        if seen is not None:  # what a new server finds it has not granted
            self._grants.inc(len(states.keys() - seen.keys()))
            self._asked.inc(sum(state == "asked" and seen.get(lease) != state for lease, state in states.items()))
