"""What doors and people are told, and how the demand of several doors is one."""

import math
from typing import Any

import pytest
from prometheus_client import generate_latest

from pool.entries import ModelDemand, State
from pool.rules import events as e
from pool.rules import view
from pool.rules.messages import Listing
from pool.rules.model import Demand, averaged, merged
from pool.rules.turns import BEGIN_S
from pool.shell.metrics import Metrics, held
from sidecar.terminal.names import is_meant
from tests.k8s import queries
from tests.pool.harness import GPU, Pool
from vram.shell.metrics import Metrics as LedgerMetrics

BUSY = ModelDemand(streaming=1)


def seen(pool: Pool) -> dict[str, Any]:
    return view.outlooks(pool.machine.picture, {"a": "/run/a"}, pool.now)


def spent(pool: Pool) -> None:
    """No swap is saved up."""
    for _ in range(2):
        pool.machine.picture.budget.spend([GPU], 0.9, pool.now, borrows=True)


def test_the_demands_of_several_doors_are_added_and_the_most_urgent_counts() -> None:
    first = ModelDemand(waiting=1, streaming=2, oldest_wait_ms=500, deadline_in_ms=3000, priority=2, served=3)
    second = ModelDemand(
        paused=4, oldest_wait_ms=2000, deadline_in_ms=1000, priority=-1, keep_alive_s=9.0, served=1, turn_ms=5000
    )
    both = merged([(10.0, first), (11.0, second)], 5)
    assert both == Demand(1, 2, 4, since=9.0, deadline=12.0, priority=-1, keep_alive_s=9.0, served=4, turn_s=5.0)
    assert merged([(11.0, second), (10.0, first)], 5) == both
    assert merged([], 5) == Demand(priority=5)
    idle = merged([(10.0, ModelDemand(served=2, priority=-3, oldest_wait_ms=9))], 5)
    assert (idle.priority, idle.since, idle.busy) == (5, math.inf, False), (
        "one that has nothing says nothing of urgency"
    )
    longest = [(1.0, ModelDemand(keep_alive_s=s)) for s in (3.0, 7.0, 5.0)]
    assert merged(longest, 0).keep_alive_s == 7.0


def test_a_measurement_is_one_among_those_before() -> None:
    assert averaged(None, 2.0) == averaged(math.inf, 2.0) == 2.0 and averaged(1.0, 2.0) == pytest.approx(1.3)


def test_an_estimate_is_what_is_still_to_be_done() -> None:
    pool = Pool("abc", sizes=dict.fromkeys("abc", 30))
    assert seen(pool)["a"].estimate_ms == 600
    pool.wants("a")
    pool.now += 0.4
    assert (seen(pool)["a"].estimate_ms, seen(pool)["a"].why) == (200, "waking")
    pool.now += 5
    assert seen(pool)["a"].estimate_ms == 0, "it is late"
    pool.wakes("a")
    found = seen(pool)["a"]
    assert (found.state, found.estimate_ms, found.turn, found.run_dir, found.why) == (State.AWAKE, 0, 0, "/run/a", "")
    pool.launcher(b=e.Child(False))
    assert seen(pool)["b"].estimate_ms == 30_600 and "the first request starts one" in seen(pool)["b"].why
    pool.wants("b")
    pool.launcher(b=e.Child(True))
    pool.lock("b", resting=True)
    pool.now += 10
    assert (seen(pool)["b"].state, seen(pool)["b"].estimate_ms) == (State.LOADING, 20_600)
    pool.now += 50
    assert seen(pool)["b"].estimate_ms == 600, "it is late, too"
    pool.machine.models["c"].failed("no", pool.now)
    assert (seen(pool)["c"].why, seen(pool)["c"].estimate_ms) == ("no", 1000), "it is refused until then"


