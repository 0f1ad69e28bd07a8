"""A program's child processes, as the kernel shows them: start one, find all descendants, kill them, collect the dead.

A program that adopts orphans (`process_setup.adopt_orphans`, or PID 1 of a container) has as its descendant whatever
its children ever started, and nothing of it is left when the program has no child any more.

What this file may not do: decide when.
"""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def start(command: Sequence[str], environment: Mapping[str, str], *, output: int = -1) -> int:
    """Starts a child in a session of its own, so that Ctrl-C reaches only its parent and its group can be killed.
    Returns its pid. Raises OSError.

    Call it from the main thread: a child that is set to die with its parent dies with the thread that started it.
    `output` is a descriptor for its standard output and error; without one they go where its parent's go.
    """
    files: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0)
    ]
    if output >= 0:
        files += [(os.POSIX_SPAWN_DUP2, output, 1), (os.POSIX_SPAWN_DUP2, output, 2)]
    return os.posix_spawn(
        command[0],
        list(command),
        dict(environment),
        file_actions=files,
        setsid=True,
        setsigmask=(),
        setsigdef=(*HANDLED, signal.SIGPIPE, signal.SIGCHLD),
    )


def descendants(of: int) -> list[int]:
    """Every living process below this one, without zombies. While some of them end it may miss others: ask again."""
    found: list[int] = []
    queue = [of]
    while queue:
        below = children(queue.pop())
        queue += below
        found += below
    return [pid for pid in found if not _is_zombie(pid)]


def memory_bytes(of: int) -> int:
    """What this process and all below it have of the host's memory, shared files (and device memory that stands in
    for a GPU's) left out; pages of several of them count once.
    """
    total = 0
    for pid in (of, *descendants(of)):
        with contextlib.suppress(OSError, ValueError), open(f"/proc/{pid}/smaps_rollup", "rb") as file:
            sizes = {line.split()[0]: int(line.split()[1]) for line in file if line.startswith(b"Pss")}
            total += (sizes.get(b"Pss:", 0) - sizes.get(b"Pss_Shmem:", 0)) << 10
    return total


def children(pid: int) -> list[int]:
    """Those that have ended and aren't collected are among them.

    Read from the lists of its threads. Going through all of /proc takes ten times as long on a busy machine, and
    the shim asks in the middle of a handoff. Kernels without CONFIG_PROC_CHILDREN leave no other way.
    """
    if not _HAS_LISTS:
        return _children_by_parent(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as listed:
                found += map(int, listed.read().split())
    return found


def _children_by_parent(parent: int) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _stat(int(name))[1:2] == [b"%d" % parent]]


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] in ([b"Z"], [b"X"], [])


def _stat(pid: int) -> list[bytes]:
    """The state, the parent, and so on; empty for a process that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


def used_s(pids: Sequence[int]) -> float | None:
    """The processor time that they and the children they have collected had so far. None if one of them is stopped."""
    found = [stat for stat in map(_stat, pids) if stat]
    if any(stat[0] in (b"T", b"t") for stat in found):
        return None
    return sum(int(ticks) for stat in found for ticks in stat[11:15]) / _TICKS


_TICKS = os.sysconf("SC_CLK_TCK")
_HAS_LISTS = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def kill(pids: Sequence[int], group: int) -> None:
    """SIGKILL to a process group, unless it is 0, and to each of these processes."""
    if group > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def collect() -> tuple[dict[int, int], bool]:
    """Collects the children that have ended. Returns their exit codes by pid, and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = os.waitstatus_to_exitcode(status)
