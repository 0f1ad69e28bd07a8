"""A pod's state as JSON. Pure; for people: `status_text.py`."""

from collections.abc import Mapping
from typing import Any

from .container import Life
from .machine import Machine


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
        "back_off_s": round(max(life.start_at - now, 0), 3) if backing_off else None,
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
