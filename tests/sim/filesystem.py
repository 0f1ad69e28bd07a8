"""Paths of the simulated kernel: where they lead, and that this may change.

What a file system knows and nothing else: no processes, no clock. A directory can be moved, be reached through a
symlink, and be covered by a mount; a process that holds it open still has that very one. Inodes and locks: files.py.
"""

import contextlib
import errno
from collections import deque

from tests.sim.files import File, Inode, Kind, error

MOST_LINKS = 40


class Disk:
    """What every view of the file system shares."""

    __slots__ = ("errno", "last_number", "layout")

    def __init__(self) -> None:
        self.errno = 0  # ENOSPC, EROFS or EIO: whatever creates or writes fails with it
        self.last_number = 1
        self.layout = 0  # grows when a path may lead elsewhere: what was found before is looked up anew


class FileSystem:
    """Absolute paths as one mount namespace sees them, and paths that begin at a directory that is held open.

    Inode numbers are never used twice within a boot, as on tmpfs. A directory can be moved, be reached through a
    symlink, and be covered by a mount: then its path leads elsewhere, and a process that holds it open still has it.
    """

    __slots__ = ("_found", "_found_in", "disk", "mounts", "root")

    def __init__(self) -> None:
        self.disk = Disk()
        self.root = Inode(1, Kind.DIRECTORY)
        self.mounts: dict[Inode, Inode] = {}
        """What is mounted on a directory, here."""
        self._found: dict[tuple[str, Inode | None], Inode] = {}
        self._found_in = -1

    def another_view(self) -> "FileSystem":
        """A mount namespace of its own: what is mounted in one from now on the other doesn't see."""
        view = FileSystem()
        view.disk, view.root, view.mounts = self.disk, self.root, dict(self.mounts)
        return view

    @property
    def disk_errno(self) -> int:
        return self.disk.errno

    @disk_errno.setter
    def disk_errno(self, number: int) -> None:
        self.disk.errno = number

    # Paths

    def find(self, path: str, at: Inode | None = None, *, follow: bool = True) -> Inode:
        """`at`: where a relative path begins. `follow`: a symlink at the end, too."""
        directory, name = self.directory_of(path, at)
        if not name:
            return directory
        return self._walk(directory, [name], path, follow=follow)

    def directory_of(self, path: str, at: Inode | None = None) -> tuple[Inode, str]:
        parent, slash, name = path.rstrip("/").rpartition("/")
        if not slash and at is None:
            raise error(errno.ENOENT, path)  # no process here has a working directory
        if self._found_in != self.disk.layout:
            self._found.clear()
            self._found_in = self.disk.layout
        known = self._found.get((parent, at))
        if known is None:
            start = at if at is not None and not path.startswith("/") else self.root
            known = self._walk(start, parent.split("/"), path)
            if known.kind is not Kind.DIRECTORY:
                raise error(errno.ENOTDIR, path)
            self._found[parent, at] = known
        return known, name

    def real_path(self, path: str) -> str:
        """Without symlinks. What isn't there is taken as it is named."""
        seen: list[str] = []
        with contextlib.suppress(OSError):
            self._walk(self.root, path.split("/"), path, seen=seen)
        return "/" + "/".join(seen)

    def _walk(
        self, start: Inode, way: list[str], path: str, *, follow: bool = True, seen: list[str] | None = None
    ) -> Inode:
        inode, links = start, 0
        names = deque(name for name in way if name)
        while names:
            name = names.popleft()
            if inode.kind is not Kind.DIRECTORY:
                raise error(errno.ENOTDIR, path)
            if inode.closed:
                raise error(errno.EACCES, path)
            found = inode.entries.get(name)
            if found is None:
                raise error(errno.ENOENT, path)
            if found.kind is Kind.SYMLINK and (names or follow):
                links += 1
                if links > MOST_LINKS:
                    raise error(errno.ELOOP, path)
                if found.target.startswith("/"):
                    inode = self.root
                    if seen is not None:
                        seen.clear()
                names.extendleft(reversed([name for name in found.target.split("/") if name]))
                continue
            while found in self.mounts:
                found = self.mounts[found]
            inode = found
            if seen is not None:
                seen.append(name)
        return inode

    # Files

    def create(self, path: str, kind: Kind, at: Inode | None = None) -> Inode:
        directory, name = self.directory_of(path, at)
        if directory.closed:
            raise error(errno.EACCES, path)
        if name in directory.entries:
            raise error(errno.EADDRINUSE if kind is Kind.SOCKET else errno.EEXIST, path)
        if directory.removed:
            raise error(errno.ENOENT, path)
        if self.disk_errno:
            raise error(self.disk_errno, path)
        inode = directory.entries[name] = self._new(kind)
        return inode

    def _new(self, kind: Kind) -> Inode:
        self.disk.last_number += 1
        return Inode(self.disk.last_number, kind)

    def open(self, path: str, *, create: bool, exclusive: bool, at: Inode | None = None) -> File:
        directory, name = self.directory_of(path, at)
        if create and exclusive and name in directory.entries:
            raise error(errno.EEXIST, path)
        try:
            inode = self.find(path, at)
        except FileNotFoundError:
            if not create:
                raise
            inode = self.create(path, Kind.FILE, at)
        if inode.kind is Kind.SOCKET:
            raise error(errno.ENXIO, path)
        if inode.kind is Kind.DIRECTORY:
            raise error(errno.EISDIR, path)
        return File(inode)

    def open_directory(self, path: str) -> File:
        inode = self.find(path)
        if inode.kind is not Kind.DIRECTORY:
            raise error(errno.ENOTDIR, path)
        if inode.closed:
            raise error(errno.EACCES, path)
        return File(inode)

    def unlink(self, path: str, at: Inode | None = None) -> None:
        directory, name = self.directory_of(path, at)
        inode = self.find(path, at, follow=False)
        if inode.kind is Kind.DIRECTORY:
            raise error(errno.EISDIR, path)
        del directory.entries[name]
        if inode.kind is Kind.SYMLINK:
            self.disk.layout += 1

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
            there.removed = there.kind is Kind.DIRECTORY
        del source_directory.entries[source_name]
        target_directory.entries[target_name] = inode
        if inode.kind in (Kind.DIRECTORY, Kind.SYMLINK):
            self.disk.layout += 1

    def exchange(self, one: str, other: str) -> None:
        """RENAME_EXCHANGE: two files change names in one step."""
        first, first_name = self.directory_of(one)
        second, second_name = self.directory_of(other)
        if first_name not in first.entries or second_name not in second.entries:
            raise error(errno.ENOENT, other)
        first.entries[first_name], second.entries[second_name] = (
            second.entries[second_name],
            first.entries[first_name],
        )
        if {first.entries[first_name].kind, second.entries[second_name].kind} != {Kind.FILE}:
            self.disk.layout += 1

    # Directories, symlinks and mounts

    def make_directories(self, path: str) -> None:
        """mkdir -p"""
        made = ""
        for name in path.split("/"):
            if name:
                made += "/" + name
                directory, _ = self.directory_of(made)
                if name not in directory.entries:
                    self.create(made, Kind.DIRECTORY)

    def symlink(self, target: str, path: str) -> None:
        self.create(path, Kind.SYMLINK).target = target
        self.disk.layout += 1

    def mount(self, path: str) -> None:
        """A new tmpfs over a directory, in this mount namespace."""
        covered = self.find(path)
        if covered.kind is not Kind.DIRECTORY:
            raise error(errno.ENOTDIR, path)
        self.mounts[covered] = self._new(Kind.DIRECTORY)
        self.disk.layout += 1

    def unmount(self, path: str) -> None:
        """What is mounted there goes away, for a process that comes by the path."""
        top = self.find(path)
        below = next((covered for covered, over in self.mounts.items() if over is top), None)
        if below is None:
            raise error(errno.EINVAL, path)
        del self.mounts[below]
        self.disk.layout += 1

    def close_directory(self, path: str, *, closed: bool) -> None:
        """chmod 0: no process gets through it by a path."""
        self.find(path).closed = closed
        self.disk.layout += 1

    def remove_tree(self, path: str) -> None:
        """rm -rf: open files live on, their paths do not."""
        directory, name = self.directory_of(path)
        inode = directory.entries.pop(name, None)
        if inode is not None:
            self._empty(inode)
        self.disk.layout += 1

    def empty_directory(self, path: str) -> None:
        """rm -rf PATH/*"""
        self._empty(self.find(path))
        self.find(path).removed = False
        self.disk.layout += 1

    def _empty(self, inode: Inode) -> None:
        for child in inode.entries.values():
            self._empty(child)
        inode.entries.clear()
        inode.removed = inode.kind is Kind.DIRECTORY
