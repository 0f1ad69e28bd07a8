"""The rules of the lock: who may be awake.

Pure: an event and the time go in, effects come out (`events.py`); `server.py` has the sockets.

How it goes. An engine's main process registers, the other processes of its tree join; from then on their ends are
watched. The main process says `Acquire` and waits in the queue.

    FREE        nobody holds the lock, nobody ready wants it.
    HELD        the holder's main process is connected and alive.
    FENCING     the holder must be proven gone; or the memory that the next one needs isn't free yet;
                or the grant isn't on disk yet.
    RECOVERING  the server is new and finds a holder, or can't exclude one: it waits for its return, or for the proof.

The rules, and where they stand:

 1. Fencing starts when the holder's connection ends *or* its pidfd is readable. Only the proof ends it: every member's
    pidfd is readable and the life lock is free (`tree.py`: `gone`). An end-of-file alone proves nothing; the same
    process may come back while it isn't proven dead.
 2. Nobody joins a tree that is condemned (`forest.py`): the set whose end is awaited can't grow behind our back.
 3. Where memory can be read, what the next one needs must be free (`queue.py`). At the bound: the next whose need is
    met, then a grant with an alarm.
 4. A waiter is granted only if it is there, alive, ready, and has looked at its engine since the last holder was lost
    (`queue.py`).
 5. First on disk, then told: `Persist`, `Persisted`, `Granted`. A grant that can't be written isn't made.
 6. A holder's life file is unlinked only after its end is on disk, so that nobody joins it across a restart
    (`forest.py`).
 7. After a restart the file rules (`inquest.py`): its holder comes back and nobody notices; or is proven gone by what
    the clients kept (`copies.py`), or by memory; or the window ends and the policy decides, which by default is to go
    on waiting. No file, or one that can't be read: somebody unknown may hold.
 8. Tokens only grow.

The permit `init` is a lock too, with less: a word gives it back, and it asks for no memory and no second look.
"""

import math
from collections.abc import Callable
from typing import Any

from lockserver import events as e
from lockserver import messages as m
from lockserver.context import Context
from lockserver.copies import Copies
from lockserver.desk import Desk
from lockserver.forest import Forest
from lockserver.inquest import Inquest
from lockserver.lock import Caller, Found, Lock, Recovery, State
from lockserver.messages import ACTIVE, INIT
from lockserver.queue import Queue, Waiter
from lockserver.record import Member as MemberRecord
from lockserver.record import Record, Tenure
from lockserver.status import status_of
from lockserver.switchover import Switchover
from lockserver.tree import Life, Stage, Tree
from sidecar.context import rfc3339

RETRY_PERSIST_S = 0.5


