"""Rules 14 to 16 of the pool (`pool/rules/machine.py`): weights that make room."""

import math
from typing import Any

import pytest

from pool.entries import ModelDemand, State
from pool.rules import events as e
from pool.rules.model import Demand
from pool.rules.plan import plan
from pool.rules.room import price, rank
from pool.rules.view import outlooks
from tests.pool.harness import GPU, Pool

BUSY = ModelDemand(streaming=1)


def crowded(host_left: int = 100) -> Pool:
    """Of 100 bytes each takes 40 while it is awake, and 30 for its weights; those of c are parked. a was used last."""
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40))
    pool.weights(host_left, parked={"c": 30}, a=30, b=30)
    pool.wants("a", waiting=0, served=1)
    return pool


def parked(pool: Pool, name: str, after: float = 0.5) -> None:
    pool.now += after
    pool.feed(e.ParkEnded(name))


def test_weights_of_the_least_recently_used_are_parked_no_more_than_needed_and_then_the_other_is_waked() -> None:
    pool = crowded()
    pool.wants("c")
    assert pool.wishes() == [("park", "b")]
    pool.advance(5)
    assert pool.wishes() == [] and pool.state("c") is State.ASLEEP, "it waits until they are gone"
    parked(pool, "b")
    assert pool.wishes() == [("wake", "c")]
    pool.wakes("c")
    pool.weights(parked={"b": 30}, a=30, c=30)
    assert pool.machine.picture.free()[GPU] == 0 and pool.wishes() == []


def test_where_sleep_is_enough_nothing_is_parked() -> None:
    pool = Pool("ab", sizes=dict.fromkeys("ab", 40))
    pool.weights(a=30, b=30)
    pool.awake("a")
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def goes_to_sleep(pool: Pool) -> None:
    """One that is awake drains, so that its weights can be parked for another's."""
    pool.weights(parked={"b": 30}, a=30)
    pool.awake("a")
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a")]
    pool.lock("a", resting=True, held=True, draining=True)
    assert pool.wishes() == []


def test_one_that_is_awake_sleeps_first_then_its_weights_are_parked_then_the_other_wakes() -> None:
    pool = Pool("ab")
    goes_to_sleep(pool)
    pool.sleeps("a")
    assert pool.wishes() == [("park", "a")]
    parked(pool, "a")
    assert pool.wishes() == [("wake", "b")]


@pytest.mark.parametrize("why", ["pinned", "GMS away", "no weights", "another moves them"])
def test_what_may_not_be_parked_stays_and_nothing_waits_behind_a_model_that_has_no_room_then(why: str) -> None:
    pool = crowded()
    for name in "ab" if why == "pinned" else "":
        pool.machine.models[name].pinned = pool.machine.models[name].kept_asleep = True
    if why == "GMS away":
        pool.feed(e.WeightsSeen(GPU, None))
    elif why == "no weights":
        pool.weights(parked={"c": 30})
        pool.room(40)  # another program has them
    elif why == "another moves them":
        pool.weights(parked=dict.fromkeys("abc", 30), a=30, b=30)
    pool.wants("c", oldest_wait_ms=1000)
    said = outlooks(pool.machine.picture, {}, pool.now)["c"].why
    assert pool.wishes() == [] and "it takes 40 bytes" in said, "beside its weights"
    pool.wants("a")
    assert pool.wishes() == ([("wake", "a")])


@pytest.mark.parametrize("why", ["its lock is away", "its turn isn't over"])
def test_weights_that_an_engine_needs_for_now_are_no_room_before_its_turn_is_over(why: str) -> None:
    pool = Pool("ab", sizes={"b": 10 if why == "its lock is away" else 60})
    pool.weights(parked={"b": 30}, a=30)
    pool.awake("a", BUSY)
    if why == "its lock is away":
        pool.lock("a", away=True)
    pool.wants("b")
    said = outlooks(pool.machine.picture, {}, pool.now)["b"].why
    assert ("are missing" if why == "its lock is away" else "its turn comes after that of a") in said


def test_weights_of_one_that_sleeps_are_parked_before_those_of_one_that_is_awake_or_answers() -> None:
    pool = Pool("abc", sizes={"a": 20, "b": 40, "c": 40})
    pool.weights(parked={"c": 30}, a=25, b=35)
    pool.room(125)
    pool.awake("a")
    pool.advance(1)
    pool.wants("b", waiting=0, served=1)
    pool.wants("c", waiting=1)
    assert pool.wishes() == [("park", "b")], "and a, which was used before b, stays awake"
    pool = Pool("abc", sizes={"a": 28, "b": 50, "c": 30}, entries={"c": {"loaded_at_least_s": 60.0}})
    pool.weights(parked={"b": 20}, a=35)
    pool.room(103)
    pool.awake("a")
    pool.awake("c")
    pool.wants("b")
    assert pool.wishes() == [("sleep", "a")], "though with the weights of a, which are the last, c would be enough"


def test_a_park_that_fails_is_said_and_tried_again_after_pauses_that_grow_and_others_go_on() -> None:
    pool = Pool("ab", ageing_s=1e6)
    pool.weights(parked={"b": 30}, a=30)
    pool.wants("a", waiting=0, served=1)
    pool.host["default"] = "b"
    pool.configure("ab")
    tries, began = 0, pool.now
    while pool.now < began + 600:
        for wish, name in pool.wishes():
            assert (wish, name) == ("park", "a")
            tries += 1
            pool.feed(e.ParkEnded("a", "there is no host memory left"))
            notes = [one for one in pool.out if isinstance(one, e.Note)]
            assert notes[-1].detail["why"] == "there is no host memory left"
        pool.advance(0.5)
    assert 10 <= tries <= 20
    pool.wants("a", waiting=1)
    assert pool.wishes() == [("wake", "a")], "b can't have its room now, and keeps nothing of it"


def test_to_park_is_preferred_to_ending_an_engine_that_is_asleep_which_is_done_where_it_cant_be() -> None:
    pool = Pool("ac", sizes={"c": 70})
    pool.machine.models["a"].learned = e.Learned(asleep={GPU: 20})
    pool.weights(a=20)
    pool.wants("c")
    assert pool.wishes() == [("park", "a")]
    pool.feed(e.ParkEnded("a", "a process reads"))
    assert pool.wishes() == [("end", "a"), ("wake", "c")]


