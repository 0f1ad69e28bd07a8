"""What the pool's machine makes of what it is told: measures, counts, and what is to be saved and published."""

import math
from typing import Any

import pytest

from pool.entries import ModelDemand, State
from pool.rules import events as e
from pool.rules.machine import SHARE_OF_S
from pool.rules.model import Model
from tests.pool.harness import GPU, Pool

BUSY = ModelDemand(streaming=1)


def learned(pool: Pool, name: str = "a") -> e.Learned:
    return pool.machine.models[name].learned


def model(pool: Pool, name: str = "a") -> Model:
    return pool.machine.models[name]


def said(pool: Pool) -> set[str]:
    """What is to be done with what it knows, since the last time that this was asked."""
    found = {type(one).__name__ for one in pool.out if isinstance(one, (e.Save, e.Publish))}
    pool.out.clear()
    return found


def notes(pool: Pool) -> list[tuple[str, dict[str, Any]]]:
    return [(one.event, one.detail) for one in pool.out if type(one).__name__ == "Note"]


# -- models.yaml ---------------------------------------------------------------------------------------------------


def test_names_that_are_new_are_saved_and_each_reading_of_the_file_is_published() -> None:
    pool = Pool("ab")
    said(pool)
    pool.configure("ab")
    assert said(pool) == {"Publish"}
    pool.sizes["c"] = 60
    pool.configure("abc")
    assert said(pool) == {"Publish", "Save"}
    pool.host = {"swap_share": 0.25}
    pool.configure("abc")
    assert pool.machine.picture.budget.share == 0.25


def test_a_model_that_was_put_into_the_file_has_what_doors_have_for_it_already() -> None:
    pool = Pool("ab")
    pool.wants("c")
    pool.sizes["c"] = 60
    pool.configure("abc")
    assert pool.wishes() == [("start", "c")]


def test_another_entry_is_tried_at_once_however_often_the_one_before_has_failed() -> None:
    pool = Pool(running=False)
    pool.wants("a")
    pool.launcher(a=e.Child(False, ends=1, why="no such model"))
    assert pool.state("a") is State.FAILED
    pool.wishes()
    pool.entries = {"a": {"arguments": ["another"]}}
    pool.configure("ab")
    assert pool.wishes() == [("start", "a")] and model(pool).failures == 0


def test_what_was_started_and_doesnt_run_yet_is_outdated_by_another_entry_too() -> None:
    pool = Pool(running=False)
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]
    pool.entries = {"a": {"arguments": ["another"]}}
    pool.configure("ab")
    assert model(pool).outdated
    pool.configure("ab")
    assert model(pool).outdated, "the same entry again changes nothing of that"


def test_a_pin_of_the_file_undoes_a_persons_only_when_it_changes() -> None:
    pool = Pool()
    pool.asks("pin", "a")
    said(pool)
    pool.configure("ab")
    assert model(pool).pinned and said(pool) == {"Publish"}
    pool.entries = {"a": {"pin": True}}
    pool.configure("ab")
    assert model(pool).pinned and said(pool) == {"Publish", "Save"}, "it is the file's again"
    pool.entries = {}
    pool.configure("ab")
    assert not model(pool).pinned and "Save" not in said(pool), "there was no person's any more"


# -- doors ---------------------------------------------------------------------------------------------------------


def test_what_a_door_had_is_over_when_it_is_gone_and_one_that_said_nothing_changes_nothing() -> None:
    pool = Pool()
    pool.wants("a")
    said(pool)
    pool.feed(e.Closed(7))
    assert said(pool) == set() and model(pool).demand.wants
    pool.feed(e.Closed(1))
    assert said(pool) == {"Publish"} and not model(pool).demand.wants


def test_a_door_that_says_the_same_again_is_no_news() -> None:
    pool = Pool()
    pool.awake("a", BUSY)
    said(pool)
    used_at = model(pool).used_at
    pool.now += 5
    pool.door(a=BUSY)
    assert said(pool) == set() and model(pool).used_at == used_at
    pool.door(a=ModelDemand(streaming=2))
    assert said(pool) == {"Publish"} and model(pool).used_at == pool.now


