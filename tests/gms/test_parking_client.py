"""A process's side of parked weights, one promise a test (rules 3 and 4 of `gms/rules/shared_client.py`)."""

import pytest

from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.shared_client import Doing
from tests.gms.test_machine_client import DOCUMENT, HASH, LAYOUT, Program

PARKED = m.Parked(generation=6, hash=HASH, size=30, layout=DOCUMENT, sums=["a", "b"], contents=5)
KEPT = c.Kept(6, HASH, [30], DOCUMENT, ["a", "b"], table=True, contents=5)
GONE = m.RegionDropped(key="weights", bytes=30, seen=True)


def asleep() -> Program:
    program = Program()
    program.sleeps()
    return program


def begins_to_park(program: Program) -> None:
    program.feed(m.Open("rw", 0.0, replace=True, parks=5))
    program.hears(m.Opened(mode="rw", generation=6))
    program.feed(m.Create(30))
    program.hears(m.Created(slab=0, size=30, fds=1))
    program.feed(m.Checksums(5, ["a", "b"]))
    program.feed(c.Publish(DOCUMENT, (30,)))
    assert program.last_said == m.Commit(layout=DOCUMENT)


def test_a_sleeper_keeps_the_parked_memory_in_place_of_its_slabs_and_hands_it_back() -> None:
    program = asleep()
    effects = program.hears(PARKED, m.Drop(generation=5))
    assert effects[:2] == [c.Keep(6, 0), c.LetGo(5)] and program.machine.kept == KEPT
    assert program.count(c.Stale) == 0, "its program need know nothing of it"
    program.feed(c.Disconnected())
    program.later(1)
    program.comes_in(6, HASH, recovering=True)
    back = program.last_said
    assert isinstance(back, m.HandBack) and program.brought == [(0, 1)]
    assert (back.generation, back.sizes, back.table, back.reading, back.sums) == (6, [30], True, False, ["a", "b"])
    assert back.layout == DOCUMENT
    program.hears(m.HandedBack(generation=6), m.Drop(generation=6))
    assert program.machine.kept is None


def test_a_reader_that_is_refused_has_the_parked_memory_and_can_bring_it_back() -> None:
    program = Program()
    program.comes_in(6, HASH)
    program.feed(m.Open("ro", 3.0))
    program.hears(PARKED, m.Refused(why="parked", reason="parked"))
    assert program.last(c.No) == c.No("parked", "parked") and program.machine.kept == KEPT
    program.feed(m.Open("rw", 3.0, replace=True, unparks=6))
    program.hears(m.Opened(mode="rw", generation=7))
    for slab, size in enumerate((10, 20)):
        program.feed(m.Create(size))
        program.hears(m.Created(slab=slab, size=size, fds=1))
    program.feed(c.Publish(DOCUMENT, (10, 20)))
    program.hears(m.Committed(generation=7, hash=HASH), m.Drop(generation=6))
    assert program.machine.doing is Doing.READING
    assert program.machine.kept == c.Kept(7, HASH, [10, 20], DOCUMENT, ["a", "b"], contents=5)


def test_a_wake_that_is_given_up_just_when_the_layout_is_parked_keeps_it() -> None:
    program = asleep()
    program.feed(m.Open("ro", 3.0, expect=HASH))
    program.feed(c.Sleep())
    program.hears(PARKED, m.Drop(generation=5), m.Refused(why="parked", reason="parked"), m.Withdrawn())
    assert program.machine.kept == KEPT and program.count(c.Stale) == 0 and program.count(c.No) == 0


@pytest.mark.parametrize("reads", [True, False])
def test_a_process_that_reads_or_has_nothing_keeps_no_parked_memory(reads: bool) -> None:
    program = Program()
    program.reads() if reads else program.comes_in()
    before = program.machine.kept
    program.hears(PARKED)
    assert program.count(c.Keep) == int(reads) and program.machine.kept == before


def test_a_writer_that_parks_hears_of_the_devices_slabs_and_reads_nothing() -> None:
    program = asleep()
    begins_to_park(program)
    program.hears(m.Committed(generation=6, hash=HASH))
    assert program.machine.doing is Doing.NOTHING and program.machine.kept == KEPT
    assert program.last(m.Changed) == m.Changed(6, HASH)
    assert program.last_said == m.Withdraw(keeps=6) and program.count(m.Committed) == 0
    program.hears(GONE)
    assert program.last(m.RegionDropped) == GONE
    program.hears(m.Withdrawn(), GONE)
    assert program.count(m.RegionDropped) == 1


def test_a_writer_that_has_parked_is_answered_also_when_the_server_goes_away() -> None:
    program = asleep()
    begins_to_park(program)
    program.hears(m.Committed(generation=6, hash=HASH))
    program.feed(c.Disconnected())
    assert program.last(m.Committed) == m.Committed(6, HASH)


def test_a_writer_that_is_interrupted_while_it_waits_for_the_devices_slabs_does_not_hear_of_them_later() -> None:
    """That would be the answer to whatever it asks next."""
    program = asleep()
    begins_to_park(program)
    program.hears(m.Committed(generation=6, hash=HASH))
    program.feed(c.Sleep())
    program.hears(m.Withdrawn())
    program.feed(m.Open("ro", 3.0))
    program.hears(GONE)
    assert program.count(m.RegionDropped) == 0 and program.machine.doing is Doing.WAITING


def test_a_server_that_dies_after_the_commit_was_on_disk_gets_it_back_and_one_before_has_the_old() -> None:
    program = asleep()
    begins_to_park(program)
    program.feed(c.Disconnected())
    program.later(1)
    program.comes_in(6, HASH, recovering=True)
    back = program.last_said
    assert isinstance(back, m.HandBack) and (back.generation, back.table, back.reading) == (6, True, False)
    program.hears(m.HandedBack(generation=6))
    assert program.last(m.Committed) == m.Committed(6, HASH) and program.machine.kept == KEPT
    program = asleep()
    begins_to_park(program)
    program.feed(c.Disconnected())
    program.later(1)
    program.comes_in(5, HASH, recovering=True)
    back = program.last_said
    assert program.count(c.Lost) == 1 and isinstance(back, m.HandBack) and back.generation == 5


@pytest.mark.parametrize("published", [True, False])
def test_a_writer_that_cant_move_a_layout_keeps_what_it_had(published: bool) -> None:
    program = asleep()
    if published:
        begins_to_park(program)
        program.hears(m.Refused(why="the disk is full", reason="disk"))
    else:
        program.feed(m.Open("rw", 0.0, replace=True, parks=5))
        program.hears(m.Opened(mode="rw", generation=6))
    program.feed(c.Sleep())
    assert program.last(c.LetGo) == c.LetGo(6) and m.Withdraw(keeps=5) in program.said
    assert program.machine.kept is not None and program.machine.kept.generation == 5
    program.hears(m.Withdrawn())
    assert program.machine.doing is Doing.NOTHING


def test_a_reader_knows_whose_contents_it_has() -> None:
    program = Program()
    program.comes_in()
    program.feed(m.Open("ro"))
    moved = m.Opened(mode="ro", generation=7, hash=HASH, sizes=[10, 20], layout=DOCUMENT, contents=5)
    program.hears(moved, m.Slabs(generation=7, first=0, fds=2))
    assert program.machine.kept is not None and program.machine.kept.contents == 5
    assert LAYOUT.contents == 0
