"""Rules of pools one by one, that chance meets late or never: the server's machine alone, and its parts."""

import os
from typing import Any

import pytest

from gms.memory import DeviceError
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record as r
from gms.rules.exclusive import BACK_S, SECOND_DEATH_S, ExclusiveRegion
from gms.rules.holders import MOST_LAYOUTS
from gms.rules.machine import MOST_REGIONS, Machine
from gms.rules.pools import MAY_FOLLOW, Owner, Phase, Pool, Shape
from gms.rules.sessions import MOST_CLIENTS
from gms.rules.weights import BrokenRule, Slab
from gms.shell import tables
from sidecar.machine.context import Time

SHAPE = Shape("a", (60, 40), 4096)
OWNER = Owner("e1 (pid 1)", 1, "pidfs:1", 0.0, False, True, 1)


class Harness:
    """The machine, with a disk that works and memory that is there."""

    def __init__(self, record: r.Record | None = None, *owners: e.FoundOwner, **config: Any) -> None:
        self.machine = Machine(e.Config("host:0", "s1", boot_id="boot", capacity=1000, **config))
        self.sent: list[tuple[int, m.ServerMessage]] = []
        self.last = 100
        self.record = record
        self.now = self.wall = 0.0
        self.full = False
        self.feed(e.Started(record, generation_floor=5, owners=owners))

    def feed(self, event: e.Event) -> list[e.Effect]:
        events, effects = [event], list[e.Effect]()
        while events:
            for effect in self.machine.handle(events.pop(0), Time(self.now, self.wall)):
                effects.append(effect)
                if isinstance(effect, e.Send):
                    self.sent.append((effect.conn, effect.message))
                elif isinstance(effect, e.Persist):
                    self.record = effect.record
                    events.append(e.Persisted(effect.seq))
                elif isinstance(effect, e.Allocate) and self.full:
                    events.append(e.NotAllocated(effect.conn, 100, 0))
                elif isinstance(effect, e.Allocate):
                    slabs = tuple(self.slab(f"m{number}") for number in range(len(effect.sizes) + 1))
                    events.append(e.Allocated(effect.conn, slabs))
                elif isinstance(effect, e.CheckMemory):
                    events.append(e.MemoryChecked(0, False))
        return effects

    def slab(self, identity: str) -> e.Slab:
        self.last += 1
        return e.Slab(self.last, identity)

    def comes(self, conn: int, key: str = "kv", have: int = 0, *, writes_end: bool = True) -> None:
        hello = m.Hello(protocol=m.PROTOCOL, engine_id=f"e{conn}", pid=conn, key=key, policy="exclusive", have=have)
        known = e.Received(conn, hello, process=conn, identity=f"pidfs:{conn}", local_pid=conn, writes_end=writes_end)
        self.feed(known)

    def says(self, conn: int, message: m.ClientMessage, *identities: str) -> m.ServerMessage:
        before = len(self.sent)
        self.feed(e.Received(conn, message, tuple(self.slab(identity) for identity in identities)))
        return next(said for to, said in self.sent[before:] if to == conn)

    def claims(self, conn: int, token: int = 10, **more: Any) -> m.ServerMessage:
        shape = {"digest": SHAPE.digest, "sizes": list(SHAPE.sizes), "table_size": SHAPE.table_size}
        return self.says(conn, m.ClaimPool(**{**shape, "token": token, "proven": True, "timeout_s": 0.0, **more}))

    def back(self, conn: int, generation: int, *identities: str, token: int = 0) -> m.ServerMessage:
        return self.says(conn, hand_back(generation, token), *identities)

    @property
    def pool(self) -> Pool:
        region = self.machine.regions["kv"]
        assert isinstance(region, ExclusiveRegion)
        return region.pool


def hand_back(generation: int, token: int = 0) -> m.HandBack:
    sizes = [*SHAPE.sizes, SHAPE.table_size]
    return m.HandBack(generation=generation, hash="a", sizes=sizes, table=True, token=token)


def owned_by_one() -> tuple[Harness, m.PoolOwned]:
    harness = Harness()
    harness.comes(1)
    owned = harness.claims(1)
    assert isinstance(owned, m.PoolOwned)
    return harness, owned


# -- after a restart ---------------------------------------------------------------------------------------------------


