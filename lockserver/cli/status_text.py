"""The public status of the lock in words and columns, for a person who was woken by it.

Pure: a `Status` and the time go in, lines come out. First what is wrong, then who serves, who waits and for what, and
last what to do. What this file may not do: read anything, or say more than the status does. Who prints it:
`lockctl.py`, `hold.py` (the sentence about waiting), the demo.
"""

from datetime import datetime

from lockserver.advice import advice
from lockserver.rules import messages as m
from sidecar.terminal.formatting import PLAIN, Paint, Tone, ago, size

__all__ = [
    "PLAIN",
    "Paint",
    "Tone",
    "ago",
    "change_line",
    "needs",
    "size",
    "status_lines",
    "waiting_line",
    "why_unverified",
]

MARGIN = 10
_MARK = "  - "


_TONES = {"HELD": Tone.GOOD, "FREE": Tone.CARE, "FENCING": Tone.BAD, "RECOVERING": Tone.CARE}


# -- the whole picture ---------------------------------------------------------------------------------------------


def status_lines(status: m.Status, now: datetime, paint: Paint = PLAIN) -> list[str]:
    blocks = [
        [_headline(status, now, paint)],
        [paint(f"ALARM  {alarm}", Tone.BAD) for alarm in status.alarms],
        _fencing(status, paint),
        _holder(status, now, paint) + _waiters(status, now, paint) + _rest(status),
        _advised(status),
    ]
    return "\n\n".join("\n".join(block) for block in blocks if block).split("\n")


def _headline(status: m.Status, now: datetime, paint: Paint) -> str:
    state = paint(status.state, _TONES.get(status.state, Tone.BAD))
    holder = status.holder
    if status.state == "HELD" and holder is not None:
        return f"{state}  {paint(holder.engine_id, Tone.STRONG)} is awake, {_granted(holder, now)}"
    if status.resting and status.state == "FREE":
        return f"{state}  at rest, and no engine is granted until it is waked: {status.resting_why}"
    if status.state == "FREE":
        return f"{state}  no engine holds the lock, and none that is ready asks for it"
    since = f" (began {ago(status.fencing.since, now)}, {status.fencing.since})" if status.fencing is not None else ""
    if status.state == "RECOVERING":
        return f"{state}  the lock server is new: it waits for the holder, or for the proof of its end{since}"
    return f"{state}  no engine is granted yet{since}"


def _fencing(status: m.Status, paint: Paint) -> list[str]:
    if status.fencing is None:
        return []
    reasons = [reason for reason in status.fencing.waiting_for if reason not in status.alarms]
    if not reasons:
        return ["waits for what the alarm above says" if status.alarms else "waits for the proof"]
    return [paint("waits for", Tone.STRONG), *(_MARK + reason for reason in reasons)]


def _holder(status: m.Status, now: datetime, paint: Paint) -> list[str]:
    holder = status.holder
    if holder is None:
        return [_row("serves", "none")]
    serves = status.state == "HELD"
    at = f" ({holder.granted_at})" if holder.granted_at else ""
    where = holder.endpoint or ("(has not said yet where it serves)" if serves else "")
    dead = sum(not member.alive for member in holder.members)
    members = ", ".join(f"{member.pid} {'alive' if member.alive else 'dead'}" for member in holder.members)
    return [
        _row("serves" if serves else "held by", f"{paint(holder.engine_id, Tone.STRONG)}  {where}"),
        _row("", f"main process {holder.pid}, incarnation {holder.incarnation}"),
        _row(
            "", f"processes: {members}" if serves or dead < len(holder.members) else f"processes: {members}: all dead"
        ),
        _row("", f"token {holder.token}, {_granted(holder, now)}{at}"),
    ]


def _granted(holder: m.HolderState, now: datetime) -> str:
    return f"granted {ago(holder.granted_at, now)}" if holder.granted_at else "granted before this server began"


def _waiters(status: m.Status, now: datetime, paint: Paint) -> list[str]:
    if not status.waiters:
        return [_row("waits", paint("none", Tone.CARE) if status.state == "HELD" else "none")]
    cells = [
        (
            f"{place}.",
            waiter.engine_id,
            "ready" if waiter.ready else "NOT READY",
            f"asked {ago(waiter.since, now)}",
            f"process {waiter.pid}",
            needs(waiter.needs) or "needs no memory",
        )
        for place, waiter in enumerate(status.waiters, 1)
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(cells[0]))]
    rows = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells]
    if status.waiters_total > len(rows):
        rows.append(f"and {status.waiters_total - len(rows)} more")
    return [_row("" if place else "waits", row) for place, row in enumerate(rows)]


