"""Which sleepers go, when their budget is short on some accelerators. Pure.

Those that go cover the accelerators that are short: at least one of them on each. Among the sets that do,

1. the one with the least collateral goes: the fewest accelerators lose a sleeper that aren't short, and one that loses
   two counts twice;
2. then the one whose sleepers were used longest ago: the most recently used of the one set and of the other are
   compared, then the second of each, and so on; a set that ends earlier is the older one.

It is exact for up to `EXACT` short accelerators. Beyond that it is greedy: as for any cover of k elements that takes
the cheapest per newly covered element, the collateral (plus one for each sleeper) is at most 1 + 1/2 + ... + 1/k times
the least.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import replace

from dual_pods.rules.facts import Instance

EXACT = 16


def cover(sleepers: Sequence[Instance], short: frozenset[str]) -> list[Instance] | None:
    """The set that goes. None: no set covers them all."""
    if not short <= frozenset().union(*(sleeper.accelerators for sleeper in sleepers)):
        return None
    return _exact(sleepers, short) if len(short) <= EXACT else _greedy(sleepers, short)


def _exact(sleepers: Sequence[Instance], short: frozenset[str]) -> list[Instance]:
    """The best set for each part of the short ones that is covered by those that cover its first one that isn't. What
    is best for a part stays so with one sleeper more, so no other set needs to be kept.

    A cost is one number: the collateral, and below it a bit for each sleeper, higher for one that was used later.
    """
    by_age = sorted(sleepers, key=lambda s: (s.last_used, s.id))
    bits = {name: 1 << number for number, name in enumerate(sorted(short))}
    cheapest = dict[int, int]()  # of all that cover the same, one will do
    for number, sleeper in enumerate(by_age):
        covers = sum(bits[name] for name in sleeper.accelerators & short)
        costs = (len(sleeper.accelerators - short) << len(by_age)) + (1 << number)
        cheapest[covers] = min(cheapest.get(covers, costs), costs)
    helpful = {bit: [(covers, costs) for covers, costs in cheapest.items() if covers & bit] for bit in bits.values()}
    best, everything = {0: 0}, (1 << len(bits)) - 1
    for part in range(everything):
        if part in best:
            for covers, costs in helpful[~part & (part + 1)]:
                now = best[part] + costs
                if now < best.get(part | covers, now + 1):
                    best[part | covers] = now
    return [sleeper for number, sleeper in enumerate(by_age) if best[everything] >> number & 1]


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


def enough(
    sleepers: Sequence[Instance], short: Mapping[str, int], leaving: Set[str] = frozenset()
) -> list[Instance] | None:
    """So many rounds of covers that on each accelerator the bytes that are short come free, without those that a later
    round has made needless. Weights that several share come free with the last of these. None: all aren't enough.
    `leaving`: they go anyway, and are of these where they give back something that is short.
    """
    lack = {name for name, count in short.items() if count > 0}
    going = {s.id for s in sleepers if s.id in leaving and any(s.holds(name) for name in lack)}
    while left := _left(short, going, sleepers):
        helpful = [  # one covers only where it gives bytes back, and what was short is no collateral
            replace(s, accelerators=s.accelerators - {name for name in lack if name not in left or not s.holds(name)})
            for s in sleepers
            if s.id not in going
        ]
        found = cover(helpful, frozenset(left))
        if found is None:
            return None
        going |= {sleeper.id for sleeper in found}
    for each in sorted(sleepers, key=lambda s: (len(s.accelerators - lack), s.last_used, s.id), reverse=True):
        if each.id in going - leaving and not _left(short, going - {each.id}, sleepers):
            going.remove(each.id)
    return [sleeper for sleeper in sleepers if sleeper.id in going]


def _left(short: Mapping[str, int], going: Set[str], sleepers: Sequence[Instance]) -> dict[str, int]:
    left, counted = dict(short), {sleeper.weights_name for sleeper in sleepers if sleeper.id not in going} - {""}
    for sleeper in (sleeper for sleeper in sleepers if sleeper.id in going):
        its = replace(sleeper, weights={}) if sleeper.weights_name in counted else sleeper
        counted |= {sleeper.weights_name} - {""}
        left = {name: count - its.holds(name) for name, count in left.items()}
    return {name: count for name, count in left.items() if count > 0}
