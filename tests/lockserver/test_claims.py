"""Who may come in, and what a claim is worth (rules 2, 7, 8 and 10 of `machine.py`)."""

import pytest
from msgspec.structs import replace

from evidence.rules import incarnations as inc
from evidence.rules import joining
from evidence.rules.admission import Admission, Admitted, TurnedAway
from evidence.rules.callers import Caller, Callers
from evidence.rules.incarnation import Life, Stage
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.claims import Claims
from lockserver.rules.events import Close
from lockserver.rules.lock import Lock, Phase
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.rest import Rest
from sidecar.wire.versions import Spoken
from tests.evidence.parts import NAME, killed, peer
from tests.lockserver.parts import DOUBT, TENURE, UNNAMED, Turns, held_by

# -- callers -----------------------------------------------------------------------------------------------------------


def test_callers_come_and_go() -> None:
    turns, ended = Turns(), list[int]()
    callers = Callers(turns.context, ended.append)
    caller = callers.enter(Caller(1))
    callers.enter(Caller(2, watching=True))
    assert callers.by_conn[1] is caller and callers.watchers() == [2]
    assert callers.leave(1) is caller and callers.leave(1) is None
    callers.end(2)
    assert turns.asked(Close) == [Close(2)] and not callers.by_conn and ended == [1, 2]


# -- admission ---------------------------------------------------------------------------------------------------------


class Entrance(Turns):
    """Admission with two free locks."""

    def __init__(self, active: Lock | None = None) -> None:
        super().__init__()
        self.active = active or Lock(ACTIVE)
        self.permit = Lock(INIT)
        self.newest = 0
        rest = Rest(self.context)
        self.claims = Claims(
            self.context, self.active, self.permit, rest, lambda: self.newest, lambda who, why: self.active.give_back()
        )
        self.admission = Admission(self.evidence, Spoken(m.OLDEST, m.PROTOCOL), self.claims)

    def register(
        self,
        engine_id: str = "a",
        process: e.Peer | None = None,
        *,
        conn: int = 50,
        newest: int = 0,
        life_held: bool = True,
        secret: str = "",
        **claims: int,
    ) -> Admitted | TurnedAway:
        message = m.Register(
            protocol=m.PROTOCOL,
            engine_id=engine_id,
            incarnation="0" * 8,
            life=(1, 1),
            pid=1,
            claims={lock: claims[lock] for lock in (ACTIVE, INIT) if lock in claims},
            secret=secret,
            mapped=True,
        )
        event = e.Received(conn, message, (process or peer(1),), life_held=life_held, secret="fresh")
        self.newest = newest
        return self.admission.register(event, message)

    def join(
        self, engine_id: str = "a", process: e.Peer | None = None, *, number: int = 0, life_held: bool = True
    ) -> Admitted | TurnedAway:
        message = m.Join(
            protocol=m.PROTOCOL,
            engine_id=engine_id,
            incarnation="0" * 8,
            life=(1, 1),
            pid=2,
            number=number,
            mapped=True,
        )
        event = e.Received(60, message, (process or peer(2),), life_held=life_held)
        return self.admission.join(event, message)


def why(verdict: Admitted | TurnedAway) -> str:
    assert isinstance(verdict, TurnedAway), verdict
    return verdict.why


def let_in(verdict: Admitted | TurnedAway) -> Admitted:
    assert isinstance(verdict, Admitted), verdict
    return verdict


def test_no_process_comes_in_without_a_life_lock() -> None:
    entrance = Entrance()
    assert "you have no lock on it" in why(entrance.register(life_held=False))
    assert "you have no lock on it" in why(entrance.join(life_held=False))
    assert not entrance.incarnations.known


def test_no_process_joins_what_is_condemned() -> None:
    entrance = Entrance()
    who = let_in(entrance.register()).who
    entrance.incarnations.lose(who, Stage.LOST)
    assert "is being fenced" in why(entrance.join())
    let_in(entrance.register())
    let_in(entrance.join())
    entrance.incarnations.lose(who, Stage.DOOMED)
    assert "is being fenced" in why(entrance.join()) and "is being fenced" in why(entrance.register())


