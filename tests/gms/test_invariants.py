"""What must hold of the machine, seen from outside of its rules: tampered with, it notices; and what binds it."""

from collections.abc import Callable

import pytest

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import status, versions
from gms.rules.context import Context
from gms.rules.invariants import Invariants, harmless, in_words
from gms.rules.record import Record, Region
from gms.rules.recovery import MOST_HAND_BACKS
from gms.rules.sessions import MOST_CLIENTS, MOST_OBSERVERS
from gms.rules.weights import Layout, Slab
from sidecar.machine.context import Time
from sidecar.machine.plan import Plan
from tests.gms.machine_shell import House, document, memory_of, restarted


@pytest.fixture
def context() -> Context:
    context = Context(10)
    context.begin(Time(0.0, 1000.0))
    return context


def empty() -> House:
    return House()


def being_written() -> House:
    house = House()
    house.writer(1, 5)
    return house


def read() -> House:
    house = being_written()
    house.commits(1, 5)
    return house


def committed() -> House:
    house = House()
    house.loaded(5)
    return house


def recovering() -> House:
    return restarted(committed())


# -- a mistake is noticed ----------------------------------------------------------------------------------------------


def spoilt(make: Callable[[], House], **fields: object) -> House:
    house = make()
    for name, value in fields.items():
        setattr(house.weights, name, value)
    return house


@pytest.mark.parametrize(
    ("house", "rule"),
    [
        (lambda: spoilt(being_written, readers={1}), "a process writes while others read"),
        (lambda: spoilt(being_written, draft=None), "the phase is RW, and no process writes"),
        (lambda: spoilt(committed, readers={1}), "the phase is COMMITTED, and 1 read"),
        (lambda: spoilt(read, readers=set()), "the phase is RO, and 0 read"),
        (lambda: spoilt(committed, committed=None), "nothing is committed"),
        (lambda: spoilt(empty, committed=committed().weights.committed), "layout 101 is committed"),
        (lambda: spoilt(empty, awaited=recovering().weights.awaited), "a layout is awaited"),
        (lambda: spoilt(recovering, awaited=None), "no layout is awaited"),
        (lambda: spoilt(committed, committed=Layout(101, "hash", b"", 1, ())), "has no slab"),
        (lambda: spoilt(committed, committed=Layout(102, "h", b"", 1, (Slab(1, "m", 5),))), "101 is the newest"),
        (lambda: spoilt(read, readers={1, 7}), "reads that is not connected"),
    ],
)
def test_a_broken_rule_is_named(house: Callable[[], House], rule: str) -> None:
    assert rule in Invariants(house().machine.device).look([])


def test_the_writer_is_connected() -> None:
    house = being_written()
    del house.machine.sessions.clients[1]
    assert "the writer is not connected" in Invariants(house.machine.device).look([])


@pytest.mark.parametrize(
    ("make", "effect", "on_disk", "rule"),
    [
        (read, e.Send(1, m.Committed(generation=101, hash="")), Region("weights", "shared"), "not on disk"),
        (being_written, e.Send(1, m.Opened(mode="rw", generation=101)), None, "not on disk"),
        (
            being_written,
            e.Send(1, m.Opened(mode="rw", generation=101)),
            Region("weights", "shared", 4, "h"),
            "still on disk",
        ),
        (read, e.Send(1, m.Opened(mode="ro", generation=5)), Region("weights", "shared"), "not committed"),
        (committed, e.Forget((3, 2)), Region("weights", "shared"), "slabs of weights that stand"),
    ],
)
def test_what_is_told_is_on_disk_and_what_is_committed_stays(
    make: Callable[[], House], effect: e.Effect, on_disk: Region | None, rule: str
) -> None:
    house = make()
    house.machine.device.file.says = Record(101, (on_disk,)) if on_disk is not None else Record(5)
    assert rule in Invariants(house.machine.device).look([effect])


