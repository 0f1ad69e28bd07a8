"""Each part of GMS's machine, built alone. What they do together: `test_machine_rules.py`."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import pytest

from gms import events as e
from gms import layout as lay
from gms import messages as m
from gms import status, versions
from gms.admission import Admission
from gms.callers import Callers
from gms.context import Context
from gms.drops import ANSWER_S, Drops
from gms.holders import MOST_LAYOUTS, Holders
from gms.invariants import Invariants, harmless, in_words
from gms.pool_machine import PoolMachine
from gms.pool_record import Record as PoolRecord
from gms.reading import Reading
from gms.record import Record
from gms.record import Slab as RecordedSlab
from gms.recovery import CHECK_EVERY_S, MOST_HAND_BACKS, Recovery, Step, Verdict
from gms.sessions import MOST_CLIENTS, MOST_OBSERVERS, Client, Doing, Observer, Sessions
from gms.state_file import Acknowledge, Admit, GiveUp, StateFile
from gms.weights import MAY_FOLLOW, BrokenRule, Layout, Phase, Slab, Weights
from gms.writing import RETRY_S, Writing
from sidecar.context import Time
from sidecar.disk_writes import RETRY_S as RETRY_WRITE_S
from tests.gms.machine_shell import document

BOOT = "this boot"
CONFIG = e.Config("gpu", "s1", boot_id=BOOT, capacity=100, window_s=10.0, memory_wait_s=3.0, batch=2)
RECORD = Record(6, 6, lay.structure_hash(document(5)), (RecordedSlab(5, "m1"),), BOOT)


class Turns:
    """A context, and the time."""

    def __init__(self) -> None:
        self.context = Context(50)
        self.now = 0.0
        self.at(0.0)

    def at(self, now: float) -> None:
        self.now = now
        self.context.begin(Time(now, 1e9 + now))

    @property
    def sent(self) -> list[m.ServerMessage]:
        return [effect.message for effect in self.context.out if isinstance(effect, e.Send)]

    @property
    def forgotten(self) -> list[int]:
        return [handle for effect in self.context.out if isinstance(effect, e.Forget) for handle in effect.slabs]

    @property
    def noted(self) -> list[str]:
        return [effect.event for effect in self.context.out if isinstance(effect, e.Note)]


@pytest.fixture
def turns() -> Turns:
    return Turns()


def layout_of(weights: Weights) -> Layout:
    draft = weights.draft
    assert draft is not None
    return Layout(draft.generation, "hash", b"document", 1, tuple(draft.slabs))


# -- weights -----------------------------------------------------------------------------------------------------------


def empty() -> Weights:
    weights = Weights()
    weights.starts(5, None)
    return weights


def recovering() -> Weights:
    weights = Weights()
    weights.starts(6, RECORD)
    return weights


def being_written() -> Weights:
    weights = empty()
    weights.write(1, weights.next_generation(), replaces=False)
    weights.add(Slab(11, "m1", 5))
    return weights


def read_by_its_writer() -> Weights:
    weights = being_written()
    weights.commit(layout_of(weights))
    return weights


def committed() -> Weights:
    weights = read_by_its_writer()
    weights.stop_reading(1)
    return weights


def being_replaced() -> Weights:
    weights = committed()
    weights.write(1, weights.next_generation(), replaces=True)
    weights.add(Slab(12, "m2", 5))
    return weights


MAKERS = {
    Phase.EMPTY: empty,
    Phase.RECOVERING: recovering,
    Phase.RW: being_written,
    Phase.RO: read_by_its_writer,
    Phase.COMMITTED: committed,
}
STEPS: dict[str, tuple[Callable[[Weights], object], set[Phase], Phase]] = {
    # What is done, from which phases it may be, and which phase follows.
    "write": (
        lambda w: w.write(2, w.next_generation(), replaces=False),
        {Phase.EMPTY, Phase.COMMITTED, Phase.RECOVERING},
        Phase.RW,
    ),
    "replace": (lambda w: w.write(2, w.next_generation(), replaces=True), {Phase.COMMITTED}, Phase.RW),
    "add": (lambda w: w.add(Slab(12, "m2", 7)), {Phase.RW}, Phase.RW),
    "commit": (lambda w: w.commit(layout_of(w)), {Phase.RW}, Phase.RO),
    "abort": (lambda w: w.abort(), {Phase.RW}, Phase.EMPTY),
    "read": (lambda w: w.read(3), {Phase.COMMITTED, Phase.RO}, Phase.RO),
    "hand back": (
        lambda w: w.hand_back(b"document", 1, (Slab(11, "m1", 5),), ()),
        {Phase.RECOVERING},
        Phase.COMMITTED,
    ),
    "give up": (lambda w: w.give_up(), {Phase.RECOVERING}, Phase.EMPTY),
}


@pytest.mark.parametrize("make", [*MAKERS.values(), being_replaced])
@pytest.mark.parametrize("step", STEPS)
def test_every_step_is_taken_from_its_phases_and_from_no_other_and_changes_nothing_there(
    make: Callable[[], Weights], step: str
) -> None:
    weights = make()
    phase = weights.phase
    act, may, follows = STEPS[step]
    if phase in may:
        act(weights)
        assert weights.phase is (Phase.COMMITTED if (make, step) == (being_replaced, "abort") else follows)
        return
    before = (weights.committed, weights.draft, weights.awaited, set(weights.readers))
    with pytest.raises((BrokenRule, AssertionError)):
        act(weights)
    assert (weights.phase, weights.committed, weights.draft, weights.awaited, weights.readers) == (phase, *before)


def test_the_table_says_what_the_steps_do_and_nothing_more() -> None:
    seen: dict[Phase, set[Phase]] = {phase: set() for phase in Phase}
    for (phase, make), (act, may, follows) in itertools.product(MAKERS.items(), STEPS.values()):
        if phase in may and follows is not phase:
            act(make())
            seen[phase].add(follows)
    weights = committed()
    weights.write(2, weights.next_generation(), replaces=True)
    weights.abort()
    seen[Phase.RW].add(weights.phase)
    weights = read_by_its_writer()
    weights.stop_reading(1)
    seen[Phase.RO].add(weights.phase)
    assert seen == {phase: set(follow) for phase, follow in MAY_FOLLOW.items()}


def test_a_replaced_layout_is_returned_by_the_commit_and_a_cleared_one_by_the_writer() -> None:
    weights = committed()
    first = weights.committed
    assert first is not None
    assert weights.write(2, weights.next_generation(), replaces=True) is None and weights.committed is first
    weights.add(Slab(12, "m2", 7))
    old = weights.commit(layout_of(weights))
    assert old is not None and (old.generation, old.slabs) == (first.generation, first.slabs)
    weights.stop_reading(2)
    cleared = weights.write(3, weights.next_generation(), replaces=False)
    assert cleared is not None and cleared.slabs == (Slab(12, "m2", 7),) and not cleared.was_awaited
    cleared = (awaited := recovering()).write(1, awaited.next_generation(), replaces=False)
    assert cleared is not None and cleared.was_awaited and cleared.slabs == ()


def test_only_what_was_made_can_be_committed_and_only_what_is_awaited_handed_back() -> None:
    weights = being_written()
    with pytest.raises(BrokenRule):
        weights.commit(Layout(weights.newest_generation, "hash", b"", 1, (Slab(99, "another", 5),)))
    weights = recovering()
    with pytest.raises(BrokenRule):
        weights.hand_back(b"", 1, (Slab(11, "other memory", 5),), ())


def test_the_record_says_what_is_so() -> None:
    assert empty().record(BOOT) == Record(5)
    assert recovering().record("another boot") == RECORD
    weights = committed()
    assert weights.record(BOOT) == Record(6, 6, "hash", (RecordedSlab(5, "m1"),), BOOT)
    assert (weights.there, recovering().there, empty().there) == ((6, "hash"), (6, RECORD.hash), (0, ""))


def test_sums_are_of_the_layout_that_is_committed() -> None:
    weights = committed()
    assert not weights.sum_up(5, ("a",)) and not weights.sum_up(6, ("a", "b")) and weights.sum_up(6, ("a",))
    assert weights.committed is not None and weights.committed.sums == ("a",)


# -- holders and sessions ----------------------------------------------------------------------------------------------


def test_what_a_process_was_asked_to_drop_it_has_until_it_says_that_it_dropped_it() -> None:
    holders = Holders()
    holders.get(1, 5)
    assert holders.keeps_some(1) and holders.who_has(5) == [1]
    assert holders.ask(1, 5, 3.0) and not holders.keeps_some(1)
    assert [tuple(drop) for drop in holders.pending] == [(1, 5, 3.0)]
    holders.keep_only(1, 7)
    assert holders.layouts(1) == [5], "it can't keep what it never had, and hasn't dropped yet"
    assert holders.dropped(1, 5) and not holders.dropped(1, 5)
    assert not holders.pending and holders.layouts(1) == []


def test_one_process_cant_have_layouts_without_end() -> None:
    holders = Holders()
    asked = [holders.ask(1, generation, 0.0) for generation in range(MOST_LAYOUTS + 1)]
    assert asked == [True] * MOST_LAYOUTS + [False]
    holders.gone(1)
    assert not holders.pending and not holders.who_has(0)


def some_sessions(turns: Turns, weights: Weights, *conns: int) -> tuple[Sessions, Holders]:
    holders = Holders()
    sessions = Sessions(turns.context, weights, holders)
    for conn in conns:
        sessions.clients[conn] = Client(conn, f"engine-{conn}", conn, None, 0.0)
    return sessions, holders


def test_what_a_client_does_follows_from_everything_else(turns: Turns) -> None:
    weights = being_written()
    sessions, holders = some_sessions(turns, weights, 1, 2, 3, 4)
    sessions.ask(sessions.clients[2], m.Open(mode="ro"), math.inf)
    holders.get(3, 5)

    def doing() -> list[Doing]:
        return [sessions.doing(client) for client in sessions.clients.values()]

    assert doing() == [Doing.WRITING, Doing.WAITING, Doing.ASLEEP, Doing.WATCHING]
    weights.commit(layout_of(weights))
    assert doing()[0] is Doing.READING and sessions.writer is None and sessions.readers == [sessions.clients[1]]


def test_the_queue_is_in_the_order_of_asking_and_a_request_is_itself_only(turns: Turns) -> None:
    sessions, _ = some_sessions(turns, empty(), 1, 2, 3)
    first = [sessions.ask(sessions.clients[conn], m.Open(mode="ro"), math.inf) for conn in (3, 1, 2)]
    assert [client.conn for client, _ in sessions.queue] == [3, 1, 2]
    assert sessions.asking(3, first[0].number) == (sessions.clients[3], first[0])
    sessions.ask(sessions.clients[3], m.Open(mode="rw"), math.inf)
    assert sessions.asking(3, first[0].number) is None and sessions.asking(9, 1) is None
    sessions.refuse(sessions.clients[1], "no", "not_now")
    assert [client.conn for client, _ in sessions.queue] == [2, 3]
    assert isinstance(turns.sent[-1], m.Refused) and "refused" in turns.noted


def test_who_does_nothing_makes_room_and_who_does_something_does_not(turns: Turns) -> None:
    weights = being_written()
    sessions, _ = some_sessions(turns, weights, *range(1, MOST_CLIENTS + 1))
    assert not sessions.full and sessions.too_many() == []
    sessions.clients[0] = Client(0, "late", 0, None, 0.0)
    assert sessions.too_many() == [2], "the oldest but the writer"
    sessions.gone(0)
    for client in list(sessions.clients.values())[1:]:
        sessions.ask(client, m.Open(mode="ro"), math.inf)
    assert sessions.full
    for conn in range(1000, 1001 + MOST_OBSERVERS):
        sessions.observers[conn] = Observer(watches=conn < 1003)
    assert sessions.too_many() == [1003], "the oldest that doesn't watch"


# -- admission ---------------------------------------------------------------------------------------------------------


def admission_over(turns: Turns, weights: Weights) -> Admission:
    sessions, _ = some_sessions(turns, weights, 1, 2)
    return Admission(weights, sessions, Recovery(turns.context, weights, CONFIG))


@pytest.mark.parametrize(
    ("phase", "ro", "rw", "either"),
    [
        (
            Phase.EMPTY,
            "may not read: nothing is committed",
            "may write",
            "may write",
        ),
        (
            Phase.RW,
            "may not read: engine-1 (pid 1) is writing",
            "may not write: engine-1 (pid 1) is writing",
            "may not write: engine-1 (pid 1) is writing",
        ),
        (Phase.COMMITTED, "may read", "may write", "may read"),
        (Phase.RO, "may read", "may not write: engine-1 (pid 1) reads", "may read"),
    ],
)
def test_a_verdict_can_be_printed(turns: Turns, phase: Phase, ro: str, rw: str, either: str) -> None:
    admission = admission_over(turns, MAKERS[phase]())
    modes: list[m.Mode] = ["ro", "rw", "rw_or_ro"]
    assert [str(admission.verdict(m.Open(mode=mode))) for mode in modes] == [ro, rw, either]
    admission.why_closed = "it is closed"
    assert not any(admission.verdict(m.Open(mode=mode)).may for mode in modes)


def test_while_a_layout_is_awaited_who_can_read_waits_for_it_until_the_window_is_over(turns: Turns) -> None:
    weights = Weights()
    sessions, _ = some_sessions(turns, weights, 1)
    recovery = Recovery(turns.context, weights, CONFIG)
    recovery.starts(e.Started(RECORD))
    admission = Admission(weights, sessions, recovery)
    assert "layout 6 is to be handed back" in str(admission.verdict(m.Open(mode="rw_or_ro")))
    assert "may still be handed back" in str(admission.verdict(m.Open(mode="rw")))
    turns.at(CONFIG.window_s)
    assert str(admission.verdict(m.Open(mode="rw_or_ro"))) == "may write"
    assert not admission.verdict(m.Open(mode="ro")).may


# -- recovery ----------------------------------------------------------------------------------------------------------


def started(turns: Turns, record: Record | None = RECORD, **event: Any) -> tuple[Recovery, Weights]:
    weights = Weights()
    recovery = Recovery(turns.context, weights, CONFIG)
    recovery.notice()
    recovery.starts(e.Started(record, **event))
    return recovery, weights


def back(sizes: list[int], first: int = 0, **other: Any) -> m.HandBack:
    fields: dict[str, Any] = {"generation": 6, "hash": RECORD.hash, "layout": document(5)}
    return m.HandBack(sizes=sizes, first=first, **fields | other)


@pytest.mark.parametrize(
    ("record", "floor", "given"),
    [(None, 9, 9), (RECORD, 0, 6), (RECORD, 9, 9), (Record(20, 6, RECORD.hash, RECORD.slabs, BOOT), 9, 20)],
)
def test_generations_begin_above_the_file_and_above_the_clock(
    turns: Turns, record: Record | None, floor: int, given: int
) -> None:
    _, weights = started(turns, record, generation_floor=floor)
    assert weights.newest_generation == given and weights.next_generation() == given + 1


def test_it_asks_who_has_the_memory_and_gives_up_when_nobody_has(turns: Turns) -> None:
    recovery, _ = started(turns)
    assert recovery.step() is Step.CHECK_MEMORY and recovery.step() is Step.NOTHING, "one question at a time"
    recovery.checked(None)
    turns.at(CHECK_EVERY_S)
    assert recovery.step() is Step.CHECK_MEMORY
    recovery.checked(False)
    assert recovery.step() is Step.GIVE_UP and recovery.step() is not Step.GIVE_UP
    recovery.could_not_give_up()
    assert recovery.step() is not Step.GIVE_UP
    turns.at(CHECK_EVERY_S + 1.0)
    assert recovery.step() is Step.GIVE_UP


def test_another_boot_has_no_memory_of_this_one(turns: Turns) -> None:
    recovery, _ = started(turns, Record(6, 6, RECORD.hash, RECORD.slabs, "another boot"))
    assert recovery.step() is Step.GIVE_UP and not recovery.why_no_writer


def test_a_hand_back_in_parts_stands_again_when_it_is_whole(turns: Turns) -> None:
    two = Record(6, 6, lay.structure_hash(document(5, 7)), (RecordedSlab(5, "m1"), RecordedSlab(7, "m2")), BOOT)
    recovery, weights = started(turns, two)
    message = back([5, 7], hash=two.hash, layout=document(5, 7))
    assert recovery.hand_back(1, message, [e.Slab(11, "m1")], idle=True).verdict is Verdict.MORE
    assert recovery.comes_from(1) and [slab.handle for slab in recovery.kept] == [11]
    message = back([5, 7], 1, hash=two.hash)
    done = recovery.hand_back(1, message, [e.Slab(12, "m2")], idle=True)
    assert done.verdict is Verdict.HAS_IT and done.stands_again is weights.committed
    assert weights.committed is not None and [slab.handle for slab in weights.committed.slabs] == [11, 12]
    assert not recovery.kept and not turns.forgotten


@pytest.mark.parametrize(
    ("message", "slabs", "idle", "verdict"),
    [
        (back([5], generation=5), [e.Slab(11, "m1")], True, Verdict.STALE),
        (back([5]), [e.Slab(11, "another")], True, Verdict.STALE),
        (back([6]), [e.Slab(11, "m1")], True, Verdict.STALE),
        (back([5], layout=document(5, name="x")), [e.Slab(11, "m1")], True, Verdict.STALE),
        (back([5]), [], True, Verdict.MISTAKE),
        (back([5]), [e.Slab(11, "m1")], False, Verdict.MISTAKE),
        (back([5], 1), [e.Slab(11, "m1")], True, Verdict.MISTAKE),
    ],
)
def test_what_is_not_the_awaited_layout_leaves_nothing_here(
    turns: Turns, message: m.HandBack, slabs: list[e.Slab], idle: bool, verdict: Verdict
) -> None:
    recovery, weights = started(turns)
    said = recovery.hand_back(1, message, slabs, idle=idle)
    assert said.verdict is verdict and said.why and said.stands_again is None
    assert turns.forgotten == [slab.handle for slab in slabs] and not recovery.kept
    assert weights.phase is Phase.RECOVERING and not recovery.comes_from(1)


def test_not_everybody_hands_back_at_the_same_time(turns: Turns) -> None:
    recovery, _ = started(turns)
    message = back([5, 7])
    for conn in range(MOST_HAND_BACKS):
        assert recovery.hand_back(conn, message, [e.Slab(conn, "m1")], idle=True).verdict is Verdict.MORE
    assert recovery.hand_back(99, message, [e.Slab(99, "m1")], idle=True).verdict is Verdict.COME_AGAIN
    recovery.left(0)
    assert recovery.hand_back(99, message, [e.Slab(98, "m1")], idle=True).verdict is Verdict.MORE


# -- writing, reading, drops -------------------------------------------------------------------------------------------


def writing_over(turns: Turns, weights: Weights) -> Writing:
    sessions, _ = some_sessions(turns, weights, 1, 2)
    return Writing(turns.context, weights, sessions, CONFIG)


def test_a_slab_is_tried_for_again_and_again_for_a_bounded_time(turns: Turns) -> None:
    weights = being_written()
    writing = writing_over(turns, weights)
    assert weights.draft is not None
    writing.create(weights.draft, 50)
    assert e.Allocate(1, 50) in turns.context.out
    while not turns.sent:
        writing.not_allocated(e.NotAllocated(1, 50, 40), ["somebody has it"])
        turns.at(turns.now + RETRY_S) if not turns.sent else None
        writing.step()
    assert turns.now >= CONFIG.memory_wait_s
    answer = turns.sent[0]
    assert isinstance(answer, m.Refused) and answer.reason == "no_memory" and "somebody has it" in answer.why
    assert writing.wanted is None


def test_a_slab_that_nobody_wants_any_more_is_forgotten(turns: Turns) -> None:
    weights = being_written()
    writing = writing_over(turns, weights)
    assert weights.draft is not None
    writing.create(weights.draft, 50)
    writer = Client(1, "engine-1", 1, None, 0.0)
    writing.abort(writer)
    turns.at(1.0)
    writing.allocated(e.Allocated(1, e.Slab(77, "m7")))
    assert turns.forgotten == [77] and weights.phase is Phase.EMPTY


@pytest.mark.parametrize(
    ("replace", "needed", "free", "reason"),
    [
        (False, 96, 95, ""),
        (False, 101, 95, "too_large"),
        (False, 96, 50, "no_memory"),
        (True, 95, 95, ""),
        (True, 96, 95, "too_large"),
        (True, 90, 50, "no_memory"),
    ],
)
def test_what_there_is_no_room_for_is_refused_with_the_figures(
    turns: Turns, replace: bool, needed: int, free: int, reason: str
) -> None:
    weights = committed()
    sessions, _ = some_sessions(turns, weights, 1, 2)
    writing = Writing(turns.context, weights, sessions, CONFIG)
    request = sessions.ask(sessions.clients[2], m.Open(mode="rw", replace=replace, bytes=needed), math.inf)
    writing.is_there_room(sessions.clients[2], request, free)
    assert [answer.reason for answer in turns.sent if isinstance(answer, m.Refused)] == ([reason] if reason else [])


def test_a_reader_gets_its_slabs_in_batches_and_who_has_them_only_the_word(turns: Turns) -> None:
    weights = being_written()
    weights.add(Slab(12, "m2", 7))
    weights.add(Slab(13, "m3", 7))
    weights.commit(layout_of(weights))
    sessions, holders = some_sessions(turns, weights, 1, 2, 3)
    reading = Reading(turns.context, weights, holders, sessions, CONFIG)
    reading.let_in(sessions.clients[2], m.Open(mode="ro"))
    slabs = [effect.slabs for effect in turns.context.out if isinstance(effect, e.Send) and effect.slabs]
    assert slabs == [(11, 12), (13,)] and holders.layouts(2) == [6]
    turns.at(1.0)
    reading.let_in(sessions.clients[3], m.Open(mode="ro", have=6))
    assert turns.sent == [m.Opened(mode="ro", generation=6, hash="hash")]
    turns.at(2.0)
    reading.let_in(sessions.clients[1], m.Open(mode="ro", expect="another"))
    assert isinstance(turns.sent[0], m.Refused) and turns.sent[0].reason == "stale"


def test_who_does_not_drop_is_named_in_an_alarm_until_it_has(turns: Turns) -> None:
    sessions, holders = some_sessions(turns, empty(), 1, 2)
    drops = Drops(turns.context, holders, sessions)
    holders.get(1, 5)
    drops.ask(5)
    assert turns.sent == [m.Drop(generation=5)] and "engine-1 (pid 1)" in drops.pending[0]
    drops.step()
    assert not turns.context.alarms
    turns.at(ANSWER_S)
    drops.step()
    assert "engine-1" in turns.context.alarms["pending_drops"]
    drops.dropped(sessions.clients[1], 5)
    drops.step()
    assert not turns.context.alarms and not drops.pending


# -- the file ----------------------------------------------------------------------------------------------------------


def test_what_waits_for_the_disk_comes_back_when_it_is_written(turns: Turns) -> None:
    file = StateFile(turns.context)
    admit = Admit(1, 1, 7, False)
    file.write(Record(7), admit)
    assert file.busy and file.says is None and e.Persist(1, Record(7)) in turns.context.out
    assert file.persisted(1) == [admit]
    assert not file.busy and file.says == Record(7)


def test_what_can_not_be_written_is_not_done_and_the_truth_is_written_until_that_works(turns: Turns) -> None:
    file = StateFile(turns.context)
    owed = GiveUp(6)
    file.write(Record(7), owed)
    assert file.failed(1, "no space") == [owed]
    assert not file.busy and not file.is_due and "disk" in turns.context.alarms and file.says is None
    turns.at(RETRY_WRITE_S)
    assert file.is_due
    file.write(Record(8))
    assert file.persisted(2) == [] and not turns.context.alarms and file.says == Record(8)
    file.write_again()
    assert file.is_due


# -- callers and versions ----------------------------------------------------------------------------------------------


def callers_over(turns: Turns, weights: Weights) -> tuple[Callers, Sessions]:
    sessions, _ = some_sessions(turns, weights)
    return Callers(turns.context, weights, sessions, CONFIG, versions.Strangers(turns.context)), sessions


def received(conn: int, message: m.ClientMessage, process: int | None = None) -> e.Received:
    return e.Received(conn, message, process=process)


def test_an_introduction_is_answered_by_a_welcome_and_a_second_one_is_a_mistake(turns: Turns) -> None:
    callers, sessions = callers_over(turns, recovering())
    hello = m.Hello(protocol=1, newest=9, engine_id="a", pid=7)
    assert callers.introduce(received(1, hello, 70), hello) is None
    welcome = turns.sent[0]
    assert isinstance(welcome, m.Welcome)
    assert (welcome.recovering, welcome.generation, welcome.protocol) == (True, 6, m.PROTOCOL)
    assert e.WatchDeath(70) in turns.context.out
    problem = callers.introduce(received(1, hello, 71), hello)
    assert problem is not None and e.ForgetProcess(71) in turns.context.out and list(sessions.clients) == [1]


def test_a_stranger_is_named_between_its_starts_until_one_of_them_can_talk(turns: Turns) -> None:
    strangers = versions.Strangers(turns.context)
    for start in range(5):  # as far apart as kubelet starts a container that always fails
        turns.at(300.0 * start)
        strangers.step()
        assert start == 0 or f"b (pid {start})" in turns.context.alarms["protocol"]
        strangers.came(m.Hello(protocol=98, engine_id="b", pid=start + 1))
        strangers.step()
        assert turns.context.alarms["protocol"].count("b (pid ") == 1, (
            "each start of an engine takes the last one's place"
        )
    strangers.talks("b")
    strangers.step()
    assert "protocol" not in turns.context.alarms


def test_strangers_are_named_for_a_while_and_not_without_end(turns: Turns) -> None:
    strangers = versions.Strangers(turns.context)
    for number in range(100):
        strangers.came(m.Hello(protocol=98, engine_id=f"e{number}", pid=number))
    strangers.step()
    alarm = turns.context.alarms["protocol"]
    assert "e99" in alarm and "e1 " not in alarm and len(alarm) <= 2000
    turns.at(versions.REMEMBERED_S)
    strangers.step()
    assert not turns.context.alarms


def test_questions_are_for_those_who_have_introduced_themselves(turns: Turns) -> None:
    callers, sessions = callers_over(turns, committed())
    assert callers.ask(1, m.Ping()) is not None
    sessions.observers[1] = Observer()
    assert callers.ask(1, m.Ping()) is None and callers.ask(1, m.AskLayout()) is None
    assert callers.ask(1, m.Watch()) is None and sessions.watchers == [1]
    assert callers.ask(1, m.Create(size=5)) is not None
    sessions.clients[2] = Client(2, "a", 2, None, 0.0)
    assert callers.ask(2, m.Watch()) is not None


# -- invariants --------------------------------------------------------------------------------------------------------


def invariants_over(turns: Turns, weights: Weights, *conns: int) -> Invariants:
    return Invariants(weights, some_sessions(turns, weights, *conns)[0])


def test_all_is_well_in_every_phase(turns: Turns) -> None:
    for make in (*MAKERS.values(), being_replaced):
        assert invariants_over(turns, make(), 1).broken([], None, 0) == ""


def spoil(weights: Weights, **fields: object) -> Weights:
    for name, value in fields.items():
        setattr(weights, name, value)
    return weights


@pytest.mark.parametrize(
    ("weights", "rule"),
    [
        (lambda: spoil(being_written(), readers={1}), "somebody writes while somebody reads"),
        (lambda: spoil(being_written(), draft=None), "the phase is RW, and nobody writes"),
        (lambda: spoil(committed(), readers={1}), "the phase is COMMITTED, and 1 read"),
        (lambda: spoil(read_by_its_writer(), readers=set()), "the phase is RO, and 0 read"),
        (lambda: spoil(committed(), committed=None), "nothing is committed"),
        (lambda: spoil(empty(), committed=committed().committed), "layout 6 is committed"),
        (lambda: spoil(empty(), awaited=RECORD), "a layout is awaited"),
        (lambda: spoil(recovering(), awaited=None), "no layout is awaited"),
        (lambda: spoil(committed(), newest_generation=5), "5 is the newest that was given"),
        (lambda: spoil(committed(), committed=Layout(6, "hash", b"", 1, ())), "has no slab"),
        (lambda: spoil(being_written(), newest_generation=5), "generation 6 is being written"),
    ],
)
def test_a_broken_rule_is_named(turns: Turns, weights: Callable[[], Weights], rule: str) -> None:
    assert rule in invariants_over(turns, weights(), 1).broken([], None, 0)


def test_generations_that_fall_are_noticed(turns: Turns) -> None:
    weights = empty()
    invariants = invariants_over(turns, weights)
    assert invariants.broken([], None, 0) == ""
    weights.newest_generation -= 1
    assert "generations fall" in invariants.broken([], None, 0)


def test_writers_and_readers_are_connected(turns: Turns) -> None:
    assert "the writer is not connected" in invariants_over(turns, being_written(), 2).broken([], None, 0)
    assert "who is not connected" in invariants_over(turns, read_by_its_writer(), 2).broken([], None, 0)


@pytest.mark.parametrize(
    ("make", "effect", "on_disk", "rule"),
    [
        (read_by_its_writer, e.Send(1, m.Committed(generation=6, hash="")), Record(6), "not on disk"),
        (being_written, e.Send(1, m.Opened(mode="rw", generation=6)), Record(5), "not on disk"),
        (being_written, e.Send(1, m.Opened(mode="rw", generation=6)), None, "not on disk"),
        (being_written, e.Send(1, m.Opened(mode="rw", generation=6)), Record(6, 4, "h"), "still on disk"),
        (read_by_its_writer, e.Send(1, m.Opened(mode="ro", generation=5)), None, "not committed"),
        (committed, e.Forget((3, 11)), None, "1 slabs of layout 6"),
    ],
)
def test_what_is_told_is_on_disk_and_what_is_committed_stays(
    turns: Turns, make: Callable[[], Weights], effect: e.Effect, on_disk: Record | None, rule: str
) -> None:
    assert rule in invariants_over(turns, make(), 1).broken([effect], on_disk, 0)


def test_questions_have_a_bound(turns: Turns) -> None:
    assert "questions" in invariants_over(turns, empty()).broken([], None, 65)


def test_what_is_done_in_spite_of_a_mistake_harms_nobody() -> None:
    welcome = e.Send(1, m.Withdrawn())
    effects: list[e.Effect] = [
        e.Persist(1, Record(1)),
        e.Allocate(1, 5),
        e.Send(1, m.Opened(mode="rw", generation=6)),
        e.Send(1, m.Drop(generation=6)),
        e.Forget((3, 11)),
        e.PersistPools(1, PoolRecord(1)),
        e.AllocatePool(1, (5,), 4096),
        e.Send(1, m.PoolOwned(generation=6, adopted=True)),
        e.Send(1, m.PoolGone(generation=6)),
        welcome,
    ]
    assert harmless(effects, committed().standing) == [e.Forget((3,)), welcome]


def test_an_event_in_a_report_is_short() -> None:
    said = in_words(e.Received(1, m.Commit(layout=bytes(1 << 20))))
    assert len(said) < 200 and "1048576" in said


# -- status ------------------------------------------------------------------------------------------------------------


def test_long_lists_are_cut_and_say_so(turns: Turns) -> None:
    weights = being_written()
    sessions, holders = some_sessions(turns, weights, *range(1, 301))
    recovery = Recovery(turns.context, weights, CONFIG)
    admission, writing = Admission(weights, sessions, recovery), writing_over(turns, weights)
    drops = Drops(turns.context, holders, sessions)
    pools = PoolMachine(turns.context, CONFIG, versions.Strangers(turns.context))
    parts = status.Parts(CONFIG, turns.context, weights, holders, sessions, admission, writing, drops, pools)
    for client in list(sessions.clients.values())[1:]:
        sessions.ask(client, m.Open(mode="ro"), math.inf)
    for conn in range(2, 200):
        drops.ask_one(sessions.clients[conn], 4)
    seen = status.status_of(parts, "now", 50, {})
    assert (len(seen.clients), seen.clients_total) == (status.MOST_CLIENTS_SHOWN, 300)
    assert len(seen.waiting_for) == status.MOST_SENTENCES and seen.waiting_for[-1] == "and 250 more"
    assert len(seen.pending_drops) == status.MOST_SENTENCES
    assert "phase RW" in status.summary(parts) and len(status.summary(parts)) < 2000


def test_a_commit_that_waits_for_the_disk_is_plain_data() -> None:
    layout = Layout(6, "hash", b"", 1, (Slab(1, "m1", 5),))
    assert Acknowledge(layout) == Acknowledge(Layout(6, "hash", b"", 1, (Slab(1, "m1", 5),)))