def test_a_process_of_a_fenced_engine_is_watched_though_it_may_not_join() -> None:
    entrance = Entrance()
    who = let_in(entrance.register()).who

    def watched(process: e.Peer | None = None, *, life_held: bool = True) -> object:
        turned_away = entrance.join(process=process, life_held=life_held)
        assert isinstance(turned_away, TurnedAway)
        return turned_away.watched

    for stage in (Stage.LOST, Stage.DOOMED):
        entrance.incarnations.lose(who, stage)
        assert watched(peer(3), life_held=False) is None, "that it belongs is not shown"
        assert watched(replace(peer(3), process=None)) is None, "its end could not be seen"
        assert watched(peer(3)) is who and [member.pid for member in who.members.values()] == [1, 3]
    while len(who.members) < inc.MOST_MEMBERS:
        who.add("", 0, 0)
    assert watched(peer(4)) is None and watched(peer(3)) is who


def test_the_main_process_of_another_engine_joins_none_and_is_not_killed_with_it() -> None:
    """A standby that was started with the holder's variables in its environment."""
    entrance = Entrance()
    holder = let_in(entrance.register()).who
    let_in(entrance.register("b", peer(5), conn=51))
    for _ in range(2):
        turned_away = entrance.join(process=peer(5))
        assert "is the main process of b." in why(turned_away)
        assert isinstance(turned_away, TurnedAway) and turned_away.watched is None and len(holder.members) == 1
        entrance.incarnations.lose(holder, Stage.DOOMED)


def test_a_child_may_come_before_its_main_process_after_a_restart() -> None:
    entrance = Entrance()
    admitted = let_in(entrance.join(number=3))
    assert admitted.number == 3 and admitted.who.stage is Stage.AWAITED and admitted.who.members[3].conns == {60}
    assert let_in(entrance.join(number=3)).number == 3
    assert let_in(entrance.join(process=peer(4), number=3)).number == 4


def test_one_that_no_server_has_let_in_joins_once_its_main_process_is_here_and_is_watched_until_then() -> None:
    """Found by the simulator (20290726): the main process was dead, and another engine had been granted."""
    entrance = Entrance()
    turned_away = entrance.join()
    assert why(turned_away) == joining.NOT_BACK and isinstance(turned_away, TurnedAway) and not turned_away.for_good
    assert turned_away.watched is entrance.incarnations.known[NAME] and len(turned_away.watched.members) == 1
    let_in(entrance.join(process=peer(4), number=3))
    assert why(entrance.join()) == joining.NOT_BACK, "one that was let in before says nothing of its main process"
    let_in(entrance.register())
    let_in(entrance.join())


def test_there_is_a_bound_on_processes_and_engines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(joining, "MOST_MEMBERS", 2)
    monkeypatch.setattr(inc, "MOST_INCARNATIONS", 1)
    entrance = Entrance()
    let_in(entrance.register())
    let_in(entrance.join())
    let_in(entrance.join())
    assert why(entrance.join(process=peer(3))) == f"{NAME} has 2 processes already"
    assert why(entrance.register("b", peer(9))) == why(entrance.join("b")) == "there are too many engines here"
    (who,) = entrance.incarnations.known.values()
    assert "at most 2 processes" in entrance.evidence.joining.why_not_vouch(who, (peer(5),))
    assert entrance.evidence.joining.why_not_vouch(who, (peer(2),)) == "", (
        "it counts already: a main process that is back says so"
    )


def test_a_child_is_adopted_by_one_pidfd() -> None:
    entrance = Entrance()
    who = let_in(entrance.register()).who
    assert entrance.evidence.joining.why_not_vouch(who, (peer(5),)) == ""
    for peers in ((), (peer(5), peer(6)), (e.Peer(None, "", 5),)):
        assert "one pidfd" in entrance.evidence.joining.why_not_vouch(who, peers)


# -- claims ------------------------------------------------------------------------------------------------------------


def entrance_with_holder(phase: Phase) -> Entrance:
    """`a` has token 7: it holds, or must be proven gone, or may come back."""
    if phase is Phase.IN_DOUBT:
        entrance = Entrance()
        entrance.active.found(entrance.from_file(), TENURE, DOUBT)
        return entrance
    entrance = Entrance()
    a = entrance.registered("a", 1)
    lock = entrance.active = held_by(a, token=7)
    if phase is Phase.GRANTING:
        lock = entrance.active = Lock(ACTIVE)
        lock.grant(a, 7, "then", None, verified=False)
    elif phase is Phase.FENCING:
        entrance.incarnations.lose(a, Stage.LOST)
        lock.lose(0.0, None)
    entrance.claims.active = lock
    return entrance


