"""Where processes meet: a directory, and in it a Unix socket that a server listens on.

Either may be removed or replaced while people use it (a volume that was emptied, a hand). Then whoever kept the old one
and whoever comes anew would speak to different servers; so a server holds its directory and its socket by inode, and
the kernel tells it when one of them loses its name.

What this file may not do: know what a server does about it, or who connects (`callers.py`).
"""

import ctypes
import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from sidecar.loop import Loop

_SUN_PATH_MAX = 107
_IN_ATTRIB, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x4, 0x400, 0x800
_LOST = _IN_DELETE_SELF | _IN_MOVE_SELF
_BACKLOG = 1024


class CannotWatch(Exception):
    """The kernel won't say when a name is gone; the text says what to raise."""


class OpenDirectory:
    """A directory, held open: that very one, whatever its path names later. Raises OSError when it isn't there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def replaced(self) -> bool:
        """Its path names another directory by now, or none."""
        try:
            named, ours = os.stat(self.path), os.fstat(self._fd)
        except (FileNotFoundError, NotADirectoryError):
            return True
        return (named.st_dev, named.st_ino) != (ours.st_dev, ours.st_ino) or ours.st_nlink == 0

    def close(self) -> None:
        """May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class ServerSocket:
    """A server's socket, under its name in a directory."""

    def __init__(self, directory: Path, name: str) -> None:
        """Holds the directory; nobody can come yet. Raises OSError when it isn't there."""
        self.path = directory / name
        self._directory = OpenDirectory(directory)
        self._inode = 0
        """0 until the socket is in its place."""

    def open(self, mode: int = 0o600) -> socket.socket:
        """Listens. The socket appears under its name only once it does: who sees it can connect."""
        early = self.path.with_name(f".{self.path.name}.{os.getpid()}")
        early.unlink(missing_ok=True)
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        with address_of(early) as address:
            listener.bind(address)
        os.chmod(early, mode)
        listener.listen(_BACKLOG)
        listener.setblocking(False)
        os.rename(early, self.path)
        self._inode = os.stat(self.path).st_ino
        return listener

    def replaced(self) -> bool:
        """Who comes anew doesn't come here: the directory or the socket is another one by now, or gone."""
        try:
            moved = self._inode and os.stat(self.path).st_ino != self._inode
            return bool(moved) or self._directory.replaced()
        except (FileNotFoundError, NotADirectoryError):
            return True

    def watch(self, loop: Loop, lost: Callable[[], None]) -> None:
        """Calls it when something was replaced. The kernel says when to look; nobody polls."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            raise CannotWatch(f"inotify: {os.strerror(ctypes.get_errno())}; raise fs.inotify.max_user_instances")
        directory = self._directory.path
        for path, events in (
            (directory, _LOST | _IN_ATTRIB),
            (self.path, _LOST | _IN_ATTRIB),
            (directory.parent, _LOST),  # what else happens to its files is nobody's business here
        ):
            libc.inotify_add_watch(fd, os.fsencode(path), events)

        def changed(_: int) -> None:
            os.read(fd, 65536)
            if self.replaced():
                lost()

        loop.add(fd, changed)

    def close(self) -> None:
        """Takes the name away, if it is still this socket's."""
        if self._inode and not self.replaced():
            self.path.unlink(missing_ok=True)
        self._directory.close()


@contextmanager
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


def connect(path: Path) -> socket.socket:
    """A connection to whoever listens there. Raises OSError when nobody does."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with address_of(path) as address:
            sock.connect(address)
    except BaseException:
        sock.close()
        raise
    return sock
