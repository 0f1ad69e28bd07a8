"""Claims of a pool: the verdict on each (`gms/rules/claims.py`), and a process's side (`exclusive_client.py`)."""

from typing import Any

import pytest

from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.claims import Do, verdict
from gms.rules.client_machine import GRACE_S
from gms.rules.exclusive import SECOND_DEATH_S, doubt_of
from gms.rules.exclusive_client import RELEASE_AGAIN_S, ExclusiveClient
from gms.rules.pools import Owner, Phase, Pool, Shape
from gms.rules.sessions import Client
from gms.rules.weights import Slab

SHAPE = Shape("a", (60, 40), 4096)
SLABS = (Slab(1, "m0", 60), Slab(2, "m1", 40), Slab(3, "t", 4096))
CLIENT = Client(1, "e1", 1, 1, 0.0, "kv", "pidfs:1", 1, writes_end=True)


def owner(number: int, *, adopted: bool = False) -> Owner:
    return Owner(f"e{number}", number, f"pidfs:{number}", 0.0, adopted, True, number, number)


def claim(**more: Any) -> m.ClaimPool:
    said: dict[str, Any] = {"digest": "a", "sizes": [60, 40], "table_size": 4096, "token": 10, "proven": True}
    return m.ClaimPool(**{**said, "timeout_s": 1.0, **more})


def pool(phase: Phase, owned_by: int = 0, doubt: str = "") -> Pool:
    made = Pool("kv", phase, token=10)
    if phase in (Phase.OWNED, Phase.FREE, Phase.AWAITED):
        made.generation, made.shape, made.identities = 6, SHAPE, tuple(slab.identity for slab in SLABS)
        made.slabs = SLABS if phase is not Phase.AWAITED else ()
    made.owner = owner(owned_by) if owned_by else None
    made.doubt, made.doubt_kind = doubt, "second_death" if doubt else ""
    return made


# -- who may own it ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "said", "do", "why_empty"),
    [
        (pool(Phase.EMPTY), claim(), Do.MAKE, "new"),
        (pool(Phase.MAKING), claim(), Do.WAIT, ""),
        (pool(Phase.FREE), claim(), Do.ADOPT, ""),
        (pool(Phase.FREE), claim(token=9), Do.REFUSE, ""),
        (pool(Phase.FREE), claim(proven=False), Do.GIVE_UP_AND_MAKE, "unproven"),
        (pool(Phase.FREE), claim(digest="b"), Do.REFUSE, ""),
        (pool(Phase.FREE), claim(digest="b", replace=True), Do.GIVE_UP_AND_MAKE, "replaced"),
        (pool(Phase.FREE, doubt="it kills"), claim(), Do.GIVE_UP_AND_MAKE, "second_death"),
        (pool(Phase.OWNED, 2), claim(), Do.WAIT, ""),
        (pool(Phase.OWNED, 2), claim(digest="b", replace=True), Do.WAIT, ""),
        (pool(Phase.OWNED, 1), claim(token=11), Do.OWN_AGAIN, ""),
        (pool(Phase.OWNED, 1), claim(digest="b", replace=True), Do.REFUSE, ""),
        (pool(Phase.AWAITED), claim(), Do.WAIT, ""),
        (pool(Phase.AWAITED, 2), claim(), Do.WAIT, ""),
        (pool(Phase.AWAITED, doubt="it kills"), claim(), Do.GIVE_UP_AND_MAKE, "second_death"),
    ],
)
def test_the_verdict_on_a_claim(there: Pool, said: m.ClaimPool, do: Do, why_empty: str) -> None:
    found = verdict(there, CLIENT, said, may_come_back=True)
    assert (found.do, found.why_empty) == (do, why_empty)
    assert bool(found.why) is (do in (Do.WAIT, Do.REFUSE))


def test_a_process_is_known_by_the_kernels_name_or_by_its_number() -> None:
    assert owner(1).is_the_same("pidfs:1", 99)
    assert not owner(1).is_the_same("pidfs:2", 1)
    assert owner(1).is_the_same("", 1)
    assert not Owner("e", 0, "", 0.0, False, False, 1).is_the_same("", 0)


def test_an_owner_that_lived_for_long_enough_leaves_no_doubt() -> None:
    assert doubt_of(owner(1, adopted=True), SECOND_DEATH_S - 1)[1] == "second_death"
    assert doubt_of(owner(1, adopted=True), SECOND_DEATH_S + 1) == ("", "")
    assert doubt_of(owner(1), 1.0) == ("", "")
    late = Owner("e1", 1, "pidfs:1", 0.0, True, False, 1)
    assert doubt_of(late, SECOND_DEATH_S + 1)[1] == "unproven", "it could have had io_uring"


# -- a process's side --------------------------------------------------------------------------------------------------


WANT = m.ClaimPool("a", [60, 40], 4096, 10, True, 5.0)


