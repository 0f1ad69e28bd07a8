"""What a killed engine leaves in /dev/shm, and who made it.

Shared memory by name outlives a SIGKILL: Python's `psm_*` and `sem.mp-*`, vLLM's `vllm_dist_*`. A name doesn't say
whose it is, and the other engine has such files, too. So the kernel tells us when one appears (inotify), and we look at
once whether a process of *our* tree has it open or mapped. What was seen so is ours, and goes when the tree is proven
gone; what wasn't is nobody's business here. (Looking later, or by time and user, could take the other engine's.)
Files are told by inode: a semaphore gets its name when it is mapped already, and under another.

The list is kept beside the shim's socket, for the case that the shim itself is killed: its successor reads it.

Not covered: a file whose maker closes it within the moment that looking takes, or is killed in it.
"""

import contextlib
import ctypes
import os
import select
import struct
import threading
from collections.abc import Callable
from pathlib import Path

SHM = Path("/dev/shm")
PREFIXES = ("psm_", "sem.mp-", "vllm_dist_")
AGAIN_MS = (10, 50, 250, 1000, 5000)
"""When those whose maker was not found are looked at again, after the last that has appeared."""
_IN_CREATE, _IN_MOVED_TO = 0x100, 0x80
_EVENT = struct.Struct("iIII")


class Leftovers:
    """A thread of its own looks: to read what a process has mapped takes as long as that process is busy mapping, and
    the shim's loop waits for nothing of the engine's.
    """

    def __init__(self, tree: Callable[[], list[int]], notes: Path, directory: Path = SHM) -> None:
        """`tree`: the processes that are ours, now. `notes`: where the list is kept."""
        self._tree = tree
        self._notes = notes
        self._directory = directory
        self._turn = threading.Lock()
        """For the two below. Nobody looks while having it."""
        self._unknown: dict[str, int] = {}
        """Name -> inode of what has appeared, and whose isn't known."""
        self.ours: dict[str, int] = self._read()

    def watch(self) -> bool:
        """False where the kernel won't tell: then nothing is cleaned up."""
        libc = ctypes.CDLL(None, use_errno=True)
        fd: int = libc.inotify_init1(os.O_CLOEXEC)
        if fd < 0:
            return False
        if libc.inotify_add_watch(fd, os.fsencode(self._directory), _IN_CREATE | _IN_MOVED_TO) < 0:
            os.close(fd)
            return False
        threading.Thread(target=self._run, args=(fd,), name="leftovers", daemon=True).start()
        return True

    def remove(self) -> list[str]:
        """The tree is gone: so does what it left. Returns the names."""
        with self._turn:
            removed = [name for name, inode in self.ours.items() if self._is_there(name, inode)]
            for name in removed:
                (self._directory / name).unlink(missing_ok=True)
            self._unknown.clear()
            if self.ours:
                self.ours.clear()
                self._write()
        return removed

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
            if looks == len(AGAIN_MS):  # by now they are somebody else's
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
        """Whose are those that have appeared? Nobody of ours may have one open *yet*, so those are looked at again."""
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
            for line in self._notes.read_text(errors="replace").splitlines():
                inode, _, name = line.partition(" ")
                if inode.isdigit() and name.startswith(PREFIXES) and "/" not in name:
                    found[name] = int(inode)
        return found

    def _write(self) -> None:
        """A list that can't be written is one that a successor doesn't get; nothing more."""
        with contextlib.suppress(OSError):
            if self.ours:
                self._notes.write_text("".join(f"{inode} {name}\n" for name, inode in self.ours.items()))
            else:
                self._notes.unlink(missing_ok=True)


def _files_of(pid: int, device: int, wanted: set[int]) -> set[int]:
    """Which of these files, by inode, the process has open or mapped."""
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