class Machine:
    def __init__(self, config: e.Config) -> None:
        self.config = config
        self.context = Context(config.history_size)
        self.forest = Forest(self.context)
        self.queue = Queue(config, self.context)
        self.active = Lock(ACTIVE)
        self.init = Lock(INIT)
        self.init_waiters: dict[str, Tree] = {}
        self.switchover = Switchover(self)
        self.desk = Desk(self)
        self.inquest = Inquest(self)
        self.copies = Copies(self)
        self.token = 0
        self._started = False
        self._seq = 0
        self._written = 0
        self._rewrite_at = math.inf
        self._disk_fails = False
        self._owed: list[tuple[int, int, m.ServerMessage]] = []
        """Answers that must not go out before a write: (the write, to whom, what)."""
        self._state = State.FREE

    # -- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, time: e.Time) -> list[e.Effect]:
        context = self.context
        context.begin(time)
        _HANDLERS[type(event)](self, event)
        if self._started:
            self._conclude()
        if context.changed:
            context.changed = False
            self.copies.hand_out()
            context.out.append(e.Publish())
        return context.out

    @property
    def deadline(self) -> float:
        """When `Tick` is due. Infinite while there is nothing to wait for: a server at rest sleeps."""
        return self.context.deadline

    def _conclude(self) -> None:
        """Draw every conclusion that is due."""
        if self.context.reached(self._rewrite_at):
            self.write()
        for tree in list(self.forest.ending.values()):
            self.forest.pursue(tree)
            nothing_left = tree.gone or (tree.members_gone and tree.life is Life.MISSING)
            if nothing_left and not self.holds(tree):
                self._bury(tree, held_a_lock=False)
        self._step_active()
        self._step_init()
        self.queue.reading = None
        if self.state is not self._state:
            self._state, self.context.changed = self.state, True

    @property
    def state(self) -> State:
        lock = self.active
        if lock.held:
            return State.HELD
        if (
            lock.recovery is not None
            and self.context.now < lock.recovery.until
            and (lock.holder is None or lock.holder.stage is Stage.AWAITED)
        ):
            return State.RECOVERING
        if lock.holder is not None or lock.recovery is not None or self.queue.wanted:
            return State.FENCING
        return State.FREE

    def _on_received(self, event: e.Received) -> None:
        message, caller = event.message, self.desk.callers.get(event.conn)
        request = _REQUESTS.get(type(message))
        if request is None:
            assert isinstance(message, m.Register | m.Join | m.Observe)
            self.desk.introduce(event, message)
            return
        mains_only, action = request
        if caller is None:
            self.desk.throw_out(event, "introduce yourself first: Register, Join or Observe")
        elif mains_only and not caller.main:
            self.desk.throw_out(event, f"{type(message).__name__} is for the registered main process of an engine")
        else:
            action(self, event, caller)

    def _on_started(self, event: e.Started) -> None:
        self._started = True
        self.inquest.begin(event)

    def _on_strangers_probed(self, event: e.StrangersProbed) -> None:
        self.inquest.strangers_probed(event)

    def _on_closed(self, event: e.Closed) -> None:
        self.closed(event.conn)

    # -- ends (rule 1) ---------------------------------------------------------------------------------------------

    def closed(self, conn: int) -> None:
        caller = self.desk.callers.pop(conn, None)
        self.switchover.asker_left(conn)
        if caller is None or caller.tree is None or not self.forest.closed(caller.tree, conn):
            return
        main = caller.tree.main
        self._lose(caller.tree, Stage.DOOMED if main is not None and main.dead else Stage.LOST, "end of file")

    def _on_died(self, event: e.Died) -> None:
        found = self.forest.died(event.process)
        if found is None:
            return
        tree, was_main = found
        if was_main:
            self._lose(tree, Stage.DOOMED, "pidfd")
            self.forest.kill_rest(tree)
            if tree.conn is not None:
                self.desk.end_caller(tree.conn)
                tree.conn = None

    def _lose(self, tree: Tree, stage: Stage, seen_by: str) -> None:
        self.queue.leave(tree)
        self.init_waiters.pop(tree.name, None)
        if not self.forest.lose(tree, stage):
            return
        for lock in (self.active, self.init):
            if lock.holder is tree:
                self._fence(lock, seen_by)

    def _fence(self, lock: Lock, seen_by: str) -> None:
        assert lock.holder is not None
        lock.fencing_since = self.context.wall
        self.context.note("fencing", engine=lock.holder.engine_id, lock=lock.name, token=lock.token, seen_by=seen_by)
        if lock.holder.unaccounted and lock.recovery is None:
            # A member that died while the server was away, and of whose pidfd nobody kept a copy.
            lock.recovery = Recovery(Found.HOLDER, self.context.now, self.context.now + self.config.window_s)
        if lock is self.active:
            self.queue.new_round()
            self.switchover.holder_lost()

    def doom(self, tree: Tree) -> None:
        """The holder was told to end: there is no way back for it."""
        self._lose(tree, Stage.DOOMED, "switchover")

    def holds(self, tree: Tree) -> bool:
        return tree is self.active.holder or tree is self.init.holder

    def _bury(self, tree: Tree, *, held_a_lock: bool) -> None:
        for conn in self.forest.bury(tree, held_a_lock=held_a_lock):
            self.desk.end_caller(conn)

    # -- the lock `active` -----------------------------------------------------------------------------------------

    def _step_active(self) -> None:
        lock = self.active
        if lock.held:
            self.switchover.step()
        if lock.holder is not None and lock.holder.stage is Stage.PRESENT:
            return
        if lock.holder is not None:
            self.queue.head()  # asks the next one, in parallel with the proof
            self.switchover.enforce()
            if not self.inquest.gone(lock):
                return
            unknown = lock.recovery if lock.in_doubt else None
            self._release(lock)
            lock.recovery = unknown  # a waiter told of this holder; there may have been a newer one
        if lock.recovery is not None:
            self.queue.head()
            if not self.inquest.nobody_holds(lock.recovery):
                return
            lock.recovery = None
            self.context.note("nobody_holds")
        if self._disk_fails:
            return
        waiter = self.queue.next()
        if waiter is not None:
            lock.verified, lock.waiter = self.queue.granted(waiter), waiter
            self._grant(lock, waiter.tree)
        elif not self.queue.wanted:
            self.switchover.nobody_left()
            if 0 in self.forest.graves.values():
                self.write()

    def _release(self, lock: Lock) -> None:
        """The holder is gone, or has given its permit back."""
        tree = lock.holder
        assert tree is not None
        lock.holder = lock.endpoint = lock.recovery = None
        lock.told, lock.fencing_since = False, 0.0
        self.context.note("released", engine=tree.engine_id, lock=lock.name, token=lock.token)
        self.context.changed = True
        if lock is self.active and self.init.holder is tree:
            self._release(self.init)
        elif tree.stage is not Stage.PRESENT and not self.holds(tree):
            self._bury(tree, held_a_lock=True)

    def _grant(self, lock: Lock, tree: Tree) -> None:
        """First on disk; `_on_persisted` tells the new holder (rules 5 and 8)."""
        if lock is self.active:
            self.token += 1
            lock.token = self.token
            self.context.calm("unproven", "record", "strangers")
        lock.holder, lock.told, lock.endpoint = tree, False, None
        lock.granted_at, lock.fencing_since = rfc3339(self.context.wall), 0.0
        self.write()
        lock.written_by = self._seq

    def _on_serving(self, event: e.Received, caller: Caller) -> None:
        message, lock = event.message, self.active
        assert isinstance(message, m.Serving)
        if lock.holder is not caller.tree or not lock.told:
            self.desk.throw_out(event, "only the holder serves")
        elif lock.endpoint != (message.url or None):
            lock.endpoint = message.url or None
            self.context.note("serving", engine=caller.tree.engine_id if caller.tree else "", url=message.url)
            self.context.changed = True
            self.write()

    # -- the permit `init` -----------------------------------------------------------------------------------------

    def _step_init(self) -> None:
        lock = self.init
        if lock.holder is not None and lock.holder.stage is not Stage.PRESENT and self.inquest.gone(lock):
            self._release(lock)
            self.write()
        if lock.holder is None and lock.recovery is not None and self.context.reached(lock.recovery.until):
            lock.recovery = None
        if lock.holder is None and self.init_waiters and not self._disk_fails and not self.why_no_init():
            self._grant(lock, self.init_waiters.pop(next(iter(self.init_waiters))))

    def why_no_init(self) -> str:
        """Nobody initialises device memory between a holder's death and its successor's Active: it would size itself
        by memory that moves. Where nobody who waits can take over, another engine is what is needed most.
        """
        if self.init.recovery is not None:
            return "the server is new; who had the permit may come back"
        if self.active.held and self.active.holder is not None:
            return "" if self.active.endpoint is not None else f"{self.active.holder.engine_id} is waking"
        if self.state is State.FREE or (self._nobody_dies() and not self.queue.promising):
            return ""
        return f"the lock is {self.state.value}"

    def _nobody_dies(self) -> bool:
        """Or it can't be told more of it before somebody waits: a restarted server lacks of the proof only what a
        waiter's need of memory would bring, and nobody can wait who may not initialise.
        """
        holder, recovery = self.active.holder, self.active.recovery
        if holder is None or recovery is None:
            return holder is None and recovery is None
        return self.context.reached(recovery.until) and holder.life is Life.FREE and not holder.seen_alive

    def _on_release(self, event: e.Received, caller: Caller) -> None:
        assert caller.tree is not None
        self.init_waiters.pop(caller.tree.name, None)
        if self.init.holder is caller.tree:
            self._release(self.init)
            self.write()

    # -- the queue -------------------------------------------------------------------------------------------------

    def _on_acquire(self, event: e.Received, caller: Caller) -> None:
        message, tree = event.message, caller.tree
        assert isinstance(message, m.Acquire) and tree is not None
        lock = self.active if message.lock == ACTIVE else self.init
        if lock.holder is tree:
            if lock.told:
                self.context.send(event.conn, m.Granted(lock=lock.name, token=lock.token))
        elif lock is self.active:
            self.queue.enter(tree, message.needs, looked=not message.again)
        else:
            self.init_waiters[tree.name] = tree
            self.context.changed = True

    def _on_ready(self, event: e.Received, caller: Caller) -> None:
        message = event.message
        assert isinstance(message, m.Ready) and caller.tree is not None
        self.queue.update(caller.tree, ready=message.ready, looked=message.ready, needs=message.needs)

    def _on_prepared(self, event: e.Received, caller: Caller) -> None:
        message = event.message
        assert isinstance(message, m.Prepared) and caller.tree is not None
        self.queue.answered(caller.tree, message.round, ok=message.ok, why=message.why)

    def _on_memory_read(self, event: e.MemoryRead) -> None:
        for waiter, why in self.queue.read(event):
            self._refuse_wish(waiter, why)

    def _refuse_wish(self, waiter: Waiter, why: str) -> None:
        self.queue.leave(waiter.tree)
        self.context.note("refused", engine=waiter.tree.engine_id, why=why)
        if waiter.tree.conn is not None:
            self.context.send(waiter.tree.conn, m.Refused(why=why))

    # -- writing (rule 5) ------------------------------------------------------------------------------------------

    def write(self) -> None:
        self._seq += 1
        self._rewrite_at = math.inf
        self.forest.graves = dict.fromkeys(self.forest.graves, self._seq)
        init = self._tenure(self.init)
        record = Record(
            self.config.boot_id,
            self.token,
            self._tenure(self.active),
            {INIT: init} if init else {},
            list(self.forest.graves),
            self._doubt(),
        )
        self.context.out.append(e.Persist(self._seq, record))

    def _doubt(self) -> str:
        """What was found instead of a file must not be forgotten by writing one."""
        recovery = self.active.recovery
        return recovery.found.name if recovery is not None and self.active.in_doubt else ""

    def _tenure(self, lock: Lock) -> Tenure | None:
        tree = lock.holder
        if tree is None:
            return None
        members = [MemberRecord(x.number, x.identity, x.pid) for x in tree.members.values()]
        return Tenure(
            tree.engine_id,
            tree.incarnation,
            lock.token,
            lock.granted_at,
            tree.name,
            members,
            tree.secret,
            lock.endpoint,
            lock.verified,
        )

    def _on_persisted(self, event: e.Persisted) -> None:
        self._written, self._disk_fails = event.seq, False
        self.context.calm("persist")
        for lock in (self.active, self.init):
            if lock.holder is not None and not lock.told and event.seq >= lock.written_by:
                lock.told = self.context.changed = True
                if lock.holder.conn is not None:
                    self.context.send(lock.holder.conn, m.Granted(lock=lock.name, token=lock.token))
                    self.context.note("granted", engine=lock.holder.engine_id, lock=lock.name, token=lock.token)
                if lock is self.active:
                    self.switchover.granted(lock.holder, lock.token)
        if self._owed:
            due = [owed for owed in self._owed if owed[0] <= event.seq]
            self._owed = [owed for owed in self._owed if owed[0] > event.seq]
            for _, conn, answer in due:
                if conn in self.desk.callers:
                    self.context.send(conn, answer)
        self.forest.written(event.seq)

    def _on_persist_failed(self, event: e.PersistFailed) -> None:
        self._rewrite_at, self._disk_fails = self.context.now + RETRY_PERSIST_S, True
        for lock in (self.active, self.init):
            if lock.holder is not None and not lock.told:
                self._take_back(lock, lock.holder)
        self.context.alarm(
            "persist",
            f"holder.json can't be written ({event.why}): nobody is granted and nobody joins the holder until it can",
        )

    def _take_back(self, lock: Lock, tree: Tree) -> None:
        """The grant isn't on disk and nobody was told: it is decided anew once the disk works, by what is so then."""
        lock.holder, waiter, lock.waiter = None, lock.waiter, None
        self.context.changed = True
        if tree.stage is not Stage.PRESENT:
            return
        if lock is self.init:
            self.init_waiters = {tree.name: tree, **self.init_waiters}
        elif waiter is not None:
            self.queue.put_back(waiter)

    def answer(self, conn: int, answer: m.ServerMessage, *, on_disk: bool) -> None:
        if on_disk and self._written < self._seq:
            self._owed.append((self._seq, conn, answer))
        else:
            self.context.send(conn, answer)

    # -- observers -------------------------------------------------------------------------------------------------

    def _on_watch(self, event: e.Received, caller: Caller) -> None:
        caller.watching = True
        self.context.changed = True

    def _on_ask_status(self, event: e.Received, caller: Caller) -> None:
        self.context.send(event.conn, status_of(self))

    def _on_ask_history(self, event: e.Received, caller: Caller) -> None:
        self.context.send(event.conn, m.History(events=self.context.history))

    def _on_ping(self, event: e.Received, caller: Caller) -> None:
        self.context.send(event.conn, m.Pong(server_incarnation=self.config.server_incarnation))

    def _on_switchover(self, event: e.Received, caller: Caller) -> None:
        assert isinstance(event.message, m.Switchover)
        self.switchover.ask(event.conn, event.message)

    def _on_abort_switchover(self, event: e.Received, caller: Caller) -> None:
        self.switchover.call_off(event.conn)

    def _on_drained(self, event: e.Received, caller: Caller) -> None:
        assert isinstance(event.message, m.Drained)
        if caller.tree is self.active.holder:
            self.switchover.drained(event.message)

    def _on_adopt(self, event: e.Received, caller: Caller) -> None:
        self.desk.adopt(event, caller)

    def _on_hand_back(self, event: e.Received, caller: Caller) -> None:
        self.copies.hand_back(event, caller)

    def _on_life_probed(self, event: e.LifeProbed) -> None:
        self.forest.probed(event.tree, event.held)

    def _on_out_of_reach(self, event: e.OutOfReach) -> None:
        self.forest.out_of_reach(event.process)

    def _on_directory_replaced(self, event: e.DirectoryReplaced) -> None:
        """Nobody who opens this path finds this server any more: it must not grant, and can only make room."""
        self._started = False
        self.context.out.append(e.Stop(event.why))

    def _on_tick(self, event: e.Tick) -> None:
        """Time has passed; the conclusions follow."""