def _rest(status: m.Status) -> list[str]:
    why = why_unverified(status)
    lines = [_row("memory", f"{status.memory}{': ' if why else ''}{why}")]
    if status.switchover is not None:
        lines.append(_row("switchover", status.switchover))
    for name, permit in status.permits.items():
        if permit.holder is not None or permit.waiters:
            waiting = f"; waits: {', '.join(permit.waiters)}" if permit.waiters else ""
            why = f" ({'; '.join(permit.waiting_for)})" if permit.waiting_for else ""
            lines.append(_row(f"{name}", f"{permit.holder or 'no engine'} has the permit{waiting}{why}"))
    return [
        *lines,
        _row(
            "server",
            f"process {status.server_pid}, incarnation {status.server_incarnation}, sees ends by {status.evidence}",
        ),
    ]


def why_unverified(status: m.Status) -> str:
    """Empty where the holder's memory was seen to be free. `memory_why` is empty where the server has a reader."""
    if status.memory == "verified" or status.memory_why:
        return status.memory_why
    if status.holder is None:
        return "see the alarm"
    if not status.holder.granted_at:
        return "an earlier server granted it, and the file that said what was seen then is lost"
    return "at the grant it wasn't seen that what the holder needs was free, or it said no needs"


def _advised(status: m.Status) -> list[str]:
    todo = advice(status)
    return ["what to do", *(_MARK + text for text in todo)] if todo else []


def _row(label: str, text: str) -> str:
    return f"{label:<{MARGIN}}  {text}".rstrip()


# -- one line ------------------------------------------------------------------------------------------------------


def change_line(status: m.Status, paint: Paint = PLAIN) -> str:
    """A state in a line, for `watch`."""
    parts = [paint(f"{status.state:<10}", _TONES.get(status.state, Tone.BAD))]
    if status.holder is not None:
        where = f" at {status.holder.endpoint}" if status.holder.endpoint else ""
        gone = "" if status.state == "HELD" else " is to be proven gone"
        parts.append(f"{status.holder.engine_id} (token {status.holder.token}){gone}{where};")
    waiting = [f"{waiter.engine_id}{'' if waiter.ready else ' (not ready)'}" for waiter in status.waiters]
    parts.append(f"waiting: {', '.join(waiting) or 'none'}")
    if status.switchover is not None:
        parts.append(f"; switchover {status.switchover}")
    if status.resting:
        parts.append(f"; at rest: {status.resting_why}")
    reasons = [r for r in status.fencing.waiting_for if r not in status.alarms] if status.fencing is not None else []
    if reasons:
        parts.append(f"; waits for: {'; '.join(reasons)}")
    line = " ".join(parts).replace(" ;", ";")
    return "".join([line, *(" " + paint(f"ALARM {alarm}", Tone.BAD) for alarm in status.alarms)])


def waiting_line(status: m.Status, incarnation: str) -> str:
    """What this incarnation waits for; empty if it isn't in the queue."""
    place = next((place for place, waiter in enumerate(status.waiters) if waiter.incarnation == incarnation), None)
    if place is None:
        return ""
    holder = status.holder
    if status.state == "HELD" and holder is not None:
        who = f"process {holder.pid}, token {holder.token}, granted {holder.granted_at or 'before this server began'}"
        why = f"{holder.engine_id} holds the lock ({who})"
    elif holder is not None:
        why = f"{holder.engine_id} (token {holder.token}) is not proven gone"
    else:
        why = (
            "no engine holds the lock, and it isn't granted yet"
            if status.state == "FENCING"
            else f"the lock is {'at rest' if status.resting else status.state}"
        )
    reasons = "; ".join(
        [
            *(status.fencing.waiting_for if status.fencing is not None else ()),
            *(() if status.fencing is not None else status.alarms),
        ]
    )
    return "".join([why, f": {reasons}" if reasons else "", f"; {place} before us" if place else "; we are next"])


# -- words for figures ---------------------------------------------------------------------------------------------


def needs(wanted: dict[str, int]) -> str:
    return (
        "needs " + ", ".join(f"{size(count)} of {device}" for device, count in sorted(wanted.items())) if wanted else ""
    )
