"""The rules of the weights of one device: who may write them, who may read them, and what outlives whom.

Pure: an event and the time go in, effects come out (`events.py`); `server.py` has the sockets and the memory.

How it goes. A process introduces itself and then asks to `Open`, for writing or for reading, and waits in the queue.
A writer makes slabs and commits a layout of them. Readers get the layout and all slabs at once. The state is what the
clients are doing (`picture.py` gives it its name): nothing else is stored that could contradict them.

The rules, and where they stand:

 1. Never a writer and a reader together. `why_not` is the one place where it is decided who may come in.
 2. The queue is looked at again after each event, in order. Whoever may come in comes in; a waiting writer keeps no
    reader out. Before a writer is let in the kernel is asked whether it still lives (`LookAtPeer`): its end may lie
    unread behind the very message that makes room for it, and what it would clear can't be brought back.
 3. A writer comes in only after its number is on disk, together with "no layout" if it clears one. The numbers only
    grow and are never given twice.
 4. A writer that ends without a commit has written nothing: its slabs are gone (`writing.py`).
 5. A commit is checked, then on disk, then acknowledged; its writer reads from that moment on. If the disk refuses, it
    is still a writer and may commit again; and the file is written once more with what is so.
 6. `replace`: the old layout stays until the new one is committed. If both can't fit it is refused at once.
 7. Whoever has descriptors of a layout that is no more is asked to drop them, and named until it has (`pins.py`).
 8. On a full device `Create` waits, for a bounded time, and no longer than its writer lives (`writing.py`).
 9. After a restart the file rules (`recovery.py`): the layout in it, and no other, can be handed back. Until the window
    is over no writer comes in, even once the layout is back: other readers of it may still be on their way.
10. A layout is given up only for a writer that comes in, or because nobody has its memory any more.
"""

import math
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from gms import events as e
from gms import messages as m
from gms.context import Context
from gms.desk import Desk
from gms.pins import Pins
from gms.record import Record, Slab
from gms.recovery import Recovery
from gms.sessions import Client, Committed, Doing, Draft, HeldSlab, Wish
from gms.status import state
from gms.writing import Writing
from sidecar.context import rfc3339

RETRY_PERSIST_S = 0.5


