"""What lies where in a run directory, for GMS.

DIR/gms/<device>.sock   the socket of the device's server
DIR/gms/<device>.json   what that server must not forget (`record.py`)
DIR/gms/<device>.lock   one server per device
DIR/gms/gms.lock        one supervisor per directory
DIR/gms/devices         which devices it has, one a line

Memory lies elsewhere: host devices have a directory of their own, because it must not go with this one.
"""

import socket
from pathlib import Path

from sidecar.kernel.durable import DirectoryLock, DurableFile
from sidecar.terminal.names import DEVICE
from sidecar.wire import sockets

GMS = "gms"
DEVICES = "devices"
SUPERVISOR_LOCK = "gms.lock"


def directory(run_dir: Path) -> Path:
    return run_dir / GMS


def socket_path(run_dir: Path, device: str) -> Path:
    return run_dir / GMS / f"{device}.sock"


def lock(run_dir: Path, name: str, patience_s: float = 0.0) -> DirectoryLock:
    """One process has it at a time. Raises AlreadyLocked, and OSError that says which file it is about."""
    return DirectoryLock(directory(run_dir), name).acquire(patience_s)


def connect(run_dir: Path, device: str) -> socket.socket:
    """A connection to the server of this device. Raises OSError when there is none."""
    return sockets.connect(socket_path(run_dir, device))


def devices(run_dir: Path) -> list[str]:
    """Which devices there are to be: those that the supervisor was started for, else whose sockets are there."""
    here = directory(run_dir)
    try:
        listed = (DurableFile(here, DEVICES).read() or b"").decode("utf-8", "replace").split()
    except OSError:
        listed = []
    if not listed:
        try:
            listed = sorted(path.name.removesuffix(".sock") for path in here.glob("*.sock"))
        except OSError:
            return []
    return [device for device in listed if DEVICE.fullmatch(device)]
