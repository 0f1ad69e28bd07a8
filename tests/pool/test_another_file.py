"""Rule 13 of the pool (`pool/rules/machine.py`): what follows when models.yaml is another one."""

from typing import Any

import msgspec
import pytest

from pool.entries import Entry, ModelDemand, State
from pool.rules import events as e
from pool.rules.model import runs_as
from tests.pool.harness import GPU, Pool

BUSY = ModelDemand(streaming=1)


def test_a_model_that_was_taken_out_serves_what_it_has_and_ends() -> None:
    pool = Pool()
    pool.awake("a", BUSY)
    pool.configure("b")
    pool.advance(100)
    assert pool.wishes() == [] and pool.machine.models["a"].leaving
    pool.wants("a", waiting=0, served=1)
    assert pool.wishes() == [("sleep", "a")]
    pool.sleeps("a")
    assert pool.wishes() == [("end", "a")]
    pool.launcher(a=e.Child(False, ends=1))
    assert "a" not in pool.machine.models


def test_one_whose_entry_had_changed_serves_what_it_has_by_what_runs_when_it_is_taken_out() -> None:
    pool = Pool()
    pool.awake("a", BUSY)
    pool.entries = {"a": {"arguments": ["--preset", "large"]}}
    pool.configure("ab")
    pool.wants("a", waiting=0, paused=1)
    assert pool.wishes() == [("sleep", "a")]
    pool.configure("b")
    assert pool.wishes() == [("wake", "a")]


def begun_without(name: str, *, runs: bool) -> Pool:
    """A pool whose file doesn't name a model that the one before it had."""
    before = Pool("abc")
    assert set(before.machine.learned().names) == {"a", "b", "c"}
    pool = Pool("abc".replace(name, ""), running=False, began=before.machine.learned())
    assert pool.wishes() == [("end", name)], "its directory goes, if nothing else"
    pool.launcher(**{name: e.Child(runs)})
    return pool


def test_what_is_left_of_a_model_that_was_taken_out_before_this_pool_began_is_ended_and_then_dropped() -> None:
    pool = begun_without("c", runs=True)
    pool.weights(c=20, other=30)
    pool.advance(60)
    assert pool.wishes() == [], "it was told once, and its processes have its weights"
    pool.feed(e.LauncherSeen(None))
    pool.launcher()
    assert pool.wishes() == [("end", "c")], "whether it was heard wasn't known"
    pool.launcher(c=e.Child(False, ends=1))
    assert pool.wishes() == [("drop", "c")], "and no region of another program"
    pool.feed(e.DropEnded("c", "a process reads"))
    assert pool.wishes() == []
    pool.advance(1)
    assert pool.wishes() == [("drop", "c")]
    pool.feed(e.DropEnded("c"))
    pool.weights(other=30)
    pool.advance(600)
    assert pool.wishes() == [] and set(pool.machine.learned().names) == {"a", "b"}


def test_nothing_is_dropped_of_what_no_pool_had_nor_while_gms_is_away_nor_of_one_that_is_back() -> None:
    pool = begun_without("c", runs=False)
    pool.feed(e.WeightsSeen(GPU, None))
    pool.advance(60)
    assert pool.wishes() == [] and "c" in pool.machine.learned().names, "what GMS has of it isn't known yet"
    pool.sizes["c"] = 20
    pool.configure("abc")
    pool.weights(parked={"c": 20}, d=20)
    pool.advance(60)
    assert pool.wishes() == []
    pool.configure("ab")
    assert pool.wishes() == [("end", "c"), ("drop", "c")]


def test_one_that_is_back_in_the_file_while_it_ends_is_no_model_without_an_engine() -> None:
    """Its weights were to be parked while it served."""
    pool = begun_without("c", runs=True)
    pool.weights(c=20)
    pool.sizes["c"] = 20
    pool.configure("abc")
    assert pool.state("c") is State.LOADING, "its lock hasn't been heard"
    pool.sizes["a"] = 90
    pool.configure("abc")
    pool.wants("a")
    assert pool.wishes() == []
    pool.launcher(c=e.Child(False, ends=1))
    assert pool.wishes() == [("park", "c")]


def test_of_a_device_that_no_gms_serves_nothing_is_awaited_before_weights_are_dropped_elsewhere() -> None:
    pool = begun_without("c", runs=False)
    pool.feed(e.LedgerSeen({GPU: 100, "another": 100}))
    pool.weights(c=20)
    assert pool.wishes() == [("drop", "c")]


