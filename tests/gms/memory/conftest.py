"""Every test of the conformance suite runs once with each maker of `makers.py`, on a device of its own."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from gms.memory.host import HostMemory
from gms.memory.host_device import create_device
from tests.gms.memory.host_stage import CAPACITY
from tests.gms.memory.makers import MAKERS
from tests.gms.memory.remote import Remote
from tests.support.tmpfs import directory


class Stage:
    """A device, and the processes that have it open."""

    def __init__(self, maker: str, directory: Path) -> None:
        self._maker = maker
        self.tells_memory_apart = MAKERS[maker].tells_memory_apart
        self._environment = MAKERS[maker].prepare(directory)
        self._all: list[Remote] = []

    def process(self) -> Remote:
        """One more process."""
        self._all.append(Remote(self._maker, self._environment))
        return self._all[-1]

    def close(self) -> None:
        for remote in self._all:
            remote.kill()


@contextlib.contextmanager
def staged(maker: str) -> Iterator[Stage]:
    if missing := MAKERS[maker].missing():
        pytest.skip(missing)
    with directory("memory") as place, contextlib.closing(Stage(maker, place)) as stage:
        yield stage


@pytest.fixture
def tmpfs() -> Iterator[Path]:
    """An empty directory in memory."""
    with directory("memory") as place:
        yield place


@pytest.fixture(params=MAKERS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    with staged(request.param) as stage:
        yield stage


@pytest.fixture(params=MAKERS, scope="module")
def only(request: pytest.FixtureRequest) -> Iterator[Remote]:
    """The one process that has a device open, for all tests that need no other and leave it alive."""
    with staged(request.param) as stage:
        yield stage.process()


@pytest.fixture
def memory(only: Remote) -> Iterator[Remote]:
    """The device, opened by one process. For more of them, or for one that dies, take `stage`."""
    yield only
    only.ask("open_anew")


@pytest.fixture
def devices(tmpfs: Path) -> Path:
    """A directory of host devices with one in it, `0`. This and `host` are for the tests of host memory alone."""
    create_device("0", CAPACITY, tmpfs / "devices")
    return tmpfs / "devices"


@pytest.fixture
def host(devices: Path) -> Iterator[HostMemory]:
    """The device `0`, open in the test's own process."""
    memory = HostMemory("0", devices)
    yield memory
    memory.close()
