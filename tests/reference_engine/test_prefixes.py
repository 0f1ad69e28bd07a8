"""Which request builds on whose blocks."""

import random

from hypothesis import given
from hypothesis import strategies as st

from reference_engine.kv_prefix import Blocks, Chain
from reference_engine.places import BLOCK


def keys(*tokens: int) -> list[bytes]:
    """For blocks that repeat one token each."""
    return Chain(token for token in tokens for _ in range(BLOCK)).keys


def fill(blocks: Blocks, *tokens: int) -> tuple[int, ...]:
    taken = blocks.take(BLOCK * len(tokens), keys(*tokens))
    for block, key in list(zip(taken.blocks, keys(*tokens), strict=True))[taken.reused :]:
        blocks.filled(block, key)
    return taken.blocks


def test_a_key_stands_for_all_tokens_before_it() -> None:
    assert keys(1, 2)[1] != keys(3, 2)[1]
    assert keys(1, 2)[0] == keys(1, 3)[0]
    one_by_one = Chain()
    for token in [1] * BLOCK + [2] * BLOCK + [3]:
        one_by_one.extend([token])
    assert one_by_one.keys == keys(1, 2)


def test_what_begins_in_the_same_way_shares_the_blocks_while_they_are_used_and_afterwards() -> None:
    blocks = Blocks(8)
    first = fill(blocks, 1, 2, 3)
    assert blocks.take(BLOCK * 4, keys(1, 2, 9)).blocks[:2] == first[:2]
    blocks.give(first)
    assert blocks.take(BLOCK * 3, keys(1, 2, 3)).reused == 3


def test_what_is_shared_is_free_only_when_the_last_one_has_given_it_back() -> None:
    blocks = Blocks(2)
    first = fill(blocks, 1)
    second = blocks.take(BLOCK, keys(1)).blocks
    blocks.give(first)
    assert blocks.free == 1
    blocks.give(second)
    assert blocks.free == 2


def test_blocks_that_hold_nothing_go_first_then_the_oldest_and_a_requests_last_ones_before_its_first() -> None:
    handed_out: list[int] = []
    blocks = Blocks(5, handed_out.append)
    old, new = fill(blocks, 1, 2), fill(blocks, 3)
    blocks.give(old)
    blocks.give(new)
    del handed_out[:]
    taken = blocks.take(BLOCK * 5).blocks
    assert list(taken[2:]) == [old[1], old[0], new[0]]
    assert tuple(handed_out) == taken, "a keeper of records hears of each block before it is written"


def test_a_block_that_is_shared_is_not_handed_out_anew() -> None:
    handed_out: list[int] = []
    blocks = Blocks(4, handed_out.append)
    fill(blocks, 1, 2)
    del handed_out[:]
    blocks.take(BLOCK * 2, keys(1, 2))
    assert handed_out == []


def test_of_two_blocks_with_the_same_only_one_is_known() -> None:
    blocks = Blocks(4)
    a, b = blocks.take(BLOCK).blocks, blocks.take(BLOCK).blocks
    assert blocks.filled(a[0], keys(1)[0])
    assert not blocks.filled(b[0], keys(1)[0])
    blocks.give(b)
    blocks.give(a)
    assert blocks.take(BLOCK, keys(1)).blocks == a


def test_what_is_adopted_is_found_and_is_the_last_to_be_written_over() -> None:
    blocks = Blocks(4)
    assert blocks.adopt([(0, keys(1, 2)[1]), (1, keys(1)[0]), (2, keys(1)[0])]) == 2
    assert blocks.free == 4
    assert blocks.take(BLOCK * 2, keys(1, 2)).blocks == (1, 0)
    assert set(blocks.take(BLOCK * 2).blocks) == {2, 3}


@given(st.integers(0, 1 << 32))
def test_no_block_is_ever_two_things_at_once(seed: int) -> None:
    rng = random.Random(seed)
    blocks = Blocks(6)
    holds: dict[int, bytes] = {}
    running: list[tuple[int, ...]] = []
    for _ in range(60):
        if running and rng.random() < 0.5:
            blocks.give(running.pop(rng.randrange(len(running))))
            continue
        wanted = keys(*(rng.randrange(2) for _ in range(rng.randrange(1, 4))))
        if not blocks.fits(BLOCK * len(wanted), wanted):
            continue
        taken = blocks.take(BLOCK * len(wanted), wanted)
        for place, (block, key) in enumerate(zip(taken.blocks, wanted, strict=True)):
            if place < taken.reused:
                assert holds[block] == key
            else:
                assert all(block not in others for others in running), "a request builds on it"
                holds[block] = key
                blocks.filled(block, key)
        running.append(taken.blocks)
