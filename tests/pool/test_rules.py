"""The rules of the pool, one by one; their numbers stand at the top of `pool/rules/machine.py`."""

import math
from typing import Any

import msgspec
import pytest

from pool.entries import ModelDemand, State
from pool.rules import events as e
from pool.rules.machine import AGAIN_S, WRONG
from pool.rules.model import FIRST_PAUSE_S, MOST_GRANTS, WRONG_S, runs_as
from pool.rules.plan import Down, queue
from pool.rules.view import outlooks
from tests.pool.harness import GPU, Pool, Wishes

BUSY = ModelDemand(streaming=1)


# -- 1, 2: it only wishes, and only where it sees ------------------------------------------------------------------


def test_a_wish_changes_no_state_but_to_what_is_under_way() -> None:
    pool = Pool()
    pool.wants("a")
    assert pool.wishes() == [("wake", "a")] and pool.state("a") is State.WAKING
    pool.advance(5)
    assert pool.state("a") is State.WAKING and pool.wishes() == []


@pytest.mark.parametrize("away", ["launcher", "ledger"])
def test_while_the_launcher_or_the_ledger_is_away_nothing_is_wished(away: str) -> None:
    pool = Pool()
    pool.feed(e.LauncherSeen(None) if away == "launcher" else e.LedgerSeen(None))
    pool.wants("a")
    pool.advance(60)
    assert pool.wishes() == []
    pool.launcher()
    pool.room()
    assert pool.wishes() == [("wake", "a")]


def test_rules_that_go_round_in_a_circle_are_an_alarm_and_nothing_is_wished_any_more(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pool = Pool()
    with monkeypatch.context() as patch:
        patch.setattr("pool.rules.machine.plan", lambda it, now: Down("a", "it goes round"))
        pool.feed(e.Tick())
    (alarm,) = pool.machine.context.alarms.values()
    assert "go round in a circle" in alarm and "Please report this" in alarm and "Restart the pool" in alarm
    pool.wants("b")
    pool.advance(60)
    assert pool.wishes() == [], "nor is said what went round"
    assert "a bug of the pool" in outlooks(pool.machine.picture, {}, pool.now)["b"].why


def test_for_a_model_whose_lock_is_away_nothing_is_wished_and_it_is_no_victim() -> None:
    pool = Pool()
    pool.awake("b")
    pool.lock("b", away=True)
    pool.wants("a")
    pool.advance(60)
    assert pool.wishes() == []
    pool.lock("b", resting=False, held=True, serving=True)
    pool.advance(1)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]


def test_a_new_pool_waits_for_the_locks_of_what_runs_and_then_no_longer() -> None:
    pool = Pool("ab", heard=False, sizes={"a": 40})
    pool.wants("a")
    pool.lock("a")
    assert pool.wishes() == []  # b may be awake, with all that it takes
    pool.advance(6)
    assert pool.wishes() == [("wake", "a")]


def test_a_new_pool_finds_who_is_awake_and_leaves_it() -> None:
    pool = Pool("ab", heard=False)
    pool.door(b=BUSY)
    pool.lock("a")
    pool.lock("b", resting=False, held=True, serving=True, token=7)
    assert pool.state("b") is State.AWAKE and pool.wishes() == []


def test_a_new_pool_waits_for_what_a_door_has_before_it_takes_what_is_awake_for_idle() -> None:
    pool = Pool("ab", entries={"a": {"pin": True}}, heard=False, door=False)
    pool.lock("a")
    pool.lock("b", resting=False, held=True, serving=True, token=7)
    assert pool.wishes() == []
    pool.door(b=BUSY)
    assert pool.wishes() == [], "it serves"
    alone = Pool("ab", entries={"a": {"pin": True}}, door=False)
    assert alone.wishes() == []
    alone.advance(6)
    assert alone.wishes() == [("wake", "a")], "no door comes"


@pytest.mark.parametrize("view", [{"serving": True, "draining": True}, {"draining": True}, {"resting": True}])
def test_one_that_a_person_puts_to_sleep_through_its_lock_is_on_its_way_there(view: dict[str, bool]) -> None:
    pool = Pool()
    pool.lock("a", **{"resting": False, "held": True, **view})
    assert pool.state("a") is State.DRAINING


# -- 3: who is to be awake -----------------------------------------------------------------------------------------


def test_paused_answers_want_their_model_as_waiting_requests_do() -> None:
    pool = Pool()
    pool.wants("a", waiting=0, paused=1)
    assert pool.wishes() == [("wake", "a")]


def test_a_pinned_model_is_waked_unasked_and_never_sleeps_for_another() -> None:
    pool = Pool(entries={"a": {"pin": True}})
    assert pool.wishes() == [("wake", "a")]
    pool.wakes("a")
    pool.wants("b")
    pool.advance(300)
    assert pool.wishes() == []
    assert pool.asks("unpin", "a").ok
    pool.advance(1)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def test_the_host_returns_to_its_default_model_once_the_other_has_had_no_request_for_a_while() -> None:
    pool = Pool(default="a", default_after_s=30.0)
    assert pool.wishes() == [("wake", "a")]
    pool.wakes("a")
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]
    pool.sleeps("a")
    pool.wakes("b")
    pool.wants("b", waiting=0, streaming=1)
    pool.advance(100)
    pool.wants("b", waiting=0, served=1)
    pool.advance(29)
    assert pool.wishes() == []
    pool.advance(2)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]


# -- 4: the order --------------------------------------------------------------------------------------------------


def crowd(**host: Any) -> Pool:
    """c is awake and busy, so a and b wait."""
    pool = Pool("abc", **host)
    pool.awake("c", BUSY)
    return pool


