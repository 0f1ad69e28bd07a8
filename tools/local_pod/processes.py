"""The processes of a container, as seen from above: by its PID namespace, through /proc."""

import os
import re
from pathlib import Path


def first_child(pid: int) -> int:
    """The one child of a process; 0 when it has none any more."""
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii").split()
    except OSError:
        return 0
    return int(children[0]) if children else 0


def inside(first: int) -> list[int]:
    """All in the PID namespace of this one, itself first. Empty when it is gone."""
    namespace = _namespace(first)
    if not namespace:
        return []
    every = sorted(int(entry) for entry in os.listdir("/proc") if entry.isdigit())
    return [first, *(pid for pid in every if pid != first and _namespace(pid) == namespace)]


def matching(pids: list[int], pattern: str, first: int) -> list[int]:
    """Those whose command line has this in it (a regular expression); the container's first process is never meant."""
    try:
        wanted = re.compile(pattern)
    except re.error as error:
        raise ValueError(f"{pattern!r} is no pattern: {error}") from None
    return [pid for pid in pids if pid != first and wanted.search(command(pid))]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode("utf-8", "replace").strip()
    except OSError:
        return ""


def exit_code(returned: int) -> int:
    """As a shell has it: 128 and the signal."""
    return 128 - returned if returned < 0 else returned


def _namespace(pid: int) -> str:
    try:
        return os.readlink(f"/proc/{pid}/ns/pid")
    except OSError:
        return ""
