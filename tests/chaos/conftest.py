"""Fixtures of the real-process suite. Everything that a test starts is a descendant of the fork server, and is killed
when the test is over."""

import resource
import socket
from collections.abc import Iterator

import pytest

from tests.chaos import house as h
from tests.gms.container import Container, containers
from tests.support import tmpfs


@pytest.fixture(scope="session")
def fork_server() -> Iterator[socket.socket]:
    with h.fork_server() as sock:
        yield sock


@pytest.fixture
def house(fork_server: socket.socket) -> Iterator[h.House]:
    with tmpfs.directory("chaos") as directory:
        house = h.House(fork_server, directory)
        try:
            yield house
        finally:
            house.clear()
            house.tell()


@pytest.fixture
def container() -> Iterator[Container]:
    yield from containers()


@pytest.fixture
def many_descriptors() -> Iterator[int]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield hard
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.fixture
def small_tmpfs(house: h.House) -> Iterator[None]:
    """The run directory is a filesystem of its own, with little room."""
    with tmpfs.mounted(house.run_dir, "size=256k,mode=0700"):
        yield