@pytest.mark.parametrize(
    ("a", "b", "first"),
    [
        ({"oldest_wait_ms": 100}, {"oldest_wait_ms": 5000}, "b"),
        ({"priority": -1}, {"oldest_wait_ms": 5000}, "a"),
        ({"deadline_in_ms": 30_000}, {"oldest_wait_ms": 5000}, "a"),
        ({"deadline_in_ms": 30_000}, {"deadline_in_ms": 25_000}, "b"),
        ({"deadline_in_ms": 10}, {"oldest_wait_ms": 5000}, "b"),  # it can't be kept any more
        ({"priority": -1}, {"oldest_wait_ms": 61_000}, "b"),  # aged
    ],
)
def test_the_most_urgent_is_next_then_the_nearest_deadline_then_the_longest_wait(
    a: dict[str, int], b: dict[str, int], first: str
) -> None:
    pool = crowd()
    pool.demands |= {"a": ModelDemand(waiting=1, **a), "b": ModelDemand(waiting=1, **b)}
    pool.door(**pool.demands)
    pool.advance(20)
    assert ("wake", first) in pool.wishes()[:2]


@pytest.mark.parametrize("since", ["asked_at", "since"])
def test_what_persons_have_asked_for_or_no_request_needs_has_waited_since_then(since: str) -> None:
    pool = Pool()
    for at, name in enumerate("ba"):
        pool.machine.models[name].pinned = True
        setattr(pool.machine.models[name], since, float(at))
    assert queue(pool.machine.picture, pool.now) == [pool.machine.models[name] for name in "ba"]


# -- 5, 6: room ----------------------------------------------------------------------------------------------------


def test_whatever_fits_is_awake_together() -> None:
    pool = Pool("abc", sizes={"a": 50, "b": 50, "c": 50})
    pool.awake("a", BUSY)
    pool.wants("b")
    assert pool.wishes() == [("wake", "b")]


def test_what_is_free_is_kept_for_the_first_that_waits() -> None:
    pool = Pool("abc", sizes={"a": 50, "b": 80, "c": 30})
    pool.awake("a", BUSY)
    pool.wants("b", oldest_wait_ms=1000)
    pool.wants("c")
    assert pool.wishes() == [], "c would take of the 50 for which b waits"


def test_a_small_one_behind_wakes_where_it_takes_nothing_of_the_first() -> None:
    pool = Pool("abc", sizes={"a": 60, "b": 70, "c": 5})
    pool.awake("a", BUSY)
    pool.wants("b", oldest_wait_ms=1000)
    pool.wants("c")
    pool.room(110)
    assert pool.wishes() == []
    pool.room(140)
    assert ("wake", "c") in pool.wishes()


def test_no_more_are_put_to_sleep_than_needed_and_those_without_requests_first() -> None:
    pool = Pool("abcd", sizes={"a": 30, "b": 30, "c": 40, "d": 40})
    for name, demand in (("a", ModelDemand(served=1)), ("b", BUSY), ("c", ModelDemand(served=1))):
        pool.awake(name, demand)
    pool.wants("d")
    assert pool.wishes() == [("sleep", "c"), ("wake", "d")], "a alone isn't enough, and c alone is"


def test_of_those_without_requests_the_less_urgent_sleep_first_and_one_in_its_keep_alive_last() -> None:
    pool = Pool("abcd", sizes=dict.fromkeys("abcd", 33), entries={"a": {"keep_alive_s": 600.0}, "b": {"priority": -5}})
    for name in "abc":
        pool.awake(name)
        pool.advance(1)
    pool.wants("d")
    assert pool.wishes() == [("sleep", "c"), ("wake", "d")]
    pool.sleeps("c")
    pool.wakes("d")
    pool.wants("d", waiting=0, streaming=1)
    pool.wants("c")
    pool.advance(1)
    assert pool.wishes() == [("sleep", "b"), ("wake", "c")], "a's keep-alive isn't over"


def test_loaded_at_least_is_kept() -> None:
    pool = Pool(entries={"a": {"loaded_at_least_s": 100.0}})
    pool.awake("a")
    pool.wants("b")
    pool.advance(95)
    assert pool.wishes() == []
    pool.advance(6)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def test_one_that_was_just_waked_for_a_request_has_it_before_it_sleeps() -> None:
    pool = Pool(costs=(0.01, 0.01))
    pool.wants("a")
    pool.wakes("a")
    pool.wants("b", priority=-5)
    pool.advance(4)
    assert pool.wishes() == [("wake", "a")]
    pool.advance(2)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")], "though its door may hang"


def test_a_model_that_can_never_be_awake_blocks_none_behind_it_for_ever() -> None:
    pool = Pool("ab", sizes={"a": 500})
    pool.wants("a")
    pool.wants("b")
    pool.advance(600)
    assert ("wake", "b") in pool.wishes()


@pytest.mark.parametrize("busy", [True, False])
def test_of_those_with_requests_the_one_goes_that_has_been_awake_for_longest_and_else_the_one_used_first(
    busy: bool,
) -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 50))
    for name in "ab":
        pool.awake(name, BUSY)
        pool.advance(1)
    pool.advance(60)
    for name in "ba":
        keep_alive_s = 60.0 if busy and name == "a" else None  # which is for those without requests
        pool.wants(name, waiting=0, streaming=2 if busy else 0, served=1, keep_alive_s=keep_alive_s)
        pool.advance(1)
    pool.wants("c", oldest_wait_ms=1)
    pool.advance(30)
    assert pool.wishes()[0] == ("sleep", "a" if busy else "b")


def test_one_whose_need_isnt_known_takes_all_that_is_left_beside_weights() -> None:
    pool = Pool(sizes={"a": 0, "b": 10})
    pool.weights(parked={"a": 30}, b=20)
    pool.awake("b")
    pool.wants("a")
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]
    pool.sleeps("b")
    assert pool.machine.picture.free()[GPU] == 0
    assert pool.machine.models["a"].needs({GPU: 20}) == {GPU: 0}, "not even its own weights fit"


