import contextlib
from collections.abc import Iterator

import pytest

from tests.engine.kinds import Kind
from tests.engine.shims import House
from tests.kv.engines import GMS, Chain
from tests.support import tmpfs
from tests.support.waiting import until


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    with tmpfs.directory("kv") as directory, contextlib.closing(House(directory)) as house:
        monkeypatch.setenv("FAILOVER_HOST_DEVICES", str(house.devices))
        yield house


@pytest.fixture
def chain(house: House) -> Iterator[Chain]:
    house.start_gms(Kind("reference", "reference", (), "", GMS))
    until(lambda: house.weights() is not None, "GMS answers")
    chain = Chain(house)
    try:
        yield chain
    finally:
        chain.close()
