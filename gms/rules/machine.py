"""The rules of one device's memory: which regions there are, who may write them, who may read them, and what outlives
whom.

Pure: an event and the time go in, effects come out (`events.py`); `server.py` has the sockets and the memory.

How it goes. A process introduces itself, names its region, and then asks: to `Open` weights, or to claim a pool. It
waits in the queue of that region. What follows is the policy's.

The machine is made of parts. Each owns one thing and may know the parts before it, and none knows the machine:

    holders.py      who has memory, also what is gone    region.py       what all regions have in common
    sessions.py     who is connected, and the queues     shared.py       weights (their phases: `weights.py`)
    state_file.py   what is on disk, and waits for that  exclusive.py    pools (`pools.py`, `claims.py`)
    making.py       memory that is being made            recovery.py     a new server: what it waits for, and how long
    versions.py     who speaks another protocol          invariants.py   what must hold after every event
    conclusions.py  what follows from how things stand

Events come in here, and go to the region or the part that they are about. What follows from how things stand then is
asked of all parts (`Conclusions.plan`), and done.

The rules of weights, and where they stand (those of pools: `exclusive.py`; both have 7, 9 and 11):

 1. There is never a writer together with a reader. `weights.py` is the one place where it is decided who may come in,
    and takes no other step.
 2. The queue is looked at again after each event, in order. A request that may be granted is; a waiting writer keeps no
    reader out. Before a writer is let in the kernel is asked whether it still lives (`CheckPeer`): its end may lie
    unread behind the very message that makes room for it, and what it would clear can't be brought back.
 3. A writer comes in only after its generation is on disk, together with "no layout" if it clears one. Generations
    only grow and are never given twice.
 4. A writer that ends without a commit has written nothing: its slabs are gone.
 5. A commit is checked, then on disk, then acknowledged; its writer reads from that moment on. If the disk refuses, it
    is still a writer and may commit again; and the file is written once more with what is so.
 6. `replace`: the old layout stays until the new one is committed. A writer that says how much it needs, and can't have
    that, is refused at once, before anything is cleared.
 7. A process that has descriptors of memory that is gone is asked to drop them, and named until it has (`holders.py`).
 8. On a full device `Create` waits, for a bounded time, and no longer than its writer lives (`making.py`). Where there
    is a ledger of the host's memory, so is a device where the lease can't grow (`leases.py`).
 9. After a restart the file rules (`recovery.py`): the memory in it, and no other, can be handed back.
    Until the window is over no writer comes in, even once the layout is back: other readers of it may still be on their
    way. (None is to one that is parked: it may be brought back at once.)
10. A layout is given up only for a writer that comes in, because no process has its memory any more, or because a
    person says so while no process reads or writes it: on disk first, then the memory goes (`Region.drop`).
11. When something that must hold doesn't (`invariants.py`), no process is let in any more, and none loses anything.
12. To park a layout is to replace it by itself in host memory, and to bring it back is to replace it by itself in the
    device: by a writer, as rules 1 to 9 have it. Only its number is another, because no two pieces of memory have the
    same, and what it counts against: the server's bound of host memory, or the device. It can't be read meanwhile.
"""

from collections.abc import Callable
from typing import Any

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import status, versions
from gms.rules.conclusions import Conclusions
from gms.rules.context import Context
from gms.rules.exclusive import ExclusiveRegion
from gms.rules.invariants import Invariants, harmless, in_words
from gms.rules.region import Device, Region
from gms.rules.sessions import Client
from gms.rules.shared import SharedRegion
from gms.rules.weights import BrokenRule, Slab, begin_above
from sidecar.machine.context import rfc3339
from sidecar.machine.plan import Circle

MOST_REGIONS = 64
"""Twenty models with their pools, and some."""


