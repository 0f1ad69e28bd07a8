"""What vLLM's processes put into the engine's scratch directory (`engine_shim/shell/scratch.py`), which the shim
removes when nothing of the engine is left: sockets between its processes, the file by which its ranks find each other,
and what its ranks report.

    SCRATCH/UUID            sockets
    SCRATCH/elsewhere       paths of files that are in other places
    SCRATCH/unwell.RANK     exists while the weights of this rank can't be had
"""

import contextlib
import os
from pathlib import Path

from engine_shim.shell import scratch

_UNWELL = "unwell."
SOCKET_VARIABLE = "VLLM_RPC_BASE_PATH"
_SOCKET_MOST = 107
_NAME = 37
"""A slash and a UUID."""


def begin(run_dir: Path, engine_id: str) -> Path:
    """To be called in the main process, before vLLM is loaded. If another directory was chosen for sockets,
    that choice stays; so does vLLM's own, where the path of a socket would be too long here.
    """
    if scratch.VARIABLE not in os.environ:  # there is no shim that would have made it
        here = scratch.directory(run_dir, engine_id)
        scratch.make(here)
        os.environ[scratch.VARIABLE] = str(here)
    here = scratch.given()
    if len(os.fsencode(here)) + _NAME <= _SOCKET_MOST:
        os.environ.setdefault(SOCKET_VARIABLE, str(here))
    return here


def remember(address: str) -> None:
    """Called in a worker. `address` is how the ranks find each other; it may be a file."""
    if address.startswith("file://"):
        scratch.remember(address.removeprefix("file://"))


def mark(rank: int, *, well: bool) -> None:
    """Called in a worker. If the mark can't be made, the rank's state shows it when asked."""
    with contextlib.suppress(OSError):
        here = scratch.given() / f"{_UNWELL}{rank}"
        if well:
            here.unlink(missing_ok=True)
        else:
            here.touch()


def marked() -> bool:
    """Called in the main process: whether some rank isn't well."""
    return any(scratch.given().glob(f"{_UNWELL}*"))
