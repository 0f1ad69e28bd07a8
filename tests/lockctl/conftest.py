"""A run directory on tmpfs where there is one, and everybody in it gone at the end."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.lockctl.programs import House


@pytest.fixture
def house() -> Iterator[House]:
    memory = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="failover-lockctl-", dir=memory if memory.is_dir() else None))
    house = House(directory / "run")
    try:
        yield house
    finally:
        house.close()
        shutil.rmtree(directory)
