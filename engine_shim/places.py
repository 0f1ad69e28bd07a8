"""What lies where in a run directory, as far as engines are concerned.

DIR/life/<engine_id>.<incarnation>      the lock's life files: one for each start of an engine (docs/lock.md)
DIR/engine/<engine_id>.shim.sock        where the processes of a tree register with their shim
DIR/engine/<engine_id>.lock             one shim for each engine
DIR/engine/<engine_id>.leftovers        what its tree would leave in /dev/shm if it were killed (`leftovers.py`)
DIR/engine/<engine_id>.<token>.sock     where an engine serves, unless it is told otherwise
"""

import re
from pathlib import Path

LIFE = "life"
ENGINES = "engine"


def shim_socket(engine_id: str) -> str:
    return f"{engine_id}.shim.sock"


def shim_lock(engine_id: str) -> str:
    return f"{engine_id}.lock"


def leftovers(engine_id: str) -> str:
    return f"{engine_id}.leftovers"


def endpoint(run_dir: Path, engine_id: str, token: int) -> Path:
    return run_dir / ENGINES / f"{engine_id}.{token}.sock"


def is_endpoint_of(engine_id: str, name: str) -> bool:
    return re.fullmatch(re.escape(engine_id) + r"\.\d+\.sock", name, re.ASCII) is not None


def is_life_of(engine_id: str, name: str) -> bool:
    return re.fullmatch(re.escape(engine_id) + r"\.[0-9a-f]{16}", name, re.ASCII) is not None