def test_only_the_memory_that_is_in_the_file_can_be_handed_back() -> None:
    old, owned = owned_by_one()
    harness = Harness(old.record, e.FoundOwner("kv", gone=True))
    harness.comes(2, have=owned.generation)
    answer = harness.back(2, owned.generation, "m0", "m1", "another table")
    assert isinstance(answer, m.Refused) and answer.reason == "stale"
    assert not harness.machine.slabs
    harness.comes(3, have=owned.generation)
    assert harness.back(3, owned.generation, "m0", "m1", "m2") == m.HandedBack(generation=owned.generation)
    answer = harness.claims(3, 11)
    assert isinstance(answer, m.PoolOwned) and answer.adopted


def test_a_boot_leaves_nothing() -> None:
    """No process of the boot before lives that a token could shut out."""
    old, _ = owned_by_one()
    assert old.record is not None
    harness = Harness(r.decode(r.encode(_of_another_boot(old.record))))
    assert "kv" not in harness.machine.regions
    harness.comes(2)
    answer = harness.claims(2, 9)
    assert isinstance(answer, m.PoolOwned) and not answer.adopted


def _of_another_boot(record: r.Record) -> r.Record:
    return r.Record(record.given, record.regions, "another boot")


def test_an_owner_that_was_thought_dead_owns_it_as_long_as_no_other_does() -> None:
    """Its number may have meant another process: a container that was restarted."""
    old, owned = owned_by_one()
    harness = Harness(old.record, e.FoundOwner("kv", gone=True))
    harness.comes(1, have=owned.generation)
    assert isinstance(harness.back(1, owned.generation, "m0", "m1", "m2", token=10), m.HandedBack)
    harness.comes(2)
    answer = harness.claims(2, 11)
    assert isinstance(answer, m.Refused) and answer.reason == "owned"


def test_two_that_say_they_own_it_are_an_alarm_and_the_second_is_sent_away() -> None:
    harness, owned = owned_by_one()
    harness.comes(2, have=owned.generation)
    answer = harness.back(2, owned.generation, token=10)
    assert isinstance(answer, m.Refused) and answer.reason == "stale"
    assert any("two processes" in str(event.detail) for event in harness.machine.context.history)


def test_a_claim_waits_a_moment_for_what_a_new_server_has_not_got_yet() -> None:
    old, owned = owned_by_one()
    harness = Harness(old.record, e.FoundOwner("kv", gone=True))
    harness.comes(2)
    harness.feed(e.Received(2, _claim(timeout_s=9.0)))
    assert not any(isinstance(said, m.PoolOwned) for _, said in harness.sent)
    while not any(isinstance(said, m.PoolOwned) for _, said in harness.sent):
        harness.now = harness.machine.deadline
        harness.feed(e.Tick())
    assert harness.now <= BACK_S + 0.3
    (answer,) = (said for _, said in harness.sent if isinstance(said, m.PoolOwned))
    assert (answer.adopted, answer.why_empty) == (False, "new") and answer.generation > owned.generation


def never_told(old: Harness, conn: int = 1, have: int = 0) -> Harness:
    """The server died when the owner was on disk, and before it had answered: the owner lives, and knows nothing."""
    harness = Harness(old.record, e.FoundOwner("kv", process=7))
    harness.comes(conn, have=have)
    return harness


def test_an_owner_that_was_never_told_claims_anew_and_gets_new_memory() -> None:
    old, owned = owned_by_one()
    harness = never_told(old)
    harness.feed(e.Received(1, _claim(timeout_s=9.0)))
    while not any(isinstance(said, m.PoolOwned) for _, said in harness.sent):
        harness.now = harness.machine.deadline
        harness.feed(e.Tick())
    (answer,) = (said for _, said in harness.sent if isinstance(said, m.PoolOwned))
    assert (answer.adopted, answer.why_empty) == (False, "new") and answer.generation > owned.generation


def test_an_owner_that_was_never_told_is_waited_for_by_no_other() -> None:
    """Whether or not it says anything more: its claim may have been refused by a server that died since."""
    old, owned = owned_by_one()
    harness = never_told(old)
    assert harness.record is not None and harness.record.regions[0].owner is None
    harness.comes(2, have=owned.generation)
    harness.back(2, owned.generation, "m0", "m1", "m2")
    answer = harness.claims(2, 12)
    assert isinstance(answer, m.PoolOwned) and answer.adopted


