"""More of the shim's rules, each with the test that fails without it (`make mutants` takes them out one by one). The
table and most rules: `test_lifecycle.py`, `test_probes.py`.
"""

import math

import pytest

from engine_shim.rules import events as e
from engine_shim.rules import probes
from engine_shim.rules.events import State
from engine_shim.rules.lifecycle import (
    BACK_OFF_MOST_S,
    BUSY_SHARE,
    HANDOFF_S,
    LOOK_MOST_S,
    STEADY_S,
    STUCK_S,
    UNWELL_S,
    TreePhase,
)
from sidecar.terminal.exit_codes import EX_FAILS_ALIKE
from tests.engine.machine import CONN, MAIN, WORKER, Harness, at, kinds

LIVING = [State.INIT, State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING, State.SLEEPING]


def again(harness: Harness) -> Harness:
    """Nothing is left of a tree that has ended, and its next start is there."""
    number = harness.machine.number
    harness.gone()
    harness.wait(100.0 if harness.machine.tree is TreePhase.NONE else 0.0)
    assert harness.machine.number == number + 1
    harness.said.clear()
    return harness


def lives(harness: Harness) -> bool:
    return harness.machine.tree is TreePhase.ALIVE


def notes(harness: Harness, event: str) -> list[e.Note]:
    return [said for said in harness.said if isinstance(said, e.Note) and said.event == event]


# -- 1: one tree at a time ---------------------------------------------------------------------------------------------


def test_what_is_left_is_killed_before_each_look_looks_grow_rarer_and_a_tree_that_is_gone_is_forgotten() -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Died(WORKER))
    assert harness.machine.why == "one of its processes died"
    assert harness.machine.deadline < harness.now + LOOK_MOST_S
    for _ in range(20):
        harness.feed(e.Looked(1, False))
        assert harness.machine.deadline <= harness.now + LOOK_MOST_S
        harness.now = harness.machine.deadline
        harness.feed(e.Tick())
    assert kinds(harness.said) == ["KillTree", "Look"] * 21
    assert harness.machine.deadline == pytest.approx(harness.now + LOOK_MOST_S)
    assert e.Forget([MAIN, WORKER]) in harness.gone() and not harness.machine.processes


def test_that_something_cannot_be_killed_is_said_once_for_each_end() -> None:
    harness = at(State.ACTIVE)
    for _ in range(2):
        harness.feed(e.Died(WORKER))
        for _ in range(3):
            harness.feed(e.Looked(1, False), after_s=STUCK_S)
        assert len(notes(harness, "not_gone")) == 1
        again(harness).register()


@pytest.mark.parametrize(
    ("left", "says", "not_this"),
    [
        (e.Looked(2, True, "a lock"), "2 of its processes can't be killed", "another engine-shim"),
        (e.Looked(0, True, "a process holds its life lock"), "a process holds its life lock; is another", "be killed"),
    ],
)
def test_what_is_not_gone_is_an_alarm_after_a_while_and_says_what_is_left(
    left: e.Looked, says: str, not_this: str
) -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Ended(3))
    assert harness.machine.why == "its main process ended with exit code 3"
    harness.feed(left, after_s=STUCK_S * 0.9)
    assert not notes(harness, "not_gone")
    harness.feed(left, after_s=STUCK_S)
    harness.feed(e.Looked(0, False))
    harness.wait(100.0)
    harness.feed(e.Ended(-9))
    assert harness.machine.why == "its main process ended by signal 9"
    (said,) = notes(harness, "not_gone")
    assert said.alarm and says in str(said.detail["why"]) and not_this not in str(said.detail["why"])


def test_an_end_that_is_under_way_is_no_further_death_however_unwell_it_was() -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Beat(False, "a worker is gone"))
    harness.feed(e.Died(MAIN))
    harness.feed(e.Looked(1, False), after_s=2 * UNWELL_S)
    assert harness.machine.counters.deaths == 1 and harness.machine.why == "its main process died"
    assert len(notes(harness, "unwell")) == 1 and notes(harness, "unwell")[0].alarm


def test_a_start_is_noted_with_its_number_and_each_step_with_the_one_before() -> None:
    harness = Harness().begin()
    assert [said.detail["number"] for said in notes(harness, "start")] == [1] and not notes(harness, "state")
    harness.to(State.WAKING)
    assert [(said.detail["before"], said.detail["state"]) for said in notes(harness, "state")] == [
        (State.INIT.value, State.STANDBY.value),
        (State.STANDBY.value, State.WAKING.value),
    ]