@pytest.mark.parametrize(
    ("effect", "spoil", "rule"),
    [
        (e.Send(1, m.PoolOwned(generation=101, adopted=False)), "", ""),
        (e.Send(1, m.PoolOwned(generation=101, adopted=False)), "disk", "not on disk"),
        (e.Send(2, m.PoolOwned(generation=101, adopted=False)), "", "owns none"),
        (e.Send(3, m.Pong(server_incarnation="")), "owner", "has no owner"),
    ],
)
def test_what_must_hold_of_a_pool_is_looked_at_from_the_outcome(effect: e.Effect, spoil: str, rule: str) -> None:
    house = House()
    for conn in (1, 2):
        house.hello(conn, key="kv", policy="exclusive")
    house.says(1, m.ClaimPool(digest="a", sizes=[5], table_size=4096, token=1, proven=True, timeout_s=1.0))
    device = house.machine.device
    if spoil == "disk":
        device.file.says = Record(101)
    elif spoil == "owner":
        setattr(device.regions["kv"].pool, "owner", None)  # type: ignore[attr-defined]  # noqa: B010
    found = Invariants(device).look([effect])
    assert rule in found if rule else found == ""


def test_two_writes_are_never_under_way_together() -> None:
    """The second would not say what the first one does."""
    house = House()
    house.writer(1, 5)
    house.hello(2, key="other")
    effects = house.machine.handle(e.Received(1, m.Commit(layout=document(5))), e.Time(0.0, 0.0))
    assert any(isinstance(effect, e.Persist) for effect in effects)
    effects = house.machine.handle(e.Received(2, m.Open(mode="rw")), e.Time(0.0, 0.0))
    assert not [effect for effect in effects if isinstance(effect, e.Persist | e.CheckPeer)], "it waits for the disk"
    house.machine.handle(e.Received(1, m.Commit(layout=document(5))), e.Time(0.0, 0.0))
    assert "while another is under way" in house.machine.context.alarms["rule"]


def test_questions_have_a_bound() -> None:
    house = House()
    house.machine.device.questions.extend([None] * 65)  # type: ignore[list-item]
    assert "questions" in Invariants(house.machine.device).look([])


def test_what_is_done_in_spite_of_a_mistake_harms_no_client() -> None:
    welcome = e.Send(1, m.Withdrawn())
    effects: list[e.Effect] = [
        e.Persist(1, Record(1)),
        e.Allocate(1, (5,)),
        e.Send(1, m.Opened(mode="rw", generation=6)),
        e.Send(1, m.Drop(generation=6)),
        e.Forget((3, 11)),
        e.Send(1, m.PoolOwned(generation=6, adopted=True)),
        welcome,
    ]
    assert harmless(effects, [Slab(11, "m1", 5)]) == [e.Forget((3,)), welcome]


def test_an_event_in_a_report_is_short() -> None:
    said = in_words(e.Received(1, m.Commit(layout=bytes(1 << 20))))
    assert len(said) < 200 and "1048576" in said


# -- bounds ------------------------------------------------------------------------------------------------------------


def test_a_process_that_does_nothing_makes_room_and_one_that_does_something_does_not() -> None:
    house = being_written()
    machine, effects = house.machine, list[e.Effect]()

    def says(conn: int, message: m.ClientMessage) -> None:
        effects.extend(machine.handle(e.Received(conn, message), e.Time(0.0, 0.0)))

    hello = m.Hello(protocol=m.PROTOCOL, engine_id="one-of-many", pid=1)
    for conn in range(2, MOST_CLIENTS + 1):
        says(conn, hello)
    says(5000, hello)
    assert [each for each in effects if isinstance(each, e.Close)] == [e.Close(2)], "the oldest but the writer"
    for conn in list(machine.sessions.clients)[1:]:
        machine.device.holders.got(conn, 7)
    says(5001, hello)
    assert any(isinstance(each, e.Send) and each.conn == 5001 and "already" in str(each.message) for each in effects)
    for conn in range(10_000, 10_001 + MOST_OBSERVERS):
        says(conn, m.Observe(protocol=m.PROTOCOL))
        if conn < 10_003:
            says(conn, m.Watch())
    assert e.Close(10_003) in effects and e.Close(10_000) not in effects, "the oldest that doesn't watch"


