"""Inodes and locks of the simulated kernel, and what a descriptor can name.

`OpenFile` is the base of everything that a descriptor can name; who holds it (descriptors, mappings, messages in
flight) is one count, as in Linux, and what it held is released when the count reaches nought. Next: filesystem.py
(paths), openfiles.py (sockets, pidfds, memory).
"""

import enum
import os
from typing import NamedTuple, Protocol


class Kind(enum.Enum):
    FILE = "file"
    DIRECTORY = "directory"
    SOCKET = "socket"
    SYMLINK = "symlink"


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
    __slots__ = (
        "closed",
        "data",
        "entries",
        "flock_owner",
        "kind",
        "listener",
        "number",
        "ranges",
        "removed",
        "target",
    )

    def __init__(self, number: int, kind: Kind) -> None:
        self.number = number
        self.kind = kind
        self.data = b""
        self.entries: dict[str, Inode] = {}
        self.ranges: list[HeldRange] = []
        self.flock_owner: OpenFile | None = None
        self.listener: OpenFile | None = None
        self.target = ""
        """Where a symlink leads."""
        self.removed = False
        """A directory that has no name any more: nothing can be made in it."""
        self.closed = False
        """A directory that no process may go through (mode 0)."""

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
    """A regular file or a directory that was opened. It names its inode for ever, whatever happens to the path."""

    __slots__ = ("inode",)

    def __init__(self, inode: Inode) -> None:
        super().__init__()
        self.inode = inode

    def release(self) -> None:
        self.inode.forget(self)
