"""Which files of a run directory concern engines, and what a shim does with them.

DIR/life/<engine_id>.<incarnation>      the lock's life files, one for each start of an engine (docs/inside/lock.md)
DIR/engine/<engine_id>.shim.sock        where the processes of an engine register with their shim
DIR/engine/<engine_id>.lock             held by the shim, so that each engine has only one
DIR/engine/<engine_id>.shm_files        files of /dev/shm that the engine's processes have open (`shm_cleanup.py`)
DIR/engine/<engine_id>.<token>.sock     where the engine serves, unless `--listen` names another place

What an engine's processes need for themselves is elsewhere (`scratch.py`). Which life locks are held: `life_locks.py`.
"""

import contextlib
import os
import re
from pathlib import Path

LIFE = "life"
ENGINES = "engine"


def shim_socket(engine_id: str) -> str:
    return f"{engine_id}.shim.sock"


def shim_lock(engine_id: str) -> str:
    return f"{engine_id}.lock"


def shm_files(engine_id: str) -> str:
    return f"{engine_id}.shm_files"


def endpoint(run_dir: Path, engine_id: str, token: int) -> Path:
    return run_dir / ENGINES / f"{engine_id}.{token}.sock"


def is_endpoint_of(engine_id: str, name: str) -> bool:
    return re.fullmatch(re.escape(engine_id) + r"\.\d+\.sock", name, re.ASCII) is not None


def is_life_of(engine_id: str, name: str) -> bool:
    return re.fullmatch(re.escape(engine_id) + r"\.[0-9a-f]{16}", name, re.ASCII) is not None


def remove_endpoints(run_dir: Path, engine_id: str) -> None:
    """Removes the sockets of earlier grants, where no engine listens any more."""
    directory = run_dir / ENGINES
    with contextlib.suppress(OSError):
        for name in os.listdir(directory):
            if is_endpoint_of(engine_id, name):
                (directory / name).unlink(missing_ok=True)
