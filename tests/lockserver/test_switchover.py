"""A planned change of holder: `Drain -> Drained -> the successor looks at its engine -> Exit`, and every way in which
it is called off.

A part of the rules of `machine.py` (`switchover.py`); the others stand in `test_rules.py`.
"""

from collections.abc import Callable

import pytest

from lockserver.rules import messages as m
from lockserver.rules.messages import ACTIVE
from lockserver.rules.switchover import DRAIN_MARGIN_S
from tests.lockserver.harness import Disk, Engine, Harness


class Change:
    """A holder `a`, waiters `b` and `c`, and a person who asked for a switchover."""

    def __init__(self, *, ask: bool = True, to: str = "", drain_timeout_s: float = 30.0) -> None:
        self.harness = Harness().start()
        self.a: Engine = self.harness.holder("a")
        self.b, self.c = self.harness.waiter("b"), self.harness.waiter("c")
        self.b.wakes = self.c.wakes = None
        self.asker = self.harness.observer()
        if ask:
            self.ask(to=to, drain_timeout_s=drain_timeout_s)

    def ask(self, to: str = "", drain_timeout_s: float = 30.0) -> None:
        self.harness.receive(self.asker, m.Switchover(to=to, drain_timeout_s=drain_timeout_s))

    def drained(self, *, ok: bool = True, why: str = "") -> None:
        drain = self.a.last(m.Drain)
        assert drain is not None
        self.a.says(m.Drained(round=drain.round, ok=ok, why=why))

    @property
    def steps(self) -> list[str]:
        return [step.phase for step in self.harness.heard(self.asker, m.SwitchoverStep)]

    @property
    def last(self) -> m.SwitchoverStep:
        step = self.harness.last(self.asker, m.SwitchoverStep)
        assert step is not None
        return step

    def serves_on(self) -> bool:
        """Called off: the holder was told, and holds; a new switchover can be asked for."""
        return (
            bool(self.a.heard(m.Resume))
            and self.harness.state == "HELD"
            and not self.a.heard(m.Exit)
            and self.harness.status.switchover is None
        )


@pytest.fixture
def change() -> Change:
    return Change()


def test_from_drain_to_the_successors_grant(change: Change) -> None:
    assert [drain.timeout_s for drain in change.a.heard(m.Drain)] == [30.0]
    assert change.harness.status.switchover == "draining: a -> b"
    assert not change.b.heard(m.Prepare), "it looks at its engine when the holder is drained, not before"
    change.drained()
    assert change.b.heard(m.Prepare) and not change.a.heard(m.Exit)
    change.b.looks()
    assert change.a.heard(m.Exit) and change.harness.state == "FENCING"
    assert len(change.b.heard(m.Prepare)) == 2
    change.b.looks()  # once more, while the old one ends
    change.b.wakes = True
    assert not change.b.holds, "the old one lives"
    change.harness.kill(change.a.main)
    assert change.b.holds
    assert change.steps == ["draining", "checking", "exiting", "done"]
    assert change.last.done and change.last.ok


def test_the_successor_may_be_named_and_then_goes_first() -> None:
    change = Change(to="c")
    change.drained()
    change.c.looks()
    change.c.looks()  # once more, while the old one ends
    change.b.wakes = change.c.wakes = True
    change.harness.kill(change.a.main)
    assert change.c.holds and not change.b.holds


def test_after_exit_it_is_an_ordinary_death_with_all_of_its_proof(change: Change) -> None:
    change.drained()
    change.b.looks()
    change.b.looks()  # once more, while the old one ends
    change.b.wakes = True
    stray = change.a.fork()
    change.harness.kill(change.a.main)
    change.harness.advance(30)
    assert not change.b.holds and "life lock" in change.harness.waiting_for
    change.harness.kill(stray)
    change.harness.advance(1)
    assert change.b.holds


