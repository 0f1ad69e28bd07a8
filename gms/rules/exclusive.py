"""Regions of the policy "exclusive by token": pools, such as a KV cache. One process at a time owns it, and writes.

Pure, a part of the machine. Phases: `pools.py`; who may own it: `claims.py`. The rules:

 1. The owner owns it for as long as its *process* lives, connected or not, or until it releases the pool.
 2. No process becomes the owner with a token older than the newest that any was let in with. The token, and whose the
    pool is, are on disk before the claim is answered.
 3. Contents are handed on only if they have the shape that is wanted, if the lock's grant was proven, and if this
    server knows that the owner before has ended or released it, and that nothing of it writes later: it could not have
    io_uring. Else there is new memory, and never the old.
 4. Contents that were given up are dropped by every process that has descriptors. Whose owner lives is given up for
    no other.
 5. An owner that dies soon after it has adopted leaves contents that no process gets: they may be what kills.
 6. After a restart the file rules: that memory, and no other, can be handed back. Its owner is looked for by the
    kernel's name for it; a process that comes back by the newest token owns it still.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import msgspec

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.claims import ClaimVerdict, Do, verdict
from gms.rules.making import Wanted
from gms.rules.pools import Owner, Phase, Pool, Shape
from gms.rules.record import Region as Recorded
from gms.rules.recovery import HandedBack
from gms.rules.region import Device, GivenUp, Region, Requests, Slabs
from gms.rules.sessions import Client, Doing, Request
from gms.rules.weights import Slab
from sidecar.machine.plan import Plan

BACK_S = 1.0
"""How long a claim waits for memory that its caller hasn't got. Clients look for a new server every 10 ms."""
SECOND_DEATH_S = 30.0
"""An owner that dies so soon after it has adopted may have died of what it adopted."""


class Made(NamedTuple):
    """New memory is to be given to its first owner."""

    conn: int
    claim: int
    generation: int
    shape: Shape
    slabs: tuple[Slab, ...]
    owner: Owner


class Adopted(NamedTuple):
    """Contents are to be handed on; or the owner claims anew what it has."""

    conn: int
    claim: int
    generation: int
    owner: Owner


class Released(NamedTuple):
    """The owner's word that it writes no more is to be answered."""

    conn: int


