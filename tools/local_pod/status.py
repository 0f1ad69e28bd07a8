"""A pod's state as JSON, and that in words. Pure."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from . import places
from .container import Life
from .machine import Machine


def as_json(machine: Machine, now: float, pids: Mapping[str, int], directory: Path) -> dict[str, Any]:
    """Times are seconds since the pod's begin."""
    flips, lives = machine.flips, machine.lives.values()
    return {
        "name": machine.pod.name,
        "ready": machine.ready,
        "deleting": machine.deleting,
        "for_s": round(now - machine.begin, 3),
        "address": machine.pod.address,
        "unready": machine.unready(),
        "flips": [{"at_s": round(each.at - machine.begin, 3), "ready": each.ready, "why": each.why} for each in flips],
        "containers": [_container(life, machine, now, pids.get(life.name, 0), directory) for life in lives],
    }


def _container(life: Life, machine: Machine, now: float, pid: int, directory: Path) -> dict[str, Any]:
    last = life.last and {
        "code": life.last.code,
        "signal": life.last.signal,
        "reason": life.last.reason,
        "ended_s": round(life.last.ended_at - machine.begin, 3),
        "ran_s": round(life.last.ended_at - life.last.started_at, 3),
        "log": str(places.log(directory, life.name, life.run - 1 if pid else life.run)),
    }
    return {
        "name": life.name,
        "role": life.spec.role.value,
        "state": life.phase.value,
        "started": life.started,
        "ready": life.ready,
        "restarts": max(life.run - 1, 0),
        "pid": pid,
        "for_s": round(now - life.started_at, 3) if life.alive else None,
        "back_off_s": round(max(life.start_at - now, 0), 3) if life.phase.value == "backing off" else None,
        "ending": life.ending.stage.value if life.ending is not None else None,
        "last": last,
        "probes": {
            kind.value: {"passed": probing.result, "in_a_row": probing.in_a_row, "why": probing.why}
            for kind, probing in life.probes.items()
        },
    }


def as_text(pod: Mapping[str, Any]) -> str:
    ready = ("being deleted, " if pod["deleting"] else "") + ("Ready" if pod["ready"] else "not Ready")
    lines = [f"{pod['name']}: {ready}, {pod['for_s']:.0f} s, {len(pod['flips'])} flips, address {pod['address']}"]
    lines += [f"  {why}" for why in pod["unready"]]
    rows = [("CONTAINER", "ROLE", "STATE", "READY", "RESTARTS", "LAST"), *map(_row, pod["containers"])]
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    for row in rows:
        lines.append("  ".join(word.ljust(width) for word, width in zip(row, widths, strict=True)).rstrip())
    for each in pod["containers"]:
        if each["last"] is not None and not each["ready"] and (each["last"]["code"] or each["last"]["signal"]):
            lines.append(f"  what {each['name']} wrote before it ended: {each['last']['log']}")
    for flip in pod["flips"][-5:]:
        became = "Ready" if flip["ready"] else f"not Ready: {flip['why']}"
        lines.append(f"{flip['at_s']:9.2f} s  {became}")
    return "\n".join(lines)


def _row(each: Mapping[str, Any]) -> tuple[str, ...]:
    state, last = each["state"], each["last"]
    if each["back_off_s"] is not None:
        state += f" ({each['back_off_s']:.0f} s)"
    if each["ending"]:
        state += f" ({each['ending']})"
    ended = ""
    if last is not None:
        ended = f"{last['reason']}, " + (f"signal {last['signal']}" if last["signal"] else f"code {last['code']}")
    return each["name"], each["role"], state, "yes" if each["ready"] else "no", str(each["restarts"]), ended
