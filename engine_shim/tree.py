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
    """Every living process below this one; zombies aren't."""
    children: dict[int, list[int]] = {}
    living: set[int] = set()
    for entry in os.listdir("/proc"):
        if not entry.isdigit():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{entry}/stat", "rb") as stat:
            fields = stat.read().rpartition(b")")[2].split()  # after the name: state, parent, ...
            children.setdefault(int(fields[1]), []).append(int(entry))
            if fields[0] not in (b"Z", b"X"):
                living.add(int(entry))
    found: list[int] = []
    queue = [of]
    while queue:
        below = children.get(queue.pop(), [])
        queue += below
        found += below
    return [pid for pid in found if pid in living]


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
