"""The rules of the weights of one device: who may write them, who may read them, and what outlives whom.

Pure: an event and the time go in, effects come out (`events.py`); `server.py` has the sockets and the memory.

How it goes. A process introduces itself and then asks to `Open`, for writing or for reading, and waits in the queue.
A writer makes slabs and commits a layout of them. Readers get the layout and all slabs at once.

The machine is made of parts. Each owns one thing and may know the parts before it, and none knows the machine:

    weights.py      the layout and its phases            recovery.py    a new server, and what is handed back to it
    holders.py      who has memory of which layout       admission.py   who may come in, and why not
    sessions.py     who is connected, and the queue      reading.py     what a reader gets
    state_file.py   what is on disk, and waits for that  writing.py     a writer's slabs and its layout
    callers.py      introductions and questions          drops.py       memory of layouts that are no more
    invariants.py   what must hold after every event
    pool_machine.py pools, which have rules of their own and nothing to do with the weights but the device

Parts return what follows for others. Here it is put together, in this file alone.

The rules, and where they stand:

 1. There is never a writer together with a reader. `admission.py` is the one place where it is decided who may come in;
    `weights.py` takes no other step.
 2. The queue is looked at again after each event, in order. Whoever may come in comes in; a waiting writer keeps no
    reader out. Before a writer is let in the kernel is asked whether it still lives (`CheckPeer`): its end may lie
    unread behind the very message that makes room for it, and what it would clear can't be brought back.
 3. A writer comes in only after its generation is on disk, together with "no layout" if it clears one. Generations
    only grow and are never given twice.
 4. A writer that ends without a commit has written nothing: its slabs are gone.
 5. A commit is checked, then on disk, then acknowledged; its writer reads from that moment on. If the disk refuses, it
    is still a writer and may commit again; and the file is written once more with what is so.
 6. `replace`: the old layout stays until the new one is committed. Who says how much it needs, and can't have that,
    is refused at once, before anything is cleared.
 7. Whoever has descriptors of a layout that is gone is asked to drop them, and named until it has (`drops.py`).
 8. On a full device `Create` waits, for a bounded time, and no longer than its writer lives (`writing.py`).
 9. After a restart the file rules (`recovery.py`): the layout in it, and no other, can be handed back. Until the window
    is over no writer comes in, even once the layout is back: other readers of it may still be on their way.
10. A layout is given up only for a writer that comes in, or because nobody has its memory any more.
11. When something that must hold doesn't (`invariants.py`), nobody is let in any more, and nobody loses anything.
"""

import math
from collections import deque
from collections.abc import Callable
from typing import Any, NamedTuple

from gms import events as e
from gms import messages as m
from gms import status
from gms.admission import Admission
from gms.callers import Callers
from gms.context import Context
from gms.drops import Drops
from gms.holders import TOO_MANY_LAYOUTS, Holders
from gms.invariants import Invariants, harmless, in_words
from gms.pool_machine import PoolMachine
from gms.reading import Reading
from gms.record import Record
from gms.recovery import Recovery, Step, Verdict
from gms.sessions import IDLE, Client, Doing, Sessions
from gms.state_file import Acknowledge, Admit, GiveUp, StateFile
from gms.versions import Strangers
from gms.weights import BrokenRule, Cleared, Layout, Weights
from gms.writing import Writing
from sidecar.context import rfc3339

# -- why the shell was asked to check the memory: it answers in that order ---------------------------------------------


class ForRoom(NamedTuple):
    """Is there room for what is to be written?"""

    conn: int
    request: int


class ForStatus(NamedTuple):
    conn: int


class ForAwaited(NamedTuple):
    """Has anybody the memory of the layout that is awaited?"""


Question = ForRoom | ForStatus | ForAwaited


