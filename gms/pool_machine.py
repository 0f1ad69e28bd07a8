"""The rules of pools: memory that belongs to a pair of engines, and who may write it.

Pure, a part of the machine (`machine.py`), and made of parts as that is. Here they are put together:

    pools.py          the pools and their phases           pool_news.py       who hears of what there is
    pool_members.py   who is connected, and the queue      pool_drops.py      memory that was given up
    pool_claims.py    who may own what, and why not        pool_recovery.py   what a new server knows
    pool_making.py    memory that is being made            pool_hand_back.py  what is handed back to it
    pool_file.py      what is on disk, and waits for that  pool_invariants.py what must hold after every event

The rules, and where they stand:

 1. One process at a time may write a pool. It is the owner for as long as its *process* lives, connected or not, or
    until it releases the pool (`pool_claims.py`).
 2. Nobody becomes the owner with a token older than the newest that anybody was let in with. The token, and whose the
    pool is, are on disk before the claim is answered.
 3. Contents are handed on only if they have the shape that is wanted, if the lock's grant was proven, and if this
    server knows that the owner before has ended or released it, and that nothing of it writes later: it could not have
    io_uring. Else there is new memory, and never the old.
 4. Contents that were given up are dropped by everybody: whoever has descriptors is asked, and named until it has.
    Whose owner lives is given up for nobody.
 5. An owner that dies soon after it has adopted leaves contents that nobody gets: they may be what kills.
 6. After a restart the file rules: that memory, and no other, can be handed back, by whoever has its descriptors.
    Its owner is looked for by the kernel's name for it; whoever comes back by the newest token owns it still.
"""

from dataclasses import replace

import msgspec

from gms import events as e
from gms import messages as m
from gms import pool_file as file
from gms import pool_status, versions
from gms.context import Context
from gms.holders import TOO_MANY_LAYOUTS
from gms.pool_claims import Do, Verdict, shape_of, verdict
from gms.pool_drops import PoolDrops
from gms.pool_file import PoolFile
from gms.pool_hand_back import PoolHandBack
from gms.pool_invariants import PoolInvariants
from gms.pool_making import PoolMaking
from gms.pool_members import Claim, Member, Members
from gms.pool_news import PoolNews
from gms.pool_record import Pool as RecordedPool
from gms.pool_record import Record
from gms.pool_recovery import PoolRecovery, doubt_of, late_writes
from gms.pools import MOST_POOLS, Owner, Phase, Pool, Pools
from gms.weights import Slab