def test_a_pause_after_failures_is_noted_and_bounded_however_many_they_were() -> None:
    harness = at(State.INIT)
    harness.feed(e.Ended(-9))
    harness.gone()
    assert not notes(harness, "back_off")
    harness.wait(100.0)
    harness.machine.failures = 5000
    harness.feed(e.Ended(-9))
    harness.gone()
    (said,) = notes(harness, "back_off")
    assert said.detail["seconds"] == BACK_OFF_MOST_S == harness.machine.back_off_s


def test_how_long_it_is_silent_and_makes_no_step_is_said_where_it_should_speak() -> None:
    for state in (*LIVING, State.DEAD):
        machine, now = at(state).machine, 130.0
        machine.queued = 1
        beating = state in (State.STANDBY, State.ACTIVE, State.DRAINING)
        assert bool(machine.silent_s(now)) is bool(machine.no_step_s(now)) is beating
        assert machine.silent_s(now) == (30.0 if beating else 0.0) and machine.silent_s(now - 29.0) == 0.0
        machine.queued = 0
        assert machine.no_step_s(now) == 0.0
    harness = at(State.ACTIVE)
    harness.feed(e.Beat(True))
    harness.feed(e.Died(MAIN))
    harness.machine.state = State.ACTIVE  # what is dead says nothing, and owes nothing
    harness.machine.queued = 1
    assert harness.machine.silent_s(harness.now + 30.0) == harness.machine.no_step_s(harness.now + 30.0) == 0.0


def test_what_uses_processors_gets_no_less_time_than_what_uses_none() -> None:
    harness = at(State.ACTIVE, stall_s=8.0, busy_stall_s=4.0)
    harness.feed(e.Beat(True, queued=1, steps=1))
    works(harness, 7, 1.0)
    assert lives(harness)
    works(harness, 1, 1.0)
    assert not lives(harness)


def test_a_new_step_counts_the_steps_of_the_engine_anew() -> None:
    harness = at(State.ACTIVE, stall_s=8.0)
    harness.feed(e.Beat(True, queued=1, steps=1))
    harness.step(State.DRAINING)
    harness.feed(e.Beat(True, queued=1, steps=1), after_s=5.0)
    works(harness, 7, 0.0)
    assert lives(harness)


def works(harness: Harness, seconds: int, share: float | None) -> None:
    """Work is queued and no step is finished, and the tree uses so much of a processor; None: it can't be said."""
    for _ in range(seconds):
        used_s = None if share is None else share * harness.now
        harness.feed(e.Beat(True, queued=1, steps=1, used_s=used_s), after_s=1.0)


def test_what_uses_processors_without_a_step_is_an_alarm_first_and_is_ended_later() -> None:
    harness = at(State.ACTIVE, stall_s=8.0, busy_stall_s=20.0)
    harness.feed(e.Beat(True, queued=1, steps=1))
    works(harness, 19, BUSY_SHARE * 1.01)
    assert lives(harness)
    (said,) = notes(harness, "no_step")
    assert said.alarm and "20 s" in str(said.detail["why"])
    works(harness, 1, 1.0)
    assert not lives(harness) and "20 s, though it used processors" in harness.machine.why


@pytest.mark.parametrize("share", [0.0, BUSY_SHARE / 2, None])
def test_what_uses_none_or_only_waits_for_a_stopped_process_is_ended_at_the_stall(share: float | None) -> None:
    harness = at(State.ACTIVE, stall_s=8.0, busy_stall_s=1000.0)
    harness.feed(e.Beat(True, queued=1, steps=1))
    works(harness, 7, share)
    assert lives(harness)
    works(harness, 1, share)
    assert not lives(harness) and not notes(harness, "no_step") and "8 s" in harness.machine.why


def test_what_stops_using_processors_is_ended_a_stall_later_and_a_step_makes_all_of_it_good() -> None:
    harness = at(State.ACTIVE, stall_s=8.0, busy_stall_s=1000.0)
    for step in range(1, 4):
        harness.feed(e.Beat(True, queued=1, steps=10 * step))
        harness.feed(e.Beat(True, queued=1, steps=1))
        works(harness, 20, 1.0)
        assert lives(harness) and len(notes(harness, "no_step")) == step
    works(harness, 1, None)
    works(harness, 7, 0.0)
    assert not lives(harness) and "8 s" in harness.machine.why


@pytest.mark.parametrize("state", LIVING)
def test_a_look_that_comes_late_proves_nothing_of_a_tree_that_lives(state: State) -> None:
    harness = at(state)
    harness.gone()
    assert harness.said == [] and harness.machine.tree is TreePhase.ALIVE