def test_an_owner_that_was_never_told_that_it_has_adopted_owns_nothing() -> None:
    harness, owned = owned_by_one()
    harness.comes(2)
    harness.says(1, m.ReleasePool())
    assert isinstance(harness.claims(2, 11), m.PoolOwned)
    again = never_told(harness, 2, have=owned.generation)
    assert again.pool.owner is not None, "it may bring that it owns it"
    again.back(2, owned.generation, "m0", "m1", "m2")
    again.comes(1, have=owned.generation)
    answer = again.claims(1, 12)
    assert isinstance(answer, m.PoolOwned) and answer.adopted


def test_an_owner_that_this_server_had_found_and_turned_away_is_known_by_no_second_pidfd_once_it_releases() -> None:
    """The file was an older one. (Found by the simulator.)"""
    old, owned = owned_by_one()
    harness = Harness(old.record, e.FoundOwner("kv", process=7))
    for conn in (2, 1):
        harness.comes(conn, have=owned.generation)
    harness.back(2, owned.generation, "m0", "m1", "m2")
    answer = harness.back(1, owned.generation, "m0", "m1", "m2", token=12)
    assert isinstance(answer, m.Refused) and harness.pool.owner is not None and harness.pool.owner.process == 7
    effects = harness.feed(e.Received(1, m.ReleasePool()))
    assert [effect.process for effect in effects if isinstance(effect, e.ForgetProcess)] == [7]


def test_what_became_of_an_owner_that_no_kernel_names_is_doubted_and_its_contents_go_to_no_other() -> None:
    old, owned = owned_by_one()
    harness = Harness(old.record, e.FoundOwner("kv"))
    harness.comes(2, have=owned.generation)
    harness.back(2, owned.generation, "m0", "m1", "m2")
    harness.feed(e.Received(2, _claim()))
    (answer,) = (said for _, said in harness.sent if isinstance(said, m.PoolOwned))
    assert (answer.adopted, answer.why_empty) == (False, "unproven")


def _claim(**more: Any) -> m.ClaimPool:
    said: dict[str, Any] = {"digest": "a", "sizes": [60, 40], "table_size": 4096, "token": 11, "proven": True}
    return m.ClaimPool(**{**said, "timeout_s": 0.0, **more})


def test_a_pool_whose_record_is_lost_is_named_in_an_alarm_until_it_has_memory_again() -> None:
    harness = Harness()
    harness.feed(e.Started(None, "its checksum is wrong", generation_floor=5))
    harness.comes(1)
    assert "what kv had is lost" in harness.machine.context.alarms["record kv"]
    assert isinstance(harness.claims(1), m.PoolOwned)
    assert not harness.machine.context.alarms


def test_who_has_descriptors_is_told_nothing_before_it_has_said_of_what() -> None:
    """The answer to what it says would be taken for one about what it was given meanwhile."""
    harness, owned = owned_by_one()
    harness.comes(2, have=1)
    harness.comes(3)
    harness.feed(e.Received(1, m.ReleasePool()))
    assert not any(conn == 2 and isinstance(said, m.PoolIs) for conn, said in harness.sent)
    answer = harness.back(2, 1)
    assert isinstance(answer, m.Refused) and answer.reason == "stale"
    assert harness.sent[-1][0] == 2 and isinstance(harness.sent[-1][1], m.PoolIs)
    assert harness.sent[-1][1].generation == owned.generation


# -- late writes, and a second death -----------------------------------------------------------------------------------


@pytest.mark.parametrize("restarted", [False, True])
@pytest.mark.parametrize("released", [False, True])
def test_contents_of_an_owner_that_could_have_io_uring_are_not_handed_on(restarted: bool, released: bool) -> None:
    harness = Harness()
    harness.comes(1, writes_end=False)
    first = harness.claims(1)
    assert isinstance(first, m.PoolOwned)
    harness.comes(2)
    harness.feed(e.Received(1, m.ReleasePool()) if released else e.Died(1))
    if restarted:
        harness = Harness(harness.record, e.FoundOwner("kv", gone=True))
        harness.comes(2, have=first.generation)
        harness.back(2, first.generation, "m0", "m1", "m2")
    harness.claims(2, 11)
    answer = next(said for to, said in reversed(harness.sent) if to == 2 and isinstance(said, m.PoolOwned))
    assert (answer.adopted, answer.why_empty) == (False, "unproven") and answer.generation > first.generation


