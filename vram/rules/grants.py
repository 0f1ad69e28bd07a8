"""What is granted, and that it is on disk before its holder hears of it (rules V1 and V3 of `machine.py`). Pure."""

from dataclasses import dataclass

from evidence.rules.incarnation import Incarnation
from sidecar.machine.context import rfc3339
from vram.rules import messages as m
from vram.rules.books import Books, Part
from vram.rules.leases import Lease, Waiter, minus, some
from vram.rules.messages import Bytes
from vram.rules.queue import Queue
from vram.rules.returns import Returns


@dataclass(frozen=True, slots=True)
class Telling:
    """What a lease has is on disk; then its holder is told."""

    tree: Incarnation
    number: int
    lease: Lease


class Grants(Part):
    def __init__(self, books: Books, queue: Queue, returns: Returns) -> None:
        super().__init__(books)
        self.queue = queue
        self.returns = returns
        self.newest = 0
        """The number of the lease that was granted last."""

    def are_untold(self, tree: Incarnation, number: int) -> bool:
        """This wish was granted, and the answer waits for the disk."""
        return any(isinstance(o, Telling) and (o.tree, o.number) == (tree, number) for o in self.disk.owed)

    def grant(self, waiter: Waiter) -> None:
        self.queue.leave(waiter)
        lease = waiter.lease or self.heirs.estate(waiter.name, waiter.tree)
        found, foreign = self.queue.found(waiter)
        lacks, again = self.queue.lacks(waiter), [*self.queue.still_has(waiter), *found]
        self.queue.taken.update(lacks)
        for old, part in again:
            self._give_again(waiter, old, part)
        if lease is None:
            lease = self.leases.add(Lease(self._number(), waiter.name, waiter.tree, dict(some(waiter.needs))))
        elif lease.tree is None:  # an heir; what it doesn't need is free
            self.returns.less_in_use_soon(minus(lease.bytes, waiter.needs))
            self.leases.change(lease, bytes=waiter.needs)
            self.leases.pass_on(lease, waiter.tree, self._number())
            lease.inherited = True
        else:
            self.leases.change(lease, bytes=waiter.needs)
        if waiter.lease is None:
            lease.priority, lease.evictable, lease.outlives = waiter.priority, waiter.evictable, waiter.outlives
            lease.granted_at, lease.used_at = rfc3339(self.context.wall), self.context.now
            lease.fresh_until = self.context.now + self.config.least_held_s
        if waiter.found:
            lease.inherited = True
            for device, count in foreign.items():
                self.context.note("found", name=lease.name, tree=waiter.tree.name, device=device, bytes=count)
            self.devices.foreign.subtract(foreign)
        self.context.note("granted", lease=lease.number, name=lease.name, tree=waiter.tree.name)
        self.disk.owe_next(Telling(waiter.tree, waiter.number, lease))

    def _give_again(self, waiter: Waiter, lease: Lease, part: Bytes) -> None:
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

    def say(self, telling: Telling) -> None:
        """It is on disk."""
        lease = telling.lease
        self.tell(telling.tree, m.Granted(number=telling.number, lease=lease.number, bytes=lease.bytes))

    def say_nothing_to(self, who: Incarnation) -> None:
        """It has come anew, and says what it knows."""
        self.disk.take_back(lambda owed: isinstance(owed, Telling) and owed.tree is who)