def test_a_model_is_used_as_long_as_it_has_requests_and_when_one_was_answered_in_between() -> None:
    pool = Pool(running=False)
    pool.door(a=ModelDemand(waiting=1))
    pool.now += 5
    pool.door(a=ModelDemand())
    assert model(pool).used_at == pool.now, "until it had none"
    pool.now += 5
    pool.door(a=ModelDemand(served=1))
    assert model(pool).used_at == pool.now
    pool.now += 5
    pool.door(a=ModelDemand(served=1, keep_alive_s=3.0))
    assert model(pool).used_at == pool.now - 5, "that is no use of it"
    pool.door(a=ModelDemand())
    assert model(pool).used_at == pool.now - 5, "nor is another door, which counts from 0"


def test_how_soon_the_next_request_comes_is_measured_from_the_end_of_the_last_one() -> None:
    pool = Pool(running=False)
    pool.door(a=ModelDemand(waiting=1))
    assert model(pool).gap_s == math.inf, "it is the first"
    pool.now += 5
    pool.door(a=ModelDemand(waiting=2))
    pool.door()
    assert model(pool).gap_s == math.inf
    pool.now += 4
    pool.door(a=ModelDemand(waiting=1))
    assert model(pool).gap_s == 4.0


@pytest.mark.parametrize(
    ("demand", "begun"), [(BUSY, True), (ModelDemand(served=1), True), (ModelDemand(keep_alive_s=1.0), False)]
)
def test_a_model_has_begun_once_a_request_is_at_its_engine_or_was_answered(demand: ModelDemand, begun: bool) -> None:
    pool = Pool()
    pool.door(a=demand)
    assert not model(pool).begun, "it isn't awake"
    pool.door()
    pool.wakes("a")
    assert not model(pool).begun
    pool.door(a=demand)
    assert model(pool).begun == begun


def test_that_a_model_is_kept_asleep_ends_with_a_request_and_that_is_saved() -> None:
    pool = Pool()
    pool.asks("sleep", "a")
    said(pool)
    pool.door(a=ModelDemand(keep_alive_s=1.0))
    assert model(pool).kept_asleep and "Save" not in said(pool)
    pool.door(a=ModelDemand(waiting=1))
    assert not model(pool).kept_asleep and "Save" in said(pool)
    pool.wakes("a")
    said(pool)
    pool.door(a=ModelDemand(waiting=1, streaming=1))
    assert said(pool) == {"Publish"}, "nothing of it is to be saved again"


# -- locks ---------------------------------------------------------------------------------------------------------


def test_time_awake_ends_with_each_engine_and_a_sleep_is_measured_from_the_end_of_the_last_answer() -> None:
    pool = Pool(costs=(0.6, 0.3))
    pool.wants("a")
    pool.wakes("a", after=0.0)
    pool.lock("a", resting=False, held=True, serving=True, token=1)
    pool.now += 10
    pool.lock("a", resting=False, held=True, serving=True, token=2)
    assert model(pool).awake_s == 10.0 and model(pool).since == pool.now, "its standby serves"
    pool.door()
    pool.now += 3
    pool.asks("sleep", "a")
    assert model(pool).awake_s == 13.0
    pool.now += 4
    pool.lock("a", resting=False, held=True, draining=True, token=2)
    pool.now += 4
    pool.lock("a", resting=False, held=True, draining=True, giving_back=True, token=2)
    pool.now += 1
    pool.lock("a", resting=False, held=True, draining=True, giving_back=True, token=2)
    pool.now += 1
    pool.lock("a", resting=True, held=True, token=2)
    assert pool.state("a") is State.DRAINING, "its holder still has the lock"
    pool.lock("a", resting=True, ready=True, token=2)
    assert learned(pool).sleep_s == pytest.approx(0.3 + 0.3 * (2.0 - 0.3)) and pool.state("a") is State.ASLEEP


def test_whether_a_wish_was_heard_isnt_known_once_the_lock_is_away_and_a_start_doesnt_depend_on_it() -> None:
    pool = Pool()
    pool.wants("a")
    pool.lock("a", away=True)
    assert model(pool).wish.value == "none" and pool.state("a") is State.ASLEEP
    pool = Pool(running=False)
    pool.wants("a")
    pool.lock("a", away=True)
    assert pool.state("a") is State.LOADING


def test_a_wake_is_a_failure_only_where_it_was_taken_and_no_engine_has_the_lock_any_more() -> None:
    pool = Pool()
    pool.wants("a")
    pool.feed(e.LockAnswered("a", True))
    pool.lock("a", resting=True, held=True)
    assert model(pool).failures == 0
    pool.lock("a", resting=True, ready=True)
    assert model(pool).why_failed == "its lock is at rest again"


