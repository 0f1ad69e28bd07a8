"""A rule of the machine's own that is broken, which is a bug: it stops granting, says so, and loses nothing.

Which rules are looked at: `test_lock.py`. Here one is broken on purpose in a whole machine.
"""

from collections.abc import Callable

import pytest

from evidence.rules.incarnation import Stage
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.lock import Phase, WrongTransition
from lockserver.rules.machine import Machine
from lockserver.rules.plan import Plan
from tests.lockserver.harness import Harness


def a_token_falls(machine: Machine) -> None:
    machine.succession.newest_token -= 1


def the_holder_is_not_watched(machine: Machine) -> None:
    assert machine.active.holder is not None
    del machine.evidence.incarnations.known[machine.active.holder.name]


def its_phase_is_wrong(machine: Machine) -> None:
    machine.active.phase = Phase.FENCING


def its_holder_waits(machine: Machine) -> None:
    assert machine.active.holder is not None
    machine.succession.queue.enter(machine.active.holder, {}, looked=True)


def a_transition_is_wrong(machine: Machine) -> None:
    def ask(*_: object) -> None:
        raise WrongTransition("active: from held there is no way to granting")

    setattr(machine.succession.switchover, "ask", ask)  # noqa: B010


def its_rules_go_round_in_a_circle(machine: Machine) -> None:
    endless = Plan(0.0, {})
    endless.do(lambda: None)
    setattr(machine.succession, "plan", lambda may_grant: endless)  # noqa: B010


class Broken:
    """A holder `a`, a waiter `b`, an observer; and a rule that is broken."""

    def __init__(self, spoil: Callable[[Machine], None]) -> None:
        self.harness = Harness().start()
        self.a, self.b = self.harness.holder("a"), self.harness.waiter("b")
        self.observer = self.harness.observer()
        self.machine = self.harness.machine
        assert not self.machine.broken
        spoil(self.machine)
        self.effects = self.feed(e.Received(self.observer, m.Switchover()))

    def feed(self, event: e.Event) -> list[e.Effect]:
        return self.machine.handle(event, e.Time(self.harness.now, self.harness.now))

    def told(self, effects: list[e.Effect], kind: type[m.ServerMessage]) -> bool:
        return any(isinstance(effect, e.Send) and isinstance(effect.message, kind) for effect in effects)


@pytest.mark.parametrize(
    "spoil",
    [
        a_token_falls,
        the_holder_is_not_watched,
        its_phase_is_wrong,
        its_holder_waits,
        a_transition_is_wrong,
        its_rules_go_round_in_a_circle,
    ],
)
def test_a_broken_rule_is_an_alarm_that_can_be_reported(spoil: Callable[[Machine], None]) -> None:
    broken = Broken(spoil)
    assert broken.machine.broken
    (alarm,) = broken.machine.status.alarms
    assert broken.machine.broken in alarm and "in Switchover" in alarm and "Please report this" in alarm
    assert f"token {broken.a.token}" in alarm and "Restart the lock server" in alarm
    assert any(isinstance(effect, e.Note) and effect.alarm for effect in broken.effects)


def test_no_waiter_is_granted_any_more() -> None:
    broken = Broken(a_token_falls)
    holder, harness = broken.machine.active.holder, broken.harness
    assert holder is not None and holder.main is not None and holder.main.process is not None
    effects = broken.feed(e.Died(holder.main.process)) + broken.feed(e.LifeProbed(holder.name, False))
    for effect in effects.copy():
        if isinstance(effect, e.Send) and isinstance(effect.message, m.Prepare):
            effects += broken.feed(e.Received(effect.conn, m.Prepared(round=effect.message.round, ok=True)))
    harness.now += 100.0
    effects += broken.feed(e.Tick())
    assert holder.stage is Stage.DOOMED and broken.machine.active.phase is Phase.FREE, "its end is seen as ever"
    assert not broken.told(effects, m.Granted)
    assert not any(isinstance(effect, e.Persist) and effect.record.active for effect in effects)


def test_a_grant_that_is_being_written_when_a_rule_breaks_is_taken_back() -> None:
    broken = Broken(lambda machine: None)
    holder, machine = broken.machine.active.holder, broken.machine
    assert holder is not None and holder.main is not None and holder.main.process is not None
    effects = broken.feed(e.Died(holder.main.process)) + broken.feed(e.LifeProbed(holder.name, False))
    (asked,) = [each for each in effects if isinstance(each, e.Send) and isinstance(each.message, m.Prepare)]
    assert isinstance(asked.message, m.Prepare)
    effects = broken.feed(e.Received(asked.conn, m.Prepared(round=asked.message.round, ok=True)))
    (write,) = [each for each in effects if isinstance(each, e.Persist)]
    assert write.record.active is not None
    a_token_falls(machine)
    broken.feed(e.Tick())
    effects = broken.feed(e.Persisted(write.seq))
    assert machine.broken and not broken.told(effects, m.Granted) and machine.active.phase is Phase.FREE
    assert [each.record.active for each in effects if isinstance(each, e.Persist)] == [None]


def test_the_holder_serves_on_and_every_client_is_answered() -> None:
    broken = Broken(a_token_falls)
    assert broken.machine.active.phase is Phase.HELD
    effects = broken.feed(e.Received(broken.observer, m.AskStatus()))
    assert broken.told(effects, m.Status) and not broken.told(effects, m.Exit)
    effects = broken.feed(e.Received(broken.a.conn, m.Serving(url="http://a")))
    assert any(isinstance(effect, e.Persist) for effect in effects), "what it says is written down as ever"


def test_the_first_rule_that_broke_is_the_one_that_is_reported() -> None:
    broken = Broken(a_token_falls)
    first = broken.machine.broken
    its_holder_waits(broken.machine)
    broken.feed(e.Tick())
    assert broken.machine.broken == first
