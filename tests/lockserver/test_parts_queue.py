"""The queue, built alone (with the free memory that it asks)."""

import pytest

from lockserver import messages as m
from lockserver.events import MemoryRead, ReadMemory
from lockserver.free_memory import FreeMemory
from lockserver.incarnation import Stage
from lockserver.queue import ASK_AGAIN_S, Queue, Waiter
from tests.lockserver.parts import Turns, incarnation

A = ord("a")


def reading(free: int = 80, in_all: int = 80, problem: str = "") -> MemoryRead:
    return MemoryRead({} if problem else {"gpu": (free, in_all)}, problem)


class Line(Turns):
    """A queue. Whoever enters is called by the letter that is also its connection."""

    def __init__(self, *, reads_memory: bool = False, **config: float) -> None:
        super().__init__(reads_memory=reads_memory, **config)
        self.memory = FreeMemory(self.config, self.context)
        self.queue = Queue(self.config, self.context, self.memory)

    def enter(self, engine_id: str, needs: dict[str, int] | None = None, *, looked: bool = True) -> Waiter:
        who = incarnation(engine_id)
        self.queue.enter(who, needs or {}, looked=looked)
        return self.queue.waiters[who.name]

    def reads(self, free: int, in_all: int = 80) -> None:
        """A reading is asked for, and comes, in this turn."""
        self.memory.ask(at_once=True)
        self.memory.came(reading(free, in_all))
        self.queue.read()

    def asked_to_look(self, engine_id: str) -> bool:
        return m.Prepare(round=self.queue.round) in self.said(ord(engine_id))

    @property
    def next(self) -> str:
        waiter = self.queue.next()
        return waiter.incarnation.engine_id if waiter is not None else ""


# -- who is next -------------------------------------------------------------------------------------------------------


def test_whoever_came_first_is_next() -> None:
    line = Line()
    line.enter("b")
    line.enter("a")
    assert line.next == "b"


def test_to_ask_again_keeps_ones_place() -> None:
    line = Line()
    first = line.enter("a")
    line.enter("b")
    again = incarnation("a")
    line.queue.enter(again, {"gpu": 1}, looked=True)
    assert line.next == "a" and line.queue.waiters["a.00000000"] is first and first.needs == {"gpu": 1}


@pytest.mark.parametrize("spoil", ["not ready", *(stage.value for stage in Stage if stage is not Stage.PRESENT)])
def test_nobody_is_next_who_is_not_there_and_ready(spoil: str) -> None:
    line = Line()
    a = line.enter("a")
    line.enter("b")
    if spoil == "not ready":
        line.queue.update(a.incarnation, ready=False, looked=False, needs=None)
    else:
        a.incarnation.stage = Stage(spoil)
    assert line.next == "b" and not line.asked_to_look("a")


def test_a_word_of_somebody_who_does_not_wait_changes_nothing() -> None:
    line = Line()
    line.queue.update(incarnation("a"), ready=True, looked=True, needs={"gpu": 1})
    line.queue.answered(incarnation("a"), 1, ok=False, why="")
    assert not line.queue.waiters and not line.queue.wanted


def test_whoever_leaves_is_not_next() -> None:
    line = Line()
    a = line.enter("a")
    line.queue.leave(a.incarnation)
    assert line.next == "" and not line.queue.wanted


def test_whoever_is_put_back_stands_where_it_stood() -> None:
    line = Line()
    a = line.enter("a")
    line.enter("b")
    assert not line.queue.granted(a) and line.next == "b"
    line.queue.put_back(a)
    assert line.next == "a"


def test_a_successor_that_was_chosen_goes_first_once() -> None:
    line = Line()
    line.enter("a")
    b = line.enter("b")
    line.queue.preferred = "b.00000000"
    assert line.next == "b"
    line.queue.granted(b)
    line.queue.enter(b.incarnation, {}, looked=True)
    assert line.next == "a"


def test_the_first_few() -> None:
    line = Line()
    for engine_id in "abc":
        line.enter(engine_id)
    assert [waiter.incarnation.engine_id for waiter in line.queue.first(2)] == ["a", "b"]


