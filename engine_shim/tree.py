"""The processes of an engine, as the kernel shows them: start, find, kill, collect.

The shim adopts orphans, so whatever an engine has started is a descendant of the shim for as long as it lives, whoever
its parent was, and none is left when the shim has no child. The shim itself starts nothing else.

What this file may not do: decide when. A life lock is looked at, never taken.
"""

import contextlib
import os
import signal
from collections.abc import Mapping, Sequence
from pathlib import Path

from engine_shim import places
from sidecar.lifelock import LifeProbe, LocksUnsupported

HANDLED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)


def start(command: Sequence[str], environment: Mapping[str, str], *, output: int = -1) -> int:
    """In a session of its own: Ctrl-C is for its parent, and the group can be killed. From the main thread, with which
    the child dies. `output`: a descriptor for what it says; else where its parent's goes. Raises OSError.
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
    """Every living process below this one; zombies aren't. While some of them end it may miss others: ask again."""
    found: list[int] = []
    queue = [of]
    while queue:
        below = _children(queue.pop())
        queue += below
        found += below
    return [pid for pid in found if not _is_zombie(pid)]


def _children(pid: int) -> list[int]:
    """By its threads' own lists: going through all of /proc takes ten times as long on a busy machine, and this is
    asked in the middle of a handoff. (Kernels without CONFIG_PROC_CHILDREN: through all of /proc.)
    """
    if not _HAS_LISTS:
        return _children_by_parent(pid)
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{pid}/task"):
            with contextlib.suppress(OSError), open(f"/proc/{pid}/task/{thread}/children", "rb") as children:
                found += map(int, children.read().split())
    return found


def _children_by_parent(parent: int) -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit() and _stat(int(name))[1:2] == [b"%d" % parent]]


def _is_zombie(pid: int) -> bool:
    return _stat(pid)[:1] in ([b"Z"], [b"X"], [])


def _stat(pid: int) -> list[bytes]:
    """State, parent, and so on; empty for one that is gone."""
    try:
        with open(f"/proc/{pid}/stat", "rb") as stat:
            return stat.read().rpartition(b")")[2].split()
    except OSError:
        return []


_HAS_LISTS = os.path.exists(f"/proc/self/task/{os.getpid()}/children")


def kill(pids: Sequence[int], group: int) -> None:
    """SIGKILL to a process group, if there is one, and to each of these."""
    if group > 0:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for pid in pids:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signal.SIGKILL)


def collect() -> tuple[dict[int, int], bool]:
    """The children that have ended, with their exit codes; and whether any child is left."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended, False
        if pid == 0:
            return ended, True
        ended[pid] = os.waitstatus_to_exitcode(status)


def life_held(run_dir: Path, engine_id: str) -> bool:
    """Somebody holds a life lock of this engine, from whatever start of it."""
    directory = run_dir / places.LIFE
    try:
        names = [name for name in os.listdir(directory) if places.is_life_of(engine_id, name)]
    except OSError:
        return False
    for name in names:
        probe = LifeProbe.open(directory, name)
        if probe is None:
            continue
        with probe:
            try:
                if probe.locked():
                    return True
            except LocksUnsupported:
                return False  # the lock server says so, and has another way
    return False


def remove_endpoints(run_dir: Path, engine_id: str) -> None:
    """The sockets of earlier grants: nobody listens there any more."""
    directory = run_dir / places.ENGINES
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if places.is_endpoint_of(engine_id, name):
                (directory / name).unlink(missing_ok=True)
