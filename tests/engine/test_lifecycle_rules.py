"""More of the shim's rules, each with the test that fails without it (`tests/mutants/engine_rules.py` takes some out
one by one). The table and most rules: `test_lifecycle.py`, `test_probes.py`.
"""

import itertools

import pytest

from engine_shim import events as e
from engine_shim import probes
from engine_shim.events import State
from engine_shim.lifecycle import HANDOFF_S, LOOK_FIRST_S, LOOK_MOST_S, STEADY_S, STUCK_S, UNWELL_S, TreePhase
from tests.engine.machine import CONN, MAIN, WORKER, Bench, at, kinds

LIVING = [State.INIT, State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING]


def again(bench: Bench) -> Bench:
    """Nothing is left of a tree that has ended, and its next start is there."""
    number = bench.machine.number
    bench.gone()
    bench.wait(100.0 if bench.machine.tree is TreePhase.NONE else 0.0)
    assert bench.machine.number == number + 1
    bench.said.clear()
    return bench


def lives(bench: Bench) -> bool:
    return bench.machine.tree is TreePhase.ALIVE


def notes(bench: Bench, event: str) -> list[e.Note]:
    return [said for said in bench.said if isinstance(said, e.Note) and said.event == event]


# -- 1: one tree at a time ---------------------------------------------------------------------------------------------


def test_what_is_left_is_killed_before_each_look_and_looks_are_never_far_apart() -> None:
    bench = at(State.ACTIVE)
    bench.feed(e.Died(WORKER))
    for _ in range(20):
        bench.feed(e.Looked(1, False))
        assert bench.machine.deadline <= bench.now + LOOK_MOST_S
        bench.now = bench.machine.deadline
        bench.feed(e.Tick())
    assert kinds(bench.said) == ["KillTree", "Look"] * 21


def test_each_end_is_looked_after_at_once_however_long_the_last_one_took() -> None:
    bench = at(State.ACTIVE)
    for _ in range(2):
        bench.feed(e.Died(WORKER))
        bench.feed(e.Looked(1, False))
        assert bench.machine.deadline == pytest.approx(bench.now + LOOK_FIRST_S)
        for _ in range(20):
            bench.feed(e.Tick(), after_s=0.2)
        again(bench).register()


def test_that_something_cannot_be_killed_is_said_once_for_each_end() -> None:
    bench = at(State.ACTIVE)
    for _ in range(2):
        bench.feed(e.Died(WORKER))
        for _ in range(3):
            bench.feed(e.Looked(1, False), after_s=STUCK_S)
        assert len(notes(bench, "not_gone")) == 1
        again(bench).register()


@pytest.mark.parametrize("state", LIVING)
def test_a_look_that_comes_late_proves_nothing_of_a_tree_that_lives(state: State) -> None:
    bench = at(state)
    bench.gone()
    assert bench.said == [] and bench.machine.tree is TreePhase.ALIVE


# -- 2: as a whole -----------------------------------------------------------------------------------------------------


def test_a_tree_ends_once_however_many_of_its_processes_are_seen_to_end_and_whatever_it_still_says() -> None:
    bench = at(State.ACTIVE)
    for event in (e.Died(WORKER), e.Died(MAIN), e.Ended(-9), e.Reported(State.WAKING), e.NotStarted("x")):
        bench.feed(event)
    assert bench.machine.counters.deaths == 1
    assert len(notes(bench, "tree_ends")) == 1


def test_what_the_main_process_says_last_is_the_reason_of_this_end_and_of_no_other() -> None:
    bench = at(State.WAKING)
    bench.feed(e.Failing("failed in waking: no memory"))
    bench.feed(e.Ended(1))
    assert bench.machine.why == "failed in waking: no memory"
    again(bench).register()
    bench.feed(e.Ended(1))
    assert bench.machine.why == "its main process ended with exit code 1"


def test_who_is_dead_serves_nowhere() -> None:
    bench = at(State.ACTIVE)
    assert bench.machine.url
    bench.feed(e.Ended(-9))
    assert not bench.machine.url


def test_an_end_that_was_wanted_alarms_nobody_and_any_other_does() -> None:
    for state, wanted, alarm in (
        (State.ACTIVE, False, True),
        (State.STANDBY, False, True),
        (State.DRAINING, False, False),
        (State.ACTIVE, True, False),
    ):
        bench = at(state)
        if wanted:
            bench.feed(e.Terminate())
        bench.feed(e.Ended(0))
        assert [note.alarm for note in notes(bench, "tree_ends")] == [alarm]