class Machine:
    def __init__(self, config: e.Config) -> None:
        self.config = config
        self.context = Context(config.history_size)
        self.device = Device(config, self.context)
        self.regions = self.device.regions
        self.sessions = self.device.sessions
        self.conclusions = Conclusions(self.device)
        self._invariants = Invariants(self.device)
        self._phases: dict[str, object] = {}

    # -- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, time: e.Time) -> list[e.Effect]:
        context, device = self.context, self.device
        context.begin(time)
        rule = ""
        try:
            for window in (device.window, *(region.recovery.window for region in self.regions.values())):
                window.notice()
            _HANDLERS[type(event)](self, event)
            self.conclusions.conclude()
        except (BrokenRule, Circle) as broken:
            rule = str(broken)
        rule = rule or self._invariants.look(context.out)
        if rule:
            self._stop_granting(rule, event)
        if device.why_closed:
            context.out = harmless(context.out, self.slabs)
        self._see_phases()
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
        return [conn for conn, watches in self.sessions.observers.items() if watches]

    @property
    def slabs(self) -> list[Slab]:
        """All whose descriptors are wanted here."""
        return [slab for region in self.regions.values() for slab in region.slabs]

    @property
    def tables(self) -> tuple[int, ...]:
        """Handles of pools' tables that can be read."""
        exclusive = (region for region in self.regions.values() if isinstance(region, ExclusiveRegion))
        return tuple(region.pool.slabs[-1].handle for region in exclusive if region.pool.slabs)

    def status(self, free: int = 0, blocks: dict[int, tuple[int, int]] | None = None) -> m.Status:
        """`free`: what the device has free; `blocks`: what pools' tables say. Only the shell can know both."""
        return status.status_of(self.device, free, blocks or {})

    def _see_phases(self) -> None:
        for region in self.regions.values():
            if self._phases.get(region.key) is not region.phase or not region.since:
                self._phases[region.key], region.since = region.phase, rfc3339(self.context.wall)
                self.context.changed = True

    def _stop_granting(self, rule: str, event: e.Event) -> None:
        """Rule 11. The alarm says what is needed to report it."""
        what, state = in_words(event), status.summary(self.device)
        self.context.note("rule_broken", rule=rule, after=what, state=state)
        if not self.device.why_closed:
            self.device.why_closed = (
                f"this server has found a mistake in its own program ({rule}) and lets no process in"
            )
            text = f"a mistake in this program: {rule}; after {what}; {state}"[:1800]
            advice = "no process is let in any more, and those that read read on; report this line, then restart gms"
            self.context.alarm("rule", f"{text}: {advice}")

    # -- a new server ----------------------------------------------------------------------------------------------

    def _on_started(self, event: e.Started) -> None:
        self.conclusions.started = True
        record, device, context = event.record, self.device, self.context
        device.file.says = record
        floor = event.generation_floor
        device.generations.newest = begin_above(record.given, floor) if record is not None else floor
        same_boot = record is not None and record.boot_id == self.config.boot_id
        device.unreadable = event.unreadable or (record.unreadable if record is not None and same_boot else "")
        if device.unreadable:
            device.window.begin(self.config.window_s)
            context.alarm(
                "record",
                f"the state file can't be read ({device.unreadable}): the weights that were committed are lost to this "
                "server, and processes that read them must end; owners of pools go on, and their contents are lost to "
                "their successors",
            )
        self._region(m.WEIGHTS, "shared")
        if record is None:
            context.note("started", found=event.unreadable or "no file")
        elif not same_boot:
            # No memory outlives a boot, and no process that a token could shut out.
            context.note("started", found="a file of another boot")
            if record.regions:
                device.file.write_again()
        else:
            context.note("started", found=f"{len(record.regions)} regions")
            found = {each.key: each for each in event.owners}
            same_clock = record.time_namespace == self.config.time_namespace
            for recorded in record.regions:
                region = self._region(recorded.key, recorded.policy)
                region.recover(recorded, found.get(recorded.key), same_clock=same_clock)

    # -- callers ---------------------------------------------------------------------------------------------------

    def _on_received(self, event: e.Received) -> None:
        message, conn = event.message, event.conn
        problem = self._received(event, message)
        if problem is not None:
            self.device.throw_out(conn, problem)

    def _received(self, event: e.Received, message: m.ClientMessage) -> m.Problem | None:
        conn, device = event.conn, self.device
        client = self.sessions.clients.get(conn)
        region = self.regions[client.key] if client is not None else None
        if client is not None and region is not None and isinstance(message, m.HandBack):
            return region.take_back(client, message, event.slabs)
        self.context.forget(event.slabs)
        if isinstance(message, m.Hello | m.Observe):
            return self._introduce(event, message)
        if client is not None and region is not None:
            if isinstance(message, m.Dropped):
                device.holders.dropped(client, message.generation)
                return None
            if type(message) in region.requests:
                return region.requests[type(message)](region, client, message)
        if not self.sessions.knows(conn):
            return m.Problem(why=f"{type(message).__name__}: introduce yourself first: Hello or Observe")
        if type(message) in _OF_ANY_CALLER:
            return _OF_ANY_CALLER[type(message)](self, conn, message)
        if client is None:
            return m.Problem(why=f"{type(message).__name__}: an observer can't ask for it")
        policy = region.policy if region is not None else "other"
        return m.Problem(
            why=f"{type(message).__name__}: {client.key} is of the policy {policy}, or that is an observer's"
        )

    def _introduce(self, event: e.Received, hello: m.Hello | m.Observe) -> m.Problem | None:
        problem = self._why_not_welcome(event.conn, hello)
        if event.process is not None and (problem is not None or isinstance(hello, m.Observe)):
            self.context.out.append(e.ForgetProcess(event.process))
        if problem is not None:
            if problem.about == "protocol" and isinstance(hello, m.Hello):
                self.conclusions.other_versions.came(hello)
            return problem
        if isinstance(hello, m.Observe):
            self.sessions.observers[event.conn] = False
        else:
            self._make_room(hello)
            self._welcome(event, hello)
        for conn in self.sessions.too_many():
            why = m.Problem(why="there are too many, and this one does nothing", about="place")
            self.device.throw_out(conn, why)
        return None

    def _why_not_welcome(self, conn: int, hello: m.Hello | m.Observe) -> m.Problem | None:
        if self.sessions.knows(conn):
            return m.Problem(why="this connection has introduced itself already")
        if not versions.spoken().agreed(hello):
            return m.Problem(why=versions.spoken().why_none(hello), about="protocol")
        if isinstance(hello, m.Observe):
            return None
        if self.sessions.full:
            return m.Problem(why=f"{len(self.sessions.clients)} processes are connected already", about="place")
        there = self.regions.get(hello.key)
        if there is not None:
            if there.policy != hello.policy and not self.conclusions.may_forget(there):
                why = f"{hello.key} is of the policy {there.policy}, and not {hello.policy}: take another key"
                return m.Problem(why=why)
        elif len(self.regions) >= MOST_REGIONS and not any(map(self.conclusions.may_forget, self.regions.values())):
            why = f"there are {len(self.regions)} regions already: gmsctl drop one of them"
            return m.Problem(why=why, about="place")
        return None

    def _make_room(self, hello: m.Hello) -> None:
        """For its region. What may be forgotten for it goes."""
        there = self.regions.get(hello.key)
        if there is not None:
            if there.policy != hello.policy:
                self.conclusions.forget(there)
        elif len(self.regions) >= MOST_REGIONS:
            self.conclusions.forget(next(filter(self.conclusions.may_forget, self.regions.values())))

    def _welcome(self, event: e.Received, hello: m.Hello) -> None:
        context = self.context
        client = Client(
            event.conn,
            hello.engine_id,
            hello.pid,
            event.process,
            context.wall,
            hello.key,
            event.identity,
            event.local_pid,
            event.writes_end,
            says_what_it_has=hello.have > 0,
            parks=hello.parks,
        )
        region = self._region(hello.key, hello.policy)
        self.conclusions.other_versions.talks(client.engine_id)
        self.sessions.clients[client.conn] = client
        if client.process is not None:
            context.out.append(e.WatchDeath(client.process))
        context.changed = True
        generation, hash = region.there
        welcome = m.Welcome(
            server_incarnation=self.config.server_incarnation,
            device=self.config.device,
            granularity=self.config.granularity,
            generation=generation,
            hash=hash,
            recovering=region.awaited is not None,
            protocol=versions.spoken().agreed(hello),
        )
        context.send(client.conn, welcome)
        region.came(client, hello.have)

    # -- regions ---------------------------------------------------------------------------------------------------

    def _region(self, key: str, policy: m.Policy) -> Region:
        if key not in self.regions:
            kind = SharedRegion if policy == "shared" else ExclusiveRegion
            self.regions[key] = kind(self.device, key, self.device.window.until)
            self.regions[key].record_lost = self.device.unreadable  # a process that had it comes back within the window
        return self.regions[key]

    def _on_died(self, event: e.Died) -> None:
        for client in self.sessions.of_process(event.process):
            self.conclusions.end(client.conn)
        for region in self.regions.values():
            region.process_died(event.process)

    # -- answers of the disk, the device and the kernel ------------------------------------------------------------

    def _on_persisted(self, event: e.Persisted) -> None:
        for owed in self.device.file.persisted(event.seq):
            self.regions[owed.key].persisted(owed.what)

    def _on_persist_failed(self, event: e.PersistFailed) -> None:
        why = f"the state file can't be written ({event.why})"
        for owed in self.device.file.failed(event.seq, event.why):
            self.regions[owed.key].not_persisted(owed.what, why)

    def _on_allocated(self, event: e.Allocated) -> None:
        wanted = self.device.making.withdraw(event.conn)
        client = self.sessions.clients.get(event.conn)
        if wanted is None or client is None:
            self.context.forget(event.slabs)
            return
        sizes = (*wanted.sizes, *([wanted.table_size] if wanted.table_size else []))
        slabs = tuple(slab._replace(size=size) for slab, size in zip(event.slabs, sizes, strict=True))
        if wanted.key:
            self.device.leases.made(slabs)
        self.regions[client.key].allocated(wanted, slabs)

    def _on_leased(self, event: e.Leased) -> None:
        wanted = self.device.making.leased(event)
        if wanted is not None:
            full = e.NotAllocated(wanted.conn, wanted.bytes, 0, event.why, is_full=True)
            self.regions[wanted.key].not_allocated(wanted, full)

    def _on_not_allocated(self, event: e.NotAllocated) -> None:
        wanted, client = self.device.making.failed(event), self.sessions.clients.get(event.conn)
        if wanted is not None and client is not None:
            self.regions[client.key].not_allocated(wanted, event)

    def _on_memory_checked(self, event: e.MemoryChecked) -> None:
        if self.device.questions:
            self.device.questions.pop(0)(event)

    def _on_peer_checked(self, event: e.PeerChecked) -> None:
        checking = self.device.checking_peer
        if checking is None or checking[0] != event.conn:
            return
        self.device.checking_peer = None
        asking = self.sessions.asking(*checking)
        if asking is None or self.device.why_closed:
            return
        client, request = asking
        region = self.regions[client.key]
        if not event.there:
            self.context.note("died_waiting", region=client.key, engine=client.engine_id)
            self.conclusions.end(client.conn)
        elif isinstance(region, SharedRegion):
            region.peer_checked(client, request)

    # -- questions that any caller may ask -------------------------------------------------------------------------

    def _ask_status(self, conn: int, message: m.AskStatus) -> None:
        def answered(event: e.MemoryChecked) -> None:
            if self.sessions.knows(conn):
                self.context.send(conn, self.status(event.free, event.blocks))

        self.device.ask_memory(answered, tables=self.tables)

    def _ask_layout(self, conn: int, message: m.AskLayout) -> None:
        region = self.regions.get(message.key)
        layout = region.weights.committed if isinstance(region, SharedRegion) else None
        answer = m.LayoutIs(generation=0, hash="")
        if layout is not None:
            answer = m.LayoutIs(
                generation=layout.generation, hash=layout.hash, layout=layout.document, sums=list(layout.sums)
            )
        self.context.send(conn, answer)

    def _ask_history(self, conn: int, message: m.AskHistory) -> None:
        self.context.send(conn, m.History(events=self.context.history))

    def _watch(self, conn: int, message: m.Watch) -> m.Problem | None:
        if conn not in self.sessions.observers:
            return m.Problem(why="Watch: it is for observers (Observe)")
        self.sessions.observers[conn] = self.context.changed = True
        return None

    def _ping(self, conn: int, message: m.Ping) -> None:
        self.context.send(conn, m.Pong(server_incarnation=self.config.server_incarnation))

    def _drop_region(self, conn: int, message: m.DropRegion) -> m.Problem | None:
        if conn not in self.sessions.observers:
            return m.Problem(why="DropRegion: it is for observers (Observe)")
        region = self.regions.get(message.key)
        if region is None:
            keys = ", ".join(list(self.regions)[:20])
            self.context.refuse(conn, f"there is no region {message.key}; there are: {keys}", "not_now")
        else:
            region.drop(conn, message.timeout_s)
        return None

    # -- the rest --------------------------------------------------------------------------------------------------

    def _on_directory_replaced(self, event: e.DirectoryReplaced) -> None:
        """A process that opens this path doesn't find this server any more: it can only make room."""
        self.context.out.append(e.Stop(event.why))

    def _on_file_gone(self, event: e.FileGone) -> None:
        """A cleaner of temporary files, most likely. What it said is so still, and is written once more."""
        self.context.shout("the state file was deleted, and is written again, because a new server needs it")
        if self.device.file.says is not None:
            self.device.file.write_again()


