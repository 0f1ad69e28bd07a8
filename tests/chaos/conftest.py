"""Fixtures of the real-process suite. Everything that a test starts is a descendant of the nursery and is killed when
the test is over."""

import shutil
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.chaos import house as h


@pytest.fixture(scope="session")
def nursery() -> Iterator[socket.socket]:
    with h.nursery() as sock:
        yield sock


@pytest.fixture
def house(nursery: socket.socket, tmp_path: Path) -> Iterator[h.House]:
    """On tmpfs, as in the pod, where there is one."""
    shm = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="failover-chaos-", dir=shm if shm.is_dir() else tmp_path))
    house = h.House(nursery, directory)
    try:
        yield house
    finally:
        house.clear()
        house.tell()
        shutil.rmtree(directory)
