"""Which process runs `failover up` in a directory, and a process that has a certain file open. Looking takes nothing:
no lock, no file is touched.
"""

import contextlib
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from sidecar.kernel import durable, peers

UP_LOCK = "up.lock"


class PairError(Exception):
    """What was asked for can't be done, and why."""


def up_pid(run_dir: Path) -> int | None:
    """The process that holds the lock of `failover up`, as this process sees it; None where it sees none."""
    file = run_dir / UP_LOCK
    try:
        wanted = os.stat(file)
    except FileNotFoundError:
        return None
    except OSError as error:
        whose = ": be the user that the pair runs as" if isinstance(error, PermissionError) else ""
        raise PairError(f"{run_dir} can't be looked at: {error.strerror}{whose}") from None
    if not stat.S_ISREG(wanted.st_mode):
        raise PairError(f"{file} is no regular file: move it away; failover up makes it again")
    for pid in dict.fromkeys([*_lockers(wanted.st_ino), *_said_in(file)]):
        pidfd = reach(pid, file)
        if pidfd is not None:
            os.close(pidfd)
            return pid
    return None


def reach(pid: int, file: Path) -> int | None:
    """A pidfd of the process that has this number *and* has this file open; None where there is none. The number alone
    may belong to another process: it may come from another PID namespace, or its process may have ended.
    """
    try:
        pidfd = os.pidfd_open(pid)
    except OSError:
        return None
    if _has_open(pid, file) and not peers.is_dead(pidfd):
        return pidfd
    os.close(pidfd)
    return None


def _has_open(pid: int, file: Path) -> bool:
    """Also when the file was removed. (It may have been made under a longer name, and linked.)"""
    here = f"{file.parent.resolve()}/"
    wanted = None
    with contextlib.suppress(OSError):
        wanted = os.stat(file)
    with contextlib.suppress(OSError):
        for fd in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(OSError):
                if wanted is not None and os.path.samestat(os.stat(f"/proc/{pid}/fd/{fd}"), wanted):
                    return True
                named = os.readlink(f"/proc/{pid}/fd/{fd}")
                if named.startswith(here) and file.name in named and named.endswith(" (deleted)"):
                    return True
    return False


def _lockers(inode: int) -> Iterator[int]:
    """The process that holds a lock on a file with this inode, as the kernel says it."""
    with contextlib.suppress(OSError), open("/proc/locks", encoding="ascii", errors="replace") as locks:
        for line in locks:
            fields = line.split()  # number, kind, ADVISORY, WRITE, pid, major:minor:inode, from, to
            if len(fields) == 8 and fields[1] == "FLOCK" and fields[5].rpartition(":")[2] == str(inode):
                yield int(fields[4])


def _said_in(file: Path) -> list[int]:
    """What it says itself, for a kernel that shows no locks."""
    with contextlib.suppress(OSError, ValueError):
        return [int(durable.read(file)[:20])]
    return []
