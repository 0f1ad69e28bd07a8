"""The rules of the shim, one by one, and the table: what each event does in each state."""

import pytest

from engine_shim import events as e
from engine_shim.events import Restart, State
from engine_shim.lifecycle import (
    BACK_OFF_MOST_S,
    DRAIN_MARGIN_S,
    FIRST_ANSWERS_S,
    HANDOFF_S,
    STEADY_S,
    STEPS,
    UNWELL_S,
    TreePhase,
)
from tests.engine.machine import CONN, MAIN, WORKER, Bench, at, kinds

LIVING = [State.INIT, State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING]


def dies(bench: Bench) -> bool:
    """Its tree was killed, all of it and at once."""
    return (
        "KillTree" in kinds(bench.said) and bench.machine.tree is TreePhase.ENDING and bench.machine.state is State.DEAD
    )


# -- one tree at a time ------------------------------------------------------------------------------------------------


def test_nothing_is_started_before_an_earlier_tree_of_that_name_is_proven_gone() -> None:
    bench = Bench()
    assert kinds(bench.feed(e.Started())) == ["KillTree", "Look"]
    assert kinds(bench.feed(e.Looked(0, True))) == []
    assert "Start" not in kinds(bench.wait(3.0))
    assert kinds(bench.gone()) == ["CleanUp", "Start"]


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize(
    "left", [e.Looked(1, False), e.Looked(0, True), e.Looked(3, True)], ids=["process", "life lock", "both"]
)
def test_the_next_start_waits_until_nothing_is_left(state: State, left: e.Looked) -> None:
    bench = at(state)
    bench.feed(e.Died(WORKER))
    bench.feed(left)
    for _ in range(50):
        bench.feed(e.Tick(), after_s=0.2)
        bench.feed(left)
    assert "Start" not in kinds(bench.said)
    assert kinds(bench.said).count("Look") > 30, "it looks again and again, and kills what is left"
    assert any(isinstance(x, e.Note) and x.event == "not_gone" and x.alarm for x in bench.said)
    bench.gone()
    bench.wait(HANDOFF_S)
    assert kinds(bench.said)[-3:] == ["Forget", "CleanUp", "Start"]


def test_what_a_tree_left_is_removed_before_the_next_start_and_not_before_the_proof() -> None:
    bench = at(State.ACTIVE)
    bench.feed(e.Ended(-9))
    assert "CleanUp" not in kinds(bench.said)
    bench.gone()
    bench.wait(HANDOFF_S)
    said = kinds(bench.said)
    assert said.index("CleanUp") < said.index("Start")


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("to", LIVING)
def test_steps_come_in_their_order_and_any_other_is_the_end(state: State, to: State) -> None:
    bench = at(state)
    bench.step(to)
    if (state, to) in STEPS:
        assert bench.machine.state is to and kinds(bench.said) == []
    else:
        assert dies(bench)


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("process", [MAIN, WORKER])
def test_the_end_of_any_registered_process_is_the_end_of_all(state: State, process: int) -> None:
    bench = at(state)
    bench.feed(e.Died(process))
    assert dies(bench)


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("code", [0, 1, -9, 70])
def test_the_main_process_never_just_ends_whatever_its_exit_code(state: State, code: int) -> None:
    bench = at(state)
    bench.feed(e.Ended(code))
    assert dies(bench)


@pytest.mark.parametrize("state", LIVING)
def test_the_end_of_a_process_that_nobody_registered_is_nothing(state: State) -> None:
    bench = at(state)
    bench.feed(e.Died(99))
    assert bench.said == []


@pytest.mark.parametrize("state", LIVING)
def test_told_to_end_what_serves_drains_and_the_rest_is_killed(state: State) -> None:
    bench = at(state)
    bench.feed(e.Terminate())
    if state in (State.ACTIVE, State.DRAINING):
        assert kinds(bench.said) == ["Forward"]
        bench.feed(e.Ended(0), after_s=1.0)
    assert dies(bench)
    bench.gone()
    assert bench.said[-1] == e.Exit(0, bench.machine.why)


