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
from dataclasses import replace

from dual_pods.rules.facts import Instance

EXACT = 16
Cost = tuple[int, tuple[tuple[float, str], ...]]


def cost(chosen: Sequence[Instance], short: frozenset[str]) -> Cost:
    collateral = sum(len(sleeper.accelerators - short) for sleeper in chosen)
    return collateral, tuple(sorted(((each.last_used, each.id) for each in chosen), reverse=True))


def cover(sleepers: Sequence[Instance], short: frozenset[str]) -> list[Instance] | None:
    """The set that goes. None: no set covers them all."""
    if not short <= frozenset().union(*(sleeper.accelerators for sleeper in sleepers)):
        return None
    return _exact(sleepers, short) if len(short) <= EXACT else _greedy(sleepers, short)


def _exact(sleepers: Sequence[Instance], short: frozenset[str]) -> list[Instance]:
    """The best set for each part of the short ones that can be covered, one sleeper after the other. What is best for a
    part stays so with one sleeper more, so no other set needs to be kept.
    """
    bits = {name: 1 << number for number, name in enumerate(sorted(short))}
    best: dict[int, tuple[Cost, list[Instance]]] = {0: (cost([], short), [])}
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


def _greedy(sleepers: Sequence[Instance], short: frozenset[str]) -> list[Instance]:
    left, chosen = short, list[Instance]()
    while left:
        helpful = [sleeper for sleeper in sleepers if sleeper.accelerators & left]
        found = min(
            helpful,
            key=lambda s: ((1 + len(s.accelerators - short)) / len(s.accelerators & left), s.last_used, s.id),
        )
        chosen.append(found)
        left -= found.accelerators
    return chosen


def enough(sleepers: Sequence[Instance], short: Mapping[str, int]) -> list[Instance] | None:
    """So many rounds of covers that on each accelerator the bytes that are short come free, without those that a later
    round has made needless. None: all of them aren't enough.
    """
    left, kept, chosen = dict(short), list(sleepers), list[Instance]()
    while left := {name: count for name, count in left.items() if count > 0}:
        helpful = [  # one covers only where it gives bytes back
            replace(s, accelerators=s.accelerators - {name for name in left if not s.holds(name)}) for s in kept
        ]
        found = cover(helpful, frozenset(left))
        if found is None:
            return None
        names = {sleeper.id for sleeper in found}
        going = [sleeper for sleeper in kept if sleeper.id in names]
        kept = [sleeper for sleeper in kept if sleeper.id not in names]
        left = _left(left, going)
        chosen += going
    for each in sorted(chosen, key=lambda s: s.last_used, reverse=True):
        others = [sleeper for sleeper in chosen if sleeper is not each]
        if all(count <= 0 for count in _left(short, others).values()):
            chosen = others
    return chosen


def _left(short: Mapping[str, int], going: Sequence[Instance]) -> dict[str, int]:
    return {name: count - sum(sleeper.holds(name) for sleeper in going) for name, count in short.items()}
