"""The permit, and who holds and who comes next: each built alone."""

from typing import Any

import pytest

from lockserver import events as e
from lockserver import messages as m
from lockserver.callers import Callers
from lockserver.events import NamesTaken, StrangersProbed, Unlink
from lockserver.free_memory import FreeMemory
from lockserver.incarnation import Incarnation, Life, Stage
from lockserver.lock import Doubt, Found, Lock, Phase, State
from lockserver.messages import ACTIVE
from lockserver.permit import Permit
from lockserver.queue import Queue
from lockserver.succession import Succession
from tests.lockserver.parts import DOUBT, NAME, TENURE, UNNAMED, Known, held_by, peer, registered

A, B = 101, 102

# -- the permit --------------------------------------------------------------------------------------------------------


class Initialising(Known):
    """Somebody wants the permit."""

    def __init__(self) -> None:
        super().__init__(prepare_timeout_s=1.0)
        self.queue = Queue(self.config, self.context, FreeMemory(self.config, self.context))
        self.permit = Permit(self.context)
        self.active = Lock(ACTIVE)

    def why_not(self, state: State) -> str:
        return self.permit.why_not(self.active, self.queue, state.value)


def test_the_permits_queue() -> None:
    wish = Initialising()
    a, b, c = wish.a(), registered(wish.incarnations, "b", 2), registered(wish.incarnations, "c", 3)
    for who in (a, b, c, a):
        wish.at(1.0)
        wish.permit.enter(who)
        assert wish.context.changed, "whoever watches sees it"
    wish.permit.leave(b)
    assert wish.permit.next() is a and wish.permit.next() is c and not wish.permit.waiters
    wish.permit.enter(c)
    wish.permit.put_back(b)
    assert wish.permit.next() is b


def test_it_is_given_where_nobody_holds_the_lock_and_nobody_wants_it() -> None:
    assert Initialising().why_not(State.FREE) == ""


def test_it_is_not_given_while_the_holder_wakes() -> None:
    wish = Initialising()
    wish.active = held_by(wish.a())
    assert wish.why_not(State.HELD) == "a is waking"
    wish.active.serve_at("here")
    assert wish.why_not(State.HELD) == ""


def test_it_is_not_given_between_a_holders_death_and_the_next_ones_grant() -> None:
    wish = Initialising()
    a = wish.a()
    wish.active = held_by(a)
    wish.incarnations.lose(a, Stage.DOOMED)
    wish.active.lose(0.0, None)
    assert wish.why_not(State.FENCING) == "the lock is FENCING"


def test_where_nobody_who_waits_can_take_over_another_engine_is_what_is_needed() -> None:
    wish = Initialising()
    b = registered(wish.incarnations, "b", 2)
    wish.queue.enter(b, {}, looked=True)
    assert wish.why_not(State.FENCING) == "the lock is FENCING"
    wish.queue.new_round()
    wish.queue.head()
    assert wish.why_not(State.FENCING), "it has time to answer"
    wish.at(1.0)
    assert wish.why_not(State.FENCING) == ""


def test_a_new_server_waits_for_whoever_had_it() -> None:
    wish = Initialising()
    wish.permit.lock.suspect(UNNAMED)
    assert "may come back" in wish.why_not(State.FREE)


def test_a_restarted_server_gives_it_where_only_a_waiters_need_could_tell_more() -> None:
    wish = Initialising()
    holder = wish.from_file(look_up=False)
    wish.active.find(holder, TENURE, DOUBT)
    holder.stage, holder.life = Stage.AWAITED, Life.FREE
    assert wish.why_not(State.RECOVERING), "it may come back"
    wish.at(DOUBT.until)
    assert wish.why_not(State.FENCING) == ""
    holder.life = Life.HELD
    assert wish.why_not(State.FENCING)
    holder.life = Life.FREE
    wish.incarnations.attach(holder, holder.members[2], peer(2), 0)
    assert wish.why_not(State.FENCING), "one of its processes is seen alive"


# -- succession --------------------------------------------------------------------------------------------------------