def test_a_load_that_waits_for_room_for_its_weights_has_others_parked() -> None:
    pool = Pool("ab", sizes=dict.fromkeys("ab", 40))
    pool.launcher(b=e.Child(False, ends=1))
    pool.weights(a=60)
    pool.wants("b")
    assert pool.wishes() == [("start", "b")], "what its weights take isn't known yet"
    pool.launcher(b=e.Child(True, ends=1))
    pool.lock("b", resting=True)
    pool.room(b=20)
    pool.advance(1)
    assert pool.state("b") is State.LOADING and pool.wishes() == [("park", "a")]
    pool.advance(60)
    assert pool.wishes() == []


def test_for_a_start_that_no_request_waits_for_nothing_is_parked_while_another_model_loads() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40), running=False)
    pool.launcher(a=e.Child(True), b=e.Child(True))
    pool.lock("a")
    pool.lock("b", resting=True)
    pool.weights(a=30, b=20)
    pool.entries = {"c": {"preload": True}}
    pool.configure("abc")
    assert pool.wishes() == [] and pool.state("b") is State.LOADING, "b takes less when it has loaded"
    pool.wants("c")
    assert pool.wishes() == [("park", "a")], "a request doesn't wait for that"
    pool = Pool("ac", sizes={"a": 60, "c": 60}, running=False)
    pool.launcher(a=e.Child(True))
    pool.lock("a")
    pool.weights(a=50)
    pool.entries = {"c": {"preload": True}}
    pool.configure("ac")
    assert pool.wishes() == [("park", "a")], "nothing loads"


def test_one_that_sleeps_so_that_its_weights_can_go_isnt_waked_before_the_one_that_they_go_for() -> None:
    """It had waited for longer, and was served for less than a token each time: neither was ever answered."""
    pool = Pool("ab", sizes={"a": 60, "b": 20}, swap_share=0.5)
    pool.weights(a=40, b=10)
    pool.awake("b", BUSY)
    pool.advance(60)
    pool.wants("a")
    assert pool.wishes() == [("sleep", "b")]
    pool.wants("b", waiting=0, paused=1, oldest_wait_ms=100_000)
    pool.sleeps("b")
    assert pool.wishes() == [("park", "b")]
    assert pool.machine.models["a"].room_first, "until it is wished, or no request waits for it any more"
    pool.weights(parked={"b": 10}, a=40)
    pool.feed(e.ParkEnded("b"))
    assert pool.wishes() == [("wake", "a")]
    assert not pool.machine.models["a"].room_first, "the next time it waits for its turn again"
    pool = Pool("ab", sizes={"a": 60, "b": 20}, swap_share=0.5)
    pool.weights(a=40, b=10)
    pool.awake("b", BUSY)
    pool.advance(60)
    pool.wants("a")
    pool.door(b=BUSY)
    assert not pool.machine.models["a"].room_first


def test_while_one_goes_to_sleep_whose_weights_are_parked_then_no_other_gives_way() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40))
    pool.machine.models["c"].learned = e.Learned(asleep={GPU: 30})
    goes_to_sleep(pool)


def test_those_that_are_wanted_too_are_parked_last_and_before_them_the_more_urgent() -> None:
    pool = crowded()
    pool.wants("b", waiting=0, served=1)
    pool.wants("c", oldest_wait_ms=1000)
    assert pool.wishes() == [("park", "a")], "which was used before b"
    pool = crowded()
    pool.door(b=ModelDemand(waiting=1), c=ModelDemand(waiting=1, oldest_wait_ms=1000))
    assert ("park", "a") in pool.wishes()
    pool = crowded()
    pool.entries = {"b": {"priority": -1}}
    pool.configure("abc")
    pool.wants("c")
    assert pool.wishes() == [("park", "a")]


def test_what_is_on_its_way_to_host_memory_is_counted_there_once() -> None:
    pool = crowded(host_left=30)
    pool.wants("c")
    assert pool.wishes() == [("park", "b")]
    pool.weights(0, parked={"b": 30, "c": 30}, a=30, b=30)
    assert "the weights of b go to host memory first" in outlooks(pool.machine.picture, {}, pool.now)["c"].why
    two = Pool("abc", sizes={"a": 40, "b": 40, "c": 70})
    two.weights(40, parked={"c": 30}, a=30, b=30)
    two.wants("c")
    assert two.wishes() == [("end", "b"), ("park", "a")], "there is room for one of both"


def test_weights_that_were_parked_on_one_of_two_devices_only_are_parked_on_the_other_too() -> None:
    pool = crowded(host_left=30)
    pool.feed(e.WeightsSeen("another gpu", {}, {"b": 30}, 0))
    pool.wants("c")
    assert pool.wishes() == [("park", "b")], "which GMS of the one device had refused"


def test_weights_of_a_model_that_was_taken_out_are_counted_and_are_known_when_it_is_back() -> None:
    pool = crowded()
    pool.configure("ac")
    assert pool.wishes() == [("end", "b")]
    pool.launcher(b=e.Child(False, ends=1))
    assert "b" not in pool.machine.models and pool.machine.picture.most[GPU] == 70
    pool.wants("c")
    assert pool.wishes() == [("end", "b"), ("drop", "b"), ("park", "a")], "which is given up, but isn't gone yet"
    pool.configure("abc")
    assert pool.machine.models["b"].weights == {GPU: 30} and pool.machine.picture.most[GPU] == 100


def test_what_couldnt_be_parked_is_tried_again_once_gms_is_back() -> None:
    pool = crowded()
    pool.wants("c")
    for _ in range(6):
        pool.feed(e.ParkEnded("b", "the server is gone"))
        pool.advance(60)
    pool.feed(e.ParkEnded("b", "the server is gone"))
    pool.feed(e.WeightsSeen(GPU, None))
    assert pool.wishes()[-1:] == [("park", "a")], "which is tried instead"
    pool.feed(e.ParkEnded("a", "the server is gone"))
    assert pool.wishes() == []
    pool.weights(parked={"c": 30}, a=30, b=30)
    assert pool.wishes() == [("park", "b")]


def off(host_left: int = 0, **said: Any) -> Pool:
    """c is asleep, needs 40 and 30 of 100 bytes, and is wanted; of a and b no engine runs, and weights take 20 each,
    a was used last.
    """
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40), entries=said)
    pool.launcher(**{name: e.Child(False, ends=1) for name in "ab"})
    pool.weights(host_left, parked={"c": 30}, a=20, b=20)
    pool.wants("a", waiting=0, served=1)
    pool.out.clear()
    return pool