def test_who_waits_for_a_turn_is_told_how_long_and_for_whom() -> None:
    pool = Pool("abc", drain_s=0.0)
    pool.awake("a", BUSY)
    spent(pool)
    assert seen(pool)["b"].estimate_ms == pytest.approx(9900, abs=10), "also who has no request yet: 9 s, and a swap"
    assert seen(pool)["b"].why == "asleep"
    pool.wants("b", oldest_wait_ms=100)
    pool.wants("c")
    found = seen(pool)
    assert [found[name].turn for name in "abc"] == [0, 1, 2]
    assert found["b"].estimate_ms == pytest.approx(9900, abs=10)
    assert found["c"].estimate_ms > found["b"].estimate_ms
    assert found["b"].why == "first in the queue: its turn comes after that of a"
    assert found["c"].why == "second in the queue: those before it in the queue come first"
    assert view.quantum(pool.machine.picture) == pytest.approx(2 * 9.0)
    pool.room(None)
    assert "the ledger doesn't answer" in seen(pool)["b"].why and view.quantum(pool.machine.picture) == 0
    pool.room()
    pool.now += 100
    assert (seen(pool)["b"].why, seen(pool)["b"].turn) == ("asleep", 1), "its turn has come"


def test_one_that_loads_is_told_of_no_turn_yet_and_one_that_is_awake_of_no_room() -> None:
    pool = Pool(drain_s=0.0)
    pool.launcher(b=e.Child(False))
    pool.awake("a", BUSY)
    pool.machine.models["b"].learned = e.Learned(wake_s=0.6, load_s=30.0, asleep={e.HOST: 1})
    pool.wants("b")
    pool.launcher(b=e.Child(True))
    pool.lock("b", resting=True)
    spent(pool)
    assert (seen(pool)["b"].why, seen(pool)["b"].estimate_ms) == ("loading", 30_600)
    pool.room(50)
    assert (seen(pool)["a"].why, seen(pool)["a"].estimate_ms) == ("", 0)


def test_one_that_no_request_needs_has_no_turn() -> None:
    pool = Pool(entries={"b": {"pin": True}}, heard=False)
    pool.door(a=BUSY)
    pool.lock("a", resting=False, held=True, serving=True)
    pool.lock("b")
    assert (seen(pool)["b"].why, seen(pool)["b"].turn) == ("asleep", 0)


def test_the_quantum_goes_by_how_many_fit_together() -> None:
    pool = Pool("abcd", sizes=dict.fromkeys("abcd", 45), drain_s=0.0)
    assert view.quantum(pool.machine.picture) == 0
    for name in "ab":
        pool.awake(name, BUSY)
    assert view.quantum(pool.machine.picture) == 0, "two fit"
    for name in "cd":
        pool.wants(name)
    pool.machine.models["a"].learned = e.Learned(wake_s=0.6, sleep_s=0.3, park_s=50.0)
    assert view.quantum(pool.machine.picture) == pytest.approx(9.0), "nothing is parked"


@pytest.mark.parametrize(
    ("sizes", "here", "parked", "room", "swaps"),
    [
        ((90, 20, 20), {}, {}, (100, 0), 2),  # the largest is awake together with none
        ((500, 60, 0), {}, {}, (100, 0), 1),
        ((20, 20, 20), {"a": 30, "b": 30}, {"c": 30}, (100, 100), 1),  # weights that can be parked go with their models
        ((20, 20, 20), {"a": 30, "b": 30}, {"c": 60}, (100, 100), 2),
        ((20, 20, 0), {"a": 30, "b": 30}, {}, (100, 0), 0),  # these stay
        ((20, 20, 0), {"a": 30, "b": 30}, {}, (90, 0), 1),
        ((20, 20, 0), {"w": 30}, {}, (80, 100), 0),  # and what two share is there once
    ],
)
def test_how_many_fit_together_goes_by_weights_too(
    sizes: tuple[int, ...], here: dict[str, int], parked: dict[str, int], room: tuple[int, int], swaps: int
) -> None:
    entries = {name: {"weights": "w"} for name in "ab" if "w" in here}
    pool = Pool("abc", sizes=dict(zip("abc", sizes, strict=True)), entries=entries)
    pool.room(room[0])
    pool.weights(room[1], parked, **here)
    pool.door(**{name: BUSY for name, size in zip("abc", sizes, strict=True) if size})
    assert view.quantum(pool.machine.picture) == pytest.approx(swaps * 9.0)