class PoolMachine:
    def __init__(self, context: Context, config: e.Config, strangers: versions.Strangers) -> None:
        self._context = context
        self._config = config
        self._strangers = strangers
        self.pools = Pools()
        self.members = Members()
        self.file = PoolFile(context)
        self.recovery = PoolRecovery(context, self.pools, config)
        self.why_closed = ""
        """Why nobody is let in any more; empty while all is well."""
        self._news = PoolNews(context, self.members)
        self._drops = PoolDrops(context, self.members)
        self._making = PoolMaking(context, self.members, self._drops)
        self._hand_back = PoolHandBack(context, self.pools, self.file, self._news, self._drops)
        self._invariants = PoolInvariants(self.pools, self.members)

    def starts(self, event: e.Started) -> None:
        self.file.says = event.pools
        self.recovery.starts(event)

    def step(self) -> None:
        """Every conclusion that is due."""
        if not self.why_closed and not self._busy:
            if self.file.is_due:
                self.file.write(self._record())
            self._making.step()
            self._let_in()
        self._drops.step()

    def broken(self) -> str:
        """The first rule that doesn't hold, in a sentence."""
        return self._invariants.broken(self._context.out, self.file.says)

    @property
    def _busy(self) -> bool:
        """A question is open whose answer decides what follows."""
        return self.file.busy or self._making.busy

    @property
    def slabs(self) -> list[Slab]:
        """All whose descriptors are wanted here."""
        owed = [slab for each in self.file.owed if isinstance(each, file.Made) for slab in each.slabs]
        return [*owed, *(slab for pool in self.pools for slab in pool.slabs)]

    def knows(self, conn: int) -> bool:
        return self.members.get(conn) is not None

    # -- who comes and goes ----------------------------------------------------------------------------------------

    def introduce(self, event: e.Received, hello: m.PoolHello) -> m.Problem | None:
        """None: it is in."""
        problem = None
        if not versions.agreed(hello):
            self._strangers.came(hello)
            problem = m.Problem(why=versions.why_none(hello), about="protocol")
        elif self.members.full:
            problem = m.Problem(why=f"{len(self.members)} processes have to do with pools already", about="place")
        if problem is not None:
            if event.process is not None:
                self._context.out.append(e.ForgetProcess(event.process))
            return problem
        member = Member(
            event.conn,
            hello.key,
            hello.engine_id,
            hello.pid,
            event.process,
            event.identity,
            event.local_pid,
            event.writes_end,
            says_what_it_has=hello.have > 0,
        )
        self._strangers.talks(member.engine_id)
        self.members.come(member)
        if member.process is not None:
            self._context.out.append(e.WatchDeath(member.process))
        pool = self.pools.get(hello.key)
        welcome = m.PoolWelcome(
            server_incarnation=self._config.server_incarnation,
            device=self._config.device,
            granularity=self._config.granularity,
            protocol=versions.agreed(hello),
            generation=pool.generation if pool is not None else 0,
            awaited=pool is not None and pool.phase is Phase.AWAITED,
        )
        self._context.send(member.conn, welcome)
        if pool is not None:
            self._news.tell_one(pool, member)
        return None

    def left(self, conn: int) -> None:
        """Its connection ended, which says nothing about its process."""
        member = self.members.gone(conn)
        if member is None:
            return
        self._context.changed = True
        self._withdraw(member)
        owned = next((pool for pool in self.pools if pool.owner is not None and pool.owner.conn == conn), None)
        if owned is None or owned.owner is None:
            if member.process is not None:
                self._context.out.append(e.ForgetProcess(member.process))
        elif member.process is None:
            self._free(owned, f"the connection of {member} ended, and it can't be told whether it lives", "unproven")
        else:
            owned.owner.conn = None

    def _throw_out(self, member: Member, problem: m.Problem) -> None:
        self._context.send(member.conn, problem)
        self._context.out.append(e.Close(member.conn))
        self.left(member.conn)

    def died(self, process: int) -> None:
        """Everything of that process is over."""
        for member in self.members.all:
            if member.process == process:
                self._context.out.append(e.Close(member.conn))
                self.left(member.conn)
        for pool in self.pools:
            owner = pool.owner
            if owner is None or owner.process != process:
                continue
            self._context.out.append(e.ForgetProcess(process))
            doubt, kind = doubt_of(owner, self._context.now)
            if pool.phase is Phase.AWAITED:
                pool.owner_ended(doubt, kind)
                self._context.note("pool_owner_ended", pool=pool.key, owner=owner.name, doubt=doubt)
            else:
                self._free(pool, doubt, kind)

    def _free(self, pool: Pool, doubt: str, kind: str) -> None:
        """The owner has ended."""
        owner = pool.free(doubt, kind)
        self._context.note("pool_owner_ended", pool=pool.key, owner=owner.name, doubt=doubt)
        if doubt:
            self.file.write_again()
        self._news.tell(pool)

    # -- what they say ---------------------------------------------------------------------------------------------

    def received(self, event: e.Received) -> m.Problem | None:
        """From a connection that is known here."""
        member, message = self.members.get(event.conn), event.message
        if member is not None and isinstance(message, m.PoolBack):
            return self._hand_back.take(member, message, event.slabs)
        self._context.forget(event.slabs)
        if member is not None and isinstance(message, m.ClaimPool):
            return self._on_claim(member, message)
        if member is not None and isinstance(message, m.ReleasePool):
            self._on_release(member)
        elif member is not None and isinstance(message, m.PoolDropped):
            self._drops.dropped(member, message.generation)
        else:
            return m.Problem(why=f"{type(message).__name__}: this connection is about a pool")
        return None

    def _on_claim(self, member: Member, message: m.ClaimPool) -> m.Problem | None:
        if member.claim is not None:
            return m.Problem(why="ClaimPool: the last one isn't answered yet")
        why = self.why_closed or self._config.pools_off
        if why:
            self._refuse(member, why, "not_now" if self.why_closed else "off")
        elif any(size % self._config.granularity for size in message.sizes):
            self._refuse(member, f"sizes have to be multiples of {self._config.granularity}", "too_large")
        elif shape_of(message).bytes > self._config.capacity:
            why = f"{shape_of(message).bytes} bytes are wanted, and the device has {self._config.capacity}"
            self._refuse(member, why, "too_large")
        elif (pool := self.pools.of(member.key, [each.key for each, _ in self.members.queue])) is None:
            self._refuse(member, f"there are {MOST_POOLS} pools already: gmsctl drop-pool", "not_now")
        else:
            if pool.phase is Phase.AWAITED and pool.owner is not None and member.owns(pool):
                self._was_never_told(pool, pool.owner)
            self.members.ask(member, message, self._context.now + message.timeout_s)
            self._context.changed = True
        return None

    def _on_release(self, member: Member) -> None:
        """Also of a claim that isn't wanted any more: what was asked before is over with this answer."""
        self._withdraw(member)
        pool = self.pools.get(member.key)
        if pool is None or not member.owns(pool) or self.why_closed:
            self._context.send(member.conn, m.PoolReleased())
            return
        doubt, kind = late_writes(pool.owner) if pool.owner is not None else ("", "")
        recorded = msgspec.structs.replace(pool.record(), owner=None, doubt=doubt, doubt_kind=kind)
        self.file.write(self._record(recorded), file.Released(member.conn, pool.key))

    def _released(self, owed: file.Released) -> None:
        """It is on disk: a server after this one takes nobody for the owner who only lives on."""
        pool, member = self.pools.get(owed.key), self.members.get(owed.conn)
        if pool is not None and pool.owner is not None and member is not None and member.owns(pool):
            if pool.phase is Phase.AWAITED:
                self._was_never_told(pool, pool.owner)
            else:
                owner = pool.free(*late_writes(pool.owner))
                self._context.note("pool_released", pool=pool.key, owner=owner.name, doubt=pool.doubt)
                self._news.tell(pool)
        self._context.send(owed.conn, m.PoolReleased())

    def _withdraw(self, member: Member) -> None:
        member.claim = None
        self._making.withdraw(member)

    # -- who may own it (rules 1 to 3) -----------------------------------------------------------------------------

    def _let_in(self) -> None:
        for member, claim in self.members.queue:
            if self._busy:
                return
            pool = self.pools.get(member.key)
            if pool is None or self._making.wanted_by(member) is not None:
                continue
            self._decide(
                pool, member, claim, verdict(pool, member, claim.message, may_come_back=self.recovery.may_come_back)
            )

    def _decide(self, pool: Pool, member: Member, claim: Claim, found: Verdict) -> None:
        if found.do is Do.REFUSE:
            self._refuse(member, found.why, found.reason)
        elif found.do is Do.WAIT or (found.do is Do.MAKE and self._making.wanted is not None):
            if self._context.reached(claim.until):
                why = found.why or "memory is being made for another pool"
                self._refuse(member, f"{why}; waited {claim.message.timeout_s:g} s", found.reason)
        elif found.do is Do.MAKE:
            self._making.begin(pool, member, claim, shape_of(claim.message), claim.why_empty or found.why_empty)
        elif found.do is Do.GIVE_UP_AND_MAKE:
            member.claim = replace(claim, why_empty=found.why_empty)
            self._give_up(pool, "lost" if found.why_empty == "new" else found.why_empty, 0)
        else:
            owner = member.as_owner(self._context.now, adopted=True, old=pool.owner)
            recorded = msgspec.structs.replace(pool.record(), token=claim.message.token, owner=owner.record())
            owed = file.Adopted(member.conn, claim.number, pool.generation, owner)
            self.file.write(self._record(recorded), owed)

    def _was_never_told(self, pool: Pool, owner: Owner) -> None:
        """The server before died when that owner was on disk, and before it was told: it claims the pool, or gives it
        back, and has brought no memory. So nothing was ever written by it.
        """
        pool.owner_ended("", "")
        self.file.write_again()
        if owner.process is not None:
            self._context.out.append(e.ForgetProcess(owner.process))
        self._context.note("pool_owner_never_told", pool=pool.key, owner=owner.name)

    def _adopted(self, owed: file.Adopted) -> None:
        member = self.members.asking(owed.conn, owed.claim)
        pool = self.pools.get(member.key) if member is not None else None
        if member is None or member.claim is None or pool is None or pool.generation != owed.generation:
            self.file.write_again()
            return
        token, again = member.claim.message.token, pool.owner is not None
        if again:
            pool.own_again(token, owed.owner)
        else:
            pool.adopt(token, owed.owner)
        self._context.note(
            "pool_owned_again" if again else "pool_adopted", pool=pool.key, owner=owed.owner.name, token=token
        )
        self._owns(pool, member, "")

    def _owns(self, pool: Pool, member: Member, why_empty: str) -> None:
        member.claim = None
        handles = () if member.has == pool.generation else tuple(slab.handle for slab in pool.slabs)
        member.has = pool.generation
        owned = m.PoolOwned(generation=pool.generation, adopted=not why_empty, why_empty=why_empty)  # type: ignore[arg-type]
        self._context.send(member.conn, owned, handles)
        self._news.tell(pool, but=member)

    def _refuse(self, member: Member, why: str, reason: m.Reason) -> None:
        """Its claim is over."""
        member.claim = None
        self._context.note("pool_refused", pool=member.key, engine=member.engine_id, reason=reason, why=why)
        self._context.refuse(member.conn, why, reason)

    # -- memory ----------------------------------------------------------------------------------------------------

    def allocated(self, event: e.PoolAllocated) -> None:
        asks = self._making.asks(event.conn)
        if asks is None or self.why_closed:
            self._context.forget(event.slabs)
            return
        wanted, member, claim = asks
        self._making.wanted = None
        sizes = (*wanted.shape.sizes, wanted.shape.table_size)
        slabs = tuple(Slab(each.handle, each.identity, size) for each, size in zip(event.slabs, sizes, strict=True))
        owner = member.as_owner(self._context.now, adopted=False)
        generation, token = self.pools.next_generation(), claim.message.token
        planned = Pool(wanted.pool.key, Phase.MAKING, wanted.pool.token)
        planned.made(generation, wanted.shape, slabs, token, owner)
        owed = file.Made(
            member.conn, claim.number, generation, wanted.shape, slabs, owner, wanted.why_empty, wanted.pool.key
        )
        self.file.write(self._record(planned.record()), owed)

    def not_allocated(self, event: e.PoolNotAllocated) -> None:
        not_made = self._making.failed(event)
        if not_made is not None:
            self._refuse(*not_made)

    def _made(self, owed: file.Made) -> None:
        member, pool = self.members.asking(owed.conn, owed.claim), self.pools.get(owed.key)
        if pool is None or pool.phase is not Phase.MAKING:
            self._context.forget(owed.slabs)
            self.file.write_again()
        elif member is None or member.claim is None:
            pool.cannot_make()
            self._context.forget(owed.slabs)
            self.file.write_again()
        else:
            pool.made(owed.generation, owed.shape, owed.slabs, member.claim.message.token, owed.owner)
            self._context.note(
                "pool_made", pool=pool.key, owner=owed.owner.name, bytes=owed.shape.bytes, why=owed.why_empty
            )
            self._owns(pool, member, owed.why_empty)

    # -- given up (rule 4) -----------------------------------------------------------------------------------------

    def drop(self, conn: int, key: str) -> None:
        """An observer's wish."""
        pool = self.pools.get(key)
        if pool is None:
            self._context.refuse(conn, f"there is no pool {key}", "not_now")
        elif self.why_closed:
            self._context.refuse(conn, self.why_closed, "not_now")
        elif pool.owner is not None or pool.phase is Phase.MAKING:
            whose = pool.owner.name if pool.owner is not None else "a claim for which it is being made"
            self._context.refuse(conn, f"pool {key} is owned by {whose}: end that first", "owned")
        elif pool.phase is Phase.EMPTY:
            pool.dropped = True
            self.file.write_again()
            self._context.send(conn, m.PoolCleared(key=key, bytes=0))
        else:
            self._give_up(pool, "dropped", conn)

    def _give_up(self, pool: Pool, why: str, by: int) -> None:
        recorded = Pool(pool.key, token=pool.token, dropped=why == "dropped").record()
        self.file.write(self._record(recorded), file.GivenUp(pool.key, pool.generation, why, by))

    def _given_up(self, owed: file.GivenUp) -> None:
        pool = self.pools.get(owed.key)
        if pool is None or pool.generation != owed.generation or pool.owner is not None:
            self.file.write_again()
            return
        size = pool.shape.bytes if pool.shape is not None else 0
        self._context.forget(pool.give_up(owed.why))
        self._context.note("pool_given_up", pool=pool.key, generation=owed.generation, why=owed.why)
        for member in self.members.of(pool.key):
            if member.has == owed.generation:
                member.has = 0
                self._context.send(member.conn, m.PoolGone(generation=owed.generation))
                if not self._drops.asked(member, owed.generation):
                    self._throw_out(member, m.Problem(why=TOO_MANY_LAYOUTS))
        self._news.tell(pool)
        if owed.by:
            self._context.send(owed.by, m.PoolCleared(key=pool.key, bytes=size))

    # -- the disk --------------------------------------------------------------------------------------------------

    def persisted(self, event: e.PoolsPersisted) -> None:
        for owed in self.file.persisted(event.seq):
            if isinstance(owed, file.Made):
                self._made(owed)
            elif isinstance(owed, file.Adopted):
                self._adopted(owed)
            elif isinstance(owed, file.Released):
                self._released(owed)
            else:
                self._given_up(owed)

    def persist_failed(self, event: e.PoolsPersistFailed) -> None:
        why = f"the pools' file can't be written ({event.why})"
        for owed in self.file.failed(event.seq, event.why):
            if isinstance(owed, file.Released):
                self._context.refuse(owed.conn, f"{why}: it is still the owner's, and can be released again", "disk")
                continue
            if isinstance(owed, file.GivenUp):
                if owed.by:
                    self._context.refuse(owed.by, why, "disk")
                asking = [member for member, claim in self.members.queue if member.key == owed.key and claim.why_empty]
            else:
                member = self.members.asking(owed.conn, owed.claim)
                asking = [member] if member is not None else []
            if isinstance(owed, file.Made):
                self._context.forget(owed.slabs)
                if (pool := self.pools.get(owed.key)) is not None and pool.phase is Phase.MAKING:
                    pool.cannot_make()
            for member in asking:
                self._refuse(member, f"{why}: nobody may own it", "disk")

    def _record(self, *changed: RecordedPool) -> Record:
        config = self._config
        return self.pools.record(config.boot_id, config.pid_namespace, config.time_namespace, *changed)

    # -- for people ------------------------------------------------------------------------------------------------

    def status(self, blocks: dict[int, tuple[int, int]]) -> list[m.PoolStatus]:
        """`blocks`: for the handle of a table, how many of its records are true, and how many there are."""
        return [pool_status.status_of(pool, self.members.of(pool.key), blocks) for pool in self.pools]

    @property
    def waiting_for(self) -> list[str]:
        """In sentences."""
        sentences = []
        for member, claim in self.members.queue:
            pool = self.pools.get(member.key)
            if pool is None:
                continue
            if (wanted := self._making.wanted_by(member)) is not None:
                why = f"{wanted.shape.bytes} bytes are to be made"
            else:
                why = verdict(pool, member, claim.message, may_come_back=self.recovery.may_come_back).why
            sentences.append(f"{member} waits (pool {member.key}): {why or 'its turn'}")
        return sentences

    @property
    def tables(self) -> tuple[int, ...]:
        """Handles of those that can be read."""
        return tuple(pool.slabs[-1].handle for pool in self.pools if pool.slabs)