def test_where_nothing_else_makes_room_weights_of_an_off_model_are_dropped_least_recently_used_first() -> None:
    pool = off()
    pool.wants("c")
    assert pool.wishes() == [("drop", "b")] and pool.state("c") is State.ASLEEP
    assert "the weights of b are dropped first" in outlooks(pool.machine.picture, {}, pool.now)["c"].why
    pool.door(b=ModelDemand(waiting=1), c=ModelDemand(waiting=1, oldest_wait_ms=1000))
    assert pool.wishes() == [], "b is started once they are gone, and a keeps its own"
    pool.asks("pin", "b")
    assert pool.wishes() == [], "nor does a give way for that"
    pool.asks("unpin", "b")
    pool.feed(e.DropEnded("b"))
    assert pool.wishes() == [("wake", "c")]
    pool.wakes("c")
    pool.door(b=ModelDemand(waiting=1))
    assert pool.wishes() == [("sleep", "c"), ("start", "b")]
    pool.feed(e.DropEnded("b", "it is read"))
    assert pool.state("b") is State.LOADING
    more = off()
    more.weights(0, parked={"c": 30}, a=30, b=30)
    more.wants("c")
    assert more.wishes() == [("drop", "b")], "and no more than needed"


def test_where_to_park_makes_room_nothing_is_dropped_and_no_engine_is_ended_where_a_drop_does() -> None:
    pool = off(host_left=20)
    pool.wants("c")
    assert pool.wishes() == [("park", "b")]
    pool = Pool("abc", sizes={"a": 40, "b": 40, "c": 60})
    pool.machine.models["a"].learned = e.Learned(asleep={GPU: 20})
    pool.launcher(b=e.Child(False, ends=1))
    pool.weights(0, b=30)
    pool.wants("c")
    assert pool.wishes() == [("drop", "b")]


@pytest.mark.parametrize("why", ["pinned", "loading", "GMS away", "wanted", "no request"])
def test_what_may_not_be_dropped_stays(why: str) -> None:
    pool = off()
    for name in "ab":
        pool.machine.models[name].pinned = pool.machine.models[name].kept_asleep = why == "pinned"
    if why == "loading":
        for name in "ab":
            pool.machine.models[name].learned = e.Learned(asleep={e.HOST: 1})
        pool.launcher(a=e.Child(True, ends=1), b=e.Child(True, ends=1))
        pool.lock("a", resting=True)
        pool.lock("b", resting=True)
    elif why == "GMS away":
        pool.feed(e.WeightsSeen(GPU, None))
    pool.wants("c", waiting=0 if why == "no request" else 1)
    if why == "wanted":
        pool = off()
        pool.door(a=ModelDemand(waiting=1), b=ModelDemand(waiting=1), c=ModelDemand(waiting=1))
    if why == "no request":
        pool = off(c={"preload": True})
        pool.weights(0, a=40, b=40)
        pool.launcher(c=e.Child(False, ends=1))
    assert "drop" not in dict(pool.wishes())
    said = outlooks(pool.machine.picture, {}, pool.now)["c"].why
    names = "a (pinned), b (pinned)" if why == "pinned" else "a, b"
    assert f"those of {names} can't be parked now" in said or why in ("wanted", "no request")


def full(*pinned: str, **said: Any) -> Pool:
    """All are asleep, and host memory is full: c needs 40 and 30 of 100 bytes; weights of a and b take 30 each, those
    of c are parked. a was used last. A person has put to sleep what is pinned.
    """
    pool = crowded(host_left=0)
    for name in pinned:
        pool.machine.models[name].pinned = pool.machine.models[name].kept_asleep = True
    if said:
        pool.entries = said
        pool.configure("abc")
    return pool


def ends(pool: Pool, name: str) -> None:
    pool.launcher(**{name: e.Child(False, ends=pool.children[name].ends + 1)})


def test_where_only_the_weights_of_sleepers_are_in_the_way_and_cant_be_parked_one_is_ended_and_they_are_dropped() -> (
    None
):
    pool = full()
    pool.wants("c")
    assert pool.wishes() == [("end", "b")], "which was used before a, and no more than needed"
    assert "the weights of b are dropped first" in outlooks(pool.machine.picture, {}, pool.now)["c"].why
    pool.advance(5)
    assert pool.wishes() == [] and pool.state("b") is State.STOPPING
    ends(pool, "b")
    assert pool.wishes() == [("drop", "b")]
    pool.advance(5)
    assert pool.wishes() == []
    pool.feed(e.DropEnded("b"))
    assert pool.wishes() == [("wake", "c")]
    pool = full()
    pool.weights(0, parked={"c": 30}, a=10, b=30)
    pool.wants("b", waiting=0, served=1, keep_alive_s=1.0)
    pool.now += 1
    pool.wants("a", waiting=0, served=2)
    pool.now += 1
    pool.wants("b", waiting=0, served=2)
    pool.wants("c")
    assert pool.wishes() == [("end", "a")], "whose 10 bytes are enough"


def test_the_weights_of_sleepers_are_dropped_last() -> None:
    pool = full()
    ends(pool, "a")
    pool.wants("c")
    assert pool.wishes() == [("drop", "a")], "which has no engine"
    pool = full()
    for name in "ab":
        pool.machine.models[name].learned = e.Learned(asleep={GPU: 10 if name == "a" else 5})
    pool.room(130)
    pool.wants("c")
    assert pool.wishes() == [("end", "b"), ("end", "a"), ("wake", "c")], "what their engines keep is enough"
    pool = full(c={"preload": True})
    ends(pool, "c")
    assert pool.wishes() == [], "nor for a start that no request needs"
    pool = full(b={"preload": True})
    pool.wants("c")
    assert pool.wishes() == [("end", "a")]


def test_a_sleepers_weights_are_dropped_for_those_before_it_in_the_queue_and_for_none_behind_it() -> None:
    pool = full()
    pool.door(b=ModelDemand(waiting=1, oldest_wait_ms=1000), c=ModelDemand(waiting=1))
    assert pool.wishes() == [("wake", "b")]
    pool = full("a")
    pool.door(b=ModelDemand(waiting=1), c=ModelDemand(waiting=1, oldest_wait_ms=1000))
    assert pool.wishes() == [("end", "b")], "whose turn comes after c's"
    ends(pool, "b")
    assert pool.wishes() == [("drop", "b")]
    pool.feed(e.DropEnded("b"))
    assert pool.wishes()[0] == ("wake", "c")
    pool = full("a")
    ends(pool, "b")
    pool.door(b=ModelDemand(waiting=1), c=ModelDemand(waiting=1, oldest_wait_ms=1000))
    assert pool.wishes() == [("drop", "b")], "also those of one that is OFF"
    pool = full("a")
    pool.machine.models["b"].failed("no", pool.now)
    pool.door(b=ModelDemand(waiting=1, oldest_wait_ms=1000), c=ModelDemand(waiting=1))
    assert pool.wishes() == [("end", "b")], "which has failed, and isn't in the queue until its pause is over"


