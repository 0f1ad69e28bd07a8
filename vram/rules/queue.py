"""Which waiter is next (rules V2, V7 and V8 of `machine.py`).

Pure. A waiter's place is its time and its priority in one figure, so that no timer is needed for its ageing. Each is
looked at beside what all those before it lack: it gets nothing that would keep them waiting longer.
"""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial

from evidence.rules.incarnation import Incarnation, Stage
from sidecar.machine.plan import Plan
from sidecar.terminal.formatting import sizes
from vram.rules import messages as m
from vram.rules.asking import Asking
from vram.rules.books import Books, Part
from vram.rules.leases import Lease, Waiter, both, minus, some
from vram.rules.messages import Bytes
from vram.rules.returns import Returns, pace

MOST_TOLD = 100
"""The first so many are told what they wait for."""


class Queue(Part):
    def __init__(self, books: Books, returns: Returns, asking: Asking) -> None:
        super().__init__(books)
        self.returns = returns
        self.asking = asking
        self.waiters: dict[tuple[str, int], Waiter] = {}
        """By tree and number."""
        self.taken: Counter[str] = Counter()
        """What was granted already in this turn of what its reading shows as free."""

    # -- questions -------------------------------------------------------------------------------------------------

    def line(self) -> list[Waiter]:
        return sorted(self.waiters.values(), key=lambda waiter: waiter.place(self.config.age_s))

    def lacks(self, waiter: Waiter) -> Bytes:
        """What it has already, inherits, or has found in use, it doesn't wait for."""
        new, has = self._new_to_it(waiter), self._has(waiter)
        return minus(new, has.bytes) if has is not None else new

    def _new_to_it(self, waiter: Waiter) -> Bytes:
        """What it needs and hasn't found."""
        if not waiter.found:
            return some(waiter.needs)
        parts, foreign = self.found(waiter)
        needs = minus(waiter.needs, foreign)
        for _, part in parts:
            needs = minus(needs, part)
        return needs

    def still_has(self, waiter: Waiter) -> list[tuple[Lease, Bytes]]:
        """What its tree said that it has given back under this name, and still has: lacking to all others. It may have
        that again, where it has no room without it.
        """
        short = {device: need - self.devices.room(device) for device, need in self.lacks(waiter).items()}
        found = []
        for lease in self.leases.of_tree(waiter.tree.name):
            part = both(lease.returning, short)
            if lease.overdue and lease.name == waiter.name:
                found.append((lease, part))
                short = minus(short, part)
        return found

    def found(self, waiter: Waiter) -> tuple[list[tuple[Lease, Bytes]], Bytes]:
        """What it has found, as far as that is in use by all that is known (it may have been freed since): what of it
        counts as an earlier holder's still, or is overdue of another, as no file told whose it is; and what of it is
        foreign.
        """
        left, found = waiter.found, []
        returning = self.leases.returning.values()
        for lease in [lease for lease in returning if lease.has_outlived and lease.name == waiter.name]:
            found.append((lease, both(lease.returning, left)))
            left = minus(left, lease.returning)
        foreign = both(left, self.devices.foreign)
        left = minus(left, foreign)
        for lease in [lease for lease in returning if lease.overdue and lease.tree is not waiter.tree]:
            if lease.has_outlived and lease.name == waiter.name:
                continue
            found.append((lease, both(lease.returning, left)))
            left = minus(left, lease.returning)
        return found, foreign

    def _for_others(self, waiter: Waiter, behind: list[Waiter], in_vain: list[Waiter]) -> Iterator[tuple[Lease, float]]:
        """Estates, and from when: those that no heir has asked for; and those of heirs that want more than there is,
        and that wait behind this one or may not keep it waiting.
        """
        asked_for = {w.name for w in self.waiters.values() if self.heirs.has(w.name, w.tree)}
        for lease in self.leases.of_tree(""):
            if lease.bytes and lease.name not in asked_for:
                yield lease, lease.fresh_until
        passed = [w for w in in_vain if w.priority > waiter.priority or self._has_some(waiter)]
        found = dict[int, Lease]()
        for heir in (*behind, *passed):
            estate, lacks = self.heirs.estate(heir.name, heir.tree), self.lacks(heir)
            if estate is None or estate is self._has(waiter):
                continue
            if any(count > self.devices.room(device) for device, count in lacks.items()):
                found[estate.number] = estate
        yield from ((estate, 0.0) for estate in found.values())

    def _has(self, waiter: Waiter) -> Lease | None:
        return waiter.lease or self.heirs.estate(waiter.name, waiter.tree)

    def _has_some(self, waiter: Waiter) -> bool:
        """Or has found some in use."""
        return self._has(waiter) is not None or bool(waiter.found)

    def _held_by_another(self, waiter: Waiter) -> str:
        """One holder of a name at a time."""
        lease = self.leases.named(waiter.name) if waiter.lease is None else None
        if lease is None or lease is self.heirs.estate(waiter.name, waiter.tree):
            return ""
        return f"{lease.tree.engine_id} holds it" if lease.tree is not None else "its bytes are kept for an heir"

    # -- the plan --------------------------------------------------------------------------------------------------

    def plan(self, plan: Plan, grant: Callable[[Waiter], object]) -> None:
        """One deed at a time; then it is planned anew."""
        ahead: Counter[str] = Counter()
        in_vain: dict[int, Counter[str]] = {}
        """By priority: what those before lack that can't be had by asking. They keep no more urgent one waiting, and
        none that has something already: that may be what they wait for.
        """
        hopeless: set[tuple[int, str]] = set()
        """One of this priority was found to lack more of this device than there is for the asking."""
        vain_waiters: list[Waiter] = []
        coming, line = self._coming(), self.line()
        for place, waiter in enumerate(line):
            if waiter.tree.stage is not Stage.PRESENT:
                continue
            if why := self.devices.never_fits(waiter.needs, seen=self.memory.is_known):
                plan.do(self._deny, waiter, why)
                return
            if why := self._held_by_another(waiter):
                self._say(plan, waiter, f"{waiter.name}: {why}")
                continue
            if not waiter.needs.keys() <= self.devices.totals.keys():
                self._say(plan, waiter, "it is not known yet what there is of each device")
                self.memory.plan(plan, self._pace(plan, waiter))
                continue
            lacks, has_some = self.lacks(waiter), self._has_some(waiter)
            vain = [all for p, all in in_vain.items() if p <= waiter.priority and not has_some]
            before = {device: ahead[device] + sum(all[device] for all in vain) for device in lacks}
            still = Counter[str]()
            for _, part in self.still_has(waiter):
                still.update(part)
            short = some({d: need + before[d] - self.devices.room(d) - still[d] for d, need in lacks.items()})
            if not short and self._is_free(plan, waiter, lacks, still):
                plan.do(grant, waiter)
                return
            if short and not minus(short, self.devices.foreign):
                self.memory.plan(plan, self._pace(plan, waiter))  # a driver may keep what a dead tree had
            lacking = minus(short, coming)
            vainly = {device for device in lacking if not has_some and (waiter.priority, device) in hopeless}
            if lacking and not vainly:
                estates = partial(self._for_others, waiter, line[place + 1 :], vain_waiters)
                vainly, chosen = self.asking.plan_room(plan, waiter, lacking, estates)
                if chosen:
                    plan.do(self.asking.ask, waiter, chosen)
                    return
            hopeless |= {(waiter.priority, device) for device in vainly}
            (in_vain.setdefault(waiter.priority, Counter()) if vainly else ahead).update(lacks)
            if vainly:
                vain_waiters.append(waiter)
            if place < MOST_TOLD and (short or self.memory.is_known):
                text = f"lacks {sizes(short)}" if short else f"{sizes(lacks or waiter.needs)} to be seen free"
                self._say(plan, waiter, text + (", and may ask no lease for so much" if vainly else ""))

    def _pace(self, plan: Plan, waiter: Waiter) -> float:
        return pace(plan.now - max(waiter.since, self.returns.last_at))

    def _say(self, plan: Plan, waiter: Waiter, text: str) -> None:
        if waiter.waits_for != text:
            plan.do(self._note, waiter, text)

    def _is_free(self, plan: Plan, waiter: Waiter, lacks: Bytes, still: Mapping[str, int]) -> bool:
        """There is room by what was promised; and so it is seen in this moment, where it can be."""
        # What a dead holder had is to be seen free, too.
        new = lacks if waiter.lease is not None else self._new_to_it(waiter)
        needs = {d: need + self.taken[d] - still.get(d, 0) for d, need in new.items() if self.devices.can_be_read(d)}
        if not needs or self.memory.fits(needs):
            return True
        self.memory.plan(plan, self._pace(plan, waiter))
        return False

    def _coming(self) -> Bytes:
        """What is on its way back, or has only to be proven free."""
        coming = Counter(self.leases.sum_returning)
        for lease in self.leases.returning.values():
            if lease.overdue or lease.has_outlived:
                coming.subtract(lease.returning)
        for lease in self.leases.all.values():
            if lease.ends:
                coming.update({} if lease.outlives or self.heirs.keep(lease) else lease.bytes)
            elif lease.asked is not None and not lease.asked.late:
                coming.update(lease.asked.bytes)
        return coming

    # -- what is done ----------------------------------------------------------------------------------------------

    def join(self, waiter: Waiter) -> None:
        self.waiters[waiter.tree.name, waiter.number] = waiter
        self.context.changed = True

    def leave(self, waiter: Waiter) -> None:
        self.waiters.pop((waiter.tree.name, waiter.number), None)
        self.context.changed = True

    def lost(self, who: Incarnation) -> None:
        """It waits for nothing any more."""
        for waiter in [waiter for waiter in self.waiters.values() if waiter.tree is who]:
            self.leave(waiter)

    def _deny(self, waiter: Waiter, why: str) -> None:
        self.leave(waiter)
        self.context.note("denied", name=waiter.name, why=why)
        self.tell(waiter.tree, m.Denied(number=waiter.number, why=why))

    def _note(self, waiter: Waiter, text: str) -> None:
        waiter.waits_for = text
        self.context.changed = True
