from collections.abc import Iterator

import pytest

from tests.vram import programs


@pytest.fixture
def house() -> Iterator[programs.House]:
    with programs.house() as made:
        yield made
