"""What a pair leaves when its last program has ended. It is removed where it is this pair's own and nobody uses it; of
the rest it is said why it stays.

    RUN_DIR/**/*.sock                   sockets of programs that were killed
    TMP/gpu-failover-UID/HASH.ID        an engine's directory for temporary files (`scratch.py`)
    /dev/shm/psm_* ...                  what a killed engine has left there, as its shim has noted it
    /dev/shm/gpu-failover-UID/NAME      the host devices, with the pages that were their memory

A program that runs holds its lock in the run directory: where that is held, nothing of this program is touched. What
this file may not do: end anything, or remove what is a memory of the pair (`holder.json`, the locks themselves).
"""

import contextlib
from collections.abc import Iterable, Iterator
from pathlib import Path

from engine_shim import paths, scratch, shim_status
from engine_shim.shm_cleanup import ShmCleanup
from gms import rundir as gms_files
from gms import unused_devices
from lockserver import rundir as lock_files
from sidecar import host_usage
from sidecar.durable import AlreadyLocked, DirectoryLock

PATIENCE_S = 5.0
"""Processes of engines that were killed may take so long to let go of their memory."""


def remove(run_dir: Path, devices: Iterable[str]) -> list[str]:
    """Returns what stays, and why, a sentence each. Never raises."""
    stays: list[str] = []
    with _ended(run_dir, lock_files.SERVER_LOCK) as ended:
        _unlink(ended, run_dir, lock_files.SOCKET)
        stays += [] if ended else [f"the socket of a lock server that runs in {run_dir}"]
    engines = run_dir / paths.ENGINES
    for engine_id in shim_status.engines(run_dir):
        with _ended(engines, paths.shim_lock(engine_id)) as ended:
            if not ended:
                stays.append(f"files of engine {engine_id}, whose shim runs")
                continue
            paths.remove_endpoints(run_dir, engine_id)
            _unlink(ended, engines, paths.shim_socket(engine_id))
            ShmCleanup(list, engines / paths.shm_files(engine_id)).remove()
            scratch.remove(scratch.directory(run_dir, engine_id))
    with _ended(gms_files.directory(run_dir), gms_files.SUPERVISOR_LOCK) as ended:
        _unlink(ended, gms_files.directory(run_dir), "*.sock")
        if ended:
            stays += _remove_devices(devices)
        else:
            stays.append(f"the devices of a GMS that runs in {run_dir}")
    return stays


def _remove_devices(devices: Iterable[str]) -> list[str]:
    directory = host_usage.devices_directory()
    found = [
        f"{device}: {why}"
        for device in devices
        if device.startswith("host:") and (why := unused_devices.remove(device, directory, PATIENCE_S))
    ]
    with contextlib.suppress(OSError):
        directory.rmdir()  # another pair may have devices there
    return found


@contextlib.contextmanager
def _ended(directory: Path, name: str) -> Iterator[bool]:
    """Whether the program with this lock has ended; no other one begins meanwhile."""
    if not (directory / name).exists():
        yield True
        return
    lock = DirectoryLock(directory, name)
    try:
        lock.acquire()
    except (AlreadyLocked, OSError):
        yield False
        return
    try:
        yield True
    finally:
        lock.close()


def _unlink(ended: bool, directory: Path, pattern: str) -> None:
    with contextlib.suppress(OSError):
        for path in directory.glob(pattern) if ended else ():
            path.unlink(missing_ok=True)