# -- 3: who registers --------------------------------------------------------------------------------------------------


def test_each_start_has_its_own_processes_and_admits_them() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Ended(-9))
    again(bench)
    assert not bench.machine.processes and not bench.machine.main
    assert bench.feed(e.Registered(CONN, 11, 2, True)) == [e.Admit(CONN)]
    assert bench.feed(e.Registered(CONN + 1, 12, 2, False)) == [e.Admit(CONN + 1)]
    assert sorted(bench.machine.processes) == [11, 12]


# -- 4: steps ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", LIVING)
@pytest.mark.parametrize("state", LIVING)
def test_the_steps_are_these(state: State, to: State) -> None:
    bench = at(state)
    bench.step(to)
    way = ["Init", "Standby", "Waking", "Active", "Draining", "Active"]
    allowed = (state.value, to.value) in itertools.pairwise(way)
    assert (bench.machine.tree is TreePhase.ALIVE) is allowed


def test_a_url_is_said_in_active_alone() -> None:
    bench = at(State.INIT)
    for step in (State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING, State.ACTIVE):
        bench.feed(e.Reported(step, url="unix:/x"))
        assert bool(bench.machine.url) is (step is State.ACTIVE)


# -- 5: bounds ---------------------------------------------------------------------------------------------------------


def test_the_bound_of_init_runs_from_the_start_and_not_from_the_shims() -> None:
    bench = Bench(init_timeout_s=9.0)
    bench.feed(e.Started())
    for _ in range(5):
        bench.feed(e.Looked(0, True), after_s=9.0)  # somebody has a life lock
    bench.gone()
    bench.wait(8.9)
    assert lives(bench)
    bench.wait(0.2)
    assert not lives(bench)


@pytest.mark.parametrize(("state", "then"), [(State.INIT, State.STANDBY), (State.WAKING, State.ACTIVE)])
def test_each_step_begins_the_bound_anew_however_long_the_one_before_took(state: State, then: State) -> None:
    bench = at(state, stall_s=10.0)
    bench.wait(50.0)
    bench.step(then)
    bench.wait(9.9)
    assert lives(bench)
    bench.wait(0.2)
    assert not lives(bench)


@pytest.mark.parametrize("state", [State.INIT, State.WAKING])
def test_where_a_state_has_a_bound_of_its_own_a_beat_counts_for_nothing(state: State) -> None:
    bench = at(state)
    for _ in range(10):
        bench.feed(e.Beat(False, "not yet"), after_s=UNWELL_S / 4)
    assert bench.said == [] and bench.machine.well


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_one_that_got_well_is_not_ended_for_what_was(state: State) -> None:
    bench = at(state)
    bench.feed(e.Beat(False, "weights gone"))
    for _ in range(20):
        bench.feed(e.Beat(True), after_s=UNWELL_S / 4)
    assert bench.machine.tree is TreePhase.ALIVE and kinds(bench.said) == []


def test_a_new_start_is_well_until_it_says_otherwise() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Beat(False, "weights gone", queued=3))
    bench.feed(e.Ended(-9))
    again(bench).register()
    assert bench.machine.well and not bench.machine.unwell_why and not bench.machine.queued
    bench.wait(2 * UNWELL_S)
    assert bench.machine.tree is TreePhase.ALIVE


# -- 6: in place -------------------------------------------------------------------------------------------------------


def test_having_been_ready_for_a_moment_only_makes_no_failure_the_first() -> None:
    bench = at(State.INIT, stall_s=10 * STEADY_S)
    for failures in range(1, 5):
        bench.step(State.STANDBY)
        bench.wait(STEADY_S - 1.0)
        bench.feed(e.Ended(1))
        assert bench.machine.failures == failures
        again(bench).register()


def test_only_a_start_that_held_the_lock_itself_waits_for_a_successor() -> None:
    bench = at(State.ACTIVE, stall_s=10 * STEADY_S)
    bench.feed(e.Ended(-9))
    again(bench).register()
    assert bench.machine.token == 0 and probes.state(bench.machine, bench.now)["token"] == 0
    bench.step(State.STANDBY)
    bench.wait(STEADY_S)
    bench.feed(e.Ended(-9))
    bench.gone()
    assert kinds(bench.said)[-1] == "Start"


