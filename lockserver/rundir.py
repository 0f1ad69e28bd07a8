"""What lies where in a run directory, and whether it is still the same one.

DIR/lock.sock     the server's socket
DIR/holder.json   what the server must not forget (`record.py`)
DIR/server.lock   one server per directory
DIR/life/         one file for each start of an engine, `<engine_id>.<incarnation>`
"""

import contextlib
import os
import socket
from collections.abc import Iterator
from pathlib import Path

SOCKET = "lock.sock"
HOLDER = "holder.json"
SERVER_LOCK = "server.lock"
LIFE = "life"

_SUN_PATH_MAX = 107


class RunDirGone(Exception):
    """The directory isn't there."""


class RunDir:
    """A run directory, held open: that very directory, whatever its path names later."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.life = path / LIFE
        try:
            self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except (FileNotFoundError, NotADirectoryError):
            raise RunDirGone(f"{path} is not there; is the lock server's --run-dir the same?") from None

    def replaced(self) -> bool:
        """Its path names another directory by now, or none."""
        try:
            named, ours = os.stat(self.path), os.fstat(self._fd)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino) or ours.st_nlink == 0

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


@contextlib.contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A Unix socket's address; a path that is too long for one goes by way of its directory's descriptor."""
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{fd}/{path.name}"
    finally:
        os.close(fd)


def connect(run_dir: Path) -> socket.socket:
    """A connection to the lock server of this directory. Raises OSError when there is none."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(run_dir / SOCKET) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock
