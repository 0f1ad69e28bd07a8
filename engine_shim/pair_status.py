"""`failover status`: who serves, who is ready, and where, from the lock server and the shims of a run directory.

Looking takes nothing: no lock, and nobody waits for whoever looks.
"""

import json
from pathlib import Path
from typing import Any

import msgspec

from engine_shim import given_up, shim_status, takes
from engine_shim.pair_process import up_pid
from lockserver.observer import Observer, ObserverError
from sidecar import table

SERVES, NOBODY_SERVES, NOTHING_RUNS = 0, 1, 3


def show(run_dir: Path, as_json: bool) -> int:
    """Prints the status. Returns the exit code."""
    lock: dict[str, Any] | None = None
    why = ""
    try:
        with Observer(run_dir) as observer:
            lock = msgspec.to_builtins(next(observer.watch()))
    except ObserverError as error:
        why = str(error)
    pid = up_pid(run_dir)
    given = given_up.read(run_dir) if pid is not None else {}
    engines: list[dict[str, Any]] = []
    for engine_id in sorted({*shim_status.engines(run_dir), *given}):
        try:
            engines.append(shim_status.ask(run_dir, engine_id))
        except shim_status.NoAnswer as error:
            absent = {"engine_id": engine_id, "state": None, "ready": False, "given_up": engine_id in given}
            engines.append({**absent, "why": given.get(engine_id, str(error))})
    running = lock is not None or any(engine["state"] for engine in engines)
    serving = next((engine for engine in engines if engine["state"] == "Active"), None)
    redundant, said = redundancy(lock, engines)
    if as_json:
        found = {"run_dir": str(run_dir), "up": pid, "lock": lock, "engines": engines}
        print(json.dumps({**found, "redundant": redundant, "redundancy": said}))
    elif not running and pid is None:
        print(f"nothing runs in {run_dir}; failover up starts a pair")
    else:
        print("\n".join(_lines(run_dir, pid, lock, why, engines, said)))
    return SERVES if serving else NOBODY_SERVES if running or pid else NOTHING_RUNS


def redundancy(lock: dict[str, Any] | None, engines: list[dict[str, Any]]) -> tuple[bool, str]:
    """Whether somebody serves and somebody else could take over every request; and that in words."""
    ready = [engine for engine in engines if engine["ready"] and engine["state"] == "Standby"]
    names = ", ".join(engine["engine_id"] for engine in ready)
    but = f"; {names} is ready" if ready else ""
    if lock is None:
        return False, f"none: no lock server answers, and without one nobody takes over{but}"
    if lock["state"] != "HELD" or lock["holder"] is None or not lock["holder"]["endpoint"]:
        return False, f"none: nobody serves, the lock is {lock['state']}{but}"
    if not ready:
        lost = [f"{engine['engine_id']} is {engine['why']}" for engine in engines if engine.get("given_up")]
        return False, "; ".join(["none: nobody is ready to take over", *lost])
    holder = lock["holder"]["engine_id"]
    serving = next((engine for engine in engines if engine["engine_id"] == holder), {})
    others = {
        engine["engine_id"]: takes.differences(engine.get("takes") or {}, serving.get("takes") or {}, holder)
        for engine in ready
    }
    same = [name for name, found in others.items() if not found]
    if not same:
        name, found = next(iter(others.items()))
        return False, f"none: {name} is ready and takes other requests ({'; '.join(found)})"
    if lock["alarms"]:
        return False, f"in doubt: {', '.join(same)} is ready, and the lock server has an alarm (above)"
    return True, f"yes: {', '.join(same)} would take over"


def _lines(
    run_dir: Path, pid: int | None, lock: dict[str, Any] | None, why: str, engines: list[dict[str, Any]], said: str
) -> list[str]:
    rows = [("run directory", f"{run_dir}" + (f"  (failover up: process {pid})" if pid else ""))]
    if lock is None:
        rows.append(("lock", why))
    else:
        holder = lock["holder"]
        rows.append(("lock", lock["state"] + (f" by {holder['engine_id']}, token {holder['token']}" if holder else "")))
        rows += [("waits for", reason) for reason in (lock["fencing"] or {"waiting_for": []})["waiting_for"]]
        rows += [("alarm", alarm) for alarm in lock["alarms"]]
    rows += [(f"engine {engine['engine_id']}", _engine(engine)) for engine in engines]
    rows.append(("redundancy", said))
    return table.lines(rows)


def _engine(engine: dict[str, Any]) -> str:
    if engine["state"] is None:
        return str(engine["why"])
    words = [engine["role"], engine["state"], "ready" if engine["ready"] else "not ready"]
    words.append(f"for {engine['for_s']:.0f} s")
    if engine["url"]:
        words.append(engine["url"])
    if not engine["ready"] and engine["why"] != engine["state"]:
        words.append(engine["why"])
    return "  ".join(words)
