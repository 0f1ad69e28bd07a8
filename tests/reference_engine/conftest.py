"""One engine for all tests of a file, and a client of it."""

from collections.abc import Iterator

import pytest

from reference_engine.engine import ReferenceEngine
from tests.reference_engine.serving import Client, serving


@pytest.fixture(scope="module")
def engine() -> Iterator[ReferenceEngine]:
    with serving() as engine:
        yield engine


@pytest.fixture
def client(engine: ReferenceEngine) -> Iterator[Client]:
    with Client(engine.address) as client:
        yield client