class Machine:
    def __init__(self, config: e.Config) -> None:
        self.config = config
        self.context = context = Context(config.history_size)
        self.weights = weights = Weights()
        self.holders = Holders()
        self.sessions = sessions = Sessions(context, weights, self.holders)
        self.state_file = StateFile(context)
        self.drops = Drops(context, self.holders, sessions)
        self.recovery = Recovery(context, weights, config)
        self.admission = Admission(weights, sessions, self.recovery)
        self.reading = Reading(context, weights, self.holders, sessions, config)
        self.writing = Writing(context, weights, sessions, config)
        strangers = Strangers(context)
        self.callers = Callers(context, weights, sessions, config, strangers)
        self.pools = PoolMachine(context, config, strangers)
        self._parts = status.Parts(
            config, context, weights, self.holders, sessions, self.admission, self.writing, self.drops, self.pools
        )
        self._invariants = Invariants(weights, sessions)
        self._started = False
        self._checking_peer: tuple[int, int] | None = None
        """Connection and request of a writer that is about to be let in."""
        self._questions: deque[Question] = deque()
        self._phase = weights.phase
        self._since = ""
        """When the phase became what it is."""

    # -- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, time: e.Time) -> list[e.Effect]:
        context = self.context
        context.begin(time)
        rule = ""
        try:
            self.recovery.notice()
            _HANDLERS[type(event)](self, event)
            if self._started:
                self._conclude()
        except BrokenRule as broken:
            rule = str(broken)
        rule = rule or self._invariants.broken(context.out, self.state_file.says, len(self._questions))
        rule = rule or self.pools.broken()
        if rule:
            self._stop_granting(rule, event)
        if self.admission.why_closed:
            context.out = harmless(context.out, [*self.weights.standing, *self.pools.slabs])
        if self.weights.phase is not self._phase or not self._since:
            self._phase, self._since = self.weights.phase, rfc3339(context.wall)
            context.changed = True
        if context.changed:
            context.changed = False
            context.out.append(e.Publish())
        return context.out

    @property
    def deadline(self) -> float:
        """When `Tick` is due. Infinite while there is nothing to wait for: a server at rest sleeps."""
        return self.context.deadline

    @property
    def watchers(self) -> list[int]:
        """Connections of the observers that want to hear of each change."""
        return self.sessions.watchers

    def status(self, free: int = 0, blocks: dict[int, tuple[int, int]] | None = None) -> m.Status:
        """`free`: what the device has free; `blocks`: what pools' tables say. Only the shell can know both."""
        return status.status_of(self._parts, self._since, free, blocks or {})

    def truth(self) -> Record:
        """What the file has to say now."""
        return self.weights.record(self.config.boot_id)

    def _conclude(self) -> None:
        """Draw every conclusion that is due. While a question is open the answer comes first."""
        if not self.admission.why_closed:
            if not self._busy and self.state_file.is_due:
                self.state_file.write(self.truth())
            if not self._busy:
                self._recover(self.recovery.step())
            if not self._busy:
                self.writing.step()
                self._let_in()
        if not self._busy:
            self._time_out()
        self.drops.step()
        self.callers.step()
        self.pools.step()

    @property
    def _busy(self) -> bool:
        """A question is open whose answer decides what follows."""
        return self.state_file.busy or self._checking_peer is not None

    def _stop_granting(self, rule: str, event: e.Event) -> None:
        """Rule 11. The alarm says what is needed to report it."""
        what, state = in_words(event), status.summary(self._parts)
        self.context.note("rule_broken", rule=rule, after=what, state=state)
        if not self.admission.why_closed:
            self.admission.why_closed = self.pools.why_closed = (
                f"this server has found a mistake in its own program ({rule}) and lets nobody in"
            )
            text = f"a mistake in this program: {rule}; after {what}; {state}"[:1800]
            advice = "nobody is let in any more, and whoever reads reads on; report this line, then restart gms"
            self.context.alarm("rule", f"{text}: {advice}")

    # -- the queue -------------------------------------------------------------------------------------------------

    def _let_in(self) -> None:
        for client, request in self.sessions.queue:
            if self._busy:
                return
            verdict = self.admission.verdict(request.open)
            if not verdict.may:
                continue
            if verdict.mode == "ro":
                self.reading.let_in(client, request.open)
            else:
                self._checking_peer = (client.conn, request.number)
                self.context.out.append(e.CheckPeer(client.conn))

    def _time_out(self) -> None:
        for client, request in self.sessions.queue:
            if self.context.reached(request.until):
                why = self.admission.verdict(request.open).why_not or "its turn did not come"
                self.sessions.refuse(client, f"waited {request.open.timeout_s:g} s in vain: {why}", "time_out")

    # -- writers ---------------------------------------------------------------------------------------------------

    def _on_peer_checked(self, event: e.PeerChecked) -> None:
        if self._checking_peer is None or self._checking_peer[0] != event.conn:
            return
        asking, self._checking_peer = self.sessions.asking(*self._checking_peer), None
        if asking is None or self.admission.why_closed:
            return
        client, request = asking
        if not event.there:
            self.context.note("died_waiting", engine=client.engine_id)
            self._end(client.conn)
            return
        replaces = request.open.replace and self.weights.committed is not None
        generation = self.weights.next_generation()
        record = self.truth() if replaces else Record(given=generation)
        self.state_file.write(record, Admit(client.conn, request.number, generation, replaces))

    def _admit(self, owed: Admit) -> None:
        """A writer. That it may come in is on disk."""
        asking = self.sessions.asking(owed.conn, owed.request)
        if asking is None:
            self.state_file.write_again()
            return
        client, _ = asking
        cleared = self.weights.write(client.conn, owed.generation, replaces=owed.replaces)
        if cleared is not None:
            self._cleared(cleared, "a writer was let in")
        client.request = None
        self.sessions.turns_to_something_else(client)
        self.context.note("writing", engine=client.engine_id, generation=owed.generation)
        self.context.send(client.conn, m.Opened(mode="rw", generation=owed.generation))

    def _cleared(self, cleared: Cleared, why: str) -> None:
        """A layout is gone, and no other took its place."""
        if cleared.was_awaited:
            self.recovery.end()
            self.context.note("given_up", generation=cleared.generation, why=why)
        else:
            self.context.forget(cleared.slabs)
            self.context.note("cleared", generation=cleared.generation)
        self.sessions.tell(m.Changed(generation=0, hash=""))
        self.drops.ask(cleared.generation)

    def _on_create(self, client: Client, message: m.Create) -> None:
        mistake, draft = self.writing.mistake(client), self.weights.draft
        if mistake or draft is None:
            self._throw_out(client.conn, m.Problem(why=f"Create: {mistake}"))
        elif self.admission.why_closed:
            self.context.refuse(client.conn, self.admission.why_closed, "not_now")
        else:
            self.writing.create(draft, message.size)

    def _on_allocated(self, event: e.Allocated) -> None:
        self.writing.allocated(event)

    def _on_not_allocated(self, event: e.NotAllocated) -> None:
        self.writing.not_allocated(event, self.drops.pending)

    def _on_commit(self, client: Client, message: m.Commit) -> None:
        mistake, draft = self.writing.mistake(client), self.weights.draft
        if mistake or draft is None:
            self._throw_out(client.conn, m.Problem(why=f"Commit: {mistake}"))
        elif self.admission.why_closed:
            self.context.refuse(client.conn, self.admission.why_closed, "not_now")
        elif (layout := self.writing.layout(draft, message.layout)) is not None:
            self.state_file.write(self.weights.record_of(layout, self.config.boot_id), Acknowledge(layout))

    def _acknowledge(self, layout: Layout) -> None:
        """A commit. It is on disk."""
        draft, writer = self.weights.draft, self.sessions.writer
        if draft is None or writer is None or draft.generation != layout.generation:
            self.state_file.write_again()
            return
        old = self.weights.commit(layout)
        self.context.calm("record")
        self.context.note(
            "committed", engine=writer.engine_id, generation=layout.generation, hash=layout.hash, bytes=layout.size
        )
        self.reading.has_begun(writer, layout)
        self.context.send(writer.conn, m.Committed(generation=layout.generation, hash=layout.hash))
        self.sessions.tell(m.Changed(generation=layout.generation, hash=layout.hash), but=writer)
        if old is not None:
            self.context.forget(old.slabs)
            self.context.note("replaced", generation=old.generation, by=layout.generation)
            self.drops.ask(old.generation)

    # -- answers of the disk, and of the device --------------------------------------------------------------------

    def _on_persisted(self, event: e.Persisted) -> None:
        for owed in self.state_file.persisted(event.seq):
            if isinstance(owed, Admit):
                self._admit(owed)
            elif isinstance(owed, Acknowledge):
                self._acknowledge(owed.layout)
            else:
                self._give_up(owed)

    def _on_persist_failed(self, event: e.PersistFailed) -> None:
        why = f"the state file can't be written ({event.why})"
        for owed in self.state_file.failed(event.seq, event.why):
            if isinstance(owed, Admit):
                asking = self.sessions.asking(owed.conn, owed.request)
                if asking is not None:
                    self.sessions.refuse(asking[0], f"{why}: nobody may write", "disk")
            elif isinstance(owed, Acknowledge):
                draft = self.weights.draft
                if draft is not None and draft.generation == owed.layout.generation:
                    sentence = f"{why}: nothing is committed, and it can be tried again"
                    self.context.refuse(draft.writer, sentence, "disk")
            else:
                self.recovery.could_not_give_up()

    def _check_memory(self, why: Question, identities: tuple[str, ...] = (), tables: tuple[int, ...] = ()) -> None:
        self._questions.append(why)
        self.context.out.append(e.CheckMemory(identities, tables))

    def _on_memory_checked(self, event: e.MemoryChecked) -> None:
        why = self._questions.popleft() if self._questions else None
        if isinstance(why, ForRoom):
            asking = self.sessions.asking(why.conn, why.request)
            if asking is not None:
                self.writing.is_there_room(*asking, event.free)
        elif isinstance(why, ForStatus):
            if self.sessions.knows(why.conn):
                self.context.send(why.conn, self.status(event.free, event.blocks))
        elif isinstance(why, ForAwaited):
            self.recovery.checked(event.held)

    # -- callers ---------------------------------------------------------------------------------------------------

    def _on_received(self, event: e.Received) -> None:
        message, conn, kind = event.message, event.conn, type(event.message)
        client = self.sessions.clients.get(conn)
        if self.pools.knows(conn):
            mistake = self.pools.received(event)
            if mistake is not None:
                self._throw_out(conn, mistake)
            return
        if client is not None and isinstance(message, m.HandBack):
            self._on_hand_back(client, message, event.slabs)
            return
        self.context.forget(event.slabs)
        problem: m.Problem | None = None
        if isinstance(message, m.PoolHello) and not self.sessions.knows(conn):
            problem = self.pools.introduce(event, message)
        elif client is not None and kind in _REQUESTS:
            _REQUESTS[kind](self, client, message)
        elif isinstance(message, m.Hello | m.Observe):
            problem = self._introduce(event, message)
        elif isinstance(message, m.AskStatus) and self.sessions.knows(conn):
            self._check_memory(ForStatus(conn), tables=self.pools.tables)
        elif isinstance(message, m.DropPool) and conn in self.sessions.observers:
            self.pools.drop(conn, message.key)
        else:
            problem = self.callers.ask(conn, message)
        if problem is not None:
            self._throw_out(conn, problem)

    def _introduce(self, event: e.Received, hello: m.Hello | m.Observe) -> m.Problem | None:
        if problem := self.callers.introduce(event, hello):
            return problem
        for conn in self.sessions.too_many():
            self._throw_out(conn, m.Problem(why="there are too many, and this one does nothing", about="place"))
        return None

    def _throw_out(self, conn: int, problem: m.Problem) -> None:
        """A mistake: it costs the sender this connection."""
        self.context.send(conn, problem)
        self._end(conn)

    def _on_closed(self, event: e.Closed) -> None:
        self._left(event.conn)

    def _on_died(self, event: e.Died) -> None:
        for client in self.sessions.of(event.process):
            self._end(client.conn)
        self.pools.died(event.process)

    def _end(self, conn: int) -> None:
        self.context.out.append(e.Close(conn))
        self._left(conn)

    def _left(self, conn: int) -> None:
        client = self.sessions.clients.get(conn)
        if client is not None:
            doing = self.sessions.doing(client)
            if client.process is not None:
                self.context.out.append(e.ForgetProcess(client.process))
            self.recovery.left(conn)
            if doing is not Doing.WATCHING:
                self.context.note("left", engine=client.engine_id, was=doing.value)
            if doing is Doing.WRITING:
                self.writing.abort(client)
            self.weights.stop_reading(conn)
            self.holders.gone(conn)
        self.sessions.gone(conn)
        self.pools.left(conn)
        if client is not None:
            self._recover(self.recovery.somebody_left())

    # -- requests --------------------------------------------------------------------------------------------------

    def _on_open(self, client: Client, message: m.Open) -> None:
        doing = self.sessions.doing(client)
        if doing not in IDLE or self.recovery.comes_from(client.conn):
            why = f"Open: this process is {doing.value} already; Withdraw first"
            self._throw_out(client.conn, m.Problem(why=why))
            return
        committed = self.weights.committed
        if committed is not None and message.have == committed.generation:
            self.holders.get(client.conn, message.have)
        wait_s = math.inf if message.timeout_s is None else message.timeout_s
        request = self.sessions.ask(client, message, self.context.now + wait_s)
        if message.bytes and not self.admission.wants_to_read(message):
            self._check_memory(ForRoom(client.conn, request.number))

    def _on_withdraw(self, client: Client, message: m.Withdraw) -> None:
        if self.recovery.comes_from(client.conn):
            self._throw_out(client.conn, m.Problem(why="Withdraw: it is in the middle of handing back"))
            return
        if self.weights.writer == client.conn:
            self.writing.abort(client)
        client.request = None
        self.weights.stop_reading(client.conn)
        self.holders.keep_only(client.conn, message.keeps)
        self.sessions.turns_to_something_else(client)
        self.context.note("withdrew", engine=client.engine_id, keeps=message.keeps)
        self.context.send(client.conn, m.Withdrawn())

    def _on_checksums(self, client: Client, message: m.Checksums) -> None:
        if self.weights.sum_up(message.generation, tuple(message.sums)):
            self.context.changed = True

    def _on_dropped(self, client: Client, message: m.Dropped) -> None:
        self.drops.dropped(client, message.generation)

    # -- a new server (rules 9 and 10) -----------------------------------------------------------------------------

    def _on_started(self, event: e.Started) -> None:
        self._started = True
        self.state_file.says = event.record
        self.recovery.starts(event)
        self.pools.starts(event)

    def _recover(self, step: Step) -> None:
        awaited = self.weights.awaited
        if awaited is not None and step is Step.CHECK_MEMORY:
            self._check_memory(ForAwaited(), tuple(slab.identity for slab in awaited.slabs))
        elif awaited is not None and step is Step.GIVE_UP:
            self.state_file.write(Record(self.weights.newest_generation), GiveUp(awaited.generation))

    def _give_up(self, owed: GiveUp) -> None:
        """That there is no layout is on disk."""
        awaited = self.weights.awaited
        if awaited is None or awaited.generation != owed.generation:
            self.state_file.write_again()
            return
        self._cleared(self.weights.give_up(), "nobody has its memory any more")
        self.recovery.gave_up()

    def _on_hand_back(self, client: Client, message: m.HandBack, slabs: tuple[e.Slab, ...]) -> None:
        idle = self.sessions.doing(client) in IDLE
        back = self.recovery.hand_back(client.conn, message, slabs, idle=idle)
        if (layout := back.stands_again) is not None:
            self.context.note("handed_back", engine=client.engine_id, generation=layout.generation, hash=layout.hash)
            # Who came meanwhile, and has nothing to bring back, was told that there is none.
            self.sessions.tell(m.Changed(generation=layout.generation, hash=layout.hash), but=client)
        if back.verdict is Verdict.MISTAKE:
            self._throw_out(client.conn, m.Problem(why=f"HandBack: {back.why}"))
        elif back.verdict is Verdict.COME_AGAIN:
            self._end(client.conn)
        elif back.verdict is Verdict.STALE:
            self._is_stale(client, message.generation, back.why)
        elif back.verdict is Verdict.HAS_IT:
            self._has_it(client, message)

    def _has_it(self, client: Client, message: m.HandBack) -> None:
        """What is committed."""
        if message.reading and self.weights.draft is not None:
            why = f"it was away for too long: {self.sessions.writer} is writing"
            self._is_stale(client, message.generation, why)
            return
        if message.reading:
            self.reading.begins(client)
        else:
            self.holders.get(client.conn, message.generation)
            self.sessions.turns_to_something_else(client)
        self.context.send(client.conn, m.HandedBack(generation=message.generation, reading=message.reading))

    def _is_stale(self, client: Client, generation: int, why: str) -> None:
        self.context.note("stale", engine=client.engine_id, generation=generation, why=why)
        self.context.refuse(client.conn, why, "stale")
        if not self.drops.ask_one(client, generation):
            self._throw_out(client.conn, m.Problem(why=TOO_MANY_LAYOUTS))

    # -- the rest --------------------------------------------------------------------------------------------------

    def _on_directory_replaced(self, event: e.DirectoryReplaced) -> None:
        """Nobody who opens this path finds this server any more: it can only make room."""
        self._started = False
        self.context.out.append(e.Stop(event.why))

    def _on_file_gone(self, event: e.FileGone) -> None:
        """A cleaner of temporary files, most likely. What it said is so still, and is written once more."""
        self.context.shout(f"{event.name} was deleted by somebody, and is written again, because a new server needs it")
        if self.state_file.says is not None:
            self.state_file.write_again()
        if self.pools.file.says is not None:
            self.pools.file.write_again()

    def _on_path_watched(self, event: e.PathWatched) -> None:
        self.context.path_watched(event)

    def _on_hindered(self, event: e.Hindered) -> None:
        self.context.alarm("connections", event.why) if event.why else self.context.calm("connections")

    def _on_tick(self, event: e.Tick) -> None:
        """Time has passed; the conclusions follow."""

    def _on_pool_allocated(self, event: e.PoolAllocated) -> None:
        self.pools.allocated(event)

    def _on_pool_not_allocated(self, event: e.PoolNotAllocated) -> None:
        self.pools.not_allocated(event)

    def _on_pools_persisted(self, event: e.PoolsPersisted) -> None:
        self.pools.persisted(event)

    def _on_pools_persist_failed(self, event: e.PoolsPersistFailed) -> None:
        self.pools.persist_failed(event)


