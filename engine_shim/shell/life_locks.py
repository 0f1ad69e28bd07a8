"""Whether a process holds a life lock of an engine, from whichever start of it. Rule 1 of `lifecycle.py` needs to know.

What can't be looked at isn't known, and what isn't known counts as held: a next start beside an old tree would be two
engines. Where there are no life files at all (a cleaner has removed the directory, or the lock server hasn't made it
yet) and where the filesystem keeps no locks, nothing can be waited for. There the processes of this machine are asked
(those that this one sees): the one that holds the lock has the removed file open, or mapped. The shim's own tree is
known in another way: it has no child left by then, and every pidfd is readable.

What this file may not do: take a life lock.
"""

import os
import re
from pathlib import Path
from typing import NamedTuple

from engine_shim.shell import paths
from sidecar.kernel.lifelock import LifeProbe, LocksUnsupported


class Found(NamedTuple):
    held: bool
    why: str = ""
    """Why it counts as held; or what it goes by, where it isn't the life locks that say that none is held."""


def look(run_dir: Path, engine_id: str) -> Found:
    directory = run_dir / paths.LIFE
    name = ""
    try:
        for name in os.listdir(directory):
            if paths.is_life_of(engine_id, name) and _locked(directory, name):
                return Found(True, "a process holds its life lock")
    except (FileNotFoundError, NotADirectoryError):
        return _by_processes(run_dir, engine_id, f"there is no directory {directory}")
    except LocksUnsupported as error:
        return _by_processes(run_dir, engine_id, str(error))
    except OSError as error:
        return Found(True, f"its life locks can't be looked at: {directory / name}: {error.strerror or error}")
    return Found(False)


def _locked(directory: Path, name: str) -> bool:
    """Raises OSError and LocksUnsupported."""
    probe = LifeProbe.open(directory, name)
    if probe is None:
        return False
    with probe:
        return probe.locked()


def _by_processes(run_dir: Path, engine_id: str, no_locks: str) -> Found:
    # A life file has its lock under an early name (`.NAME.PID`), and may be known by that for ever.
    life = re.compile(re.escape(f"{run_dir.resolve()}/") + r".*\.?" + re.escape(engine_id) + r"\.[0-9a-f]{16}(\.\d+)?")
    for entry in os.listdir("/proc"):
        if entry.isdigit() and int(entry) != os.getpid() and _holds(Path("/proc", entry), life):
            return Found(True, f"{no_locks}, and process {entry} holds a life lock of it")
    return Found(False, f"{no_locks}, its own tree has ended, and no process that it sees holds a life lock of it")


def _holds(process: Path, life: re.Pattern[str]) -> bool:
    """It has such a file mapped, or a locked descriptor of it. (The lock server's descriptors aren't locked.)"""
    try:
        with open(process / "maps", encoding="utf-8", errors="replace") as maps:
            mapped = (line.split(maxsplit=5)[5:] for line in maps)
            if any(_is(life, words[0]) for words in mapped if words):
                return True
        for fd in os.listdir(process / "fd"):
            if _is(life, _target(process / "fd" / fd)) and "\nlock:" in (process / "fdinfo" / fd).read_text():
                return True
    except OSError:
        pass  # ended meanwhile, or another user's, whose no process of this engine is
    return False


def _target(link: Path) -> str:
    try:
        return os.readlink(link)
    except OSError:
        return ""


def _is(life: re.Pattern[str], path: str) -> bool:
    return life.fullmatch(path.strip().removesuffix(" (deleted)")) is not None
