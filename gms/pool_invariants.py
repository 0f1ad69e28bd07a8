"""What must hold of pools after every event, checked in production, as that of the weights is (`invariants.py`).

Pure. What this file may not do: change anything.
"""

from collections.abc import Sequence

from gms import events as e
from gms import messages as m
from gms.pool_members import MOST_MEMBERS, Members
from gms.pool_record import Record
from gms.pools import MOST_POOLS, Phase, Pool, Pools

TELLS = (m.PoolOwned, m.PoolReleased, m.PoolCleared)
"""Messages by which somebody may write, or is promised something."""


class PoolInvariants:
    def __init__(self, pools: Pools, members: Members) -> None:
        self._pools = pools
        self._members = members
        self._tokens: dict[str, int] = {}
        """As of the event before."""
        self._newest = 0

    def broken(self, effects: Sequence[object], on_disk: Record | None) -> str:
        """The first rule that doesn't hold, in a sentence; empty if all do."""
        rule = next(filter(None, map(self._of_one, self._pools)), "") or self._together()
        rule = rule or self._told(effects, on_disk)
        self._tokens = {pool.key: pool.token for pool in self._pools}
        self._newest = self._pools.newest_generation
        return rule

    def _of_one(self, pool: Pool) -> str:
        phase, what = pool.phase, f"pool {pool.key} is {pool.phase.value}"
        newest = self._pools.newest_generation
        has_memory = pool.shape is not None and pool.generation > 0
        if has_memory is not (phase in (Phase.OWNED, Phase.FREE, Phase.AWAITED)):
            return f"{what}, and has {'memory' if has_memory else 'none'}"
        if bool(pool.slabs) is not (phase in (Phase.OWNED, Phase.FREE)):
            return f"{what}, and {len(pool.slabs)} of its descriptors are here"
        if phase is Phase.OWNED and pool.owner is None:
            return f"{what}, and has no owner"
        if pool.owner is not None and phase not in (Phase.OWNED, Phase.AWAITED):
            return f"{what}, and {pool.owner.name} is its owner"
        if pool.shape is not None and len(pool.identities) != len(pool.shape.sizes) + 1:
            return f"{what}, and {len(pool.identities)} parts of it are known"
        if pool.generation > newest:
            return f"{what} with memory {pool.generation}, and {newest} is the newest that was given"
        if pool.token < self._tokens.get(pool.key, 0):
            return f"the token of pool {pool.key} falls to {pool.token}"
        return ""

    def _together(self) -> str:
        handles = [slab.handle for pool in self._pools for slab in pool.slabs]
        if len(set(handles)) != len(handles):
            return "two pools have the same memory"
        if self._pools.newest_generation < self._newest:
            return f"generations of pools fall: {self._pools.newest_generation} after {self._newest}"
        if len(list(self._pools)) > MOST_POOLS or len(self._members) > MOST_MEMBERS:
            return f"there are {len(list(self._pools))} pools, and {len(self._members)} have to do with them"
        return ""

    def _told(self, effects: Sequence[object], on_disk: Record | None) -> str:
        """First on disk, then told; and no descriptor of memory that stands is closed."""
        for effect in effects:
            if type(effect) is e.Send and type(effect.message) is m.PoolOwned:
                pool = next(
                    (each for each in self._pools if each.owner is not None and each.owner.conn == effect.conn), None
                )
                if pool is None or pool.generation != effect.message.generation:
                    return f"memory {effect.message.generation} is given to connection {effect.conn}, which owns none"
                said = {each.key: each for each in on_disk.pools} if on_disk is not None else {}
                if pool.key not in said or (said[pool.key].token, said[pool.key].generation) != (
                    pool.token,
                    pool.generation,
                ):
                    return f"pool {pool.key} is given to token {pool.token}, and that is not on disk"
            elif type(effect) is e.Forget:
                stands = {slab.handle for pool in self._pools for slab in pool.slabs}
                if stands.intersection(effect.slabs):
                    return "descriptors of a pool that stands are forgotten"
        return ""
