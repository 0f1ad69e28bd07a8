"""Each verdict of the proof, and the sentence that is printed of it. Nothing is built but what is known."""

import pytest

from evidence.rules.incarnation import Incarnation, Life
from evidence.rules.proof import Verdict, gone, what_is_missing
from tests.evidence.parts import incarnation, killed, unaccounted

UNKNOWN = dict.fromkeys(("found", "over", "memory_is_free", "life_lock_is_enough"), False)


def verdict(who: Incarnation, **known: bool) -> Verdict:
    return gone(who, **{**UNKNOWN, **known})


# -- the ordinary proof ------------------------------------------------------------------------------------------------


def test_it_takes_both_parts() -> None:
    proven = verdict(killed(incarnation(members=2)))
    assert proven.enough and not proven.by_flag
    assert str(proven) == "proven: every process has ended, and no process holds the life lock"


def test_a_process_that_lives_is_named() -> None:
    who = incarnation(members=3)
    who.members[1].dead = True
    no = verdict(who)
    assert str(no) == "not proven: process 2 of a is alive; process 3 of a is alive"
    who.members[3].out_of_reach = "another PID namespace"
    assert verdict(who).missing[1] == "process 3 of a is alive, which can't be killed from here (another PID namespace)"
    who.members[3].pid = 0
    assert verdict(who).missing[1].startswith("process of unknown number of a is alive, which can't be killed")


def test_a_life_lock_that_a_process_holds_is_named() -> None:
    no = verdict(killed(incarnation(), life=Life.HELD))
    assert str(no) == "not proven: life lock of a.00000000: held by a process that did not join"


def test_a_life_file_that_is_missing_is_no_free_lock() -> None:
    no = verdict(killed(incarnation(), life=Life.MISSING))
    assert str(no) == "not proven: life lock of a.00000000: its file is missing"


@pytest.mark.parametrize("life", [Life.HELD, Life.MISSING, Life.UNKNOWN], ids=lambda life: life.value)
def test_without_a_doubt_no_memory_and_no_time_stands_for_the_proof(life: Life) -> None:
    who = killed(incarnation(), life=life)
    no = verdict(who, over=True, memory_is_free=True, life_lock_is_enough=True)
    assert not no.enough and not no.unprovable


# -- a server that is new ----------------------------------------------------------------------------------------------


def test_who_is_not_back_has_not_ended_by_that() -> None:
    no = verdict(unaccounted(members=2), found=True)
    assert no.missing == (
        "main process 1 of a: not back yet, and no proof of its end",
        "process 2 of a: not back yet, and no proof of its end",
    )


def test_a_free_life_lock_and_free_memory_prove_the_end_of_those_who_could_not_let_go_of_it() -> None:
    proven = verdict(unaccounted(), found=True, memory_is_free=True)
    assert proven.enough and not proven.by_flag
    assert proven.by == "no process holds the life lock, which none of it could let go of, and the memory is free"


def test_one_process_that_could_let_go_of_it_spoils_that() -> None:
    who = unaccounted(members=2)
    who.members[2].mapped = False
    assert not verdict(who, found=True, memory_is_free=True).enough
    who.members[2].dead = True
    assert verdict(who, found=True, memory_is_free=True).enough


def test_free_memory_alone_proves_nothing() -> None:
    for life in (Life.HELD, Life.UNKNOWN, Life.MISSING):
        assert not verdict(unaccounted(life=life), found=True, memory_is_free=True).enough


def test_a_life_file_that_was_removed_counts_as_free_once_the_time_is_over() -> None:
    who = killed(incarnation(), life=Life.MISSING)
    assert not verdict(who, found=True).enough
    proven = verdict(who, found=True, over=True)
    assert str(proven) == "proven: every process that joined has ended, and the life file was removed"
    assert not proven.every_process, "a process that never joined may have had a lock on that file"


def test_for_a_permit_a_free_life_lock_is_enough() -> None:
    proven = verdict(unaccounted(mapped=False), found=True, life_lock_is_enough=True)
    assert str(proven) == "proven: no process holds the life lock"
    assert not verdict(unaccounted(life=Life.HELD), found=True, life_lock_is_enough=True).enough


def test_a_process_that_is_seen_alive_is_not_gone_whatever_else_is_so() -> None:
    who = incarnation()
    who.life = Life.FREE
    everything = verdict(who, found=True, over=True, memory_is_free=True, life_lock_is_enough=True)
    assert str(everything) == "not proven: main process 1 of a is alive"


def test_at_the_end_of_the_window_a_person_is_asked_for() -> None:
    before, over = verdict(unaccounted(members=2), found=True), verdict(unaccounted(members=2), found=True, over=True)
    assert not before.alarm and not before.unprovable and not over.enough
    assert over.unprovable and not over.by_flag
    assert over.alarm == "the life lock of a is free, but nothing proves the end of processes 1, 2"
    assert verdict(unaccounted(), found=True, over=True).alarm.endswith("the end of process 1")
    assert not verdict(unaccounted(life=Life.HELD), found=True, over=True).unprovable


def test_an_alarm_names_no_more_than_five_processes() -> None:
    assert verdict(unaccounted(members=9), found=True, over=True).alarm.endswith("processes 1, 2, 3, 4, 5")


def test_who_lives_and_cannot_talk_is_named() -> None:
    who = incarnation()
    who.cannot_talk = "it speaks version 9"
    assert "a lives and it speaks version 9" in what_is_missing(who, new_server=True)
