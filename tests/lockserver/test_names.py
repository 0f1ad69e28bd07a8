"""Readings of free memory, and the names that no other server may have (rules 3 and 9 of `machine.py`)."""

import pytest

from evidence.rules.free_memory import READ_EVERY_S, FreeMemory
from lockserver.rules.events import MemoryRead, NamesTaken, ReadMemory, TakeNames
from lockserver.rules.exclusion import RETRY_S, Exclusion
from tests.lockserver.parts import Turns


def reading(free: int = 80, in_all: int = 80, problem: str = "") -> MemoryRead:
    return MemoryRead({} if problem else {"gpu": (free, in_all)}, problem)


# -- free memory -------------------------------------------------------------------------------------------------------


class Reader(Turns):
    def __init__(self) -> None:
        super().__init__(reads_memory=True, reader_s=2.0)
        self.memory = FreeMemory(self.config, self.context)

    def wants(self) -> float:
        """A reading is needed. Returns when to look again."""
        while True:
            plan = self.plan()
            self.memory.plan(plan)
            if not plan.steps:
                return plan.again
            for step in plan.steps:
                step.act(*step.args)


def test_a_reading_counts_in_its_own_turn_only() -> None:
    reader = Reader()
    reader.memory.came(reading(80))
    assert not reader.memory.fits({"gpu": 1}), "it wasn't asked for"
    reader.memory.ask()
    reader.memory.came(reading(80))
    assert reader.memory.fits({"gpu": 80}) and not reader.memory.fits({"gpu": 81})
    assert not reader.memory.fits({"gpu": 1, "other": 1})
    reader.memory.forget()
    assert not reader.memory.fits({"gpu": 1}) and reader.memory.fits({})


def test_it_is_asked_for_once_at_a_time_and_not_too_often() -> None:
    reader = Reader()
    reader.wants()
    reader.wants()
    reader.memory.came(reading())
    assert reader.wants() == READ_EVERY_S and len(reader.asked(ReadMemory)) == 1
    reader.memory.ask()
    assert len(reader.asked(ReadMemory)) == 2, "at once, for a waiter that is new"


def test_a_reading_that_comes_too_late_is_not_known_and_that_is_said() -> None:
    reader = Reader()
    assert reader.wants() == 2.0
    reader.at(2.0)
    assert reader.memory.late(2.0)
    reader.wants()
    assert "no answer for 2 s; does the driver hang?" in reader.alarm("reader")
    reader.memory.came(reading(80))
    assert not reader.memory.fits({"gpu": 1}) and not reader.memory.late(2.0)
    assert "no answer for 2 s" in reader.alarm("reader"), "one that is late again and again doesn't make it flap"
    reader.memory.ask()
    reader.memory.came(reading(80))
    assert not reader.alarm("reader")


def test_a_reader_with_a_problem_says_nothing_about_memory() -> None:
    reader = Reader()
    reader.memory.ask()
    reader.memory.came(reading(problem="no driver"))
    assert reader.alarm("reader") == "memory can't be read: no driver"
    assert not reader.memory.fits({"gpu": 1}) and reader.memory.never_fits({"gpu": 10**9}) == ""


def test_without_a_reading_nothing_is_impossible() -> None:
    assert Reader().memory.never_fits({"tpu": 1}) == ""


# -- exclusion ---------------------------------------------------------------------------------------------------------


class Names(Turns):
    def __init__(self) -> None:
        super().__init__()
        self.exclusion = Exclusion(self.config, self.context)

    def has(self, *devices: str) -> bool:
        """They are needed. What isn't there is asked for."""
        plan = self.plan()
        has = self.exclusion.plan(plan, devices)
        self.due = plan.again
        for step in plan.steps:
            step.act(*step.args)
        return has

    def take(self, *missing: tuple[str, str]) -> None:
        self.exclusion.taken(NamesTaken(missing))


TAKEN = ("the path", "process 5")


def test_no_waiter_is_granted_before_the_names_are_taken() -> None:
    names = Names()
    assert not names.has("gpu") and names.asked(TakeNames) == [TakeNames(("gpu",))]
    assert not names.has("gpu") and len(names.asked(TakeNames)) == 1, "asked once"
    names.take()
    assert names.has("gpu") and names.has()


def test_each_device_has_a_name_of_its_own() -> None:
    names = Names()
    names.has("gpu0")
    names.take()
    assert not names.has("gpu1") and names.asked(TakeNames)[-1] == TakeNames(("gpu1",))
    names.take()
    assert names.has("gpu0", "gpu1")


def test_what_another_process_has_is_asked_for_again_and_said() -> None:
    names = Names()
    names.has()
    names.take(TAKEN)
    assert names.alarm("names") == "no engine is granted: process 5 has the path"
    assert names.exclusion.missing == (TAKEN,)
    assert not names.has() and names.due == RETRY_S and len(names.asked(TakeNames)) == 1
    names.at(RETRY_S)
    assert not names.has() and names.asked(TakeNames) == [TakeNames(())]
    names.take()
    assert not names.alarm("names") and not names.exclusion.missing


@pytest.mark.parametrize("quietly", [False, True])
def test_who_has_lost_the_names_may_be_dying_for_a_settling_time(quietly: bool) -> None:
    names = Names()
    if quietly:
        names.exclusion.begin()
    else:
        names.has()
    names.take(TAKEN)
    names.at(RETRY_S)
    assert not names.has()
    names.take()
    assert not names.has() and names.due == RETRY_S + names.config.settle_s
    assert names.exclusion.settles(names.now)
    names.at(RETRY_S + names.config.settle_s)
    assert names.has() and not names.exclusion.settles(names.now)
    names.has("gpu")
    names.take()
    assert names.has("gpu"), "no process had this one"


def test_a_server_that_could_not_take_them_waits_for_no_process() -> None:
    names = Names()
    names.exclusion.begin()
    names.exclusion.taken(NamesTaken((TAKEN,), others=False))
    assert not names.has()
    names.take()
    assert names.has()


def test_after_a_holder_that_was_seen_to_end_no_process_is_waited_for() -> None:
    names = Names()
    names.exclusion.begin()
    names.take(TAKEN)
    names.exclusion.holder_ended()
    names.has()
    names.take()
    assert names.has()


def test_who_has_the_names_after_the_holder_has_ended_is_another_process() -> None:
    names = Names()
    names.exclusion.begin()
    names.take(TAKEN)
    names.exclusion.holder_ended()
    names.has()
    names.take(TAKEN)
    names.at(RETRY_S)
    names.has()
    names.take()
    assert not names.has()


def test_the_first_try_of_a_new_server_is_a_quiet_one() -> None:
    names = Names()
    names.exclusion.begin()
    assert names.asked(TakeNames) == [TakeNames(())]
    names.take(TAKEN)
    assert not names.alarm("names") and not names.has()
    names.take(TAKEN)
    assert names.alarm("names")
