"""What lies where in a run directory, and whether it is still the same one.

DIR/lock.sock     the server's socket
DIR/holder.json   what the server must not forget (`record.py`)
DIR/server.lock   one server per directory
DIR/life/         one file for each start of an engine, `<engine_id>.<incarnation>`
"""

import os
import socket
from pathlib import Path

from sidecar.kernel.path_watch import OpenDirectory
from sidecar.wire import sockets

SOCKET = "lock.sock"
HOLDER = "holder.json"
SERVER_LOCK = "server.lock"
LIFE = "life"


class RunDirGone(Exception):
    """The directory isn't there."""


class RunDir(OpenDirectory):
    """A run directory, held open: that very directory, whatever its path names later."""

    def __init__(self, path: Path) -> None:
        try:
            super().__init__(path)
        except (FileNotFoundError, NotADirectoryError):
            raise RunDirGone(f"{path} is not there; is the lock server's --run-dir the same?") from None
        self.life = path / LIFE


def absolute(run_dir: Path | str) -> Path:
    """What it means now, wherever this process goes later."""
    return Path(os.path.abspath(run_dir))


def names_of_path(run_dir: Path) -> tuple[str, ...]:
    """What is taken in the network namespace for a run directory (`sidecar/kernel/exclusive_names.py`): its path as it
    was given, and where that leads.
    """
    return tuple(f"lock {path}" for path in dict.fromkeys((str(run_dir), os.path.realpath(run_dir))))


def connect(run_dir: Path) -> socket.socket:
    """A connection to the lock server of this directory. Raises OSError when there is none, or none that takes it."""
    return sockets.connect(run_dir / SOCKET)
