"""Files that survive: written whole or not at all, and still there after the power went.

`DurableFile` is one small file that is replaced. What is new is written into a spare file beside it, which then changes
names with it: so a full disk (or one without inodes) doesn't keep anything from being written, as long as it isn't
larger than what was there before. `DirectoryLock` sees to it that one process writes in a directory; a DurableFile
relies on that.

What this file may not do: know what is in the file, or retry. Locks that show who lives: `lifelock.py`.
"""

import contextlib
import ctypes
import errno
import fcntl
import os
import stat
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Self

MOST_BYTES = 16 << 20
_BLOCK = 4096
_RENAME_EXCHANGE = 2
NO_REGULAR_FILE = (errno.EINVAL, errno.ELOOP, errno.ENXIO, errno.EISDIR)
"""With these `regular` refuses a FIFO, a link (O_NOFOLLOW), a socket and a directory."""
_NO_EXCHANGE = (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP)


class AlreadyLocked(Exception):
    """Another process has this directory."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path} is locked by {f'process {pid}' if pid else 'another process'}; stop it first")
        self.path = path
        self.pid = pid


@contextlib.contextmanager
def closing(fd: int) -> Iterator[int]:
    """A descriptor, until this is over."""
    try:
        yield fd
    finally:
        os.close(fd)


def regular(path: Path | str, flags: int, dir_fd: int | None = None) -> int:
    """A descriptor of a regular file; an `opener`, too. Never waits for what has been put in its place (a FIFO would):
    raises OSError.
    """
    fd = os.open(path, flags | os.O_CLOEXEC | os.O_NONBLOCK, 0o600, dir_fd=dir_fd)
    if stat.S_ISREG(os.fstat(fd).st_mode):
        return fd
    os.close(fd)
    raise OSError(errno.EINVAL, "it is no regular file")


def read(path: Path, most_bytes: int = MOST_BYTES) -> bytes:
    """What is in a regular file. Raises OSError, for one that is far too large as well."""
    with open(path, "rb", buffering=0, opener=regular) as file:
        size = os.fstat(file.fileno()).st_size
        if size > most_bytes:
            raise OSError(errno.EFBIG, f"it has {size} bytes")
        return file.read()


class DurableFile:
    """One file in a directory that this process has for itself."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.path = directory / name
        self._name = name
        self._spare = f"{name}.spare"
        self._second_spare = f"{name}.spare-2"
        self._blocks = 0
        """Blocks that the file in place is known to have. It becomes the next spare when it is replaced."""
        self._in_place = False

    def read(self) -> bytes | None:
        """What is in it; None when there is no such file. Raises OSError for what is no file, or is far too large."""
        try:
            return read(self.path)
        except FileNotFoundError:
            return None

    def reserve(self) -> None:
        """Sees to it that there is room for the next writes. Raises OSError where there is none."""
        with closing(self._open_directory()) as directory:
            self._in_place = self.path.exists()
            if not self._in_place:  # the first write takes the spare away: it leaves another
                self._keep_room(directory, _BLOCK)
                os.rename(self._spare, self._second_spare, src_dir_fd=directory, dst_dir_fd=directory)
            self._keep_room(directory, _BLOCK)

    def write(self, data: bytes) -> None:
        """Replaces the contents. When this returns they are on the disk; before, the old ones are.

        Raises OSError; then the old contents are there as before. Only when the last step (fsync of the directory)
        fails are the new contents in place and not known to be durable: write again.
        """
        with closing(self._open_directory()) as directory:
            self._write_spare(directory, data)
            self._change_names(directory)
            self._in_place = True
            os.fsync(directory)
            before, self._blocks = self._blocks, _blocks(data)
            if before < self._blocks:
                with contextlib.suppress(OSError):  # what has no room says so when it is needed
                    self._keep_room(directory, len(data))

    def notice_deleted(self) -> bool:
        """True once, after the file was in its place and is gone."""
        deleted = self._in_place and not self.path.exists()
        self._in_place = self._in_place and not deleted
        return deleted

    def _open_directory(self) -> int:
        return os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    def _write_spare(self, directory: int, data: bytes) -> None:
        with closing(self._open_spare(directory)) as fd:
            done = 0
            while done < len(data):
                done += os.pwrite(fd, data[done:], done)
            os.ftruncate(fd, len(data))
            os.fsync(fd)

    def _open_spare(self, directory: int) -> int:
        """A regular file, whatever has been put in its place."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
        try:
            return regular(self._spare, flags, directory)
        except OSError as error:
            if error.errno not in NO_REGULAR_FILE:
                raise
        try:
            os.unlink(self._spare, dir_fd=directory)
        except IsADirectoryError:  # whatever is in it is kept
            aside = f"{self._spare}.aside-{time.time_ns()}"
            os.rename(self._spare, aside, src_dir_fd=directory, dst_dir_fd=directory)
        return regular(self._spare, flags | os.O_EXCL, directory)

    def _change_names(self, directory: int) -> None:
        """What was in place becomes the spare."""
        error = _exchange(directory, self._spare, self._name)
        if error == errno.ENOENT or error in _NO_EXCHANGE:
            os.rename(self._spare, self._name, src_dir_fd=directory, dst_dir_fd=directory)
            with contextlib.suppress(FileNotFoundError):
                os.rename(self._second_spare, self._spare, src_dir_fd=directory, dst_dir_fd=directory)
        elif error:
            raise OSError(error, os.strerror(error))

    def _keep_room(self, directory: int, size: int) -> None:
        """The spare has blocks for so much. (A file has whole blocks: what is cut off within one leaves it.)"""
        with closing(self._open_spare(directory)) as fd:
            os.posix_fallocate(fd, 0, max(size, _BLOCK))

    def newest_aside(self) -> str:
        """The name of the newest file that was set aside, in ASCII; empty where none was. With no file in place it is
        still the last word: the process that set it aside has written nothing since.
        """
        asides = sorted(path.name for path in self.directory.glob(f"{self._name}.unreadable-*"))
        return ascii(asides[-1])[1:-1] if asides else ""

    def set_aside(self, now: datetime | None = None) -> Path:
        """Renames a file that can't be read, so that it can be looked into; returns where it is. Overwrites nothing."""
        stamp = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self.directory / f"{self._name}.unreadable-{stamp}"
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = self.directory / f"{self._name}.unreadable-{stamp}.{number}"
        os.rename(self.path, aside)
        with closing(self._open_directory()) as directory:
            os.fsync(directory)
        return aside


