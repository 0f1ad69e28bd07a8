"""What vLLM's scheduler keeps in the table (`engine_shim/vllm_engine/kv_index.py`), on a real GMS. vLLM's pool of
blocks is played here, as far as the index looks at it; with vLLM itself: `tests/vllm/test_kv.py`.
"""

from dataclasses import dataclass, field
from typing import Any

import pytest

from engine_shim.kv.publishing import Step
from engine_shim.vllm_engine import kv_index
from engine_shim.vllm_engine.kv_index import KvIndex, Order
from engine_shim.vllm_engine.worker_settings import WorkerSettings
from tests.kv.engines import Chain
from tests.support.filtered import filtered
from tests.support.waiting import until

BLOCKS = 8


@dataclass(eq=False)
class Block:
    block_id: int
    block_hash: bytes | None = None
    ref_cnt: int = 0
    is_null: bool = False


@dataclass
class Played:
    """vLLM's BlockPool."""

    num_gpu_blocks: int = BLOCKS
    blocks: list[Block] = field(default_factory=lambda: [Block(number) for number in range(BLOCKS)])

    def __post_init__(self) -> None:
        self.free_block_queue = list(self.blocks)

    def _insert_block_hash(self, key: bytes, block: Block, num_tokens: int | None) -> None:
        block.block_hash = key

    def _remove_cached_block_hashes(self, block: Block) -> None:
        block.block_hash = None

    def reset_prefix_cache(self) -> bool:
        for block in self.blocks:
            block.block_hash = None
        return True


def index(chain: Chain, pool: Any) -> KvIndex:
    run_dir = chain.house.run_dir
    kv_index.order_file(run_dir, "e").parent.mkdir(exist_ok=True)
    kv_index.forget_order(run_dir, "e")
    return KvIndex(pool, {"hash": "sha256"}, WorkerSettings(str(run_dir), "e", True, ("host:0",)))


def told(
    chain: Chain, token: int, *, leave: bool = False, pools: tuple[str, ...] = ("kv-0 1",), before: int | None = None
) -> None:
    """Unless it is said, the memory was the last engine's, as the table was."""
    ranks = len(pools)
    had = (token - 1 if before is None else before,) * ranks
    order = Order(token, True, pools, ("",) * ranks, had, ("weights 1",) * ranks, leave)
    kv_index.give(order, chain.house.run_dir, "e")


def cached(pool: Played) -> dict[int, bytes]:
    return {block.block_id: block.block_hash for block in pool.blocks if block.block_hash is not None}


@pytest.mark.chaos
@filtered
def test_what_has_finished_is_there_for_the_next_one_after_an_end_in_order(chain: Chain) -> None:
    gms = chain.house.gms
    assert gms is not None
    for token in (1, 2, 3):  # the end of one that has adopted is no death either
        pool = Played()
        it = index(chain, pool)
        it.begin()
        assert not cached(pool), "it wasn't said that the ranks have their memory"
        told(chain, token)
        it.begin()
        it.begin()
        assert cached(pool) == ({} if token == 1 else {3: b"a" * 36})
        if token == 1:
            it.step = finished = Step()
            pool._insert_block_hash(b"a" * 36, pool.blocks[3], 32)
            pool._insert_block_hash(b"c" * 36, pool.blocks[5], 96)
            pool._remove_cached_block_hashes(pool.blocks[5])
            it.finished(finished)
        else:
            assert pool.free_block_queue[-1] is pool.blocks[3], "what is adopted is written over last"
        it.step = Step()  # of a step that never comes back
        pool._insert_block_hash(b"b" * 36, pool.blocks[4], 64)
        assert not it.leaves()
        told(chain, token, leave=True)
        assert it.leaves()
    until(lambda: gms.said().count(" pool_released ") == 3, "GMS says so, after it has told who asked")


@pytest.mark.chaos
@filtered
def test_when_a_ranks_memory_is_another_or_was_another_engines_nothing_is_believed(chain: Chain) -> None:
    new, same = ("kv-0 2", "kv-1 2"), None
    for token, pools, before, found in (
        (1, ("kv-0 1", "kv-1 1"), same, set()),
        (2, new, same, set()),
        (3, new, same, {2}),
        (5, new, 4, set()),  # an engine had the memory, and not the table
        (6, new, 5, {2}),
    ):
        pool = Played()
        it = index(chain, pool)
        told(chain, token, pools=pools, before=before)
        assert it.begin() is bool(found), "it says whether it has all"
        assert set(cached(pool)) == found
        pool._insert_block_hash(b"a" * 36, pool.blocks[2], 32)
        it.finished(it.step)
        told(chain, token, leave=True)
        assert it.leaves()


@pytest.mark.chaos
def test_where_a_rank_has_not_got_its_part_nothing_is_kept_now_or_later(chain: Chain) -> None:
    pool = Played()
    it = index(chain, pool)
    told(chain, 1, pools=())
    it.begin()
    told(chain, 1)
    it.begin()
    pool._insert_block_hash(b"a" * 36, pool.blocks[2], 32)
    it.finished(it.step)
    told(chain, 1, pools=(), leave=True)
    assert it.leaves()
    assert chain.house.gms is not None and " pool_made " not in chain.house.gms.said()