def test_turns_are_those_of_a_models_own_devices() -> None:
    pool = Pool("abcdef", on=dict.fromkeys("cd", "another") | dict.fromkeys("ef", "a third"), drain_s=0.0)
    slow = e.Learned(wake_s=6.0, sleep_s=3.0)
    pool.machine.models["c"].learned = pool.machine.models["d"].learned = slow
    for name in "ab":
        pool.wants(name)
    assert view.quantum(pool.machine.picture) == pytest.approx(9.0)
    for name in "cdef":
        pool.wants(name)
    assert view.quantum(pool.machine.picture) == pytest.approx(90.0), "the longest of them"
    pool.wants("f", turn_ms=100_000)
    assert view.quantum(pool.machine.picture) == 100.0, "what begins anew has a longer one"


def test_one_long_turn_is_in_the_estimate_once() -> None:
    """A request behind several was refused for its deadline as if each of them had it."""
    pool = Pool("abcd", drain_s=0.0)
    pool.awake("a", ModelDemand(streaming=1, turn_ms=100_000))
    pool.machine.picture.budget.spend([GPU], 1.8, pool.now, borrows=True)
    for name in "bcd":
        pool.wants(name)
    assert [seen(pool)[name].turn for name in "bcd"] == [1, 2, 3]
    assert view.quantum(pool.machine.picture) == pytest.approx(100.0 + 2 * 9.0)
    estimate_ms = seen(pool)["d"].estimate_ms
    assert estimate_ms is not None and estimate_ms / 1000 == pytest.approx(100.0 + 2 * 9.0 + 0.9)


def test_how_soon_one_could_be_answered_that_would_be_too_late_otherwise_is_told_and_kept() -> None:
    """Its deadline would shorten another's turn, but by the estimate for all the others it was refused at once."""
    pool = Pool("abc", sizes={"c": 10})
    pool.awake("a", ModelDemand(streaming=1, turn_ms=100_000))
    pool.advance(1)
    spent(pool)
    assert seen(pool)["b"].estimate_ms == pytest.approx(99_900, abs=10) and seen(pool)["b"].soonest_ms == 1900
    assert (seen(pool)["a"].soonest_ms, seen(pool)["c"].soonest_ms) == (None, None), "nothing is in their way"
    pool.wants("b", deadline_in_ms=seen(pool)["b"].soonest_ms)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")]


@pytest.mark.parametrize("waits", [False, True])
def test_while_another_wakes_its_turn_is_in_the_estimate_too(waits: bool) -> None:
    """What a request would wait was only as long as a swap takes, and what the door took for that wasn't kept."""
    pool = Pool("ab")
    pool.wants("a")
    pool.feed(e.LockAnswered("a", True))
    pool.lock("a", resting=False, held=True)
    spent(pool)
    if waits:
        pool.wants("b")
    told = seen(pool)["b"]
    assert told.estimate_ms == pytest.approx(9000 + 900, abs=1000) and told.soonest_ms < 4000
    until = pool.now + told.soonest_ms / 1000
    pool.wants("b", deadline_in_ms=told.soonest_ms)
    pool.wakes("a")
    pool.wants("a", waiting=0, streaming=1)
    pool.wishes()
    pool.advance(until - 0.9 - pool.now)
    assert pool.wishes() == [("sleep", "a"), ("wake", "b")], "it is kept"


def test_one_whose_engine_has_died_has_no_turn_that_is_in_an_estimate() -> None:
    pool = Pool("ab")
    pool.awake("a", BUSY)
    spent(pool)
    pool.lock("a", resting=False)
    assert pool.state("a") is State.WAKING and seen(pool)["b"].estimate_ms < 1000 * (BEGIN_S + 2)


def test_one_that_would_be_too_late_otherwise_comes_after_those_that_are_more_urgent() -> None:
    pool = Pool("abc")
    pool.awake("a", BUSY)
    pool.advance(1)
    spent(pool)
    pool.wants("b")
    estimate_ms = seen(pool)["c"].estimate_ms
    assert seen(pool)["c"].soonest_ms == 1900 < estimate_ms, "it goes before one that is as urgent"
    pool.awake("a", BUSY)
    pool.wants("b", priority=-1)
    assert seen(pool)["c"].soonest_ms is None


