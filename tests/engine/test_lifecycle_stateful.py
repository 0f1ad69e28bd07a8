"""Whatever comes, in whatever order: what must hold of the shim's machine holds."""

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_shim.rules import events as e
from engine_shim.rules import probes
from engine_shim.rules.events import Restart, State
from engine_shim.rules.lifecycle import TreePhase
from tests.engine.machine import Harness, kinds

steps = st.sampled_from([State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING])
USED = st.none() | st.floats(0, 100)
events = st.one_of(
    st.builds(e.Reported, steps, st.integers(0, 9), st.just("unix:/x")),
    st.builds(e.Registered, st.integers(1, 3), st.integers(1, 4), st.integers(0, 4), st.booleans()),
    st.builds(e.Died, st.integers(1, 4)),
    st.builds(e.Ended, st.sampled_from([0, 1, -9, 64, 70])),
    st.builds(e.Looked, st.integers(0, 1), st.booleans()),
    st.builds(e.Looked, st.just(0), st.just(False)),
    st.builds(e.Beat, st.booleans(), st.just("why"), st.integers(0, 2), st.integers(0, 2), used_s=USED),
    st.just(e.LockAway()),
    st.builds(
        e.LockSeen, st.sampled_from(["", "engine-a.x", "engine-b.y"]), st.booleans(), st.booleans(), st.booleans()
    ),
    st.just(e.NotStarted("no")),
    st.just(e.Failing("why")),
    st.just(e.Named("engine-a.x")),
    st.just(e.Tick()),
)
# Told to end, it soon does: not in every run, or nothing else would be seen.
schedules = st.lists(st.tuples(events, st.floats(0, 5)), max_size=60)
endings = st.lists(st.sampled_from([e.Terminate(), e.Looked(0, False), e.Looked(1, True), e.Ended(0)]), max_size=6)


@given(schedule=schedules, ending=endings, restart=st.sampled_from(list(Restart)))
@settings(max_examples=400)
def test_the_machine_keeps_its_promises(
    schedule: list[tuple[e.Event, float]], ending: list[e.Event], restart: Restart
) -> None:
    harness = Harness(restart, stall_s=10.0, init_timeout_s=20.0, waking_timeout_s=5.0)
    machine = harness.machine
    harness.feed(e.Started())
    proven, exits = False, 0
    for event, after_s in [*schedule, *((event, 0.0) for event in ending)]:
        if isinstance(event, e.Looked) and machine.tree is TreePhase.ENDING:  # the shell looks when it is asked to
            proven = not event.left and not event.held
        before, number = machine.tree, machine.number
        effects = harness.feed(event, after_s)
        if machine.tree is TreePhase.NONE and before is TreePhase.ENDING:
            assert isinstance(event, e.Looked) and not event.left
        for effect in effects:
            if isinstance(effect, e.Start):
                assert before is not TreePhase.ALIVE and proven, "a second tree was started beside the first"
                assert effect.number == number + 1
            exits += isinstance(effect, e.Exit)
        if before is TreePhase.ALIVE and machine.tree is not TreePhase.ALIVE:
            assert "KillTree" in kinds(effects), "the rest of the tree lives on"
            proven = False
        if machine.tree is TreePhase.ALIVE:
            assert machine.state is not State.DEAD
            assert machine.deadline < float("inf"), "nothing takes for ever"
        else:
            assert machine.url == "", "who is dead serves nowhere"
        assert machine.exiting or machine.tree is not TreePhase.ENDING or machine.deadline <= harness.now + 0.2
        assert bool(machine.url) <= (machine.state is State.ACTIVE)
        assert exits <= 1
        for probe in probes.PROBES.values():
            assert probe(machine, harness.now).why
        is_ready = probes.ready(machine, harness.now).ok
        assert not is_ready or (machine.well and machine.state in (State.STANDBY, State.ACTIVE))
        probes.state(machine, harness.now)
    if exits:
        assert machine.deadline == float("inf")
