"""What a tree asks for (rule V11 of `machine.py`). Pure: what waits is granted by the queue."""

from evidence.rules.admission import Reception
from evidence.rules.events import Received
from evidence.rules.incarnation import Incarnation
from evidence.rules.tree_machine import Answer
from vram.rules import messages as m
from vram.rules.books import Books, Part
from vram.rules.grants import Grants, Telling
from vram.rules.leases import Lease, Waiter, both, minus, some
from vram.rules.messages import Bytes
from vram.rules.queue import Queue
from vram.rules.returns import Returns

MOST_WAITERS = 500
MOST_OF_ONE = 100


class Requests(Part):
    def __init__(self, books: Books, reception: Reception, queue: Queue, returns: Returns, grants: Grants) -> None:
        super().__init__(books)
        self.reception = reception
        self.queue = queue
        self.returns = returns
        self.grants = grants

    def reserve(self, event: Received, message: m.Reserve, who: Incarnation) -> None:
        named = self.leases.named(message.name)
        needs = some(message.needs)
        if not needs:
            self._deny(who, message.number, "no bytes are asked for")
        elif named is not None and named.tree is who:
            self._deny(who, message.number, f"{message.name} is this tree's already: resize it")
        else:
            self._wait(message, who, needs, message)

    def resize(self, event: Received, message: m.Resize, who: Incarnation) -> None:
        lease = self.leases.all.get(message.lease)
        if lease is None or lease.tree is not who:
            self._deny(who, message.number, f"lease {message.lease} is not this tree's")
            return
        for waiter in list(self.queue.waiters.values()):
            if waiter.lease is lease:
                self.queue.leave(waiter)
                self._deny(who, waiter.number, f"{lease.name} is to have another size by now")
        wanted, was_found = some(message.bytes), lease.inherited and lease.outlives
        lease.inherited = False
        if message.unused and was_found and not wanted:  # it heard too late that it has what it has found
            self.returns.outlive(lease)
        self.returns.give_back(lease, both(lease.bytes, wanted), unused=message.unused)
        if minus(wanted, lease.bytes):
            self._wait(message, who, wanted, lease)
            return
        self.disk.owe_next(Telling(who, message.number, lease))

    def _wait(self, message: m.Reserve | m.Resize, who: Incarnation, needs: Bytes, of: m.Reserve | Lease) -> None:
        """`of`: a new lease, or the one that is to grow."""
        lease = of if isinstance(of, Lease) else None
        waiters, has = self.queue.waiters, len(self.leases.of_tree(who.name))
        waiting = sum(waiter.tree is who for waiter in waiters.values())
        too_many = lease is None and waiting + has >= m.MOST_LEASES_OF_ONE
        if too_many or waiting >= MOST_OF_ONE or len(waiters) >= MOST_WAITERS:
            self._deny(who, message.number, "too many leases, or too many that wait")
            return
        since, wall = self.context.now - message.waited_s, self.context.wall - message.waited_s
        waiter = Waiter(who, message.number, of.name, needs, of.priority, of.evictable, since, wall, lease)
        if isinstance(message, m.Reserve):
            waiter.outlives, waiter.found = bool(message.outlives), some(message.found or {})
        self.queue.join(waiter)
        self.context.note("waiting", name=waiter.name, tree=who.name)

    def _deny(self, who: Incarnation, number: int, why: str) -> None:
        self.context.note("denied", why=why)
        self.tell(who, m.Denied(number=number, why=why))

    def withdraw(self, event: Received, message: m.Withdraw, who: Incarnation) -> None:
        self.queue.waiters.pop((who.name, message.number), None)
        self.context.changed = True
        if not self.grants.are_untold(who, message.number):
            self.tell(who, m.Withdrawn(number=message.number))

    def set(self, event: Received, message: m.Set, who: Incarnation) -> None:
        lease = self.leases.all.get(message.lease)
        if lease is None or lease.tree is not who:
            return  # it was given back a moment ago
        lease.priority = lease.priority if message.priority is None else message.priority
        lease.evictable = lease.evictable if message.evictable is None else message.evictable
        if message.used:
            lease.used_at, lease.fresh_until = self.context.now, 0.0
        self.context.changed = self.context.changed or message.priority is not None or message.evictable is not None

    def heir(self, event: Received, message: m.Heir, who: Incarnation) -> None:
        if len(self.heirs.names_of(who)) >= m.MOST_HEIRED:
            self.reception.throw_out(event, f"a tree is heir of at most {m.MOST_HEIRED} names")
            return
        self.heirs.add(message.name, who)
        self.disk.owe_next(Answer(event.conn, m.Named(name=message.name)))
