"""A host with many models for each test, on tmpfs where there is one; nothing of it outlives the test."""

import contextlib
from collections.abc import Iterator

import pytest

from tests.engine.shims import House
from tests.support import tmpfs


@pytest.fixture
def house() -> Iterator[House]:
    with tmpfs.directory("many") as directory, contextlib.closing(House(directory)) as house:
        yield house
