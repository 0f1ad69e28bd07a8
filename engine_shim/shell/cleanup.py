"""What a pair leaves when its last program has ended. It is removed where it is this pair's own and no process uses it;
of the rest it is said why it stays.

    RUN_DIR/**/*.sock                   sockets of programs that were killed
    TMP/gpu-failover-UID/HASH.ID        an engine's directory for temporary files (`scratch.py`)
    /dev/shm/psm_* ...                  what a killed engine has left there, as its shim has noted it
    /dev/shm/gpu-failover-UID/NAME      the host devices, with the pages that were their memory

A program that runs holds its lock in the run directory: where that is held, nothing of this program is touched. What
this file may not do: end anything, or remove what is a memory of the pair (`holder.json`, the locks themselves).
"""

import contextlib
import os
import time
from collections.abc import Iterable
from pathlib import Path

from engine_shim.shell import life_locks, paths, scratch, shim_status
from engine_shim.shell.shm_cleanup import ShmCleanup
from gms import cleanup as cleanup_of_gms
from gms.memory.host_device import device_path
from lockserver import cleanup as cleanup_of_the_lock
from pool.launching import LOCKS
from sidecar.kernel.durable import nobody_has

PATIENCE_S = 5.0
"""Processes of engines that were killed may take so long to let go of what they have."""
LOOK_S = 0.05


def remove(run_dir: Path, devices: Iterable[str]) -> list[str]:
    """Returns what stays, and why, a sentence each. (Of a host with many models each has a run directory below.)"""
    stays = [what for model in models(run_dir) for what in remove(model, ())]
    stays += cleanup_of_the_lock.remove(run_dir)
    here = run_dir / paths.ENGINES
    for engine_id in shim_status.engines(run_dir):
        with nobody_has(here, paths.shim_lock(engine_id)) as ended:
            if not ended:
                stays.append(f"files of engine {engine_id}, whose shim runs")
                continue
            if why := _why_lives(run_dir, engine_id):
                stays.append(f"files of engine {engine_id}: {why}")
                continue
            paths.remove_endpoints(run_dir, engine_id)
            with contextlib.suppress(OSError):
                (here / paths.shim_socket(engine_id)).unlink(missing_ok=True)
            ShmCleanup(list, here / paths.shm_files(engine_id)).remove()
            scratch.remove(scratch.directory(run_dir, engine_id))
    return stays + cleanup_of_gms.remove(run_dir, devices, PATIENCE_S)


def models(run_dir: Path) -> list[Path]:
    """The run directories of a host's models, which `lockserver --locks` has a lock for each of."""
    with contextlib.suppress(OSError):
        return sorted(path for path in (run_dir / LOCKS).iterdir() if path.is_dir())
    return []


def left(run_dir: Path, devices: Iterable[str]) -> list[Path]:
    """What of that is there, by name."""
    engines = (scratch.directory(run_dir, engine_id) for engine_id in shim_status.engines(run_dir))
    on_host = (device_path(device.removeprefix("host:")) for device in devices if device.startswith("host:"))
    found = (*sorted(run_dir.glob("**/*.sock")), *engines, *on_host)
    return [path for path in found if os.path.lexists(path)]


def _why_lives(run_dir: Path, engine_id: str) -> str:
    """Why a process of this engine lives on, though its shim has ended; empty when none does."""
    until = time.monotonic() + PATIENCE_S
    while (found := life_locks.look(run_dir, engine_id)).held and time.monotonic() < until:
        time.sleep(LOOK_S)
    return found.why if found.held else ""
