"""Who is next, and which leases are asked to be given back for it (rules V2, V7, V8 and V9 of `machine.py`).

Pure. A waiter's place is its time and its priority in one figure, so that no timer is needed for its ageing. Each is
looked at beside what all those before it lack: it gets nothing that would keep them waiting longer.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass

from evidence.rules.free_memory import FreeMemory
from evidence.rules.incarnation import Incarnation, Stage
from sidecar.machine.plan import Plan
from vram.rules.devices import Devices
from vram.rules.events import Config
from vram.rules.leases import Lease, Leases, minus, some
from vram.rules.messages import Bytes

MOST_WAITERS = 500
MOST_OF_ONE = 100
SOON_S = 0.002
MOST_TOLD = 100
"""The first so many are told what they wait for."""


@dataclass(slots=True, eq=False)
class Waiter:
    tree: Incarnation
    number: int
    """The tree's own, for this wish."""
    name: str
    needs: Bytes
    """All that it is to have."""
    priority: int
    evictable: bool
    since: float
    since_wall: float
    lease: Lease | None = None
    """The one that is to grow."""
    waits_for: str = ""
    """For people."""

    def place(self, age_s: float) -> float:
        return self.since + self.priority * age_s


@dataclass(frozen=True, slots=True)
class Deeds:
    """What a plan of the queue leads to."""

    grant: Callable[[Waiter], object]
    deny: Callable[[Waiter, str], object]
    ask: Callable[[Waiter, list[tuple[Lease, Bytes]]], object]
    say: Callable[[Waiter, str], object]