def test_what_is_missing_is_said_in_bytes_and_what_cant_be_has_no_turn() -> None:
    pool = Pool("ab", sizes={"a": 500})
    pool.wants("a")
    assert seen(pool)["a"].turn == 0
    pool = Pool("ab", sizes={"a": 60, "b": 60}, entries={"a": {"pin": True}})
    pool.wakes("a")
    pool.wants("b")
    assert seen(pool)["b"].why == "first in the queue: 20 bytes of gpu are missing: a is pinned"
    assert (seen(pool)["b"].turn, seen(pool)["b"].estimate_ms) == (1, None), "none can say when it is unpinned"
    pool = Pool("abc", sizes={"a": 30, "b": 60, "c": 60}, entries={"a": {"pin": True}})
    pool.wakes("a")
    pool.wants("b")
    pool.lock("b", resting=False, held=True)  # it wakes, and can't be put to sleep before it has
    pool.wants("c")
    assert seen(pool)["c"].why.endswith("its turn comes after that of b"), "it isn't the pinned one that is in the way"
    assert seen(pool)["c"].estimate_ms is not None
    pool = Pool("ab", sizes=dict.fromkeys("ab", 60))
    pool.awake("a")
    pool.lock("a", away=True)
    pool.wants("b")
    assert seen(pool)["b"].why == "first in the queue: 20 bytes of gpu are missing: the lock of a doesn't answer"
    assert seen(pool)["b"].estimate_ms is None


@pytest.mark.parametrize("on", [{}, {"a": "another"}], ids=["beside it", "elsewhere"])
def test_one_that_is_pinned_is_not_in_the_way_of_what_waits_for_another_to_load(on: dict[str, str]) -> None:
    pool = Pool("abc", sizes={"a": 20}, on=on, entries={"a": {"pin": True}}, running=False, began=e.Began({}))
    pool.launcher(a=e.Child(True))
    pool.lock("a")
    pool.wakes("a")
    pool.wants("b")
    pool.launcher(b=e.Child(True))
    pool.wants("c")
    assert (pool.state("a"), pool.state("b"), pool.state("c")) == (State.AWAKE, State.LOADING, State.OFF)
    assert seen(pool)["c"].why.endswith(f"{20 if on else 40} bytes of gpu are missing")
    assert seen(pool)["c"].estimate_ms is not None


def test_a_model_without_an_engine_says_so() -> None:
    pool = Pool()
    pool.awake("a", BUSY)
    pool.lock("a", resting=False)
    assert seen(pool)["a"].why == view.DIED
    pool.launcher(a=e.Child(True, why="no such file"))
    assert seen(pool)["a"].why == f"{view.DIED}: no such file"
    pool.lock("a", resting=False, held=True, token=9)
    assert (seen(pool)["a"].why, seen(pool)["a"].token) == ("waking", 9)


def test_one_that_lacks_what_another_gives_back_for_it_has_an_estimate() -> None:
    pool = Pool()
    pool.awake("a")
    pool.wants("b")
    pool.room(100, b=20)
    assert pool.machine.models["b"].awaits and seen(pool)["b"].estimate_ms == 600


def test_a_standby_that_isnt_ready_and_memory_that_isnt_coming_are_said() -> None:
    pool = Pool("ab", entries={"a": {"standby": True}})
    assert "isn't ready" not in seen(pool)["a"].why
    pool.lock("a", resting=True)
    assert seen(pool)["a"].why == "loading"
    pool.lock("a", resting=True, ready=True)
    pool.wants("a")
    pool.room(100, a=20)
    assert seen(pool)["a"].estimate_ms is None, "another program has it, and nothing of ours goes for it"
    pool.room()
    assert seen(pool)["a"].estimate_ms == 600
    pool.wakes("a")
    assert seen(pool)["a"].why == "its standby isn't ready yet"
    pool.lock("a", resting=False, held=True, serving=True, ready=True)
    assert seen(pool)["a"].why == ""