class ExclusiveRegion(Region):
    policy = "exclusive"

    def __init__(self, device: Device, key: str, window_until: float = -math.inf) -> None:
        super().__init__(device, key, -math.inf)
        self.memory = self.pool = Pool(key)

    @property
    def requests(self) -> Requests:
        return _REQUESTS

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def slabs(self) -> Sequence[Slab]:
        owed = (each.what for each in self.device.file.owed if each.key == self.key)
        made = [slab for what in owed if isinstance(what, Made) for slab in what.slabs]
        return [*made, *self.pool.slabs, *self.hand_backs.kept]

    def on_device(self, slabs: Slabs) -> Slabs:
        return slabs[:-1]

    @property
    def token(self) -> int:
        return self.pool.token

    @property
    def is_blank(self) -> bool:
        return self.pool.phase is Phase.EMPTY and not self.pool.token

    @property
    def may_be_forgotten(self) -> bool:
        return self.pool.phase is Phase.EMPTY and (self.pool.dropped or not self.pool.token)

    def without_memory(self, why: str) -> Recorded:
        return Pool(self.key, token=self.pool.token, dropped=why == "dropped").record()

    def works(self, client: Client) -> Doing | None:
        owner = self.pool.owner
        return Doing.WRITING if owner is not None and owner.conn == client.conn else None

    def _owns(self, client: Client) -> bool:
        """On this connection, or on one that ended."""
        owner = self.pool.owner
        if owner is None or owner.conn not in (None, client.conn):
            return False
        return owner.conn is not None or owner.is_the_same(client.identity, client.local_pid)

    def _owner_of(self, client: Client, *, adopted: bool, old: Owner | None = None) -> Owner:
        """`old`: it has been the owner, and what is known of that stays. (A filter that came later says nothing about
        what was begun before.)
        """
        since, writes_end = self.context.now, client.writes_end
        if old is not None:
            since, adopted, writes_end = old.since, old.adopted, old.writes_end and writes_end
        return Owner(
            str(client), client.local_pid, client.identity, since, adopted, writes_end, client.process, client.conn
        )

    def note(self, event: str, **detail: str | int | float | bool) -> None:
        super().note(f"pool_{event}", **detail)

    # -- those who come and go -------------------------------------------------------------------------------------

    def came(self, client: Client, have: int) -> None:
        super().came(client, have)
        pool = self.pool
        if pool.phase is Phase.AWAITED and pool.owner is not None and self._owns(client) and have != pool.generation:
            self._free_untold(pool.owner)
        if self.pool.shape is None and not self.pool.token:
            return  # there never was anything to tell of
        self._tell_one(client)

    def _tell(self, but: Client | None = None) -> None:
        """Every process hears what there is, whenever that changes. One that hasn't got the descriptors gets them with
        it: so the standby has them, too, and neither its owner's death nor a crash of this server loses the memory.
        """
        self.context.changed = True
        for client in self.clients:
            if client is not but:
                self._tell_one(client)

    def _tell_one(self, client: Client) -> None:
        pool, shape = self.pool, self.pool.shape
        if client.says_what_it_has:
            return
        if shape is None:
            self.context.send(client.conn, m.PoolIs(generation=0))
        elif pool.slabs:
            message = m.PoolIs(
                generation=pool.generation,
                digest=shape.digest,
                sizes=list(shape.sizes),
                table_size=shape.table_size,
                owner=pool.owner.name if pool.owner is not None else "",
            )
            self.context.send(client.conn, message, self._give_handles(client))

    def _give_handles(self, client: Client) -> tuple[int, ...]:
        """Those that it hasn't got."""
        generation, holders = self.pool.generation, self.device.holders
        if holders.has(client.conn, generation):
            return ()
        holders.got(client.conn, generation)
        return tuple(slab.handle for slab in self.pool.slabs)

    def keeps(self, process: int) -> bool:
        return self.pool.owner is not None and self.pool.owner.process == process

    def left(self, client: Client, was: Doing) -> None:
        """Its connection ended, which says nothing about its process."""
        self._withdraw(client)
        owner = self.pool.owner
        if owner is None or owner.conn != client.conn:
            return
        if client.process is None:
            self._free(f"the connection of {client} ended, and it can't be told whether it lives", "unproven")
        else:
            self.pool.owner = msgspec.structs.replace(owner, conn=None)

    def process_died(self, process: int) -> None:
        owner = self.pool.owner
        if owner is None or owner.process != process:
            return
        self._forget_process(owner)
        doubt, kind = doubt_of(owner, self.context.now)
        if self.pool.phase is Phase.AWAITED:
            self.pool.owner_ended(doubt, kind)
            self.note("owner_ended", owner=owner.name, doubt=doubt)
        else:
            self._free(doubt, kind)

    def _forget_process(self, owner: Owner) -> None:
        """It is the owner no more, or by another number; while it is connected its number is its client's."""
        if owner.process is not None and not self.device.sessions.of_process(owner.process):
            self.context.out.append(e.ForgetProcess(owner.process))

    def _free(self, doubt: str, kind: str) -> None:
        """The owner has ended."""
        owner = self.pool.free(doubt, kind)
        self.note("owner_ended", owner=owner.name, doubt=doubt)
        if doubt:
            self.device.file.write_again()
        self._tell()

    # -- a new server (rule 6) -------------------------------------------------------------------------------------

    def recover(self, recorded: Recorded, found: e.FoundOwner | None, *, same_clock: bool) -> None:
        context, old = self.context, recorded.owner
        owner, doubt, kind = None, recorded.doubt, recorded.doubt_kind
        if old is not None:
            # By another clock nothing can be told: as if it had been given the pool a moment ago.
            since = old.since if same_clock else context.now
            process = found.process if found is not None else None
            known = Owner(old.name, old.pid, old.identity, since, old.adopted, old.writes_end, process)
            if process is not None:
                owner = known
                context.out.append(e.WatchDeath(process))
            elif found is not None and found.gone:
                doubt, kind = doubt_of(known, context.now)
            else:
                doubt, kind = f"it can't be told what has become of {old.name}, which owned it", "unproven"
        self.pool.await_(recorded, owner, doubt, kind)
        if recorded.generation:
            self.recovery.begin(BACK_S, asks_at_once=False)
            self.note("awaits", generation=recorded.generation, owner=old.name if old is not None else "", doubt=doubt)

    def why_not(self, document: bytes) -> str:
        return "a pool has no document" if document else ""

    def stand_again(self, client: Client, back: HandedBack) -> None:
        self.pool.handed_back(back.slabs)
        self.note("handed_back", engine=client.engine_id, generation=self.pool.generation)

    def let_return(self, client: Client, message: m.HandBack) -> str:
        self.device.holders.got(client.conn, message.generation)
        why, owner = self._take_owner_back(client, message.token) if message.token else "", self.pool.owner
        if owner is not None and not message.token and self._owns(client):
            self._free_untold(owner)
        if not why:
            self.context.send(client.conn, m.HandedBack(generation=message.generation))
            self._tell()
        return why

    def _take_owner_back(self, client: Client, token: int) -> str:
        """Why it does not; empty: it does."""
        pool, old = self.pool, self.pool.owner
        if token != pool.token:
            return f"pool {pool.key} was given to token {pool.token} since"
        if old is not None and not old.is_the_same(client.identity, client.local_pid):
            why = f"{client} says that it owns pool {pool.key}, and {old.name} does"
            self.context.shout(f"{why}: two processes may write it")
            return why
        if old is not None:
            self._forget_process(old)
        if old is None or pool.doubt:
            self.device.file.write_again()
        owner = self._owner_of(client, adopted=False, old=old)
        if old is None and pool.doubt:  # another may have owned it since, and its writes may still arrive
            owner = msgspec.structs.replace(owner, writes_end=False)
        pool.own_again(token, owner)
        return ""

    def ask_to_drop(self, client: Client, generation: int) -> bool:
        """An owner that is one no longer has it mapped, and goes on. What it has of the pool's own memory it keeps."""
        if generation == self.pool.generation:
            self._tell()
            return True
        may = self.device.holders.ask_one(client, generation, tell=False)
        if may and (self.pool.shape is not None or self.pool.token):
            self._tell_one(client)
        return may

    # -- what they say ---------------------------------------------------------------------------------------------

    def _on_claim(self, client: Client, message: m.ClaimPool) -> m.Problem | None:
        if client.request is not None:
            return m.Problem(why="ClaimPool: the last one isn't answered yet")
        config, wanted = self.device.config, m.shape_of(message)
        why = self.device.why_closed or config.pools_off
        if why:
            self.refuse(client, why, "not_now" if self.device.why_closed else "off")
        elif any(size % config.granularity for size in message.sizes):
            self.refuse(client, f"sizes have to be multiples of {config.granularity}", "too_large")
        elif wanted.bytes > config.capacity:
            why = f"{wanted.bytes} bytes are wanted, and the device has {config.capacity}"
            self.refuse(client, why, "too_large")
        else:
            self.device.sessions.ask(client, message, self.context.now + message.timeout_s)
        return None

    def _on_release(self, client: Client, message: m.ReleasePool) -> None:
        """Also of a claim that isn't wanted any more: what was asked before is over with this answer."""
        self._withdraw(client)
        owner = self.pool.owner
        if owner is None or not self._owns(client) or self.device.why_closed:
            self.context.send(client.conn, m.PoolReleased())
            return
        doubt, kind = late_writes(owner)
        becomes = msgspec.structs.replace(self.pool.record(), owner=None, doubt=doubt, doubt_kind=kind)
        self.write(becomes, Released(client.conn))

    def _released(self, owed: Released) -> None:
        """It is on disk: a server after this one takes no process for the owner that only lives on."""
        pool, client = self.pool, self.device.sessions.clients.get(owed.conn)
        if pool.owner is not None and client is not None and self._owns(client):
            if pool.phase is Phase.AWAITED:
                self._free_untold(pool.owner)
            else:
                owner = pool.free(*late_writes(pool.owner))
                self._forget_process(owner)
                self.note("released", owner=owner.name, doubt=pool.doubt)
                self._tell()
        self.context.send(owed.conn, m.PoolReleased())

    def _withdraw(self, client: Client) -> None:
        client.request = None
        if self.device.making.withdraw(client.conn) is not None:
            self.pool.cannot_make()

    # -- who may own it (rules 1 to 3) -----------------------------------------------------------------------------

    def plan_queue(self, plan: Plan) -> None:
        """All that are refused, and the first that isn't, and need not wait."""
        for client, claim in self.queue:
            if self.device.making.of(client.conn) is not None:
                continue
            found = self._verdict(client, claim)
            if found.do is Do.REFUSE:
                plan.do(self.refuse, client, found.why, found.reason)
            elif found.do is not Do.WAIT:
                plan.do(self._let_claim, client, claim, found)
                return

    def _verdict(self, client: Client, claim: Request) -> ClaimVerdict:
        assert isinstance(claim.message, m.ClaimPool)
        return verdict(self.pool, client, claim.message, may_come_back=not self.recovery.window.is_over)

    def why_waits(self, client: Client, request: Request) -> tuple[str, m.Reason]:
        making = self.device.making.of(client.conn)
        if making is not None:
            return f"{making.bytes} bytes are to be made", "no_memory"
        found = self._verdict(client, request)
        return self.device.why_closed or found.why or "its turn", found.reason

    def _let_claim(self, client: Client, claim: Request, found: ClaimVerdict) -> None:
        message = claim.message
        assert isinstance(message, m.ClaimPool)
        if found.do is Do.MAKE:
            client.request = replace(claim, why_empty=claim.why_empty or found.why_empty)
            self.pool.make()
            self.device.making.begin(
                Wanted(client.conn, tuple(message.sizes), message.table_size, claim.until, claim.number)
            )
        elif found.do is Do.GIVE_UP_AND_MAKE:
            client.request = replace(claim, why_empty=found.why_empty)
            why = "lost" if found.why_empty == "new" else found.why_empty
            self.write_given_up(GivenUp(self.pool.generation, why))
        else:
            owner = self._owner_of(client, adopted=True, old=self.pool.owner)
            becomes = msgspec.structs.replace(self.pool.record(), token=message.token, owner=owner.record())
            self.write(becomes, Adopted(client.conn, claim.number, self.pool.generation, owner))

    def _free_untold(self, owner: Owner) -> None:
        """The server before died when that owner was on disk, and before it was told: it comes back and knows nothing
        of it. So nothing was ever written by it.
        """
        if self.pool.phase is Phase.AWAITED:
            self.pool.owner_ended("", "")
        else:
            self.pool.free()
        self.device.file.write_again()
        self._forget_process(owner)
        self.note("owner_never_told", owner=owner.name)

    def _adopted(self, owed: Adopted) -> None:
        asking, pool = self.device.sessions.asking(owed.conn, owed.claim), self.pool
        if asking is None or pool.generation != owed.generation:
            self.device.file.write_again()
            return
        client, claim = asking
        assert isinstance(claim.message, m.ClaimPool)
        token, old = claim.message.token, pool.owner
        if old is not None:
            pool.own_again(token, owed.owner)
            self._forget_process(old)
        else:
            pool.adopt(token, owed.owner)
        self.note("owned_again" if old is not None else "adopted", owner=owed.owner.name, token=token)
        self._let_own(client, "")

    def _let_own(self, client: Client, why_empty: str) -> None:
        client.request = None
        self.device.sessions.turns_to_something_else(client)
        owned = m.PoolOwned(generation=self.pool.generation, adopted=not why_empty, why_empty=why_empty)  # type: ignore[arg-type]
        self.context.send(client.conn, owned, self._give_handles(client))
        self._tell(but=client)

    # -- memory ----------------------------------------------------------------------------------------------------

    def allocated(self, wanted: Wanted, slabs: tuple[Slab, ...]) -> None:
        asking = self.device.sessions.asking(wanted.conn, wanted.request)
        if asking is None or self.device.why_closed:
            self.context.forget(slabs)
            return
        client, claim = asking
        assert isinstance(claim.message, m.ClaimPool)
        owner, shape = self._owner_of(client, adopted=False), m.shape_of(claim.message)
        generation, token = self.device.generations.next(), claim.message.token
        planned = Pool(self.key, Phase.MAKING, self.pool.token)
        planned.made(generation, shape, slabs, token, owner)
        self.write(planned.record(), Made(client.conn, claim.number, generation, shape, slabs, owner))

    def not_allocated(self, wanted: Wanted, event: e.NotAllocated) -> None:
        self.pool.cannot_make()
        asking = self.device.sessions.asking(wanted.conn, wanted.request)
        if asking is None:
            return
        why = f"pool {self.key} needs {event.needed} bytes, and {event.free} are free{self.device.holders.also}"
        self.refuse(asking[0], event.why or why, "not_now" if event.why else "no_memory")

    def _made(self, owed: Made) -> None:
        asking, pool = self.device.sessions.asking(owed.conn, owed.claim), self.pool
        if pool.phase is Phase.MAKING and asking is not None:
            client, claim = asking
            assert isinstance(claim.message, m.ClaimPool)
            pool.made(owed.generation, owed.shape, owed.slabs, claim.message.token, owed.owner)
            self.forget_record_lost()
            self.note("made", owner=owed.owner.name, bytes=owed.shape.bytes, why=claim.why_empty)
            self._let_own(client, claim.why_empty)
            return
        if pool.phase is Phase.MAKING:
            pool.cannot_make()
        self.context.forget(owed.slabs)
        self.device.file.write_again()

    # -- given up (rule 4) -----------------------------------------------------------------------------------------

    def why_in_use(self) -> str:
        pool = self.pool
        if pool.owner is None and pool.phase is not Phase.MAKING:
            return ""
        whose = pool.owner.name if pool.owner is not None else "a claim for which it is being made"
        return f"pool {self.key} is owned by {whose}: end that first"

    def forget_token(self) -> None:
        self.pool.dropped = True
        self.device.file.write_again()

    def give_up(self, owed: GivenUp) -> bool:
        if self.pool.owner is not None or self.pool.phase not in (Phase.FREE, Phase.AWAITED):
            return False
        self.recovery.end()
        self.hand_backs.end()
        self.context.forget(self.pool.give_up(owed.why))
        self.note("given_up", generation=owed.generation, why=owed.why)
        return True

    # -- the disk --------------------------------------------------------------------------------------------------

    def persisted(self, what: Any) -> None:
        if isinstance(what, Made):
            self._made(what)
        elif isinstance(what, Adopted):
            self._adopted(what)
        elif isinstance(what, Released):
            self._released(what)
        else:
            self.given_up(what)
            self._tell()

    def not_persisted(self, what: Any, why: str) -> None:
        if isinstance(what, Released):
            self.context.refuse(what.conn, f"{why}: it is still the owner's, and can be released again", "disk")
            return
        if isinstance(what, GivenUp):
            if what.by:
                self.context.refuse(what.by, why, "disk")
            asking = [client for client, claim in self.queue if claim.why_empty]
        else:
            found = self.device.sessions.asking(what.conn, what.claim)
            asking = [found[0]] if found is not None else []
        if isinstance(what, Made):
            self.context.forget(what.slabs)
            if self.pool.phase is Phase.MAKING:
                self.pool.cannot_make()
        for client in asking:
            self.refuse(client, f"{why}: no process may own it", "disk")

    # -- what must hold --------------------------------------------------------------------------------------------

    def broken(self, newest: int) -> str:
        pool, phase, what = self.pool, self.pool.phase, f"pool {self.key} is {self.pool.phase.value}"
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
        return f"{what} with memory {pool.generation}, and {newest} is the newest" if pool.generation > newest else ""

    def breaks(self, effect: e.Send, on_disk: Recorded, given: int) -> str:
        message, pool = effect.message, self.pool
        if not isinstance(message, m.PoolOwned):
            return ""
        if pool.owner is None or pool.owner.conn != effect.conn or pool.generation != message.generation:
            return f"memory {message.generation} is given to connection {effect.conn}, which owns none"
        if (on_disk.token, on_disk.generation) != (pool.token, pool.generation):
            return f"pool {self.key} is given to token {pool.token}, and that is not on disk"
        return ""

    # -- for people ------------------------------------------------------------------------------------------------

    def status(self, blocks: dict[int, tuple[int, int]]) -> m.RegionStatus:
        """`blocks`: for the handle of a table, how many of its records are true, and how many there are."""
        pool, shape, holders = self.pool, self.pool.shape, self.device.holders
        true, total = blocks.get(pool.slabs[-1].handle, (0, 0)) if pool.slabs else (0, 0)
        return m.RegionStatus(
            key=self.key,
            policy=self.policy,
            state=pool.phase.value,
            since=self.since,
            generation=pool.generation,
            hash=shape.digest if shape is not None else "",
            bytes=shape.bytes if shape is not None else 0,
            slabs=len(shape.sizes) if shape is not None else 0,
            keepers=sum(holders.has(client.conn, pool.generation) for client in self.clients) if pool.generation else 0,
            owner=pool.owner.name if pool.owner is not None else "",
            token=pool.token,
            table_bytes=shape.table_size if shape is not None else 0,
            blocks=true,
            blocks_total=total,
            doubt=pool.doubt,
            adoptions=pool.adoptions,
            drops=dict(pool.drops),
        )

    def summary(self) -> list[str]:
        return [f"{self.key}: {self.pool.phase.value}, memory {self.pool.generation}, token {self.pool.token}"]


_REQUESTS: Requests = {m.ClaimPool: ExclusiveRegion._on_claim, m.ReleasePool: ExclusiveRegion._on_release}


def doubt_of(owner: Owner, now: float) -> tuple[str, str]:
    """Whether an owner's death says something against the contents: in a sentence, and in a word."""
    late, kind = late_writes(owner)
    if late:
        return late, kind
    lived_s = now - owner.since
    if owner.adopted and lived_s < SECOND_DEATH_S:
        return f"{owner.name} died {lived_s:.1f} s after it had adopted it: it may be what kills", "second_death"
    return "", ""


def late_writes(owner: Owner) -> tuple[str, str]:
    """Its end, or its word, isn't the end of what it writes."""
    if owner.writes_end:
        return "", ""
    return f"{owner.name} could have had io_uring, whose reads arrive after the end of a process", "unproven"