class Machine:
    def __init__(self, config: e.Config) -> None:
        self.config = config
        self.context = Context(config.history_size)
        self.clients: dict[int, Client] = {}
        self.committed: Committed | None = None
        self.draft: Draft | None = None
        self.given = 0
        self.desk = Desk(self)
        self.pins = Pins(self)
        self.writing = Writing(self)
        self.recovery = Recovery(self)
        self._started = False
        self._seq = 0
        self._write: tuple[int, Callable[[], None], Callable[[str], None]] | None = None
        self._looking_at: Client | None = None
        self._looks: deque[Callable[[e.MemorySeen], None]] = deque()
        self._rewrite_at = math.inf
        self._wishes = 0
        self._state = state(self)
        self.since = ""
        """When the state became what it is."""

    # -- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, time: e.Time) -> list[e.Effect]:
        context = self.context
        context.begin(time)
        self.recovery.notice()
        _HANDLERS[type(event)](self, event)
        if self._started:
            self._conclude()
        if not self.since or state(self) != self._state:
            self._state, self.since = state(self), rfc3339(context.wall)
            context.changed = True
        if context.changed:
            context.changed = False
            context.out.append(e.Publish())
        return context.out

    @property
    def deadline(self) -> float:
        """When `Tick` is due. Infinite while there is nothing to wait for: a server at rest sleeps."""
        return self.context.deadline

    def watchers(self) -> list[int]:
        return [conn for conn, watches in self.desk.observers.items() if watches]

    def _conclude(self) -> None:
        """Draw every conclusion that is due. While a question is open the answer comes first."""
        if not self.busy and self.context.reached(self._rewrite_at):
            self.write(self.truth(), _nothing, _ignore)
        if not self.busy:
            self.recovery.step()
        if not self.busy:
            self.writing.step()
            self._let_in()
        if not self.busy:
            self._time_out()
        self.pins.step()

    # -- the queue -------------------------------------------------------------------------------------------------

    @property
    def queue(self) -> list[Client]:
        waiting = [client for client in self.clients.values() if client.wish is not None]
        return sorted(waiting, key=lambda client: client.wish.number if client.wish is not None else 0)

    @property
    def readers(self) -> list[Client]:
        return [client for client in self.clients.values() if client.doing is Doing.READING]

    def reads(self, wish: m.Open) -> bool:
        there_is_one = self.committed is not None or self.recovery.hopes
        return wish.mode == "ro" or (wish.mode == "rw_or_ro" and there_is_one)

    def why_not(self, wish: m.Open) -> str:
        """Why this can't be granted now; empty if it can."""
        if self.draft is not None:
            return f"{self.draft.writer} is writing"
        if self.reads(wish):
            if self.committed is not None:
                return ""
            return self.recovery.why_no_reader() or "nothing is committed"
        if readers := self.readers:
            return f"{_names(readers)} {'reads' if len(readers) == 1 else 'read'}"
        return self.recovery.why_no_writer()

    def _let_in(self) -> None:
        for client in self.queue:
            if self.busy:
                return
            wish = client.wish
            if wish is None or self.why_not(wish.open):
                continue
            if self.reads(wish.open) and self.committed is not None:
                self._let_read(client, wish.open, self.committed)
            elif not self.reads(wish.open):
                self._looking_at = client
                self.context.out.append(e.LookAtPeer(client.conn))

    def _time_out(self) -> None:
        for client in self.queue:
            wish = client.wish
            if wish is not None and self.context.reached(wish.until):
                why = self.why_not(wish.open) or "its turn did not come"
                self._refuse_wish(client, f"waited {wish.open.timeout_s:g} s in vain: {why}", "time_out")

    def _refuse_wish(self, client: Client, why: str, reason: m.Reason) -> None:
        client.wish = None
        self.rest(client)
        self.context.note("refused", engine=client.engine_id, reason=reason, why=why)
        self.refuse(client.conn, why, reason)

    # -- readers ---------------------------------------------------------------------------------------------------

    def _let_read(self, client: Client, wish: m.Open, layout: Committed) -> None:
        if wish.expect and wish.expect != layout.hash:
            why = f"the layout that was expected ({wish.expect[:12]}) is no more; there is {layout.hash[:12]} now"
            self._refuse_wish(client, why, "stale")
            return
        kept = wish.have == layout.generation
        client.wish = None
        self.begins_to_read(client, layout)
        opened = m.Opened(mode="ro", generation=layout.generation, hash=layout.hash)
        if kept:
            self.context.send(client.conn, opened)
            return
        sizes = [slab.size for slab in layout.slabs]
        full = m.Opened(
            mode="ro",
            generation=layout.generation,
            hash=layout.hash,
            sizes=sizes,
            layout=layout.document,
            sums=layout.sums,
        )
        self.context.send(client.conn, full)
        batch = self.config.batch
        for first in range(0, len(layout.slabs), batch):
            handles = tuple(slab.handle for slab in layout.slabs[first : first + batch])
            self.context.send(client.conn, m.Slabs(generation=layout.generation, first=first), handles)

    def begins_to_read(self, client: Client, layout: Committed) -> None:
        client.doing, client.since = Doing.READING, self.context.wall
        client.holds.add(layout.generation)
        self.context.note("reading", engine=client.engine_id, generation=layout.generation)

    def rest(self, client: Client) -> None:
        """It neither reads nor writes nor waits."""
        client.doing = Doing.ASLEEP if client.holds - client.asked.keys() else Doing.WATCHING
        client.since = self.context.wall
        self.context.changed = True

    # -- writers ---------------------------------------------------------------------------------------------------

    def _on_peer_seen(self, event: e.PeerSeen) -> None:
        client = self._looking_at
        if client is None or client.conn != event.conn:
            return
        self._looking_at = None
        if self.clients.get(client.conn) is not client or client.wish is None:
            return
        if not event.there:
            self.context.note("died_waiting", engine=client.engine_id)
            self.desk.end(client.conn)
            return
        wish, generation = client.wish, self.given + 1
        keeps = wish.open.replace and self.committed is not None
        self.given = generation
        record = self.truth() if keeps else Record(given=generation)

        def written() -> None:
            if self.clients.get(client.conn) is client and client.wish is wish:
                self._let_write(client, generation, clears=not keeps)
            else:
                self.file_is_wrong()

        def failed(why: str) -> None:
            if self.clients.get(client.conn) is client and client.wish is wish:
                self._refuse_wish(client, f"the state file can't be written ({why}): nobody may write", "disk")

        self.write(record, written, failed)

    def _let_write(self, client: Client, generation: int, *, clears: bool) -> None:
        if clears:
            self.recovery.give_up("a writer was let in")
            self.drop_layout()
        client.wish, client.doing, client.since = None, Doing.WRITING, self.context.wall
        self.draft = Draft(client, generation)
        self.context.note("writing", engine=client.engine_id, generation=generation)
        self.context.send(client.conn, m.Opened(mode="rw", generation=generation))

    def drop_layout(self) -> None:
        """The file says already that it is no more."""
        layout, self.committed = self.committed, None
        if layout is not None:
            self.forget(layout.slabs)
            self.context.note("cleared", generation=layout.generation)
            self.tell(m.Changed(generation=0, hash=""))
            self.pins.ask(layout.generation)

    def tell(self, message: m.ServerMessage, but: Client | None = None) -> None:
        for client in self.clients.values():
            if client is not but:
                self.context.send(client.conn, message)

    # -- the disk --------------------------------------------------------------------------------------------------

    @property
    def busy(self) -> bool:
        """A question is open whose answer decides what follows."""
        return self._write is not None or self._looking_at is not None

    def truth(self) -> Record:
        """What the file has to say now."""
        layout = self.committed
        if layout is None:
            return self.recovery.record(self.given)
        slabs = tuple(Slab(slab.size, slab.identity) for slab in layout.slabs)
        return Record(self.given, layout.generation, layout.hash, slabs, self.config.boot_id)

    def write(self, record: Record, written: Callable[[], None], failed: Callable[[str], None]) -> None:
        self._seq += 1
        self._write = (self._seq, written, failed)
        self._rewrite_at = math.inf
        self.context.out.append(e.Persist(self._seq, record))

    def file_is_wrong(self) -> None:
        self._rewrite_at = self.context.now

    def _on_persisted(self, event: e.Persisted) -> None:
        if self._write is not None and self._write[0] == event.seq:
            _, written, _ = self._write
            self._write = None
            self.context.calm("disk")
            written()

    def _on_persist_failed(self, event: e.PersistFailed) -> None:
        if self._write is not None and self._write[0] == event.seq:
            _, _, failed = self._write
            self._write = None
            self._rewrite_at = self.context.now + RETRY_PERSIST_S
            self.context.alarm("disk", f"the state file can't be written ({event.why}): nobody may write or commit")
            failed(event.why)

    # -- memory ----------------------------------------------------------------------------------------------------

    def look_at_memory(self, identities: tuple[str, ...], then: Callable[[e.MemorySeen], None]) -> None:
        self._looks.append(then)
        self.context.out.append(e.LookAtMemory(identities))

    def _on_memory_seen(self, event: e.MemorySeen) -> None:
        if self._looks:
            self._looks.popleft()(event)

    def forget(self, slabs: Sequence[HeldSlab | e.Slab]) -> None:
        if slabs:
            self.context.out.append(e.Forget(tuple(slab.handle for slab in slabs)))

    # -- callers ---------------------------------------------------------------------------------------------------

    def _on_received(self, event: e.Received) -> None:
        message, client = event.message, self.clients.get(event.conn)
        if not isinstance(message, m.HandBack) or client is None:
            self.forget(event.slabs)
        if client is not None and type(message) in _REQUESTS:
            _REQUESTS[type(message)](self, event, client)
        else:
            self.desk.received(event)

    def throw_out(self, conn: int, why: str) -> None:
        """A mistake: it costs the sender this connection."""
        self.context.send(conn, m.Problem(why=why))
        self.desk.end(conn)

    def refuse(self, conn: int, why: str, reason: m.Reason) -> None:
        self.context.send(conn, m.Refused(why=why[:2000], reason=reason))

    def _on_closed(self, event: e.Closed) -> None:
        self.desk.left(event.conn)

    def _on_died(self, event: e.Died) -> None:
        for client in list(self.clients.values()):
            if client.process == event.process:
                self.desk.end(client.conn)

    # -- requests --------------------------------------------------------------------------------------------------

    def _on_open(self, event: e.Received, client: Client) -> None:
        message = event.message
        assert isinstance(message, m.Open)
        if client.doing in (Doing.WAITING, Doing.READING, Doing.WRITING) or client.returning is not None:
            self.throw_out(event.conn, f"Open: this process is {client.doing.value} already; Withdraw first")
            return
        if self.committed is not None and message.have == self.committed.generation:
            client.holds.add(message.have)
        wait_s = math.inf if message.timeout_s is None else message.timeout_s
        self._wishes += 1
        client.wish = Wish(message, self._wishes, self.context.now + wait_s)
        client.doing, client.since = Doing.WAITING, self.context.wall
        self.context.changed = True
        if message.replace and not self.reads(message):
            self._ask_for_room(client, client.wish)

    def _ask_for_room(self, client: Client, wish: Wish) -> None:
        """A replacement for which there is no room beside the old layout is refused at once."""
        layout, needed = self.committed, wish.open.bytes
        if layout is None:
            return

        def seen(memory: e.MemorySeen) -> None:
            if self.clients.get(client.conn) is not client or client.wish is not wish or memory.free >= needed:
                return
            why = (
                f"the new layout needs {needed} bytes beside the {layout.size} of the old one, and {memory.free} of "
                f"{self.config.capacity} are free; without `replace` the old one would be cleared first"
            )
            too_large = needed + layout.size > self.config.capacity
            self._refuse_wish(client, why, "too_large" if too_large else "no_memory")

        self.look_at_memory((), seen)

    def _on_withdraw(self, event: e.Received, client: Client) -> None:
        message = event.message
        assert isinstance(message, m.Withdraw)
        if client.returning is not None:
            self.throw_out(event.conn, "Withdraw: it is in the middle of handing back")
            return
        if self.draft is not None and self.draft.writer is client:
            self.writing.abort()
        client.wish = None
        client.holds &= {message.keeps} | client.asked.keys()
        self.rest(client)
        self.context.note("withdrew", engine=client.engine_id, keeps=message.keeps)
        self.context.send(event.conn, m.Withdrawn())

    def _on_create(self, event: e.Received, client: Client) -> None:
        self.writing.create(event, client)

    def _on_commit(self, event: e.Received, client: Client) -> None:
        self.writing.commit(event, client)

    def _on_allocated(self, event: e.Allocated) -> None:
        self.writing.allocated(event)

    def _on_not_allocated(self, event: e.NotAllocated) -> None:
        self.writing.not_allocated(event)

    def _on_hand_back(self, event: e.Received, client: Client) -> None:
        self.recovery.hand_back(event, client)

    def _on_checksums(self, event: e.Received, client: Client) -> None:
        message, layout = event.message, self.committed
        assert isinstance(message, m.Checksums)
        current = layout is not None and layout.generation == message.generation
        if layout is not None and current and len(message.sums) == len(layout.slabs):
            layout.sums = message.sums
            self.context.changed = True

    def _on_dropped(self, event: e.Received, client: Client) -> None:
        assert isinstance(event.message, m.Dropped)
        self.pins.dropped(client, event.message.generation)

    # -- the rest --------------------------------------------------------------------------------------------------

    def _on_started(self, event: e.Started) -> None:
        self._started = True
        self.recovery.begin(event)

    def _on_directory_replaced(self, event: e.DirectoryReplaced) -> None:
        """Nobody who opens this path finds this server any more: it can only make room."""
        self._started = False
        self.context.out.append(e.Stop(event.why))

    def _on_tick(self, event: e.Tick) -> None:
        """Time has passed; the conclusions follow."""


