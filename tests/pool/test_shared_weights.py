"""Weights that several models share: counted once, and they go only when no model needs them."""

import pytest

from pool.entries import ModelDemand, State
from pool.rules import events as e
from pool.rules import view
from tests.pool.harness import GPU, Pool

BUSY = ModelDemand(streaming=1)
SHARED = {name: {"weights": "w"} for name in "ab"}


def shared(host_left: int = 100, *, running: bool = True, **sizes: int) -> Pool:
    """Of 100 bytes a, b and c take 30 each while they are awake. a and b share their weights of 30; c has 20."""
    pool = Pool("abc", sizes=dict.fromkeys("abc", 30) | sizes, entries=SHARED, running=running)
    pool.weights(host_left, w=30, c=20)
    return pool


def test_two_that_share_their_weights_are_awake_together_and_these_count_once() -> None:
    pool = shared(c=0)
    for name in "ab":
        pool.awake(name, BUSY)
    assert (pool.state("a"), pool.state("b")) == (State.AWAKE, State.AWAKE)
    assert pool.machine.picture.free()[GPU] == 100 - 2 * 30 - 30 - 20
    assert pool.machine.picture.beside_weights[GPU] == 100 - 30 - 20


def test_weights_that_come_back_for_one_are_there_for_the_other_too() -> None:
    pool = Pool("ab", sizes=dict.fromkeys("ab", 30), entries=SHARED)
    pool.weights(parked={"w": 40})
    pool.wants("a")
    pool.wants("b")
    assert pool.wishes() == [("wake", "a"), ("wake", "b")]
    assert pool.machine.picture.free()[GPU] == 0


def test_weights_that_one_loads_are_counted_for_both_as_they_were_known() -> None:
    pool = shared()
    pool.launcher(**{name: e.Child(False, ends=1) for name in "abc"})
    pool.weights()
    pool.wants("a")
    pool.wants("b")
    assert pool.wishes() == [("start", "a"), ("start", "b")]
    assert pool.machine.picture.free()[GPU] == 100 - 2 * 30 - 30


def test_they_are_parked_once_all_that_share_them_sleep_and_none_of_these_is_waked_or_started_meanwhile() -> None:
    pool = shared(c=60)
    pool.awake("a", BUSY)
    pool.wants("c", oldest_wait_ms=5000)
    pool.wants("a", waiting=0, served=2)
    assert pool.wishes() == [("sleep", "a")], "its memory alone isn't enough, and b sleeps"
    pool.sleeps("a")
    assert pool.wishes() == [("park", "w")]
    for name in "ab":
        pool.wants(name)
    pool.advance(1)
    assert pool.wishes() == []
    pool.feed(e.ParkEnded("w"))
    pool.weights(parked={"w": 30}, c=20)
    assert pool.wishes()[0] == ("wake", "c")
    assert pool.machine.models["a"].parked == pool.machine.models["b"].parked == {GPU: 30}
    assert [one.learned.park_s for one in pool.machine.models.values()] == [1.0, 1.0, None]


@pytest.mark.parametrize("why", ["busy", "pinned", "loads", "away"])
def test_what_one_of_them_needs_is_neither_parked_nor_dropped_for_another(why: str) -> None:
    pool = shared(c=60)
    if why == "busy":
        pool.awake("b", BUSY)
        pool.wants("b", streaming=1, waiting=1)
    elif why == "pinned":
        pool.asks("pin", "b")
        pool.wakes("b")
    elif why == "loads":
        pool.launcher(b=e.Child(True, ends=1))
        pool.lock("b", resting=True, ready=False)
    else:
        pool.lock("b", away=True)
    pool.wishes()
    pool.wants("c")
    pool.advance(0.1)
    assert not {("park", "w"), ("drop", "w")} & {*pool.wishes()}


def test_they_are_dropped_once_no_model_that_shares_them_has_an_engine() -> None:
    pool = shared(host_left=0, c=60)
    pool.wants("c")
    assert pool.wishes() == [("end", "a"), ("end", "b")]
    pool.launcher(a=e.Child(False, ends=1))
    assert pool.wishes() == []
    pool.launcher(b=e.Child(False, ends=1))
    assert pool.wishes() == [("drop", "w")]
    pool.feed(e.DropEnded("w"))
    pool.weights(0, c=20)
    assert pool.wishes() == [("wake", "c")]


def test_those_that_requests_for_one_of_them_wait_for_are_dropped_for_none_behind_it() -> None:
    pool = shared(host_left=0, running=False, c=60)
    pool.weights(0, w=50)
    pool.wants("b", oldest_wait_ms=2000)
    assert pool.wishes() == [("start", "b")]
    pool.launcher(b=e.Child(True))
    pool.lock("b", resting=True, ready=False)
    pool.wants("c", oldest_wait_ms=1000)
    assert ("drop", "w") not in pool.wishes()