def test_not_every_process_hands_back_at_the_same_time() -> None:
    house = House()
    house.loaded(5, 7)
    house = restarted(house)
    said, memory = house.record, memory_of(house)
    back = m.HandBack(generation=said.generation, hash=said.hash, sizes=[5, 7], layout=document(5, 7))
    for conn in range(MOST_HAND_BACKS + 1):
        house.hello(conn)
        house.says(conn, back, memory[:1])
    assert house.closed == {MOST_HAND_BACKS} and not house.heard(MOST_HAND_BACKS, m.Problem), "it comes again by itself"
    house.hello(40)
    house.says(40, m.HandBack(generation=7, hash=said.hash, sizes=[5, 7]))
    assert 40 not in house.closed and house.heard(40, m.Refused), "a word takes no place"
    house.leaves(0)
    house.hello(50)
    house.says(50, back, memory[:1])
    assert 50 not in house.closed


def test_memory_that_is_not_wanted_any_more_when_it_comes_is_forgotten() -> None:
    house = House()
    house.writer(1)
    house.machine.handle(e.Received(1, m.Create(size=5)), e.Time(0.0, 0.0))
    house.machine.handle(e.Received(1, m.Withdraw()), e.Time(0.0, 0.0))
    effects = house.machine.handle(e.Allocated(1, (e.Slab(77, "m77"),)), e.Time(0.0, 0.0))
    assert e.Forget((77,)) in effects


def test_long_lists_are_cut_and_say_so() -> None:
    house = being_written()
    device = house.machine.device
    for conn in range(2, 301):
        house.machine.handle(
            e.Received(conn, m.Hello(protocol=m.PROTOCOL, engine_id=f"e{conn}", pid=conn)), e.Time(0.0, 0.0)
        )
        device.sessions.ask(device.sessions.clients[conn], m.Open(mode="ro"), 1e9)
        if conn < 200:
            device.holders.ask_one(device.sessions.clients[conn], 4)
    seen = house.status
    assert (len(seen.clients), seen.clients_total) == (status.MOST_CLIENTS_SHOWN, 300)
    assert len(seen.waiting_for) == status.MOST_SENTENCES and seen.waiting_for[-1] == "and 250 more"
    assert len(seen.pending_drops) == status.MOST_SENTENCES
    summary = status.summary(device)
    assert "phase RW" in summary and len(summary) < 2000


# -- versions ----------------------------------------------------------------------------------------------------------


def step(others: versions.OtherVersions) -> None:
    while True:
        plan = Plan(others._context.now, others._context.alarms)
        others.plan(plan)
        if not plan.carry_out():
            return


def test_an_engine_of_another_version_is_named_between_its_starts_until_one_of_them_can_talk(context: Context) -> None:
    others = versions.OtherVersions(context)
    for start in range(5):  # as far apart as kubelet starts a container that always fails
        context.begin(Time(300.0 * start, 0.0))
        step(others)
        assert start == 0 or f"b (pid {start})" in context.alarms["protocol"]
        others.came(m.Hello(protocol=98, engine_id="b", pid=start + 1))
        step(others)
        assert context.alarms["protocol"].count("b (pid ") == 1, "each start of an engine takes the last one's place"
    others.talks("b")
    step(others)
    assert "protocol" not in context.alarms


def test_engines_of_other_versions_are_named_for_a_while_and_not_without_end(context: Context) -> None:
    others = versions.OtherVersions(context)
    for number in range(100):
        others.came(m.Hello(protocol=98, engine_id=f"e{number}", pid=number))
    step(others)
    alarm = context.alarms["protocol"]
    assert "e99" in alarm and "e1 " not in alarm and len(alarm) <= 2000
    context.begin(Time(versions.REMEMBERED_S, 0.0))
    step(others)
    assert not context.alarms