def test_where_nothing_can_be_dropped_either_those_whose_weights_stay_are_named() -> None:
    def stay(pool: Pool, names: str, name: str = "c") -> None:
        said = outlooks(pool.machine.picture, {}, pool.now)[name]
        assert pool.wishes() == [] and said.estimate_ms is None and said.turn == 0
        assert f"those of {names} can't be parked now (host_memory:), nor dropped" in said.why

    pool = full("a", "b")
    pool.wants("c")
    stay(pool, "a (pinned), b (pinned)")
    pool = full()
    pool.awake("a", BUSY)
    pool.wants("b", oldest_wait_ms=1000)
    pool.wants("c")
    pool.wishes()
    stay(pool, "a (it has requests), b (it has requests)")  # b waits for its turn, which comes before c's
    pool = Pool("ab", drain_s=0.0)
    pool.weights(0, parked={"b": 30}, a=30)
    pool.awake("a")
    pool.lock("a", away=True)
    pool.wants("b")
    stay(pool, "a", "b")


def test_for_a_pinned_model_a_sleepers_weights_are_dropped_too() -> None:
    pool = full()
    pool.asks("pin", "c")
    assert pool.wishes() == [("end", "b")]


def test_no_models_own_weights_are_dropped_for_it() -> None:
    pool = Pool("ac", sizes={"a": 50, "c": 40}, entries={"a": {"pin": True}})
    pool.wakes("a")
    ends(pool, "c")
    pool.weights(0, c=30)
    pool.wishes()
    pool.wants("c")
    assert pool.wishes() == []
    assert "20 bytes of gpu are missing" in outlooks(pool.machine.picture, {}, pool.now)["c"].why


def test_an_engine_without_requests_is_ended_before_weights_are_dropped_that_requests_wait_for() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40))
    pool.machine.models["a"].learned = e.Learned(asleep={GPU: 20})
    ends(pool, "b")
    pool.weights(0, b=30)
    pool.room(80)
    pool.door(b=ModelDemand(waiting=1), c=ModelDemand(waiting=1, oldest_wait_ms=1000))
    assert pool.wishes() == [("end", "a"), ("wake", "c")]


def test_for_one_that_lacks_room_in_vain_nothing_is_kept() -> None:
    pool = Pool("abc", sizes={"a": 60, "b": 20, "c": 10}, entries={"a": {"pin": True}})
    pool.wakes("a")
    ends(pool, "b")
    pool.wants("b")
    pool.launcher(b=e.Child(True, ends=1))
    pool.lock("b", resting=True)
    pool.wishes()
    pool.room(b=20)
    pool.wants("c")
    assert pool.wishes() == [], "it is seen first whether that is so"
    pool.advance(1)
    assert pool.wishes() == [("wake", "c")]


def test_one_that_is_awake_without_requests_sleeps_first_then_it_is_ended_then_its_weights_are_dropped() -> None:
    pool = Pool("ab", drain_s=0.0)
    pool.weights(0, parked={"b": 30}, a=30)
    pool.awake("a", BUSY)
    pool.wants("b")
    pool.advance(60)
    assert pool.wishes() == [], "not while it has requests"
    assert "those of a (it has requests)" in outlooks(pool.machine.picture, {}, pool.now)["b"].why
    pool.wants("a", waiting=0, served=2)
    assert pool.wishes() == [("sleep", "a")]
    pool.lock("a", resting=True, held=True, draining=True)
    assert pool.wishes() == []
    pool.sleeps("a")
    assert pool.wishes() == [("end", "a")]
    ends(pool, "a")
    assert pool.wishes() == [("drop", "a")]
    pool.feed(e.DropEnded("a"))
    assert pool.wishes() == [("wake", "b")]


def test_no_engine_is_ended_for_what_it_keeps_beside_its_weights_where_that_counts_once_and_isnt_enough() -> None:
    pool = Pool("abc", sizes={"a": 20, "b": 40, "c": 65}, entries={"b": {"pin": True}})
    pool.wakes("b")
    pool.machine.models["a"].learned = e.Learned(asleep={GPU: 20})
    pool.weights(0, a=30)
    pool.wishes()
    pool.wants("c")
    assert pool.wishes() == [], "10 are free, and 50 are a's"


def test_what_an_engine_that_isnt_there_would_keep_is_no_room_that_a_drop_makes() -> None:
    pool = Pool("abc", sizes={"a": 20, "b": 10, "c": 85}, entries={"a": {"pin": True}})
    pool.wakes("a")
    pool.machine.models["b"].learned = e.Learned(asleep={GPU: 20})
    ends(pool, "b")
    pool.weights(0, b=30, c=5)
    pool.wishes()
    pool.wants("c")
    assert pool.wishes() == []


def test_a_turn_is_awaited_before_a_sleeper_is_ended() -> None:
    pool = Pool("abc", sizes={"a": 40, "b": 40, "c": 70}, entries={"a": {"loaded_at_least_s": 20.0}})
    pool.weights(0, a=20, b=20)
    pool.awake("a")
    pool.wants("c")
    assert pool.wishes() == []
    assert "its turn comes after that of a" in outlooks(pool.machine.picture, {}, pool.now)["c"].why
    pool.advance(20)
    assert pool.wishes() == [("end", "b"), ("sleep", "a")]


def just_loaded() -> Pool:
    """c sleeps for b, which had to load, and has waited for longer; it lacks the room of b's weights."""
    pool = Pool("bc", sizes={"b": 45, "c": 90}, drain_s=0.0)
    ends(pool, "b")
    pool.weights(0, c=10)
    pool.awake("c", BUSY)
    pool.wants("b")
    pool.advance(40)
    pool.sleeps("c")
    assert pool.wishes() == [("sleep", "c"), ("start", "b")]
    pool.launcher(b=e.Child(True, ends=1))
    pool.lock("b", resting=True)
    pool.weights(0, b=30, c=10)
    pool.wants("c", oldest_wait_ms=50000)
    pool.lock("b", resting=True, ready=True)
    assert pool.wishes() == [("wake", "b")]
    return pool


