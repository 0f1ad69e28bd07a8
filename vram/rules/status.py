"""The ledger's public status. Pure: it reads what it is given and decides nothing. Lists are cut: a status goes into
one frame, however many leases there are.
"""

from collections.abc import Sequence

from sidecar.machine.context import fitting, rfc3339
from vram.rules import messages as m
from vram.rules.books import Books
from vram.rules.leases import Lease, Waiter
from vram.rules.messages import Bytes
from vram.rules.queue import Queue
from vram.rules.recovery import Recovery

LEASES_BYTES, WAITERS_BYTES, ALARMS_BYTES = 500_000, 150_000, 100_000


def status_of(books: Books, queue: Queue, recovery: Recovery) -> m.Status:
    config, context, leases, devices = books.config, books.context, books.leases, books.devices
    waiters = (_waiter(waiter, queue.lacks(waiter), recovery.why) for waiter in queue.line())
    return m.Status(
        devices=[_device(books, device) for device in devices.totals],
        leases=fitting((_lease(lease, context.now) for lease in leases.all.values()), LEASES_BYTES),
        leases_total=len(leases.all),
        waiters=fitting(waiters, WAITERS_BYTES),
        waiters_total=len(queue.waiters),
        settled=recovery.why,
        memory_why=config.memory_why,
        alarms=_alarms(list(context.alarms.values())),
        evidence=config.evidence,
        server_incarnation=config.server_incarnation,
        server_pid=config.server_pid,
    )


def _alarms(alarms: Sequence[str]) -> list[str]:
    shown = fitting(alarms, ALARMS_BYTES)
    more = len(alarms) - len(shown)
    return [*shown, f"{more} more alarms don't fit into the answer: see the server's log"] if more else shown


def _waiter(waiter: Waiter, lacks: Bytes, unsettled: str) -> m.WaiterState:
    tree, since, why = waiter.tree, rfc3339(waiter.since_wall), waiter.waits_for or unsettled
    return m.WaiterState(waiter.name, tree.engine_id, tree.pid, lacks, waiter.priority, since, why)


def _device(books: Books, device: str) -> m.DeviceState:
    leases, devices = books.leases, books.devices
    total, used = devices.totals[device], devices.used.get(device)
    return m.DeviceState(
        device,
        total,
        leases.leased[device],
        leases.sum_returning[device],
        devices.foreign[device],
        books.config.keep_free,
        max(0, devices.room(device)),
        None if used is None else total - used,
    )


def _lease(lease: Lease, now: float) -> m.LeaseState:
    tree = lease.tree
    holder = (tree.engine_id, tree.random, tree.pid) if tree is not None else ("", "", 0)
    state = "kept" if tree is None else "ending" if lease.ends else "asked" if lease.asked is not None else "held"
    return m.LeaseState(
        lease.number,
        lease.name,
        *holder,
        lease.bytes,
        lease.returning,
        lease.priority,
        lease.evictable,
        lease.granted_at,
        round(now - lease.used_at, 3),
        state,
    )
