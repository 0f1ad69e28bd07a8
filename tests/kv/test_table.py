"""The table's rules, one by one: what a reader may believe, whatever happened to the writer."""

import random
from array import array

import pytest

from engine_shim.kv.adoption import Facts, Why, adopt, why_not_together
from engine_shim.kv.publishing import Publisher, Step
from engine_shim.kv.table import KEY_BYTES, OWNER, KeyTooLong, Record, Table, TableTooSmall, table_bytes
from tests.kv.world import Killed, MortalWords

DIGEST, OTHER = b"d" * 32, b"o" * 32
KEY, KEY_2 = b"k" * 32, b"K" * 36
BLOCKS = 4


def memory() -> memoryview:
    return memoryview(bytearray(table_bytes(BLOCKS))).cast("Q")


def made(words: memoryview | None = None) -> Table:
    table = Table(memory() if words is None else words, BLOCKS)
    table.format(DIGEST)
    return table


def found(table: Table) -> dict[int, bytes]:
    return {record.block: record.key for record in table.found()[0]}


def test_what_was_published_is_read_by_the_next_one() -> None:
    words = memory()
    table = made(words)
    assert table.publish(2, table.generation(2), KEY, 32)
    assert table.publish(3, table.generation(3), KEY_2, 64)
    successor = Table(words, BLOCKS)
    assert successor.matches(DIGEST)
    assert successor.found() == ([Record(2, KEY, 32), Record(3, KEY_2, 64)], [])


def test_a_block_that_is_handed_out_is_not_found_any_more() -> None:
    table = made()
    table.publish(1, table.generation(1), KEY)
    table.invalidate(1)
    assert found(table) == {}


def test_a_step_has_nothing_to_say_about_a_block_that_was_handed_out_again_since() -> None:
    table = made()
    publisher, step = Publisher(table), Step()
    publisher.hand_out(1)
    publisher.fills(step, 1, KEY)
    publisher.hand_out(1)
    publisher.finished(step)
    assert found(table) == {}


def test_nothing_is_published_before_its_step_has_finished() -> None:
    table = made()
    publisher, step = Publisher(table), Step()
    publisher.fills(step, 1, KEY)
    assert found(table) == {}
    publisher.finished(step)
    assert found(table) == {1: KEY}


def test_when_the_cache_is_to_be_forgotten_steps_that_have_not_finished_publish_nothing() -> None:
    table = made()
    publisher, step = Publisher(table), Step()
    table.publish(0, table.generation(0), KEY)
    publisher.fills(step, 1, KEY)
    publisher.forget_all()
    publisher.finished(step)
    assert found(table) == {}


