"""Regions of the policy "shared after commit": weights. One process writes; after its commit many read.

Pure, a part of the machine (rules 1 to 6 and 8 of `machine.py`). Phases, and who may come in: `weights.py`.
"""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from gms import layout as lay
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.holders import ANSWER_S
from gms.rules.making import Wanted
from gms.rules.record import Region as Recorded
from gms.rules.recovery import HandedBack
from gms.rules.region import Device, GivenUp, Region, Requests, Slabs
from gms.rules.sessions import Client, Doing, Request
from gms.rules.weights import Cleared, Draft, EntryVerdict, Layout, Phase, Slab, Weights
from sidecar.machine.plan import Plan


class Admit(NamedTuple):
    """A writer is to be let in."""

    conn: int
    request: int
    generation: int
    replaces: bool


class Acknowledge(NamedTuple):
    """A commit is to be acknowledged."""

    layout: Layout


class SharedRegion(Region):
    policy = "shared"

    def __init__(self, device: Device, key: str, window_until: float = -math.inf) -> None:
        super().__init__(device, key, window_until)
        self.memory = self.weights = Weights(key, device.generations)

    @property
    def requests(self) -> Requests:
        return _REQUESTS

    # -- what it is ------------------------------------------------------------------------------------------------

    @property
    def slabs(self) -> Sequence[Slab]:
        draft = self.weights.draft
        return [*self.weights.standing, *(draft.slabs if draft is not None else ()), *self.hand_backs.kept]

    @property
    def leased(self) -> Sequence[Slab]:
        both = (self.weights.committed, self.weights.draft)
        return [slab for each in both if each is not None and each.on_device for slab in each.slabs]

    def on_device(self, slabs: Slabs) -> Slabs:
        return () if self.weights.parked else slabs

    @property
    def in_host_memory(self) -> int:
        return self.weights.in_host_memory

    @property
    def is_blank(self) -> bool:
        return super().is_blank and self.weights.draft is None

    def works(self, client: Client) -> Doing | None:
        if client.conn == self.weights.writer:
            return Doing.WRITING
        return Doing.READING if client.conn in self.weights.readers else None

    @property
    def writer(self) -> Client | None:
        writer = self.weights.writer
        return self.device.sessions.clients.get(writer) if writer is not None else None

    # -- a new server ----------------------------------------------------------------------------------------------

    def recover(self, recorded: Recorded, found: e.FoundOwner | None, *, same_clock: bool) -> None:
        self.weights.await_(recorded)
        asks = not recorded.parked  # of host memory it can't be told
        self.recovery.begin(self.device.config.window_s, asks_at_once=asks)
        self.note("awaits", generation=recorded.generation, hash=recorded.hash)

    def plan(self, plan: Plan) -> None:
        alarm = f"window {self.key}"
        if self._overdue:
            plan.say(self.context.alarm, alarm, self._overdue)
        else:
            plan.calm(self.context.calm, alarm)
        super().plan(plan)

    @property
    def _overdue(self) -> str:
        """Why what was to be handed back to this new server is awaited no longer."""
        awaited = self.weights.awaited
        if awaited is None or not self.recovery.window.is_over:
            return ""
        why = f"layout {awaited.generation} was not handed back within {self.device.config.window_s:g} s"
        return f"{why}; the next writer will begin anew"

    def why_not(self, document: bytes) -> str:
        awaited = self.weights.awaited
        if awaited is None or lay.structure_hash(document) != awaited.hash:
            return "its document is not that of the layout in the file"
        try:
            lay.count_tensors(document)
        except lay.BadLayout as error:  # the file was written by hand
            return str(error)
        return ""

    def stand_again(self, client: Client, back: HandedBack) -> None:
        tensors = lay.count_tensors(back.document)
        layout = self.weights.handed_back(back.document, tensors, back.slabs, back.sums)
        self.note("handed_back", engine=client.engine_id, generation=layout.generation, hash=layout.hash)
        # A process that came meanwhile, and has nothing to bring back, was told that there is none.
        self._tell(layout.generation, layout.hash, but=client)

    def let_return(self, client: Client, message: m.HandBack) -> str:
        if message.reading and self.weights.draft is not None:
            return f"it was away for too long: {self.writer} is writing"
        if message.reading and self.weights.parked:
            return f"layout {message.generation} is parked: no process can read it"
        if message.reading:
            self._make_reader(client)
        else:
            self.device.holders.got(client.conn, message.generation)
            self.device.sessions.turns_to_something_else(client)
        self.context.send(client.conn, m.HandedBack(generation=message.generation, reading=message.reading))
        return ""

    def ask_to_drop(self, client: Client, generation: int) -> bool:
        return self.device.holders.ask_one(client, generation)

    # -- who comes in ----------------------------------------------------------------------------------------------

    def plan_queue(self, plan: Plan) -> None:
        """All who may read; or one who may write, if none reads."""
        for client, request in self.queue:
            verdict = self._verdict(request)
            if verdict.why_never:
                plan.do(self._refuse_move, client, request.message, verdict.why_never)
            elif verdict.mode == "ro" and self.weights.phase is Phase.PARKED and client.parks:
                plan.do(self._refuse_parked, client, verdict.why_not)
            elif verdict.may and verdict.mode == "ro":
                plan.do(self._let_read, client, request.message)
            elif verdict.may and not plan.steps:
                plan.do(self._check_peer, client, request)
                return

    def _refuse_move(self, client: Client, wanted: m.Open, why: str) -> None:
        """It is done already; or there are other weights than those that were to be parked, or none."""
        self.refuse(client, why, "stale" if wanted.parks and not self.weights.parked else "parked")

    def _refuse_parked(self, client: Client, why: str) -> None:
        """It can't be read where it is; this process may bring it back."""
        if not self.device.holders.has(client.conn, self.weights.there[0]):
            self._tell_parked(client)
        self.refuse(client, why, "parked")

    def _tell_parked(self, client: Client) -> None:
        layout = self.weights.committed
        assert layout is not None
        self._begin_to_hold(client, layout)
        parked = m.Parked(
            generation=layout.generation,
            hash=layout.hash,
            size=layout.size,
            layout=layout.document,
            sums=list(layout.sums),
            contents=layout.contents,
        )
        self.context.send(client.conn, parked, tuple(slab.handle for slab in layout.slabs))

    def _verdict(self, request: Request) -> EntryVerdict:
        assert isinstance(request.message, m.Open)
        is_new = not self.recovery.window.is_over
        return self.weights.verdict(request.message, self.device.sessions.named, is_new=is_new)

    def _check_peer(self, client: Client, request: Request) -> None:
        self.device.checking_peer = (client.conn, request.number)
        self.context.out.append(e.CheckPeer(client.conn))

    def why_waits(self, client: Client, request: Request) -> tuple[str, m.Reason]:
        return self.device.why_closed or self._verdict(request).why_not or "its turn", "time_out"

    def _on_open(self, client: Client, message: m.Open) -> m.Problem | None:
        if not self.is_idle(client):
            return m.Problem(why=f"Open: this process is {self.doing(client).value} already; Withdraw first")
        if message.parks and message.unparks:
            return m.Problem(why="Open: a layout is parked, or it is brought back, and not both")
        committed = self.weights.committed
        if committed is not None and message.have == committed.generation:
            self.device.holders.got(client.conn, message.have)
        wait_s = math.inf if message.timeout_s is None else message.timeout_s
        request = self.device.sessions.ask(client, message, self.context.now + wait_s)
        if message.bytes and not self.weights.wants_to_read(message, is_new=not self.recovery.window.is_over):
            self.device.ask_memory(lambda answer: self._refuse_without_room(client, request, answer.free))
        return None

    def _on_withdraw(self, client: Client, message: m.Withdraw) -> m.Problem | None:
        if self.hand_backs.comes_from(client.conn):
            return m.Problem(why="Withdraw: it is in the middle of handing back")
        if self.weights.writer == client.conn:
            self._abort(client)
        client.request = None
        self.weights.stop_reading(client.conn)
        holders, keeps = self.device.holders, message.keeps
        if self.weights.parked and keeps in holders.layouts(client.conn) and not holders.has(client.conn, keeps):
            keeps = self.weights.there[0]  # it hadn't heard yet that its layout is parked, and keeps that in its place
        holders.keep_only(client.conn, keeps)
        self.device.sessions.turns_to_something_else(client)
        self.note("withdrew", engine=client.engine_id, keeps=message.keeps)
        self.context.send(client.conn, m.Withdrawn())
        return None

    def left(self, client: Client, was: Doing) -> None:
        if was is Doing.WRITING:
            self._abort(client)
        self.weights.stop_reading(client.conn)
        if self.weights.awaited is not None and not self.weights.parked:
            self.recovery.note_departure()

    # -- reading ---------------------------------------------------------------------------------------------------

    def _let_read(self, client: Client, wanted: m.Open) -> None:
        """It gets the layout, and descriptors of all its slabs, for one request."""
        _, hash = self.weights.there
        if wanted.expect and wanted.expect != hash:
            why = f"the layout that was expected ({wanted.expect[:12]}) is gone; there is {hash[:12]} now"
            self.refuse(client, why, "stale")
            return
        layout, send, batch = self._make_reader(client), self.context.send, self.device.config.batch
        if wanted.have == layout.generation:
            send(client.conn, m.Opened(mode="ro", generation=layout.generation, hash=layout.hash))
            return
        opened = m.Opened(
            mode="ro",
            generation=layout.generation,
            hash=layout.hash,
            sizes=[slab.size for slab in layout.slabs],
            layout=layout.document,
            sums=list(layout.sums),
            contents=layout.contents,
        )
        send(client.conn, opened)
        for first in range(0, len(layout.slabs), batch):
            handles = tuple(slab.handle for slab in layout.slabs[first : first + batch])
            send(client.conn, m.Slabs(generation=layout.generation, first=first), handles)

    def _make_reader(self, client: Client) -> Layout:
        layout = self.weights.read(client.conn)
        client.request = None
        self._begin_to_hold(client, layout)
        return layout

    def _begin_to_hold(self, client: Client, layout: Layout) -> None:
        """From now on this client has descriptors of the layout: to read it or, if it is parked, to keep it."""
        self.device.sessions.turns_to_something_else(client)
        self.device.holders.got(client.conn, layout.generation)
        if not layout.parked:
            self.note("reading", engine=client.engine_id, generation=layout.generation)

    def _on_checksums(self, client: Client, message: m.Checksums) -> None:
        layout = self.weights.committed
        if self.weights.sum_up(message.generation, tuple(message.sums)):
            self.context.changed = True
        elif layout is not None and layout.generation == message.generation and layout.sums and not layout.parked:
            why = f"the contents of {self.key} are no longer what was committed, says {client}: gmsctl verify says more"
            self.context.alarm(f"contents {self.key}", why)

    def forget_record_lost(self) -> None:
        super().forget_record_lost()
        self.context.calm(f"contents {self.key}")

    # -- writing ---------------------------------------------------------------------------------------------------

    def _refuse_without_room(self, client: Client, request: Request, free: int) -> None:
        """What there is no room for is refused at once (rule 6)."""
        if self.device.sessions.asking(client.conn, request.number) is None:
            return
        assert isinstance(request.message, m.Open)
        layout, needed, capacity = self.weights.committed, request.message.bytes, self.device.config.capacity
        old = sum(each.on_device for each in (layout, self.weights.draft) if each is not None)
        stays = layout.on_device if layout is not None and request.message.replace else 0
        if needed + stays > capacity or needed > free + (0 if stays else old):
            why = f"the new layout needs {needed} bytes, and {free} of {capacity} are free"
            if stays:
                why += f" beside the {stays} of the old one; without `replace` the old one would be cleared first"
            elif old:
                why += f", and {old} more once what is there is cleared"
            self.refuse(client, why, "too_large" if needed + stays > capacity else "no_memory")

    def peer_checked(self, client: Client, request: Request) -> None:
        """It lives, and is to be let in to write: first on disk."""
        assert isinstance(request.message, m.Open)
        replaces = bool(request.message.moves) or (request.message.replace and self.weights.committed is not None)
        generation = self.device.generations.next()
        becomes = self.record() if replaces else self.without_memory("")
        self.write(becomes, Admit(client.conn, request.number, generation, replaces))

    def _admit(self, owed: Admit) -> None:
        asking = self.device.sessions.asking(owed.conn, owed.request)
        if asking is None:
            self.device.file.write_again()
            return
        client, request = asking
        assert isinstance(request.message, m.Open)
        moves, parks = bool(request.message.moves), bool(request.message.parks)
        cleared = self.weights.write(client.conn, owed.generation, replaces=owed.replaces, moves=moves, parks=parks)
        if cleared is not None:
            self._cleared(cleared, "a writer was let in")
            for conn in self.device.holders.ask(cleared.generation):
                self.device.throw_out(conn, None)
        client.request = None
        self.device.sessions.turns_to_something_else(client)
        self.note("writing", engine=client.engine_id, generation=owed.generation)
        self.context.send(client.conn, m.Opened(mode="rw", generation=owed.generation))

    def _cleared(self, cleared: Cleared, why: str) -> None:
        """A layout is gone, and no other took its place."""
        if cleared.was_awaited:
            self.recovery.end()
            self.hand_backs.end()
            self.note("given_up", generation=cleared.generation, why=why)
        else:
            self.context.forget(cleared.slabs)
            self.note("cleared", generation=cleared.generation, why=why)
        self._tell(0, "")

    def _tell(self, generation: int, hash: str, but: Client | None = None) -> None:
        self.device.sessions.tell(self.key, m.Changed(generation=generation, hash=hash), but)

    def _mistake(self, client: Client) -> str:
        """Why this process may not create or commit anything now; empty if it may."""
        if self.weights.writer != client.conn:
            return "this process isn't writing; Open first"
        return "the last Create isn't answered yet" if self.device.making.of(client.conn) is not None else ""

    def _on_create(self, client: Client, message: m.Create) -> m.Problem | None:
        mistake, draft = self._mistake(client), self.weights.draft
        if mistake or draft is None:
            return m.Problem(why=f"Create: {mistake}")
        config, committed = self.device.config, self.weights.committed
        size = -(-message.size // config.granularity) * config.granularity
        stays = committed.on_device if committed is not None else 0
        if self.device.why_closed:
            self.context.refuse(client.conn, self.device.why_closed, "not_now")
        elif draft.parks:
            self._make_in_host_memory(client, draft, message.size)
        elif len(draft.slabs) >= lay.MAX_SLABS:
            self.context.refuse(client.conn, f"a layout has at most {lay.MAX_SLABS} slabs", "too_large")
        elif size + draft.size + stays > config.capacity:
            why = (
                f"a slab of {size} bytes can't fit: the device has {config.capacity}, this writer has made "
                f"{draft.size}, and the layout that it replaces has {stays}"
            )
            self.context.refuse(client.conn, why, "too_large")
        else:
            until = self.context.now + config.memory_wait_s
            self.device.making.begin(Wanted(client.conn, (size,), 0, until, key=self.key), self.leased)
        return None

    def _make_in_host_memory(self, client: Client, draft: Draft, size: int) -> None:
        layout, taken, most = self.weights.committed, self.device.in_host_memory, self.device.config.host_memory
        assert layout is not None
        if draft.slabs or size != layout.size:
            why = f"layout {layout.generation} is parked in one piece of {layout.size} bytes"
            self.context.refuse(client.conn, why, "bad_layout")
        elif taken + size > most:
            why = f"{size} bytes of host memory are needed, and {max(most - taken, 0)} are left of the {most} that"
            self.context.refuse(client.conn, f"{why} parked weights may take (gms --host-memory)", "no_memory")
        else:
            self.device.making.begin(Wanted(client.conn, (), size, self.context.now))

    def allocated(self, wanted: Wanted, slabs: tuple[Slab, ...]) -> None:
        (slab,) = slabs
        number = self.weights.add(slab)
        self.context.changed = True
        self.context.send(wanted.conn, m.Created(slab=number, size=slab.size), (slab.handle,))

    def not_allocated(self, wanted: Wanted, event: e.NotAllocated) -> None:
        if event.why:
            why = f"a slab of {wanted.bytes or wanted.table_size} bytes can't be made: {event.why}"
            self.context.refuse(wanted.conn, why, "no_memory" if event.is_full else "not_now")
            return
        self.note("no_memory", needed=wanted.bytes, free=event.free)
        why = f"a slab of {wanted.bytes} bytes is needed, and {event.free} are free{self.device.holders.also}"
        self.context.refuse(wanted.conn, why, "no_memory")

    def _on_commit(self, client: Client, message: m.Commit) -> m.Problem | None:
        mistake, draft = self._mistake(client), self.weights.draft
        if mistake or draft is None:
            return m.Problem(why=f"Commit: {mistake}")
        if self.device.why_closed:
            self.context.refuse(client.conn, self.device.why_closed, "not_now")
        elif (layout := self._check_or_refuse(draft, message.layout)) is not None:
            self.write(self.weights.record_of(layout), Acknowledge(layout))
        return None

    def _check_or_refuse(self, draft: Draft, document: bytes) -> Layout | None:
        """What is to be committed. None: it is refused, and its writer goes on."""
        hash, old = lay.structure_hash(document), self.weights.committed if draft.moves else None
        try:
            if not draft.slabs:
                raise lay.BadLayout("no slab was made: there is nothing to commit")
            if old is not None and hash != old.hash:
                raise lay.BadLayout(f"layout {old.generation} is moved, and this is another")
            if not draft.parks:
                lay.check(lay.decode(document), [slab.size for slab in draft.slabs])
        except lay.BadLayout as error:
            self.context.refuse(draft.writer, str(error), "bad_layout")
            return None
        made = Layout(draft.generation, hash, document, lay.count_tensors(document), tuple(draft.slabs))
        if old is None:
            return made
        return replace(made, sums=old.sums, contents=old.contents or old.generation, parked=draft.parks)

    def _acknowledge(self, layout: Layout) -> None:
        """A commit. It is on disk."""
        draft, writer = self.weights.draft, self.writer
        if draft is None or writer is None or draft.generation != layout.generation:
            self.device.file.write_again()
            return
        what = "parked" if draft.parks else "unparked" if draft.moves else "committed"
        old = self.weights.commit(layout)
        self.forget_record_lost()
        self.note(what, engine=writer.engine_id, generation=layout.generation, hash=layout.hash, bytes=layout.size)
        self._begin_to_hold(writer, layout)
        self.context.send(writer.conn, m.Committed(generation=layout.generation, hash=layout.hash))
        self._tell(layout.generation, layout.hash, but=writer)
        if old is not None:
            self.context.forget(old.slabs)
            if layout.parked:
                self._tell_sleepers_parked(writer, old)
            self.note("replaced", generation=old.generation, by=layout.generation)
            for conn in self.device.holders.ask(old.generation):
                self.device.throw_out(conn, None)

    def _tell_sleepers_parked(self, writer: Client, old: Cleared) -> None:
        """Processes that have the slabs keep it from now on in place of them; the writer hears when those are gone."""
        for client in self.clients:
            if client.parks and client is not writer and self.device.holders.has(client.conn, old.generation):
                self._tell_parked(client)
        identities, size = tuple(slab.identity for slab in old.slabs), sum(slab.size for slab in old.slabs)
        self.tell_when_gone(writer.conn, old.generation, size, identities, self.context.now + ANSWER_S)

    def _abort(self, writer: Client) -> None:
        """It ends without a commit. What the file says is still so."""
        draft = self.weights.abort()
        self.device.making.withdraw(writer.conn)
        self.context.forget(draft.slabs)
        self.note("aborted", engine=writer.engine_id, generation=draft.generation)
        self.device.sessions.turns_to_something_else(writer)

    # -- given up --------------------------------------------------------------------------------------------------

    def why_in_use(self) -> str:
        return self._why_not_dropped if self.weights.phase in (Phase.RW, Phase.RO) else ""

    @property
    def may_be_on_their_way(self) -> str:
        return "" if self.recovery.window.is_over else self._why_not_dropped

    @property
    def _why_not_dropped(self) -> str:
        return f"{self.key} can't be dropped: {self._verdict(Request(m.Open(mode='rw'), 0, 0.0)).why_not}"

    def give_up(self, owed: GivenUp) -> bool:
        if self.weights.phase not in (Phase.RECOVERING, Phase.COMMITTED, Phase.PARKED):
            return False
        why = "a person dropped it" if owed.by else "no process has its memory any more"
        self._cleared(self.weights.give_up(), why)
        self.recovery.window.end()
        return True

    # -- the disk --------------------------------------------------------------------------------------------------

    def persisted(self, what: Any) -> None:
        if isinstance(what, Admit):
            self._admit(what)
        elif isinstance(what, Acknowledge):
            self._acknowledge(what.layout)
        else:
            self.given_up(what)

    def not_persisted(self, what: Any, why: str) -> None:
        if isinstance(what, Admit):
            asking = self.device.sessions.asking(what.conn, what.request)
            if asking is not None:
                self.refuse(asking[0], f"{why}: no process may write", "disk")
        elif isinstance(what, Acknowledge):
            draft = self.weights.draft
            if draft is not None and draft.generation == what.layout.generation:
                self.context.refuse(draft.writer, f"{why}: nothing is committed, and it can be tried again", "disk")
        elif what.by:
            self.context.refuse(what.by, why, "disk")
        else:
            self.recovery.could_not_give_up()

    # -- what must hold --------------------------------------------------------------------------------------------

    def broken(self, newest: int) -> str:
        weights = self.weights
        phase, committed, draft, awaited = weights.phase, weights.committed, weights.draft, weights.awaited
        if (draft is not None) is not (phase is Phase.RW):
            return f"the phase is {phase.value}, and {'a' if draft is not None else 'no'} process writes"
        if draft is not None and weights.readers:
            return "a process writes while others read"
        if bool(weights.readers) is not (phase is Phase.RO):
            return f"the phase is {phase.value}, and {len(weights.readers)} read"
        if (awaited is not None) is not (phase is Phase.RECOVERING):
            return f"the phase is {phase.value}, and {'a' if awaited is not None else 'no'} layout is awaited"
        if committed is None:
            if phase in (Phase.COMMITTED, Phase.RO):
                return f"the phase is {phase.value}, and nothing is committed"
        elif draft is None and committed.parked is not (phase is Phase.PARKED):
            where = "host memory" if committed.parked else "the device"
            return f"the phase is {phase.value}, and layout {committed.generation} lies in {where}"
        elif phase in (Phase.EMPTY, Phase.RECOVERING):
            return f"the phase is {phase.value}, and layout {committed.generation} is committed"
        elif not committed.slabs:
            return f"layout {committed.generation} is committed, and has no slab"
        elif committed.generation > newest:
            return f"layout {committed.generation} is committed, and {newest} is the newest that was given"
        oldest = committed.generation if committed is not None else 0
        if draft is not None and not oldest < draft.generation <= newest:
            return f"generation {draft.generation} is being written, after {oldest}; {newest} is the newest"
        clients = self.device.sessions.clients
        if weights.writer is not None and weights.writer not in clients:
            return "the writer is not connected"
        return "" if weights.readers <= clients.keys() else "a process reads that is not connected"

    def breaks(self, effect: e.Send, on_disk: Recorded, given: int) -> str:
        message, committed = effect.message, self.weights.committed
        if isinstance(message, m.Committed | m.Parked):
            if on_disk.generation != message.generation:
                return f"layout {message.generation} is told to be committed, and is not on disk"
        elif isinstance(message, m.Opened) and message.mode == "rw":
            if given < message.generation:
                return f"generation {message.generation} is given to a writer, and is not on disk"
            if on_disk.generation and committed is None:
                return f"a writer is let in, and layout {on_disk.generation} is still on disk"
        elif isinstance(message, m.Opened) and (committed is None or committed.generation != message.generation):
            return f"a reader is given layout {message.generation}, which is not committed"
        return ""

    # -- for people ------------------------------------------------------------------------------------------------

    def status(self, blocks: dict[int, tuple[int, int]]) -> m.RegionStatus:
        weights = self.weights
        slabs = [slab for each in (weights.committed, weights.draft) if each is not None for slab in each.slabs]
        generation, hash = weights.there
        return m.RegionStatus(
            key=self.key,
            policy=self.policy,
            state=weights.phase.value,
            since=self.since,
            generation=generation,
            hash=hash,
            bytes=sum(each.on_device for each in (weights.committed, weights.draft) if each is not None),
            slabs=len(slabs),
            keepers=len(self.device.holders.who_has(generation)) if generation else 0,
            tensors=weights.committed.tensors if weights.committed is not None else 0,
            doubt=self._overdue,
        )

    def summary(self) -> list[str]:
        weights = self.weights
        words = [f"{self.key}: phase {weights.phase.value}"]
        if weights.committed is not None:
            words.append(f"layout {weights.committed.generation} of {len(weights.committed.slabs)} slabs")
        if weights.draft is not None:
            words.append(f"connection {weights.draft.writer} writes generation {weights.draft.generation}")
        if weights.awaited is not None:
            words.append(f"layout {weights.awaited.generation} of {len(weights.awaited.slabs)} slabs is awaited")
        return [*words, f"readers {sorted(weights.readers)[:20]}"]


_REQUESTS: Requests = {
    m.Open: SharedRegion._on_open,
    m.Withdraw: SharedRegion._on_withdraw,
    m.Create: SharedRegion._on_create,
    m.Commit: SharedRegion._on_commit,
    m.Checksums: SharedRegion._on_checksums,
}