# -- 7: turns ------------------------------------------------------------------------------------------------------


def busy_and_waiting(**host: Any) -> Pool:
    """a and b have swapped twice, so nothing is saved up; a answers, b waits."""
    pool = Pool(drain_s=0.0, **host)
    pool.awake("b", BUSY)
    pool.wants("a")
    pool.advance(1)
    pool.sleeps("b")
    pool.wakes("a")
    pool.wants("a", waiting=0, streaming=1)
    pool.wants("b")
    pool.advance(1)
    pool.sleeps("a")
    pool.wakes("b")
    pool.wants("b", waiting=0, streaming=1)
    pool.wants("a")
    pool.wishes()
    return pool


def test_a_turn_lasts_until_swaps_have_earned_the_next_one() -> None:
    pool = busy_and_waiting()
    pool.advance(4)
    assert pool.wishes() == []
    pool.advance(6)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")], "9 s of turns pay for 0.9 s of swap"


def test_a_swap_that_comes_seldom_need_not_wait() -> None:
    pool = Pool()
    pool.awake("a", BUSY)
    pool.advance(60)
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def test_who_has_just_been_answered_is_awaited_where_it_usually_asks_again_soon_and_swaps_are_scarce() -> None:
    pool = Pool()
    pool.awake("b")
    for _ in range(5):  # b's client asks again after 0.2 s
        pool.advance(0.2)
        pool.wants("b", waiting=0, streaming=1)
        pool.wants("b", waiting=0, served=1)
    for _ in range(2):
        pool.machine.picture.budget.spend([GPU], 0.9, pool.now, borrows=True)
    pool.wants("a")
    assert pool.wishes() == []
    pool.advance(0.5)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]


def test_a_more_urgent_one_waits_for_no_turn_but_once_aged_the_other_is_its_equal() -> None:
    pool = busy_and_waiting()
    pool.wants("a", priority=-1)
    pool.advance(1)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]
    pool = busy_and_waiting()
    pool.wants("b", waiting=0, streaming=1, priority=-1)
    pool.advance(50)
    assert pool.wishes() == []
    pool.advance(15)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]


def test_a_deadline_that_would_be_missed_shortens_the_turn() -> None:
    pool = busy_and_waiting()
    pool.wants("a", deadline_in_ms=4000)
    pool.advance(3)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]


def test_the_longest_wait_shortens_the_turn() -> None:
    pool = busy_and_waiting(longest_wait_s=3.0)
    pool.advance(2.5)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]


def test_after_a_turn_that_was_long_for_what_begins_anew_the_other_has_a_whole_one_too() -> None:
    """It had a second of every 150: the long turn earned the swap back."""
    pool = busy_and_waiting()
    anew = {"turn_ms": 100_000, "waiting": 0}
    pool.wants("b", streaming=1, **anew)
    pool.advance(95)
    assert pool.wishes() == []
    pool.advance(5)
    assert pool.wishes() == [("sleep", "b"), ("wake", "a")]
    pool.sleeps("b")
    pool.wakes("a")
    pool.demands["a"] = ModelDemand(streaming=1)
    pool.wants("b", paused=1, **anew)
    pool.advance(6)
    assert pool.wishes() == []
    pool.advance(3)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


@pytest.mark.parametrize("promise", ["for what begins anew", "by its entry"])
@pytest.mark.parametrize("how", ["dies", "switchover"])
def test_an_engine_that_takes_over_has_what_is_left_of_the_turn(how: str, promise: str) -> None:
    """Each that did began a turn of its own: where engines ended sooner than that, no other model had one."""
    long = promise == "for what begins anew"
    pool = Pool(costs=(0.6, 0.4), drain_s=0.0, entries={} if long else {"a": {"loaded_at_least_s": 20.0}})
    pool.awake("a", ModelDemand(streaming=1, turn_ms=20_000 if long else 0))
    pool.machine.picture.budget._saved[GPU] = -0.5, pool.now
    pool.wants("b")
    for token in range(1, 4):
        pool.advance(6)
        if how == "dies":
            pool.lock("a", resting=False, token=token)
        pool.lock("a", resting=False, held=True, serving=True, token=token)
        assert pool.wishes() == []
    pool.advance(3)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]
    left = pool.machine.picture.budget.left([GPU], 1.0, pool.now)
    assert not long or left == pytest.approx(0.0, abs=0.2), "what the long turn has earned was for this swap"
    pool.feed(e.LockAnswered("a", False, "a ended by itself; the next that is ready takes over"))
    pool.feed(e.LockAnswered("b", True))
    pool.lock("b", resting=False, held=True)
    pool.room(b=60)
    pool.advance(12)
    assert pool.wishes() == [("sleep", "a")]


def test_an_engine_that_serves_and_dies_again_and_again_holds_others_up_for_its_turn_and_no_longer() -> None:
    """Each began the time anew for which a model is left alone once it is awake: where all lived shorter than that, no
    other model had a turn.
    """
    pool = Pool(costs=(0.6, 0.4), drain_s=0.0)
    pool.awake("a", ModelDemand(streaming=1))
    pool.machine.picture.budget._saved[GPU] = 0.0, pool.now
    pool.wants("b")
    began, wished = pool.now, Wishes()
    while not wished and pool.now < began + 60:
        pool.lock("a", resting=False)
        pool.advance(0.2)
        pool.lock("a", resting=False, held=True, serving=True, token=pool.views["a"].token + 1)
        pool.advance(0.5)
        wished = pool.wishes()
    assert wished == [("sleep", "a"), ("wake", "b")] and pool.now == pytest.approx(began + 10, abs=1.0)


