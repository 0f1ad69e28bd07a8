"""What the lock server's flags make of the evidence's verdict on a holder, and the sentence that is printed of it."""

import pytest

from evidence.rules.incarnation import Incarnation, Life
from evidence.rules.proof import Verdict, gone
from lockserver.rules.flags import Flags, with_flags
from tests.evidence.parts import incarnation, killed, unaccounted

PRESUME_DEAD = Flags(presume_dead=True)
UNPROVEN = Flags(grant_unproven=True)


def verdict(
    who: Incarnation, flags: Flags, *, found: bool = True, over: bool = False, everything: bool = False
) -> Verdict:
    """`everything`: all that could stand for the proof."""
    evidence = gone(who, found=found, over=over, memory_is_free=everything, life_lock_is_enough=everything)
    return with_flags(who, evidence, flags, may_be_presumed=found and over)


@pytest.mark.parametrize("flags", [PRESUME_DEAD, UNPROVEN], ids=["presume dead", "grant unproven"])
@pytest.mark.parametrize("life", [Life.HELD, Life.MISSING, Life.UNKNOWN], ids=lambda life: life.value)
def test_without_a_doubt_no_flag_stands_for_the_proof(flags: Flags, life: Life) -> None:
    assert not verdict(killed(incarnation(), life=life), flags, found=False, over=True, everything=True).enough


def test_a_holder_that_is_seen_alive_is_not_gone_whatever_else_is_so() -> None:
    who = incarnation()
    who.life = Life.FREE
    assert str(verdict(who, UNPROVEN, over=True, everything=True)) == "not proven: main process 1 of a is alive"


def test_at_the_end_of_the_window_the_alarm_says_which_flag_there_is() -> None:
    assert not verdict(unaccounted(), Flags()).alarm
    assert verdict(unaccounted(members=2), Flags(), over=True).alarm == (
        "the life lock of a is free, but nothing proves the end of processes 1, 2; "
        "once you know that it is gone, start the server with --grant-unproven"
    )


def test_grant_unproven_waits_for_the_window_and_for_the_life_lock() -> None:
    assert not verdict(unaccounted(), UNPROVEN).enough
    assert not verdict(unaccounted(life=Life.HELD), UNPROVEN, over=True).enough
    by_flag = verdict(unaccounted(), UNPROVEN, over=True)
    assert by_flag.enough and by_flag.by_flag
    assert by_flag.by == (
        "a is taken for gone because its life lock is free; nothing proves the end of every process (--grant-unproven)"
    )


def test_presume_dead_waits_for_the_window_and_for_nothing_else() -> None:
    assert not verdict(unaccounted(life=Life.HELD), PRESUME_DEAD).enough
    by_flag = verdict(unaccounted(life=Life.HELD), PRESUME_DEAD, over=True)
    assert by_flag.enough and by_flag.by_flag
    assert by_flag.by == "a is presumed dead after the window, without proof (--unsafe-presume-dead)"


def test_what_is_proven_is_not_put_down_to_a_flag() -> None:
    flags = Flags(presume_dead=True, grant_unproven=True)
    assert not verdict(killed(incarnation()), flags, over=True).by_flag