def _names(clients: list[Client]) -> str:
    names = ", ".join(str(client) for client in clients[:5])
    return f"{names} and {len(clients) - 5} more" if len(clients) > 5 else names


def _nothing() -> None:
    """The file says again what is so; nobody waited for it."""


def _ignore(why: str) -> None:
    """It will be written again."""


_HANDLERS: dict[type, Callable[[Machine, Any], None]] = {
    e.Started: Machine._on_started,
    e.Received: Machine._on_received,
    e.Closed: Machine._on_closed,
    e.Died: Machine._on_died,
    e.Allocated: Machine._on_allocated,
    e.NotAllocated: Machine._on_not_allocated,
    e.MemorySeen: Machine._on_memory_seen,
    e.PeerSeen: Machine._on_peer_seen,
    e.Persisted: Machine._on_persisted,
    e.PersistFailed: Machine._on_persist_failed,
    e.DirectoryReplaced: Machine._on_directory_replaced,
    e.Tick: Machine._on_tick,
}

_REQUESTS: dict[type, Callable[[Machine, e.Received, Client], None]] = {
    m.Open: Machine._on_open,
    m.Withdraw: Machine._on_withdraw,
    m.Create: Machine._on_create,
    m.Commit: Machine._on_commit,
    m.Checksums: Machine._on_checksums,
    m.Dropped: Machine._on_dropped,
    m.HandBack: Machine._on_hand_back,
}
