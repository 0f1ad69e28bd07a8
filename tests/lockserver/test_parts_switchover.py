"""A planned change of holder, built alone. With the whole machine: `test_switchover.py`."""

from lockserver import messages as m
from lockserver.events import Kill
from lockserver.free_memory import FreeMemory
from lockserver.incarnation import Stage
from lockserver.queue import Queue
from lockserver.switchover import DRAIN_MARGIN_S, Step, Switchover
from tests.lockserver.parts import Known, held_by, registered

ASKER, A, B = 9, 101, 102


class Planned(Known):
    """`a` holds, `b` waits, and somebody asks."""

    def __init__(self) -> None:
        super().__init__()
        self.queue = Queue(self.config, self.context, FreeMemory(self.config, self.context))
        self.switchover = Switchover(self.config, self.context, self.queue, self.incarnations)
        self.holder = registered(self.incarnations, "a", 1)
        self.lock = held_by(self.holder)
        self.b = registered(self.incarnations, "b", 2)
        self.queue.enter(self.b, {}, looked=True)

    def ask(self, to: str = "", drain_timeout_s: float = 30.0) -> "Planned":
        self.switchover.ask(ASKER, m.Switchover(to=to, drain_timeout_s=drain_timeout_s), self.lock, "HELD")
        return self

    def drained(self, *, ok: bool = True, round: int | None = None) -> None:
        self.switchover.drained(m.Drained(round=self.queue.round if round is None else round, ok=ok, why="stuck"))

    def looked(self) -> None:
        self.queue.answered(self.b, self.queue.round, ok=True, why="")

    def told(self, conn: int = ASKER) -> list[str]:
        return [step.phase for step in self.said(conn) if isinstance(step, m.SwitchoverStep)]

    def is_at(self, step: Step | None) -> bool:
        return (self.switchover.plan.step if self.switchover.plan is not None else None) is step

    @property
    def serves_on(self) -> bool:
        return any(isinstance(message, m.Resume) for message in self.said(A))


def test_it_goes_its_way() -> None:
    planned = Planned().ask(drain_timeout_s=5.0)
    assert m.Drain(round=2, timeout_s=5.0) in planned.said(A) and planned.is_at(Step.DRAINING)
    assert planned.switchover.step() is None
    planned.drained()
    assert planned.is_at(Step.CHECKING) and planned.switchover.step() is None
    assert m.Prepare(round=2) in planned.said(B), "what it said before doesn't count"
    planned.looked()
    assert planned.switchover.step() is planned.holder and m.Exit(round=2) in planned.said(A)
    assert planned.is_at(Step.EXITING) and planned.queue.preferred == planned.b.name
    planned.switchover.holder_lost()
    planned.switchover.granted(planned.b, 8)
    assert planned.told() == ["draining", "checking", "exiting", "done"] and planned.is_at(None)


def test_it_is_refused_where_there_is_nobody_to_take_over() -> None:
    planned = Planned()
    planned.ask(to="zorro")
    planned.queue.update(planned.b, ready=False, looked=False, needs=None)
    planned.ask()
    planned.queue.update(planned.b, ready=True, looked=True, needs=None)
    planned.queue.waiters[planned.b.name].vetted = False
    planned.ask()
    planned.queue.waiters[planned.b.name].vetted = True
    planned.ask(to="a")
    planned.queue.leave(planned.b)
    planned.ask()
    assert planned.told() == ["refused"] * 5 and planned.is_at(None)
    assert [step.detail for step in planned.said(ASKER) if isinstance(step, m.SwitchoverStep)] == [
        "no waiter named zorro is there, alive and ready; waiting: b (ready)",
        "there is no waiter, alive and ready; waiting: b (not ready)",
        "there is no waiter, alive and ready; waiting: b (its need for memory is being looked at)",
        "a holds the lock already; waiting: b (ready)",
        "there is no waiter, alive and ready; nobody waits",
    ]


def test_it_is_refused_where_there_is_nobody_to_take_over_from() -> None:
    planned = Planned()
    planned.incarnations.lose(planned.holder, Stage.LOST)
    planned.lock.lose(0.0, None)
    assert planned.ask().told() == ["refused"]
    planned = Planned()
    planned.holder.conn = None
    assert planned.ask().told() == ["refused"]


def test_whoever_watches_sees_each_step() -> None:
    planned = Planned().ask()
    planned.at(1.0)
    planned.drained()
    assert planned.context.changed and planned.is_at(Step.CHECKING)


def test_there_is_one_at_a_time() -> None:
    assert Planned().ask().ask().told() == ["draining", "refused"]


def test_an_answer_to_another_question_is_none() -> None:
    planned = Planned().ask()
    planned.drained(round=1)
    assert planned.is_at(Step.DRAINING)


def test_up_to_the_exit_it_can_be_called_off_and_the_holder_serves_on() -> None:
    for stage in ("draining", "checking"):
        planned = Planned().ask()
        if stage == "checking":
            planned.drained()
        planned.switchover.call_off(77)
        assert planned.serves_on and planned.is_at(None)
        assert planned.told()[-1] == "aborted" == planned.told(77)[-1], stage


def test_after_the_exit_there_is_no_way_back() -> None:
    planned = Planned().ask()
    planned.drained()
    planned.looked()
    planned.switchover.step()
    planned.switchover.call_off(ASKER)
    planned.switchover.asker_left(ASKER)
    assert not planned.serves_on and planned.is_at(Step.EXITING) and planned.told()[-1] == "refused"


def test_it_is_off_when_whoever_asked_for_it_has_gone() -> None:
    planned = Planned().ask()
    planned.switchover.asker_left(77)
    assert planned.is_at(Step.DRAINING)
    planned.switchover.asker_left(ASKER)
    assert planned.serves_on and planned.is_at(None)


def test_it_is_off_when_the_holder_cannot_drain_or_takes_too_long() -> None:
    planned = Planned().ask()
    planned.drained(ok=False)
    assert planned.serves_on and planned.noted("the holder could not drain: stuck")
    planned = Planned().ask(drain_timeout_s=5.0)
    planned.at(5.0 + DRAIN_MARGIN_S - 0.1)
    planned.switchover.step()
    assert planned.is_at(Step.DRAINING)
    planned.at(5.0 + DRAIN_MARGIN_S)
    planned.switchover.step()
    assert planned.serves_on and planned.noted("draining took too long")


def test_it_is_off_when_the_successor_is_silent_or_gone() -> None:
    planned = Planned().ask()
    planned.drained()
    planned.at(planned.config.prepare_timeout_s)
    planned.switchover.step()
    assert planned.serves_on and planned.noted("isn't well")
    planned = Planned().ask()
    planned.queue.leave(planned.b)
    planned.switchover.step()
    assert planned.serves_on and planned.noted("no longer there")


def test_a_holder_that_was_told_to_end_and_does_not_is_killed() -> None:
    planned = Planned().ask()
    planned.drained()
    planned.looked()
    planned.switchover.step()
    planned.switchover.enforce()
    assert not planned.asked(Kill)
    planned.at(planned.config.exit_timeout_s)
    planned.switchover.enforce()
    planned.switchover.enforce()
    assert planned.asked(Kill) == [Kill(1)] and planned.noted("it is killed")


def test_a_holder_that_dies_by_itself_ends_the_plan() -> None:
    planned = Planned().ask()
    planned.switchover.holder_lost()
    assert planned.told() == ["draining", "died"] and planned.is_at(None)


def test_where_nobody_is_left_that_is_said() -> None:
    planned = Planned().ask()
    planned.switchover.nobody_left()
    planned.switchover.nobody_left()
    assert planned.told() == ["draining", "died"]