class Line(Known):
    """Two locks and a queue; a name in the network namespace is given whenever it is asked for."""

    def __init__(self, **config: Any) -> None:
        super().__init__(**config)
        self.callers = Callers(self.context)
        self.succession = Succession(self.config, self.context, self.callers, self.incarnations)
        self.active, self.permit = self.succession.locks
        self.has_names = True

    def waiter(self, engine_id: str, number: int) -> Incarnation:
        who = registered(self.incarnations, engine_id, number)
        self.succession.queue.enter(who, {}, looked=True)
        return who

    def step(self, *, may_grant: bool = True) -> "Line":
        for _ in range(2):
            self.succession.step(may_grant=may_grant)
            if self.has_names and self.asked(e.TakeNames):
                self.succession.exclusion.taken(NamesTaken(()))
        return self

    def active_is(self, phase: Phase) -> bool:
        return self.active.phase is phase

    def permit_is(self, phase: Phase) -> bool:
        return self.permit.phase is phase

    def holder(self) -> Incarnation:
        who = self.waiter("a", 1)
        self.step()
        self.active.recorded_by = 1
        self.active.tell()
        return who

    def dies(self, who: Incarnation, *, life: bool = False) -> None:
        """Its main process; `life`: somebody has its life lock yet."""
        self.succession.lose(who, Stage.DOOMED, "pidfd")
        self.incarnations.died(1)
        self.step()
        self.incarnations.probed(who.name, life)
        self.step()


def test_the_first_waiter_is_granted_with_a_token_that_grows() -> None:
    line = Line()
    line.succession.newest_token, line.succession.token_floor = 7, 1000
    a = line.waiter("a", 1)
    line.step()
    assert line.active_is(Phase.GRANTING) and line.active.holder is a and line.active.token == 1001
    assert line.succession.must_write and line.succession.newest_token == 1001 and not line.succession.queue.waiters


def test_the_next_grant_has_a_newer_token_than_anybody_has_told_of() -> None:
    line = Line()
    line.succession.knows_of(9)
    line.succession.knows_of(8)
    line.waiter("a", 1)
    assert line.step().active.token == 10


def test_the_names_of_the_devices_that_it_needs_are_taken_before_a_grant() -> None:
    line = Line(reads_memory=True)
    line.has_names = False
    a = line.waiter("a", 1)
    line.succession.queue.update(a, ready=True, looked=True, needs={"gpu": 7})
    line.succession.memory_read(e.MemoryRead({"gpu": (80, 80)}))
    line.step()
    assert line.asked(e.TakeNames) == [e.TakeNames(("gpu",))]


def test_whoever_has_either_lock_holds() -> None:
    line = Line()
    a, b, c = line.holder(), line.waiter("b", 2), line.waiter("c", 3)
    line.permit.grant(b, 0, "then", None, verified=False)
    assert [line.succession.holds(who) for who in (a, b, c)] == [True, True, False]


def test_nobody_is_granted_while_the_disk_fails_or_somebody_else_has_the_names() -> None:
    line = Line()
    line.waiter("a", 1)
    assert line.step(may_grant=False).active_is(Phase.FREE)
    line.has_names = False
    assert line.step().active_is(Phase.FREE)
    line.has_names = True
    line.succession.exclusion.taken(NamesTaken(()))
    assert line.step().active_is(Phase.GRANTING)


@pytest.mark.parametrize("how", ["looked up", "handed back", "not the last one"])
def test_who_had_the_names_is_not_a_holder_that_ended_before_this_server_began(how: str) -> None:
    line = Line()
    line.has_names = False
    line.waiter("b", 2)
    line.succession.exclusion.begin()
    line.succession.exclusion.taken(NamesTaken((("the path", "process 9"),)))
    found = line.incarnations.from_file(TENURE, look_up=False)
    line.active.find(found, TENURE, DOUBT)
    if how == "looked up":
        line.incarnations.looked_up(e.LookedUp(NAME, gone=(1, 2), alive=()))
    else:
        for number in (1, 2):
            dead = e.Peer(number, f"pidfs:{number}", number, number, dead=how == "handed back")
            line.incarnations.hand_back(found, number, dead, from_file=True)
            line.incarnations.died(number)
    if how == "not the last one":
        line.active.doubt = Doubt(Found.NOTHING, -9.0, -9.0)
    line.step()
    line.incarnations.probed(NAME, False)
    line.step()
    line.succession.recovery.strangers_probed(StrangersProbed((), ()), line.active)
    assert line.step().active_is(Phase.FREE)
    line.succession.exclusion.taken(NamesTaken(()))
    assert line.step().active_is(Phase.FREE), "process 9 may be dying"
    line.at(line.config.settle_s)
    assert line.step().active_is(Phase.GRANTING)


