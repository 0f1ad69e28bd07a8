"""A directory of the engine's own: for what vLLM leaves behind when it is killed (sockets between its processes, and
the file by which its ranks find each other), and for what its ranks report. The engine's next start clears it: the shim
has made sure by then that nothing of the last start lives.

    DIR/engine/<engine_id>.vllm/             sockets
    DIR/engine/<engine_id>.vllm/elsewhere    paths of files that are in other places, one in each line
    DIR/engine/<engine_id>.vllm/unwell.RANK  exists while the weights of this rank can't be had
"""

import contextlib
import os
import shutil
from pathlib import Path

from engine_shim import paths

_ELSEWHERE = "elsewhere"
_UNWELL = "unwell."
_PREFIX = "vllm_dist_"
SOCKET_VARIABLE = "VLLM_RPC_BASE_PATH"
_SOCKET_MOST = 107
_NAME = 37
"""A slash and a UUID."""


def directory(run_dir: Path, engine_id: str) -> Path:
    return run_dir / paths.ENGINES / f"{engine_id}.vllm"


def begin(run_dir: Path, engine_id: str) -> None:
    """To be called in the main process, before vLLM is loaded. If somebody has chosen another directory for sockets,
    that choice stays; so does vLLM's own, where the path of a socket would be too long here.
    """
    here = directory(run_dir, engine_id)
    with contextlib.suppress(OSError):
        for line in (here / _ELSEWHERE).read_text().splitlines():
            if Path(line).name.startswith(_PREFIX):
                Path(line).unlink(missing_ok=True)
    shutil.rmtree(here, ignore_errors=True)
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    if len(os.fsencode(here)) + _NAME <= _SOCKET_MOST:
        os.environ.setdefault(SOCKET_VARIABLE, str(here))


def remember(run_dir: Path, engine_id: str, address: str) -> None:
    """Called in a worker. `address` is how the ranks find each other; it may be a file."""
    if address.startswith("file://"):
        with open(directory(run_dir, engine_id) / _ELSEWHERE, "a", encoding="utf-8") as file:
            file.write(address.removeprefix("file://") + "\n")


def mark(run_dir: Path, engine_id: str, rank: int, *, well: bool) -> None:
    """Called in a worker. If the mark can't be made, the rank's state shows when somebody asks it."""
    here = directory(run_dir, engine_id) / f"{_UNWELL}{rank}"
    with contextlib.suppress(OSError):
        if well:
            here.unlink(missing_ok=True)
        else:
            here.touch()


def marked(run_dir: Path, engine_id: str) -> bool:
    """Called in the main process: whether some rank isn't well."""
    return any(directory(run_dir, engine_id).glob(f"{_UNWELL}*"))