_HANDLERS: dict[type, Callable[[Machine, Any], None]] = {
    e.Started: Machine._on_started,
    e.Received: Machine._on_received,
    e.Closed: Machine._on_closed,
    e.Died: Machine._on_died,
    e.OutOfReach: Machine._on_out_of_reach,
    e.LifeProbed: Machine._on_life_probed,
    e.StrangersProbed: Machine._on_strangers_probed,
    e.MemoryRead: Machine._on_memory_read,
    e.Persisted: Machine._on_persisted,
    e.PersistFailed: Machine._on_persist_failed,
    e.DirectoryReplaced: Machine._on_directory_replaced,
    e.Tick: Machine._on_tick,
}

_REQUESTS: dict[type, tuple[bool, Callable[[Machine, e.Received, Caller], None]]] = {
    # what may be asked: (by registered main processes only, how it is answered)
    m.Adopt: (True, Machine._on_adopt),
    m.Acquire: (True, Machine._on_acquire),
    m.Ready: (True, Machine._on_ready),
    m.Prepared: (True, Machine._on_prepared),
    m.Serving: (True, Machine._on_serving),
    m.Release: (True, Machine._on_release),
    m.Drained: (True, Machine._on_drained),
    m.HandBack: (True, Machine._on_hand_back),
    m.Watch: (False, Machine._on_watch),
    m.AskStatus: (False, Machine._on_ask_status),
    m.AskHistory: (False, Machine._on_ask_history),
    m.Switchover: (False, Machine._on_switchover),
    m.AbortSwitchover: (False, Machine._on_abort_switchover),
    m.Ping: (False, Machine._on_ping),
}
