"""What one device's server is told at its start, and how it says that it can't. Only data; `__main__.py` asks people.

A file of its own, so that the supervisor, which only passes it on, needn't load a server.
"""

import errno
from pathlib import Path

import msgspec


class CannotStart(Exception):
    """Something that a person can put right."""


_ADVICE = {
    errno.EACCES: "give a --run-dir that this user may write",
    errno.EPERM: "give a --run-dir that this user may write",
    errno.ENOENT: "give a --run-dir where directories can be made",
    errno.ENOSPC: "make room there, or give another --run-dir",
    errno.EDQUOT: "make room there, or give another --run-dir",
    errno.EROFS: "give a --run-dir on a filesystem that can be written",
}


def unusable(directory: Path, error: OSError) -> CannotStart:
    """Why a server can't start there, and what to do. (A file that the error names is within that directory.)"""
    what = directory / error.filename if isinstance(error.filename, str) else directory
    advice = _ADVICE.get(error.errno or 0, "something else is in its place: move it away, or give another --run-dir")
    shown = str(what).encode("utf-8", "backslashreplace").decode()
    return CannotStart(f"{shown} can't be used: {error.strerror or error}; {advice}")


class Options(msgspec.Struct, frozen=True, kw_only=True):
    run_dir: str
    window_s: float = 10.0
    memory_wait_s: float = 30.0
    socket_mode: int = 0o600
    allow_uids: tuple[int, ...] = ()
    pidfds: str = "auto"


class Settings(Options, frozen=True, kw_only=True):
    """Of the server as a process of a supervisor."""

    parent_pid: int
    host_devices: str
    log_json: bool = False
