"""Why a server can't start, in a sentence that says what to do."""

import errno
from pathlib import Path

_WRITE = "give a --run-dir that this user may write"
_ROOM = "make room there, of bytes or of files (the server keeps some for its record and its socket)"
_ADVICE = {
    errno.EACCES: _WRITE,
    errno.EPERM: _WRITE,
    errno.ENOSPC: _ROOM,
    errno.EDQUOT: _ROOM,
    errno.EROFS: "it is read-only; give a --run-dir on a filesystem that can be written",
    errno.ENOTDIR: "something on the way is no directory; give another --run-dir",
    errno.ENOENT: "give a --run-dir where directories can be made, such as /run/failover",
}


class CannotStart(Exception):
    """Something that a person can put right."""


def unusable(directory: Path, error: OSError) -> CannotStart:
    """A file that the error names is within that directory."""
    named = error.filename2 or error.filename
    what = directory / named if isinstance(named, str | Path) else directory
    advice = _ADVICE.get(error.errno or 0, "something else is in its place: move it away, or give another --run-dir")
    shown = str(what).encode("utf-8", "backslashreplace").decode()
    return CannotStart(f"{shown} can't be used: {error.strerror or error}; {advice}")