def hello_back(**more: Any) -> m.Welcome:
    said: dict[str, Any] = {"server_incarnation": "s", "device": "d", "granularity": 1, "protocol": m.PROTOCOL}
    return m.Welcome(**{**said, "generation": 0, "hash": "", "recovering": False, **more})


def in_touch(**welcome: Any) -> ExclusiveClient:
    machine = ExclusiveClient("e1", 1, "kv", writes_end=True)
    machine.handle(c.Tick(), 0.0)
    machine.handle(c.Connected(), 0.0)
    machine.handle(c.Heard(hello_back(**welcome)), 0.0)
    return machine


def owning() -> ExclusiveClient:
    machine = in_touch()
    machine.handle(WANT, 0.0)
    effects = machine.handle(c.Heard(m.PoolOwned(generation=6, adopted=False, why_empty="new", fds=3)), 0.0)
    assert [type(effect) for effect in effects] == [c.Keep, c.Owned, m.Changed]
    return machine


def test_a_claim_ends_in_time_with_or_without_a_server_and_is_taken_back() -> None:
    machine = in_touch()
    machine.handle(WANT, 0.0)
    assert not machine.handle(c.Tick(), 5.0)
    no, release = machine.handle(c.Tick(), 5.0 + GRACE_S)
    assert isinstance(no, c.No) and release == c.Say(m.ReleasePool())
    away = ExclusiveClient("e1", 1, "kv", writes_end=True)
    away.handle(c.Disconnected(), 0.0)
    away.handle(WANT, 0.0)
    assert any(isinstance(effect, c.No) for effect in away.handle(c.Tick(), 5.0))


def test_a_claim_that_was_given_up_while_the_server_was_away_is_taken_back_at_the_next_one() -> None:
    """It may have been granted by the server before, whose answer never came."""
    machine = in_touch()
    machine.handle(WANT, 0.0)
    machine.handle(c.Disconnected(), 1.0)
    assert any(isinstance(effect, c.No) for effect in machine.handle(c.Tick(), 6.0))
    machine.handle(c.Connected(), 6.0)
    welcome = hello_back(generation=6)
    assert machine.handle(c.Heard(welcome), 6.0)[-1] == c.Say(m.ReleasePool())


def test_what_comes_with_an_answer_that_is_not_wanted_any_more_is_kept() -> None:
    machine = in_touch()
    machine.handle(WANT, 0.0)
    machine.handle(c.Release(), 0.1)
    effects = machine.handle(c.Heard(m.PoolOwned(generation=6, adopted=True, fds=3)), 0.2)
    assert c.Keep(6, 0) in effects and not any(isinstance(effect, c.Owned) for effect in effects)
    assert machine.token == 0


def test_an_owner_says_so_to_the_next_server_and_goes_on_if_that_wont_have_it() -> None:
    machine = owning()
    machine.handle(c.Disconnected(), 1.0)
    machine.handle(c.Tick(), 2.0)
    (hello,) = machine.handle(c.Connected((6,)), 2.0)
    assert isinstance(hello, c.Say) and isinstance(hello.message, m.Hello) and hello.message.have == 6
    welcome = hello_back(generation=6, hash="a", recovering=True)
    back = machine.handle(c.Heard(welcome), 2.0)[-1]
    assert isinstance(back, c.Say) and (back.generation, back.first, back.count) == (6, 0, 3)
    assert isinstance(back.message, m.HandBack) and back.message.token == 10
    effects = machine.handle(c.Heard(m.Refused(why="gone", reason="stale")), 2.0)
    assert effects == [c.Disowned("gone")] and machine.kept is not None


def test_who_is_not_the_owner_lets_go_of_what_is_given_up_and_says_so() -> None:
    machine = in_touch()
    there = m.PoolIs(generation=6, digest="a", sizes=[60, 40], table_size=4096, owner="e2", fds=3)
    assert machine.handle(c.Heard(there), 0.0) == [c.Keep(6, 0), m.Changed(6, "a")]
    assert machine.handle(c.Heard(m.Drop(generation=6)), 0.0) == [c.LetGo(6)]
    assert machine.handle(m.Dropped(6), 0.0) == [c.Say(m.Dropped(generation=6))]
    assert machine.kept is None


def test_a_release_that_the_disk_refused_is_said_again_a_little_later() -> None:
    machine = owning()
    assert machine.handle(c.Release(), 1.0) == [c.Say(m.ReleasePool())]
    assert machine.handle(c.Heard(m.Refused(why="full", reason="disk")), 1.0) == []
    assert machine.deadline == 1.0 + RELEASE_AGAIN_S
    assert machine.handle(c.Tick(), 1.6) == [c.Say(m.ReleasePool())]
    assert machine.handle(c.Heard(m.PoolReleased()), 1.6) == [m.PoolReleased()]
    assert machine.token == 0
