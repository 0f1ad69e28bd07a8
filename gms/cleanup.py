"""Removes what GMS leaves when it and its readers have ended: sockets of killed servers, and the host devices. Their
state files no longer name the memory that went with them: the next server would wait for it, in vain.

A host device outlives its GMS on purpose, and with it the pages that were its memory. A caller that has ended
everything that used it asks here; one that another GMS has, or of which a process has memory, stays. What this file may
not do: take memory from a process.
"""

import contextlib
import os
import time
from collections.abc import Callable, Iterable
from pathlib import Path

from gms.memory import DeviceError
from gms.memory.host_device import device_path, remove_device
from gms.rules import record
from gms.shell import rundir
from gms.shell.device_names import take_unused
from sidecar.kernel import host_usage
from sidecar.kernel.durable import DurableFile, nobody_has

LOOK_S = 0.05


def remove(run_dir: Path, devices: Iterable[str], patience_s: float) -> list[str]:
    """Returns what stays, and why. `patience_s`: a process that was killed needs a moment to let go of its memory."""
    here, directory = rundir.directory(run_dir), host_usage.devices_directory()
    with nobody_has(here, rundir.SUPERVISOR_LOCK) as ended:
        if not ended:
            return [f"the devices of a GMS that runs in {run_dir}"]
        with contextlib.suppress(OSError):
            for path in here.glob("*.sock"):
                path.unlink(missing_ok=True)
        on_host = [device for device in devices if device.startswith("host:")]
        why_not = {device: _remove(device, here, directory, patience_s) for device in on_host}
    with contextlib.suppress(OSError):
        directory.rmdir()  # another pair may have devices there
    return [f"{device}: {why}" for device, why in why_not.items() if why]


def _remove(device: str, here: Path, directory: Path, patience_s: float) -> str:
    """Returns why it stays."""

    def forget(status: os.stat_result) -> None:
        file = DurableFile(here, f"{device}.json")
        try:
            found = record.decode(file.read() or b"")
        except (OSError, record.UnreadableRecord):
            return  # the next server says what is wrong with it
        try:
            file.write(record.encode(record.without_memory(found, f"host:{status.st_dev}:{status.st_ino}:")))
        except OSError as error:
            raise OSError(error.errno, error.strerror, str(file.path)) from None

    return remove_device_unless_used(device, directory, patience_s, forget)


def remove_device_unless_used(
    device: str, directory: Path, patience_s: float = 0.0, forget: Callable[[os.stat_result], None] = lambda _: None
) -> str:
    """Returns why it stays; empty when it is gone. `forget` is called before."""
    name = device.removeprefix("host:")
    path = device_path(name, directory)
    until = time.monotonic() + patience_s
    while True:
        try:
            status = path.stat()
        except OSError:
            return ""
        try:
            taken = take_unused(f"host {status.st_dev}:{status.st_ino}")
        except OSError as error:
            return f"it can't be told whether another GMS has it: {error.strerror} ({path})"
        if taken is None:
            return f"another GMS has it ({path})"
        with taken:
            try:
                remove_device(name, directory, forget)
                return ""
            except OSError as error:
                why = f"{error.filename or path} can't be changed: {error.strerror}"
            except DeviceError as error:
                why = f"{error}; fuser -v {path} shows whose they are"
        if time.monotonic() >= until:
            return why
        time.sleep(LOOK_S)
