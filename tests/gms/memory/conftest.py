"""Every test of the conformance suite runs once with each maker of `makers.py`, on a device of its own."""

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gms.memory.makers import MAKERS
from tests.gms.memory.remote import Remote


class Stage:
    """A device, and the processes that have it open."""

    def __init__(self, maker: str, directory: Path) -> None:
        self._maker = maker
        self._environment = MAKERS[maker].prepare(directory)
        self._all: list[Remote] = []

    def process(self) -> Remote:
        """One more process."""
        self._all.append(Remote(self._maker, self._environment))
        return self._all[-1]

    def close(self) -> None:
        for remote in self._all:
            remote.kill()


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """An empty directory in memory."""
    with tempfile.TemporaryDirectory(prefix="gpu-failover-test-", dir="/dev/shm") as directory:
        yield Path(directory)


@pytest.fixture(params=MAKERS)
def stage(request: pytest.FixtureRequest, tmpfs: Path) -> Iterator[Stage]:
    missing = MAKERS[request.param].missing()
    if missing:
        pytest.skip(missing)
    stage = Stage(request.param, tmpfs)
    yield stage
    stage.close()


@pytest.fixture
def memory(stage: Stage) -> Remote:
    """The device, open in one process. For more of them, take `stage`."""
    return stage.process()
