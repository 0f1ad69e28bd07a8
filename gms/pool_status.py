"""The public status of pools. Pure; it is given what it reads, and decides nothing."""

from collections.abc import Sequence

from gms import messages as m
from gms.pool_members import Member
from gms.pools import Pool


def status_of(pool: Pool, members: Sequence[Member], blocks: dict[int, tuple[int, int]]) -> m.PoolStatus:
    """`blocks`: for the handle of a table, how many of its records are true, and how many there are."""
    shape = pool.shape
    true, total = blocks.get(pool.slabs[-1].handle, (0, 0)) if pool.slabs else (0, 0)
    return m.PoolStatus(
        key=pool.key,
        state=pool.phase.value,
        owner=pool.owner.name if pool.owner is not None else "",
        token=pool.token,
        generation=pool.generation,
        digest=shape.digest if shape is not None else "",
        bytes=shape.bytes if shape is not None else 0,
        table_bytes=shape.table_size if shape is not None else 0,
        blocks=true,
        blocks_total=total,
        keepers=sum(member.has == pool.generation != 0 for member in members),
        doubt=pool.doubt,
        adoptions=pool.adoptions,
        drops=dict(pool.drops),
    )
