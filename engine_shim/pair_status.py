"""`failover status`: who serves, who is ready, and where, from the lock server and the shims of a run directory."""

import json
from pathlib import Path
from typing import Any

import msgspec

from engine_shim import shim_status
from engine_shim.up import UP_LOCK
from lockserver.observer import Observer, ObserverError
from sidecar import table
from sidecar.durable import AlreadyLocked, DirectoryLock

SERVES, NOBODY_SERVES, NOTHING_RUNS = 0, 1, 3


class PairError(Exception):
    """What was asked for can't be done, and why."""


def up_pid(run_dir: Path) -> int | None:
    """The process of `failover up` in this directory; None where there is none."""
    if not (run_dir / UP_LOCK).exists():
        return None
    try:
        DirectoryLock(run_dir, UP_LOCK).acquire().close()
    except AlreadyLocked as error:
        return error.pid
    except OSError as error:
        raise PairError(f"{run_dir} can't be looked at: {error.strerror}") from None
    return None


def show(run_dir: Path, as_json: bool) -> int:
    """Prints the status. Returns the exit code."""
    lock: dict[str, Any] | None = None
    why = ""
    try:
        with Observer(run_dir) as observer:
            lock = msgspec.to_builtins(next(observer.watch()))
    except ObserverError as error:
        why = str(error)
    engines: list[dict[str, Any]] = []
    for engine_id in shim_status.engines(run_dir):
        try:
            engines.append(shim_status.ask(run_dir, engine_id))
        except shim_status.NoAnswer as error:
            engines.append({"engine_id": engine_id, "state": None, "ready": False, "why": str(error)})
    pid = up_pid(run_dir)
    running = lock is not None or any(engine["state"] for engine in engines)
    serving = next((engine for engine in engines if engine["state"] == "Active"), None)
    if as_json:
        print(json.dumps({"run_dir": str(run_dir), "up": pid, "lock": lock, "engines": engines}))
    elif not running and pid is None:
        print(f"nothing runs in {run_dir}; failover up starts a pair")
    else:
        print("\n".join(_lines(run_dir, pid, lock, why, engines)))
    return SERVES if serving else NOBODY_SERVES if running or pid else NOTHING_RUNS


def _lines(
    run_dir: Path, pid: int | None, lock: dict[str, Any] | None, why: str, engines: list[dict[str, Any]]
) -> list[str]:
    rows = [("run directory", f"{run_dir}" + (f"  (failover up: process {pid})" if pid else ""))]
    if lock is None:
        rows.append(("lock", why))
    else:
        holder = lock["holder"]
        rows.append(("lock", lock["state"] + (f" by {holder['engine_id']}, token {holder['token']}" if holder else "")))
    rows += [(f"engine {engine['engine_id']}", _engine(engine)) for engine in engines]
    ready = [engine["engine_id"] for engine in engines if engine["ready"] and engine["state"] == "Standby"]
    rows.append(("redundancy", f"yes: {', '.join(ready)} would take over" if ready else "none"))
    return table.lines(rows)


def _engine(engine: dict[str, Any]) -> str:
    if engine["state"] is None:
        return str(engine["why"])
    words = [engine["role"], engine["state"], "ready" if engine["ready"] else "not ready"]
    words.append(f"for {engine['for_s']:.0f} s")
    if engine["url"]:
        words.append(engine["url"])
    elif not engine["ready"] and engine["why"] != engine["state"]:
        words.append(engine["why"])
    return "  ".join(words)