# -- 2: as a whole -----------------------------------------------------------------------------------------------------


def test_a_tree_ends_once_however_many_of_its_processes_are_seen_to_end_and_whatever_it_still_says() -> None:
    harness = at(State.ACTIVE)
    for event in (e.Died(WORKER), e.Died(MAIN), e.Ended(-9), e.Reported(State.WAKING), e.NotStarted("x")):
        harness.feed(event)
    assert harness.machine.counters.deaths == 1 and harness.machine.state is State.DEAD
    assert len(notes(harness, "tree_ends")) == 1


def test_an_end_that_was_wanted_is_no_alarm_and_no_death_and_any_other_is() -> None:
    for state, wanted, alarm in (
        (State.ACTIVE, False, True),
        (State.STANDBY, False, True),
        (State.DRAINING, False, False),
        (State.ACTIVE, True, False),
    ):
        harness = at(state)
        if wanted:
            harness.feed(e.Terminate())
        harness.feed(e.Ended(0))
        assert [note.alarm for note in notes(harness, "tree_ends")] == [alarm]
        assert harness.machine.counters.deaths == alarm


# -- 3: who registers --------------------------------------------------------------------------------------------------


def test_each_start_has_its_own_processes_and_admits_them() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.Ended(-9))
    again(harness)
    assert not harness.machine.processes and not harness.machine.main
    assert harness.feed(e.Registered(CONN, 11, 2, True)) == [e.Admit(CONN)]
    assert harness.feed(e.Registered(CONN + 1, 12, 2, False)) == [e.Admit(CONN + 1)]
    assert sorted(harness.machine.processes) == [11, 12]


# -- 4: steps ----------------------------------------------------------------------------------------------------------


def test_a_url_is_said_in_active_alone() -> None:
    harness = at(State.INIT)
    for step in (State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING, State.ACTIVE):
        harness.feed(e.Reported(step, url="unix:/x"))
        assert bool(harness.machine.url) is (step is State.ACTIVE)


# -- 5: bounds ---------------------------------------------------------------------------------------------------------


def test_the_bound_of_init_runs_from_the_start_and_not_from_the_shims() -> None:
    harness = Harness(init_timeout_s=9.0)
    harness.feed(e.Started())
    for _ in range(5):
        harness.feed(e.Looked(0, True), after_s=9.0)  # a process has a life lock
    harness.gone()
    harness.wait(8.9)
    assert lives(harness)
    harness.wait(0.2)
    assert not lives(harness)


@pytest.mark.parametrize(("state", "then"), [(State.INIT, State.STANDBY), (State.WAKING, State.ACTIVE)])
def test_each_step_begins_the_bound_anew_however_long_the_one_before_took(state: State, then: State) -> None:
    harness = at(state, stall_s=10.0)
    harness.wait(50.0)
    harness.step(then)
    harness.wait(9.9)
    assert lives(harness)
    harness.wait(0.2)
    assert not lives(harness)


@pytest.mark.parametrize("state", [State.INIT, State.WAKING])
def test_where_a_state_has_a_bound_of_its_own_a_beat_counts_for_nothing(state: State) -> None:
    harness = at(state)
    for _ in range(10):
        harness.feed(e.Beat(False, "not yet"), after_s=UNWELL_S / 4)
    assert harness.said == [] and harness.machine.well


def test_a_new_start_is_well_until_it_says_otherwise() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.Beat(False, "weights gone", queued=3))
    harness.feed(e.Ended(-9))
    again(harness).register()
    assert harness.machine.well and not harness.machine.unwell_why and not harness.machine.queued
    harness.wait(2 * UNWELL_S)
    assert harness.machine.tree is TreePhase.ALIVE


# -- 6: in place -------------------------------------------------------------------------------------------------------


def test_having_been_ready_for_a_moment_only_makes_no_failure_the_first() -> None:
    harness = at(State.INIT, stall_s=10 * STEADY_S)
    for failures in range(1, 5):
        harness.step(State.STANDBY)
        harness.wait(STEADY_S - 1.0)
        harness.feed(e.Ended(1))
        assert harness.machine.failures == failures
        again(harness).register()


def test_a_pause_after_failures_is_not_cut_short_by_who_serves() -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Ended(-9))
    again(harness).register()
    for _ in range(3):
        harness.feed(e.Ended(1))
        harness.gone()
        harness.feed(e.LockSeen("engine-b.1", serves=True))
        assert harness.machine.tree is TreePhase.NONE and harness.machine.restart_at >= harness.now + HANDOFF_S
        harness.wait(100.0)
        harness.register()


# -- 7: told to end ----------------------------------------------------------------------------------------------------


