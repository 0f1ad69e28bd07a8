"""Telling whoever has to do with a pool what there is, whenever that changes.

Pure, a part of the pools' machine (`pool_machine.py`). Who hasn't got the descriptors yet gets them with it. So the
standby has them, too, and neither its owner's death nor a crash of this server loses the memory.
"""

from gms import messages as m
from gms.context import Context
from gms.pool_members import Member, Members
from gms.pools import Pool


class PoolNews:
    def __init__(self, context: Context, members: Members) -> None:
        self._context = context
        self._members = members

    def tell(self, pool: Pool, but: Member | None = None) -> None:
        """Everybody."""
        self._context.changed = True
        for member in self._members.of(pool.key):
            if member is not but:
                self.tell_one(pool, member)

    def tell_one(self, pool: Pool, member: Member) -> None:
        shape, owner = pool.shape, pool.owner
        if member.says_what_it_has:
            return
        if shape is None:
            self._context.send(member.conn, m.PoolIs(generation=0))
        elif pool.slabs:
            handles = () if member.has == pool.generation else tuple(slab.handle for slab in pool.slabs)
            member.has = pool.generation
            message = m.PoolIs(
                generation=pool.generation,
                digest=shape.digest,
                sizes=list(shape.sizes),
                table_size=shape.table_size,
                owner=owner.name if owner is not None else "",
            )
            self._context.send(member.conn, message, handles)
