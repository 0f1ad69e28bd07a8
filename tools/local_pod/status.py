"""A pod's state as JSON and as a table for people. Pure."""

from collections.abc import Mapping
from typing import Any

from tools.local_pod.container import Life
from tools.local_pod.machine import Machine


def as_json(machine: Machine, now: float, pids: Mapping[str, int]) -> dict[str, Any]:
    """Times are seconds since the pod's begin."""
    return {
        "name": machine.pod.name,
        "phase": machine.finished or ("Running" if machine.begun else "Pending"),
        "ready": machine.ready,
        "deleting": machine.deleting,
        "for_s": round(now - machine.begin, 3),
        "address": machine.pod.address,
        "unready": machine.unready(),
        "flips": [
            {"at_s": round(flip.at - machine.begin, 3), "ready": flip.ready, "why": flip.why} for flip in machine.flips
        ],
        "ignored": list(machine.pod.ignored),
        "containers": [_container(life, machine.begin, now, pids.get(name, 0)) for name, life in machine.lives.items()],
    }


def _container(life: Life, begin: float, now: float, pid: int) -> dict[str, Any]:
    last = life.last
    backing_off = life.phase.value == "backing off"
    return {
        "name": life.name,
        "role": life.spec.role.value,
        "state": life.phase.value,
        "started": life.started,
        "ready": life.ready,
        "restarts": max(life.run - 1, 0),
        "pid": pid,
        "for_s": round(now - life.started_at, 3) if life.alive else None,
        "back_off_s": round(max(life.backoff.until(life.seen_end) - now, 0), 3) if backing_off else None,
        "ending": life.ending.stage.value if life.ending is not None else None,
        "last": None
        if last is None
        else {
            "code": last.code,
            "signal": last.signal,
            "reason": last.reason,
            "ended_s": round(last.ended_at - begin, 3),
            "ran_s": round(last.ended_at - last.started_at, 3),
        },
        "probes": {
            kind.value: {"passed": probing.result, "in_a_row": probing.in_a_row, "why": probing.why}
            for kind, probing in life.probes.items()
        },
    }


def as_text(pod: Mapping[str, Any]) -> str:
    ready = "Ready" if pod["ready"] else "not Ready"
    state = "being deleted, " if pod["deleting"] else ""
    lines = [
        f"{pod['name']}: {state}{ready}, {pod['for_s']:.0f} s, {len(pod['flips'])} flips, address {pod['address']}"
    ]
    lines += [f"  {why}" for why in pod["unready"]]
    rows = [("CONTAINER", "ROLE", "STATE", "READY", "RESTARTS", "LAST")]
    for each in pod["containers"]:
        state = each["state"]
        if each["back_off_s"] is not None:
            state += f" ({each['back_off_s']:.0f} s)"
        if each["ending"]:
            state += f" ({each['ending']})"
        last = each["last"]
        ended = (
            ""
            if last is None
            else f"{last['reason']}, " + (f"signal {last['signal']}" if last["signal"] else f"code {last['code']}")
        )
        rows.append((each["name"], each["role"], state, "yes" if each["ready"] else "no", str(each["restarts"]), ended))
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        lines.append("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    for flip in pod["flips"][-5:]:
        became = "Ready" if flip["ready"] else f"not Ready: {flip['why']}"
        lines.append(f"{flip['at_s']:9.2f} s  {became}")
    return "\n".join(lines)
