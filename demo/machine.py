"""What the demo needs of this machine, and what it says when that isn't there, or when something isn't as it should be.

Each is an error whose text is one sentence for a person. What this file may not do: start anything.
"""

import contextlib
import os
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")
MIB = 1 << 20
LEAST = 64 * MIB


class CantPlay(Exception):
    """What is missing on this machine, in a line."""


class NotSo(Exception):
    """Something is not as it should be: the demo has shown a fault, and stops."""


def check(so: bool, otherwise: str) -> None:
    if not so:
        raise NotSo(otherwise)


def room() -> int:
    """How many bytes a host device may come to hold here. Raises CantPlay if that is too little for anything."""
    try:
        space = os.statvfs(SHARED_MEMORY)
    except OSError as error:
        raise CantPlay(f"{SHARED_MEMORY} can't be used ({error.strerror}): mount a tmpfs there") from None
    if not os.access(SHARED_MEMORY, os.W_OK | os.X_OK):
        raise CantPlay(f"{SHARED_MEMORY} can't be written by this user: chmod 1777 {SHARED_MEMORY}")
    found = min(space.f_frsize * space.f_bavail, _memory_left())
    if found < LEAST:
        raise CantPlay(f"{found // MIB} MiB are left in {SHARED_MEMORY} and memory; make it {LEAST // MIB}")
    return found


def _memory_left() -> int:
    """What this process and its children may still use: of the machine, and of the container."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    left = next(int(line.split()[1]) << 10 for line in lines if line.startswith("MemAvailable:"))
    with contextlib.suppress(OSError, ValueError):  # no cgroup v2 here, or one without a limit ("max")
        group = Path("/sys/fs/cgroup")
        limit = int((group / "memory.max").read_text())
        left = min(left, limit - int((group / "memory.current").read_text()))
    return left
