"""What most tests of GMS stand on. A module that needs another device has a fixture of the same name."""

from collections.abc import Iterator

import pytest

from tests.gms.container import Container, containers
from tests.gms.live import House, houses


@pytest.fixture
def container() -> Iterator[Container]:
    yield from containers()


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses()