def test_what_runs_and_no_pool_knows_any_more_is_ended_as_the_launcher_starts_what_pools_say() -> None:
    pool = Pool()
    pool.launcher(lost=e.Child(True))
    assert pool.wishes() == [("end", "lost")]


@pytest.mark.parametrize("word", ["--preset", "--max-batch"])
def test_one_whose_entry_has_changed_is_started_with_the_new_one_and_its_answers_are_paused(word: str) -> None:
    pool = Pool(running=True)
    pool.awake("a", BUSY)
    runs = runs_as(pool.machine.models["a"].rules.entry)
    pool.launcher(a=e.Child(True, runs_as=runs))
    pool.weights(a=10)
    pool.entries = {"a": {"arguments": [word, "8"]}}
    pool.configure("ab")
    assert pool.wishes() == [("sleep", "a")]
    pool.wants("a", waiting=0, paused=1)
    pool.sleeps("a")
    assert pool.wishes() == [("end", "a")]
    pool.launcher(a=e.Child(False, ends=1, runs_as=runs))
    if word == "--preset":
        assert pool.wishes() == [("drop", "a")], "its weights follow from that"
        pool.feed(e.DropEnded("a"))
    assert pool.wishes() == [("start", "a")]


def test_one_that_a_pool_before_has_started_with_an_older_entry_is_ended_and_started_with_the_new_one() -> None:
    pool = Pool("abc", entries={name: {"preload": True} for name in "abc"}, heard=False)
    entry = pool.machine.models["a"].rules.entry
    older = msgspec.structs.replace(entry, arguments=["older"])
    same = msgspec.structs.replace(entry, priority=7)
    pool.launcher(a=e.Child(True, runs_as=runs_as(older)), b=e.Child(True, runs_as=runs_as(same)))
    for name in "abc":
        pool.lock(name)
    assert pool.wishes() == [("end", "a")], "of c it isn't known"
    pool.launcher(a=e.Child(False, ends=1))
    assert pool.wishes() == [("start", "a")]
    pool.launcher(a=e.Child(True, ends=1, runs_as=runs_as(entry)))
    pool.lock("a")
    assert pool.wishes() == []


def test_what_its_processes_are_started_with_is_said_by_a_later_pool_in_the_same_words() -> None:
    """Else every upgrade would restart all engines."""
    assert runs_as(Entry(engine="reference")) == "7cfdf2e531ee0413.76be8b528d0075f7"
    small, large = (Entry(memory=memory) for memory in ("1GiB", "2GiB"))
    assert runs_as(small) == runs_as(large), "which an engine leases, and a program is given"
    programs = [msgspec.structs.replace(one, command=["x"]) for one in (small, large)]
    assert runs_as(programs[0]) != runs_as(programs[1])


@pytest.mark.parametrize("is_parked", [False, True])
def test_weights_that_an_older_entry_has_loaded_are_dropped_before_the_new_ones_start(is_parked: bool) -> None:
    """GMS would have another model's for it, for ever."""
    pool = Pool("ab", entries={"a": {"arguments": ["new"]}}, running=False)
    older, newer = (runs_as(Entry(engine="reference", arguments=[word])) for word in ("old", "new"))
    pool.weights(parked={"a": 10 * is_parked}, a=10 * (not is_parked))
    pool.launcher(a=e.Child(False, ends=1, runs_as=older))
    pool.wants("a")
    assert pool.wishes() == [("drop", "a")]
    pool.feed(e.DropEnded("a", "a process reads them"))
    assert pool.wishes() == []
    pool.advance(2)
    assert pool.wishes() == [("drop", "a")]
    pool.feed(e.DropEnded("a"))
    assert pool.wishes() == [("start", "a")]
    pool.launcher(a=e.Child(True, ends=1, runs_as=newer))
    pool.weights(a=10)
    pool.launcher(a=e.Child(False, ends=2, runs_as=newer))
    assert pool.wishes() == [("start", "a")]


