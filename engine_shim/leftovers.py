"""What a killed engine leaves in /dev/shm, and who made it.

Shared memory by name outlives a SIGKILL: Python's `psm_*`, vLLM's `vllm_dist_*`. A name doesn't say whose it is, and
the other engine has such files, too. So the kernel tells us when one appears (inotify), and we look at once whether a
process of *our* tree has it open or mapped. What was seen so is ours, and goes when the tree is proven gone; what
wasn't is nobody's business here. (Looking later, or by time and user, could take the other engine's.)

Not covered: a file whose maker closes it within the moment that looking takes, or is killed in it.
"""

import contextlib
import ctypes
import os
import struct
from collections.abc import Callable
from pathlib import Path

from sidecar.loop import Loop

SHM = Path("/dev/shm")
PREFIXES = ("psm_", "vllm_dist_")
MOST_UNKNOWN = 64
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_EVENT = struct.Struct("iIII")


class Leftovers:
    def __init__(self, tree: Callable[[], list[int]], directory: Path = SHM) -> None:
        """`tree`: the processes that are ours, now."""
        self._tree = tree
        self._directory = directory
        self._unknown: dict[str, int] = {}
        """Name -> inode of what has appeared, and whose isn't known."""
        self.ours: dict[str, int] = {}

    def watch(self, loop: Loop) -> bool:
        """False where the kernel won't tell: then nothing is cleaned up."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
        if fd < 0:
            return False
        if libc.inotify_add_watch(fd, os.fsencode(self._directory), _IN_CREATE | _IN_MOVED_TO) < 0:
            os.close(fd)
            return False
        loop.add(fd, lambda _: self._appeared(os.read(fd, 65536)))
        return True

    def _appeared(self, data: bytes) -> None:
        at = 0
        while at + _EVENT.size <= len(data):
            length = _EVENT.unpack_from(data, at)[3]
            at += _EVENT.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            if name.startswith(PREFIXES):
                if len(self._unknown) >= MOST_UNKNOWN:
                    del self._unknown[next(iter(self._unknown))]  # the oldest: by now it is somebody else's
                with contextlib.suppress(OSError):
                    self._unknown[name] = os.lstat(self._directory / name).st_ino
        self.look()

    def look(self) -> None:
        """Whose are those that have appeared? Nobody of ours may have one open *yet*, so those are looked at again."""
        if not self._unknown:
            return
        used = {str(self._directory / name): name for name in self._unknown}
        for pid in self._tree():
            for path in _files_of(pid, set(used)):
                name = used[path]
                if name in self._unknown:
                    self.ours[name] = self._unknown.pop(name)

    def remove(self) -> list[str]:
        """The tree is gone: so does what it left. Returns the names."""
        removed = []
        for name, inode in self.ours.items():
            path = self._directory / name
            with contextlib.suppress(OSError):
                if os.lstat(path).st_ino == inode:
                    path.unlink()
                    removed.append(name)
        self.ours.clear()
        self._unknown.clear()
        return removed


def _files_of(pid: int, wanted: set[str]) -> set[str]:
    """Which of these files the process has open or mapped."""
    found: set[str] = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                found.add(os.readlink(f"/proc/{pid}/fd/{fd}"))
    if wanted <= found:
        return wanted
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            path = line[line.find("/") :].rstrip("\n") if "/" in line else ""
            if path in wanted:
                found.add(path)
    return found & wanted
