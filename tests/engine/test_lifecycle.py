"""The rules of the shim, one by one, and the table: what each event does in each state."""

import itertools

import pytest

from engine_shim.rules import events as e
from engine_shim.rules.events import Restart, State
from engine_shim.rules.lifecycle import (
    BACK_OFF_MOST_S,
    DRAIN_MARGIN_S,
    FIRST_ANSWERS_S,
    HANDOFF_S,
    STEADY_S,
    UNWELL_S,
    TreePhase,
)
from tests.engine.machine import CONN, MAIN, WORKER, Harness, at, kinds

LIVING = [State.INIT, State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING, State.SLEEPING]


def dies(harness: Harness) -> bool:
    """Its tree was killed, all of it and at once."""
    return (
        "KillTree" in kinds(harness.said)
        and harness.machine.tree is TreePhase.ENDING
        and harness.machine.state is State.DEAD
    )


# -- one tree at a time ------------------------------------------------------------------------------------------------


def test_nothing_is_started_before_an_earlier_tree_of_that_name_is_proven_gone() -> None:
    harness = Harness()
    assert kinds(harness.feed(e.Started())) == ["KillTree", "Look"]
    assert kinds(harness.feed(e.Looked(0, True))) == []
    assert "Start" not in kinds(harness.wait(3.0))
    assert kinds(harness.gone()) == ["CleanUp", "Start"]


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize(
    "left", [e.Looked(1, False), e.Looked(0, True), e.Looked(3, True)], ids=["process", "life lock", "both"]
)
def test_the_next_start_waits_until_nothing_is_left(state: State, left: e.Looked) -> None:
    harness = at(state)
    harness.feed(e.Died(WORKER))
    harness.feed(left)
    for _ in range(50):
        harness.feed(e.Tick(), after_s=0.2)
        harness.feed(left)
    assert "Start" not in kinds(harness.said)
    assert kinds(harness.said).count("Look") > 30, "it looks again and again, and kills what is left"
    assert any(isinstance(x, e.Note) and x.event == "not_gone" and x.alarm for x in harness.said)
    harness.gone()
    harness.wait(HANDOFF_S)
    assert kinds(harness.said)[-3:] == ["Forget", "CleanUp", "Start"]


# -- the table ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("to", LIVING)
def test_steps_come_in_their_order_and_any_other_is_the_end(state: State, to: State) -> None:
    harness = at(state)
    harness.step(to)
    way = ["Init", "Standby", "Waking", "Active", "Draining", "Active", "Draining", "Sleeping", "Standby"]
    if (state.value, to.value) in itertools.pairwise(way):
        assert harness.machine.state is to and kinds(harness.said) == []
    else:
        assert dies(harness)


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("process", [MAIN, WORKER])
def test_the_end_of_any_registered_process_is_the_end_of_all(state: State, process: int) -> None:
    harness = at(state)
    harness.feed(e.Died(process))
    assert dies(harness)


@pytest.mark.parametrize("state", LIVING)
@pytest.mark.parametrize("code", [0, 1, -9, 70])
def test_the_main_process_never_just_ends_whatever_its_exit_code(state: State, code: int) -> None:
    harness = at(state)
    harness.feed(e.Ended(code))
    assert dies(harness)


@pytest.mark.parametrize("state", LIVING)
def test_the_end_of_a_process_that_was_not_registered_is_nothing(state: State) -> None:
    harness = at(state)
    harness.feed(e.Died(99))
    assert harness.said == []


@pytest.mark.parametrize("state", LIVING)
def test_told_to_end_what_serves_drains_and_the_rest_is_killed(state: State) -> None:
    harness = at(state)
    harness.feed(e.Terminate())
    if state in (State.ACTIVE, State.DRAINING):
        assert kinds(harness.said) == ["Forward"]
        harness.feed(e.Ended(0), after_s=1.0)
    assert dies(harness)
    harness.gone()
    assert harness.said[-1] == e.Exit(0, harness.machine.why)


@pytest.mark.parametrize("state", [State.ACTIVE, State.DRAINING])
def test_a_drain_has_a_bound(state: State) -> None:
    harness = at(state, drain_s=3.0, stall_s=1000.0, busy_stall_s=1000.0)
    harness.feed(e.Terminate())
    harness.wait(3.0 + DRAIN_MARGIN_S - 0.1)
    assert harness.machine.tree is TreePhase.ALIVE
    harness.wait(0.2)
    assert dies(harness) and "it was told to end and had not drained within 3 s" in harness.machine.why