@pytest.mark.parametrize(
    ("shared", "older_has", "newer_has"),
    [
        (True, {"arguments": ["old"]}, {}),
        (False, {}, {"standby": True}),
        (False, {"arguments": ["--max-batch", "4", "same"]}, {"arguments": ["--max-batch=8", "same"]}),
    ],
)
def test_weights_that_others_have_or_that_dont_follow_from_the_change_stay_for_a_new_entry(
    shared: bool, older_has: dict[str, Any], newer_has: dict[str, Any]
) -> None:
    pool = Pool("ab", entries={"a": {"weights": "w", **newer_has}, "b": {"weights": "w" * shared}}, running=False)
    older = Entry(engine="reference", weights="w", **older_has)
    pool.weights(w=10)
    pool.launcher(a=e.Child(False, ends=1, runs_as=runs_as(older)))
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]


OTHERS = "GMS has the weights of another model"


@pytest.mark.parametrize("is_parked", [False, True])
@pytest.mark.parametrize("knows", [False, True])
def test_weights_that_an_engine_finds_to_be_another_models_are_dropped_and_it_is_started_again(
    is_parked: bool, knows: bool
) -> None:
    """Of what those of several models, or of an earlier pool's, follow from it knows nothing."""
    pool = Pool("ab", entries={name: {"weights": "w"} for name in "ab"}, running=False)
    runs = runs_as(pool.machine.models["a"].rules.entry)
    pool.weights(parked={"w": 10 * is_parked}, w=10 * (not is_parked))
    pool.wants("a")
    if knows:
        assert pool.wishes() == [("start", "a")]
    pool.launcher(a=e.Child(False, ends=1, why=OTHERS, runs_as=runs, exit_code=65))
    assert ("drop", "w") in pool.wishes() and pool.state("a") is State.OFF
    pool.feed(e.DropEnded("w"))
    assert pool.wishes() == [("start", "a")]


def test_one_that_finds_others_again_has_failed_as_gms_or_another_program_does_what_it_should_not() -> None:
    pool = Pool(running=False)
    runs = runs_as(pool.machine.models["a"].rules.entry)
    pool.wants("a")
    for number, state in (1, State.OFF), (2, State.FAILED):
        pool.weights(a=10)
        pool.launcher(a=e.Child(False, ends=number, why=OTHERS, runs_as=runs, exit_code=65))
        assert pool.state("a") is state
        pool.feed(e.DropEnded("a"))
    pool.advance(120)
    assert ("start", "a") in pool.wishes()


@pytest.mark.parametrize("is_awake", [False, True])
def test_weights_that_another_one_reads_are_not_dropped_for_one_that_they_are_not_meant_for(is_awake: bool) -> None:
    """It is told; what it says has the way out. Once none reads them it has its own."""
    pool = Pool("ab", entries={name: {"weights": "w"} for name in "ab"}, running=False)
    runs = runs_as(pool.machine.models["a"].rules.entry)
    pool.launcher(b=e.Child(True, runs_as=runs))
    pool.weights(w=10)
    pool.lock("b", **({"resting": False, "held": True, "serving": True, "ready": False} if is_awake else {}))
    pool.wants("a")
    pool.launcher(a=e.Child(False, ends=1, why=OTHERS, runs_as=runs, exit_code=65), b=e.Child(True, runs_as=runs))
    assert pool.state("a") is State.FAILED and OTHERS in pool.machine.models["a"].why_failed
    assert "drop" not in dict(pool.wishes())
    pool.launcher(
        a=e.Child(False, ends=1, why=OTHERS, runs_as=runs, exit_code=65), b=e.Child(False, ends=1, runs_as=runs)
    )
    assert ("drop", "w") in pool.wishes()


def test_two_that_start_at_once_and_find_others_have_their_own_one_after_the_other() -> None:
    """The first to end looked as if the second one read them, and had failed: its requests were refused."""
    pool = Pool("ab", entries={name: {"weights": "w"} for name in "ab"}, running=False)
    runs = runs_as(pool.machine.models["a"].rules.entry)
    found, starts = e.Child(False, 1, OTHERS, runs_as=runs, exit_code=65), e.Child(True, runs_as=runs)
    pool.weights(w=10)
    pool.launcher(a=starts, b=starts)
    pool.wants("a")
    pool.launcher(a=found, b=starts)
    assert pool.state("a") is State.OFF and pool.wishes() == []
    pool.launcher(a=found, b=found)
    assert pool.state("b") is State.OFF and pool.wishes() == [("drop", "w")]


def test_a_pool_that_begins_takes_it_for_failed_by_nothing_that_it_hears_before_gms() -> None:
    pool = Pool(running=False)
    pool.wants("a")
    runs = runs_as(pool.machine.models["a"].rules.entry)
    pool.launcher(a=e.Child(False, 1, OTHERS, runs_as=runs, exit_code=65))
    assert pool.state("a") is State.LOADING and pool.wishes()[-1] == ("start", "a")


