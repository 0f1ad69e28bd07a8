"""What a successor doesn't believe is computed again, silently and correctly, and log and metrics say why."""

import asyncio
import random
from collections.abc import Callable

import pytest

from gms.client import GmsClient, PoolMapping, open_memory
from tests.engine.shims import House
from tests.gms.pool_program import mapped, unmap
from tests.kv.engines import Asked, Chain, Successor, Undisturbed, metrics, tokens
from tests.support.filtered import filtered
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
HEADER, RECORD = 128, 64
ASKED = Asked(tuple(random.Random(7).randrange(300) for _ in range(100)), 40)


def answer(engine: Successor) -> tuple[list[int], dict[str, float]]:
    """The same question as ever, and what the engine says of its cache afterwards."""

    async def both() -> tuple[list[int], dict[str, float]]:
        had: list[int] = []
        assert await tokens(engine.path, ASKED, had)
        return had, await metrics(engine.path)

    return asyncio.run(both())


@filtered
def disturb(house: House, token: int, how: Callable[[PoolMapping], None]) -> None:
    """Between two engines: another process owns the pool for a moment."""
    with GmsClient(house.run_dir, "host:0", "test", memory=open_memory("host:0")) as client:
        pool = client.pool("kv-0")
        there = until(lambda: pool.there, "it has been told of the pool")
        mapping = pool.claim(there.shape, token=token, proven=True, timeout_s=20)
        assert mapping.adopted
        how(mapping)
        mapping.release()


def flip_a_record(mapping: PoolMapping) -> None:
    first = next(at for at in range(HEADER, len(mapping.table) - RECORD, RECORD) if mapping.table[at])
    mapping.table[first + 30] ^= 1


def tear_the_header(mapping: PoolMapping) -> None:
    mapping.table[40] ^= 1


def change_the_blocks(mapping: PoolMapping) -> None:
    """Every number of every block is another, and the table says that all is well."""
    (blocks,) = mapped(mapping._memory, mapping)
    blocks[:] = bytes(len(blocks))
    unmap(mapping._memory, [blocks])


@pytest.fixture
def second(chain: Chain, monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[list[int], dict[str, float]]]:
    """The first engine answers and is killed; something happens; what does the second one say? It may be another in
    what it says of itself (`is_other`).
    """

    def turn(
        how: Callable[[PoolMapping], None] | None = None,
        *,
        proven: bool = True,
        arguments: tuple[str, ...] = (),
        is_other: tuple[str, object] | None = None,
    ) -> tuple[list[int], dict[str, float]]:
        chain.current = Successor(chain.house, 1)
        chain.current.wake(1)
        answer(chain.current)
        if is_other is not None:
            name, value = is_other
            monkeypatch.setattr(f"reference_engine.engine.{name}", value)
        chain.next = Successor(chain.house, 2, arguments=arguments)
        chain.current.kill()
        chain.current, chain.next = chain.next, None
        if how is not None:
            disturb(chain.house, 2, how)
        chain.current.wake(3, proven)
        return answer(chain.current)

    return turn


@pytest.fixture(scope="module")
def right() -> list[int]:
    return Undisturbed().answer(ASKED)


def test_with_nothing_wrong_all_full_blocks_are_reused(
    second: Callable[..., tuple[list[int], dict[str, float]]], right: list[int]
) -> None:
    said, page = second()
    assert said == right
    assert page["vllm:prefix_cache_hits_total"] == 96 and "why:none" in page
    assert page["failover_kv_blocks_adopted_total"] == 139 // 16


def test_one_flipped_bit_costs_that_block(
    second: Callable[..., tuple[list[int], dict[str, float]]], right: list[int]
) -> None:
    said, page = second(flip_a_record)
    assert said == right
    assert page["failover_kv_blocks_dropped_total"] == 1 and "why:broken_record" in page
    assert page["failover_kv_blocks_adopted_total"] == 139 // 16 - 1


@pytest.mark.parametrize(
    ("how", "proven", "arguments", "why"),
    [
        pytest.param(tear_the_header, True, (), "torn_header", id="a torn table"),
        pytest.param(None, False, (), "unproven", id="an end that is not proven"),
        pytest.param(None, True, ("--kv-bytes", "2MiB"), "replaced", id="another shape"),
    ],
)
def test_what_does_not_agree_is_computed_again_and_said(
    second: Callable[..., tuple[list[int], dict[str, float]]],
    right: list[int],
    how: Callable[[PoolMapping], None] | None,
    proven: bool,
    arguments: tuple[str, ...],
    why: str,
) -> None:
    said, page = second(how, proven=proven, arguments=arguments)
    assert said == right
    assert page["vllm:prefix_cache_hits_total"] == 0 and f"why:{why}" in page


def test_blocks_that_hold_something_else_make_wrong_tokens(
    second: Callable[..., tuple[list[int], dict[str, float]]], right: list[int]
) -> None:
    """So that all the other tests of this package can fail."""
    said, _ = second(change_the_blocks)
    assert said != right


@pytest.mark.parametrize(
    "is_other",
    [("VERSION", "another"), ("described", lambda shape: "another")],
    ids=["another version", "another model"],
)
def test_what_another_version_or_model_left_is_computed_again(
    second: Callable[..., tuple[list[int], dict[str, float]]], right: list[int], is_other: tuple[str, object]
) -> None:
    said, page = second(is_other=is_other)
    assert said == right
    assert page["vllm:prefix_cache_hits_total"] == 0 and "why:other_digest" in page


def test_a_pool_whose_owner_lives_is_not_given_away(chain: Chain) -> None:
    chain.current = Successor(chain.house, 1)
    chain.current.wake(1)
    chain.next = Successor(chain.house, 2, arguments=("--wake-timeout-s", "1"))
    with pytest.raises(AssertionError, match="PoolOwned"):
        chain.next.wake(2)
    assert answer(chain.current)[0] == Undisturbed().answer(ASKED), "and its owner goes on"


def test_an_end_in_order_keeps_the_cache_too(chain: Chain, right: list[int]) -> None:
    chain.current = Successor(chain.house, 1)
    chain.current.wake(1)
    answer(chain.current)
    chain.current.end()
    chain.current = Successor(chain.house, 2)
    chain.current.wake(2)
    said, page = answer(chain.current)
    assert said == right and page["vllm:prefix_cache_hits_total"] == 96


def test_with_drop_every_engine_begins_with_an_empty_cache(chain: Chain, right: list[int]) -> None:
    chain.kv = "drop"
    chain.begin()
    assert chain.current is not None
    answer(chain.current)
    chain.turn()
    said, page = answer(chain.current)
    assert said == right
    assert page["vllm:prefix_cache_hits_total"] == 0 and "why:no_pool" in page
