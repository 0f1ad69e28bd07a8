"""Who has a TCP port of this machine, for the sentence that says it is taken. As far as this user may see: another
user's processes, and those outside this network namespace, stay unknown.
"""

import contextlib
import os
from collections.abc import Iterable
from pathlib import Path

from sidecar.wire.tcp import CannotListen

_LISTENS, _CONNECTED = "0A", "01"
_PROC = Path("/proc")
_WORDS = 3


def way_out(error: CannotListen, flag: str) -> str:
    """Why a program can't listen there, and what to do: "Address already in use by ...; give another --listen"."""
    who = owner(error.port) if error.taken else ""
    return f"{error.why}{f' by {who}' if who else ''}; give another {flag}"


def owner(port: int, besides: Iterable[int] = ()) -> str:
    """ "process 12 (python -m lockserver)", or "" if that can't be known, or one of `besides` has it."""
    wanted = {f"socket:[{inode}]" for inode in _inodes(port)}
    if not wanted or any(_has_one(_PROC / str(pid), wanted) for pid in besides):
        return ""
    for process in _PROC.iterdir():
        if process.name.isdigit() and _has_one(process, wanted):
            return f"process {process.name} ({_command(process)})"
    return ""


def clients(port: int) -> int:
    """How many connections there are to that port."""
    return len(_inodes(port, _CONNECTED))


def _inodes(port: int, state: str = _LISTENS) -> set[str]:
    """The sockets of that port, on any address: those that listen, or those of its clients."""
    found = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in (_PROC / "self/net" / table).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == state and int(fields[1].rpartition(":")[2], 16) == port:
                    found.add(fields[9])
    return found


def _has_one(process: Path, wanted: set[str]) -> bool:
    with contextlib.suppress(OSError):  # another user's, or it has just ended
        for descriptor in os.scandir(process / "fd"):
            with contextlib.suppress(OSError):
                if os.readlink(descriptor.path) in wanted:
                    return True
    return False


def _command(process: Path) -> str:
    """The first words of its command line: enough to know it by, and no secrets."""
    try:
        words = (process / "cmdline").read_bytes().decode(errors="replace").split("\0")[:_WORDS]
    except OSError:
        return "it has just ended"
    return " ".join([os.path.basename(words[0]), *words[1:]]).strip() or "its name is unknown"