def test_a_successor_that_dies_after_exit_leaves_it_to_the_next(change: Change) -> None:
    change.drained()
    change.b.looks()
    change.c.wakes = True
    change.harness.kill(change.b.main)
    change.harness.kill(change.a.main)
    assert change.c.holds and change.last.phase == "done"


def test_the_asker_is_told_when_no_process_is_left_after_exit(change: Change) -> None:
    change.drained()
    change.b.looks()
    for engine in (change.b, change.c, change.a):
        change.harness.kill(engine.main)
    assert change.harness.state == "FREE" and change.last.phase == "died" and change.last.done and not change.last.ok
    assert change.harness.status.switchover is None


def test_one_who_was_told_to_end_and_does_not_is_killed_when_its_time_is_up(change: Change) -> None:
    change.drained()
    change.b.wakes = True
    change.b.looks()
    change.harness.advance(9.9)
    assert change.a.alive
    change.harness.advance(0.3)
    assert not change.a.alive and change.b.holds
    assert change.harness.shouted("was told to end and has not")


def test_one_who_was_told_to_end_does_not_come_back(change: Change) -> None:
    change.drained()
    change.b.looks()
    change.a.register()
    assert change.a.refused


def test_exit_cannot_be_called_back(change: Change) -> None:
    change.drained()
    change.b.looks()
    change.harness.receive(change.asker, m.AbortSwitchover())
    assert change.last.phase == "refused" and not change.a.heard(m.Resume)
    assert change.harness.status.switchover == "exiting: a -> b"


def test_one_who_asked_may_leave_after_exit(change: Change) -> None:
    change.drained()
    change.b.looks()
    change.b.looks()  # once more, while the old one ends
    change.b.wakes = True
    change.harness.hangs_up(change.harness.conns[change.asker])
    change.harness.kill(change.a.main)
    assert change.b.holds


# -- refused at once -----------------------------------------------------------------------------------------------


def test_refused_at_once_without_a_holder() -> None:
    harness = Harness().start()
    asker = harness.observer()
    harness.receive(asker, m.Switchover())
    (step,) = harness.heard(asker, m.SwitchoverStep)
    assert step.phase == "refused" and step.done and not step.ok and "no holder" in step.detail


@pytest.mark.parametrize(
    "spoil",
    [
        lambda change: [change.harness.kill(change.b.main), change.harness.kill(change.c.main)],
        lambda change: [change.b.says(m.Ready(ready=False)), change.c.says(m.Ready(ready=False))],
        lambda change: [change.harness.hangs_up(change.b.main), change.harness.hangs_up(change.c.main)],
    ],
    ids=["dead", "not ready", "not connected"],
)
def test_refused_at_once_without_a_live_and_ready_waiter(spoil: Callable[[Change], object]) -> None:
    change = Change(ask=False)
    spoil(change)
    change.ask()
    assert change.steps == ["refused"] and not change.a.heard(m.Drain)


def test_refused_at_once_when_the_named_successor_is_not_there(change: Change) -> None:
    other = Change(ask=False)
    other.ask(to="zorro")
    assert "zorro" in other.last.detail and not other.a.heard(m.Drain)


def test_refused_while_another_is_under_way(change: Change) -> None:
    second = change.harness.observer()
    change.harness.receive(second, m.Switchover())
    step = change.harness.last(second, m.SwitchoverStep)
    assert step is not None and step.phase == "refused" and change.harness.status.switchover == "draining: a -> b"


# -- called off ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("drained", [False, True], ids=["draining", "checking"])
@pytest.mark.parametrize(
    "off",
    [
        lambda change: change.harness.receive(change.asker, m.AbortSwitchover()),
        lambda change: change.harness.hangs_up(change.harness.conns[change.asker]),
    ],
    ids=["called off", "left"],
)
def test_the_old_holder_serves_on_when_the_one_who_asked_calls_it_off_or_leaves(
    off: Callable[[Change], object], drained: bool
) -> None:
    change = Change()
    if drained:
        change.drained()
    off(change)
    assert change.serves_on()


