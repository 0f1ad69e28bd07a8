"""What this server has leased of its device in the ledger of the host's memory, by region (rule 8 of `machine.py`).

Pure, a part of the machine. A lease covers what this server made for weights: it grows before memory is made, and
shrinks once its descriptors are closed here. (Whether that memory is really free the ledger sees for itself.) What was
made by a server before this one, and is handed back, has no lease: to the ledger it is foreign, and taken off what
there is. What a pool takes is in its engine's lease.
"""

from collections.abc import Collection, Iterable, Mapping

from gms.rules import events as e
from gms.rules.context import Context
from gms.rules.weights import Slab
from sidecar.machine.plan import Plan


class Leases:
    def __init__(self, context: Context, *, are_wanted: bool) -> None:
        self._context = context
        self.are_wanted = are_wanted
        """There is a ledger."""
        self._made: set[int] = set()
        """Handles of what this server made, some of them gone by now."""
        self._has: dict[str, int] = {}
        """Region -> bytes of its lease."""
        self._growing: dict[int, tuple[str, int]] = {}
        """Number of the wish -> the region, and how large its lease is to be."""
        self._wishes = 0

    def grow(self, key: str, slabs: Iterable[Slab], size: int, wait_s: float) -> int:
        """By so much beside the region's slabs. Returns the number of the wish."""
        self._wishes += 1
        target = self._covered(slabs) + size
        self._growing[self._wishes] = key, target
        self._context.out.append(e.Lease(key, target, self._wishes, max(wait_s, 0.0)))
        return self._wishes

    def call_off(self, wish: int) -> None:
        """Until it is answered it has its place in the ledger's queue, and the region's next wish is behind it."""
        self._context.out.append(e.CallOff(wish))

    def answered(self, event: e.Leased) -> None:
        key, target = self._growing.pop(event.wish)
        if not event.why:
            self._has[key] = target

    def made(self, slabs: Iterable[Slab]) -> None:
        if self.are_wanted:
            self._made.update(slab.handle for slab in slabs)

    def plan(self, plan: Plan, slabs: Mapping[str, Iterable[Slab]], making: Collection[str]) -> None:
        """`slabs`: what each region has; `making`: those for which memory is being made, whose lease is ahead of it."""
        busy = {key for key, _ in self._growing.values()}.union(making)
        for key, has in self._has.items():
            left = self._covered(slabs.get(key, ()))
            if key not in busy and has > left:
                plan.do(self._shrink, key, left)

    def _covered(self, slabs: Iterable[Slab]) -> int:
        return sum(slab.size for slab in slabs if slab.handle in self._made)

    def _shrink(self, key: str, left: int) -> None:
        if left:
            self._has[key] = left
        else:
            del self._has[key]
        self._context.out.append(e.Lease(key, left))
