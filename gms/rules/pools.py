"""A pool: memory that belongs to a pair of engines and outlives each of them, such as a KV cache.

Pure, and the only owner of all this. A pool has a key, memory of a frozen shape, a table beside it, and at most one
owner: the process that may write. Everything that can happen to a pool is one method here, and `MAY_FOLLOW` says which
phase may follow which; another step raises BrokenRule, which the machine turns into an alarm.

    EMPTY     there is no memory; only the newest token is known
    MAKING    memory is being made for the process that will be the owner
    OWNED     a process may write, and lives as far as is known
    FREE      no process may write. The memory is as the last owner left it
    AWAITED   this server is new: memory is on disk, and is to be handed back by a process with its descriptors

What this file may not do: decide who may become the owner (`claims.py`), speak to a process, or look at the time.
"""

from collections import Counter
from dataclasses import dataclass, field
from enum import Enum

from gms.rules.messages import Shape as Shape
from gms.rules.record import Owner as RecordedOwner
from gms.rules.record import Region as RecordedRegion
from gms.rules.record import Slab as RecordedSlab
from gms.rules.weights import BrokenRule, Slab


class Phase(Enum):
    EMPTY = "EMPTY"
    MAKING = "MAKING"
    OWNED = "OWNED"
    FREE = "FREE"
    AWAITED = "AWAITED"


MAY_FOLLOW: dict[Phase, frozenset[Phase]] = {
    # A process claims what isn't there yet; a new server reads of it in the file.
    Phase.EMPTY: frozenset({Phase.MAKING, Phase.AWAITED}),
    # It is made; it can't be.
    Phase.MAKING: frozenset({Phase.OWNED, Phase.EMPTY}),
    # The owner releases it, or ends.
    Phase.OWNED: frozenset({Phase.FREE}),
    # It is adopted, or its owner turns out to live; it is given up.
    Phase.FREE: frozenset({Phase.OWNED, Phase.EMPTY}),
    # It is handed back, by its owner or by another process; it is given up.
    Phase.AWAITED: frozenset({Phase.OWNED, Phase.FREE, Phase.EMPTY}),
}


class Owner(RecordedOwner, frozen=True):
    """The process that may write."""

    process: int | None = None
    """Its pidfd's number; None where this server has none."""
    conn: int | None = None
    """Its connection, while it has one: it may be the owner without."""

    def is_the_same(self, identity: str, pid: int) -> bool:
        """As that process. While it lives no other has its number."""
        if self.identity and identity:
            return self.identity == identity
        return pid != 0 and self.pid == pid

    def record(self) -> RecordedOwner:
        return RecordedOwner(self.name, self.pid, self.identity, self.since, self.adopted, self.writes_end)


