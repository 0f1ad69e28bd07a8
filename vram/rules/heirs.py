"""Which trees inherit a name (rule V7 of `machine.py`).

Pure. While an heir of its name lives, a dead holder's lease is an estate: it stays, of no tree, for an heir to ask for.
"""

from evidence.rules.incarnation import Incarnation
from vram.rules.leases import Lease, Leases


class Heirs:
    def __init__(self, leases: Leases) -> None:
        self.leases = leases
        self._of: dict[str, dict[str, Incarnation]] = {}
        """Name -> those that inherit it."""

    def keep(self, lease: Lease) -> bool:
        """Its bytes stay with the name when its holder dies; unless they were to be given back."""
        return lease.name in self._of and lease.asked is None and not lease.outlives

    def estate(self, name: str, tree: Incarnation) -> Lease | None:
        """What it inherits: its holder is gone."""
        lease = self.leases.named(name)
        return lease if lease is not None and lease.tree is None and self.has(name, tree) else None

    def estates_of_none(self) -> list[Lease]:
        """Their last heir is gone, too; or an older file didn't say that one has had them since."""
        estates = [lease for lease in self.leases.of_tree("") if lease.bytes]
        return [lease for lease in estates if lease.name not in self._of or self.leases.is_held(lease.name)]

    def has(self, name: str, tree: Incarnation) -> bool:
        return tree.name in self._of.get(name, {})

    def names_of(self, tree: Incarnation) -> list[str]:
        return [name for name, heirs in self._of.items() if tree.name in heirs]

    def trees(self) -> dict[str, Incarnation]:
        return {name: tree for heirs in self._of.values() for name, tree in heirs.items()}

    def recorded(self) -> dict[str, list[str]]:
        return {name: list(heirs) for name, heirs in self._of.items()}

    def add(self, name: str, tree: Incarnation) -> None:
        self._of.setdefault(name, {})[tree.name] = tree

    def forget(self, tree: Incarnation) -> None:
        """It is gone."""
        for name in self.names_of(tree):
            del self._of[name][tree.name]
            if not self._of[name]:
                del self._of[name]
