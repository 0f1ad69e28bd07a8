"""vLLM, a tiny model and a pair. Where vLLM isn't installed, these tests are skipped."""

import contextlib
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# A start takes a quarter of a minute on a quiet machine. Read when tests.engine.shims is loaded first.
os.environ.setdefault("FAILOVER_CHAOS_DEADLINE_S", "240")

from tests.engine.shims import House
from tests.support import tmpfs
from tests.vllm.pair import ENVIRONMENT, Pair, end

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    missing = importlib.util.find_spec("vllm") is None
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.vllm)
            item.add_marker(pytest.mark.timeout(900))
            if missing:
                item.add_marker(pytest.mark.skip(reason="vLLM isn't installed in this Python: make test-vllm"))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.vllm import tiny_model

    return tiny_model.make(tmp_path_factory.mktemp("model"))


@pytest.fixture
def house() -> Iterator[House]:
    yield from _house()


def _apart(ranks: int) -> Any:
    """Two processors have a pair each (--dist loadgroup): most of a start is one process loading."""
    return pytest.param(ranks, id=f"tp{ranks}", marks=pytest.mark.xdist_group(f"tp{ranks}"))


@pytest.fixture(scope="module", params=[_apart(1), _apart(2)])
def unborn(request: pytest.FixtureRequest, model: Path) -> Iterator[Pair]:
    """A pair for all tests of a module. The first of them may start it its own way."""
    for house in _house():
        yield Pair(house, model, request.param)


@pytest.fixture
def pair(unborn: Pair) -> Pair:
    """One that runs: starting it takes most of the tests' time. A test finds it whole, and leaves it so."""
    unborn.start()
    unborn.let_go()
    unborn.whole()
    return unborn


def _house() -> Iterator[House]:
    with tmpfs.directory("vllm") as directory, contextlib.closing(House(directory)) as house:
        house.environment.update(ENVIRONMENT)
        try:
            yield house
        finally:
            end(house)