@pytest.mark.parametrize("state", [State.ACTIVE, State.DRAINING])
def test_a_drain_has_a_bound(state: State) -> None:
    bench = at(state, drain_s=3.0, stall_s=1000.0)
    bench.feed(e.Terminate())
    bench.wait(3.0 + DRAIN_MARGIN_S - 0.1)
    assert bench.machine.tree is TreePhase.ALIVE
    bench.wait(0.2)
    assert dies(bench)


@pytest.mark.parametrize("state", LIVING)
def test_told_twice_it_ends_at_once(state: State) -> None:
    bench = at(state)
    bench.feed(e.Terminate())
    bench.feed(e.Terminate())
    assert "KillTree" in kinds(bench.said)


def test_told_to_end_it_does_not_wait_for_others_who_hold_a_life_lock() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Terminate())
    bench.feed(e.Looked(0, True))
    assert isinstance(bench.said[-1], e.Exit)


def test_told_to_end_between_two_starts_it_ends() -> None:
    bench = at(State.INIT)
    for _ in range(2):
        bench.feed(e.Ended(1))
        bench.gone()
        bench.register()
    assert bench.machine.tree is TreePhase.NONE, "it rests"
    bench.feed(e.Terminate())
    assert isinstance(bench.said[-1], e.Exit)


@pytest.mark.parametrize("state", LIVING)
def test_the_exit_mode_ends_with_the_engine(state: State) -> None:
    bench = at(state, Restart.EXIT)
    bench.feed(e.Ended(-9))
    assert dies(bench)
    bench.gone()
    assert kinds(bench.said)[-2:] == ["CleanUp", "Exit"] and bench.said[-1] == e.Exit(1, bench.machine.why)


def test_an_engine_that_was_called_wrongly_is_not_started_again() -> None:
    bench = at(State.INIT)
    bench.feed(e.Ended(64))
    bench.gone()
    assert bench.said[-1] == e.Exit(64, bench.machine.why)


def test_exit_code_64_counts_though_a_worker_was_seen_to_end_first_and_the_reason_is_what_it_said() -> None:
    """Workers die with their parent's thread, which ends before the process does."""
    bench = at(State.INIT)
    bench.feed(e.Died(WORKER))
    bench.feed(e.Failing("other weights"))
    bench.feed(e.Ended(64))
    bench.gone()
    assert bench.said[-1] == e.Exit(64, "other weights")


def test_a_worker_that_says_that_no_start_can_help_is_believed_in_init_and_it_is_the_reason() -> None:
    """What its main process says of it afterwards is that some process failed."""
    bench = at(State.INIT)
    bench.feed(e.Failing("other weights", hopeless=True))
    bench.feed(e.Failing("failed in init: some process failed"))
    bench.feed(e.Died(WORKER))
    bench.feed(e.Ended(-9))
    bench.gone()
    assert bench.said[-1] == e.Exit(64, "other weights")


def test_what_no_start_could_help_in_init_means_nothing_later_on() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Failing("other weights", hopeless=True))
    bench.feed(e.Died(WORKER))
    bench.gone()
    bench.wait(HANDOFF_S)
    assert kinds(bench.said)[-1] == "Start"
    bench.register()
    bench.feed(e.Died(WORKER))
    bench.gone()
    assert not any(isinstance(effect, e.Exit) for effect in bench.said), "nor for the next start"


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_exit_code_64_means_nothing_later_on(state: State) -> None:
    bench = at(state)
    bench.feed(e.Ended(64))
    bench.gone()
    bench.wait(HANDOFF_S)
    assert kinds(bench.said)[-1] == "Start"