def test_one_that_is_waked_while_it_goes_to_sleep_begins_a_turn() -> None:
    """It hasn't been seen asleep in between, and had none left: its `loaded_at_least_s` was over at once."""
    pool = Pool(entries={"a": {"loaded_at_least_s": 20.0}})
    pool.awake("a")
    pool.advance(100)
    pool.asks("sleep", "a")
    pool.lock("a", resting=False, held=True, draining=True, giving_back=True)
    pool.wants("a")
    assert pool.wishes() == [("sleep", "a"), ("wake", "a")]
    pool.wakes("a")
    pool.wants("a", waiting=0, served=2)
    pool.wants("b")
    pool.advance(15)
    assert pool.wishes() == []
    pool.advance(6)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def test_of_those_with_requests_the_one_sleeps_whose_turn_is_longest_whichever_engine_has_it() -> None:
    pool = Pool("abc", sizes={"a": 50, "b": 50, "c": 50})
    pool.awake("a", BUSY)
    pool.advance(10)
    pool.awake("b", BUSY)
    pool.advance(10)
    pool.lock("a", resting=False, held=True, serving=True, token=1)
    pool.advance(6)
    pool.wants("c")
    assert pool.wishes() == [("sleep", "a"), ("wake", "c")]


# -- 8: both at once -----------------------------------------------------------------------------------------------


def test_the_sleep_and_the_wake_are_wished_at_once_and_each_costs_what_it_took_itself() -> None:
    pool = Pool(costs=(1.0, 1.0))
    pool.awake("a")
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]
    pool.feed(e.LockAnswered("b", True))
    pool.lock("b", resting=False, held=True)
    pool.sleeps("a", after=0.2)
    pool.now += 0.1
    pool.lock("b", resting=False, held=True, serving=True)
    learned = {name: model.learned for name, model in pool.machine.models.items()}
    assert learned["a"].sleep_s == pytest.approx(1 + 0.3 * (0.2 - 1))
    assert learned["b"].wake_s == pytest.approx(1 + 0.3 * (0.1 - 1)), "without the time in which a slept"


def test_one_waits_for_another_to_sleep_also_while_the_lock_of_that_is_away() -> None:
    pool = Pool()
    pool.awake("a")
    pool.wants("b")
    b = pool.machine.models["b"]
    pool.lock("a", away=True)
    assert b.awaits == {"a"}
    pool.lock("a", resting=False, held=True, draining=True)
    assert b.awaits == {"a"}
    pool.lock("a", resting=True)
    assert not b.awaits


# -- 9: what was thought to be free and isn't -----------------------------------------------------------------------


def test_a_model_that_waits_in_the_ledger_in_vain_has_others_put_to_sleep_for_it_after_a_moment() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 30))
    pool.awake("a")
    pool.awake("b", BUSY)
    pool.wants("c")
    assert pool.wishes() == [("wake", "c")], "all three fit, it was thought"
    pool.feed(e.LockAnswered("c", True))
    pool.lock("c", resting=False, held=True)
    pool.room(c=10)
    pool.advance(0.4)
    assert pool.wishes() == []
    pool.advance(0.2)
    assert pool.wishes() == [("sleep", "a")], "and it isn't wished to wake once more"
    pool.advance(5)
    assert pool.wishes() == [], "a sleeps for it"
    pool.sleeps("a")
    pool.room()
    pool.lock("c", resting=False, held=True, serving=True)
    assert pool.state("c") is State.AWAKE and pool.wishes() == []


@pytest.mark.parametrize("known", [0, 10], ids=["unknown", "too small"])
def test_what_is_in_use_without_a_lease_is_the_commands_that_is_awake_but_for_what_was_there_without_it(
    known: int,
) -> None:
    """Its own memory counted as another program's: for the other there was no room, for ever."""

    def uses(foreign: int) -> None:
        pool.feed(e.LedgerSeen({GPU: 100 - foreign}, foreign={GPU: foreign}))

    pool = Pool(sizes={"a": known}, entries={"a": {"command": ["a", "{port}"]}})
    pool.awake("a")
    uses(90)
    pool.advance(10)
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]
    uses(90)
    assert pool.machine.picture.most[GPU] == 100, "it has it yet"
    pool.sleeps("a", after=6)
    uses(90)
    assert pool.machine.picture.most[GPU] == 10 and not pool.machine.models["a"].beyond_lease, "it isn't awake"
    pool.wakes("b")
    pool.wants("b", waiting=0)
    pool.wants("a")
    pool.sleeps("b")
    pool.wakes("a")
    uses(90)
    assert pool.machine.picture.most[GPU] == 100, "what was seen right after its sleep was its own, too"
    pool.wants("a", waiting=0)
    pool.asks("sleep", "a")
    pool.sleeps("a")
    pool.advance(10)
    uses(50)
    pool.asks("wake", "a")
    pool.wakes("a")
    uses(90)
    assert pool.machine.picture.most[GPU] == 50, "so much is another program's"
    uses(40)
    uses(90)
    assert pool.machine.picture.most[GPU] == 60, "and less now"


def _uses(pool: Pool, foreign: int) -> None:
    pool.feed(e.LedgerSeen({GPU: 100 - foreign}, foreign={GPU: foreign}))


@pytest.mark.parametrize("away", ["launcher", "lock"])
def test_what_a_command_has_is_its_own_where_a_pool_that_begins_hears_late_that_it_is_awake(away: str) -> None:
    pool = Pool(entries={"a": {"command": ["a", "{port}"]}}, sizes={"a": 0}, heard=False, running=away == "lock")
    pool.lock("b")
    if away == "launcher":
        pool.feed(e.LauncherSeen(None))
    _uses(pool, 90)
    pool.advance(10)
    _uses(pool, 90)
    pool.launcher(a=e.Child(running=True), b=e.Child(running=True))
    pool.lock("a", resting=False, held=True, serving=True)
    pool.lock("b")
    pool.wants("b")
    pool.advance(10)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def test_what_a_command_had_is_not_needed_by_an_engine_that_has_its_name_now() -> None:
    pool = Pool("a", sizes={"a": 10}, entries={"a": {"command": ["a", "{port}"]}})
    pool.awake("a")
    _uses(pool, 90)
    assert pool.machine.models["a"].needs({}) == {GPU: 100}
    pool.entries, pool.sizes = {}, {"a": 60}
    pool.configure("a")
    assert pool.machine.models["a"].needs({}) == {GPU: 60}


