"""What this server has leased of its device in the ledger of the host's memory, by region (rule 8 of `machine.py`).

Pure, a part of the machine. A lease covers what weights take: it grows before memory is made, and shrinks once its
descriptors are closed here. (Whether that memory is really free the ledger sees for itself.) What a server before this
one has made, and is handed back, is *found*: a lease of it needs no room, and is asked for until there is one. What a
pool takes is in its engine's lease.
"""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from gms.rules import events as e
from gms.rules.context import Context
from gms.rules.weights import Slab
from sidecar.machine.plan import Plan

AGAIN_S = 1.0
"""How soon a lease of what was found is asked for again."""
FIND_S = 5.0
"""How long a wish for it may wait: what a writer wants to make waits behind it."""


class Growing(NamedTuple):
    key: str
    bytes: int
    """How large its lease is to be."""
    found: tuple[int, ...]
    """Handles of what it covers that no lease has covered here."""


class Leases:
    def __init__(self, context: Context, *, are_wanted: bool) -> None:
        self._context = context
        self.are_wanted = are_wanted
        """There is a ledger."""
        self._covers: set[int] = set()
        """Handles of what leases cover, some of them gone by now."""
        self._has: dict[str, int] = {}
        """Region -> bytes of its lease."""
        self._growing: dict[int, Growing] = {}
        """By the number of the wish."""
        self._again_at: dict[str, float] = {}
        """Region -> when a lease of what was found is asked for again."""
        self._wishes = 0

    def grow(self, key: str, slabs: Sequence[Slab], size: int, wait_s: float) -> int:
        """By so much beside the region's slabs. Returns the number of the wish."""
        self._wishes += 1
        found = self._found(slabs)
        target = sum(slab.size for slab in slabs) + size
        self._growing[self._wishes] = Growing(key, target, tuple(slab.handle for slab in found))
        has_found = sum(slab.size for slab in found)
        self._context.out.append(e.Lease(key, target, self._wishes, max(wait_s, 0.0), has_found))
        return self._wishes

    def call_off(self, wish: int) -> None:
        """Until it is answered it has its place in the ledger's queue, and the region's next wish is behind it."""
        self._context.out.append(e.CallOff(wish))

    def answered(self, event: e.Leased) -> None:
        growing = self._growing.pop(event.wish)
        if event.why:
            self._again_at[growing.key] = self._context.now + AGAIN_S
        else:
            self._has[growing.key] = growing.bytes
            self._covers.update(growing.found)

    def made(self, slabs: Sequence[Slab]) -> None:
        if self.are_wanted:
            self._covers.update(slab.handle for slab in slabs)

    def plan(self, plan: Plan, slabs: Mapping[str, Sequence[Slab]], making: Collection[str]) -> None:
        """`slabs`: what each region takes of the device; `making`: those for which memory is being made, whose lease is
        ahead of it.
        """
        busy = {growing.key for growing in self._growing.values()}.union(making)
        for key, has in self._has.items():
            left = sum(slab.size for slab in slabs.get(key, ()))
            if key not in busy and has > left:
                plan.do(self._shrink, key, left)
        for key, all in slabs.items():
            if key not in busy and self._found(all) and not plan.wait_until(self._again_at.get(key, 0.0)):
                plan.do(self.grow, key, all, 0, FIND_S)

    def _found(self, slabs: Sequence[Slab]) -> list[Slab]:
        return [slab for slab in slabs if slab.handle not in self._covers]

    def _shrink(self, key: str, left: int) -> None:
        if left:
            self._has[key] = left
        else:
            del self._has[key]
        self._context.out.append(e.Lease(key, left))