def test_one_that_serves_has_no_failures_any_more_and_is_measured_only_while_it_serves() -> None:
    pool = Pool()
    pool.wants("a")
    pool.feed(e.LockAnswered("a", True))
    pool.lock("a", resting=True, ready=True)
    assert model(pool).failures == 1
    pool.advance(1)
    pool.feed(e.LedgerSeen({GPU: 100}, {"a": {GPU: 50}}, {}))
    assert learned(pool).bytes == {}
    pool.wakes("a")
    assert (model(pool).failures, learned(pool).bytes) == (0, {GPU: 50}), "as it serves"
    pool.out.clear()
    pool.feed(e.LedgerSeen({GPU: 100}, {"a": {GPU: 50}}, {}))
    assert said(pool) == {"Publish"}, "the same again isn't saved"
    pool.feed(e.LedgerSeen({GPU: 100}, {"a": {GPU: 55}}, {}))
    assert learned(pool).bytes == {GPU: 55} and said(pool) == {"Publish", "Save"}
    pool.feed(e.LedgerSeen({GPU: 100}, {}, {}))
    assert learned(pool).bytes == {GPU: 55}, "what isn't said is no measure"


def test_a_wish_that_is_refused_is_said_and_what_wasnt_wished_is_none() -> None:
    pool = Pool()
    pool.awake("a")
    pool.feed(e.LockAnswered("a", False, "no"))
    assert notes(pool) == [] and model(pool).sleep_at == -math.inf
    pool.feed(e.LockAnswered("x", False, "no"))
    pool.asks("sleep", "a")
    pool.out.clear()
    pool.feed(e.LockAnswered("a", False, "it drains"))
    assert notes(pool) == [("sleep_refused", {"model": "a", "why": "it drains"})]
    pool.feed(e.LockAnswered("a", True))
    assert not model(pool).taken


# -- the ledger ----------------------------------------------------------------------------------------------------


def test_since_when_a_model_lacks_memory_is_since_it_lacks_any() -> None:
    pool = Pool()
    pool.wants("a")
    pool.room(a=20)
    since = model(pool).lacks_since
    assert since == pool.now
    pool.now += 2
    pool.room(a=10)
    assert model(pool).lacks_since == since
    pool.room()
    assert model(pool).lacks_since == math.inf


def test_what_a_model_has_asleep_is_measured_while_it_is_and_no_word_of_it_is_none() -> None:
    pool = Pool()
    pool.launcher(a=e.Child(True, host_bytes=10))
    assert learned(pool).asleep == {e.HOST: 10}
    pool.launcher(a=e.Child(True))
    assert learned(pool).asleep == {e.HOST: 10}
    pool.wants("a")
    pool.launcher(a=e.Child(True, host_bytes=90))
    assert learned(pool).asleep == {e.HOST: 10}, "it wakes"


# -- the launcher --------------------------------------------------------------------------------------------------


def test_while_the_launcher_is_away_a_start_may_be_under_way_or_not_and_a_wake_goes_on() -> None:
    pool = Pool("ab", sizes={"a": 40, "b": 40})
    pool.launcher(b=e.Child(False))
    pool.wants("a")
    pool.wants("b")
    assert (pool.state("a"), pool.state("b")) == (State.WAKING, State.LOADING)
    pool.feed(e.LauncherSeen(None))
    assert (pool.state("a"), pool.state("b")) == (State.WAKING, State.OFF)


def test_an_end_is_said_and_counted_once() -> None:
    pool = Pool()
    pool.out.clear()
    ended = e.Child(False, ends=1)
    pool.launcher(a=ended)
    assert notes(pool) == [("ended", {"model": "a"})]
    pool.out.clear()
    pool.launcher(a=ended)
    assert notes(pool) == []
    pool.launcher(a=e.Child(False, ends=2))
    assert notes(pool) == [("ended", {"model": "a"})], "it ran in between"


def test_an_end_that_was_asked_for_is_no_news_and_a_failure_says_when_it_is_tried_again() -> None:
    pool = Pool()
    pool.asks("stop", "a")
    pool.out.clear()
    pool.launcher(a=e.Child(False, ends=1))
    assert notes(pool) == []
    pool.launcher(b=e.Child(False, ends=1, why="no such model"))
    assert notes(pool) == [("failed", {"model": "b", "why": "no such model", "again_in_s": 1.0})]


def test_a_load_is_measured_from_its_wish_to_its_sleep() -> None:
    pool = Pool(running=False)
    pool.wants("a")
    pool.launcher(a=e.Child(True))
    pool.lock("a", resting=True)
    pool.now += 10
    pool.lock("a", resting=True, ready=True)
    assert learned(pool).load_s == pytest.approx(30 + 0.3 * (10 - 30))