class Queue:
    def __init__(self, config: Config, leases: Leases, devices: Devices, memory: FreeMemory, deeds: Deeds) -> None:
        self.config = config
        self.leases = leases
        self.devices = devices
        self.memory = memory
        self.deeds = deeds
        self.waiters: dict[tuple[str, int], Waiter] = {}
        """By tree and number."""
        self.heirs: dict[str, dict[str, Incarnation]] = {}
        """Name -> those that inherit it."""
        self.changed_at = 0.0
        """When something ended, or was given back, for the last time."""
        self.taken: Counter[str] = Counter()
        """What was granted already in this turn of what its reading shows as free."""

    # -- questions -------------------------------------------------------------------------------------------------

    def line(self) -> list[Waiter]:
        return sorted(self.waiters.values(), key=lambda waiter: waiter.place(self.config.age_s))

    def inherited(self, lease: Lease) -> bool:
        """Its bytes stay with the name when its holder dies; unless they were to be given back."""
        return bool(self.heirs.get(lease.name)) and lease.asked is None

    def estate(self, waiter: Waiter) -> Lease | None:
        """What it inherits: its holder is gone."""
        lease = self.leases.named(waiter.name)
        heir = waiter.tree.name in self.heirs.get(waiter.name, {})
        return lease if lease is not None and lease.tree is None and heir else None

    def lacks(self, waiter: Waiter) -> Bytes:
        """What it has already, or inherits, it doesn't wait for."""
        has = self._has(waiter)
        return minus(waiter.needs, has.bytes) if has is not None else some(waiter.needs)

    def again(self, waiter: Waiter) -> list[tuple[Lease, Bytes]]:
        """What its tree said that it has given back under this name, and still has: lacking to all others. It may have
        that again, where it has no room without it.
        """
        short = {device: need - self.devices.room(device) for device, need in self.lacks(waiter).items()}
        found = []
        for lease in self.leases.of_tree(waiter.tree.name):
            part = {device: min(count, short.get(device, 0)) for device, count in lease.returning.items()}
            if lease.overdue and lease.name == waiter.name and some(part):
                found.append((lease, some(part)))
                short = minus(short, part)
        return found

    def _for_others(self, waiter: Waiter, behind: list[Waiter], in_vain: list[Waiter]) -> list[Lease]:
        """Estates of heirs that want more than there is, and that wait behind this one or may not keep it waiting."""
        passed = [w for w in in_vain if w.priority > waiter.priority or self._has(waiter) is not None]
        found = dict[int, Lease]()
        for heir in (*behind, *passed):
            estate, lacks = self.estate(heir), self.lacks(heir)
            if estate is None or estate is self._has(waiter):
                continue
            if any(count > self.devices.room(device) for device, count in lacks.items()):
                found[estate.number] = estate
        return list(found.values())

    def _has(self, waiter: Waiter) -> Lease | None:
        return waiter.lease or self.estate(waiter)

    def _held_by_another(self, waiter: Waiter) -> str:
        """One holder of a name at a time."""
        lease = self.leases.named(waiter.name) if waiter.lease is None else None
        if lease is None or lease is self.estate(waiter):
            return ""
        return f"{lease.tree.engine_id} holds it" if lease.tree is not None else "its bytes are kept for an heir"

    # -- the plan --------------------------------------------------------------------------------------------------

    def plan(self, plan: Plan, ending: list[Lease]) -> None:
        """`ending`: leases of trees that have only to be proven gone. One deed at a time; then it is planned anew."""
        ahead: Counter[str] = Counter()
        in_vain: dict[int, Counter[str]] = {}
        """By priority: what those before lack that can't be had by asking. They keep no more urgent one waiting, and
        none that has or inherits a lease and wants more.
        """
        hopeless: set[tuple[int, str]] = set()
        """One of this priority was found to lack more of this device than there is for the asking."""
        vain_waiters: list[Waiter] = []
        coming, line = self._coming(ending), self.line()
        for place, waiter in enumerate(line):
            if waiter.tree.stage is not Stage.PRESENT:
                continue
            if why := self.devices.never_fits(waiter.needs, seen=self.memory.is_known):
                plan.do(self.deeds.deny, waiter, why)
                return
            if why := self._held_by_another(waiter):
                self._say(plan, waiter, f"{waiter.name}: {why}")
                continue
            if not waiter.needs.keys() <= self.devices.totals.keys():
                self._say(plan, waiter, "it is not known yet what there is of each device")
                self.memory.plan(plan, self._pace(plan, waiter))
                continue
            lacks, has = self.lacks(waiter), self._has(waiter)  # those before it may wait for what it has
            vain = [all for p, all in in_vain.items() if p <= waiter.priority and has is None]
            before = {device: ahead[device] + sum(all[device] for all in vain) for device in lacks}
            again = Counter[str]()
            for _, part in self.again(waiter):
                again.update(part)
            short = some({d: need + before[d] - self.devices.room(d) - again[d] for d, need in lacks.items()})
            if not short and self._is_free(plan, waiter, lacks, again):
                plan.do(self.deeds.grant, waiter)
                return
            if short and not minus(short, self.devices.foreign):
                self.memory.plan(plan, self._pace(plan, waiter))  # a driver may keep what a dead tree had
            lacking = minus(short, coming)
            vainly = {device for device in lacking if has is None and (waiter.priority, device) in hopeless}
            if lacking and not vainly:
                vainly, chosen = self._plan_room(plan, waiter, lacking, line[place + 1 :], vain_waiters)
                if chosen:
                    plan.do(self.deeds.ask, waiter, chosen)
                    return
            hopeless |= {(waiter.priority, device) for device in vainly}
            (in_vain.setdefault(waiter.priority, Counter()) if vainly else ahead).update(lacks)
            if vainly:
                vain_waiters.append(waiter)
            if place < MOST_TOLD and (short or self.memory.is_known):
                text = f"lacks {_in_words(short)}" if short else f"{_in_words(lacks)} to be seen free"
                self._say(plan, waiter, text + (", and may ask no lease for so much" if vainly else ""))

    def _pace(self, plan: Plan, waiter: Waiter) -> float:
        return pace(plan.now - max(waiter.since, self.changed_at))

    def _say(self, plan: Plan, waiter: Waiter, text: str) -> None:
        if waiter.waits_for != text:
            plan.do(self.deeds.say, waiter, text)

    def _is_free(self, plan: Plan, waiter: Waiter, lacks: Bytes, again: Mapping[str, int]) -> bool:
        """There is room by what was promised; and so it is seen in this moment, where it can be."""
        new = lacks if waiter.lease is not None else waiter.needs  # what a dead holder had is to be seen free, too
        needs = {d: need + self.taken[d] - again.get(d, 0) for d, need in new.items() if self.devices.can_be_read(d)}
        if not needs or self.memory.fits(needs):
            return True
        self.memory.plan(plan, self._pace(plan, waiter))
        return False

    # -- what is asked to be given back ----------------------------------------------------------------------------

    def _coming(self, ending: list[Lease]) -> Bytes:
        """What is on its way back, or has only to be proven free."""
        coming = Counter(self.leases.sum_returning)
        for lease in self.leases.returning.values():
            if lease.overdue:
                coming.subtract(lease.returning)
        for lease in self.leases.asked.values():
            if lease.asked is not None and not lease.asked.late and not lease.ends:
                coming.update(lease.asked.bytes)
        for lease in ending:
            if not self.inherited(lease):
                coming.update(lease.bytes)
        return coming

    def _plan_room(
        self, plan: Plan, waiter: Waiter, short: Bytes, behind: list[Waiter], in_vain: list[Waiter]
    ) -> tuple[set[str], list[tuple[Lease, Bytes]]]:
        """On which devices no asking leads to enough; and if there are none, what is to be asked for now."""
        may = list(self._may_be_asked(waiter))
        if _short_without(short, (lease for lease, _ in may)):
            may += [(estate, plan.now) for estate in self._for_others(waiter, behind, in_vain)]
        vainly = set(_short_without(short, (lease for lease, _ in may)))
        chosen = [] if vainly else self._choose(short, [lease for lease, at in may if at <= plan.now])
        if not vainly and not chosen:
            plan.wait_until(min(at for _, at in may if at > plan.now))
        return vainly, chosen

    def _may_be_asked(self, waiter: Waiter) -> Iterator[tuple[Lease, float]]:
        """And from when."""
        for lease in self.leases.all.values():
            asked, may = lease.asked, lease.evictable and lease.priority >= waiter.priority
            if not may or not lease.is_there or lease is waiter.lease or not lease.bytes:
                continue
            if asked is None:
                yield lease, lease.fresh_until
            elif asked.late:
                yield lease, asked.until + self.config.ask_again_s

    def _choose(self, short: Bytes, may: list[Lease]) -> list[tuple[Lease, Bytes]]:
        """The least urgent first, then the least recently used, and no more of them than it takes."""
        chosen: list[Lease] = []
        for lease in sorted(may, key=lambda lease: (-lease.priority, lease.used_at)):
            left = _short_without(short, chosen)
            if not left:
                break
            if any(lease.bytes.get(device) for device in left):
                chosen.append(lease)
        if _short_without(short, chosen):
            return []
        for lease in reversed(chosen[:]):
            others = [other for other in chosen if other is not lease]
            if not _short_without(short, others):
                chosen = others
        asked, left = [], short
        for lease in chosen:
            part = {device: min(count, lease.bytes.get(device, 0)) for device, count in left.items()}
            asked.append((lease, some(part)))
            left = minus(left, part)
        return asked

    def plan_asked(self, plan: Plan, late: Callable[[Lease], object]) -> None:
        for lease in self.leases.asked.values():
            asked = lease.asked
            over = asked is not None and (not self.waiters if asked.late else not plan.wait_until(asked.until))
            if over:
                plan.do(late, lease)


def pace(waited_s: float) -> float:
    """How soon memory is read again for one that has waited so long."""
    return min(max(waited_s / 50, SOON_S), 1.0)


def _in_words(short: Bytes) -> str:
    return ", ".join(f"{count} bytes of {device}" for device, count in sorted(short.items()))


def _short_without(short: Bytes, leases: Iterable[Lease]) -> Bytes:
    """What is still lacking once these are given back."""
    given: Counter[str] = Counter()
    for lease in leases:
        given.update(lease.bytes)
    return minus(short, given)
