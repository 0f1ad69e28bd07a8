"""Which sleepers go, when their budget is short on some accelerators. Pure.

Those that go cover the accelerators that are short: at least one of them on each. Among the sets that do,

1. the one with the least collateral goes: the fewest accelerators lose a sleeper that aren't short;
2. then the one whose sleepers were used longest ago: the most recently used of the one set and of the other are
   compared, then the second of each, and so on; a set that ends earlier is the older one.

It is exact for up to `EXACT` short accelerators. Beyond that it is greedy: as for any cover of k elements that takes
the cheapest per newly covered element, the collateral (plus one for each sleeper) is at most 1 + 1/2 + ... + 1/k times
the least.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

EXACT = 16


@dataclass(frozen=True)
class Sleeper:
    name: str
    accelerators: frozenset[str]
    last_used: float
    bytes: Mapping[str, int]
    """What it holds on each accelerator while it sleeps."""


Cost = tuple[int, tuple[tuple[float, str], ...]]


def cost(chosen: Sequence[Sleeper], short: frozenset[str]) -> Cost:
    collateral = sum(len(sleeper.accelerators - short) for sleeper in chosen)
    return collateral, tuple(sorted(((each.last_used, each.name) for each in chosen), reverse=True))


def cover(sleepers: Sequence[Sleeper], short: frozenset[str]) -> list[Sleeper] | None:
    """The set that goes. None: no set covers them all."""
    useful = [sleeper for sleeper in sleepers if sleeper.accelerators & short]
    if not short <= frozenset().union(*(sleeper.accelerators for sleeper in useful)):
        return None
    return _exact(useful, short) if len(short) <= EXACT else _greedy(useful, short)


def _exact(sleepers: Sequence[Sleeper], short: frozenset[str]) -> list[Sleeper]:
    """The best set for each part of the short ones that can be covered, one sleeper after the other. What is best for a
    part stays so with one sleeper more, so no other set needs to be kept.
    """
    bits = {name: 1 << number for number, name in enumerate(sorted(short))}
    best: dict[int, tuple[Cost, list[Sleeper]]] = {0: (cost([], short), [])}
    for sleeper in sleepers:
        covers = sum(bits[name] for name in sleeper.accelerators & short)
        for part, (_, chosen) in list(best.items()):
            if part | covers == part:
                continue
            with_it = [*chosen, sleeper]
            now = cost(with_it, short), with_it
            if part | covers not in best or now[0] < best[part | covers][0]:
                best[part | covers] = now
    return best[(1 << len(bits)) - 1][1]


def _greedy(sleepers: Sequence[Sleeper], short: frozenset[str]) -> list[Sleeper]:
    left, chosen = short, list[Sleeper]()
    while left:
        helpful = [sleeper for sleeper in sleepers if sleeper.accelerators & left]
        found = min(
            helpful,
            key=lambda s: ((1 + len(s.accelerators - short)) / len(s.accelerators & left), s.last_used, s.name),
        )
        chosen.append(found)
        left -= found.accelerators
    return chosen


def enough(sleepers: Sequence[Sleeper], short: Mapping[str, int]) -> list[Sleeper] | None:
    """So many rounds of covers that on each accelerator the bytes that are short come free. None: all of them aren't
    enough.
    """
    left, kept, chosen = {name: count for name, count in short.items() if count > 0}, list(sleepers), list[Sleeper]()
    while left:
        holds = [s for s in kept if any(s.bytes.get(name, 0) > 0 for name in left)]
        found = cover([_holding(sleeper, left) for sleeper in holds], frozenset(left))
        if found is None:
            return None
        names = {sleeper.name for sleeper in found}
        for sleeper in holds:
            if sleeper.name in names:
                chosen.append(sleeper)
                kept.remove(sleeper)
                left = {name: count - sleeper.bytes.get(name, 0) for name, count in left.items()}
        left = {name: count for name, count in left.items() if count > 0}
    return chosen


def _holding(sleeper: Sleeper, left: Mapping[str, int]) -> Sleeper:
    """It covers only where it gives bytes back."""
    empty = {name for name in sleeper.accelerators if name in left and not sleeper.bytes.get(name)}
    return Sleeper(sleeper.name, sleeper.accelerators - empty, sleeper.last_used, sleeper.bytes)