def test_any_flipped_bit_of_a_record_makes_it_untrue_and_no_other() -> None:
    words = memory()
    table = made(words)
    for block in range(BLOCKS):
        table.publish(block, 0, bytes([block]) * 32, 16)
    clean = list(words)
    rng = random.Random(1)
    for _ in range(200):
        at, bit = rng.randrange(16, 16 + 8 * BLOCKS), rng.randrange(64)
        words[at] ^= 1 << bit
        assert set(found(table)) == set(range(BLOCKS)) - {(at - 16) // 8}, f"word {at}, bit {bit}"
        words[at] = clean[at]


def test_a_record_that_lies_in_another_place_is_not_true() -> None:
    words = memory()
    table = made(words)
    table.publish(1, 0, KEY)
    for place in range(8):
        words[16 + 8 * 2 + place] = words[16 + 8 + place]
    assert table.found() == ([Record(1, KEY, 0)], [2])


def test_a_death_at_any_store_of_a_publication_leaves_the_whole_record_or_none() -> None:
    seen = set()
    for stores in range(20):
        words = MortalWords(table_bytes(BLOCKS) // 8, random.Random(stores))
        table = Table(words, BLOCKS)
        table.format(DIGEST)
        words.left = stores
        try:
            table.invalidate(1)
            table.publish(1, table.generation(1), KEY)
        except Killed:
            pass
        assert found(table) in ({}, {1: KEY})
        seen.add(bool(found(table)))
    assert seen == {True, False}


def test_a_death_at_any_store_while_a_table_is_made_leaves_no_table() -> None:
    for stores in range(30):
        words = MortalWords(table_bytes(BLOCKS) // 8, random.Random(stores))
        table = Table(words, BLOCKS)
        table.format(OTHER)
        table.publish(1, table.generation(1), KEY)
        words.left = stores
        try:
            table.format(DIGEST)
        except Killed:
            words.left = -1
            successor = Table(words, BLOCKS)
            assert not successor.matches(DIGEST) or found(successor) == {}
            assert stores == 0 or not successor.matches(OTHER)


def test_a_key_that_is_too_long_and_memory_that_is_too_small_are_refused() -> None:
    with pytest.raises(KeyTooLong):
        made().publish(0, 0, b"x" * (KEY_BYTES + 1))
    with pytest.raises(TableTooSmall):
        Table(array("Q", [0] * 10), BLOCKS)
    with pytest.raises(IndexError):
        made().invalidate(BLOCKS)


def test_the_header_is_as_gms_reads_it() -> None:
    """`gms/shell/tables.py`: magic, where records begin, their size, how many, the byte that says that one is true."""
    words = memory()
    table = made(words)
    table.publish(3, 0, KEY)
    data = words.tobytes()
    assert data[:8] == b"GFTABLE1"
    begin, size, count, mark = (
        int.from_bytes(data[at : at + length], "little") for at, length in ((8, 4), (12, 4), (16, 8), (24, 4))
    )
    assert (begin + size * count, count) == (table_bytes(BLOCKS), BLOCKS)
    assert [bool(data[begin + size * block + mark]) for block in range(BLOCKS)] == [False, False, False, True]


# -- adoption ----------------------------------------------------------------------------------------------------------


def test_what_agrees_is_adopted() -> None:
    words = memory()
    table = made(words)
    table.publish(1, 0, KEY, 16)
    adoption = adopt(Table(words, BLOCKS), DIGEST)
    assert (adoption.records, adoption.dropped, adoption.why) == ((Record(1, KEY, 16),), 0, Why.NONE)


def test_another_digest_drops_everything_and_the_table_is_made_anew() -> None:
    words = memory()
    made(words).publish(1, 0, KEY)
    adoption = adopt(Table(words, BLOCKS), OTHER)
    assert (adoption.records, adoption.dropped, adoption.why) == ((), 1, Why.OTHER_DIGEST)
    assert adopt(Table(words, BLOCKS), OTHER).why is Why.NONE
    assert adopt(Table(words, BLOCKS), DIGEST).why is Why.OTHER_DIGEST


def test_a_torn_header_drops_everything() -> None:
    for at in range(9):
        words = memory()
        made(words).publish(1, 0, KEY)
        words[at] ^= 4
        adoption = adopt(Table(words, BLOCKS), DIGEST)
        assert (adoption.records, adoption.why) == ((), Why.TORN_HEADER), f"word {at}"


def test_what_one_engine_left_is_believed_and_what_an_engine_had_in_part_is_not() -> None:
    assert why_not_together(["", "", ""], [7, 7, 7]) is Why.NONE
    assert why_not_together(["", "", ""], [7, 8, 7]) is Why.OTHER_DIGEST
    assert why_not_together(["", "new", ""], [7, 0, 7]) is Why.NEW


def test_an_empty_table_is_new() -> None:
    words = memory()
    assert adopt(Table(words, BLOCKS), DIGEST).why is Why.NEW
    words = memory()
    words[OWNER] = 7  # the process that claimed it died before there was a table
    assert adopt(Table(words, BLOCKS), DIGEST).why is Why.NEW


def test_a_broken_record_costs_itself_only_and_is_counted_once() -> None:
    words = memory()
    table = made(words)
    table.publish(1, 0, KEY)
    table.publish(2, 0, KEY_2)
    words[16 + 8 + 3] ^= 1
    adoption = adopt(Table(words, BLOCKS), DIGEST)
    assert ([record.block for record in adoption.records], adoption.dropped) == ([2], 1)
    assert adoption.why is Why.BROKEN_RECORD
    assert adopt(Table(words, BLOCKS), DIGEST).why is Why.NONE


def test_every_fact_changes_the_digest() -> None:
    facts = Facts("reference 1", {"model": "a", "weights": "3"}, {"block": "16", "hash": "sha256"}, ("kv-0 7",))
    others = [
        Facts("reference 2", facts.model, facts.blocks, facts.pools),
        Facts(facts.engine, {**facts.model, "model": "b"}, facts.blocks, facts.pools),
        Facts(facts.engine, {**facts.model, "weights": "4"}, facts.blocks, facts.pools),
        Facts(facts.engine, facts.model, {**facts.blocks, "hash": "xxhash"}, facts.pools),
        Facts(facts.engine, facts.model, facts.blocks, ("kv-0 8",)),
        Facts(facts.engine, facts.model, facts.blocks, ("kv-0 7", "kv-1 7")),
    ]
    assert len({each.digest() for each in (facts, *others)}) == 1 + len(others)
