"""The life files of a directory, and for people which processes lock them.

It takes no lock: files are asked with F_OFD_GETLK, and its holders are read from /proc, as far as this user may see
it. No proof rests on this; for that the server asks each file itself (`shell.py`).
"""

import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from sidecar.kernel.lifelock import LifeProbe
from sidecar.terminal.names import NAME

LIFE = "life"
"""The directory of life files, beside its server's socket."""
SERVER_LOCK = "server.lock"
"""Beside it, too: one server per directory."""
_NAME = re.compile(rf"{NAME}\.[0-9a-f]{{8,32}}")
SHOWN_MOST = 100
"""A command line is cut there."""


@dataclass(frozen=True)
class LifeFile:
    name: str
    held: bool
    locked_by: dict[int, str] = field(default_factory=dict)
    """pid -> command line, as far as it can be seen."""


def names(directory: Path) -> list[str]:
    """The names of all life files; whatever else is there is left out. Raises OSError."""
    return sorted(name for name in os.listdir(directory) if _NAME.fullmatch(name))


def life_files(directory: Path) -> tuple[list[LifeFile], list[str]]:
    """Every life file with its holders; and the names of those that this user may not open. Raises OSError."""
    files: list[LifeFile] = []
    unreadable: list[str] = []
    for name in names(directory):
        try:
            probe = LifeProbe.open(directory, name)
        except PermissionError:
            unreadable.append(name)
            continue
        if probe is not None:
            with probe:
                held = probe.locked()
                files.append(LifeFile(name, held, locked_by(probe.inode) if held else {}))
    return files, unreadable


def locked_by(inode: tuple[int, int]) -> dict[int, str]:
    """The processes with a locked descriptor of this file, as far as this user may see them: pid -> command line."""
    found: dict[int, str] = {}
    try:
        entries = os.listdir("/proc")
    except OSError:  # no descriptor is left to look with: then no process is named
        return found
    for entry in entries:
        if not entry.isdigit():
            continue
        process = Path("/proc", entry)
        try:
            held = any(_locks_it(process, fd, inode) for fd in os.listdir(process / "fd"))
            if held or _maps_it(process, inode):
                found[int(entry)] = _shown((process / "cmdline").read_bytes().split(b"\0"))
        except OSError:
            continue  # ended meanwhile, or another user's: then it isn't named
    return found


def _shown(command_line: list[bytes]) -> str:
    """A command line for people: no directories before the program, and no end without a word that there was more."""
    text = b" ".join([os.path.basename(command_line[0]), *command_line[1:]]).decode(errors="replace").strip()
    return (text if len(text) <= SHOWN_MOST else f"{text[:SHOWN_MOST]}...") or "?"


def _maps_it(process: Path, inode: tuple[int, int]) -> bool:
    """It has closed every descriptor, and the file is mapped still (`sidecar/kernel/lifelock.py`)."""
    device = f"{os.major(inode[0]):02x}:{os.minor(inode[0]):02x}"
    with open(process / "maps", encoding="utf-8", errors="replace") as maps:
        return any(words[3:5] == [device, str(inode[1])] for words in map(str.split, maps))


def _locks_it(process: Path, fd: str, inode: tuple[int, int]) -> bool:
    """This descriptor is of that file, and its description holds the lock. (The server's own holds none.)"""
    try:
        status = os.stat(process / "fd" / fd)
        return (status.st_dev, status.st_ino) == inode and "\nlock:" in (process / "fdinfo" / fd).read_text()
    except FileNotFoundError:
        return False
