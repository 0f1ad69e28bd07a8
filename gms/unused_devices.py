"""Removes a host device that nobody uses any more: no GMS has it, and nobody has memory of it.

A host device outlives its GMS on purpose, and with it the pages that were its memory. Whoever ends everything that
used it asks here. What this file may not do: take memory from anybody.
"""

import time
from pathlib import Path

from gms.device_names import take_unused
from gms.memory import DeviceError
from gms.memory.host_device import device_path, remove_device

LOOK_S = 0.05


def remove(device: str, directory: Path, patience_s: float = 0.0) -> str:
    """Returns why it stays; empty when it is gone. `patience_s`: who was killed needs a moment to end."""
    name = device.removeprefix("host:")
    path = device_path(name, directory)
    until = time.monotonic() + patience_s
    while True:
        try:
            status = path.stat()
        except OSError:
            return ""
        taken = take_unused(f"host {status.st_dev}:{status.st_ino}")
        if taken is None:
            return f"another GMS has it ({path})"
        with taken:
            try:
                remove_device(name, directory)
                return ""
            except (DeviceError, OSError) as error:
                why = f"{error}; fuser -v {path} shows whose they are"
        if time.monotonic() >= until:
            return why
        time.sleep(LOOK_S)
