"""A directory for what an engine leaves behind when it is killed: sockets between its processes, and files by which
they find each other. It isn't in the run directory, whose room is for the lock's holder file.

    TMP/gpu-failover-UID/HASH.ENGINE_ID/             HASH stands for the run directory
    TMP/gpu-failover-UID/HASH.ENGINE_ID/elsewhere    paths of files that are in other places, one in each line

The shim names it (`FAILOVER_SCRATCH`), and removes it when nothing of the engine is left. So does the next shim of the
same name, if this one was killed.

What this file may not do: know what an engine puts there.
"""

import contextlib
import hashlib
import os
import shutil
import tempfile
from pathlib import Path

from engine_shim.shell import paths
from sidecar.kernel import durable
from sidecar.kernel.path_watch import make_private_directory

VARIABLE = "FAILOVER_SCRATCH"
REMOVED_ELSEWHERE = ("vllm_dist_",)
"""How the names of files begin that may be removed in other places."""
_ELSEWHERE = "elsewhere"


def directory(run_dir: Path, engine_id: str) -> Path:
    """In the directory for temporary files; where that can't be written, or is another user's, in the run directory."""
    name = f"{hashlib.sha256(os.fsencode(run_dir)).hexdigest()[:8]}.{engine_id}"
    ours = Path(tempfile.gettempdir()) / f"gpu-failover-{os.getuid()}"
    try:
        make_private_directory(ours)
        if ours.stat().st_uid == os.getuid() and os.access(ours, os.W_OK | os.X_OK):
            return ours / name
    except OSError:
        pass
    return run_dir / paths.ENGINES / f"{engine_id}.scratch"


def given() -> Path:
    """What the shim has named. Raises KeyError where there is no shim."""
    return Path(os.environ[VARIABLE])


def remember(path: str) -> None:
    """Called by an engine's process: this file is to be removed, too."""
    with open(given() / _ELSEWHERE, "a", encoding="utf-8") as file:
        file.write(path + "\n")


def make(here: Path) -> None:
    """Empty. Raises OSError."""
    remove(here)
    make_private_directory(here)


def remove(here: Path) -> None:
    """And what was left elsewhere. Never raises."""
    with contextlib.suppress(OSError):
        for line in durable.read(here / _ELSEWHERE).decode(errors="replace").splitlines():
            if Path(line).name.startswith(REMOVED_ELSEWHERE):
                Path(line).unlink(missing_ok=True)
    shutil.rmtree(here, ignore_errors=True)
