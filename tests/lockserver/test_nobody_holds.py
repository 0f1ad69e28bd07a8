"""Is it so that no engine holds, where no file says so? Each verdict, and the sentence that is printed of it."""

from dataclasses import replace

import pytest

from evidence.rules.events import StrangersProbed
from lockserver.rules.flags import Flags, Unnamed, nobody_holds
from lockserver.rules.lock import Found
from tests.lockserver.parts import UNNAMED

ORDINARY = Flags()
PRESUME_DEAD = Flags(presume_dead=True)
UNPROVEN = Flags(grant_unproven=True)
NONE = StrangersProbed((), ())
KNOWN = Unnamed(strangers=NONE, others_awaited=(), let_go_lately=False, memory_is_free=False, over=False)
AWAITED = "no holder file: an unknown holder may come back"


@pytest.mark.parametrize(
    ("known", "said"),
    [
        (KNOWN, f"not proven: {AWAITED}"),
        (replace(KNOWN, strangers=None, over=True), "not proven: the life files are being looked at"),
        (
            replace(KNOWN, strangers=StrangersProbed(("c.1", "d.2"), ("e.3",)), over=True, memory_is_free=True),
            "not proven: life lock of c.1: held by a process that has not registered; "
            "life lock of d.2: held by a process that has not registered",
        ),
        (
            replace(KNOWN, strangers=StrangersProbed((), (), "Permission denied"), over=True, memory_is_free=True),
            "not proven: the life files can't be read: Permission denied",
        ),
        (
            replace(KNOWN, others_awaited=("a process of c is alive",), over=True, memory_is_free=True),
            "not proven: a process of c is alive",
        ),
        (
            replace(KNOWN, let_go_lately=True, over=True, memory_is_free=True),
            "not proven: a process has let go of its life lock a moment ago",
        ),
        (replace(KNOWN, memory_is_free=True), "proven: no process has a life lock here, and the memory is free"),
        (replace(KNOWN, over=True), "proven: no process has a life lock here, and none has come back in time"),
    ],
    ids=["time is left", "not asked", "a stranger", "unreadable", "awaited", "lately", "memory", "over"],
)
def test_what_is_said_of_an_unknown_holder(known: Unnamed, said: str) -> None:
    verdict = nobody_holds(UNNAMED.found, known, ORDINARY)
    assert str(verdict) == said and not verdict.alarm.startswith("holder.json")


def test_a_stranger_who_does_not_come_is_an_alarm_once_the_time_is_over() -> None:
    held = replace(KNOWN, strangers=StrangersProbed(("c.1", "d.2", "e.3", "f.4"), ()))
    assert not nobody_holds(Found.NOTHING, held, ORDINARY).alarm
    alarm = nobody_holds(Found.NOTHING, replace(held, over=True), ORDINARY).alarm
    assert alarm == "a life lock is held by a process that doesn't come: c.1, d.2, e.3"


def test_what_lives_and_does_not_come_is_an_alarm_once_the_time_is_over() -> None:
    awaited = replace(KNOWN, others_awaited=("a process of c is alive", "a process of d is alive"))
    assert not nobody_holds(Found.NOTHING, awaited, ORDINARY).alarm
    alarm = nobody_holds(Found.NOTHING, replace(awaited, over=True), ORDINARY).alarm
    assert alarm == "no engine is granted: a process of c is alive"


def test_life_files_that_cannot_be_read_are_an_alarm_once_the_time_is_over() -> None:
    unreadable = replace(KNOWN, strangers=StrangersProbed((), (), "Too many open files"))
    assert not nobody_holds(Found.NOTHING, unreadable, ORDINARY).alarm
    alarm = nobody_holds(Found.NOTHING, replace(unreadable, over=True), UNPROVEN).alarm
    assert alarm == "the life files can't be read: Too many open files; no engine is granted until they can"


def test_a_file_that_cannot_be_read_is_worse_than_none() -> None:
    over = replace(KNOWN, over=True)
    no = nobody_holds(Found.UNREADABLE, over, ORDINARY)
    assert str(no) == "not proven: a holder file that can't be read: an unknown holder may come back"
    assert no.alarm.startswith("holder.json could not be read") and "--grant-unproven" in no.alarm
    assert nobody_holds(Found.UNREADABLE, over, UNPROVEN).enough
    assert not nobody_holds(Found.UNREADABLE, KNOWN, UNPROVEN).enough, "not before the time is over"
    assert nobody_holds(Found.UNREADABLE, replace(KNOWN, memory_is_free=True), ORDINARY).enough


def test_presume_dead_takes_the_time_for_a_proof() -> None:
    held = replace(KNOWN, strangers=StrangersProbed(("c.1",), ()))
    assert not nobody_holds(Found.NOTHING, held, PRESUME_DEAD).enough
    assert str(nobody_holds(Found.NOTHING, replace(held, over=True), PRESUME_DEAD)) == (
        "not proven, and enough by a flag: the window is over (--unsafe-presume-dead)"
    )
