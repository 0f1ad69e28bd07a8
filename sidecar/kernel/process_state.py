"""Why a process lives that is to be gone: what the kernel shows of it, in words that say what to do. For people only:
nothing here proves anything.

Only files are read that the kernel answers without waiting for the process (`status`, `comm`, `cgroup`, the files of
cgroups), and yet the server asks in a thread of its own. What this file may not do: end or wake anything.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_V2 = (Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"))
_V1_FREEZER = Path("/sys/fs/cgroup/freezer")


def state_of(pid: int) -> str:
    """ "is stopped (T): kill -CONT 12, or kill -9 12". `pid`: in this process's own PID namespace; else 0 or less."""
    if pid <= 0:
        return "is alive, and can't be looked at from here (another PID namespace): look on its node"
    threads = list(_threads(pid))
    if not threads:
        return "is alive, and /proc shows nothing of it here: look on its node"
    for frozen in (_frozen(pid), *(_frozen(thread) for thread, _, _ in threads)):
        if frozen:
            return frozen
    for thread, _, tracer in threads:
        if tracer:
            whose = "is" if thread == pid else f"has a thread, {thread}, that is"
            return f"{whose} traced by process {tracer} ({_name(tracer)}), which has to let go of it: kill -9 {tracer}"
    states = {state for _, state, _ in threads}
    if "D" in states:
        return (
            "is in the kernel's hands (D), where a kill waits for a device, a disk or the network: "
            f"cat /proc/{pid}/stack says for what; if that doesn't end, only a restart of its node does"
        )
    if "T" in states:
        return f"is stopped (T): kill -CONT {pid}, or kill -9 {pid} if it should be gone"
    return f"is alive ({''.join(sorted(states))}): kill -9 {pid} if it should be gone"


def named(pid: int) -> str:
    """The process and its state: of one that has a lock, say."""
    return f"process {pid} ({_name(pid)}), which {state_of(pid)}"


def _name(pid: int) -> str:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text(errors="replace").strip()
    return "?"


def _threads(pid: int) -> Iterator[tuple[int, str, int]]:
    """Number, state and tracer of each that has not ended; and of one that has, and that its tracer keeps."""
    try:
        tasks = sorted(map(int, os.listdir(f"/proc/{pid}/task")))
    except OSError:
        return
    for task in tasks:
        with contextlib.suppress(OSError):
            said = dict(
                line.split(":\t", 1)
                for line in Path(f"/proc/{pid}/task/{task}/status").read_text(errors="replace").splitlines()
                if ":\t" in line
            )
            state, tracer = said.get("State", "?")[:1], int(said.get("TracerPid", "0"))
            if state not in ("Z", "X") or tracer:
                yield task, state, tracer


def _frozen(task: int) -> str:
    """By its cgroup, and how it is thawed; empty if it isn't."""
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{task}/cgroup").read_text().splitlines():
            number, controllers, path = line.split(":", 2)
            frozen = ""
            if number == "0":
                frozen = next((thaw for root in _V2 if (thaw := _frozen_v2(root, path))), "")
            elif controllers == "freezer":
                frozen = _frozen_v1(path)
            if frozen:
                return f"is frozen by its cgroup: {frozen}"
    return ""


def _frozen_v2(root: Path, path: str) -> str:
    here = root / path.lstrip("/")
    if "frozen 1" not in _said(here / "cgroup.events"):
        return ""
    while here != root and _said(here / "cgroup.freeze") != "1":
        here = here.parent  # an ancestor freezes all that is below
    return f"echo 0 > {here}/cgroup.freeze"


def _frozen_v1(path: str) -> str:
    here = _V1_FREEZER / path.lstrip("/")
    if _said(here / "freezer.state") not in ("FROZEN", "FREEZING"):
        return ""
    while here != _V1_FREEZER and _said(here / "freezer.self_freezing") == "0":
        here = here.parent
    return f"echo THAWED > {here}/freezer.state"


def _said(file: Path) -> str:
    with contextlib.suppress(OSError):
        return file.read_text().strip()
    return ""
