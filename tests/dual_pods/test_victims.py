"""Which sleepers go: the best of all covers, by trying every one of them."""

import itertools
import random
from collections.abc import Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import replace

import pytest

from dual_pods.rules import victims
from dual_pods.rules.facts import Instance
from dual_pods.rules.victims import cover, enough
from pool.entries import State


def _sleeper(name: str, used: Iterable[str], last_used: float, held: Mapping[str, int] | None = None) -> Instance:
    return Instance(name, State.ASLEEP, frozenset(used), asleep_bytes=held or {}, last_used=last_used)


def _drawn(seed: int, accelerators: int, sleepers: int) -> tuple[list[Instance], frozenset[str]]:
    draw = random.Random(seed)
    names = [f"g{number}" for number in range(accelerators)]
    found = []
    for number in range(sleepers):
        used = frozenset(draw.sample(names, draw.randint(1, min(4, accelerators))))
        last = draw.choice([float(draw.randrange(5)), draw.random()])
        found.append(_sleeper(f"s{number:02}", used, last, {name: draw.randint(1, 9) for name in used}))
    return found, frozenset(draw.sample(names, draw.randint(1, accelerators)))


def _cost(chosen: Iterable[Instance], short: frozenset[str]) -> tuple[int, list[tuple[float, str]]]:
    collateral = sum(len(sleeper.accelerators - short) for sleeper in chosen)
    return collateral, sorted(((each.last_used, each.id) for each in chosen), reverse=True)


def _best(sleepers: list[Instance], short: frozenset[str]) -> list[Instance] | None:
    covers = [
        chosen
        for count in range(len(sleepers) + 1)
        for chosen in itertools.combinations(sleepers, count)
        if short <= frozenset().union(*(s.accelerators for s in chosen))
    ]
    return list(min(covers, key=lambda chosen: _cost(chosen, short))) if covers else None


@pytest.mark.parametrize("seed", range(60))
def test_the_set_that_goes_is_the_best_of_all_that_cover(seed: int) -> None:
    sleepers, short = _drawn(seed, random.Random(seed).choice([2, 4, 8, 16]), 8)
    found, best = cover(sleepers, short), _best(sleepers, short)
    assert (found is None) == (best is None), f"seed {seed}"
    if found is not None and best is not None:
        assert _cost(found, short) == _cost(best, short), f"seed {seed}"