def test_one_whose_entry_changes_since_it_found_others_may_have_its_own() -> None:
    pool = Pool("ab", entries=_sharing(a="old", b="new"), running=False)
    pool.weights(w=10)
    pool.feed(e.WeightsSeen(GPU, None))
    pool.launcher(a=e.Child(False, 1, OTHERS, runs_as=runs_as(pool.machine.models["a"].rules.entry), exit_code=65))
    pool.entries = _sharing(a="new", b="new")
    pool.configure("ab")
    pool.wants("a")
    pool.weights(w=10)
    assert pool.wishes()[-1] == ("start", "a")


def test_what_an_older_entry_found_to_be_anothers_may_be_right_for_the_one_of_now() -> None:
    pool = Pool("ab", entries={name: {"weights": "w"} for name in "ab"}, running=False)
    runs = runs_as(Entry(engine="reference", arguments=["old"], weights="w"))
    pool.weights(w=10)
    pool.launcher(a=e.Child(False, ends=1, runs_as=runs, exit_code=65))
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]


def test_one_that_was_taken_out_after_it_had_changed_answers_what_it_has_with_the_engine_that_it_has() -> None:
    """It was never waked again: its weights are an older entry's, and so is its engine (schedule 595)."""
    pool = Pool()
    was = e.Child(True, runs_as=runs_as(pool.machine.models["a"].rules.entry))
    pool.launcher(a=was, b=e.Child(True))
    pool.weights(a=10)
    pool.feed(e.LauncherSeen(None))
    pool.wants("a", waiting=0, paused=1)
    pool.entries = {"a": {"arguments": ["new"]}}
    pool.configure("ab")
    pool.configure("b")
    assert pool.wishes() == []
    pool.launcher(a=was, b=e.Child(True))
    assert pool.wishes() == [("wake", "a")]


def test_weights_are_dropped_by_no_gms_that_is_away_and_nothing_starts_with_them_meanwhile() -> None:
    pool = Pool("ab", entries={"a": {"arguments": ["new"]}}, running=False)
    pool.weights(a=10)
    pool.feed(e.WeightsSeen(GPU, None))
    pool.launcher(a=e.Child(False, ends=1, runs_as=runs_as(Entry(engine="reference", arguments=["old"]))))
    pool.wants("a")
    assert pool.wishes() == []
    pool.weights(a=10)
    assert pool.wishes() == [("drop", "a")]


def _sharing(**arguments: str) -> dict[str, dict[str, Any]]:
    return {name: {"weights": "w", "arguments": [word]} for name, word in arguments.items()}


@pytest.mark.parametrize("stay", ["ab", "a"])
def test_one_that_finds_others_while_what_runs_with_them_is_to_end_waits_for_that(stay: str) -> None:
    pool = Pool("ab", entries=_sharing(a="old", b="old"))
    pool.weights(w=10)
    pool.entries = _sharing(a="new", b="new" if "b" in stay else "old")
    pool.configure(stay)
    pool.wants("a")
    assert pool.wishes() == [("end", "a"), ("end", "b")]
    pool.launcher(a=e.Child(False, ends=1), b=e.Child(True))
    assert pool.wishes() == [("start", "a")], "nothing says yet that they aren't its own"
    found = e.Child(False, 2, OTHERS, runs_as=runs_as(pool.machine.models["a"].rules.entry), exit_code=65)
    pool.launcher(a=found, b=e.Child(True))
    assert pool.wishes() == [] and pool.state("a") is State.OFF, "b has them yet"
    pool.launcher(a=found, b=e.Child(False, ends=1))
    assert pool.wishes()[-1] == ("drop", "w")
    pool.feed(e.DropEnded("w"))
    assert pool.wishes() == [("start", "a")]


@pytest.mark.parametrize(
    "files",
    [
        [_sharing(a="new", b="old")],
        [_sharing(a="new", b="new"), _sharing(a="old", b="new")],
        [_sharing(a="new", b="old"), _sharing(a="new", b="new")],
    ],
)
def test_weights_that_one_still_has_or_has_again_as_before_stay(files: list[dict[str, dict[str, Any]]]) -> None:
    pool = Pool("ab", entries=_sharing(a="old", b="old"))
    pool.weights(w=10)
    for pool.entries in files:
        pool.configure("ab")
    pool.wants("a")
    assert ("end", "a") in pool.wishes()
    pool.launcher(a=e.Child(False, ends=1), b=e.Child(False, ends=1))
    assert pool.wishes() == [("start", "a")]


