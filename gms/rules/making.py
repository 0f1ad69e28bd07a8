"""Memory that is being made: a writer's next slab, or all of a pool at once.

Pure. On a full device it is asked for again and again, for a bounded time, and no longer than its process wants it: no
event says when memory becomes free. Where there is a ledger, the lease of weights grows first (`leases.py`); a device
where it can't is a full one. What follows from it is its region's business.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from gms.rules import events as e
from gms.rules.context import Context
from gms.rules.leases import Leases
from gms.rules.weights import Slab
from sidecar.machine.plan import Plan

RETRY_S = 0.02
"""How soon memory is asked for again on a full device."""


@dataclass
class Wanted:
    conn: int
    sizes: tuple[int, ...]
    table_size: int
    until: float
    request: int = 0
    """The number of the claim for which it is made."""
    retry_at: float = 0.0
    free: int = 0
    asked: bool = False
    """The shell is making it; its answer decides what follows."""
    key: str = ""
    """The region's whose lease grows for it; empty: none does."""
    leasing: int = 0
    """The number of the wish to the ledger, until that answers; nothing else waits for it. 0: none."""

    @property
    def bytes(self) -> int:
        return sum(self.sizes)


class Making:
    def __init__(self, context: Context, leases: Leases) -> None:
        self._context = context
        self._leases = leases
        self._wanted: dict[int, Wanted] = {}

    @property
    def busy(self) -> bool:
        return any(wanted.asked for wanted in self._wanted.values())

    def of(self, conn: int | None) -> Wanted | None:
        """What is being made for it. (A process asks for one thing at a time.)"""
        return self._wanted.get(conn) if conn is not None else None

    @property
    def keys(self) -> set[str]:
        """Regions whose lease is ahead of what they have."""
        return {wanted.key for wanted in self._wanted.values()}

    def begin(self, wanted: Wanted, slabs: Sequence[Slab] = ()) -> None:
        """`slabs`: what its region takes already, if that has a lease."""
        self._wanted[wanted.conn] = wanted
        if wanted.key and self._leases.are_wanted:
            left_s = wanted.until - self._context.now
            wanted.leasing = self._leases.grow(wanted.key, slabs, wanted.bytes, left_s)
        else:
            self._ask(wanted)

    def leased(self, event: e.Leased) -> Wanted | None:
        """None: it is made now, or isn't wanted any more; else it can't be made."""
        self._leases.answered(event)
        wanted = next((each for each in self._wanted.values() if each.leasing == event.wish), None)
        if wanted is None:
            return None
        wanted.leasing = 0
        return self._wanted.pop(wanted.conn) if event.why else None

    def withdraw(self, conn: int) -> Wanted | None:
        """It isn't wanted any more."""
        wanted = self._wanted.pop(conn, None)
        if wanted is not None and wanted.leasing:
            self._leases.call_off(wanted.leasing)
        return wanted

    def failed(self, event: e.NotAllocated) -> Wanted | None:
        """None: it is tried again, or isn't wanted any more."""
        wanted, now = self._wanted.get(event.conn), self._context.now
        if wanted is None:
            return None
        wanted.free, wanted.asked, self._context.changed = event.free, False, True
        if not event.why and now < wanted.until:
            wanted.retry_at = min(now + RETRY_S, wanted.until)
            return None
        return self._wanted.pop(event.conn)

    def plan(self, plan: Plan) -> None:
        for wanted in self._wanted.values():
            if not wanted.asked and not wanted.leasing and not plan.wait_until(wanted.retry_at):
                plan.do(self._ask, wanted)
                return  # one at a time: what is asked is answered first

    def _ask(self, wanted: Wanted) -> None:
        wanted.asked = True
        self._context.out.append(e.Allocate(wanted.conn, wanted.sizes, wanted.table_size))
