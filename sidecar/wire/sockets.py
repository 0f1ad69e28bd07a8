"""Where processes meet: a Unix socket under a name in a directory, and names in the network namespace.

The directory or the socket may be removed or replaced while people use it (a volume that was emptied, a hand). Then
clients that have the old one and clients that come anew would speak to different servers; so a server holds its
directory and its socket by inode, and looks when its path may lead elsewhere (`shell.py`).

What this file may not do: know what a server does about it, or what connects (`connections.py`).
"""

import contextlib
import errno
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.kernel.path_watch import OpenDirectory

_SUN_PATH_MAX = 107
_BACKLOG = 1024
_NO_INODES = (errno.ENOSPC, errno.EDQUOT)


class ServerSocket:
    """A server's socket, under its name in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        """Holds the directory; no client can come yet. Raises OSError when it isn't there."""
        self.path = directory / name
        self._directory = OpenDirectory(directory)
        self._inode = 0
        """0 until the socket is in its place."""
        self._keeps_inode = False

    def open(self, mode: int = 0o600) -> socket.socket:
        """Listens. The socket appears under its name only once it does: a client that sees it can connect. Where there
        is no inode for it, that of the server before, which listens no more, goes first.
        """
        try:
            listener = self._open(mode)
        except OSError as error:
            if error.errno not in _NO_INODES:
                raise
            for left in (self.path, self._spare):
                left.unlink(missing_ok=True)
            listener = self._open(mode)
        with contextlib.suppress(OSError):
            self._spare.unlink()
        return listener

    def keep_inode(self) -> None:
        """At an orderly end it stays, under another name, for the next server: as `DurableFile` keeps blocks. (A server
        that is killed leaves it where it is.)
        """
        self._keeps_inode = True

    @property
    def _spare(self) -> Path:
        return self.path.with_name(f"{self.path.name}.spare")

    def _open(self, mode: int) -> socket.socket:
        early = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        early.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with address_of(early) as address:
                listener.bind(address)
            os.chmod(early, mode)
            listener.listen(_BACKLOG)
            listener.setblocking(False)
            os.rename(early, self.path)
        except BaseException:
            listener.close()
            early.unlink(missing_ok=True)
            raise
        self._inode = os.stat(self.path).st_ino
        return listener

    def replaced(self) -> bool:
        """A client that comes anew doesn't come here: the directory or the socket is another one by now, or gone."""
        try:
            moved = self._inode and os.stat(self.path).st_ino != self._inode
        except PermissionError:
            moved = False  # no client can come at all, but this is still the place
        except OSError:
            return True
        return bool(moved) or self._directory.replaced()

    def close(self) -> None:
        """Takes the name away, if it is still this socket's."""
        if self._inode and not self.replaced():
            with contextlib.suppress(OSError):  # then the next server's takes its place
                self.path.replace(self._spare) if self._keeps_inode else self.path.unlink()
        self._directory.close()


@contextmanager
def address_of(path: Path) -> Iterator[str]:
    """A Unix socket's address; a path that is too long for one goes by way of its directory's descriptor."""
    if len(os.fsencode(path)) <= _SUN_PATH_MAX:
        yield str(path)
        return
    fd = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/thread-self/fd/{fd}/{path.name}"  # of a process whose first thread has ended only this is there
    finally:
        os.close(fd)


def connect(path: Path, timeout_s: float = 0.0) -> socket.socket:
    """A connection to the server that listens there. Raises OSError when none does, or (after that time) when it has
    not taken a connection for so long that there is no room for another: a server that is stopped.
    """
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.settimeout(timeout_s)
        with address_of(path) as address:
            sock.connect(address)
        sock.settimeout(None)
    except BaseException:
        sock.close()
        raise
    return sock
