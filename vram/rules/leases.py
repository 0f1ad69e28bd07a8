"""The leases, and what they come to on each device (rule V1 of `machine.py`).

Pure. A lease counts with all its bytes from the moment in which it is decided until it has ended, whether or not its
holder knows of it, or uses them. Every change goes through here, so that the sums are always those of the leases.
"""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field

from evidence.rules.incarnation import Incarnation, Stage
from vram.rules.messages import Bytes
from vram.rules.record import Leased


@dataclass(frozen=True, slots=True)
class Asked:
    """Its holder was asked to give so much back."""

    bytes: Bytes
    until: float
    for_name: str
    late: bool = False


@dataclass(slots=True, eq=False)
class Lease:
    number: int
    name: str
    tree: Incarnation | None
    """None: its holder is gone, and it may be an heir's, or the next holder's."""
    bytes: Bytes
    priority: int = 0
    evictable: bool = True
    granted_at: str = ""
    used_at: float = 0.0
    fresh_until: float = 0.0
    """Not used since it was granted: it isn't asked for before. Of an estate: so long it waits for an heir."""
    returning: Bytes = field(default_factory=dict)
    """Said to be given back, and not seen to be free."""
    returning_since: float = 0.0
    overdue: bool = False
    """It should have been seen to be free long ago: it isn't on its way, and its holder still has it."""
    asked: Asked | None = None
    inherited: bool = False
    """Or found: its holder has it of an earlier one, and may not know yet."""
    outlives: bool = False
    """Other processes keep what it has: the end of its holder doesn't free it."""

    @property
    def counted(self) -> Bytes:
        return plus(self.bytes, self.returning)

    @property
    def is_there(self) -> bool:
        """Its holder can hear what it is asked."""
        return self.tree is not None and self.tree.stage is Stage.PRESENT

    @property
    def has_outlived(self) -> bool:
        """Its holder is gone, and what it had may be in use: the next holder of the name may have found it."""
        return self.tree is None and bool(self.returning)

    @property
    def ends(self) -> bool:
        """Its holder is gone, as far as is known, which has to be proven."""
        return self.tree is not None and self.tree.stage is Stage.DOOMED

    def recorded(self) -> Leased:
        tree = self.tree.name if self.tree is not None else ""
        mine = (self.bytes, self.returning, self.priority, self.evictable, self.granted_at)
        return Leased(self.number, self.name, tree, *mine, self.inherited, self.outlives)


@dataclass(slots=True, eq=False)
class Waiter:
    """For a lease, or for its lease to grow."""

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
    outlives: bool = False
    found: Bytes = field(default_factory=dict)
    """So much of it is in use already, and came to it from an earlier holder."""
    waits_for: str = ""
    """For people."""

    def place(self, age_s: float) -> float:
        return self.since + self.priority * age_s


class Leases:
    def __init__(self) -> None:
        self.all: dict[int, Lease] = {}
        self.returning: dict[int, Lease] = {}
        """Those of which something is returning."""
        self.asked: dict[int, Lease] = {}
        self.leased: Counter[str] = Counter()
        """Device -> bytes, without what is returning."""
        self.sum_returning: Counter[str] = Counter()
        self.altered = False
        """The file doesn't say how they are now."""
        self._named: dict[str, dict[int, Lease]] = {}
        """Name -> leases that have bytes."""
        self._of_tree: dict[str, dict[int, Lease]] = {}

    # -- questions -------------------------------------------------------------------------------------------------

    def counted(self, device: str) -> int:
        return self.leased[device] + self.sum_returning[device]

    def named(self, name: str) -> Lease | None:
        """The one that has bytes under this name."""
        return next(iter(self._named.get(name, {}).values()), None)

    def is_held(self, name: str) -> bool:
        return any(lease.tree is not None for lease in self._named.get(name, {}).values())

    def of_tree(self, tree: str) -> list[Lease]:
        return list(self._of_tree.get(tree, {}).values())

    def trees(self) -> dict[str, Incarnation]:
        return {name: tree for name, all in self._of_tree.items() for tree in [next(iter(all.values())).tree] if tree}

    # -- what is done ----------------------------------------------------------------------------------------------

    def add(self, lease: Lease) -> Lease:
        self._own(lease, lease.tree)
        self._count(lease)
        return lease

    def change(self, lease: Lease, *, bytes: Bytes | None = None, returning: Bytes | None = None) -> None:
        """One of which nothing is left has ended."""
        self.altered = True
        self._discount(lease)
        lease.bytes = lease.bytes if bytes is None else some(bytes)
        lease.returning = lease.returning if returning is None else some(returning)
        if lease.bytes or lease.returning:
            if lease.number not in self.all:  # it had ended, and has something again
                self._own(lease, lease.tree)
            self._count(lease)
        elif lease.number in self.all:
            self._disown(lease)

    def end(self, lease: Lease) -> None:
        self.change(lease, bytes={}, returning={})

    def pass_on(self, lease: Lease, tree: Incarnation | None, number: int | None = None) -> None:
        """To an heir, with a new number; or its holder is gone."""
        self._discount(lease)
        self._disown(lease)
        lease.number = lease.number if number is None else number
        self._own(lease, tree)
        self._count(lease)

    def ask(self, lease: Lease, asked: Asked | None) -> None:
        lease.asked = asked
        self.asked.pop(lease.number, None)
        if asked is not None:
            self.asked[lease.number] = lease

    def _own(self, lease: Lease, tree: Incarnation | None) -> None:
        self.altered = True
        lease.tree = tree
        self.all[lease.number] = lease
        self._of_tree.setdefault(tree.name if tree is not None else "", {})[lease.number] = lease

    def _disown(self, lease: Lease) -> None:
        self.ask(lease, None)
        del self.all[lease.number]
        tree = lease.tree.name if lease.tree is not None else ""
        del self._of_tree[tree][lease.number]
        if not self._of_tree[tree]:
            del self._of_tree[tree]

    def _count(self, lease: Lease) -> None:
        self.leased.update(lease.bytes)
        self.sum_returning.update(lease.returning)
        if lease.bytes:
            self._named.setdefault(lease.name, {})[lease.number] = lease
        if lease.returning:
            self.returning[lease.number] = lease

    def _discount(self, lease: Lease) -> None:
        self.leased.subtract(lease.bytes)
        self.sum_returning.subtract(lease.returning)
        self.returning.pop(lease.number, None)
        named = self._named.get(lease.name, {})
        named.pop(lease.number, None)
        if not named:
            self._named.pop(lease.name, None)


def some(bytes: Bytes) -> Bytes:
    return {device: count for device, count in bytes.items() if count > 0}


def both(one: Bytes, other: Mapping[str, int]) -> Bytes:
    """What the one has, and no more of it than the other."""
    return some({device: min(count, other.get(device, 0)) for device, count in one.items()})


def plus(one: Bytes, other: Bytes) -> Bytes:
    return {device: one.get(device, 0) + other.get(device, 0) for device in (*one, *(d for d in other if d not in one))}


def minus(one: Bytes, other: Mapping[str, int]) -> Bytes:
    """What of the one is more than the other."""
    return some({device: count - other.get(device, 0) for device, count in one.items()})
