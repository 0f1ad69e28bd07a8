"""What comes back to a new server of the pools: descriptors of memory, and the owner (rule 6 of `pool_machine.py`).

Pure, a part of the pools' machine. What the file says about it, and for whom this server waits: `pool_recovery.py`.
"""

from gms import events as e
from gms import messages as m
from gms.context import Context
from gms.holders import TOO_MANY_LAYOUTS
from gms.pool_claims import shape_of
from gms.pool_drops import PoolDrops
from gms.pool_file import PoolFile
from gms.pool_members import Member
from gms.pool_news import PoolNews
from gms.pools import Phase, Pool, Pools
from gms.weights import Slab


class PoolHandBack:
    def __init__(self, context: Context, pools: Pools, file: PoolFile, news: PoolNews, drops: PoolDrops) -> None:
        self._context = context
        self._pools = pools
        self._file = file
        self._news = news
        self._drops = drops

    def take(self, member: Member, message: m.PoolBack, slabs: tuple[e.Slab, ...]) -> m.Problem | None:
        """It is answered here: the memory is the pool's, or it is stale."""
        pool, member.says_what_it_has = self._pools.get(member.key), False
        sizes = (*message.sizes, message.table_size)
        came = tuple(Slab(each.handle, each.identity, size) for each, size in zip(slabs, sizes, strict=False))
        if pool is None or pool.generation != message.generation or pool.shape != shape_of(message):
            self._context.forget(slabs)
            return self._stale(
                member, message.generation, f"memory {message.generation} is not that of pool {member.key}"
            )
        if pool.phase is Phase.AWAITED and not self._takes_back(pool, member, came):
            self._context.forget(slabs)
            return self._stale(member, message.generation, f"its memory is not that of pool {pool.key} in the file")
        if pool.slabs != came:
            self._context.forget(slabs)
        member.has = message.generation
        why = self._owns_again(pool, member, message.token) if message.token else ""
        if why:
            self._context.refuse(member.conn, why, "stale")
        else:
            self._context.send(member.conn, m.PoolKept(generation=message.generation))
        self._news.tell(pool)
        return None

    def _takes_back(self, pool: Pool, member: Member, came: tuple[Slab, ...]) -> bool:
        if tuple(slab.identity for slab in came) != pool.identities:
            return False
        pool.hand_back(came)
        self._context.note("pool_handed_back", pool=pool.key, engine=member.engine_id, generation=pool.generation)
        return True

    def _owns_again(self, pool: Pool, member: Member, token: int) -> str:
        """Why it does not; empty: it does."""
        old = pool.owner
        if token != pool.token:
            return f"pool {pool.key} was given to token {pool.token} since"
        if old is not None and not old.is_the_same(member.identity, member.local_pid):
            why = f"{member} says that it owns pool {pool.key}, and {old.name} does"
            self._context.shout(f"{why}: two processes may write it")
            return why
        if old is not None and old.process is not None and old.process != member.process:
            self._context.out.append(e.ForgetProcess(old.process))
        if old is None or pool.doubt:
            self._file.write_again()
        pool.own_again(token, member.as_owner(self._context.now, adopted=False, old=old))
        return ""

    def _stale(self, member: Member, generation: int, why: str) -> m.Problem | None:
        self._context.note("pool_stale", pool=member.key, engine=member.engine_id, why=why)
        self._context.refuse(member.conn, why, "stale")
        if not self._drops.asked(member, generation):
            return m.Problem(why=TOO_MANY_LAYOUTS)
        pool = self._pools.get(member.key)
        if pool is not None:
            self._news.tell_one(pool, member)
        return None
