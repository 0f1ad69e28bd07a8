"""Who is connected because of a pool: what descriptors each has, what each has asked for, and in which order.

Pure. A connection is about one pool. Whoever has one keeps descriptors of whatever memory that pool has, owner or not;
so the memory outlives its owner, and a crash of this server.

What this file may not do: decide who may own a pool (`pool_claims.py`).
"""

from dataclasses import dataclass, field

from gms import messages as m
from gms.pools import Owner, Pool

MOST_MEMBERS = 64


@dataclass(frozen=True)
class Claim:
    """A `ClaimPool` that waits."""

    message: m.ClaimPool
    number: int
    """Its place in the queue; no two have the same."""
    until: float
    why_empty: str = ""
    """Memory is being made for it, and this is why."""


@dataclass
class Member:
    conn: int
    key: str
    engine_id: str
    pid: int
    process: int | None
    identity: str
    """The kernel's name for it; empty on older kernels."""
    local_pid: int
    """Its number in this server's own PID namespace; 0 where it has none."""
    writes_end: bool = False
    """What it writes ends with its process."""
    says_what_it_has: bool = False
    """It has descriptors already, and will say of what (`PoolBack`): until then it is told nothing."""
    has: int = 0
    """The generation whose descriptors it has."""
    claim: Claim | None = None
    dropping: dict[int, float] = field(default_factory=dict)
    """Generations that it was asked to drop, and when."""

    def __str__(self) -> str:
        return f"{self.engine_id} (pid {self.pid})"

    def as_owner(self, now: float, *, adopted: bool, old: Owner | None = None) -> Owner:
        """`old`: it has been the owner, and what is known of that stays. (A filter that came later says nothing about
        what was begun before.)
        """
        since, writes_end = now, self.writes_end
        if old is not None:
            since, adopted, writes_end = old.since, old.adopted, old.writes_end and writes_end
        return Owner(str(self), self.process, self.local_pid, self.identity, since, adopted, self.conn, writes_end)

    def owns(self, pool: Pool) -> bool:
        """On this connection, or on one that ended."""
        owner = pool.owner
        if owner is None or owner.conn not in (None, self.conn):
            return False
        return owner.conn is not None or owner.is_the_same(self.identity, self.local_pid)


class Members:
    def __init__(self) -> None:
        self._members: dict[int, Member] = {}
        self._claims = 0

    def __len__(self) -> int:
        return len(self._members)

    def get(self, conn: int | None) -> Member | None:
        return self._members.get(conn) if conn is not None else None

    @property
    def all(self) -> list[Member]:
        """The oldest first."""
        return list(self._members.values())

    @property
    def full(self) -> bool:
        return len(self._members) >= MOST_MEMBERS

    def of(self, key: str) -> list[Member]:
        return [member for member in self._members.values() if member.key == key]

    def come(self, member: Member) -> None:
        self._members[member.conn] = member

    def gone(self, conn: int) -> Member | None:
        return self._members.pop(conn, None)

    def ask(self, member: Member, message: m.ClaimPool, until: float) -> None:
        self._claims += 1
        member.claim = Claim(message, self._claims, until)

    @property
    def queue(self) -> list[tuple[Member, Claim]]:
        """Those who wait, in the order in which they asked."""
        waiting = [(member, member.claim) for member in self._members.values() if member.claim is not None]
        return sorted(waiting, key=lambda each: each[1].number)

    def asking(self, conn: int, number: int) -> Member | None:
        """Whoever made that very claim, if it still waits."""
        member = self._members.get(conn)
        return member if member is not None and member.claim is not None and member.claim.number == number else None