# -- weights -------------------------------------------------------------------------------------------------------


def test_weights_are_measured_where_an_engine_has_all_of_them() -> None:
    pool = Pool()
    pool.weights(a=30)
    assert learned(pool).weights == {GPU: 30}
    pool.out.clear()
    pool.weights(a=30)
    assert said(pool) == set()
    pool.launcher(b=e.Child(False))
    pool.weights(a=30, b=20)
    assert learned(pool, "b").weights == {}


def test_what_was_parked_and_dropped_is_said() -> None:
    pool = Pool("ab", ageing_s=1e6)
    pool.weights(a=50)
    pool.wants("b")
    pool.now += 2
    assert pool.wishes() == [("park", "a")]
    pool.feed(e.ParkEnded("a"))
    assert ("parked", {"weights": "a", "bytes": 50}) in notes(pool) and learned(pool).park_s == 2.0
    pool = Pool("ab", running=False)
    pool.weights(0, a=50)
    pool.wants("b")
    assert pool.wishes() == [("drop", "a")]
    pool.feed(e.DropEnded("x"))
    assert notes(pool) == [], "it is no model's"
    pool.feed(e.DropEnded("a", "a process reads"))
    assert notes(pool)[0] == ("drop_failed", {"weights": "a", "why": "a process reads", "again_in_s": 1.0})
    pool.advance(1)
    pool.out.clear()
    pool.feed(e.DropEnded("a"))
    assert notes(pool)[0] == ("dropped", {"weights": "a"})
    assert model(pool).region.dropping.failures == 0


def test_what_couldnt_be_moved_is_tried_anew_once_its_gms_is_back_and_not_that_of_another() -> None:
    pool = Pool("ab", running=False)
    pool.weights(0, a=50)
    pool.wants("b")
    pool.feed(e.DropEnded("a", "a process reads"))
    pool.weights(0, a=50)
    assert model(pool).region.dropping.failures == 1, "it wasn't away"
    pool.feed(e.WeightsSeen(GPU, None, {}, 0))
    pool.feed(e.WeightsSeen("gpu2", {}, {}, 0))
    assert model(pool).region.dropping.failures == 1
    pool.weights(0, a=50)
    assert model(pool).region.dropping.failures == 0


def test_weights_that_no_model_has_any_more_are_dropped_once_each_gms_was_heard_and_what_fails_is_said() -> None:
    before = Pool("abc")
    pool = Pool("ab", running=False, began=before.machine.learned())
    assert pool.wishes() == [("end", "c")]
    pool.launcher(c=e.Child(False))
    pool.room()
    assert "c" in pool.machine.learned().names, "GMS may have something of it"
    pool.weights(c=20)
    assert pool.wishes() == [("drop", "c")]
    pool.feed(e.DropEnded("c", "a process reads"))
    assert ("drop_failed", {"weights": "c", "why": "a process reads", "again_in_s": 1.0}) in notes(pool)
    pool.advance(1)
    assert pool.wishes() == [("drop", "c")]
    said(pool)
    pool.feed(e.DropEnded("c"))
    assert ("dropped", {"weights": "c"}) in notes(pool) and "Save" in said(pool)
    assert "c" not in pool.machine.learned().names


def test_a_name_is_forgotten_once_each_gms_was_heard_to_have_nothing_of_it() -> None:
    pool = Pool("ab", running=False, began=Pool("abc").machine.learned())
    pool.launcher(c=e.Child(False))
    assert "c" in pool.machine.learned().names
    pool.weights()
    assert pool.machine.learned().names == ("a", "b")


def test_of_one_that_is_none_any_more_nothing_is_known_while_a_gms_that_was_heard_is_away() -> None:
    pool = Pool("ab", running=False, began=Pool("abc").machine.learned())
    pool.launcher(c=e.Child(False))
    pool.feed(e.WeightsSeen(GPU, {}, {"c": 20}, 0))
    pool.feed(e.WeightsSeen(GPU, None))
    pool.wishes()
    pool.feed(e.DropEnded("c", "GMS is away"))
    pool.advance(5)
    assert pool.wishes() == [] and "c" in pool.machine.learned().names
    pool.feed(e.WeightsSeen(GPU, {}, {"c": 20}, 0))
    assert pool.wishes() == [("drop", "c")]