class DirectoryLock:
    """One process per directory, by flock on a file in it. The file stays; the lock goes with the process."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self._fd = -1

    def acquire(self, patience_s: float = 0.0) -> Self:
        """Raises AlreadyLocked, which knows the pid that the other one wrote. `patience_s`: one that was killed needs a
        moment to end.
        """
        end = time.monotonic() + patience_s
        while patience_s and time.monotonic() < end:
            with contextlib.suppress(AlreadyLocked):
                return self.acquire()
            time.sleep(0.01)
        try:
            while self._fd < 0:
                self._open_and_lock()
        except OSError as error:  # which file, too: not every call says that
            raise OSError(error.errno, error.strerror, str(self.path)) from None
        return self

    def _open_and_lock(self) -> None:
        fd = regular(self.path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW)
        try:
            if self._lock(fd):
                self._fd = fd
        finally:
            if self._fd != fd:
                os.close(fd)

    def _lock(self, fd: int) -> bool:
        """False when the file was replaced while it was being locked."""
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            written = os.pread(fd, 20, 0).strip()
            raise AlreadyLocked(self.path, int(written) if written.isdigit() else None) from error
        if not self.holds(fd):
            return False
        os.ftruncate(fd, 0)
        os.pwrite(fd, f"{os.getpid()}\n".encode(), 0)
        return True

    def holds(self, fd: int | None = None) -> bool:
        """The path still names the file that is locked: it wasn't removed, which would let another process in."""
        try:
            ours, named = os.fstat(self._fd if fd is None else fd), os.stat(self.path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)

    def close(self) -> None:
        """Lets go. May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.close()


@contextlib.contextmanager
def nobody_has(directory: Path, name: str) -> Iterator[bool]:
    """Whether no process has that lock; and none gets it meanwhile. A lock that was never there is not made, and
    nothing is written: it may be another program's file.
    """
    try:
        fd = regular(directory / name, os.O_RDWR | os.O_NOFOLLOW)
    except OSError as error:
        yield isinstance(error, FileNotFoundError | NotADirectoryError)
        return
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        free = True
    except OSError:
        free = False
    try:
        yield free
    finally:
        os.close(fd)


def _blocks(data: bytes) -> int:
    return -(-len(data) // _BLOCK)


_LIBC = ctypes.CDLL(None, use_errno=True)


def _exchange(directory: int, one: str, other: str) -> int:
    """Two files change names, in one step. Returns the error, 0 for none."""
    call = getattr(_LIBC, "renameat2", None)
    if call is None:
        return errno.ENOSYS
    done = call(directory, os.fsencode(one), directory, os.fsencode(other), _RENAME_EXCHANGE)
    return 0 if done == 0 else ctypes.get_errno()