def test_a_holder_that_never_heard_of_its_grant_claims_nothing_and_holds_nothing() -> None:
    entrance = entrance_with_holder(Phase.IN_DOUBT)
    let_in(entrance.register())
    assert entrance.active.phase is Phase.FREE and entrance.active.holder is None and entrance.noted("never_told")
    entrance = entrance_with_holder(Phase.FENCING)
    assert entrance.active.held_by(let_in(entrance.register()).who), "this server has told it"


def test_where_a_holder_was_only_told_of_and_never_heard_of_its_grant_another_may_hold() -> None:
    entrance = Entrance()
    assert keeps(entrance, active=7)
    let_in(entrance.register())
    assert entrance.active.holder is None and entrance.active.phase is Phase.IN_DOUBT and entrance.active.unnamed


def test_a_holder_that_is_back_silences_the_alarms_about_it() -> None:
    entrance = entrance_with_holder(Phase.IN_DOUBT)
    for key in ("unproven", "record", "strangers", "version", "names", "awaited", "persist"):
        entrance.context.alarm(key, "something")
    entrance.register(active=7)
    assert list(entrance.context.alarms) == ["persist"]


def test_a_claim_with_an_older_token_than_ones_own_is_a_lie() -> None:
    entrance = entrance_with_holder(Phase.IN_DOUBT)
    assert why(entrance.register(active=6)) == "the token is 7, not 6"
    assert "claimed a lock that it does not hold" in entrance.incarnations.why_condemned(NAME)
    assert why(entrance.register(active=9)) == entrance.incarnations.why_condemned(NAME), "whatever it claims next"
    assert why(entrance.register(active=7)) == entrance.incarnations.why_condemned(NAME)


def test_one_whose_claim_is_untrue_is_not_asked_to_come_again_with_another_life_file() -> None:
    verdict = entrance_with_holder(Phase.HELD).register("b", peer(2), active=7, life_held=False)
    assert verdict == TurnedAway("a was granted the lock with token 7", for_good=True)


@pytest.mark.parametrize("phase", [Phase.HELD, Phase.GRANTING, Phase.FENCING], ids=lambda phase: phase.value)
@pytest.mark.parametrize("token", [6, 7, 8])
def test_a_holder_that_this_server_knows_is_not_put_in_doubt_by_a_claim(phase: Phase, token: int) -> None:
    entrance = entrance_with_holder(phase)
    assert why(entrance.register("b", peer(2), active=token)) == "a was granted the lock with token 7"
    assert entrance.active.phase is phase and "b.00000000" in entrance.incarnations.rejected
    assert "b.00000000" not in entrance.incarnations.known


def test_nor_one_that_is_dead_and_not_proven_gone() -> None:
    entrance = entrance_with_holder(Phase.FENCING)
    killed(entrance.incarnations.known[NAME], life=Life.HELD)
    assert why(entrance.register("b", peer(2), active=8)) == "a was granted the lock with token 7"


@pytest.mark.parametrize("token", [6, 7, 8])
def test_against_a_file_the_newer_token_counts(token: int) -> None:
    entrance = entrance_with_holder(Phase.IN_DOUBT)
    verdict = entrance.register("b", peer(2), active=token, newest=7)
    if token <= 7:
        assert why(verdict) == "a was granted the lock with token 7"
    else:
        assert entrance.active.held_by(let_in(verdict).who) and entrance.active.token == 8
        assert entrance.noted("claimed")


@pytest.mark.parametrize(("newest", "believed"), [(6, True), (7, False), (8, False)])
def test_where_no_engine_holds_a_claim_must_be_newer_than_all_that_was_granted(newest: int, believed: bool) -> None:
    entrance = Entrance()
    verdict = entrance.register(active=7, newest=newest)
    assert isinstance(verdict, Admitted) is believed
    if not believed:
        assert why(verdict) == "token 7 has ended: its holder was taken for gone"