# -- a person's word -----------------------------------------------------------------------------------------------


def test_a_persons_word_is_saved_and_published_and_a_wake_undoes_a_sleep() -> None:
    pool = Pool()
    said(pool)
    pool.asks("sleep", "a")
    assert said(pool) == {"Save", "Publish"} and model(pool).kept_asleep
    pool.asks("pin", "a")
    assert not model(pool).kept_asleep
    pool.asks("sleep", "a")
    assert pool.asks("wake", "a").status == 202 and not model(pool).kept_asleep
    pool.wakes("a")
    done = pool.asks("wake", "a")
    assert (done.status, done.detail, model(pool).asked_at) == (200, "a is awake", None)
    assert pool.asks("pin", "a").detail == "a is pinned" and pool.asks("unpin", "a").detail == "a is not pinned"


def test_what_cant_be_put_to_sleep_says_why_and_what_is_asleep_is_done() -> None:
    pool = Pool("ab")
    pool.feed(e.LedgerSeen(None))
    done = pool.asks("sleep", "a")
    assert done.status == 503 and "the ledger doesn't answer" in done.detail and not model(pool).kept_asleep
    pool.room()
    pool.lock("a", away=True)
    done = pool.asks("sleep", "a")
    assert (done.status, done.detail) == (503, "the lock of a doesn't answer")
    pool.lock("a")
    done = pool.asks("sleep", "a")
    assert (done.status, done.detail, model(pool).put_down) == (200, "a is put to sleep", False)
    pool.launcher(b=e.Child(False))
    done = pool.asks("stop", "b")
    assert (done.status, done.detail, model(pool, "b").outdated) == (200, "b is ended", "")
    pool.awake("a")
    done = pool.asks("stop", "a")
    assert (done.status, done.detail) == (202, "a is being ended")
    pool.sleeps("a")
    pool.launcher(a=e.Child(False, ends=1))
    pool.launcher(a=e.Child(True, ends=1))
    pool.lock("a", resting=True, ready=True)
    pool.awake("a", BUSY)
    done = pool.asks("sleep", "a")
    assert (done.status, done.detail) == (
        202,
        "a is being put to sleep; the requests that it has will wake it again",
    )


# -- what is done --------------------------------------------------------------------------------------------------


def test_answers_get_the_time_to_end_that_the_model_gives_them_or_the_host() -> None:
    for entry, drain_s in (({}, 7.0), ({"drain_s": 2.0}, 2.0)):
        pool = Pool(entries={"a": entry}, drain_s=7.0)
        pool.awake("a", BUSY)
        pool.asks("sleep", "a")
        assert [one.drain_s for one in pool.out if isinstance(one, e.Sleep)] == [drain_s]
    pool = Pool()
    pool.awake("a")
    pool.asks("sleep", "a")
    assert [one.drain_s for one in pool.out if isinstance(one, e.Sleep)] == [0.0], "it has none"


def test_a_swap_counts_for_the_share_of_time_for_ten_minutes_and_a_wake_that_displaces_none_doesnt() -> None:
    pool = Pool(costs=(0.6, 0.3))
    pool.awake("a")
    assert pool.machine.swapping_share(pool.now) == 0.0
    pool.wants("b")
    assert pool.machine.swapping_share(pool.now) == pytest.approx(0.9 / SHARE_OF_S)
    pool.now += SHARE_OF_S
    assert pool.machine.swapping_share(pool.now) == 0.0


def test_the_share_of_time_for_swaps_is_that_of_the_device_with_most_of_them() -> None:
    pool = Pool("abcd", costs=(0.6, 0.3), on=dict.fromkeys("cd", "another"))
    for name, other in ("ab", "cd"):
        pool.awake(name)
        pool.wants(other)
    assert len(pool.machine.swapped) == 2
    assert pool.machine.swapping_share(pool.now) == pytest.approx(0.9 / SHARE_OF_S)


def test_each_deed_is_said_with_what_it_is_done_for() -> None:
    pool = Pool()
    pool.awake("a")
    pool.wants("b")
    assert notes(pool) == [("wakes", {"model": "b", "for_it": "a"})]
    pool.out.clear()
    pool = Pool(running=False)
    pool.wants("a")
    assert notes(pool) == [("starts", {"model": "a"})]
    pool = Pool(entries={"a": {"keep_alive_s": 1.0}})
    pool.awake("a")
    pool.advance(5)
    assert ("sleeps", {"model": "a", "why": "its keep-alive is over"}) in notes(pool)