def test_a_command_that_leases_nothing_of_one_of_its_devices_sleeps_for_what_it_has_there() -> None:
    pool = Pool(on={"b": "other"}, entries={"a": {"command": ["a", "{port}"]}})
    rules = pool.machine.models["a"].rules
    pool.machine.models["a"].rules = msgspec.structs.replace(rules, devices=(GPU, "other"))
    pool.awake("a")
    pool.feed(e.LedgerSeen({GPU: 100, "other": 10}, foreign={"other": 90}))
    pool.wants("b")
    pool.advance(10)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


COMMAND: dict[str, Any] = {"command": ["a", "{port}"]}


def test_of_several_commands_each_has_what_has_come_since_it_was_waked() -> None:
    """The first of the file had all of it: where that one is pinned, nothing made room any more."""
    pool = Pool("abc", sizes={"a": 10, "c": 10}, entries={"a": {**COMMAND, "pin": True}, "c": COMMAND})
    pool.wakes("a")
    pool.advance(6)
    _uses(pool, 5)
    pool.awake("c")
    _uses(pool, 70)
    pool.wants("b")
    pool.advance(10)
    assert {name: model.beyond_lease for name, model in pool.machine.models.items()} == {
        "a": {GPU: 5},
        "b": {},
        "c": {GPU: 65},
    }
    assert pool.wishes() == [("sleep", "c"), ("wake", "b")]


def test_what_a_command_lacks_is_another_programs_though_commands_alone_swap() -> None:
    """They left no moment in which none was awake: each swap was in vain, and was tried again."""
    pool = Pool("ac", entries={"a": COMMAND, "c": COMMAND})
    pool.awake("a")
    _uses(pool, 50)
    pool.wants("c")
    assert pool.wishes() == [("sleep", "a"), ("wake", "c")]
    pool.sleeps("a")
    for _ in range(2):
        pool.feed(e.LedgerSeen({GPU: 50}, lacking={"c": {GPU: 10}}, foreign={GPU: 50}))
        pool.advance(6)
    assert pool.machine.picture.most[GPU] == 50


def test_what_was_there_without_a_command_a_pool_that_begins_while_one_is_awake_knows() -> None:
    pool = Pool("ab", sizes={"a": 10}, entries={"a": COMMAND})
    _uses(pool, 40)
    pool.advance(6)
    _uses(pool, 40)
    pool.awake("a")
    again = Pool("ab", sizes={"a": 10}, entries={"a": COMMAND}, heard=False)
    _uses(again, 60)
    again.feed(pool.machine.learned())
    again.lock("b")
    again.lock("a", resting=False, held=True, serving=True)
    assert again.machine.picture.most[GPU] == 60 and again.machine.models["a"].beyond_lease == {GPU: 20}


# -- 10: idle, and the budget ---------------------------------------------------------------------------------------


def test_a_model_sleeps_when_its_keep_alive_is_over_and_ends_when_it_was_asleep_for_long() -> None:
    pool = Pool(entries={"a": {"keep_alive_s": 10.0, "stop_after_s": 20.0}})
    pool.awake("a")
    pool.advance(9)
    assert pool.wishes() == []
    pool.advance(2)
    assert pool.wishes() == [("sleep", "a")]
    pool.sleeps("a")
    pool.advance(19)
    assert pool.wishes() == []
    pool.advance(2)
    assert pool.wishes() == [("end", "a")]


@pytest.mark.parametrize("kept", ["it answers", "its lock is away", "pinned", "default", "loaded at least"])
def test_a_keep_alive_that_is_over_puts_none_to_sleep_that(kept: str) -> None:
    at_least = 100.0 if kept == "loaded at least" else 0.0
    entry = {"keep_alive_s": 10.0, "pin": kept == "pinned", "loaded_at_least_s": at_least}
    pool = Pool(entries={"a": entry}, default="a" if kept == "default" else "")
    pool.awake("a", BUSY if kept == "it answers" else None)
    pool.lock("a", away=kept == "its lock is away")
    pool.advance(50)
    assert pool.wishes() == []


def test_one_that_was_waked_and_never_asked_has_its_keep_alive() -> None:
    pool = Pool(entries={"a": {"keep_alive_s": 10.0}})
    pool.advance(50)
    pool.asks("wake", "a")
    pool.wakes("a")
    pool.wishes()
    pool.advance(9)
    assert pool.wishes() == []
    pool.advance(2)
    assert pool.wishes() == [("sleep", "a")]


def test_a_pinned_one_that_has_no_room_isnt_ended_as_it_was_asleep_for_long() -> None:
    pool = Pool("ab", entries={"a": {"pin": True}, "b": {"pin": True, "stop_after_s": 5.0}})
    pool.wakes("a")
    pool.wishes()
    pool.advance(50)
    assert pool.state("b") is State.ASLEEP and pool.wishes() == []


def test_a_requests_own_keep_alive_counts_too() -> None:
    pool = Pool(entries={"a": {"keep_alive_s": 10.0}})
    pool.awake("a", ModelDemand(served=1, keep_alive_s=100.0))
    pool.advance(90)
    assert pool.wishes() == []
    pool.advance(20)
    assert pool.wishes() == [("sleep", "a")]