def test_where_an_unknown_engine_may_hold_a_claim_is_believed() -> None:
    entrance = Entrance()
    entrance.active.suspect(UNNAMED)
    assert entrance.active.held_by(let_in(entrance.register(active=7, newest=9)).who)


def test_a_permit_is_claimed_only_where_no_engine_has_it() -> None:
    entrance = Entrance()
    a = let_in(entrance.register(init=0)).who
    assert entrance.permit.held_by(a)
    let_in(entrance.register("b", peer(2), init=0))
    assert entrance.permit.held_by(a)


# -- another version ---------------------------------------------------------------------------------------------------


def keeps(entrance: Entrance, engine_id: str = "a", number: int = 1, *, life_held: bool = True, **claims: int) -> bool:
    message = m.Register(
        protocol=99,
        engine_id=engine_id,
        incarnation="0" * 8,
        life=(1, 1),
        pid=number,
        claims={lock: claims[lock] for lock in (ACTIVE, INIT) if lock in claims},
    )
    event = e.Received(50, message, (peer(number),), life_held=life_held)
    return entrance.admission.keep_what_it_holds(event, message, "it speaks version 99")


def test_a_holder_that_cannot_talk_is_watched_and_not_believed_gone() -> None:
    entrance = entrance_with_holder(Phase.IN_DOUBT)
    assert keeps(entrance, active=7)
    holder = entrance.active.holder
    assert (
        holder is not None
        and holder.seen_alive
        and holder.conn is None
        and holder.cannot_talk == "it speaks version 99"
    )
    assert entrance.active.phase is Phase.IN_DOUBT and "finish the upgrade" in entrance.alarm("version")
    assert entrance.active.endpoint == TENURE.endpoint, "what the file says of it is true"
    assert why(entrance.register("b", peer(2), active=8, newest=7)) == "a was granted the lock with token 7"
    killed(holder)
    assert entrance.active.held_by(let_in(entrance.register("c", peer(3), active=8, newest=7)).who)


def test_who_cannot_talk_and_holds_nothing_is_not_kept() -> None:
    entrance = Entrance()
    assert not keeps(entrance) and not keeps(entrance, active=7, life_held=False)
    assert not keeps(entrance_with_holder(Phase.IN_DOUBT), "b", 2, active=7)
    assert entrance.active.phase is Phase.FREE


@pytest.mark.parametrize("phase", [Phase.HELD, Phase.GRANTING, Phase.FENCING], ids=lambda phase: phase.value)
def test_who_cannot_talk_does_not_take_the_lock_from_a_holder_that_is_known(phase: Phase) -> None:
    entrance = entrance_with_holder(phase)
    killed(entrance.incarnations.known[NAME], life=Life.HELD)
    assert not keeps(entrance, "b", 2, active=8)
    assert entrance.active.phase is phase and not entrance.alarm("version")


def test_a_child_that_cannot_talk_is_watched_where_its_incarnation_is_known() -> None:
    entrance = entrance_with_holder(Phase.IN_DOUBT)
    message = m.Join(protocol=99, engine_id="a", incarnation="0" * 8, life=(1, 1), pid=2)
    event = e.Received(60, message, (peer(2),), life_held=True)
    assert entrance.admission.keep_what_it_holds(event, message, "it speaks version 99")
    assert entrance.incarnations.known[NAME].members[2].process == 2
    without = e.Received(60, message, (peer(3),), life_held=False)
    assert not entrance.admission.keep_what_it_holds(without, message, "it speaks version 99")
    other = m.Join(protocol=99, engine_id="b", incarnation="0" * 8, life=(1, 1), pid=3)
    assert not entrance.admission.keep_what_it_holds(e.Received(60, other, (peer(3),), life_held=True), other, "")


def test_so_is_one_that_comes_while_its_incarnation_is_fenced() -> None:
    entrance = Entrance()
    who = let_in(entrance.register()).who
    entrance.incarnations.lose(who, Stage.DOOMED)
    message = m.Join(protocol=99, engine_id="a", incarnation="0" * 8, life=(1, 1), pid=2)
    event = e.Received(60, message, (peer(2),), life_held=True)
    assert entrance.admission.keep_what_it_holds(event, message, "it speaks version 99")
    assert who.members[2].process == 2 and not who.members[2].dead