@pytest.mark.parametrize("seed", range(40))
def test_beyond_that_it_is_greedy_within_its_bound(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    sleepers, short = _drawn(seed, 8, 8)
    best = _best(sleepers, short)
    monkeypatch.setattr(victims, "EXACT", 0)
    found = cover(sleepers, short)
    if best is None or found is None:
        assert found is best is None
        return
    assert short <= frozenset().union(*(s.accelerators for s in found)), f"seed {seed}"
    weight = {s.id: 1 + len(s.accelerators - short) for s in sleepers}
    least = min(
        sum(weight[s.id] for s in chosen)
        for count in range(len(sleepers) + 1)
        for chosen in itertools.combinations(sleepers, count)
        if short <= frozenset().union(*(s.accelerators for s in chosen))
    )
    bound = sum(1 / number for number in range(1, len(short) + 1))
    assert sum(weight[s.id] for s in found) <= least * bound + 1e-9, f"seed {seed}"


def test_the_greedy_one_takes_what_covers_most_for_the_least(monkeypatch: pytest.MonkeyPatch) -> None:
    a, b, both = _sleeper("a", {"a"}, 1.0), _sleeper("b", {"b"}, 1.0), _sleeper("both", {"a", "b"}, 2.0)
    short = frozenset({"a", "b"})
    assert cover([a, b, both], short) == [a, b], "they were used longer ago"
    monkeypatch.setattr(victims, "EXACT", 1)
    assert cover([a, b, both], short) == [both]


class _Counted(frozenset[str]):
    """How often a sleeper's accelerators are looked at."""

    looks = 0

    def __sub__(self, others: AbstractSet[object]) -> frozenset[str]:
        _Counted.looks += 1
        return frozenset(self) - others


def test_sixteen_accelerators_with_ten_sleepers_on_each_take_no_time() -> None:
    """All 2^16 parts can be covered; the one sleeper of each that goes is found without trying every other one."""
    names = [f"g{number}" for number in range(16)]
    sleepers = [
        Instance(f"s{number:03}", State.ASLEEP, _Counted({names[number % 16]}), last_used=number * 7 % 160)
        for number in range(160)
    ]
    _Counted.looks = 0
    found = cover(sleepers, frozenset(names))
    assert found is not None and sorted(s.last_used for s in found) == sorted(
        min(s.last_used for s in sleepers if name in s.accelerators) for name in names
    )
    assert _Counted.looks <= len(sleepers), "the controller stood still for a minute, and lost its Lease"


@pytest.mark.parametrize("seed", range(40))
def test_so_many_go_that_the_bytes_that_are_short_come_free_and_none_for_nothing(seed: int) -> None:
    sleepers, names = _drawn(seed, 4, 8)
    draw = random.Random(seed)
    short = {name: draw.randint(-3, 25) for name in names}
    found = enough(sleepers, short)
    free = {name: sum(s.asleep_bytes.get(name, 0) for s in sleepers) for name in short}
    assert (found is None) == any(short[name] > free[name] for name in short), f"seed {seed}"
    if found is not None:
        assert all(sum(s.asleep_bytes.get(name, 0) for s in found) >= count for name, count in short.items())
        assert len({s.id for s in found}) == len(found)
        assert found or all(count <= 0 for count in short.values())
        for one in found:
            rest = {n: sum(s.asleep_bytes.get(n, 0) for s in found if s is not one) for n in short}
            assert any(rest[name] < count for name, count in short.items()), f"seed {seed}: {one.id} for nothing"


def test_one_that_a_later_one_makes_needless_stays() -> None:
    small, large = _sleeper("small", {"a"}, 1.0, {"a": 1}), _sleeper("large", {"a"}, 2.0, {"a": 10})
    assert enough([small, large], {"a": 10}) == [large] and enough([small, large], {"a": 11}) == [small, large]
    old, new = _sleeper("old", {"a"}, 0.5, {"a": 1}), _sleeper("new", {"a"}, 1.5, {"a": 1})
    assert enough([old, new, large], {"a": 11}) == [old, large], "of two that would do, the one that was used last"


def test_weights_that_several_share_come_free_with_the_last_of_them() -> None:
    def of(name: str, used: float, asleep: int) -> Instance:
        return replace(_sleeper(name, "a", used, {"a": asleep}), weights={"a": 20}, weights_name="w")

    old, new, other = of("old", 1.0, 1), of("new", 2.0, 3), _sleeper("other", "a", 3.0, {"a": 9})
    assert enough([old, new, other], {"a": 24}) == [old, new], "both at once"
    assert enough([old, new, other], {"a": 3}) == [new], "old alone gives back 1, and is needless beside new"
    assert enough([old, new, other], {"a": 25}) == [old, new, other] and enough([old, new], {"a": 25}) is None


def test_of_what_is_needless_the_one_with_collateral_stays_first() -> None:
    both = _sleeper("both", "ab", 1.0, {"a": 1})
    narrow, wide = _sleeper("narrow", "a", 3.0, {"a": 3}), _sleeper("wide", "ab", 2.0, {"a": 5})
    for short in ({"a": 6}, {"a": 6, "b": 0}, {"a": 6, "b": -1}):
        assert enough([both, narrow, wide], short) == [narrow, wide], "not both, though it was used longer ago"


def test_a_sleeper_covers_only_where_it_gives_bytes_back() -> None:
    """new uses a as well, and would cover both alone, with no collateral."""
    new, wide = _sleeper("new", "ab", 3.0, {"b": 5}), _sleeper("wide", "ac", 1.0, {"a": 5})
    old = _sleeper("old", "b", 2.0, {"b": 5})
    assert enough([new, wide, old], {"a": 5, "b": 5}) == [wide, old]


def test_what_was_short_at_first_is_no_collateral_of_a_later_round() -> None:
    old, new = _sleeper("old", "ac", 0.0, {"a": 4, "c": 4}), _sleeper("new", "bc", 1.0, {"b": 4, "c": 4})
    third = _sleeper("third", "ac", 3.0, {"a": 5, "c": 3})
    assert enough([old, new, third], {"a": 1, "c": 6}) == [old, third], "accelerator b loses none"


def test_the_one_that_was_used_longest_ago_goes_and_collateral_counts_more() -> None:
    old, new = _sleeper("old", {"a"}, 1.0), _sleeper("new", {"a"}, 2.0)
    wide = _sleeper("wide", {"a", "b"}, 0.0)
    assert cover([new, old, wide], frozenset({"a"})) == [old]
    assert cover([new, wide], frozenset({"a", "b"})) == [wide]
    assert cover([old], frozenset({"b"})) is None


def test_what_goes_anyway_is_counted_where_it_gives_back_what_is_short_and_isnt_taken_back() -> None:
    wide = _sleeper("wide", "ab", 9.0, {"a": 5, "b": 5})
    small, large = _sleeper("small", "a", 1.0, {"a": 5}), _sleeper("large", "a", 2.0, {"a": 9})
    assert enough([wide, small, large], {"a": 5}) == [small] and enough([wide, small, large], {"a": 5}, {"wide"}) == [
        wide
    ]
    assert enough([wide, small, large], {"a": 10}, {"wide"}) == [wide, small]
    assert enough([wide, large], {"a": 9}, {"wide"}) == [wide, large], "large alone would do, and wide goes anyway"
    assert enough([wide, small], {"a": 5, "b": 0}, {"small"}) == [small] and not enough([wide], {"a": 0}, {"wide"})
    other = _sleeper("other", "c", 1.0, {"c": 5})
    assert enough([other, small], {"a": 5}, {"other"}) == [small], "what it gives back is elsewhere"
