"""Removes what a killed engine leaves in /dev/shm.

Named shared memory outlives a SIGKILL: Python's `psm_*` and `sem.mp-*`, vLLM's `vllm_dist_*`. A name doesn't say whose
it is, and the other engine has such files, too. So the kernel tells us when one appears (inotify), and we look at once
whether a process of *our* engine has it open or mapped. A file that was seen so is ours and is removed when the engine
is proven gone; any other file stays. (Looking later, or by time and user, could remove the other engine's.) Files are
told apart by inode: a semaphore gets its final name when it is mapped already, under another.

The list is kept in a file beside the shim's socket. If the shim itself is killed, its successor reads it.

Not covered: a file whose maker closes it, or is killed, within the moment that the look takes.
"""

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path

from sidecar.kernel import durable

SHM = Path("/dev/shm")
PREFIXES = ("psm_", "sem.mp-", "vllm_dist_")
AGAIN_MS = (10, 50, 250, 1000, 5000)
"""How long after the newest file those whose maker wasn't found are looked at again."""
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_EVENT = struct.Struct("iIII")


class ShmCleanup:
    """A thread of its own looks: reading what a process has mapped takes as long as that process is busy mapping, and
    the shim's loop must not wait for the engine.
    """

    def __init__(self, tree: Callable[[], list[int]], notes: Path, directory: Path = SHM) -> None:
        """`tree` returns the processes that are ours at the moment. `notes` is the file that keeps the list."""
        self._tree = tree
        self._notes = notes
        self._directory = directory
        self._turn = threading.Lock()
        """For the two dictionaries below. No thread looks at processes while holding it."""
        self._unknown: dict[str, int] = {}
        """Name -> inode of the files that have appeared and whose maker isn't known."""
        self.ours: dict[str, int] = self._read()

    def watch(self) -> bool:
        """Begins to watch. False where the kernel won't tell; nothing is cleaned up then."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(os.O_CLOEXEC)
        if fd < 0:
            return False
        if libc.inotify_add_watch(fd, os.fsencode(self._directory), _IN_CREATE | _IN_MOVED_TO) < 0:
            os.close(fd)
            return False
        threading.Thread(target=self._run, args=(fd,), name="shm-cleanup", daemon=True).start()
        return True

    def remove(self) -> list[str]:
        """Removes what the engine has left, now that it is gone. Returns the names."""
        with self._turn:
            removed = [name for name, inode in self.ours.items() if self._is_there(name, inode)]
            for name in removed:
                (self._directory / name).unlink(missing_ok=True)
            self._unknown.clear()
            if self.ours:
                self.ours.clear()
                self._write()
        return removed

    def keep_list(self) -> None:
        """Writes the list again if it was removed."""
        with self._turn:
            if self.ours and not self._notes.exists():
                self._write()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self, fd: int) -> None:
        poll = select.poll()
        poll.register(fd, select.POLLIN)
        looks = 0
        while True:
            wait_ms = AGAIN_MS[looks] if self._unknown and looks < len(AGAIN_MS) else None
            if poll.poll(wait_ms):
                self._appeared(os.read(fd, 65536))
                looks = 0
            else:
                looks += 1
            self._look()
            if looks == len(AGAIN_MS):  # after so long they are taken for another program's
                with self._turn:
                    self._unknown.clear()

    def _appeared(self, data: bytes) -> None:
        at = 0
        while at + _EVENT.size <= len(data):
            length = _EVENT.unpack_from(data, at)[3]
            at += _EVENT.size
            name = os.fsdecode(data[at : at + length].rstrip(b"\0"))
            at += length
            if name.startswith(PREFIXES):
                with self._turn, contextlib.suppress(OSError):
                    self._unknown[name] = os.lstat(self._directory / name).st_ino

    def _look(self) -> None:
        """Finds out whose the new files are. A file that none of our processes has open *yet* is looked at again."""
        with self._turn:
            wanted = {inode: name for name, inode in self._unknown.items()}
        if not wanted:
            return
        device = os.stat(self._directory).st_dev
        found = {inode for pid in self._tree() for inode in _files_of(pid, device, set(wanted))}
        with self._turn:
            ours = {wanted[inode]: inode for inode in found if self._unknown.pop(wanted[inode], 0) == inode}
            if ours:
                self.ours = {name: inode for name, inode in self.ours.items() if self._is_there(name, inode)} | ours
                self._write()

    def _is_there(self, name: str, inode: int) -> bool:
        try:
            return os.lstat(self._directory / name).st_ino == inode
        except OSError:
            return False

    def _read(self) -> dict[str, int]:
        found: dict[str, int] = {}
        with contextlib.suppress(OSError):
            for line in durable.read(self._notes).decode(errors="replace").splitlines():
                inode, _, name = line.partition(" ")
                if inode.isdigit() and name.startswith(PREFIXES) and "/" not in name:
                    found[name] = int(inode)
        return found

    def _write(self) -> None:
        """If the list can't be written, a successor doesn't get it; nothing else is lost."""
        with contextlib.suppress(OSError):
            if self.ours:
                with open(self._notes, "w", opener=durable.regular) as file:
                    file.write("".join(f"{inode} {name}\n" for name, inode in self.ours.items()))
            else:
                self._notes.unlink(missing_ok=True)


def _files_of(pid: int, device: int, wanted: set[int]) -> set[int]:
    """The inodes of those files that the process has open or mapped."""
    found: set[int] = set()
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                status = os.stat(f"/proc/{pid}/fd/{fd}")
                if status.st_dev == device:
                    found.add(status.st_ino)
    if wanted <= found:
        return wanted
    where = f"{os.major(device):02x}:{os.minor(device):02x}"
    with contextlib.suppress(OSError), open(f"/proc/{pid}/maps", encoding="utf-8", errors="replace") as maps:
        for line in maps:
            fields = line.split(maxsplit=5)  # addresses, permissions, offset, device, inode, path
            if len(fields) > 5 and fields[3] == where:
                found.add(int(fields[4]))
    return found & wanted
