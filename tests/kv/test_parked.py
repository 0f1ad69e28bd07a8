"""What its KV cache holds sleeps in host memory with an engine that has its device among other models."""

import asyncio
import itertools

import pytest

from engine_shim.kv import parking
from engine_shim.kv.parking import most_blocks
from reference_engine.kv import block_bytes
from reference_engine.options import parse
from reference_engine.places import BLOCK
from reference_engine.rank import Rank
from tests.kv.engines import ARGUMENTS, Asked, Chain, Successor, Undisturbed, metrics, tokens
from tests.kv.test_bad_cases import ASKED, answer

pytestmark = pytest.mark.chaos
TWO_RANKS = ("--workers", "1", "--devices", "host:0")
ALL = 1 << 20
"""As large as the cache."""


def slept(chain: Chain, parked: int, arguments: tuple[str, ...] = ()) -> tuple[dict[str, float], str]:
    """The same question before and after a sleep, and what the engine says of its cache then."""
    engine = chain.current = Successor(chain.house, 1, "drop", arguments, parked)
    engine.wake(1)
    right = Undisturbed().answer(ASKED)
    assert answer(engine)[0] == right
    engine.nap()
    said, page = answer(engine)
    assert said == right
    return page, engine.said()


def test_after_a_sleep_all_full_blocks_of_two_ranks_are_reused(chain: Chain) -> None:
    page, said = slept(chain, ALL, TWO_RANKS)
    assert page["vllm:prefix_cache_hits_total"] == 96 and "why:none" in page
    assert f"adopted={139 // BLOCK} dropped=0 why=none" in said


def test_what_has_no_room_is_the_end_of_a_context_and_computed_again(chain: Chain) -> None:
    shape = parse((*ARGUMENTS, "--standalone")).shape
    page, said = slept(chain, 4 * block_bytes(shape, shape.heads))
    assert page["vllm:prefix_cache_hits_total"] == 4 * BLOCK and "why:no_room" in page
    assert "adopted=4 dropped=4 why=no_room" in said


def test_where_there_was_no_room_at_all_log_and_metrics_say_so(chain: Chain) -> None:
    page, said = slept(chain, 1)
    assert page["vllm:prefix_cache_hits_total"] == 0 and "why:no_room" in page
    assert f"adopted=0 dropped={139 // BLOCK} why=no_room" in said


def test_what_there_is_no_time_for_is_the_end_of_a_context_and_computed_again(
    chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first rank alone has no time: a worker is no fork."""
    monkeypatch.setattr(parking, "PARK_S", 0)
    monkeypatch.setattr(parking, "PIECE_BYTES", 1)
    page, said = slept(chain, ALL, TWO_RANKS)
    assert page["vllm:prefix_cache_hits_total"] == BLOCK and "why:no_room" in page
    assert f"adopted=1 dropped={139 // BLOCK - 1} why=no_room" in said


def test_what_was_computed_with_other_weights_is_computed_again(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> None:
    names = itertools.count()
    monkeypatch.setattr(Rank, "weights_are", property(lambda self: f"weights {next(names)}"))
    page, _ = slept(chain, ALL)
    assert page["vllm:prefix_cache_hits_total"] == 0 and "why:other_digest" in page


@pytest.mark.parametrize(
    ("most", "left", "blocks"),
    [(40, None, 4), (40, 1000, 4), (40, 60, 3), (40, 0, 0), (0, 1000, 0), (1000, None, 8)],
)
def test_no_more_is_parked_than_has_room_and_than_half_of_what_the_machine_has_left(
    most: int, left: int | None, blocks: int
) -> None:
    assert most_blocks(most, left, size=80, blocks=8) == blocks


def test_where_nothing_is_to_be_parked_nothing_is(chain: Chain) -> None:
    page, said = slept(chain, 0)
    assert page["vllm:prefix_cache_hits_total"] == 0 and "adopted=" not in said


def test_an_answer_that_a_sleep_breaks_off_goes_on_with_all_its_full_blocks(chain: Chain) -> None:
    engine = chain.current = Successor(chain.house, 1, "drop", ("--tokens-per-s", "100"), ALL)
    engine.wake(1)
    asked = Asked(ASKED.prompt, 100)
    had: list[int] = []

    async def broken() -> bool:
        answering = asyncio.create_task(tokens(engine.path, asked, had))
        while len(had) < 30:
            await asyncio.sleep(0.001)
        await asyncio.to_thread(engine.nap)
        return await answering

    assert not asyncio.run(broken()) and 30 <= len(had) < 100
    full = (len(asked.prompt) + len(had) - 1) // BLOCK * BLOCK
    assert asyncio.run(tokens(engine.path, asked, had)) and had == Undisturbed().answer(asked)
    assert asyncio.run(metrics(engine.path))["vllm:prefix_cache_hits_total"] == full