def test_of_one_that_is_taken_out_the_weights_stay_while_another_has_them_and_go_with_the_last() -> None:
    pool = shared()
    pool.configure("bc")
    assert pool.wishes() == [("end", "a")]
    pool.launcher(a=e.Child(False, ends=1))
    pool.advance(60)
    assert ("drop", "w") not in pool.wishes() and "a" not in pool.machine.models
    pool.configure("c")
    pool.launcher(b=e.Child(False, ends=1))
    pool.advance(60)
    assert ("drop", "w") in pool.wishes()
    pool.feed(e.DropEnded("w", "a process reads"))
    pool.advance(1)
    assert pool.wishes() == [("drop", "w")], "again"


def test_what_no_model_has_any_more_after_this_pool_began_is_dropped_and_what_one_has_is_not() -> None:
    before = shared()
    pool = Pool("ac", entries=SHARED, running=False, began=before.machine.learned())
    pool.weights(w=30, c=20)
    pool.advance(60)
    assert {*pool.wishes()} == {("end", "b")}
    pool = Pool("c", running=False, began=before.machine.learned())
    pool.weights(w=30, c=20)
    pool.advance(60)
    assert ("drop", "w") in pool.wishes()


def test_one_that_is_taken_out_ends_though_another_has_weights_of_its_name_and_what_runs_keeps_none_of_others() -> None:
    before = Pool("ab", entries={"b": {"weights": "a"}})
    pool = Pool("b", entries={"b": {"weights": "a"}}, running=False, began=before.machine.learned())
    pool.weights(a=30)
    assert pool.wishes() == []
    pool.launcher(a=e.Child(True))
    assert pool.wishes() == [("end", "a")]
    pool.launcher(a=e.Child(False, ends=1), b=e.Child(True))
    pool.advance(60)
    assert pool.wishes() == [], "b has them"
    pool = Pool("b", began=shared().machine.learned())
    pool.weights(w=30, b=30)
    assert ("drop", "w") in pool.wishes(), "b runs, and has others"


def test_what_one_gives_back_of_weights_that_come_is_what_isnt_there_yet_unless_another_needs_them_too() -> None:
    pool = shared()
    pool.weights(parked={"w": 30}, w=10)
    pool.wants("a")
    it, a = pool.machine.picture, pool.machine.models["a"]
    assert (it.weights_in(a, State.WAKING), it.weights_in(a, State.ASLEEP)) == ({GPU: 30}, {GPU: 10})
    pool.wants("b")
    assert (it.weights_in(a, State.WAKING), it.weights_in(a, State.ASLEEP)) == ({GPU: 30}, {GPU: 30})


def test_a_model_that_is_to_have_other_weights_has_those_it_was_started_with_until_it_has_ended() -> None:
    pool = Pool("a", sizes={"a": 30})
    pool.weights(a=20)
    pool.entries = SHARED
    pool.configure("a")
    assert pool.wishes() == [("end", "a")] and pool.machine.models["a"].weights == {GPU: 20}
    pool.weights(a=20, w=30)
    pool.launcher(a=e.Child(False, ends=1))
    assert pool.wishes() == [("drop", "a")], "no model has them any more"
    assert pool.machine.models["a"].weights == {GPU: 30}
    pool.feed(e.DropEnded("a"))
    pool.weights(w=30)
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]


def test_room_that_weights_wait_for_is_made_once() -> None:
    pool = shared(running=False, c=60)
    pool.weights(w=0, c=20)
    pool.launcher(c=e.Child(True))
    pool.lock("c", resting=True, ready=True)
    pool.awake("c")
    for name in "ab":
        pool.wants(name)
        pool.launcher(**{name: e.Child(True)})
        pool.lock(name, resting=True, ready=False)
    pool.wishes()
    pool.room(w=30)
    assert [bool(pool.machine.models[name].lacking) for name in "abc"] == [True, False, False]
    pool.launcher(a=e.Child(False, ends=1))
    pool.room(w=30)
    assert [bool(pool.machine.models[name].lacking) for name in "abc"] == [False, True, False]


def test_doors_and_people_are_told_whose_weights_are_one_copy() -> None:
    pool = shared()
    it = pool.machine.picture
    shown = {one.name: one for one in view.shown(it, view.outlooks(it, {}, pool.now), 0.0, pool.now)}
    assert [(shown[name].weights_name, shown[name].weights) for name in "abc"] == [
        ("w", {GPU: 30}),
        ("w", {GPU: 30}),
        ("c", {GPU: 20}),
    ]