def test_an_engine_that_has_loaded_for_requests_is_awake_for_them_before_it_is_ended_for_others() -> None:
    pool = just_loaded()
    pool.wakes("b")
    pool.wants("b", waiting=0, served=1)
    assert pool.wishes() == [("sleep", "b")]
    pool.sleeps("b")
    assert pool.wishes() == [("end", "b")]


@pytest.mark.parametrize("since", ["awake", "ended"])
def test_one_that_has_loaded_comes_before_those_that_have_waited_for_longer_only_once(since: str) -> None:
    pool = just_loaded()
    if since == "awake":
        pool.wakes("b")
        pool.lock("b", resting=True, ready=True)
    else:
        ends(pool, "b")
    assert pool.wishes()[:1] == [("drop" if since == "ended" else "end", "b")]


def test_one_that_has_loaded_for_no_request_comes_after_those_that_have_some() -> None:
    pool = Pool("bc")
    it = pool.machine.picture
    it.models["b"].fresh, it.models["c"].demand = True, Demand(waiting=1)
    assert rank(it, it.models["c"], pool.now) < rank(it, it.models["b"], pool.now)


def test_a_model_whose_engine_is_another_one_has_its_turn_though_its_lock_was_away_as_that_changed() -> None:
    pool = Pool("ab", drain_s=0.0)
    pool.awake("a", BUSY)
    pool.wants("b")
    pool.advance(0.5)
    pool.lock("a", away=True)
    pool.wants("a")
    pool.advance(2)
    pool.lock("a", resting=False, held=True, serving=True, token=9)
    assert pool.wishes() == [], "it has had no request since"
    pool.advance(2)
    assert pool.wishes() == []
    pool.advance(1)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


def test_one_that_loads_in_vain_is_ended_for_one_before_it_that_could_be_awake() -> None:
    pool = Pool("bf", sizes={"b": 60, "f": 20})
    ends(pool, "f")
    pool.weights(0, b=30)
    pool.wants("f")
    pool.launcher(f=e.Child(True, ends=1))
    pool.lock("f", resting=True)
    pool.wishes()
    pool.machine.models["b"].fresh = True
    pool.door(f=ModelDemand(waiting=1), b=ModelDemand(waiting=1, oldest_wait_ms=1000))
    assert pool.wishes() == [], "it may have room at once"
    pool.room(f=10)
    assert pool.wishes() == [], "or in a moment"
    pool.advance(1)
    assert pool.wishes() == [("end", "f"), ("wake", "b")]


def test_a_park_that_fails_once_ends_no_engine_and_one_that_goes_on_failing_does() -> None:
    pool = Pool("ab", ageing_s=1e6)
    pool.weights(parked={"b": 30}, a=30)
    pool.wants("b")
    began = pool.now
    for _ in range(6):
        assert pool.wishes() == [("park", "a")], "its GMS has been killed, say"
        pool.feed(e.ParkEnded("a", "this server is new"))
        said, ended_after = pool.wishes(), pool.now - began
        pool.advance(pool.machine.models["a"].region.parking.again_at - pool.now)
    assert ended_after > 30
    assert said == [("end", "a")]


def test_a_load_that_waits_for_room_has_a_sleepers_weights_dropped_and_nothing_else_while_that_ends() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 30))
    ends(pool, "b")
    pool.weights(0, a=30, c=30)
    pool.wants("c", waiting=0, served=1)
    pool.wants("b")
    assert pool.wishes() == [("start", "b")], "what its weights take isn't known yet"
    pool.launcher(b=e.Child(True, ends=1))
    pool.lock("b", resting=True)
    pool.room(b=20)
    pool.advance(1)
    pool.door(a=ModelDemand(waiting=1, oldest_wait_ms=9000), b=ModelDemand(waiting=1), c=ModelDemand(served=2))
    pool.advance(1)
    assert pool.state("b") is State.LOADING and pool.wishes() == [("end", "a")], "also where a was asked for before"
    pool.advance(60)
    assert pool.wishes() == []
    ends(pool, "a")
    pool.advance(1)
    assert pool.wishes() == [("drop", "a")]
    pool.advance(60)
    assert pool.wishes() == []


def test_a_default_model_that_sleeps_for_a_pinned_one_isnt_waked_before_it_however_urgent_it_is() -> None:
    """Else it is put to sleep and waked again in one turn, without end (seed 429096610)."""
    sizes = {"a": 45, "b": 45}
    pool = Pool("ab", sizes=sizes, entries={"a": {"priority": -1}, "b": {"pin": True}}, default="a", heard=False)
    pool.weights(100, parked={"b": 30}, a=30)
    pool.lock("b", resting=True, ready=True)
    pool.awake("a")
    assert pool.state("a") is State.DRAINING, "its own rest is over, and the pinned one's turn has come"
    pool.sleeps("a")
    assert pool.wishes() == [("park", "a")]


def test_what_sleeps_for_a_load_that_lacks_room_isnt_waked_again_where_the_pool_thinks_that_it_fits() -> None:
    pool = Pool("ab", sizes={"a": 60, "b": 20}, default="a", default_after_s=0.0)
    pool.awake("a")
    ends(pool, "b")
    pool.wants("b")
    assert pool.wishes() == [("start", "b")]
    pool.launcher(b=e.Child(True, ends=1))
    pool.lock("b", resting=True)
    pool.room(b=20)
    pool.advance(10)
    assert pool.state("b") is State.LOADING and pool.wishes() == [("sleep", "a")]
    pool.sleeps("a")
    pool.room(b=10)
    assert pool.wishes() == []
    pool.room()
    assert pool.wishes() == [("wake", "a")], "b has what it needs"
    assert pool.wishes() == []


def test_an_engine_that_was_ended_for_one_that_lacks_room_isnt_started_again_before_its_weights_are_dropped() -> None:
    pool = Pool("bc", sizes={"b": 40, "c": 40})
    pool.machine.models["c"].learned = e.Learned(asleep={e.HOST: 1})
    pool.weights(0, b=30, c=30)
    pool.wants("b")
    assert pool.wishes() == [("wake", "b")]
    pool.feed(e.LockAnswered("b", True))
    pool.lock("b", resting=False, held=True)
    pool.room(b=20)
    pool.wants("c")
    pool.advance(1)
    assert pool.wishes() == [("end", "c")]
    ends(pool, "c")
    pool.advance(1)
    assert pool.wishes() == [("drop", "c")], "and not started, loaded, ended, started ..."