def test_people_see_what_each_model_has_and_had() -> None:
    pool = Pool("ab", entries={"a": {"aliases": ["gpt"], "priority": 2}})
    pool.feed(e.LedgerSeen({GPU: 100}, {"b": {GPU: 55}}))
    pool.launcher(b=e.Child(False))
    pool.awake("a", BUSY)
    pool.advance(10)
    pool.lock("a", resting=False, held=True, serving=True, port=80)
    pool.machine.models["b"].learned = e.Learned(asleep={GPU: 5})
    first, second = view.shown(pool.machine.picture, seen(pool), 1_000_000.0, pool.now)
    assert (first.name, first.state, first.streaming, first.swaps, first.aliases) == ("a", State.AWAKE, 1, 1, ["gpt"])
    assert (first.bytes, second.bytes) == ({GPU: 60}, {GPU: 55}) and first.awake_s == pytest.approx(10.0)
    assert (first.last_used, second.last_used) == ("1970-01-12T13:46:30.000Z", None)
    assert (first.pinned, first.priority, first.port, second.port) == (False, 2, 80, None)
    assert (first.asleep_bytes, second.asleep_bytes, second.awake_s) == ({}, {GPU: 5}, 0.0)
    assert (first.wanted, second.wanted) == (False, False)
    pool.asks("pin", "b")
    assert view.shown(pool.machine.picture, seen(pool), 0.0, pool.now)[1].wanted
    pool.asks("sleep", "b")
    assert not view.shown(pool.machine.picture, seen(pool), 0.0, pool.now)[1].wanted
    pool.wants("a", waiting=0, paused=3)
    pool.wants("a", waiting=0, paused=1, streaming=2, oldest_wait_ms=4000)
    pool.advance(1)
    pool.machine.models["a"].failed("no", pool.now)
    first = view.shown(pool.machine.picture, seen(pool), 0.0, pool.now)[0]
    assert (first.pauses, first.failures, first.waited_s, second.waited_s) == (3, 1, 5.0, 0.0)
    served = Metrics()
    served.listing = Listing(models=[first])
    assert 'failover_pool_oldest_wait_seconds{model="a"} 5.0' in generate_latest(served.registry).decode()


def test_a_model_that_has_failed_has_the_memory_of_its_engine_that_sleeps_or_none() -> None:
    """One that couldn't be started was said to have what it would have asleep."""
    pool = Pool("a")
    pool.machine.models["a"].learned = e.Learned(asleep={GPU: 5})

    def shown() -> dict[str, int]:
        one = view.shown(pool.machine.picture, seen(pool), 0.0, pool.now)[0]
        assert one.state is State.FAILED
        return held(one)

    pool.machine.models["a"].failed("it woke into rubbish", pool.now)
    assert shown() == {GPU: 5}
    pool.launcher(a=e.Child(False, 1, "it can't be started"))
    assert shown() == {}


def test_what_alerts_and_dashboard_ask_of_the_pool_is_served() -> None:
    pool, served = Pool("ab"), Metrics()
    served.listing = Listing(models=view.shown(pool.machine.picture, seen(pool), 0.0, pool.now))
    pages = [generate_latest(each.registry).decode() for each in (served, LedgerMetrics())]
    assert queries.unserved(pages, "pool|vram") == [] != queries.unserved(pages[:1], "pool|vram")


def test_near_names_are_offered() -> None:
    assert is_meant("Chta", ["chat", "other"]) == "; is chat meant?" and is_meant("x", ["chat"]) == ""


def test_what_takes_more_than_there_is_says_so_and_no_estimate_promises_what_cant_be() -> None:
    pool = Pool("ab", sizes={"a": 60, "b": 60})
    pool.feed(e.LedgerSeen({GPU: 50}, foreign={GPU: 41}))
    pool.wants("a")
    for name in "ab":
        said = seen(pool)[name]
        assert said.estimate_ms is None and "60 bytes of gpu" in said.why and "may have 50" in said.why
        assert "41 bytes are in use without a lease" in said.why and said.why.endswith("nor weights")
    pool.machine.models["a"].learned = e.Learned(bytes={"another": 1, GPU: 60})
    pool.feed(e.LedgerSeen({"another": 100, GPU: 50}))
    assert "60 bytes of gpu" in seen(pool)["a"].why


def test_doors_are_told_by_what_the_weights_of_its_engines_are_told_from_others() -> None:
    """What else they were started with changes no answer that has begun."""
    pool = Pool()
    assert seen(pool)["a"].loaded == ""
    pool.launcher(a=e.Child(True, runs_as="weights.rest"))
    assert seen(pool)["a"].loaded == "weights"
