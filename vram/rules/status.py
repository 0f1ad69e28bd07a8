"""The ledger's public status. Pure: it reads what it is given and decides nothing. Lists are cut: a status goes into
one frame, however many leases there are.
"""

from itertools import islice
from typing import Any

from sidecar.machine.context import Context, rfc3339
from vram.rules import messages as m
from vram.rules.devices import Devices
from vram.rules.events import Config
from vram.rules.leases import Lease, Leases
from vram.rules.messages import Bytes
from vram.rules.queue import Queue
from vram.rules.recovery import Recovery

MOST_LEASES = 1000
MOST_WAITERS = 100


def status_of(
    config: Config,
    context: Context[Any],
    leases: Leases,
    devices: Devices,
    queue: Queue,
    recovery: Recovery,
    remembered: dict[str, Bytes],
) -> m.Status:
    return m.Status(
        devices=[_device(config, leases, devices, device) for device in devices.totals],
        leases=[_lease(lease, context.now) for lease in islice(leases.all.values(), MOST_LEASES)],
        leases_total=len(leases.all),
        waiters=[
            m.WaiterState(
                waiter.name,
                waiter.tree.engine_id,
                waiter.tree.pid,
                queue.lacks(waiter),
                waiter.priority,
                rfc3339(waiter.since_wall),
                waiter.waits_for or recovery.why,
            )
            for waiter in queue.line()[:MOST_WAITERS]
        ],
        waiters_total=len(queue.waiters),
        settled=recovery.why,
        memory_why=config.memory_why,
        remembered=remembered,
        alarms=list(context.alarms.values()),
        evidence=config.evidence,
        server_incarnation=config.server_incarnation,
        server_pid=config.server_pid,
    )


def _device(config: Config, leases: Leases, devices: Devices, device: str) -> m.DeviceState:
    total, used = devices.totals[device], devices.used.get(device)
    return m.DeviceState(
        device,
        total,
        leases.leased[device],
        leases.sum_returning[device],
        devices.foreign[device],
        config.keep_free,
        max(0, devices.room(device)),
        None if used is None else total - used,
    )


def _lease(lease: Lease, now: float) -> m.LeaseState:
    tree = lease.tree
    state = "kept" if tree is None else "ending" if lease.ends else "asked" if lease.asked is not None else "held"
    return m.LeaseState(
        lease.number,
        lease.name,
        tree.engine_id if tree is not None else "",
        tree.random if tree is not None else "",
        tree.pid if tree is not None else 0,
        lease.bytes,
        lease.returning,
        lease.priority,
        lease.evictable,
        lease.granted_at,
        round(now - lease.used_at, 3),
        state,
    )