def test_no_more_engines_are_asleep_than_the_budget_allows_and_the_one_used_last_stays() -> None:
    pool = Pool("abc", asleep={e.HOST: 25})
    pool.put_to_sleep("c", "a")
    pool.launcher(**{name: e.Child(True, host_bytes=10) for name in "abc"})
    assert pool.wishes() == [("end", "b")], "of 30 bytes 10 have to go"
    pool = Pool("abc", asleep={e.HOST: 25})
    pool.put_to_sleep("c", "a")
    pool.lock("b", away=True)
    pool.launcher(**{name: e.Child(True, host_bytes=10) for name in "abc"})
    assert pool.wishes() == [("end", "c")], "the lock of b is away"


@pytest.mark.parametrize("kept", ["default", "pinned"])
def test_the_default_model_and_a_pinned_one_that_a_person_put_to_sleep_are_ended_last(kept: str) -> None:
    pool = Pool("abc", asleep={e.HOST: 25}, default="b" if kept == "default" else "")
    if kept == "pinned":
        pool.asks("pin", "b")
    pool.wakes("b")
    pool.asks("sleep", "b")
    pool.sleeps("b")
    pool.put_to_sleep("c", "a")
    pool.launcher(**{name: e.Child(True, host_bytes=10) for name in "abc"})
    assert pool.wishes() == [("end", "c")], "b wasn't used for longer"


def test_an_engine_is_ended_for_the_budget_only_of_what_it_has_itself() -> None:
    learned = {"a": e.Learned(asleep={e.HOST: 10}), "b": e.Learned(asleep={GPU: 20})}
    pool = Pool("ab", asleep={GPU: 15}, began=e.Began(learned))
    assert pool.wishes() == [("end", "b")]


def test_an_engine_is_started_for_a_request_and_makes_room_in_the_budget_first() -> None:
    pool = Pool("abc", asleep={e.HOST: 20})
    for name in "ab":
        pool.launcher(**{name: e.Child(True, host_bytes=10)})
    pool.launcher(c=e.Child(False))
    pool.machine.models["c"].learned = e.Learned(asleep={e.HOST: 10})
    pool.wishes()
    pool.wants("c")
    wishes = pool.wishes()
    assert ("start", "c") in wishes and len([one for one in wishes if one[0] == "end"]) == 1


def test_an_engine_that_is_awake_without_a_request_has_its_place_in_the_budget_and_gives_it_up_too() -> None:
    """It would be awake, and the other refused, for ever."""
    pool = Pool("ab", asleep={e.HOST: 15}, sizes={"a": 30, "b": 30})
    for name in "ab":
        pool.machine.models[name].learned = e.Learned(asleep={e.HOST: 10})
    pool.launcher(b=e.Child(False))
    pool.awake("a")
    pool.wishes()
    pool.door(a=BUSY, b=ModelDemand(waiting=1))
    pool.advance(200)
    assert pool.wishes() == [], "not while it answers, though its turn is over"
    pool.door(b=ModelDemand(waiting=1))
    assert pool.wishes() == [("sleep", "a")]
    pool.sleeps("a")
    assert pool.wishes() == [("end", "a"), ("start", "b")]


# -- 11: failures --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("serves", [False, True])
@pytest.mark.parametrize("served", [False, True])
def test_one_whose_engines_end_again_and_again_as_they_wake_is_put_to_sleep_and_failed(
    serves: bool, served: bool
) -> None:
    """It was waking for ever, and its requests waited without a word of why."""
    pool = Pool()
    pool.wants("a")
    assert pool.wishes() == [("wake", "a")]
    if served:
        pool.wakes("a")
    pool.feed(e.LockAnswered("a", True))
    pool.launcher(a=e.Child(True, why="no such file"))
    for token in range(1, MOST_GRANTS + 2):
        pool.lock("a", resting=False, token=token - 1)
        assert pool.state("a") is State.WAKING and pool.wishes() == []
        pool.lock("a", resting=False, held=True, serving=serves and token > MOST_GRANTS, token=token)
    assert pool.wishes() == [], "one is on its way, or serves"
    if serves:
        assert pool.state("a") is State.AWAKE and pool.machine.models["a"].failures_total == 0
    pool.lock("a", resting=False, token=token)
    if serves:
        assert pool.wishes() == [], "the next one begins anew"
        return
    assert pool.wishes() == [("sleep", "a")]
    pool.lock("a", resting=True, ready=True, token=token)
    assert pool.state("a") is State.FAILED and pool.machine.models["a"].why_failed.endswith("woke: no such file")
    pool.advance(FIRST_PAUSE_S)
    assert pool.wishes() == [("wake", "a")]
    pool.lock("a", resting=False, held=True, token=token + 1)
    pool.lock("a", resting=False, token=token + 1)
    assert pool.wishes() == [("sleep", "a")], "it needn't die three times more, with longer and longer pauses between"
    pool.lock("a", resting=True, ready=True, token=token + 1)
    assert pool.state("a") is State.FAILED


def test_a_lock_that_is_away_is_not_told_that_its_engines_end_again_and_again() -> None:
    pool = Pool()
    pool.wants("a")
    for token in range(MOST_GRANTS + 2):
        pool.lock("a", resting=False, held=True, token=token)
    pool.wishes()
    pool.room(None)
    pool.lock("a", resting=False, token=token)
    pool.lock("a", away=True)
    pool.room()
    assert pool.wishes() == []
    pool.lock("a", resting=False, token=token)
    assert pool.wishes() == [("sleep", "a")]


def test_a_wake_that_fails_is_tried_again_after_growing_pauses_and_the_old_one_is_back_meanwhile() -> None:
    pool = Pool(costs=(0.1, 0.1))
    pool.awake("a", BUSY)
    pool.advance(60)
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]
    pool.wants("a", waiting=0, paused=1)
    pool.sleeps("a")
    pool.feed(e.LockAnswered("b", True))
    pool.lock("b", resting=True, ready=True, why="it takes more than there is")
    assert pool.state("b") is State.FAILED and pool.machine.models["b"].why_failed == "it takes more than there is"
    assert pool.wishes() == [("wake", "a")]
    pauses = []
    for _ in range(8):
        model = pool.machine.models["b"]
        pauses.append(model.retry_at - pool.now)
        model.failed("again", pool.now)
    assert pauses == sorted(pauses) and pauses[0] == 1.0 and pauses[-1] == 60.0