def test_told_to_end_it_waits_for_its_own_processes_and_told_again_for_nothing() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.Terminate())
    for _ in range(5):
        harness.feed(e.Looked(1, False), after_s=1.0)
    assert "Exit" not in kinds(harness.said)
    assert "Exit" in kinds(harness.feed(e.Terminate()))


def test_told_to_end_while_a_tree_is_ending_it_looks_at_once() -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Died(WORKER))
    for _ in range(10):
        harness.feed(e.Looked(0, True))
        harness.feed(e.Tick(), after_s=0.2)
    assert "Look" in kinds(harness.feed(e.Terminate()))
    harness.feed(e.Looked(0, True))
    assert isinstance(harness.said[-1], e.Exit), "it waits for none but its own"


def test_after_its_exit_nothing_follows() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.Terminate())
    harness.gone()
    assert isinstance(harness.said[-1], e.Exit)
    for event in (e.Terminate(), e.Looked(0, False), e.Ended(1), e.Tick(), e.Registered(CONN, 9, 1, False)):
        assert harness.feed(event, after_s=100.0) == []
    harness = at(State.ACTIVE)
    for _ in range(3):
        harness.feed(e.Terminate())
    assert "Exit" in kinds(harness.said) and harness.machine.deadline == math.inf, "while it looks, too"


def test_one_that_serves_has_no_failures_behind_it() -> None:
    harness = at(State.WAKING)
    harness.machine.failures = 3
    harness.step(State.ACTIVE)
    assert harness.machine.failures == 0


# -- 8: called wrongly -------------------------------------------------------------------------------------------------


def test_told_to_end_its_exit_code_is_0_whatever_the_engine_still_says() -> None:
    harness = at(State.INIT)
    harness.feed(e.Terminate())
    harness.feed(e.Ended(64))
    harness.gone()
    assert isinstance(harness.said[-1], e.Exit) and harness.said[-1].code == 0


# -- figures -----------------------------------------------------------------------------------------------------------


def test_who_held_the_lock_while_an_earlier_start_waited_makes_no_failover_of_this_one() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.LockSeen("engine-b.1"))
    harness.feed(e.Ended(-9))
    harness.feed(e.LockSeen(""))
    again(harness).register()
    harness.to(State.ACTIVE)
    assert harness.machine.counters.failovers == 0


def test_a_switchover_that_is_called_off_is_no_failover() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.LockSeen("engine-b.1"))
    for step in (State.WAKING, State.ACTIVE, State.DRAINING, State.ACTIVE):
        harness.step(step)
    assert harness.machine.counters.failovers == 1


def test_the_wait_for_the_fence_is_measured_from_its_begin() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.LockSeen("engine-b.1"))
    for _ in range(3):
        harness.feed(e.LockSeen("engine-b.1", fencing=True), after_s=1.0)
    harness.now += 1.0
    harness.step(State.WAKING)
    assert harness.machine.counters.phases["fence_wait"].last_s == pytest.approx(3.0)


def test_whether_the_pair_is_redundant_is_what_the_lock_shows() -> None:
    harness = at(State.ACTIVE)
    for redundant in (False, True, False):
        harness.feed(e.LockSeen("engine-a.0123456789abcdef", serves=True, redundant=redundant))
        assert probes.state(harness.machine, harness.now)["redundant"] is redundant


def test_nothing_is_redundant_while_the_lock_cant_be_seen_and_what_it_said_before_holds_when_it_is_back() -> None:
    harness = at(State.ACTIVE)
    seen = e.LockSeen("engine-a.0123456789abcdef", serves=True, redundant=True)
    harness.feed(seen)
    harness.feed(e.LockAway())
    assert not harness.machine.counterparts.redundant and harness.machine.state is State.ACTIVE
    harness.feed(seen)
    assert harness.machine.counterparts.redundant


# -- 8: what another start doesn't mend --------------------------------------------------------------------------------


def failing(harness: Harness, why: str, *, transient: bool = False) -> Harness:
    """Init fails, having said why if it did, and nothing is left of it."""
    if why:
        harness.feed(e.Failing(why, transient=transient))
    harness.feed(e.Ended(1))
    harness.gone()
    if not harness.machine.exiting:
        harness.wait(100.0)
        harness.register()
    return harness


def test_an_init_that_fails_three_times_in_the_same_words_is_the_last() -> None:
    harness = at(State.INIT)
    for why in ("one", "one", "two", "two"):
        assert not failing(harness, why).machine.exiting
    assert failing(harness, "two").machine.exiting
    ended = [said for said in harness.said if isinstance(said, e.Exit)]
    assert [(exit.code, "3 times with the same words" in exit.why and "two" in exit.why) for exit in ended] == [
        (EX_FAILS_ALIKE, True)
    ]