_HANDLERS: dict[type, Callable[[Machine, Any], None]] = {
    e.Started: Machine._on_started,
    e.Received: Machine._on_received,
    e.Closed: Machine._on_closed,
    e.Died: Machine._on_died,
    e.Allocated: Machine._on_allocated,
    e.NotAllocated: Machine._on_not_allocated,
    e.MemoryChecked: Machine._on_memory_checked,
    e.PeerChecked: Machine._on_peer_checked,
    e.Persisted: Machine._on_persisted,
    e.PersistFailed: Machine._on_persist_failed,
    e.FileGone: Machine._on_file_gone,
    e.PoolAllocated: Machine._on_pool_allocated,
    e.PoolNotAllocated: Machine._on_pool_not_allocated,
    e.PoolsPersisted: Machine._on_pools_persisted,
    e.PoolsPersistFailed: Machine._on_pools_persist_failed,
    e.DirectoryReplaced: Machine._on_directory_replaced,
    e.PathWatched: Machine._on_path_watched,
    e.Hindered: Machine._on_hindered,
    e.Tick: Machine._on_tick,
}

_REQUESTS: dict[type, Callable[[Machine, Client, Any], None]] = {
    m.Open: Machine._on_open,
    m.Withdraw: Machine._on_withdraw,
    m.Create: Machine._on_create,
    m.Commit: Machine._on_commit,
    m.Checksums: Machine._on_checksums,
    m.Dropped: Machine._on_dropped,
}
