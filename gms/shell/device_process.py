"""One device's server as a process: what the supervisor starts. People start `gms`.

    python -m gms.shell.device_process DEVICE SETTINGS

It dies with its supervisor, however that dies. What can be put right is one line on standard error and exit code 1.
"""

import contextlib
import os
import sys
from pathlib import Path

import msgspec

from gms.memory import DeviceError
from gms.memory.opening import open_memory
from gms.shell.server import Server
from gms.shell.settings import Settings
from sidecar.kernel import process_setup
from sidecar.kernel.durable import AlreadyLocked
from sidecar.machine.shell import STOPPED_BY_SIGNAL
from sidecar.terminal.cannot_start import CannotStart
from sidecar.terminal.logs import Log

__all__ = ["Settings", "main"]


def main(argv: list[str]) -> int:
    device, text = argv
    settings = msgspec.json.decode(text, type=Settings)
    process_setup.die_with_parent(settings.parent_pid)
    process_setup.raise_descriptor_limit()
    log = Log("gms", json=settings.log_json, fields={"device": device})
    try:
        server = Server(settings, open_memory(device, Path(settings.host_devices)), log)
    except (CannotStart, DeviceError, AlreadyLocked) as error:
        print(f"gms: {device}: {error}", file=sys.stderr)
        return 1
    if settings.asked_at >= 0:
        server.loop.add(settings.asked_at, lambda _: _answer(settings.asked_at))
    why = server.run()
    log.info("stopped", why=why)
    return 0 if why in STOPPED_BY_SIGNAL else 1


def _answer(fd: int) -> None:
    """That the loop turns. A supervisor that is gone takes this process with it, a moment after its end of the line."""
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        os.write(fd, os.read(fd, 64) and b".")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