def test_another_person_may_call_it_off_and_both_are_told(change: Change) -> None:
    second = change.harness.observer()
    change.harness.receive(second, m.AbortSwitchover())
    assert change.serves_on() and change.last.phase == "aborted" and change.last.done
    step = change.harness.last(second, m.SwitchoverStep)
    assert step is not None and step.phase == "aborted" and step.ok


def test_it_is_off_when_draining_takes_too_long() -> None:
    change = Change(drain_timeout_s=5.0)
    change.harness.advance(4.9 + DRAIN_MARGIN_S)
    assert not change.a.heard(m.Resume)
    change.harness.advance(0.2)
    assert change.serves_on() and "too long" in change.last.detail


def test_it_is_off_when_the_holder_cannot_drain(change: Change) -> None:
    change.drained(ok=False, why="a batch is stuck")
    assert change.serves_on() and "a batch is stuck" in change.last.detail


@pytest.mark.parametrize("drained", [False, True], ids=["draining", "checking"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda change: change.harness.kill(change.b.main),
        lambda change: change.harness.hangs_up(change.b.main),
        lambda change: change.b.says(m.Ready(ready=False)),
    ],
    ids=["dies", "hangs up", "is not ready"],
)
def test_it_is_off_when_the_successor_goes(spoil: Callable[[Change], object], drained: bool) -> None:
    change = Change()
    if drained:
        change.drained()
    spoil(change)
    assert change.serves_on() and "successor" in change.last.detail


def test_it_is_off_when_the_successors_engine_is_broken(change: Change) -> None:
    change.drained()
    change.b.looks(ok=False)
    change.harness.advance(1.1)
    assert change.serves_on() and not change.b.holds


def test_it_is_off_when_the_successor_is_silent(change: Change) -> None:
    change.drained()
    change.harness.advance(1.1)
    assert change.serves_on()


def test_the_holders_own_death_ends_it_and_a_ready_waiter_takes_over(change: Change) -> None:
    change.harness.kill(change.a.main)
    assert change.last.phase == "died" and change.last.done
    change.b.looks()
    assert change.b.holds


def test_only_the_holder_says_that_it_is_drained_and_only_of_the_switchover_that_is_under_way(change: Change) -> None:
    first = change.a.last(m.Drain)
    assert first is not None
    change.b.says(m.Drained(round=first.round))
    assert change.harness.status.switchover == "draining: a -> b"
    change.harness.receive(change.asker, m.AbortSwitchover())
    change.ask()
    change.a.says(m.Drained(round=first.round))
    assert change.harness.status.switchover == "draining: a -> b"


def test_a_switchover_does_not_outlive_its_server(change: Change) -> None:
    """Then the holder's own client must see to it that it serves on: `test_client_machine.py`."""
    change.harness.restart()
    change.a.register()
    assert change.harness.state == "HELD" and change.harness.status.switchover is None
    assert change.a.welcomed_with == {ACTIVE: change.a.token}


def test_a_successor_whose_grant_cannot_be_written_gets_it_later_and_the_asker_hears_of_it(change: Change) -> None:
    change.drained()
    change.b.wakes = True
    change.b.looks()
    change.harness.disk = Disk.FAILS
    change.harness.kill(change.a.main)
    change.harness.advance(3)
    assert not change.b.holds and not change.last.done
    change.harness.disk = Disk.WORKS
    change.harness.advance(1)
    assert change.b.holds and change.last.phase == "done"


def test_the_named_successor_keeps_its_turn_when_its_grant_could_not_be_written() -> None:
    change = Change(to="c")
    change.drained()
    change.b.wakes = change.c.wakes = True
    change.c.looks()
    change.harness.disk = Disk.FAILS
    change.harness.kill(change.a.main)
    change.harness.disk = Disk.WORKS
    change.harness.advance(1)
    assert change.c.holds and not change.b.holds