def test_an_owner_that_comes_back_takes_no_doubt_off_that_another_left_since() -> None:
    """It had released the pool, and was not told; since then another owned it, and could have io_uring. (Found by the
    simulator, seed 163080.)
    """
    harness = Harness()
    harness.comes(1, writes_end=False)
    owned = harness.claims(1)
    assert isinstance(owned, m.PoolOwned)
    harness.feed(e.Received(1, m.ReleasePool()))
    harness = Harness(harness.record)
    harness.comes(2, have=owned.generation)
    assert isinstance(harness.back(2, owned.generation, "m0", "m1", "m2", token=10), m.HandedBack)
    harness.feed(e.Received(2, m.ReleasePool()))
    harness.comes(3)
    harness.claims(3, 11)
    (answer,) = (said for to, said in harness.sent if to == 3 and isinstance(said, m.PoolOwned))
    assert (answer.adopted, answer.why_empty) == (False, "unproven")


def test_a_filter_that_came_later_says_nothing_of_what_was_begun_before() -> None:
    harness = Harness()
    harness.comes(1, writes_end=False)
    owned = harness.claims(1)
    assert isinstance(owned, m.PoolOwned)
    harness.feed(e.Closed(1))
    hello = m.Hello(protocol=m.PROTOCOL, engine_id="e1", pid=1, key="kv", policy="exclusive", have=owned.generation)
    harness.feed(e.Received(5, hello, process=5, identity="pidfs:1", local_pid=1, writes_end=True))
    assert isinstance(harness.back(5, owned.generation, token=10), m.HandedBack)
    assert harness.pool.owner is not None and not harness.pool.owner.writes_end


def test_a_status_counts_the_keepers_of_a_pool() -> None:
    harness, _ = owned_by_one()
    harness.comes(2)
    harness.comes(3, have=99)
    (seen,) = (region for region in harness.machine.status(0, {103: (5, 8)}).regions if region.key == "kv")
    assert (seen.keepers, seen.blocks, seen.blocks_total, seen.owner) == (2, 5, 8, "e1 (pid 1)")


@pytest.mark.parametrize("set_s", [3600.0, -3600.0])
@pytest.mark.parametrize(("lived_s", "kills"), [(SECOND_DEATH_S - 1, True), (SECOND_DEATH_S + 1, False)])
@pytest.mark.parametrize("restarted", [False, True])
def test_a_second_death_does_not_go_by_the_clock_on_the_wall(
    set_s: float, lived_s: float, kills: bool, restarted: bool
) -> None:
    harness, _ = owned_by_one()
    harness.feed(e.Died(1))
    harness.comes(2)
    assert isinstance(harness.claims(2, 11), m.PoolOwned)
    harness.now, harness.wall = lived_s, set_s
    if restarted:
        new = Harness(time_namespace="")
        new.now, new.wall, record = harness.now, harness.wall, harness.record
        new.machine = Machine(e.Config("host:0", "s2", boot_id="boot", capacity=1000))
        new.feed(e.Started(record, owners=(e.FoundOwner("kv", gone=True),)))
        harness = new
    else:
        harness.feed(e.Died(2))
    pool = harness.pool
    assert pool.doubt_kind == ("second_death" if kills else "")


def test_times_of_another_time_namespace_tell_nothing() -> None:
    harness, _ = owned_by_one()
    harness.feed(e.Died(1))
    harness.comes(2)
    harness.claims(2, 11)
    assert harness.record is not None
    moved = Harness(harness.record, e.FoundOwner("kv", gone=True), time_namespace="time:[another]")
    pool = moved.pool
    assert pool.doubt_kind == "second_death"


# -- who may not -------------------------------------------------------------------------------------------------------


def test_where_pools_are_off_a_claim_is_refused_with_the_reason() -> None:
    harness = Harness(pools_off="not on this device")
    harness.comes(1)
    answer = harness.claims(1)
    assert isinstance(answer, m.Refused) and (answer.reason, answer.why) == ("off", "not on this device")


@pytest.mark.parametrize(
    ("claim", "reason"), [({"sizes": [61]}, "too_large"), ({"sizes": [1000, 20]}, "too_large"), ({}, "")]
)
def test_what_can_never_fit_is_refused_at_once(claim: dict[str, Any], reason: str) -> None:
    harness = Harness(granularity=20)
    harness.comes(1)
    answer = harness.claims(1, **claim)
    assert (answer.reason if isinstance(answer, m.Refused) else "") == reason


