"""Which holders are asked to give back, and what becomes of that (rule V9 of `machine.py`).

Pure. No more of them are asked than it takes, none where that leads to nothing, and nothing is killed.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from evidence.rules.incarnation import Incarnation
from sidecar.machine.plan import Plan
from vram.rules import messages as m
from vram.rules.books import Books, Part
from vram.rules.leases import Asked, Lease, Waiter, both, minus
from vram.rules.messages import Bytes
from vram.rules.returns import Returns


class Asking(Part):
    def __init__(self, books: Books, returns: Returns) -> None:
        super().__init__(books)
        self.returns = returns

    def plan_room(
        self, plan: Plan, waiter: Waiter, short: Bytes, estates: Callable[[], Iterable[tuple[Lease, float]]]
    ) -> tuple[set[str], list[tuple[Lease, Bytes]]]:
        """On which devices no asking leads to enough; and if there are none, what is to be asked for now. `estates`:
        what heirs would have to leave to it, and from when.
        """
        may = list(self._may_be_asked(waiter))
        if minus(short, _sum(lease for lease, _ in may)):
            may += estates()
        vainly = set(minus(short, _sum(lease for lease, _ in may)))
        for _, at in may:
            plan.wait_until(at)
        return vainly, _choose(short, [lease for lease, at in may if at <= plan.now])

    def _may_be_asked(self, waiter: Waiter) -> Iterator[tuple[Lease, float]]:
        """And from when."""
        for lease in self.leases.all.values():
            asked, may = lease.asked, lease.evictable and lease.priority >= waiter.priority
            if not may or not lease.is_there or lease is waiter.lease:
                continue
            if asked is None:
                yield lease, lease.fresh_until
            elif asked.late:
                yield lease, asked.until + self.config.ask_again_s

    def plan(self, plan: Plan, *, any_waits: bool) -> None:
        for lease in self.leases.asked.values():
            asked = lease.asked
            if asked is None or (any_waits if asked.late else plan.wait_until(asked.until)):
                continue
            if any_waits and lease.tree is not None:
                plan.do(self._say_that_it_is_late, lease, asked, lease.tree)
            else:
                plan.do(self._forget, lease)

    def ask(self, waiter: Waiter, chosen: list[tuple[Lease, Bytes]]) -> None:
        for lease, part in chosen:
            if lease.tree is None:  # its holder is gone
                self.returns.end(lease, "left_to_others", wanted_for=waiter.name)
                continue
            self.leases.ask(lease, Asked(part, self.context.now + self.config.ask_s, waiter.name))
            self.context.note("asked", lease=lease.number, name=lease.name, wanted_for=waiter.name)
            self.say(lease)
        self.context.changed = True

    def say(self, lease: Lease) -> None:
        """To its holder, if it was asked."""
        asked = lease.asked
        if asked is not None and lease.tree is not None:
            left_s = max(0.0, asked.until - self.context.now)
            why = f"{asked.for_name} waits for it"
            self.tell(lease.tree, m.Asked(lease=lease.number, bytes=asked.bytes, timeout_s=left_s, why=why))

    def _forget(self, lease: Lease) -> None:
        """No waiter wants it any more."""
        self.leases.ask(lease, None)
        self.context.calm(f"asked {lease.number}")

    def _say_that_it_is_late(self, lease: Lease, asked: Asked, tree: Incarnation) -> None:
        self.leases.ask(lease, Asked(asked.bytes, asked.until, asked.for_name, late=True))
        self.context.alarm(
            f"asked {lease.number}",
            f"{tree.engine_id} (process {tree.pid}) was asked to give back {lease.name} for {asked.for_name}, "
            f"and has not within {self.config.ask_s:g} s",
        )


def _choose(short: Bytes, may: list[Lease]) -> list[tuple[Lease, Bytes]]:
    """The least urgent first, then the least recently used, and no more of them than it takes."""
    given = _sum(may)
    if minus(short, given):
        return []
    chosen: list[Lease] = []
    line = sorted(may, key=lambda lease: (-lease.priority, lease.used_at))
    for lease in reversed(line):
        without = given - Counter(lease.bytes)
        if minus(short, without):
            chosen.insert(0, lease)
        else:
            given = without
    asked, left = [], short
    for lease in chosen:
        asked.append((lease, both(left, lease.bytes)))
        left = minus(left, lease.bytes)
    return asked


def _sum(leases: Iterable[Lease]) -> Counter[str]:
    total: Counter[str] = Counter()
    for lease in leases:
        total.update(lease.bytes)
    return total