def test_one_that_died_while_its_weights_were_parked_has_room_made_to_load_them_again() -> None:
    """GMS refuses that at once where weights fill the device: so the ledger never hears of it."""
    pool = full()
    pool.machine.models["c"].learned = e.Learned(asleep={e.HOST: 1})
    pool.lock("c", resting=True)
    assert pool.state("c") is State.LOADING
    pool.room(80)
    assert pool.wishes() == [], "host memory is full, and no request waits"
    pool.wants("c")
    assert pool.wishes() == [("end", "b")]
    ends(pool, "b")
    assert pool.wishes() == [("drop", "b")]
    pool = full()
    pool.machine.models["c"].learned = e.Learned(asleep={e.HOST: 1})
    pool.weights(40, parked={"c": 30}, a=40, b=40)
    pool.room(80)
    pool.lock("c", resting=True)
    assert pool.wishes() == [("park", "b")]


def test_one_that_a_person_waked_and_whose_engine_is_ready_is_on_its_way_and_not_loading() -> None:
    pool = full()
    pool.entries["c"] = {"arguments": ["other"]}
    pool.lock("c", resting=False, ready=True)
    pool.configure("abc")
    assert pool.state("c") is State.WAKING and pool.wishes() == [], "it is about to serve"


@pytest.mark.parametrize("changed", [False, True])
def test_one_that_a_person_waked_while_it_loads_is_one_that_loads(changed: bool) -> None:
    pool = full()
    pool.lock("c", resting=False)
    assert pool.state("c") is State.WAKING
    if changed:
        pool.entries["c"] = {"arguments": ["other"]}
        pool.configure("abc")
        assert pool.wishes() == [("end", "c")]
        return
    pool.room(80)
    pool.wants("c")
    assert pool.wishes() == [("end", "b")], "room is made for its weights"


@pytest.mark.parametrize("why", ["pinned", "others sleep for it"])
def test_one_that_loads_is_not_ended_for_another_where_it_is_pinned_or_has_its_room_made(why: str) -> None:
    pool = Pool("bf", sizes={"b": 60, "f": 20})
    ends(pool, "f")
    pool.weights(0, b=30)
    pool.launcher(f=e.Child(True, ends=1))
    pool.lock("f", resting=True)
    f = pool.machine.models["f"]
    f.pinned = why == "pinned"
    pool.room(f=10)
    pool.door(b=ModelDemand(waiting=1, oldest_wait_ms=1000))
    pool.machine.models["b"].fresh = True
    assert pool.wishes() == []
    pool.now += 1
    f.awaits = frozenset() if f.pinned else frozenset("b")
    assert plan(pool.machine.picture, pool.now) == math.inf


def test_one_that_loads_in_vain_and_that_no_request_needs_is_ended_for_one_that_has_requests() -> None:
    pool = Pool("bf", sizes={"b": 60, "f": 20})
    ends(pool, "f")
    pool.weights(0, b=30)
    pool.launcher(f=e.Child(True, ends=1))
    pool.room(f=10)
    pool.wants("b")
    pool.advance(1)
    assert pool.wishes() == [], "not while its lock is away"
    pool.lock("f", resting=True)
    assert pool.wishes() == [("end", "f"), ("wake", "b")]


@pytest.mark.parametrize("lacking", [{}, {"a": 20}])
def test_so_is_one_whose_parked_weights_find_no_room_to_come_back(lacking: dict[str, int]) -> None:
    """GMS refuses them at once, so it may wait for nothing in the ledger: requests of the other waited for ever."""
    pool = Pool("abc", sizes={"a": 60, "b": 60, "c": 20})
    ends(pool, "b")
    pool.lock("a", resting=True)
    pool.weights(0, {"a": 40}, b=40, c=40)
    pool.room(**lacking)
    pool.wants("b")
    pool.advance(1)
    assert pool.wishes() == [("end", "a"), ("end", "c")], "40 of the weights of c are in the way, too"
    ends(pool, "a")
    ends(pool, "c")
    assert pool.wishes() == [("drop", "c")]


def test_what_an_engine_leases_beside_weights_that_fit_is_for_the_ledger_to_wait_for() -> None:
    pool = full()
    pool.lock("c", resting=True)
    assert pool.state("c") is State.LOADING
    pool.wants("c")
    assert pool.wishes() == [], "40 are free and 30 come; of the 40 more that it leases the ledger is asked"


def test_for_one_whose_parked_weights_have_no_room_to_load_nothing_is_kept() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 20))
    pool.machine.models["a"].pinned = pool.machine.models["a"].kept_asleep = True
    pool.machine.models["c"].learned = e.Learned(asleep={e.HOST: 1})
    pool.lock("c", resting=True)
    pool.weights(0, parked={"c": 30}, a=50, b=30)
    pool.wants("b")
    assert pool.wishes() == [("wake", "b")]


def test_while_an_engine_ends_for_one_nothing_else_gives_way_for_it() -> None:
    pool = Pool("abc", sizes={"a": 20, "b": 60, "c": 70})
    pool.machine.models["b"].learned = e.Learned(asleep={GPU: 20})
    pool.awake("a")
    pool.asks("pin", "a")
    pool.wants("c")
    assert pool.wishes() == [("end", "b"), ("wake", "c")]
    pool.asks("unpin", "a")
    pool.feed(e.LockAnswered("c", True))
    pool.lock("c", resting=False, held=True)
    pool.room(c=10)
    pool.advance(5)
    assert pool.wishes() == [], "which takes its time"
    ends(pool, "b")
    pool.advance(0.4)
    assert pool.wishes() == []
    pool.advance(0.1)
    assert pool.wishes() == [("sleep", "a")], "and wasn't enough"
    pool.sleeps("a")
    pool.now += 1
    pool.wakes("c", after=0.6)
    learned = pool.machine.learned().learned["c"]
    assert learned.wake_s == pytest.approx(0.6 + 0.3 * (1.6 - 0.6)), "from when the last of both was gone"


def test_a_drop_that_fails_is_said_and_tried_again_after_pauses_that_grow() -> None:
    pool = off()
    pool.weights(0, parked={"c": 30}, b=40)
    pool.wants("c")
    tries, began = 0, pool.now
    while pool.now < began + 600:
        for wish, name in pool.wishes():
            assert (wish, name) == ("drop", "b")
            tries += 1
            pool.feed(e.DropEnded("b", "it is read"))
            assert [one for one in pool.out if isinstance(one, e.Note)][-1].detail["why"] == "it is read"
        pool.advance(0.5)
    assert 10 <= tries <= 20


