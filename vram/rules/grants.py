"""What is granted, and that it is on disk before its holder hears of it (rules V1, V3, V12 of `machine.py`). Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, field

from evidence.rules.incarnation import Incarnation, Stage
from sidecar.machine.context import rfc3339
from vram.rules import messages as m
from vram.rules.books import Books, Part
from vram.rules.leases import Lease, Waiter, minus, plus, some
from vram.rules.messages import Bytes
from vram.rules.queue import Queue
from vram.rules.returns import Returns

MOST_REMEMBERED = 1000


@dataclass(frozen=True, slots=True)
class Telling:
    """What a lease has is on disk; then its holder is told."""

    tree: Incarnation
    number: int
    lease: Lease
    waiter: Waiter | None = None
    """Which was granted it. None: its holder has given back a part, and that stands."""
    before: Bytes | None = None
    """What it had. None: it is new. (An heir's is what it has inherited.)"""
    again: Sequence[tuple[Lease, Bytes]] = ()
    """What was returning of these, and is the holder's again, or was found by it."""
    found: Bytes = field(default_factory=dict)
    """What it has found, and was foreign."""


class Grants(Part):
    def __init__(self, books: Books, queue: Queue, returns: Returns) -> None:
        super().__init__(books)
        self.queue = queue
        self.returns = returns
        self.newest = 0
        """The number of the lease that was granted last."""
        self.remembered: dict[str, Bytes] = {}
        """Name -> what its lease was last resized to."""

    def are_untold(self, tree: Incarnation, number: int) -> bool:
        """This wish was granted, and the answer waits for the disk."""
        return any((each.tree, each.number) == (tree, number) for each in self._untold())

    def _untold(self) -> list[Telling]:
        return [owed for owed in self.disk.owed if isinstance(owed, Telling)]

    def grant(self, waiter: Waiter) -> None:
        self.queue.leave(waiter)
        lease = waiter.lease or self.heirs.estate(waiter.name, waiter.tree)
        found, foreign = self.queue.found(waiter)
        lacks, again = self.queue.lacks(waiter), [*self.queue.still_has(waiter), *found]
        self.queue.taken.update(lacks)
        before = dict(lease.bytes) if lease is not None else None
        for old, part in again:
            self._has_again(waiter, old, part)
        if lease is None:
            lease = self.leases.add(Lease(self._number(), waiter.name, waiter.tree, dict(some(waiter.needs))))
        elif lease.tree is None:  # an heir; what it doesn't need is free
            self.returns.free(minus(lease.bytes, waiter.needs))
            self.leases.change(lease, bytes=waiter.needs)
            self.leases.pass_on(lease, waiter.tree, self._number())
            lease.inherited = True
        else:
            self.leases.change(lease, bytes=waiter.needs)
        if waiter.lease is None:
            lease.priority, lease.evictable, lease.outlives = waiter.priority, waiter.evictable, waiter.outlives
            lease.granted_at, lease.used_at = rfc3339(self.context.wall), self.context.now
            lease.fresh_until = self.context.now + self.config.least_held_s
        else:
            self.remember(lease)
        if waiter.found:
            lease.inherited = True
            for device, count in foreign.items():
                self.context.note("found", name=lease.name, tree=waiter.tree.name, device=device, bytes=count)
            self.devices.foreign.subtract(foreign)
        self.disk.owe_next(Telling(waiter.tree, waiter.number, lease, waiter, before, again, foreign))

    def _has_again(self, waiter: Waiter, lease: Lease, part: Bytes) -> None:
        self.leases.change(lease, returning=minus(lease.returning, part))
        if not lease.returning:
            self.context.calm(f"returning {lease.number}")
        for device, count in part.items():
            self.context.note("has_again", name=lease.name, tree=waiter.tree.name, device=device, bytes=count)

    def _number(self) -> int:
        self.newest += 1
        while self.newest in self.leases.all:  # a holder has claimed it
            self.newest += 1
        return self.newest

    def remember(self, lease: Lease) -> None:
        self.remembered.pop(lease.name, None)
        self.remembered[lease.name] = dict(lease.bytes)
        if len(self.remembered) > MOST_REMEMBERED:
            del self.remembered[next(iter(self.remembered))]

    def say(self, telling: Telling) -> None:
        """It is on disk."""
        tree, lease = telling.tree, telling.lease
        if telling.waiter is not None:
            self.context.note("granted", lease=lease.number, name=lease.name, tree=tree.name)
        self.tell(tree, m.Granted(number=telling.number, lease=lease.number, bytes=lease.bytes))

    def say_nothing_to(self, who: Incarnation) -> None:
        """It is gone, or has come anew and says what it knows."""
        self.disk.take_back(lambda owed: isinstance(owed, Telling) and owed.tree is who)

    def take_back(self) -> None:
        """What is not on disk, and was not told, is decided anew."""
        untold = [telling for telling in self._untold() if telling.waiter is not None]
        self.disk.take_back(lambda owed: owed in untold)
        for telling in reversed(untold):
            if telling.waiter is not None:
                self._take_back(telling, telling.waiter)

    def _take_back(self, telling: Telling, waiter: Waiter) -> None:
        lease, before = telling.lease, telling.before
        for old, part in telling.again:
            self.leases.change(old, returning=plus(old.returning, part))
        self.devices.foreign.update(telling.found)
        if before is None:
            self.leases.end(lease)
        else:
            self.leases.change(lease, bytes=before)
            if waiter.lease is None:
                self.leases.pass_on(lease, None)
        if waiter.tree.stage is Stage.PRESENT:
            self.queue.join(waiter)
