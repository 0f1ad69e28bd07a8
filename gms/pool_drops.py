"""Asking processes to drop memory that a pool has no more (rule 4 of `pool_machine.py`).

Pure, a part of the pools' machine. The same for layouts of weights: `drops.py`.
"""

from gms.context import Context
from gms.drops import ANSWER_S
from gms.holders import MOST_LAYOUTS
from gms.pool_members import Member, Members


class PoolDrops:
    def __init__(self, context: Context, members: Members) -> None:
        self._context = context
        self._members = members

    def asked(self, member: Member, generation: int) -> bool:
        """It was told that this memory is not the pool's, and is to say when it has let go of it. False: it has more
        to let go of than one process can have.
        """
        member.dropping[generation] = self._context.now
        return len(member.dropping) <= MOST_LAYOUTS

    def dropped(self, member: Member, generation: int) -> None:
        if member.dropping.pop(generation, None) is not None:
            self._context.note("pool_dropped", pool=member.key, engine=member.engine_id)

    def late(self, after_s: float) -> list[str]:
        """Who still has memory that was given up, so long after it was asked to drop it. In sentences."""
        return [
            f"{member} still has memory {generation} of pool {member.key}, which was given up"
            for member in self._members.all
            for generation, at in member.dropping.items()
            if self._context.reached(at + after_s)
        ]

    def step(self) -> None:
        """Whoever doesn't answer is named in an alarm."""
        late = self.late(ANSWER_S)
        if late:
            self._context.alarm("pool_drops", "; ".join(late[:5]))
        else:
            self._context.calm("pool_drops")
