"""A directory of the engine's own, for what vLLM leaves lying about when it is killed: sockets between its processes,
and the file by which its ranks find each other; and for what its ranks have to say. The engine's next start clears it:
by then, the shim has seen to it that nothing of the last one lives.

    DIR/engine/<engine_id>.vllm/             sockets
    DIR/engine/<engine_id>.vllm/elsewhere    paths of files that are somewhere else, a line each
    DIR/engine/<engine_id>.vllm/unwell.RANK  there while the weights of this rank are not to be had
"""

import contextlib
import os
import shutil
from pathlib import Path

from engine_shim import places

_ELSEWHERE = "elsewhere"
_UNWELL = "unwell."
_PREFIX = "vllm_dist_"
SOCKET_VARIABLE = "VLLM_RPC_BASE_PATH"
_SOCKET_MOST = 107
_NAME = 37
"""A slash and a UUID."""


def directory(run_dir: Path, engine_id: str) -> Path:
    return run_dir / places.ENGINES / f"{engine_id}.vllm"


def begin(run_dir: Path, engine_id: str) -> None:
    """In the main process, before vLLM is loaded. Somebody's own choice of a directory for sockets stays; and so does
    vLLM's, where a socket's path would get too long here.
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
    """In a worker: `address` is how the ranks find each other, a file or not."""
    if address.startswith("file://"):
        with open(directory(run_dir, engine_id) / _ELSEWHERE, "a", encoding="utf-8") as file:
            file.write(address.removeprefix("file://") + "\n")


def mark(run_dir: Path, engine_id: str, rank: int, *, well: bool) -> None:
    """In a worker. A mark that can't be made is missed until somebody asks."""
    here = directory(run_dir, engine_id) / f"{_UNWELL}{rank}"
    with contextlib.suppress(OSError):
        if well:
            here.unlink(missing_ok=True)
        else:
            here.touch()


def marked(run_dir: Path, engine_id: str) -> bool:
    """In the main process: some rank is not well."""
    return any(directory(run_dir, engine_id).glob(f"{_UNWELL}*"))
