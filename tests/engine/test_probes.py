"""What the probes answer in each state, in both modes: the specification's Decision 2 and the design's table."""

import pytest

from engine_shim.rules import events as e
from engine_shim.rules import probes
from engine_shim.rules.events import Restart, State
from tests.engine.machine import Harness

IN_PLACE, EXIT = Restart.IN_PLACE, Restart.EXIT


@pytest.mark.parametrize(
    ("state", "restart", "live", "startup", "ready"),
    [
        (State.INIT, IN_PLACE, True, True, False),
        (State.INIT, EXIT, False, False, False),
        (State.STANDBY, IN_PLACE, True, True, True),
        (State.STANDBY, EXIT, True, True, True),
        (State.WAKING, IN_PLACE, True, True, False),
        (State.WAKING, EXIT, True, True, False),
        (State.ACTIVE, IN_PLACE, True, True, True),
        (State.ACTIVE, EXIT, True, True, True),
        (State.DRAINING, IN_PLACE, True, True, False),
        (State.DRAINING, EXIT, True, True, False),
        (State.SLEEPING, IN_PLACE, True, True, False),
        (State.SLEEPING, EXIT, True, True, False),
        (State.DEAD, IN_PLACE, True, True, False),
        (State.DEAD, EXIT, False, False, False),
    ],
)
def test_the_table(state: State, restart: Restart, live: bool, startup: bool, ready: bool) -> None:
    harness = Harness(restart).begin().to(state)
    machine, now = harness.machine, harness.now
    found = [probes.PROBES[path](machine, now).ok for path in ("/live", "/startup", "/ready")]
    assert found == [live, startup, ready]


def test_the_port_answers_before_anything_is_started() -> None:
    harness = Harness()
    assert probes.live(harness.machine, 0.0).ok and not probes.ready(harness.machine, 0.0).ok
    harness = Harness(EXIT)
    assert not probes.live(harness.machine, 0.0).ok


@pytest.mark.parametrize(
    ("state", "bound_s"),
    [(State.INIT, 7.0), (State.WAKING, 5.0), (State.SLEEPING, 5.0), (State.STANDBY, 3.0), (State.ACTIVE, 3.0)],
)
def test_a_state_that_lasts_longer_than_it_may_is_not_live(state: State, bound_s: float) -> None:
    harness = Harness(init_timeout_s=7.0, waking_timeout_s=5.0, stall_s=3.0).begin().to(state)
    assert probes.live(harness.machine, harness.now + bound_s - 0.01).ok
    assert not probes.live(harness.machine, harness.now + bound_s).ok


def test_a_silent_standby_is_not_ready_long_before_it_is_ended() -> None:
    harness = Harness(stall_s=60.0).begin().to(State.STANDBY)
    assert probes.ready(harness.machine, harness.now + 2.0).ok
    assert not probes.ready(harness.machine, harness.now + 4.0).ok
    assert probes.live(harness.machine, harness.now + 4.0).ok


def test_work_that_waits_for_a_step_is_told_long_before_the_engine_is_ended() -> None:
    harness = Harness(stall_s=60.0).begin().to(State.ACTIVE)
    for queued, told in ((0, False), (3, True)):
        harness.feed(e.Beat(True, queued=queued, steps=1))
        for second in range(20):
            harness.feed(e.Beat(True, queued=queued, steps=1), after_s=1.0)
            said_s = probes.state(harness.machine, harness.now)["no_step_s"]
            assert (said_s > 0.0) is (told and second >= 14), second
        assert probes.live(harness.machine, harness.now).ok
    harness.feed(e.Beat(True, queued=3, steps=2), after_s=1.0)
    assert not probes.state(harness.machine, harness.now)["no_step_s"]


@pytest.mark.parametrize("state", [State.STANDBY, State.ACTIVE])
def test_who_is_not_well_is_not_ready_and_says_why(state: State) -> None:
    harness = Harness().begin().to(state)
    harness.feed(e.Beat(False, "the weights are gone"))
    answer = probes.ready(harness.machine, harness.now)
    assert not answer.ok and "the weights are gone" in answer.why
    assert probes.live(harness.machine, harness.now).ok is (state is State.STANDBY)


def test_the_exit_mode_remembers_that_init_was_left() -> None:
    harness = Harness(EXIT).begin().to(State.STANDBY)
    harness.feed(e.Ended(1))
    assert probes.startup(harness.machine, harness.now).ok


def test_state_has_the_same_fields_in_every_state() -> None:
    fields = [
        set(probes.state(harness.machine, harness.now))
        for harness in (Harness(), *(Harness().begin().to(state) for state in State))
    ]
    assert all(found == fields[0] for found in fields)