# -- a look at one's engine --------------------------------------------------------------------------------------------


def test_what_was_said_before_the_holder_was_lost_does_not_count() -> None:
    line = Line()
    a = line.enter("a")
    line.queue.new_round()
    assert (
        line.next == "" and line.asked_to_look("a") and line.queue.unprepared == "a: asked whether its engine can wake"
    )
    line.queue.answered(a.incarnation, 2, ok=True, why="")
    assert line.next == "a" and not line.queue.unprepared


def test_it_is_asked_once_in_a_round() -> None:
    line = Line()
    line.enter("a", looked=False)
    for _ in range(3):
        line.queue.head()
    assert len(line.said(A)) == 1


def test_an_answer_to_an_earlier_question_is_no_answer() -> None:
    line = Line()
    a = line.enter("a", looked=False)
    line.queue.new_round()
    line.queue.answered(a.incarnation, 1, ok=True, why="")
    assert line.next == ""


def test_nobody_goes_first_while_the_first_has_time_to_answer() -> None:
    line = Line(prepare_timeout_s=1.0)
    line.enter("a", looked=False)
    line.enter("b")
    assert line.next == "" and line.context.deadline == 1.0
    line.at(0.9)
    assert line.next == ""
    line.at(1.0)
    assert line.next == "b", "one who is silent is passed over"
    assert "a.00000000" in line.queue.waiters, "and keeps its place"


def test_one_who_cannot_wake_is_passed_over_and_asked_again_later() -> None:
    line = Line(prepare_timeout_s=30.0)
    a = line.enter("a", looked=False)
    line.enter("b")
    assert line.next == ""
    line.queue.answered(a.incarnation, 1, ok=False, why="the GPU is gone")
    assert line.noted("the GPU is gone") and line.next == "b"
    assert line.queue.unprepared == "a: its engine isn't well: the GPU is gone"
    line.at(ASK_AGAIN_S / 2)
    assert line.next == "b" and not line.said(A)
    line.at(ASK_AGAIN_S)
    assert line.next == "" and line.asked_to_look("a")


def test_hope_lasts_while_somebody_could_still_say_yes() -> None:
    line = Line(prepare_timeout_s=1.0)
    assert not line.queue.promising
    a = line.enter("a", looked=False)
    assert line.queue.promising, "it has not been asked"
    line.queue.head()
    assert line.queue.promising, "it has time"
    line.at(1.0)
    assert not line.queue.promising, "it was silent"
    line.queue.answered(a.incarnation, 1, ok=False, why="")
    assert not line.queue.promising
    line.queue.answered(a.incarnation, 1, ok=True, why="")
    assert line.queue.promising


# -- memory ------------------------------------------------------------------------------------------------------------


def test_what_is_needed_must_be_free() -> None:
    line = Line(reads_memory=True)
    line.enter("a", {"gpu": 70})
    line.reads(free=69)
    assert line.next == ""
    line.reads(free=70)
    assert line.next == "a"
    assert line.queue.granted(line.queue.waiters["a.00000000"]), "it was seen to be free"


def test_memory_that_is_awaited_is_read_again_and_again() -> None:
    line = Line(reads_memory=True)
    line.enter("a", {"gpu": 70})
    line.reads(free=20)
    assert line.next == ""
    line.at(1.0)
    line.memory.forget()
    assert line.next == "" and line.asked(ReadMemory) == [ReadMemory()]


def test_whoever_watches_sees_what_a_waiter_says() -> None:
    line = Line()
    a = line.enter("a")
    line.at(1.0)
    assert not line.context.changed
    line.queue.update(a.incarnation, ready=False, looked=False, needs=None)
    assert line.context.changed


def test_whoever_needs_nothing_waits_for_no_memory() -> None:
    line = Line(reads_memory=True)
    a = line.enter("a")
    assert line.next == "a" and not line.queue.granted(a)