# -- who may come ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("start", [0, 2, 99])
def test_a_process_of_another_start_is_turned_away(start: int) -> None:
    bench = at(State.INIT)
    assert kinds(bench.feed(e.Registered(CONN, 9, start, False))) == ["TurnAway", "Forget"]


def test_nobody_joins_a_tree_that_is_ending() -> None:
    bench = at(State.ACTIVE)
    bench.feed(e.Died(WORKER))
    assert kinds(bench.feed(e.Registered(CONN, 9, bench.machine.number, False))) == ["TurnAway", "Forget"]


def test_there_is_one_main_process() -> None:
    bench = at(State.INIT)
    assert kinds(bench.feed(e.Registered(CONN, 9, 1, True))) == ["TurnAway", "Forget"]


def test_what_a_dying_tree_still_says_counts_for_nothing() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.Died(WORKER))
    bench.step(State.WAKING)
    bench.feed(e.Beat(True))
    assert bench.machine.state is State.DEAD


# -- nothing takes for ever --------------------------------------------------------------------------------------------


def test_init_and_waking_have_their_bounds() -> None:
    for bench in (at(State.INIT, init_timeout_s=9.0), at(State.WAKING, waking_timeout_s=9.0)):
        bench.wait(8.9)
        assert bench.said == []
        bench.wait(0.2)
        assert dies(bench) and "9 s" in bench.machine.why


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE, State.DRAINING])
def test_a_silent_main_process_is_ended_at_the_bound(state: State) -> None:
    bench = at(state, stall_s=4.0)
    for _ in range(10):
        bench.feed(e.Beat(True), after_s=1.0)
    bench.wait(3.9)
    assert bench.said == []
    bench.wait(0.2)
    assert dies(bench) and "silent" in bench.machine.why


def test_work_queued_and_no_step_is_a_stall_and_no_work_is_none() -> None:
    bench = at(State.ACTIVE, stall_s=4.0)
    for _ in range(10):
        bench.feed(e.Beat(True, queued=0, steps=3), after_s=1.0)
    for step in range(10):
        bench.feed(e.Beat(True, queued=5, steps=4 + step), after_s=1.0)
    assert bench.said == [], "a long queue is no stall while steps finish"
    for _ in range(3):
        bench.feed(e.Beat(True, queued=5, steps=13), after_s=1.0)
    assert bench.said == []
    bench.feed(e.Beat(True, queued=5, steps=13), after_s=1.0)
    assert dies(bench) and "no step" in bench.machine.why


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_an_engine_that_says_that_it_is_not_well_is_ended_unless_it_gets_well(state: State) -> None:
    bench = at(state)
    for _ in range(4):
        bench.feed(e.Beat(False, "weights gone"), after_s=UNWELL_S / 4)
    bench.feed(e.Beat(True))
    assert kinds(bench.said) == []
    for _ in range(6):
        bench.feed(e.Beat(False, "weights gone"), after_s=UNWELL_S / 4)
    assert dies(bench) and "weights gone" in bench.machine.why


def test_a_wake_needs_no_beats() -> None:
    bench = at(State.WAKING, stall_s=1.0, waking_timeout_s=60.0)
    bench.wait(30.0)
    assert bench.said == []


# -- starting again ----------------------------------------------------------------------------------------------------


def pauses(bench: Bench, failures: int) -> list[float]:
    found: list[float] = []
    for _ in range(failures):
        bench.feed(e.Ended(1))
        bench.gone()
        before, number = bench.now, bench.machine.number
        if kinds(bench.said)[-1] != "Start":
            bench.wait(BACK_OFF_MOST_S)
        found.append(round(bench.machine.since - before, 3))
        assert bench.machine.number in (number, number + 1)
        bench.register()
    return found