def test_told_to_end_between_two_starts_it_ends() -> None:
    harness = at(State.INIT)
    for _ in range(2):
        harness.feed(e.Ended(1))
        harness.gone()
        harness.register()
    assert harness.machine.tree is TreePhase.NONE, "it rests"
    harness.feed(e.Terminate())
    assert isinstance(harness.said[-1], e.Exit)


@pytest.mark.parametrize("state", LIVING)
def test_the_exit_mode_ends_with_the_engine(state: State) -> None:
    harness = at(state, Restart.EXIT)
    harness.feed(e.Ended(-9))
    assert dies(harness)
    harness.gone()
    assert kinds(harness.said)[-2:] == ["CleanUp", "Exit"] and harness.said[-1] == e.Exit(1, harness.machine.why)


@pytest.mark.parametrize("code", [64, 65])
def test_an_engine_that_was_called_wrongly_is_not_started_again(code: int) -> None:
    harness = at(State.INIT)
    harness.feed(e.Ended(code))
    harness.gone()
    assert harness.said[-1] == e.Exit(code, harness.machine.why)


def test_exit_code_64_counts_though_a_worker_was_seen_to_end_first_and_the_reason_is_what_it_said() -> None:
    """Workers die with their parent's thread, which ends before the process does."""
    harness = at(State.INIT)
    harness.feed(e.Died(WORKER))
    harness.feed(e.Failing("other weights"))
    harness.feed(e.Ended(64))
    harness.gone()
    assert harness.said[-1] == e.Exit(64, "other weights")


def test_a_worker_that_says_that_no_start_can_help_is_believed_in_init_and_it_is_the_reason() -> None:
    """What its main process says of it afterwards is that some process failed."""
    harness = at(State.INIT)
    harness.feed(e.Failing("other weights", exit_code=65))
    harness.feed(e.Failing("failed in init: some process failed"))
    harness.feed(e.Died(WORKER))
    harness.feed(e.Ended(-9))
    harness.gone()
    assert harness.said[-1] == e.Exit(65, "other weights")


def test_what_no_start_could_help_in_init_means_nothing_later_on() -> None:
    harness = at(State.STANDBY)
    harness.feed(e.Failing("other weights", exit_code=65))
    harness.feed(e.Died(WORKER))
    harness.gone()
    harness.wait(HANDOFF_S)
    assert kinds(harness.said)[-1] == "Start"
    harness.register()
    harness.feed(e.Died(WORKER))
    harness.gone()
    assert not any(isinstance(effect, e.Exit) for effect in harness.said), "nor for the next start"


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_exit_code_64_means_nothing_later_on(state: State) -> None:
    harness = at(state)
    harness.feed(e.Ended(64))
    harness.gone()
    harness.wait(HANDOFF_S)
    assert kinds(harness.said)[-1] == "Start"


# -- who may come ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("start", "main"), [(0, False), (2, False), (1, True)])
def test_a_process_of_another_start_and_a_second_main_process_are_turned_away(start: int, main: bool) -> None:
    harness = at(State.INIT)
    assert kinds(harness.feed(e.Registered(CONN, 9, start, main))) == ["TurnAway", "Forget"]


def test_no_process_joins_a_tree_that_is_ending() -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Died(WORKER))
    assert kinds(harness.feed(e.Registered(CONN, 9, harness.machine.number, False))) == ["TurnAway", "Forget"]


# -- nothing takes for ever --------------------------------------------------------------------------------------------


def test_init_waking_and_sleeping_have_their_bounds() -> None:
    """And need no beats."""
    states = (State.INIT, State.WAKING, State.SLEEPING)
    for harness in (at(state, init_timeout_s=9.0, waking_timeout_s=9.0, stall_s=1.0) for state in states):
        harness.wait(8.9)
        assert harness.said == []
        harness.wait(0.2)
        assert dies(harness) and "9 s" in harness.machine.why


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE, State.DRAINING])
def test_a_silent_main_process_is_ended_at_the_bound_whatever_its_tree_used_before(state: State) -> None:
    harness = at(state, stall_s=4.0, busy_stall_s=1000.0)
    for _ in range(10):
        harness.feed(e.Beat(True, used_s=harness.now), after_s=1.0)
    harness.wait(3.9)
    assert harness.said == []
    harness.wait(0.2)
    assert dies(harness) and "silent" in harness.machine.why


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_an_engine_that_says_that_it_is_not_well_is_ended_unless_it_gets_well(state: State) -> None:
    harness = at(state)
    for _ in range(4):
        harness.feed(e.Beat(False, "weights gone"), after_s=UNWELL_S / 4)
    harness.feed(e.Beat(True))
    assert kinds(harness.said) == []
    for _ in range(6):
        harness.feed(e.Beat(False, "weights gone"), after_s=UNWELL_S / 4)
    assert dies(harness) and "weights gone" in harness.machine.why