_HANDLERS: dict[type, Callable[[Machine, Any], None]] = {
    e.Started: Machine._on_started,
    e.Received: Machine._on_received,
    e.Closed: lambda machine, event: machine.conclusions.left(event.conn),
    e.Died: Machine._on_died,
    e.Allocated: Machine._on_allocated,
    e.NotAllocated: Machine._on_not_allocated,
    e.Leased: Machine._on_leased,
    e.MemoryChecked: Machine._on_memory_checked,
    e.PeerChecked: Machine._on_peer_checked,
    e.Persisted: Machine._on_persisted,
    e.PersistFailed: Machine._on_persist_failed,
    e.FileGone: Machine._on_file_gone,
    e.DirectoryReplaced: Machine._on_directory_replaced,
    e.PathWatched: lambda machine, event: machine.context.path_watched(event),
    e.Hindered: lambda machine, event: machine.context.hindered(event),
    e.Tick: lambda machine, event: None,  # time has passed; the conclusions follow
}

_OF_ANY_CALLER: dict[type, Callable[[Machine, int, Any], m.Problem | None]] = {
    m.AskStatus: Machine._ask_status,
    m.AskLayout: Machine._ask_layout,
    m.AskHistory: Machine._ask_history,
    m.Watch: Machine._watch,
    m.Ping: Machine._ping,
    m.DropRegion: Machine._drop_region,
}