def test_what_ends_after_its_model_is_gone_or_was_started_again_changes_nothing() -> None:
    pool = crowded()
    pool.wants("c")
    assert pool.wishes() == [("park", "b")]
    pool.door()
    pool.launcher(b=e.Child(False, ends=1))
    pool.door(b=ModelDemand(waiting=1))
    assert pool.wishes() == [("start", "b")]
    pool.feed(e.ParkEnded("b", "it was killed"))
    assert pool.state("b") is State.LOADING
    pool.door()
    pool.launcher(b=e.Child(False, ends=2))
    pool.configure("ac")
    pool.feed(e.ParkEnded("b", "it was killed"))
    pool.feed(e.DropEnded("b", "it was killed"))
    assert "b" not in pool.machine.models


def test_weights_that_move_are_news_and_the_same_again_is_none() -> None:
    pool = crowded()
    pool.out.clear()
    pool.weights(parked={"c": 30}, a=30, b=30)
    assert not [one for one in pool.out if isinstance(one, e.Publish)]
    pool.weights(parked={"c": 30}, a=30, b=20)
    assert [one for one in pool.out if isinstance(one, e.Publish)]
    pool.wants("c")
    pool.out.clear()
    pool.feed(e.ParkEnded("b", "it is read"))
    assert [one for one in pool.out if isinstance(one, e.Publish)]


def test_until_it_was_measured_a_wake_that_brings_weights_back_takes_a_wake_and_the_copy() -> None:
    pool = crowded()
    c = pool.machine.models["c"]
    c.region.parked, c.learned = {GPU: 8 << 30}, e.Learned(wake_s=2.0)
    assert c.wake_s == 6.0
    c.learned = e.Learned()
    assert c.wake_s == 5.0


def test_what_a_model_has_itself_takes_no_host_memory_for_it() -> None:
    pool = Pool("bc", sizes={"b": 40, "c": 60})
    pool.weights(30, b=30, c=30)
    pool.wants("b", waiting=0, served=1)
    pool.door(b=ModelDemand(waiting=1, served=1), c=ModelDemand(waiting=1, oldest_wait_ms=1000))
    assert ("park", "b") in pool.wishes()


def test_one_whose_weights_alone_are_enough_sleeps_before_they_are_parked() -> None:
    pool = Pool("ac", sizes={"a": 10, "c": 60})
    pool.weights(parked={"c": 30}, a=60)
    pool.awake("a")
    pool.wants("c")
    assert pool.wishes() == [("sleep", "a")]
    pool.sleeps("a")
    assert pool.wishes() == [("park", "a")]


def test_one_whose_engine_has_died_is_put_to_sleep_once_and_then_parked() -> None:
    pool = Pool("ac", sizes={"a": 10, "c": 60})
    pool.weights(parked={"c": 30}, a=60)
    pool.awake("a")
    pool.lock("a", resting=False)
    pool.wants("c")
    pool.advance(10)
    assert pool.state("a") is State.WAKING and pool.wishes() == [("sleep", "a")]
    pool.advance(10)
    assert pool.wishes() == []
    pool.lock("a", resting=True, ready=True)
    assert pool.wishes() == [("park", "a")]


def test_a_turn_is_awaited_rather_than_weights_parked_or_dropped() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40))
    pool.weights(a=15, b=30)
    pool.awake("a", BUSY)
    pool.wants("c")
    assert (
        pool.wishes() == []
        and "its turn comes after that of a" in outlooks(pool.machine.picture, {}, pool.now)["c"].why
    )
    pool = Pool("abc", sizes={"a": 40, "b": 10, "c": 40})
    pool.launcher(b=e.Child(False, ends=1))
    pool.weights(30, parked={"c": 20}, a=30, b=30)
    pool.awake("a", BUSY)
    pool.wants("c")
    pool.advance(60)
    assert ("drop", "b") not in pool.wishes()


def test_what_parks_at_once_is_preferred_to_what_loads_or_has_a_lock_that_is_away() -> None:
    for away in (True, False):
        pool = crowded()
        if away:
            pool.lock("b", away=True)
        else:
            pool.machine.models["b"].learned = e.Learned(asleep={e.HOST: 1})
            pool.lock("b", resting=True)
            assert pool.state("b") is State.LOADING
        pool.wants("c")
        assert pool.wishes() == [("park", "a")]


def test_for_a_pinned_model_that_is_loaded_others_are_parked_while_another_loads() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40))
    pool.machine.models["b"].learned = e.Learned(asleep={e.HOST: 1})
    pool.lock("b", resting=True)
    pool.weights(parked={"c": 30}, a=40)
    pool.entries = {"c": {"pin": True}}
    pool.configure("abc")
    assert pool.state("b") is State.LOADING and pool.wishes() == [("park", "a")]


def test_what_one_keeps_asleep_is_not_free_when_it_sleeps() -> None:
    pool = Pool("ac", sizes={"a": 60, "c": 90})
    pool.machine.models["a"].learned = e.Learned(asleep={GPU: 20})
    pool.awake("a")
    pool.wants("c")
    assert pool.wishes() == [("sleep", "a")], "and c isn't waked with that"
    pool.sleeps("a")
    assert pool.wishes() == [("end", "a"), ("wake", "c")]


def test_for_one_that_waits_already_an_engine_is_ended_where_a_drop_alone_would_be_in_vain() -> None:
    pool = Pool("abc", sizes={"a": 40, "b": 10, "c": 40})
    pool.machine.models["a"].learned = e.Learned(asleep={GPU: 20})
    pool.launcher(b=e.Child(False, ends=1))
    pool.weights(0, b=30)
    pool.wants("c")
    assert pool.wishes() == [("wake", "c")]
    pool.feed(e.LockAnswered("c", True))
    pool.room(c=25)
    pool.advance(1)
    assert pool.wishes() == [("drop", "b")]
    pool.room(c=45)
    pool.advance(1)
    assert pool.wishes() == [("end", "a")]


def test_a_start_brings_parked_weights_back_so_they_need_room() -> None:
    pool = Pool("ac", sizes={"a": 20, "c": 20}, running=False)
    pool.launcher(a=e.Child(True))
    pool.lock("a")
    pool.weights(parked={"c": 30}, a=70)
    pool.wants("c")
    assert pool.wishes() == [("park", "a")]


def test_swaps_with_parking_have_longer_turns() -> None:
    from pool.rules import view
    from pool.rules.turns import cost_of

    pool = Pool("ab", sizes=dict.fromkeys("ab", 40))
    pool.weights(parked={"b": 30}, a=30)
    a, b = (pool.machine.models[name] for name in "ab")
    a.learned = b.learned = e.Learned(wake_s=1.0, sleep_s=0.5, park_s=4.0, wake_parked_s=3.0)
    assert cost_of(b, a) == 7.5 and cost_of(a, b) == 1.5
    pool.door(a=BUSY, b=ModelDemand(waiting=1))
    assert view.quantum(pool.machine.picture) == pytest.approx(75.0), "they don't fit together, with their weights"


