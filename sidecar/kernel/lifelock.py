"""Life locks: a file on which every process of an incarnation holds a read lock, so that the last one's death shows.

The lock is an OFD read lock on byte 0. It belongs to the open file description: forked children hold it too, for as
long as any of them has the descriptor, and it survives the server. The server asks with F_OFD_GETLK, which takes
nothing: probing with flock made processes that were just starting fail.

Rules:

* One file for each start of an engine, made anew, never named by the engine alone: a restarted namesake would
  keep its dead predecessor "alive" for ever. The server removes it, when it may go.
* A lock that was taken on a file that the path no longer names is worth nothing, so taking ends with that check.
* It can't be let go of by accident: the file is mapped, too, and a mapping keeps the lock when every descriptor is
  closed (`os.closerange` of a daemon, say). Only the end of a process frees it, or executing another program.
* It is one of three proofs, and no proof by itself: a process that is dying may have lost the lock and still have
  memory. The kernel takes descriptors and mappings away one after the other, in an order that no rule may count on.

`LifeLock` is what a member holds, `LifeProbe` what the server asks. They can't be one class: a probe's descriptor must
never hold a lock itself.
"""

import contextlib
import ctypes
import errno
import fcntl
import mmap
import os
import stat
import struct
import tempfile
from pathlib import Path
from typing import Self

from sidecar.kernel.durable import NO_REGULAR_FILE, regular

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux; l_pid must be 0 for OFD locks
_READ_LOCK = _FLOCK.pack(fcntl.F_RDLCK, os.SEEK_SET, 0, 1, 0)
_ANY_LOCK = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, 0, 1, 0)  # what a write lock would collide with: any other
_PROT_NONE = 0
_LIBC = ctypes.CDLL(None, use_errno=True)
_LIBC.mmap.restype = ctypes.c_void_p
_LIBC.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int, ctypes.c_int, ctypes.c_int, ctypes.c_long]
_LIBC.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_MAP_FAILED = ctypes.c_void_p(-1).value
_NO_OFD_LOCKS = (errno.EINVAL, errno.ENOLCK, errno.EOPNOTSUPP, errno.ENOSYS)


class LifeLockError(Exception):
    """A life lock could not be had."""


class LifeFileGone(LifeLockError):
    """The life file isn't there, or its path names another file by now."""


class LifeFileExists(LifeLockError):
    """There is a file of that name already: every incarnation needs a name of its own."""


class LocksUnsupported(LifeLockError):
    """This filesystem or kernel has no OFD locks."""


class NoLifeFile(OSError):
    """A descriptor of something else was shown as one."""