@dataclass
class Pool:
    key: str
    phase: Phase = Phase.EMPTY
    token: int = 0
    """The newest with which an owner was let in: it never falls."""
    generation: int = 0
    """The memory's number; 0: there is none."""
    shape: Shape | None = None
    identities: tuple[str, ...] = ()
    """What can be told of the ranges and, last, of the table from outside."""
    slabs: tuple[Slab, ...] = ()
    """Their descriptors, in the same order; none while they are awaited."""
    owner: Owner | None = None
    doubt: str = ""
    """Why no process is given these contents: it can't be told that none writes; or they may be what kills."""
    doubt_kind: str = ""
    """In a word: `unproven` or `second_death`."""
    dropped: bool = False
    """There is no memory, because a person wanted that: its place, and its token, may go to another key."""
    adoptions: int = 0
    drops: Counter[str] = field(default_factory=Counter)

    @property
    def awaited(self) -> RecordedRegion | None:
        """What is to be handed back."""
        return self.record() if self.phase is Phase.AWAITED else None

    @property
    def there(self) -> tuple[int, str]:
        """Number and digest of the memory that is there, or else awaited; 0 and nothing if there is none."""
        return self.generation, self.shape.digest if self.shape is not None else ""

    @property
    def standing(self) -> tuple[Slab, ...]:
        return self.slabs

    def record(self) -> RecordedRegion:
        shape, owner = self.shape, self.owner
        if shape is None:
            return RecordedRegion(self.key, "exclusive", token=self.token, dropped=self.dropped)
        sizes = (*shape.sizes, shape.table_size)
        slabs = tuple(RecordedSlab(size, identity) for size, identity in zip(sizes, self.identities, strict=True))
        recorded = owner.record() if owner is not None else None
        return RecordedRegion(
            self.key,
            "exclusive",
            self.generation,
            shape.digest,
            slabs,
            self.token,
            recorded,
            self.doubt,
            self.doubt_kind,
        )

    # -- steps -----------------------------------------------------------------------------------------------------

    def make(self) -> None:
        """Memory is going to be made."""
        self._becomes(Phase.MAKING, before=(Phase.EMPTY,))

    def cannot_make(self) -> None:
        self._becomes(Phase.EMPTY, before=(Phase.MAKING,))

    def made(self, generation: int, shape: Shape, slabs: tuple[Slab, ...], token: int, owner: Owner) -> None:
        """The file says so already."""
        self._becomes(Phase.OWNED, before=(Phase.MAKING,))
        self._raise_token(token)
        self.generation, self.shape, self.slabs, self.owner = generation, shape, slabs, owner
        self.identities = tuple(slab.identity for slab in slabs)
        self.doubt = self.doubt_kind = ""
        self.dropped = False

    def adopt(self, token: int, owner: Owner) -> None:
        """The file says so already."""
        if self.doubt:
            raise BrokenRule(f"pool {self.key} is adopted, though {self.doubt}")
        self._becomes(Phase.OWNED, before=(Phase.FREE,))
        self._raise_token(token)
        self.owner = owner
        self.adoptions += 1

    def own_again(self, token: int, owner: Owner) -> None:
        """The owner has come back, or claims anew what it has."""
        if token < self.token:
            raise BrokenRule(f"pool {self.key} is owned again with token {token}, and {self.token} is the newest")
        if self.phase is not Phase.OWNED:
            self._becomes(Phase.OWNED, before=(Phase.FREE,))
        self._raise_token(token)
        self.owner, self.doubt, self.doubt_kind = owner, "", ""

    def free(self, doubt: str = "", kind: str = "") -> Owner:
        """The owner has ended, or released it. Returns who it was."""
        self._becomes(Phase.FREE, before=(Phase.OWNED,))
        owner, self.owner = self.owner, None
        if owner is None:
            raise BrokenRule(f"pool {self.key} has no owner, and is freed")
        self.doubt, self.doubt_kind = doubt, kind
        return owner

    def handed_back(self, slabs: tuple[Slab, ...]) -> None:
        """What was awaited is here."""
        if tuple(slab.identity for slab in slabs) != self.identities:
            raise BrokenRule(f"other memory is handed back than that of pool {self.key}")
        self._becomes(Phase.OWNED if self.owner is not None else Phase.FREE, before=(Phase.AWAITED,))
        self.slabs = slabs

    def await_(self, record: RecordedRegion, owner: Owner | None, doubt: str, kind: str) -> None:
        """What the file says, to a new server."""
        self._must_be(Phase.EMPTY)  # also where there is no memory to wait for
        self.token, self.dropped = record.token, record.dropped
        if not record.generation:
            return
        *ranges, table = record.slabs
        self._becomes(Phase.AWAITED, before=(Phase.EMPTY,))
        self.generation = record.generation
        self.shape = Shape(record.hash, tuple(slab.size for slab in ranges), table.size)
        self.identities = tuple(slab.identity for slab in record.slabs)
        self.owner, self.doubt, self.doubt_kind = owner, doubt, kind

    def owner_ended(self, doubt: str, kind: str) -> None:
        """The memory is still awaited."""
        self._must_be(Phase.AWAITED)
        self.owner, self.doubt, self.doubt_kind = None, doubt, kind

    def give_up(self, why: str) -> tuple[Slab, ...]:
        """The file says already that it has no memory. Returns what is needed no more."""
        if self.owner is not None:
            raise BrokenRule(f"pool {self.key} is given up, and {self.owner.name} owns it")
        self._becomes(Phase.EMPTY, before=(Phase.FREE, Phase.AWAITED))
        slabs = self.slabs
        self.generation, self.shape, self.identities, self.slabs = 0, None, (), ()
        self.doubt = self.doubt_kind = ""
        self.dropped = why == "dropped"
        self.drops[why] += 1
        return slabs

    def _raise_token(self, token: int) -> None:
        if token < self.token:
            raise BrokenRule(f"pool {self.key} is given to token {token}, and {self.token} is the newest")
        self.token = token

    def _must_be(self, phase: Phase) -> None:
        if self.phase is not phase:
            raise BrokenRule(f"pool {self.key} is {self.phase.value}, and not {phase.value}")

    def _becomes(self, phase: Phase, before: tuple[Phase, ...]) -> None:
        if self.phase not in before or phase not in MAY_FOLLOW[self.phase]:
            raise BrokenRule(f"pool {self.key}: {phase.value} can't follow {self.phase.value} here")
        self.phase = phase
