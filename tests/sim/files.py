"""Paths, inodes and locks of the simulated kernel.

What a file system knows and nothing else: no processes, no clock, no sockets' contents. `OpenFile` is the base of
everything that a descriptor can name; who holds it (descriptors, mappings, messages in flight) is one count, as in
Linux, and what it held is released when the count reaches nought. Next: openfiles.py (sockets, pidfds, memory).
"""

import enum
import errno
import os
from typing import NamedTuple, Protocol


class Kind(enum.Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SOCKET = "socket"


class Lock(enum.Enum):
    READ = "read"
    WRITE = "write"
    NONE = "none"


class Wakes(Protocol):
    def wake(self) -> None: ...


def error(number: int, what: object = None) -> OSError:
    """The error that a real system call would raise (FileNotFoundError for ENOENT, and so on)."""
    return OSError(number, os.strerror(number), what)


class OpenFile:
    """An open file description: `references` counts descriptors, mappings and messages in flight alike."""

    __slots__ = ("references", "watchers")

    def __init__(self) -> None:
        self.references = 0
        self.watchers: list[Wakes] = []

    def hold(self) -> None:
        self.references += 1

    def drop(self) -> None:
        self.references -= 1
        if self.references == 0:
            self.release()

    def release(self) -> None:
        """The last reference is gone."""

    def readable(self) -> bool:
        return True

    def wake(self) -> None:
        for watcher in self.watchers:
            watcher.wake()


class HeldRange(NamedTuple):
    owner: OpenFile
    kind: Lock
    start: int
    end: int


class Inode:
    __slots__ = ("data", "entries", "flock_owner", "kind", "listener", "number", "ranges")

    def __init__(self, number: int, kind: Kind) -> None:
        self.number = number
        self.kind = kind
        self.data = b""
        self.entries: dict[str, Inode] = {}
        self.ranges: list[HeldRange] = []
        self.flock_owner: OpenFile | None = None
        self.listener: OpenFile | None = None

    def conflict(self, owner: OpenFile, kind: Lock, start: int, length: int) -> bool:
        """Would `owner` be refused? Its own ranges never stand in its way, and readers do not hinder readers."""
        end = start + length if length else 1 << 62
        for held in self.ranges:
            overlaps = held.owner is not owner and held.start < end and start < held.end
            if overlaps and Lock.WRITE in (kind, held.kind):
                return True
        return False

    def set_lock(self, owner: OpenFile, kind: Lock, start: int, length: int) -> None:
        end = start + length if length else 1 << 62
        kept: list[HeldRange] = []
        for held in self.ranges:
            if held.owner is not owner or held.end <= start or end <= held.start:
                kept.append(held)
                continue
            if held.start < start:
                kept.append(held._replace(end=start))
            if end < held.end:
                kept.append(held._replace(start=end))
        if kind is not Lock.NONE:
            kept.append(HeldRange(owner, kind, start, end))
        self.ranges = kept

    def forget(self, owner: OpenFile) -> None:
        if self.ranges:
            self.ranges = [held for held in self.ranges if held.owner is not owner]
        if self.flock_owner is owner:
            self.flock_owner = None


class File(OpenFile):
    """A regular file or a directory that somebody opened. It names its inode for ever, whatever happens to the path."""

    __slots__ = ("inode",)

    def __init__(self, inode: Inode) -> None:
        super().__init__()
        self.inode = inode

    def release(self) -> None:
        self.inode.forget(self)


class FileSystem:
    """Absolute paths. Inode numbers are never used twice within a boot, as on tmpfs."""

    __slots__ = ("disk_errno", "last_number", "root")

    def __init__(self) -> None:
        self.disk_errno = 0  # ENOSPC, EROFS or EIO: whatever creates or writes fails with it
        self.last_number = 1
        self.root = Inode(1, Kind.DIRECTORY)

    def find(self, path: str) -> Inode:
        inode = self.root
        for name in path.split("/"):
            if not name:
                continue
            if inode.kind is not Kind.DIRECTORY:
                raise error(errno.ENOTDIR, path)
            found = inode.entries.get(name)
            if found is None:
                raise error(errno.ENOENT, path)
            inode = found
        return inode

    def directory_of(self, path: str) -> tuple[Inode, str]:
        parent, _, name = path.rstrip("/").rpartition("/")
        inode = self.find(parent)
        if inode.kind is not Kind.DIRECTORY:
            raise error(errno.ENOTDIR, path)
        return inode, name

    def create(self, path: str, kind: Kind) -> Inode:
        directory, name = self.directory_of(path)
        if name in directory.entries:
            raise error(errno.EADDRINUSE if kind is Kind.SOCKET else errno.EEXIST, path)
        if self.disk_errno:
            raise error(self.disk_errno, path)
        self.last_number += 1
        inode = directory.entries[name] = Inode(self.last_number, kind)
        return inode

    def open(self, path: str, *, create: bool, exclusive: bool) -> File:
        directory, name = self.directory_of(path)
        inode = directory.entries.get(name)
        if inode is None:
            if not create:
                raise error(errno.ENOENT, path)
            inode = self.create(path, Kind.FILE)
        elif create and exclusive:
            raise error(errno.EEXIST, path)
        if inode.kind is Kind.SOCKET:
            raise error(errno.ENXIO, path)
        if inode.kind is Kind.DIRECTORY:
            raise error(errno.EISDIR, path)
        return File(inode)

    def unlink(self, path: str) -> None:
        directory, name = self.directory_of(path)
        inode = directory.entries.get(name)
        if inode is None:
            raise error(errno.ENOENT, path)
        if inode.kind is Kind.DIRECTORY:
            raise error(errno.EISDIR, path)
        del directory.entries[name]

    def rename(self, source: str, target: str) -> None:
        source_directory, source_name = self.directory_of(source)
        target_directory, target_name = self.directory_of(target)
        inode = source_directory.entries.get(source_name)
        if inode is None:
            raise error(errno.ENOENT, source)
        there = target_directory.entries.get(target_name)
        if there is inode:
            return
        if there is not None:
            if there.kind is Kind.DIRECTORY and inode.kind is not Kind.DIRECTORY:
                raise error(errno.EISDIR, target)
            if inode.kind is Kind.DIRECTORY and there.kind is not Kind.DIRECTORY:
                raise error(errno.ENOTDIR, target)
            if there.entries:
                raise error(errno.ENOTEMPTY, target)
        del source_directory.entries[source_name]
        target_directory.entries[target_name] = inode

    def make_directories(self, path: str) -> None:
        """mkdir -p"""
        made = ""
        for name in path.split("/"):
            if name:
                made += "/" + name
                directory, _ = self.directory_of(made)
                if name not in directory.entries:
                    self.create(made, Kind.DIRECTORY)

    def remove_tree(self, path: str) -> None:
        """rm -rf: open files live on, their paths do not."""
        directory, name = self.directory_of(path)
        inode = directory.entries.pop(name, None)
        if inode is not None:
            self._empty(inode)

    def _empty(self, inode: Inode) -> None:
        for child in inode.entries.values():
            self._empty(child)
        inode.entries.clear()
