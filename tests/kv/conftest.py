import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.engine.kinds import Kind
from tests.engine.shims import House
from tests.kv.engines import GMS, Chain
from tests.support.waiting import until


@pytest.fixture
def house(monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    place = Path("/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp") / f"test-kv-{os.getpid()}"
    place.mkdir()
    house = House(place)
    monkeypatch.setenv("FAILOVER_HOST_DEVICES", str(house.devices))
    try:
        yield house
    finally:
        house.close()
        shutil.rmtree(place)


@pytest.fixture
def chain(house: House) -> Iterator[Chain]:
    house.start_gms(Kind("reference", "reference", (), "", GMS))
    until(lambda: house.weights() is not None, "GMS answers")
    chain = Chain(house)
    try:
        yield chain
    finally:
        chain.close()