# -- starting again ----------------------------------------------------------------------------------------------------


def pauses(harness: Harness, failures: int) -> list[float]:
    found: list[float] = []
    for _ in range(failures):
        harness.feed(e.Ended(1))
        harness.gone()
        before, number = harness.now, harness.machine.number
        if kinds(harness.said)[-1] != "Start":
            harness.wait(BACK_OFF_MOST_S)
        found.append(round(harness.machine.since - before, 3))
        assert harness.machine.number in (number, number + 1)
        harness.register()
    return found


def test_it_starts_again_at_once_after_the_first_failure_and_later_after_more() -> None:
    found = pauses(at(State.INIT), 12)
    assert found[:5] == [0.0, 0.5, 1.0, 2.0, 4.0]
    assert found[-1] == BACK_OFF_MOST_S


def test_having_served_makes_the_next_failure_the_first_again() -> None:
    harness = at(State.INIT)
    pauses(harness, 5)
    harness.to(State.ACTIVE)
    assert pauses(harness, 2) == [HANDOFF_S, 0.5]


@pytest.mark.parametrize("state", [State.WAKING, State.ACTIVE, State.DRAINING])
def test_one_that_held_the_lock_leaves_its_successor_the_processors(state: State) -> None:
    for serves in (False, True):
        harness = at(state)
        harness.feed(e.Ended(-9))
        harness.gone()
        harness.feed(e.LockSeen(harness.machine.incarnation, serves=True))
        assert "Start" not in kinds(harness.said)
        harness.feed(e.LockSeen("engine-b.1", serves=serves))
        assert "Start" not in kinds(harness.said)
        harness.wait(FIRST_ANSWERS_S)
        assert ("Start" in kinds(harness.said)) is serves
        harness.wait(HANDOFF_S)
        assert "Start" in kinds(harness.said)


def test_having_been_ready_for_a_while_too() -> None:
    harness = at(State.INIT, stall_s=10 * STEADY_S)
    pauses(harness, 5)
    harness.to(State.STANDBY)
    harness.wait(STEADY_S)
    assert pauses(harness, 1) == [0.0]


def test_an_engine_that_cannot_be_started_at_all_is_tried_again_later() -> None:
    harness = Harness()
    harness.feed(e.Started())
    harness.gone()
    for _ in range(3):
        harness.feed(e.NotStarted("no such program"))
        harness.gone()
        harness.wait(BACK_OFF_MOST_S)
    assert harness.machine.number == 4 and "no such program" in harness.machine.why


# -- figures -----------------------------------------------------------------------------------------------------------


def test_a_failover_is_a_wake_after_having_waited_behind_another() -> None:
    first, second = at(State.STANDBY), at(State.STANDBY)
    for harness in (first, second):
        if harness is second:
            harness.feed(e.LockSeen("engine-b.1"))
            harness.feed(e.LockSeen("engine-b.1", fencing=True), after_s=1.0)
        harness.feed(e.LockSeen("engine-a.0123456789abcdef"), after_s=0.25)
        harness.step(State.WAKING)
        harness.step(State.ACTIVE)
    assert (first.machine.counters.failovers, second.machine.counters.failovers) == (0, 1)


def test_a_holder_that_was_seen_while_it_initialised_counts_too() -> None:
    harness = at(State.INIT)
    harness.feed(e.LockSeen("engine-b.1"))
    harness.to(State.ACTIVE)
    assert harness.machine.counters.failovers == 1


def test_the_time_to_restore_redundancy_runs_from_the_death_to_the_next_standby() -> None:
    harness = at(State.ACTIVE)
    harness.feed(e.Ended(-9))
    harness.gone()
    harness.wait(HANDOFF_S)
    harness.feed(e.Ended(-9), after_s=2.0 - HANDOFF_S)
    harness.gone()
    harness.wait(1.0)
    harness.register()
    harness.now = harness.now + 1.0
    harness.step(State.STANDBY)
    assert harness.machine.counters.restored.last_s == pytest.approx(4.0)
    assert harness.machine.counters.restored.counts.count(1) == 1