def test_a_sleep_that_is_refused_is_wished_again_a_little_later_and_not_without_end() -> None:
    pool = Pool()
    pool.awake("a")
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]
    pool.feed(e.LockAnswered("b", True))
    pool.feed(e.LockAnswered("a", False, "the holder could not drain"))
    assert pool.state("a") is State.AWAKE and pool.wishes() == []
    pool.lock("b", resting=True, ready=True, why="not in time")
    pool.advance(0.5)
    assert pool.wishes() == []
    pool.advance(1)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def test_what_has_to_sleep_isnt_asked_at_once_again_where_that_was_refused_nor_through_a_lock_that_is_away() -> None:
    pool = Pool()
    pool.awake("a")
    pool.entries = {"a": {"arguments": ["another"]}}
    pool.configure("ab")
    assert pool.wishes() == [("sleep", "a")]
    pool.feed(e.LockAnswered("a", False, "the holder could not drain"))
    assert pool.wishes() == [] and pool.machine.deadline == pool.now + AGAIN_S
    pool.advance(AGAIN_S)
    assert pool.wishes() == [("sleep", "a")]
    pool.feed(e.LockAnswered("a", False, "the holder could not drain"))
    pool.lock("a", away=True)
    pool.advance(2)
    assert pool.wishes() == []
    pool.lock("a")
    assert pool.wishes() == [("sleep", "a")]


def test_one_that_waits_for_a_sleep_which_is_refused_has_that_wished_again() -> None:
    """The engine of the other had just been killed, and its standby took over: the wake waited until it failed."""
    pool = Pool()
    pool.awake("a")
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]
    pool.feed(e.LockAnswered("b", True))
    pool.feed(e.LockAnswered("a", False, "a ended by itself; the next that is ready takes over"))
    pool.lock("b", resting=False, held=True)
    pool.room(b=60)
    assert pool.state("b") is State.WAKING and pool.wishes() == []
    pool.advance(2)
    assert pool.wishes() == [("sleep", "a")]


def test_a_status_from_before_the_wish_was_heard_is_no_failure() -> None:
    pool = Pool()
    pool.wants("a")
    pool.lock("a", resting=True, ready=True)
    assert pool.state("a") is State.WAKING


def test_one_that_is_preloaded_and_cant_be_started_isnt_tried_again_before_a_request() -> None:
    pool = Pool(running=False, entries={"a": {"preload": True}})
    assert pool.wishes() == [("start", "a")]
    pool.launcher(a=e.Child(False, ends=1, why="no such model"))
    pool.advance(50)
    assert pool.wishes() == []
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]


def test_one_that_a_person_stops_is_put_to_sleep_only_where_it_doesnt_sleep_and_once_it_is_awake() -> None:
    pool = Pool("ab")
    pool.asks("stop", "a")
    assert pool.wishes() == [("end", "a")]
    pool.asks("wake", "b")
    pool.lock("b", resting=False, held=True)
    pool.wishes()
    pool.asks("sleep", "b")
    assert pool.wishes() == []
    pool.lock("b", resting=False, held=True, serving=True)
    assert pool.wishes() == [("sleep", "b")]


def test_an_engine_that_is_awake_and_wants_more_has_no_room_made_by_the_pool() -> None:
    pool = Pool(sizes={"a": 30, "b": 30})
    pool.awake("a")
    pool.awake("b")
    pool.room(a=20)
    pool.advance(5)
    assert pool.wishes() == []


def test_an_engine_that_cant_be_started_is_tried_again_and_says_why() -> None:
    pool = Pool(running=False)
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]
    pool.launcher(a=e.Child(False, ends=1, why="no such model"))
    assert pool.state("a") is State.FAILED and pool.machine.models["a"].why_failed == "no such model"
    pool.advance(2)
    assert pool.wishes() == [("start", "a")]


def test_one_whose_arguments_are_wrong_is_tried_in_an_hour_once_its_entry_changes_or_a_person_asks_for_it() -> None:
    """Others slept for each start, which ended as the one before."""
    pool = Pool(running=False, entries={"a": {"pin": True}})
    assert pool.wishes() == [("start", "a")]

    def ends(number: int) -> None:
        runs = runs_as(pool.machine.models["a"].rules.entry)
        pool.launcher(a=e.Child(False, number, f"exit code 64: {'no such flag' * 200}", runs_as=runs, exit_code=64))
        pool.advance(WRONG_S - 1)

    ends(1)
    assert pool.wishes() == [] and pool.state("a") is State.FAILED
    outlook = outlooks(pool.machine.picture, {}, pool.now)["a"]
    assert outlook.state is State.FAILED and outlook.why.endswith(f"; {WRONG} a")
    assert len(outlook.why) < 2000, "what may be said in a message"
    pool.advance(2)
    assert pool.wishes() == [("start", "a")], "what its engine took for that may have been the network"
    ends(2)
    pool.asks("wake", "a")
    assert pool.wishes() == [("start", "a")]
    ends(3)
    assert pool.wishes() == [] and not queue(pool.machine.picture, pool.now), "none waits behind it"
    pool.entries["a"] |= {"arguments": ["--other"]}
    pool.configure("ab")
    assert pool.wishes() == [("start", "a")]


