"""All devices of a container as Prometheus metrics, behind one port; and `/startup`, which says whether each is served.

The supervisor serves them, and knows nothing by itself: at a scrape, each device's server is asked for its public
picture as by any observer, so what is said is so at that moment. A server that doesn't answer is `up` 0, and has no
other figures. All this happens in a thread (`sidecar/http/metrics.py`).

What this file may not do: keep the supervisor's loop waiting, or know more than the public status. The client library
is an extra, loaded when metrics are asked for.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gms.observer import Observer
from gms.rules import messages as m
from gms.shell.supervisor import Supervisor
from sidecar.http import metrics
from sidecar.http.http_port import HttpPort, Page, text
from sidecar.wire.observer import ObserverError

if TYPE_CHECKING:
    from prometheus_client.core import Metric

STATES = ("EMPTY", "RW", "COMMITTED", "RO", "PARKED", "RECOVERING")
DOING = ("writing", "reading", "asleep", "waiting", "watching")
POOL_STATES = ("EMPTY", "MAKING", "OWNED", "FREE", "AWAITED")
POOL_DROPS = ("replaced", "unproven", "second_death", "lost", "dropped")
"""Why contents were given up: another shape; the grant, or the owner's end, wasn't proven; its owner died soon after it
had adopted; no process brought it to a new server; by hand.
"""
ANSWER_S = 1.0
EVENTS = {
    "commits": ("committed", "Layouts committed"),
    "hand_backs": ("handed_back", "Layouts that came back after a restart of the server"),
    "aborts": ("aborted", "Writers that ended without a commit"),
    "refusals": ("refused", "Requests that were refused: in vain waited, no memory, a stale layout"),
    "replacements": ("replaced", "Layouts that another took the place of"),
    "parks": ("parked", "Layouts that were moved to host memory"),
    "unparks": ("unparked", "Layouts that were brought back from host memory"),
}
"""Counter -> the event of the history that it counts."""


def serve(address: tuple[str, int], run_dir: Path, devices: list[str], supervisor: Supervisor) -> HttpPort:
    """In the supervisor's loop from now on; `/live` says which device's server hangs. Raises MetricsUnavailable."""
    registry = metrics.new_registry()
    registry.register(_Collector(run_dir, devices))

    def live() -> Page:
        return text(supervisor.not_well, 503) if supervisor.not_well else text("alive")

    startup = {"/startup": lambda: _startup(run_dir, devices)}
    return metrics.serve(address, registry, supervisor.loop, {"/live": live}, slow=startup)


def _startup(run_dir: Path, devices: list[str]) -> Page:
    """For a startup probe: as `gmsctl ping`, without a start of Python in the container that is starting itself."""
    for device in devices:
        try:
            with Observer(run_dir, device, ANSWER_S) as observer:
                observer.ask(m.Ping(), m.Pong)
        except ObserverError as error:
            return text(f"{device}: {error}", 503)
    return text(f"{', '.join(devices)}: served")


class _Collector:
    def __init__(self, run_dir: Path, devices: list[str]) -> None:
        self._run_dir = run_dir
        self._devices = devices

    def describe(self) -> list["Metric"]:
        """Nothing is asked when this is registered: no server is there yet."""
        return []

    def collect(self) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        seen = {device: self._look(device) for device in self._devices}
        known = {device: status for device, status in seen.items() if status is not None}

        def gauge(name: str, what: str, more: str = "") -> GaugeMetricFamily:
            return GaugeMetricFamily(f"failover_gms_{name}", what, labels=["device", more] if more else ["device"])

        up = gauge("up", "1 if the device's server answers")
        for device, status in seen.items():
            up.add_metric([device], float(status is not None))
        yield up
        incarnations = gauge("incarnation", "1; the label names this start of the device's server", "incarnation")
        for device, status in known.items():
            incarnations.add_metric([device, status.server_incarnation], 1.0)
        yield incarnations

        states = gauge("state", "1 for the state that the device's weights are in, 0 for the others", "state")
        clients = gauge("clients", "Processes, by what they do", "doing")
        for device, status in known.items():
            for state in STATES:
                states.add_metric([device, state], float(state == status.state))
            for doing in DOING:
                clients.add_metric([device, doing], sum(client.doing == doing for client in status.clients))
        yield states
        yield clients

        for name, what, of in (
            ("generation", "Of the committed layout, or of the one to be handed back; 0: none", lambda s: s.generation),
            ("weights_bytes", "Bytes in slabs", lambda s: s.bytes),
            ("slabs", "Slabs", lambda s: s.slabs),
            ("tensors", "Tensors of the layout", lambda s: s.tensors),
            ("free_bytes", "Bytes of the device that no process has", lambda s: s.free),
            ("capacity_bytes", "Bytes of the device in all", lambda s: s.capacity),
            ("host_memory_bytes", "Bytes of host memory that parked weights may take", lambda s: s.host_memory),
            (
                "pending_drops",
                "Drops of a layout that is gone, asked for and not done yet",
                lambda s: len(s.pending_drops),
            ),
            ("alarms", "Alarms that last", lambda s: len(s.alarms)),
        ):
            family = gauge(name, what)
            for device, status in known.items():
                family.add_metric([device], of(status))
            yield family

        weights = GaugeMetricFamily(
            "failover_gms_region_bytes", "Bytes of the device in a region", labels=["device", "key", "policy"]
        )
        for device, status in known.items():
            for region in status.regions:
                weights.add_metric([device, region.key, region.policy], region.bytes)
        yield weights
        parked = gauge("parked_bytes", "Bytes of host memory that a region's parked weights take", "key")
        for device, status in known.items():
            for region in status.regions:
                if region.policy == "shared":
                    parked.add_metric([device, region.key], status.parked.get(region.key, 0))
        yield parked
        yield from self._pools(known)
        for name, (event, what) in EVENTS.items():
            counter = CounterMetricFamily(
                f"failover_gms_{name}", f"{what}, since this server started", labels=["device"]
            )
            for device, status in known.items():
                counter.add_metric([device], status.events.get(event, 0))
            yield counter

    @staticmethod
    def _pools(known: dict[str, m.Status]) -> Iterator["Metric"]:
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        labels = ["device", "key"]
        blocks = GaugeMetricFamily(
            "failover_gms_pool_blocks", "Blocks of a pool that a successor would find", labels=labels
        )
        states = GaugeMetricFamily(
            "failover_gms_pool_state",
            "1 for the state that a pool is in, 0 for the others",
            labels=[*labels, "state"],
        )
        adoptions = CounterMetricFamily(
            "failover_gms_pool_adoptions", "Pools whose contents a new owner was given", labels=labels
        )
        drops = CounterMetricFamily("failover_gms_pool_drops", "Contents that were given up", labels=[*labels, "why"])
        for device, status in known.items():
            for pool in (region for region in status.regions if region.policy == "exclusive"):
                blocks.add_metric([device, pool.key], pool.blocks)
                adoptions.add_metric([device, pool.key], pool.adoptions)
                for state in POOL_STATES:
                    states.add_metric([device, pool.key, state], float(state == pool.state))
                for why in POOL_DROPS:
                    drops.add_metric([device, pool.key, why], pool.drops.get(why, 0))
        yield from (blocks, states, adoptions, drops)

    def _look(self, device: str) -> m.Status | None:
        try:
            with Observer(self._run_dir, device, ANSWER_S) as observer:
                return observer.ask(m.AskStatus(), m.Status)
        except ObserverError:
            return None  # which is what `up` says