def test_everything_that_grows_has_a_bound() -> None:
    harness = Harness()
    for number in range(MOST_REGIONS - 1):
        harness.comes(number + 1, key=f"kv-{number}")
        assert isinstance(harness.says(number + 1, _claim(sizes=[1])), m.PoolOwned)
    harness.comes(MOST_REGIONS, key="one-more")
    problem = harness.sent[-1][1]
    assert isinstance(problem, m.Problem) and problem.about == "place" and "gmsctl drop" in problem.why
    for number in range(MOST_REGIONS, MOST_CLIENTS + 1):
        harness.comes(number, key="kv-0")
    harness.comes(MOST_CLIENTS + 1, key="kv-0")
    problem = harness.sent[-1][1]
    assert isinstance(problem, m.Problem) and problem.about == "place"


@pytest.mark.parametrize("restarted", [False, True])
def test_pools_that_were_dropped_by_hand_make_room_for_other_keys(restarted: bool) -> None:
    harness = Harness()
    harness.feed(e.Received(99, m.Observe(protocol=m.PROTOCOL)))
    keys = [f"kv-{number}" for number in range(MOST_REGIONS - 1)]
    for number, key in enumerate(keys):
        conn = 1000 + number
        harness.comes(conn, key=key)
        harness.says(conn, _claim(sizes=[1]))
        harness.says(conn, m.ReleasePool())
        harness.feed(e.Closed(conn))
        assert isinstance(harness.says(99, m.DropRegion(key=key)), m.RegionDropped)
    if restarted:
        harness = Harness(harness.record)
    harness.comes(2, key="kv-7")
    answer = harness.says(2, _claim(sizes=[1], token=10))
    assert isinstance(answer, m.Refused) and answer.reason == "older", "there is room for its token still"
    harness.comes(3, key="another")
    assert isinstance(harness.says(3, _claim(sizes=[1], token=1)), m.PoolOwned)
    assert "kv-7" in harness.machine.regions, "a region with a client is not forgotten for another"


def test_who_says_that_it_has_more_memory_than_a_process_can_have_is_thrown_out() -> None:
    harness, _ = owned_by_one()
    harness.comes(2)
    answers = [harness.back(2, 1000 + number) for number in range(MOST_LAYOUTS)]
    assert all(isinstance(answer, m.Refused) and answer.reason == "stale" for answer in answers)
    effects = harness.feed(e.Received(2, hand_back(999)))
    assert e.Close(2) in effects and 2 not in harness.machine.sessions.clients
    assert any(conn == 2 and isinstance(said, m.Problem) and "more layouts" in said.why for conn, said in harness.sent)


def test_who_drops_nothing_of_what_is_given_up_is_thrown_out_in_the_end_and_who_does_stays() -> None:
    harness = Harness()
    harness.feed(e.Received(9, m.Observe(protocol=m.PROTOCOL)))
    for conn in (1, 2, 3):
        harness.comes(conn)
    for number in range(MOST_LAYOUTS + 1):
        owned = harness.claims(1)
        assert isinstance(owned, m.PoolOwned) and (2 in harness.machine.sessions.clients), number
        harness.says(1, m.ReleasePool())
        harness.feed(e.Received(9, m.DropRegion(key="kv")))
        for conn in (1, 3):
            harness.feed(e.Received(conn, m.Dropped(generation=owned.generation)))
    assert [conn for conn in (1, 2, 3) if conn in harness.machine.sessions.clients] == [1, 3]
    assert isinstance(harness.claims(1), m.PoolOwned), "no other client is disturbed"


def test_a_claim_before_the_last_is_answered_is_a_mistake() -> None:
    harness, _ = owned_by_one()
    harness.comes(2)
    harness.feed(e.Received(2, _claim(timeout_s=9.0)))
    assert isinstance(harness.says(2, _claim()), m.Problem)


