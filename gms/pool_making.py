"""Memory that is being made for the claim of a pool: one at a time, and again and again while the device is full.

Pure, a part of the pools' machine (`pool_machine.py`). The same for a writer's slabs: `writing.py`.
"""

from dataclasses import dataclass
from typing import NamedTuple

from gms import events as e
from gms import messages as m
from gms.context import Context
from gms.pool_drops import PoolDrops
from gms.pool_members import Claim, Member, Members
from gms.pools import Pool, Shape
from gms.writing import RETRY_S


@dataclass
class Wanted:
    conn: int
    claim: int
    pool: Pool
    shape: Shape
    why_empty: str
    retry_at: float
    asked: bool = True
    """The shell is making it; its answer decides what follows."""


class NotMade(NamedTuple):
    """That claim is to be refused."""

    member: Member
    why: str
    reason: m.Reason


class PoolMaking:
    def __init__(self, context: Context, members: Members, drops: PoolDrops) -> None:
        self._context = context
        self._members = members
        self._drops = drops
        self.wanted: Wanted | None = None

    @property
    def busy(self) -> bool:
        """The shell is asked."""
        return self.wanted is not None and self.wanted.asked

    def wanted_by(self, member: Member) -> Wanted | None:
        return self.wanted if self.wanted is not None and self.wanted.conn == member.conn else None

    def begin(self, pool: Pool, member: Member, claim: Claim, shape: Shape, why_empty: str) -> None:
        pool.make()
        self.wanted = Wanted(member.conn, claim.number, pool, shape, why_empty, self._context.now)
        self._ask(self.wanted)

    def step(self) -> None:
        """Asks again, when that is due."""
        wanted = self.wanted
        if wanted is not None and not wanted.asked and self._context.reached(wanted.retry_at):
            self._ask(wanted)

    def withdraw(self, member: Member) -> None:
        """Its claim is not wanted any more."""
        wanted = self.wanted_by(member)
        if wanted is not None:
            self.wanted = None
            wanted.pool.cannot_make()

    def asks(self, conn: int) -> tuple[Wanted, Member, Claim] | None:
        """For whom the shell has made it, or couldn't; None: nobody wants it any more."""
        wanted = self.wanted
        member = self._members.asking(wanted.conn, wanted.claim) if wanted is not None else None
        if wanted is None or member is None or member.claim is None or wanted.conn != conn:
            return None
        return wanted, member, member.claim

    def failed(self, event: e.PoolNotAllocated) -> NotMade | None:
        """None: it is tried again, or nobody wants it any more."""
        asks = self.asks(event.conn)
        if asks is None:
            return None
        wanted, member, claim = asks
        wanted.asked = False
        if not event.why and self._context.now < claim.until:
            wanted.retry_at = min(self._context.now + RETRY_S, claim.until)
            return None
        self.wanted = None
        wanted.pool.cannot_make()
        who = "".join(f"; {sentence}" for sentence in self._drops.late(0.0))
        why = f"pool {member.key} needs {event.needed} bytes, and {event.free} are free{who}"
        return NotMade(member, event.why or why, "not_now" if event.why else "no_memory")

    def _ask(self, wanted: Wanted) -> None:
        wanted.asked = True
        self._context.out.append(e.AllocatePool(wanted.conn, wanted.shape.sizes, wanted.shape.table_size))