def test_weights_that_a_model_of_now_reads_keep_no_other_that_shares_them_from_its_start() -> None:
    """Its requests waited for ever (schedule 900268): none drops them while that one runs."""
    pool = Pool("ab", entries=_sharing(a="old", b="old"))
    pool.wants("b")
    pool.entries = _sharing(a="new")
    pool.configure("a")
    pool.launcher(a=e.Child(False, ends=1), b=e.Child(True))
    pool.weights(w=10)
    pool.configure("a")
    pool.wakes("b")
    pool.wants("b", waiting=0)
    pool.entries = _sharing(a="newer", b="old")
    pool.configure("ab")
    pool.wants("a")
    assert ("start", "a") in pool.wishes()


def test_a_pin_in_the_file_takes_the_place_of_a_persons_also_for_the_next_pool() -> None:
    pool = Pool()
    pool.asks("unpin", "a")
    assert pool.machine.learned().pins == {"a": False}
    pool.entries = {"a": {"pin": True}}
    pool.configure("ab")
    assert pool.machine.models["a"].pinned and not pool.machine.learned().pins


@pytest.mark.parametrize("verb", ["sleep", "stop"])
def test_what_a_person_put_to_sleep_is_waked_by_no_pin_of_the_next_pool_but_by_a_person(verb: str) -> None:
    entries = {"a": {"pin": True}}
    pool = Pool("ab", entries=entries, running=True)
    pool.out.clear()
    pool.asks(verb, "a")
    assert [type(one) for one in pool.out[:2]] == [e.Save, e.Answer]
    asleep = pool.machine.learned()
    following = Pool("ab", entries=entries, running=True, began=asleep)
    assert following.wishes() == [] and following.machine.learned() == asleep
    following.asks("wake", "a")
    assert following.wishes() == [("wake", "a")]
    third = Pool("ab", entries=entries, running=True, began=following.machine.learned())
    assert third.wishes() == [("wake", "a")]


def test_what_an_earlier_pool_put_to_sleep_and_is_launched_anew_is_waked_by_its_pin() -> None:
    pool = Pool("b", running=True, sizes={"a": 60}, began=e.Began({}, kept_asleep=("a",)))
    pool.entries = {"a": {"pin": True}}
    pool.configure("ab")
    assert pool.wishes() == [("start", "a")]


def test_what_was_measured_counts_until_its_entry_says_another_need() -> None:
    pool = Pool(running=True)
    pool.awake("a")
    pool.machine.models["a"].learned = e.Learned(bytes={GPU: 90})
    pool.configure("ab")
    assert pool.machine.models["a"].needs({}) == {GPU: 90}
    pool.entries = {"a": {"memory": "1GiB"}}
    pool.configure("ab")
    assert pool.machine.models["a"].needs({}) == {GPU: 60}


def test_what_the_pool_itself_has_ended_is_not_preloaded_again() -> None:
    pool = Pool("a", entries={"a": {"preload": True, "stop_after_s": 5.0}}, running=False)
    pool.launcher(a=e.Child(False))
    assert pool.wishes() == [("start", "a")]
    pool.launcher(a=e.Child(True))
    pool.sleeps("a")
    pool.advance(6)
    assert pool.wishes() == [("end", "a")]
    pool.launcher(a=e.Child(False, ends=1))
    pool.advance(60)
    assert pool.wishes() == []
    pool.wants("a")
    assert pool.wishes() == [("start", "a")]
    pool.wants("a", waiting=0)
    pool.launcher(a=e.Child(True, ends=1))
    pool.sleeps("a")
    pool.launcher(a=e.Child(False, ends=2))
    pool.advance(60)
    assert pool.wishes() == [("start", "a")], "it has died"


def test_what_changes_nothing_of_its_processes_is_so_at_once() -> None:
    pool = Pool()
    pool.awake("a", BUSY)
    pool.entries = {"a": {"keep_alive_s": 5.0, "priority": 3}}
    pool.configure("ab")
    pool.wants("a", waiting=0, served=2)
    pool.advance(6)
    assert pool.wishes() == [("sleep", "a")]
