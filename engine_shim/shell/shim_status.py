"""Asks a shim over its socket how its engine is: for `failover`, for tests, and for programs without a port."""

import os
from pathlib import Path
from typing import Any

from engine_shim.rules import messages as m
from engine_shim.shell import paths
from pool.launching import LOCKS
from pool.launching import SOCKET as LAUNCHER
from sidecar.wire.observer import Observer, Refused, Whom
from sidecar.wire.observer import ObserverError as ObserverError


def ask(run_dir: Path, engine_id: str, timeout_s: float = 2.0) -> dict[str, Any]:
    """The same as its `/state`. Raises ObserverError."""
    path = run_dir / paths.ENGINES / paths.shim_socket(engine_id)
    start = f"engine-shim --engine-id {engine_id} --run-dir {run_dir} ..."
    whom = Whom(
        "engine-shim",
        str(path),
        run_dir,
        path,
        start,
        m.from_shim,
        m.AskState(),
        {m.Problem: Refused},
        instead=lambda: _of_many(run_dir),
    )
    with Observer(whom, timeout_s) as shim:
        return shim.hear(m.StateIs, timeout_s).state


def _of_many(run_dir: Path) -> str:
    """What to say where no engine of one of many models runs: its pool starts it."""
    if run_dir.parent.name != LOCKS or not (run_dir.parent.parent / LAUNCHER).exists():
        return ""
    above = f"--run-dir {run_dir.parent.parent}"
    return f"failover models {above} says why, and failover models wake {run_dir.name} {above} starts one"


def engines(run_dir: Path) -> list[str]:
    """The engines that have, or had, a shim in this run directory: one of its files is there."""
    suffixes = (paths.shim_lock(""), paths.shim_socket(""))
    try:
        names = os.listdir(run_dir / paths.ENGINES)
    except OSError:
        return []
    found = {name.removesuffix(suffix) for name in names for suffix in suffixes if name.endswith(suffix)}
    return sorted(engine_id for engine_id in found if engine_id and not engine_id.startswith("."))