def test_a_pause_after_failures_is_not_cut_short_by_who_serves() -> None:
    bench = at(State.ACTIVE)
    bench.feed(e.Ended(-9))
    again(bench).register()
    for _ in range(3):
        bench.feed(e.Ended(1))
        bench.gone()
        bench.feed(e.LockSeen("engine-b.1", serves=True))
        assert bench.machine.tree is TreePhase.NONE and bench.machine.restart_at >= bench.now + HANDOFF_S
        bench.wait(100.0)
        bench.register()


# -- 7: told to end ----------------------------------------------------------------------------------------------------


def test_told_to_end_it_waits_for_its_own_processes_and_told_again_for_nothing() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Terminate())
    for _ in range(5):
        bench.feed(e.Looked(1, False), after_s=1.0)
    assert "Exit" not in kinds(bench.said)
    assert "Exit" in kinds(bench.feed(e.Terminate()))


def test_told_to_end_while_a_tree_is_ending_it_looks_at_once() -> None:
    bench = at(State.ACTIVE)
    bench.feed(e.Died(WORKER))
    for _ in range(10):
        bench.feed(e.Looked(0, True))
        bench.feed(e.Tick(), after_s=0.2)
    assert "Look" in kinds(bench.feed(e.Terminate()))
    bench.feed(e.Looked(0, True))
    assert isinstance(bench.said[-1], e.Exit), "it waits for nobody but its own"


def test_after_its_exit_nothing_follows() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Terminate())
    bench.gone()
    assert isinstance(bench.said[-1], e.Exit)
    for event in (e.Terminate(), e.Looked(0, False), e.Ended(1), e.Tick(), e.Registered(CONN, 9, 1, False)):
        assert bench.feed(event, after_s=100.0) == []


# -- 8: called wrongly -------------------------------------------------------------------------------------------------


def test_that_it_was_called_wrongly_counts_though_a_worker_was_seen_to_end_before() -> None:
    bench = at(State.INIT)
    bench.feed(e.Died(WORKER))
    bench.feed(e.Ended(64))
    bench.gone()
    assert isinstance(bench.said[-1], e.Exit) and bench.said[-1].code == 64


def test_told_to_end_its_exit_code_is_0_whatever_the_engine_still_says() -> None:
    bench = at(State.INIT)
    bench.feed(e.Terminate())
    bench.feed(e.Ended(64))
    bench.gone()
    assert isinstance(bench.said[-1], e.Exit) and bench.said[-1].code == 0


# -- figures -----------------------------------------------------------------------------------------------------------


def test_who_held_the_lock_while_an_earlier_start_waited_makes_no_failover_of_this_one() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.LockSeen("engine-b.1"))
    bench.feed(e.Ended(-9))
    bench.feed(e.LockSeen(""))
    again(bench).register()
    bench.to(State.ACTIVE)
    assert bench.machine.counters.failovers == 0


def test_a_switchover_that_is_called_off_is_no_failover() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.LockSeen("engine-b.1"))
    for step in (State.WAKING, State.ACTIVE, State.DRAINING, State.ACTIVE):
        bench.step(step)
    assert bench.machine.counters.failovers == 1


def test_the_wait_for_the_fence_is_measured_from_its_begin() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.LockSeen("engine-b.1"))
    for _ in range(3):
        bench.feed(e.LockSeen("engine-b.1", fencing=True), after_s=1.0)
    bench.now += 1.0
    bench.step(State.WAKING)
    assert bench.machine.counters.phases["fence_wait"].last_s == pytest.approx(3.0)


def test_whether_the_pair_is_redundant_is_what_the_lock_shows() -> None:
    bench = at(State.ACTIVE)
    for redundant in (False, True, False):
        bench.feed(e.LockSeen("engine-a.0123456789abcdef", serves=True, redundant=redundant))
        assert probes.state(bench.machine, bench.now)["redundant"] is redundant


def test_nothing_is_redundant_while_the_lock_cant_be_seen_and_what_it_said_before_holds_when_it_is_back() -> None:
    bench = at(State.ACTIVE)
    seen = e.LockSeen("engine-a.0123456789abcdef", serves=True, redundant=True)
    bench.feed(seen)
    bench.feed(e.LockAway())
    assert not bench.machine.counterparts.redundant and bench.machine.state is State.ACTIVE
    bench.feed(seen)
    assert bench.machine.counterparts.redundant


