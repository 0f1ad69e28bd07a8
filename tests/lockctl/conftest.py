"""A run directory on tmpfs where there is one, and every process in it gone at the end."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.lockctl.programs import House
from tests.support import tmpfs


@pytest.fixture
def house() -> Iterator[House]:
    with tmpfs.directory("lockctl") as directory, contextlib.closing(House(directory / "run")) as house:
        yield house
