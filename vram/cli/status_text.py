"""The ledger's public status in words and columns. Pure: a `Status` and the time go in, lines come out."""

from datetime import datetime

from sidecar.terminal import table
from sidecar.terminal.formatting import PLAIN, Paint, Tone, ago, size, sizes
from vram.rules import messages as m


def status_lines(status: m.Status, now: datetime, paint: Paint = PLAIN) -> list[str]:
    blocks = [
        [paint(f"ALARM  {alarm}", Tone.BAD) for alarm in status.alarms],
        [paint(f"nothing is leased yet: {status.settled}", Tone.CARE)] if status.settled else [],
        _devices(status),
        _leases(status, now),
        _waiters(status, now),
        [f"server  process {status.server_pid}, incarnation {status.server_incarnation}, {_sees(status)}"],
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block).split("\n")


def change_line(status: m.Status, paint: Paint = PLAIN) -> str:
    """A state in a line, for `watch`."""
    devices = [f"{d.device} {size(d.leased)} leased, {size(d.available)} available" for d in status.devices]
    parts = ["; ".join(devices) or "no device", f"{status.leases_total} leases, {status.waiters_total} waiting"]
    parts += [paint(f"ALARM {alarm}", Tone.BAD) for alarm in status.alarms]
    return "  ".join(parts)


def _devices(status: m.Status) -> list[str]:
    rows = [("device", "total", "leased", "returning", "foreign", "available", "memory")]
    for d in status.devices:
        sizes = (size(d.total), size(d.leased), size(d.returning), size(d.foreign), size(d.available))
        rows.append((d.device, *sizes, "unverified" if d.free is None else f"{size(d.free)} free"))
    return table.lines(rows) if status.devices else ["no device is known"]


def _leases(status: m.Status, now: datetime) -> list[str]:
    if not status.leases:
        return ["no leases"]
    rows = [("lease", "holder", "bytes", "priority", "state", "granted")]
    for lease in status.leases:
        holder = f"{lease.holder} (process {lease.pid})" if lease.holder else "none; kept for the next one"
        back = f"{sizes(lease.returning)} returning" if lease.returning else ""
        has = ", and ".join(filter(None, (sizes(lease.bytes), back)))
        state = lease.state if lease.evictable else f"{lease.state}, not evictable"
        granted = ago(lease.granted_at, now) if lease.granted_at else "before this server"
        rows.append((lease.name, holder, has, str(lease.priority), state, granted))
    return [*table.lines(rows), *_cut(status.leases_total - len(status.leases))]


def _waiters(status: m.Status, now: datetime) -> list[str]:
    rows = [
        (f"{place}.", w.name, f"{w.holder} (process {w.pid})", f"asked {ago(w.since, now)}", w.waits_for)
        for place, w in enumerate(status.waiters, 1)
    ]
    return ["waits", *table.lines(rows), *_cut(status.waiters_total - len(rows))] if rows else ["none waits"]


def _cut(more: int) -> list[str]:
    return [f"and {more} more, which don't fit into the answer"] if more > 0 else []


def _sees(status: m.Status) -> str:
    why = f"; memory is not read: {status.memory_why}" if status.memory_why else ""
    return f"sees ends by {status.evidence}{why}"
