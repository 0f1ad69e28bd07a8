"""What each model's lock, GMS of each device and the ledger say, as events of the pool. Pure."""

from collections.abc import Container, Mapping
from urllib.parse import urlsplit

from gms import observer as gms
from lockserver import observer as locks
from pool.rules import events as e
from vram import observer as vram


def lock(status: locks.Status) -> e.LockView:
    holder, plan = status.holder, status.plan
    sleeps = plan is not None and not plan.to
    return e.LockView(
        resting=status.resting,
        why=status.resting_why,
        held=holder is not None,
        serving=holder is not None and status.state == "HELD" and bool(holder.endpoint),
        draining=sleeps,
        giving_back=plan is not None and sleeps and plan.step == "giving back",
        ready=any(waiter.ready for waiter in status.waiters),
        token=status.token,
        port=urlsplit(holder.endpoint or "").port if holder is not None else None,
    )


def answer(model: str, step: locks.Step) -> e.LockAnswered | None:
    """The wish to wake is taken; or it doesn't sleep (a person has waked it meanwhile, say). The rest is seen."""
    said = step.done and (step.phase == "waked" or not step.ok)
    return e.LockAnswered(model, step.ok, step.detail) if said else None


def weights(device: str, status: gms.Status) -> e.WeightsSeen:
    weights = [region for region in status.regions if region.policy == "shared"]
    if any(region.state == "RECOVERING" and not region.doubt for region in weights):
        return e.WeightsSeen(device, None)  # what sleepers have yet to hand back is in the device, and it isn't counted
    here = {region.key: region.bytes for region in weights}
    left = max(status.host_memory - sum(status.parked.values()), 0)
    return e.WeightsSeen(device, here, dict(status.parked), left)


def ledger(
    status: vram.Status, models: Container[str], regions: Container[str], said: Mapping[str, e.WeightsSeen]
) -> e.LedgerSeen:
    """`regions`: what models' weights are called. `said`: what GMS of each device has. Without its word, what it has
    leased is as good as another program's.
    """
    leases: dict[str, dict[str, int]] = {}
    others: dict[str, int] = {}
    for lease in status.leases:
        region = region_of(lease.name)
        is_weights = region in regions or any(region in (one.here or {}) for one in said.values())
        if lease.name not in models and is_weights and lease.bytes.keys() <= said.keys():
            continue  # GMS tells of these
        its = leases.setdefault(lease.name, {}) if lease.name in models else others
        for device, size in lease.bytes.items():
            its[device] = its.get(device, 0) + size
    room = {}
    for one in status.devices:
        room[one.device] = max(one.total - one.keep_free - one.foreign - others.get(one.device, 0), 0)
    return e.LedgerSeen(room, leases, _lacking(status), {one.device: one.foreign for one in status.devices})


def _lacking(status: vram.Status) -> dict[str, dict[str, int]]:
    """What each model that waits, or weights that do, would need to be free, beyond what is."""
    free = {
        device.device: device.available if device.free is None else min(device.available, device.free)
        for device in status.devices
    }
    return {
        region_of(waiter.name) or waiter.name: {
            device: need - free[device] for device, need in waiter.needs.items() if need > free.get(device, need)
        }
        for waiter in status.waiters
    }


def region_of(lease: str) -> str:
    """Which weights GMS has leased it for; empty: it is for something else."""
    of, _, key = lease.rpartition("/")
    return key if of.startswith("gms/") else ""