def test_one_that_comes_again_is_waked_though_the_launcher_says_late_how_it_ended_before_it_went() -> None:
    """It stayed FAILED for ever, with an engine that was ready."""
    pool = Pool(running=False, entries={"a": {"pin": True}})
    runs = runs_as(pool.machine.models["a"].rules.entry)
    ended = e.Child(False, 1, "exit code 64: x", runs_as=runs, exit_code=64)
    pool.launcher(a=ended)
    pool.configure("b")
    pool.configure("ab")
    pool.launcher()
    assert pool.state("a") is State.FAILED
    pool.launcher(a=e.Child(True, 1, runs_as=runs))
    pool.wishes()
    pool.lock("a")
    assert pool.wishes() == [("wake", "a")]


@pytest.mark.parametrize("of_older", [True, False])
def test_what_was_wrong_with_an_older_entry_is_no_reason_to_rest_nor_is_what_may_have_another_cause(
    of_older: bool,
) -> None:
    """A pool that begins hears of what its entry was before, too."""
    pool = Pool(running=False)
    pool.wants("a")
    runs = "of the older one" if of_older else runs_as(pool.machine.models["a"].rules.entry)
    pool.launcher(a=e.Child(False, ends=1, why="no such file", runs_as=runs, exit_code=64 * of_older))
    assert pool.state("a") is State.FAILED and pool.wishes() == [("start", "a")]
    pool.advance(FIRST_PAUSE_S)
    assert pool.wishes() == [("start", "a")]


@pytest.mark.parametrize(
    ("running", "ready", "offered"),
    [(True, True, State.ASLEEP), (True, False, State.LOADING), (False, False, State.OFF)],
)
def test_one_that_has_failed_is_refused_until_its_pause_is_over_and_then_tried_for_the_next_request(
    running: bool, ready: bool, offered: State
) -> None:
    """A request that was refused asks for nothing any more: without that it would be failed for ever."""
    pool = Pool(running=running)
    pool.wants("a")
    if running:
        pool.feed(e.LockAnswered("a", True))
        pool.lock("a", resting=True, ready=ready, why="there is no room")
    else:
        pool.launcher(a=e.Child(False, ends=1, why="no such model"))
    pool.wants("a", waiting=0)
    pool.wishes()

    def told() -> State:
        return outlooks(pool.machine.picture, {}, pool.now)["a"].state

    assert told() is State.FAILED
    pool.advance(0.5)
    pool.out.clear()
    pool.advance(1.0)
    assert told() is offered and pool.state("a") is State.FAILED and e.Publish() in pool.out and pool.wishes() == []
    pool.out.clear()
    pool.advance(5.0)
    assert e.Publish() not in pool.out, "it is said once"
    pool.wants("a")
    assert pool.wishes() == [("wake" if running else "start", "a")]


def test_one_that_has_failed_has_what_it_has_asleep_as_long_as_its_engine_runs() -> None:
    pool = Pool()
    pool.launcher(b=e.Child(False))
    for model in pool.machine.models.values():
        model.learned = e.Learned(asleep={GPU: 20})
        model.failed("no", pool.now)
    assert pool.machine.picture.free()[GPU] == 80


def test_an_engine_that_died_and_has_no_successor_gives_its_place_to_others() -> None:
    pool = Pool()
    pool.awake("a", BUSY)
    pool.lock("a", resting=False)
    pool.wants("b")
    assert pool.wishes() == [], "its standby may be there at once"
    pool.advance(6)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


# -- 12: a person's word -------------------------------------------------------------------------------------------


def test_a_model_that_a_person_put_to_sleep_is_waked_by_a_request_only() -> None:
    pool = Pool(entries={"a": {"pin": True}})
    pool.wakes("a")
    pool.wishes()
    assert pool.asks("sleep", "a").status == 202 and pool.wishes() == [("sleep", "a")]
    pool.sleeps("a")
    pool.advance(100)
    assert pool.wishes() == []
    pool.wants("a")
    assert e.Save() in pool.out and pool.machine.learned().kept_asleep == (), "nor for the next pool"
    assert pool.wishes() == [("wake", "a")]


def test_a_person_wakes_stops_and_is_told_what_is_meant() -> None:
    pool = Pool(entries={"a": {"aliases": ["org/a"]}})
    assert pool.asks("wake", "org/a").status == 202 and pool.wishes() == [("wake", "a")]
    pool.wakes("a")
    assert pool.asks("wake", "a").status == 200
    assert pool.asks("stop", "a").status == 202 and pool.wishes() == [("sleep", "a")]
    pool.sleeps("a")
    assert pool.wishes() == [("end", "a")]
    pool.launcher(a=e.Child(False, ends=1))
    assert pool.state("a") is State.OFF and pool.asks("stop", "a").status == 200
    unknown = pool.asks("wake", "org/b")
    assert unknown.status == 404 and "is org/a meant?" in unknown.detail


# -- what doors are told -------------------------------------------------------------------------------------------


def test_an_estimate_grows_with_the_queue_and_says_what_is_waited_for() -> None:
    from pool.rules import view

    pool = Pool("abc")
    pool.awake("a", BUSY)
    pool.machine.picture.budget.spend(["gpu"], 1.8, pool.now, borrows=True)
    pool.wants("b", oldest_wait_ms=10)
    pool.wants("c")
    seen = view.outlooks(pool.machine.picture, {}, pool.now)
    first, second = seen["b"], seen["c"]
    assert (first.turn, second.turn) == (1, 2)
    assert first.why.startswith("first in the queue: its turn comes after that of a")
    assert second.why.startswith("second in the queue")
    assert first.estimate_ms is not None and second.estimate_ms is not None
    assert 1000 < first.estimate_ms < second.estimate_ms
    assert seen["a"].estimate_ms == 0 and not math.isinf(view.quantum(pool.machine.picture))


def test_the_budget_of_those_that_are_asleep_keeps_none_from_its_first_start() -> None:
    """Of one that was never asleep it isn't known what it keeps; it was taken to keep all that it takes awake."""
    pool = Pool("a", running=False, began=e.Began({}), asleep={GPU: 10})
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]