def test_it_starts_again_at_once_after_the_first_failure_and_later_after_more() -> None:
    found = pauses(at(State.INIT), 12)
    assert found[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert found[-1] == BACK_OFF_MOST_S


def test_having_served_makes_the_next_failure_the_first_again() -> None:
    bench = at(State.INIT)
    pauses(bench, 5)
    bench.to(State.ACTIVE)
    assert pauses(bench, 2) == [HANDOFF_S, 0.5]


@pytest.mark.parametrize("state", [State.WAKING, State.ACTIVE, State.DRAINING])
def test_one_that_held_the_lock_leaves_its_successor_the_processors(state: State) -> None:
    for serves in (False, True):
        bench = at(state)
        bench.feed(e.Ended(-9))
        bench.gone()
        bench.feed(e.LockSeen(bench.machine.incarnation, serves=True))
        assert "Start" not in kinds(bench.said)
        bench.feed(e.LockSeen("engine-b.1", serves=serves))
        assert "Start" not in kinds(bench.said)
        bench.wait(FIRST_ANSWERS_S)
        assert ("Start" in kinds(bench.said)) is serves
        bench.wait(HANDOFF_S)
        assert "Start" in kinds(bench.said)


def test_having_been_ready_for_a_while_too() -> None:
    bench = at(State.INIT, stall_s=10 * STEADY_S)
    pauses(bench, 5)
    bench.to(State.STANDBY)
    bench.wait(STEADY_S)
    assert pauses(bench, 1) == [0.0]


def test_a_wake_that_fails_each_time_is_backed_off_from() -> None:
    bench = at(State.INIT)
    for _ in range(4):
        bench.to(State.WAKING)
        bench.feed(e.Ended(1))
        bench.gone()
        bench.wait(BACK_OFF_MOST_S)
        bench.register()
    assert bench.machine.failures == 4


def test_an_engine_that_cannot_be_started_at_all_is_tried_again_later() -> None:
    bench = Bench()
    bench.feed(e.Started())
    bench.gone()
    for _ in range(3):
        bench.feed(e.NotStarted("no such program"))
        bench.gone()
        bench.wait(BACK_OFF_MOST_S)
    assert bench.machine.number == 4 and "no such program" in bench.machine.why


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_failover_is_a_wake_after_having_waited_behind_another() -> None:
    first, second = at(State.STANDBY), at(State.STANDBY)
    for bench in (first, second):
        if bench is second:
            bench.feed(e.LockSeen("engine-b.1"))
            bench.feed(e.LockSeen("engine-b.1", fencing=True), after_s=1.0)
        bench.feed(e.LockSeen("engine-a.0123456789abcdef"), after_s=0.25)
        bench.step(State.WAKING)
        bench.step(State.ACTIVE)
    assert (first.machine.counters.failovers, second.machine.counters.failovers) == (0, 1)


def test_a_holder_that_was_seen_while_it_initialised_counts_too() -> None:
    bench = at(State.INIT)
    bench.feed(e.LockSeen("engine-b.1"))
    bench.to(State.ACTIVE)
    assert bench.machine.counters.failovers == 1


def test_the_wait_for_the_fence_is_measured() -> None:
    bench = at(State.STANDBY)
    bench.feed(e.LockSeen("engine-b.1"))
    bench.feed(e.LockSeen("engine-b.1", fencing=True), after_s=9.0)
    bench.now += 0.25
    bench.step(State.WAKING)
    assert bench.machine.counters.phases["fence_wait"].last_s == pytest.approx(0.25)


def test_the_time_to_restore_redundancy_runs_from_the_death_to_the_next_standby() -> None:
    bench = at(State.ACTIVE)
    bench.feed(e.Ended(-9))
    bench.gone()
    bench.wait(HANDOFF_S)
    bench.feed(e.Ended(-9), after_s=2.0 - HANDOFF_S)
    bench.gone()
    bench.wait(1.0)
    bench.register()
    bench.now = bench.now + 1.0
    bench.step(State.STANDBY)
    assert bench.machine.counters.restored.last_s == pytest.approx(4.0)
    assert bench.machine.counters.restored.counts.count(1) == 1
