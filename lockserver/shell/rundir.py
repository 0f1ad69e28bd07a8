"""What lies where in a run directory.

DIR/lock.sock     the server's socket
DIR/holder.json   what the server must not forget (`record.py`)
DIR/server.lock   one server per directory
DIR/life/         one file for each start of an engine, `<engine_id>.<incarnation>`
"""

import os
import socket
from pathlib import Path

from evidence.shell.lifefiles import LIFE as LIFE
from evidence.shell.lifefiles import SERVER_LOCK as SERVER_LOCK
from sidecar.wire import sockets

SOCKET = "lock.sock"
HOLDER = "holder.json"
GUARD = "lockctl-guard"
"""What the guard of a held command is called, as ps shows it: it has the life lock, and doesn't join."""


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