# -- 8: what another start doesn't mend --------------------------------------------------------------------------------


def failing(bench: Bench, why: str, *, passing: bool = False) -> Bench:
    """Init fails, having said why if it did, and nothing is left of it."""
    if why:
        bench.feed(e.Failing(why, passing=passing))
    bench.feed(e.Ended(1))
    bench.gone()
    if not bench.machine.exiting:
        bench.wait(100.0)
        bench.register()
    return bench


def test_an_init_that_fails_three_times_in_the_same_words_is_the_last() -> None:
    bench = at(State.INIT)
    for why in ("one", "one", "two", "two"):
        assert not failing(bench, why).machine.exiting
    assert failing(bench, "two").machine.exiting
    ended = [said for said in bench.said if isinstance(said, e.Exit)]
    assert [(exit.code, "3 times with the same words" in exit.why and "two" in exit.why) for exit in ended] == [
        (64, True)
    ]


@pytest.mark.parametrize(("why", "passing"), [("no memory", True), ("", False)], ids=["waiting mends it", "killed"])
def test_what_waiting_mends_and_what_was_killed_is_tried_again_and_again(why: str, passing: bool) -> None:
    bench = at(State.INIT)
    for _ in range(5):
        assert not failing(bench, why, passing=passing).machine.exiting


def test_a_standby_between_them_makes_a_failure_the_first_again() -> None:
    bench = at(State.INIT)
    for _ in range(2):
        failing(bench, "one")
    bench.step(State.STANDBY)
    bench.feed(e.Died(WORKER))
    again(bench)
    bench.register()
    for _ in range(2):
        assert not failing(bench, "one").machine.exiting


# -- 9: a counterpart that takes other requests ------------------------------------------------------------------------

SEEN = e.LockSeen("engine-b.1", serves=True, redundant=True, counterparts=("engine-b",))


def test_a_counterpart_that_takes_other_requests_is_an_alarm_and_no_redundancy() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Takes({"length": "1", "name": "x"}))
    bench.feed(SEEN)
    assert bench.machine.counterparts.redundant, "nothing is known to the contrary"
    for _ in range(2):
        bench.feed(e.OthersTake({"engine-b": {"length": "2", "name": "x"}}))
        assert not bench.machine.counterparts.redundant
    assert [note.alarm for note in notes(bench, "takes_other_requests")] == [True]
    assert probes.state(bench.machine, bench.now)["differences"] == ["length: 1 here, 2 in engine-b"]
    bench.feed(e.OthersTake({"engine-b": {"length": "1", "name": "x"}}))
    assert bench.machine.counterparts.redundant


def test_one_counterpart_that_takes_the_same_is_enough() -> None:
    bench = at(State.ACTIVE)
    bench.feed(e.Takes({"length": "1"}))
    bench.feed(e.LockSeen("engine-a.0123456789abcdef", serves=True, redundant=True, counterparts=("b", "c")))
    bench.feed(e.OthersTake({"b": {"length": "2"}, "c": {"length": "1"}}))
    assert bench.machine.counterparts.redundant


# -- probes ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_an_engine_that_nobody_can_connect_to_is_not_ready_and_lives(state: State) -> None:
    bench = at(state)
    bench.feed(e.Beat(True, door="the socket is gone"))
    answer = probes.ready(bench.machine, bench.now)
    assert not answer.ok and "the socket is gone" in answer.why and probes.live(bench.machine, bench.now).ok
    bench.wait(UNWELL_S + 1)
    assert lives(bench) and [note.alarm for note in notes(bench, "door_lost")] == [True]
    bench.feed(e.Beat(True))
    assert probes.ready(bench.machine, bench.now).ok


@pytest.mark.parametrize("state", [State.ACTIVE, State.DRAINING])
def test_what_serves_and_is_not_well_is_not_live(state: State) -> None:
    bench = at(state)
    bench.feed(e.Beat(False, "a worker is gone"))
    answer = probes.live(bench.machine, bench.now)
    assert not answer.ok and "a worker is gone" in answer.why


def test_an_active_that_is_silent_or_stuck_is_not_ready() -> None:
    bench = at(State.ACTIVE, stall_s=3.0)
    assert probes.ready(bench.machine, bench.now + 2.9).ok
    assert not probes.ready(bench.machine, bench.now + 3.0).ok
