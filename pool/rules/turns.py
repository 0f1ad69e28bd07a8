"""How long a model that answers stays awake though others wait: its turn. Pure.

A swap costs `cost` seconds in which a device serves no model (the one's sleep, the other's wake, as measured). A device
earns the share of each second that may go for swaps, and a swap spends its cost. So where the same models want a device
without end, a turn takes `cost / share`; and a swap that comes seldom need not wait at all, because two are saved up.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from pool.entries import State
from pool.rules.events import HostRules
from pool.rules.model import Model

SAVED = 2.0
"""How many swaps may be saved up, and how many an urgent one may borrow: there and back."""
BEGIN_S = 5.0
"""A model that was waked for requests keeps its turn for so long, until the first of them has come."""


@dataclass
class SwapBudget:
    share: float
    _saved: dict[str, tuple[float, float]] = field(default_factory=dict)
    """Device -> seconds, and when that was so."""

    def left(self, devices: Iterable[str], cost: float, now: float) -> float:
        return min((self._left(device, cost, now) for device in devices), default=math.inf)

    def when(self, devices: Iterable[str], cost: float, enough: float, now: float) -> float:
        """From when on so much is left."""
        return now + max((enough - self.left(devices, cost, now)) / self.share, 0.0)

    def spend(self, devices: Iterable[str], cost: float, now: float, *, borrows: bool, since: float = math.inf) -> None:
        """`borrows`: answers were interrupted for it. A swap that no answer had to wait for makes no later one wait.
        `since` when a turn took that was longer than it needs: what it has earned is for this one, and the next is no
        shorter for it.
        """
        for device in devices:
            left = self._left(device, cost, now)
            if borrows:
                before = self._left(device, cost, max(min(since, now), self._saved.get(device, (0.0, now))[1]))
                left = min(left, max(before, cost))
            self._saved[device] = max(left - cost, -SAVED * cost if borrows else min(left, 0.0)), now

    def _left(self, device: str, cost: float, now: float) -> float:
        saved, at = self._saved.get(device, (math.inf, now))
        return min(saved + self.share * (now - at), SAVED * cost)


def cost_of(up: Model, down: Model) -> float:
    """In seconds. What is parked comes back in the place of another's weights, which have to be parked; and one that
    doesn't run has to load first, while the other sleeps.
    """
    loads = 0.0 if up.child.running else up.load_s
    return down.sleep_s + loads + up.wake_s + (down.park_s if up.parked else 0.0)


def effective(model: Model, host: HostRules, now: float) -> float:
    """Its priority. Whatever has waited for long counts as the most urgent."""
    return -math.inf if now >= model.waits_since + host.ageing_s else model.demand.priority


def lazy(model: Model) -> bool:
    """It is to be awake, but no request waits for it."""
    return not model.demand.wants and model.asked_at is None


class When(NamedTuple):
    """From when on a model that is awake may be put to sleep for another. Infinite: not as things stand."""

    least: float
    """Before that, others are asked."""
    at: float
    """Its own turn, and what swaps have earned: that is awaited, whatever others have."""


def may_sleep(up: Model, down: Model, price: float, host: HostRules, budget: SwapBudget, now: float) -> When:
    """`down` is awake (or wakes), and `up` is to be awake in its place. `price` is what the budget pays for it."""
    never = When(math.inf, math.inf)
    if down.pinned or down.away or down.view is None:
        return never
    if down.state is State.WAKING:  # no engine of it is there: its last one has died, say, and no other is ready
        waits = down.view.held or (lazy(up) and down.demand.wants)
        at = math.inf if waits else down.since + max(down.wake_s, BEGIN_S)
        return When(at, at)
    cost, devices = cost_of(up, down), down.rules.devices
    least = max(down.turn_at + down.rules.entry.loaded_at_least_s, down.sleep_at)
    if not down.demand.busy:
        idle = max(down.used_at, down.since)
        if up.name == host.default and lazy(up):
            least = max(least, idle + host.default_after_s, down.kept_until)
            return When(least, least)
        # Where swaps are scarce, and this one's requests come again sooner than a swap takes, the next one is awaited.
        scarce = budget.left(devices, price, now) < price
        return When(least, idle + 2 * down.gap_s if scarce and down.gap_s <= cost else now)
    if lazy(up):
        return never
    least = max(least, down.turn_at + (cost if down.begun else BEGIN_S))
    if effective(up, host, now) > down.demand.priority:
        least = max(least, up.waits_since + host.ageing_s)
    takes = host.drain_s + cost
    urgent = up.demand.priority < down.demand.priority
    at = budget.when(devices, price, -price if urgent else price, now)
    at = at if urgent else max(at, down.turn_at + down.demand.turn_s)
    if at + cost > up.demand.deadline >= now + takes:  # it would come too late, and needn't
        at = budget.when(devices, price, -price, now)
    if host.longest_wait_s is not None:
        at = min(at, up.waits_since + host.longest_wait_s - cost)
    return When(least, at - host.drain_s)  # its answers may go on while it drains: that is a part of its turn
