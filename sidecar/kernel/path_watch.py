"""Where a path leads, and the moment at which that may have changed.

A path is not a directory: an ancestor is renamed, a symlink switched, something mounted on top, and newcomers are led
elsewhere while programs that were there before notice nothing. So a directory is held open, and compared with what its
path names now (`OpenDirectory.leads`). When to compare, the kernel says (`PathWatch`): every directory and every
symlink on the way is watched, and the table of mounts. It doesn't always say so (there are no inotify instances left;
an empty directory that is held open was removed; two nested epolls swallow what is told of mounts): a program that must
know looks every second, too.

What this file may not do: decide what follows. Who uses it: `sockets.py` and `gms/shell/server.py` (servers),
`evidence/shell/session.py` (clients), `engine_shim/shell/address.py`.
"""

import contextlib
import ctypes
import enum
import errno
import os
import select
import stat
from collections import deque
from pathlib import Path

_IN_ATTRIB, _IN_MOVED_TO, _IN_CREATE, _IN_DELETE_SELF, _IN_MOVE_SELF = 0x4, 0x80, 0x100, 0x400, 0x800
_IN_DONT_FOLLOW = 0x02000000
# What is held open loses its name without being deleted: its attributes change then.
_GONE = _IN_DELETE_SELF | _IN_MOVE_SELF | _IN_ATTRIB | _IN_DONT_FOLLOW
_MOST_LINKS = 40  # the kernel's own bound
_NOWHERE = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP)


class Leads(enum.Enum):
    """Where a path leads, as a program sees it that has been there."""

    HERE = "here"
    ELSEWHERE = "elsewhere"
    NOWHERE = "nowhere"
    """There is nothing, or a circle of symlinks."""
    UNKNOWN = "unknown"
    """It can't be looked at: a directory on the way may not be entered any more."""


def make_private_directory(path: Path) -> bool:
    """Makes it, and every directory above it that isn't there, for this user alone. True if it is new.

    (`mkdir(mode, parents=True)` gives the parents the umask's mode: the first program to come decided which users may
    look.)
    """
    missing = [path]
    while not missing[-1].parent.exists() and missing[-1].parent != missing[-1]:
        missing.append(missing[-1].parent)
    new = False
    for directory in reversed(missing):
        try:
            directory.mkdir(mode=0o700)
            new = True
        except FileExistsError:
            new = False
            if not directory.is_dir():
                raise
    return new


class OpenDirectory:
    """A directory, held open: that very one, whatever its path names later. Raises OSError when it isn't there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)

    @property
    def inside(self) -> Path:
        """A path to this very directory, whatever its own path names by now; good while it is open."""
        return Path(f"/proc/thread-self/fd/{self._fd}")

    def is_same(self, other: "OpenDirectory") -> bool:
        """Both are open on one directory."""
        return os.path.samestat(os.fstat(self._fd), os.fstat(other._fd))

    def leads(self) -> Leads:
        """Where its path leads now. Never raises."""
        try:
            named = os.stat(self.path)
        except OSError as error:
            return Leads.NOWHERE if error.errno in _NOWHERE else Leads.UNKNOWN
        ours = os.fstat(self._fd)
        if (named.st_dev, named.st_ino) == (ours.st_dev, ours.st_ino) and ours.st_nlink > 0:
            return Leads.HERE
        return Leads.ELSEWHERE if stat.S_ISDIR(named.st_mode) else Leads.NOWHERE

    def replaced(self) -> bool:
        """Its path is known to lead elsewhere, or nowhere."""
        return self.leads() in (Leads.ELSEWHERE, Leads.NOWHERE)

    def close(self) -> None:
        """May be called again."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)


class CannotWatch(Exception):
    """The kernel won't say when a name is gone; the text says which limit to raise, if one is the reason."""


class PathWatch:
    """Its descriptors become ready when a path may lead elsewhere: `look` then, and compare."""

    def __init__(self, path: Path, *, arrivals: bool = False) -> None:
        """An absolute path. `arrivals`: also when something comes into it. Raises CannotWatch."""
        self.path = path
        self._arrivals = arrivals
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._inotify = self._libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if self._inotify < 0:
            why = os.strerror(ctypes.get_errno())
            raise CannotWatch(f"inotify: {why}; raise fs.inotify.max_user_instances")
        self._mounts = -1
        with contextlib.suppress(OSError):  # no /proc
            self._mounts = os.open("/proc/self/mountinfo", os.O_RDONLY | os.O_CLOEXEC)
        self._watched: dict[int, str] = {}
        self.why_not = ""
        """Why the kernel doesn't tell of everything on the way, as of the last look. Empty if it does."""
        self.blind = False
        """Something on the way is there and can't be watched: a directory may be entered and not read."""
        self.look()
        if self.why_not:
            self.close()
            raise CannotWatch(self.why_not)

    def descriptors(self) -> list[tuple[int, int]]:
        """And what epoll is to wait for on each."""
        found = [(self._inotify, select.EPOLLIN)]
        return [*found, (self._mounts, select.EPOLLPRI)] if self._mounts >= 0 else found

    def look(self) -> None:
        """Reads what has happened, and watches what is on the way now."""
        inotify = self._inotify
        if inotify < 0:
            return
        with contextlib.suppress(BlockingIOError):
            while os.read(inotify, 65536):
                continue
        now: dict[int, str] = {}
        self.why_not, self.blind = "", False
        chain = _on_the_way(self.path)
        for number, name in enumerate(chain):
            last = number + 1 == len(chain)
            missing_next = self._arrivals if last else not os.path.lexists(chain[number + 1])
            arrivals = _IN_CREATE | _IN_MOVED_TO if missing_next else 0
            watch = self._libc.inotify_add_watch(self._inotify, os.fsencode(name), _GONE | arrivals)
            if watch >= 0:
                now[watch] = name
            elif (why := ctypes.get_errno()) == errno.ENOSPC:
                self.why_not = "inotify: no watches are left; raise fs.inotify.max_user_watches"
            elif why not in _NOWHERE:
                self.blind = True
        for watch in self._watched.keys() - now.keys():
            self._libc.inotify_rm_watch(self._inotify, watch)
        self._watched = now

    def close(self) -> None:
        """May be called again."""
        descriptors, self._inotify, self._mounts = (self._inotify, self._mounts), -1, -1
        for fd in descriptors:
            if fd >= 0:
                os.close(fd)


def _on_the_way(path: Path) -> list[str]:
    """Every name that is looked up on the way: directories, symlinks, and what symlinks lead through."""
    names = deque(part for part in str(path).split("/") if part not in ("", "."))
    here, found, links = "/", ["/"], 0
    while names:
        name = names.popleft()
        if name == "..":
            here = os.path.dirname(here)
            continue
        there = os.path.join(here, name)
        found.append(there)
        try:
            target = os.readlink(there)
        except OSError:
            here = there
            continue
        links += 1
        if links > _MOST_LINKS:
            break
        here = "/" if target.startswith("/") else here
        names.extendleft(reversed([part for part in target.split("/") if part not in ("", ".")]))
    return found
