"""A house for each test, on tmpfs where there is one; nothing of it outlives the test."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.shims import House


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    shm = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="failover-engine-", dir=shm if shm.is_dir() else tmp_path))
    house = House(directory)
    try:
        yield house
    finally:
        house.close()
        shutil.rmtree(directory, ignore_errors=True)
