"""Files that survive: written whole or not at all, and still there after the power went.

`DurableFile` is one small file that is replaced (temporary, fsync, rename, fsync of the directory). `DirectoryLock`
sees to it that one process writes in a directory; a DurableFile relies on that, and names its temporary without a
random part, so that a crash leaves at most one, which the next write replaces.

What this file may not do: know what is in the file, or retry. Locks that show who lives: `lifelock.py`.
"""

import contextlib
import fcntl
import os
from datetime import UTC, datetime
from pathlib import Path
from typing import Self


class AlreadyLocked(Exception):
    """Another process has this directory."""

    def __init__(self, path: Path, pid: int | None) -> None:
        super().__init__(f"{path} is locked by {f'process {pid}' if pid else 'another process'}; stop it first")
        self.path = path
        self.pid = pid


class DurableFile:
    """One file in a directory that this process has for itself."""

    def __init__(self, directory: Path, name: str) -> None:
        self.directory = directory
        self.path = directory / name
        self._name = name
        self._temporary = name + ".tmp"

    def read(self) -> bytes | None:
        """What is in it; None when there is no such file."""
        try:
            return self.path.read_bytes()
        except FileNotFoundError:
            return None

    def write(self, data: bytes) -> None:
        """Replaces the contents. When this returns they are on the disk; before, the old ones are.

        Raises OSError and leaves nothing behind. Only when the last step (fsync of the directory) fails are the new
        contents in place and not known to be durable: write again.
        """
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            try:
                self._write_temporary(directory, data)
                os.rename(self._temporary, self._name, src_dir_fd=directory, dst_dir_fd=directory)
            except BaseException:
                _unlink_if_there(self._temporary, directory)
                raise
            os.fsync(directory)
        finally:
            os.close(directory)

    def _write_temporary(self, directory: int, data: bytes) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW
        fd = os.open(self._temporary, flags, 0o600, dir_fd=directory)
        try:
            rest = memoryview(data)
            while rest:
                rest = rest[os.write(fd, rest) :]
            os.fsync(fd)
        finally:
            os.close(fd)

    def set_aside(self, now: datetime | None = None) -> Path:
        """Renames a file that can't be read, so that it can be looked into; returns where it is. Overwrites nothing."""
        stamp = (now or datetime.now(UTC)).astimezone(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
        aside = self.directory / f"{self._name}.unreadable-{stamp}"
        number = 1
        while os.path.lexists(aside):
            number += 1
            aside = self.directory / f"{self._name}.unreadable-{stamp}.{number}"
        os.rename(self.path, aside)
        directory = os.open(self.directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(directory)
        finally:
            os.close(directory)
        return aside


class DirectoryLock:
    """One process per directory, by flock on a file in it. The file stays; the lock goes with the process."""

    def __init__(self, directory: Path, name: str) -> None:
        self.path = directory / name
        self._fd = -1

    def acquire(self) -> Self:
        """Raises AlreadyLocked, which knows the pid that the other one wrote."""
        while self._fd < 0:
            fd = os.open(self.path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
            try:
                if self._lock(fd):
                    self._fd = fd
            finally:
                if self._fd != fd:
                    os.close(fd)
        return self

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
        """The path still names the file that is locked: nobody removed it and let another process in."""
        try:
            ours, named = os.fstat(self._fd if fd is None else fd), os.stat(self.path, follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return (ours.st_dev, ours.st_ino) == (named.st_dev, named.st_ino)

    def close(self) -> None:
        """Lets go. May be called again."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __enter__(self) -> Self:
        return self.acquire()

    def __exit__(self, *_: object) -> None:
        self.close()


def _unlink_if_there(name: str, directory: int) -> None:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(name, dir_fd=directory)