def test_a_holder_that_is_lost_is_fenced_until_its_end_is_proven() -> None:
    line = Line()
    a, b = line.holder(), line.waiter("b", 2)
    line.dies(a, life=True)
    assert line.active_is(Phase.FENCING) and line.active.holder is a and line.noted("fencing")
    line.at(1.0)
    line.step()
    line.incarnations.probed(a.name, False)
    line.step()
    assert line.active_is(Phase.FREE), "the next one is asked first"
    line.succession.queue.answered(b, line.succession.queue.round, ok=True, why="")
    line.step()
    assert line.active_is(Phase.GRANTING) and line.active.holder is b
    assert a.name not in line.incarnations.known and line.incarnations.pending_unlinks == {a.name: 0}


def test_the_loss_of_a_holder_begins_a_new_round_of_looks() -> None:
    line = Line()
    a, b = line.holder(), line.waiter("b", 2)
    line.succession.lose(a, Stage.DOOMED, "pidfd")
    line.step()
    assert m.Prepare(round=2) in line.said(B) and b.conn == B, "in parallel with the proof"


def test_a_waiter_that_is_lost_leaves_both_queues() -> None:
    line = Line()
    line.holder()
    b = line.waiter("b", 2)
    line.succession.permit.enter(b)
    line.succession.lose(b, Stage.LOST, "end of file")
    assert not line.succession.queue.waiters and not line.succession.permit.waiters


def test_a_permit_ends_with_its_holder_and_may_be_given_back() -> None:
    line = Line()
    a = line.waiter("a", 1)
    line.succession.permit.enter(a)
    line.step(may_grant=False)
    assert line.permit_is(Phase.FREE)
    line.succession.queue.leave(a)
    line.step()
    assert line.permit_is(Phase.GRANTING) and line.permit.holder is a and line.permit.token == 0
    line.permit.recorded_by = 1
    line.permit.tell()
    line.succession.must_write = False
    line.succession.give_back(a)
    assert line.permit_is(Phase.FREE) and line.succession.must_write
    line.succession.give_back(a)


def test_a_grant_that_could_not_be_written_is_taken_back() -> None:
    line = Line()
    a = line.waiter("a", 1)
    line.waiter("b", 2)
    line.step()
    line.succession.take_back()
    assert line.active_is(Phase.FREE) and next(iter(line.succession.queue.waiters)) == a.name
    line.step()
    a.stage = Stage.LOST
    line.succession.take_back()
    assert a.name not in line.succession.queue.waiters, "one that is not there has no place"


def test_whose_needs_can_never_be_met_is_refused() -> None:
    line = Line(reads_memory=True)
    b = line.waiter("b", 2)
    line.succession.queue.update(b, ready=True, looked=True, needs={"gpu": 81})
    line.succession.memory_read(e.MemoryRead({"gpu": (80, 80)}))
    (refused,) = [message for message in line.said(B) if isinstance(message, m.Refused)]
    assert "81 bytes" in refused.why and not line.succession.queue.waiters


def test_a_server_without_a_file_grants_when_nobody_can_hold() -> None:
    line = Line()
    line.active.suspect(Doubt(Found.NOTHING, 0.0, 2.0))
    line.waiter("a", 1)
    line.step()
    assert line.active_is(Phase.IN_DOUBT)
    line.at(2.0)
    line.step()
    line.succession.recovery.strangers_probed(StrangersProbed(("c.1",), ()), line.active)
    line.step()
    assert line.active_is(Phase.IN_DOUBT) and "c.1" in line.alarm("strangers")
    line.at(3.0)
    line.succession.recovery.strangers_probed(StrangersProbed((), ("c.1",)), line.active)
    line.step()
    assert line.active_is(Phase.IN_DOUBT) and not line.alarm("strangers"), "it may be dying, and is there no more"
    line.at(5.0)
    line.step()
    line.succession.recovery.strangers_probed(StrangersProbed((), ("c.1",)), line.active)
    line.at(9.0)
    line.step()
    assert line.active_is(Phase.GRANTING) and line.incarnations.pending_unlinks == {"c.1": 0}


def test_one_who_never_held_is_forgotten_when_nothing_is_left_of_it() -> None:
    line = Line()
    b = line.waiter("b", 2)
    line.succession.lose(b, Stage.DOOMED, "pidfd")
    line.step()
    assert b.name in line.incarnations.known
    line.incarnations.died(2)
    line.step()
    line.incarnations.probed(b.name, False)
    line.step()
    assert not line.incarnations.known and line.asked(Unlink) == [Unlink(b.name)]
