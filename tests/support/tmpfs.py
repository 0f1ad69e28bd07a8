"""Directories on tmpfs, gone at the end: as a pod's run directory is, or with a bound of their own."""

import contextlib
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")


@contextlib.contextmanager
def directory(name: str) -> Iterator[Path]:
    """Where temporary files are, if there is no tmpfs. `name`: whose it is, for a person who finds it meanwhile."""
    place = SHARED_MEMORY if SHARED_MEMORY.is_dir() else None
    with tempfile.TemporaryDirectory(prefix=f"failover-{name}-", dir=place, ignore_cleanup_errors=True) as found:
        yield Path(found)


@contextlib.contextmanager
def mounted(place: Path, options: str) -> Iterator[None]:
    """A filesystem of its own in this directory, with little room, say; where nothing can be mounted the test is
    skipped.
    """
    place.mkdir(mode=0o700, parents=True, exist_ok=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(place)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"nothing can be mounted here: {done.stderr.strip()}")
    try:
        yield
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)