@pytest.mark.parametrize(("why", "transient"), [("no memory", True), ("", False)], ids=["waiting mends it", "killed"])
def test_what_waiting_mends_and_what_was_killed_is_tried_again_and_again(why: str, transient: bool) -> None:
    harness = at(State.INIT)
    for _ in range(5):
        assert not failing(harness, why, transient=transient).machine.exiting


def test_a_standby_between_them_makes_a_failure_the_first_again() -> None:
    harness = at(State.INIT)
    for _ in range(2):
        failing(harness, "one")
    harness.step(State.STANDBY)
    harness.feed(e.Died(WORKER))
    again(harness)
    harness.register()
    for _ in range(2):
        assert not failing(harness, "one").machine.exiting


# -- 9: a counterpart that takes other requests ------------------------------------------------------------------------

SEEN = e.LockSeen("engine-b.1", serves=True, redundant=True, counterparts=("engine-b",))


def test_a_counterpart_that_takes_other_requests_is_an_alarm_and_no_redundancy() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.Takes({"length": "1", "name": "x"}))
    harness.feed(SEEN)
    assert harness.machine.counterparts.redundant, "nothing is known to the contrary"
    for _ in range(2):
        harness.feed(e.OthersTake({"engine-b": {"length": "2", "name": "x"}}))
        assert not harness.machine.counterparts.redundant
    assert [note.alarm for note in notes(harness, "takes_other_requests")] == [True]
    assert probes.state(harness.machine, harness.now)["differences"] == ["length: 1 here, 2 in engine-b"]
    harness.feed(e.OthersTake({"engine-b": {"length": "1", "name": "x"}}))
    assert harness.machine.counterparts.redundant


def test_one_counterpart_that_takes_the_same_is_enough() -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Takes({"length": "1"}))
    harness.feed(e.LockSeen("engine-a.0123456789abcdef", serves=True, redundant=True, counterparts=("b", "c")))
    harness.feed(e.OthersTake({"b": {"length": "2"}, "c": {"length": "1"}}))
    assert harness.machine.counterparts.redundant


# -- probes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_an_engine_that_no_client_can_connect_to_is_not_ready_and_lives(state: State) -> None:
    harness = at(state)
    harness.feed(e.Beat(True, unreachable="the socket is gone"))
    answer = probes.ready(harness.machine, harness.now)
    assert not answer.ok and "the socket is gone" in answer.why and probes.live(harness.machine, harness.now).ok
    harness.wait(UNWELL_S + 1)
    assert lives(harness) and [note.alarm for note in notes(harness, "unreachable")] == [True]
    harness.feed(e.Beat(True))
    assert probes.ready(harness.machine, harness.now).ok and len(notes(harness, "reachable")) == 1


@pytest.mark.parametrize("state", [State.ACTIVE, State.DRAINING])
def test_what_serves_and_is_not_well_is_not_live(state: State) -> None:
    harness = at(state)
    harness.feed(e.Beat(False, "a worker is gone"))
    answer = probes.live(harness.machine, harness.now)
    assert not answer.ok and "a worker is gone" in answer.why


def test_an_active_that_is_silent_or_stuck_is_not_ready() -> None:
    harness = at(State.ACTIVE, stall_s=3.0)
    assert probes.ready(harness.machine, harness.now + 2.9).ok
    assert not probes.ready(harness.machine, harness.now + 3.0).ok


# -- a sleep in place --------------------------------------------------------------------------------------------------


def test_it_sleeps_in_place_and_the_next_wake_is_no_failover() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.LockSeen("engine-b.0123456789abcdef", fencing=True))
    for state in (State.WAKING, State.ACTIVE):
        harness.step(state)
    harness.feed(e.LockSeen(""))
    for state in (State.DRAINING, State.SLEEPING, State.STANDBY):
        harness.step(state)
    assert lives(harness) and probes.ready(harness.machine, harness.now).ok and not harness.machine.url
    for state in (State.WAKING, State.ACTIVE):
        harness.step(state)
    counters = harness.machine.counters
    assert (counters.starts, counters.deaths, counters.failovers) == (1, 0, 1), "the first wake took over"


def test_a_sleep_that_hangs_is_ended_and_that_is_said() -> None:
    harness = at(State.SLEEPING, waking_timeout_s=9.0)
    harness.wait(9.1)
    assert not lives(harness) and "the sleep took longer than 9 s" in harness.machine.why