class LifeLock:
    """A member's hold on its incarnation's life file, until `close` or death, here and in every forked child."""

    def __init__(self, path: Path, fd: int) -> None:
        """Not called directly: `create` and `join` make them."""
        self.path = path
        self.fd = fd
        self.inode = _inode(fd)
        """Device and inode number of the life file."""
        self._mapped: int | None = None

    @property
    def mapped(self) -> bool:
        """This process can't let go of it while it lives, except by `close`."""
        return self._mapped is not None

    @classmethod
    def create(cls, directory: Path, name: str) -> Self:
        """Makes the life file of a new incarnation. It has its lock before it has its name: no server ever sees
        it unlocked and takes it for the file of one that is gone.
        """
        path = _path(directory, name)
        early = _path(directory, f".{name}.{os.getpid()}")
        try:
            fd = os.open(early, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except FileNotFoundError as error:
            raise LifeFileGone(f"{directory} isn't there; the lock server makes it when it starts") from error
        lock = cls(path, fd)
        try:
            _take_read_lock(path, fd)
            lock._map()
            os.link(early, path, follow_symlinks=False)
        except FileExistsError as error:
            lock.close()
            raise LifeFileExists(f"{path} exists already; a new start of an engine needs a new name") from error
        except FileNotFoundError as error:
            lock.close()
            raise LifeFileGone(f"{directory} was removed while {name} was being made in it") from error
        except BaseException:
            lock.close()
            raise
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(early)
        return lock

    @classmethod
    def join(cls, directory: Path, name: str) -> Self:
        """Locks the life file that another member of this incarnation has made."""
        path = _path(directory, name)
        fd = _open(path, os.O_RDWR)
        if fd is None:
            raise LifeFileGone(f"{path} isn't there; the incarnation that it stood for is over")
        return cls._lock(path, fd)

    @classmethod
    def _lock(cls, path: Path, fd: int) -> Self:
        lock = cls(path, fd)
        try:
            _take_read_lock(path, fd)
            lock._map()
            if not lock.same_file():
                raise LifeFileGone(f"{path} was removed or replaced while it was being locked")
        except BaseException:
            lock.close()
            raise
        return lock

    def same_file(self) -> bool:
        """The path still names the file that is locked."""
        return _names(self.path, self.inode)

    def _map(self) -> None:
        """No memory is used, and nothing can be read there: the mapping is a reference to the open file."""
        address = _LIBC.mmap(None, mmap.PAGESIZE, _PROT_NONE, mmap.MAP_SHARED, self.fd, 0)
        if address != _MAP_FAILED:  # a filesystem without mappings: the descriptor is all there is
            self._mapped = address

    def is_named(self, directory: Path) -> bool:
        """It is the file under its name in this directory."""
        return _names(directory / self.path.name, self.inode)

    def close(self) -> None:
        """Lets go, as far as this process is concerned. May be called again."""
        mapped, self._mapped = self._mapped, None
        if mapped is not None:
            _LIBC.munmap(mapped, mmap.PAGESIZE)
        fd, self.fd = self.fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LifeProbe:
    """The server's eye on a life file. It keeps that very file: a new one under the old name doesn't deceive it."""

    def __init__(self, path: Path, fd: int) -> None:
        """Not called directly: `open` makes them."""
        self.path = path
        self.inode = _inode(fd)
        """Device and inode number of the life file."""
        self._fd = fd

    @classmethod
    def open(cls, directory: Path, name: str) -> Self | None:
        """None when there is no such file."""
        path = _path(directory, name)
        fd = _open(path, os.O_RDONLY)
        return None if fd is None else cls(path, fd)

    @classmethod
    def again(cls, fd: int) -> Self:
        """An eye on an open life file, which may have no name any more. Takes nothing of what the descriptor holds.

        Another process sent it, so it is looked at first: opening a FIFO waits for a writer, and opening a file on
        which its owner has a lease waits for that owner.
        """
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise NoLifeFile(errno.EINVAL, "that is no life file")
        path = Path(f"/proc/self/fd/{fd}")
        return cls(path, os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def locked(self) -> bool:
        """A process holds a lock on this very file, wherever its path points by now."""
        try:
            answer = fcntl.fcntl(self._fd, fcntl.F_OFD_GETLK, _ANY_LOCK)
        except OSError as error:
            raise _unsupported(self.path, error) from error
        kind: int = _FLOCK.unpack(answer)[0]
        return kind != fcntl.F_UNLCK

    def close(self) -> None:
        """Disturbs no lock. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def check_directory(directory: Path) -> None:
    """Raises LocksUnsupported unless a lock in this directory is seen while it is held, and gone when it is closed.

    Some network filesystems accept the calls and keep no lock.
    """
    with (
        tempfile.TemporaryDirectory(prefix=".locks-", dir=directory) as scratch,
        LifeLock.create(Path(scratch), "probe") as lock,
        _probe_of(lock) as probe,
    ):
        seen = probe.locked()
        lock.close()
        if not seen or probe.locked():
            raise LocksUnsupported(f"{directory} is on a filesystem that accepts OFD locks and doesn't keep them")


def _probe_of(lock: LifeLock) -> LifeProbe:
    probe = LifeProbe.open(lock.path.parent, lock.path.name)
    if probe is None:
        raise LifeFileGone(f"{lock.path} was removed")
    return probe


def _take_read_lock(path: Path, fd: int) -> None:
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _READ_LOCK)
    except (BlockingIOError, PermissionError) as error:
        raise LifeLockError(f"{path}: a process holds a write lock on it, which none should") from error
    except OSError as error:
        raise _unsupported(path, error) from error


def _unsupported(path: Path, error: OSError) -> Exception:
    if error.errno not in _NO_OFD_LOCKS:
        return error
    return LocksUnsupported(f"{path}: no OFD locks here ({error.strerror}); use a local filesystem")


def _path(directory: Path, name: str) -> Path:
    """Names come over the wire: they may name a file in the directory and nothing else."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise ValueError(f"{name!r} can't be the name of a life file")
    return directory / name


def _open(path: Path, mode: int) -> int | None:
    """None when there is no such regular file. Never waits (a FIFO would) and never follows a link."""
    try:
        return regular(path, mode | os.O_NOFOLLOW)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        if error.errno in NO_REGULAR_FILE:
            return None
        raise


def _inode(fd: int) -> tuple[int, int]:
    status = os.fstat(fd)
    return status.st_dev, status.st_ino


def _names(path: Path, inode: tuple[int, int]) -> bool:
    try:
        status = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    return (status.st_dev, status.st_ino) == inode
