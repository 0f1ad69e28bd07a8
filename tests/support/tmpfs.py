"""A directory on tmpfs, as a pod's run directory is, or else where temporary files are; gone at the end."""

import contextlib
import tempfile
from collections.abc import Iterator
from pathlib import Path

SHARED_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def directory(name: str) -> Iterator[Path]:
    """`name`: whose it is, for a person who finds it while a test runs."""
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=f"failover-{name}-", dir=place, ignore_cleanup_errors=True) as found:
        yield Path(found)