def test_what_parking_costs_is_measured_and_outlives_the_pool_and_is_in_what_a_waiter_is_told() -> None:
    pool = crowded()
    before = outlooks(pool.machine.picture, {}, pool.now)
    pool.wants("c")
    parked(pool, "b", after=4.0)
    pool.wakes("c", after=7.0)
    pool.weights(parked={"b": 30}, a=30, c=30)
    learned = pool.machine.learned().learned
    assert learned["b"].park_s == pytest.approx(4.0) and learned["c"].wake_parked_s == pytest.approx(7.0)
    assert learned["c"].wake_s == 0.6, "that is another wake"
    pool.machine.models["b"].learned = e.Learned(wake_s=1.0, wake_parked_s=9.0)
    after = outlooks(pool.machine.picture, {}, pool.now)
    assert before["a"].estimate_ms == before["b"].estimate_ms == 600 and (after["b"].estimate_ms or 0) >= 9000


def test_how_long_weights_are_on_their_way_to_host_memory_is_in_what_a_waiter_is_told() -> None:
    pool = crowded()
    pool.machine.models["b"].learned = e.Learned(wake_s=1.0, park_s=4.0, wake_parked_s=6.0)
    pool.machine.models["c"].learned = e.Learned(wake_s=1.0, wake_parked_s=7.0)

    def estimates() -> dict[str, int | None]:
        return {name: one.estimate_ms for name, one in outlooks(pool.machine.picture, {}, pool.now).items()}

    assert estimates() == {"a": 600, "b": 1000, "c": 11000}, "b is parked for c first"
    pool.wants("c")
    (park,) = (one for one in pool.out if isinstance(one, e.Park))
    assert park.most_s == 70, "and no longer, whatever hangs"
    pool.now += 1
    assert estimates() == {"a": 600, "b": 3000 + 6000, "c": 3000 + 7000 + 1000}, "with the time to drain"
    pool.now += 13
    assert estimates()["c"] == 10000 + 7000 + 1000, "it is late by ten seconds"
    pool.door()
    pool.machine.models["a"].learned = e.Learned(park_s=2.0)
    pool.machine.models["c"].learned = e.Learned(wake_parked_s=7.0, bytes={GPU: 70})
    assert estimates()["c"] == 10000 + 2000 + 7000, "those of a have to go, too"
    pool.machine.models["b"].region.here = {"another": 30}
    assert estimates()["c"] == 2000 + 7000, "those of b are elsewhere"


def test_of_one_that_sleeps_first_and_is_parked_then_both_are_in_what_a_waiter_is_told() -> None:
    pool = Pool("ab")
    pool.weights(parked={"b": 30}, a=30)
    pool.awake("a")
    pool.machine.models["a"].learned = e.Learned(wake_s=1.0, park_s=4.0)
    pool.machine.models["b"].learned = e.Learned(wake_parked_s=7.0)
    assert outlooks(pool.machine.picture, {}, pool.now)["b"].estimate_ms == 11000


def test_a_new_pool_learns_what_is_parked_from_gms() -> None:
    pool = Pool("ab", heard=False)
    pool.weights(parked={"b": 30}, a=30)
    pool.lock("a")
    pool.lock("b")
    pool.wants("b")
    assert pool.wishes() == [("park", "a")]


def test_what_weights_take_is_known_after_they_were_dropped_and_by_the_next_pool() -> None:
    pool = Pool("ab", sizes={"a": 40, "b": 20})
    pool.weights(0, a=50)
    pool.wakes("a")
    ends(pool, "a")
    pool.weights(0)
    pool.awake("b", BUSY)
    learned = pool.machine.learned().learned["a"]
    assert learned.weights == {GPU: 50}
    pool.wants("a")
    pool.advance(40)
    assert pool.wishes()[:1] == [("sleep", "b")], "its engine needs 90, and 80 are free: b sleeps before it starts"
    pool.configure("ab")
    assert pool.machine.models["a"].learned.weights == {GPU: 50}
    pool.entries["a"] = {"arguments": ["other"]}
    pool.configure("ab")
    assert pool.machine.models["a"].learned.weights == {}, "those were another one's"


def test_a_swap_costs_less_where_others_go_on_beside_it() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 40))
    it, models = pool.machine.picture, pool.machine.models
    pool.awake("b", BUSY)
    alone = price(it, models["a"], models["b"], [models["b"]])
    pool.awake("c", BUSY)
    assert price(it, models["a"], models["b"], [models["b"], models["c"]]) == alone / 2 > 0


def test_a_turn_is_awaited_also_where_an_engine_has_to_end_beside_it() -> None:
    """Its requests were told that nothing would do, until the turn was over."""
    pool = Pool("abc", sizes={"a": 60, "b": 90, "c": 60})
    pool.machine.models["c"].learned = e.Learned(asleep={GPU: 20})
    pool.weights(0)
    pool.awake("a", BUSY)
    pool.wants("b")
    assert pool.wishes() == []
    assert "its turn comes after that of a" in outlooks(pool.machine.picture, {}, pool.now)["b"].why
    pool.advance(200)
    assert pool.wishes() == [("end", "c"), ("sleep", "a"), ("wake", "b")]


@pytest.mark.parametrize("host_left", [20, 0])
def test_a_turn_is_awaited_rather_than_more_weights_dropped_or_an_engine_ended(host_left: int) -> None:
    """Beside it the weights of b are parked, or those of d dropped: then d stays, or c needn't load again."""
    pool = Pool("abcdw", sizes={"a": 30, "b": 10, "c": 10, "d": 10, "w": 70})
    for name in "bd" if host_left else "d":
        pool.launcher(**{name: e.Child(name == "b", ends=name == "d")})
    pool.machine.models["c"].learned = e.Learned(asleep={GPU: 20} if not host_left else {e.HOST: 1})
    pool.weights(host_left, {}, d=20, **({"b": 20} if host_left else {}))
    pool.awake("a", BUSY)
    pool.wants("w")
    assert pool.wishes() == []
    assert "its turn comes after that of a" in outlooks(pool.machine.picture, {}, pool.now)["w"].why
    pool.advance(200)
    assert pool.wishes()[0] == ("sleep", "a")