def test_who_is_late_to_drop_what_was_given_up_is_named() -> None:
    harness, _ = owned_by_one()
    harness.comes(2)
    harness.feed(e.Died(1))
    harness.feed(e.Received(9, m.Observe(protocol=m.PROTOCOL)))
    harness.feed(e.Received(9, m.DropRegion(key="kv")))
    harness.now += 6.0
    harness.feed(e.Tick())
    answer = harness.sent[-1][1]
    assert isinstance(answer, m.RegionDropped) and (answer.bytes, answer.seen) == (100, False)
    assert "e2 (pid 2) has memory" in answer.still[0]
    assert "e2 (pid 2) still has memory" in harness.machine.context.alarms["pending_drops"]
    harness.feed(e.Received(2, m.Dropped(generation=6)))
    assert "pending_drops" not in harness.machine.context.alarms


def test_when_a_rule_is_broken_no_client_is_let_in_and_nothing_is_taken_away() -> None:
    harness, _ = owned_by_one()
    pool = harness.pool
    pool.token = 3
    effects = harness.feed(e.Died(1))
    assert not any(isinstance(effect, e.Forget | e.Persist) for effect in effects)
    assert "falls to 3" in harness.machine.context.alarms["rule"]
    harness.comes(2)
    answer = harness.claims(2, 11)
    assert isinstance(answer, m.Refused) and "mistake in its own program" in answer.why


# -- other versions ---------------------------------------------------------------------------------------------------


def test_an_alarm_names_an_engine_whose_pool_cant_be_talked_about_until_it_can() -> None:
    harness = Harness()
    harness.feed(
        e.Received(1, m.Hello(protocol=98, newest=99, engine_id="tomorrow", pid=7, key="kv", policy="exclusive"))
    )
    assert harness.sent[-1][0] == 1 and isinstance(harness.sent[-1][1], m.Problem)
    assert "tomorrow (pid 7): the caller speaks versions 98 to 99" in harness.machine.context.alarms["protocol"]
    harness.feed(
        e.Received(2, m.Hello(protocol=1, newest=99, engine_id="tomorrow", pid=8, key="kv", policy="exclusive"))
    )
    assert "protocol" not in harness.machine.context.alarms


# -- the parts ---------------------------------------------------------------------------------------------------------


def test_a_step_that_is_not_in_the_table_is_not_taken() -> None:
    slabs = (Slab(1, "m0", 60), Slab(2, "m1", 40), Slab(3, "t", 4096))
    pool = Pool("kv")
    for step in (lambda: pool.adopt(1, OWNER), lambda: pool.free(), lambda: pool.give_up("dropped")):
        with pytest.raises(BrokenRule):
            step()
    pool.make()
    pool.made(6, SHAPE, slabs, 10, OWNER)
    assert pool.phase in MAY_FOLLOW[Phase.MAKING]
    for step in (lambda: pool.adopt(11, OWNER), lambda: pool.give_up("dropped"), lambda: pool.make()):
        with pytest.raises(BrokenRule):
            step()
    with pytest.raises(BrokenRule, match="newest"):
        pool.own_again(9, OWNER)
    pool.free("it may be what kills", "second_death")
    with pytest.raises(BrokenRule, match="what kills"):
        pool.adopt(11, OWNER)
    assert pool.give_up("dropped") == slabs
    assert (pool.phase, pool.token) == (Phase.EMPTY, 10)


def test_a_table_counts_its_true_records_and_believes_no_header() -> None:
    fd = tables.create(8192)
    try:
        assert tables.count(fd) is None
        os.pwrite(fd, tables.header(64, 16, 100, 5), 0)
        for number in (0, 7, 99):
            os.pwrite(fd, b"\x80", 64 + 16 * number + 5)
        assert tables.count(fd) == (3, 100)
        for bad in ((64, 16, 600, 5), (64, 16, 100, 16), (64, 0, 100, 0), (8, 16, 100, 5), (64, 16, 0, 5)):
            os.pwrite(fd, tables.header(*bad), 0)
            assert tables.count(fd) is None, bad
    finally:
        os.close(fd)


def test_a_table_can_neither_shrink_nor_be_another_thing() -> None:
    fd, other = tables.create(8192), os.memfd_create("other", os.MFD_ALLOW_SEALING)
    try:
        tables.check(fd, 8192)
        with pytest.raises(OSError, match="not permitted"):
            os.ftruncate(fd, 4096)
        os.ftruncate(other, 8192)
        for descriptor, size in ((fd, 4096), (other, 8192), (0, 8192)):
            with pytest.raises(DeviceError):
                tables.check(descriptor, size)
        assert tables.identity(fd) != tables.identity(other)
    finally:
        os.close(fd)
        os.close(other)