def test_where_nobody_reads_memory_none_is_waited_for() -> None:
    line = Line(reads_memory=False)
    a = line.enter("a", {"gpu": 70})
    assert line.next == "a" and not line.queue.granted(a)


def test_nobody_goes_first_before_it_is_known_that_its_needs_can_be_met_at_all() -> None:
    line = Line(reads_memory=True)
    line.enter("a", {"gpu": 70})
    line.enter("b")
    assert line.next == "" and line.asked(ReadMemory) == [ReadMemory()]
    assert not line.queue.unprepared
    line.at(line.config.reader_s)
    assert line.queue.prepared(line.queue.waiters["a.00000000"]), "a reader that is late keeps nobody from the queue"


def test_whose_needs_can_never_be_met_is_told() -> None:
    line = Line(reads_memory=True)
    a, b = line.enter("a", {"gpu": 81}), line.enter("b", {"tpu": 1})
    line.memory.came(reading())
    assert line.queue.read() == [
        (a, "81 bytes of gpu are needed, and it has 80 in all"),
        (b, "no device 'tpu' is known here; there are: gpu"),
    ]
    assert line.queue.read() == [], "once"


def test_others_who_need_less_go_first_after_a_while() -> None:
    line = Line(reads_memory=True, memory_patience_s=30.0)
    line.enter("a", {"gpu": 70})
    line.enter("b", {"gpu": 10})
    line.reads(free=20)
    assert line.next == "" and line.noted("memory_awaited")
    assert line.queue.unmet() == "memory: a needs 70 bytes of gpu, and less is free"
    line.at(29.0)
    line.reads(free=20)
    assert line.next == ""
    line.at(30.0)
    line.reads(free=20)
    assert line.next == "b"


def test_somebody_is_woken_where_nobody_fits() -> None:
    line = Line(reads_memory=True, memory_patience_s=30.0)
    a = line.enter("a", {"gpu": 70})
    for now in (0.0, 30.0):
        line.at(now)
        line.reads(free=20)
        assert line.next == ""
    assert "the memory that a needs is not free, and has not been for 30 s" in line.alarm("memory")
    line.queue.leave(a.incarnation)
    assert not line.alarm("memory") and line.queue.unmet() == ""


def test_after_the_bound_it_is_granted_all_the_same_and_that_is_said() -> None:
    line = Line(reads_memory=True, memory_patience_s=30.0, memory_bound_s=60.0)
    line.enter("a", {"gpu": 70})
    for now in (0.0, 59.0):
        line.at(now)
        line.reads(free=20)
        assert line.next == ""
    line.at(60.0)
    line.reads(free=20)
    assert line.next == "a" and line.noted("was not free after 60 s (--memory-bound-s)")


def test_the_wait_for_memory_begins_anew_when_another_holder_is_lost() -> None:
    line = Line(reads_memory=True, memory_patience_s=30.0)
    a = line.enter("a", {"gpu": 70})
    line.enter("b", {"gpu": 10})
    line.reads(free=20)
    assert line.next == ""
    line.queue.new_round()
    line.queue.answered(a.incarnation, 2, ok=True, why="")
    line.queue.answered(line.queue.waiters["b.00000000"].incarnation, 2, ok=True, why="")
    line.at(30.0)
    line.reads(free=20)
    assert line.next == ""


@pytest.mark.parametrize(
    ("needs", "free", "reads", "proves"),
    [
        ({"gpu": 70}, 70, True, True),
        ({"gpu": 70}, 69, True, False),
        ({}, 80, True, False),
        ({"gpu": 70}, 80, False, False),
    ],
    ids=["free", "not free", "nothing is needed", "nobody reads"],
)
def test_what_free_memory_proves(needs: dict[str, int], free: int, reads: bool, proves: bool) -> None:
    line = Line(reads_memory=reads)
    line.enter("a", needs)
    line.reads(free)
    assert line.queue.memory_proves() is proves


def test_nobody_waits_so_memory_proves_nothing() -> None:
    line = Line(reads_memory=True)
    line.reads(free=80)
    assert not line.queue.memory_proves()
