"""The rules of the lock: who may be awake. Pure: an event and the time go in, effects come out (`events.py`); `server.py` has the sockets.

How it goes. An engine's main process registers, the other processes of its tree join; from then on their ends are watched. The main process says
`Acquire` and waits in the queue.

    FREE        nobody holds the lock, nobody ready wants it.
    HELD        the holder's main process is connected and alive.
    FENCING     the holder must be proven gone; or the memory that the next one needs isn't free yet; or the grant isn't on disk yet.
    RECOVERING  the server is new and finds a holder, or can't exclude one: it waits for its return, or for the proof.

The rules, and where they stand:
 1. Fencing starts when the holder's connection ends *or* its pidfd is readable. Only the proof ends it: every member's pidfd is readable and the life
    lock is free (`tree.py`: `gone`). An end-of-file alone proves nothing; the same process may come back while it isn't proven dead.
 2. Nobody joins a tree that is condemned (`forest.py`): the set whose end is awaited can't grow behind the server's back.
 3. Where memory can be read, what the next one needs must be free (`queue.py`). At the bound: the next whose need is met, then a grant with an alarm.
 4. A waiter is granted only if it is there, alive, ready, and has looked at its engine since the last holder was lost (`queue.py`).
 5. First on disk, then told: `Persist`, `Persisted`, `Granted`. A grant that can't be written isn't made.
 6. A holder's life file is unlinked only after its end is on disk, so that nobody joins it across a restart (`forest.py`).
 7. After a restart the file rules: its holder comes back and nobody notices; or is proven gone by what the waiters kept, or by memory; or the window
    ends and the policy decides, which by default is to go on waiting. No file, or one that can't be read: somebody unknown may hold.
 8. Tokens only grow.

The permit `init` is a lock too, with less: a word gives it back, and it asks for no memory and no second look.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any

from lockserver import events as e
from lockserver import messages as m
from lockserver.forest import Forest
from lockserver.messages import ACTIVE, INIT
from lockserver.picture import picture
from lockserver.queue import Queue, Waiter
from lockserver.record import Member as MemberRecord
from lockserver.record import Record, Tenure
from lockserver.switchover import Switchover
from lockserver.tree import MAIN, Life, Member, Stage, Tree
from lockserver.turn import Turn

MEMBERS_MAX = 200
RETRY_PERSIST_S = 0.5
STRANGERS_EVERY_S = 0.1
RETURN_S = 0.25
"""A holder whose server went away knocks every 0.1 s (`client_machine.py`): by then a live one is back."""


class State(Enum):
    FREE = "FREE"
    HELD = "HELD"
    FENCING = "FENCING"
    RECOVERING = "RECOVERING"


class Found(Enum):
    """What a new server found that keeps it from granting."""

    HOLDER = "a holder"
    UNREADABLE = "a holder file that can't be read"
    NOTHING = "no holder file"


@dataclass(slots=True)
class Recovery:
    found: Found
    since: float
    until: float


@dataclass(slots=True)
class Caller:
    """One connection, by what it introduced itself as."""

    conn: int
    tree: Tree | None = None
    main: bool = False
    watching: bool = False


@dataclass(slots=True)
class Lock:
    name: m.LockName
    holder: Tree | None = None
    """Who holds it, or who must be proven gone before anybody else does."""
    told: bool = False
    """The grant is on disk, so the holder has been told, or may be."""
    token: int = 0
    granted_at: str = ""
    endpoint: str | None = None
    verified: bool = False
    """Its memory was seen to be free at the grant."""
    fencing_since: str = ""
    recovery: Recovery | None = None
    written_by: int = 0
    waiter: Waiter | None = None
    """What the holder was, until it is told: its place, should the grant come to nothing."""

    @property
    def held(self) -> bool:
        return self.holder is not None and self.told and self.holder.stage is Stage.PRESENT


class Machine:
    def __init__(self, config: e.Config) -> None:
        self.config = config
        self.turn = Turn(config.history_size)
        self.forest = Forest(self.turn)
        self.queue = Queue(config, self.turn)
        self.active = Lock(ACTIVE)
        self.init = Lock(INIT)
        self.init_waiters: dict[str, Tree] = {}
        self.switchover = Switchover(self)
        self.callers: dict[int, Caller] = {}
        self.token = 0
        self.strangers: e.StrangersProbed | None = None
        self._strangers_asked = False
        self._strangers_at = -math.inf
        self._strangers_held_at = -math.inf
        self._started = False
        self._seq = 0
        self._written = 0
        self._rewrite_at = math.inf
        self._disk_fails = False
        self._owed: list[tuple[int, int, m.ServerMessage]] = []
        """Answers that must not go out before a write: (the write, to whom, what)."""
        self._kept: tuple[int, tuple[int, ...]] = (0, ())
        self._keepers: set[int] = set()
        self._state = State.FREE

    # -- the one door ----------------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, time: e.Time) -> list[e.Effect]:
        turn = self.turn
        turn.begin(time)
        _HANDLERS[type(event)](self, event)
        if self._started:
            self._conclude()
        if turn.changed:
            turn.changed = False
            self._hand_out_copies()
            turn.out.append(e.Publish())
        return turn.out

    @property
    def deadline(self) -> float:
        """When `Tick` is due. Infinite while there is nothing to wait for: a server at rest sleeps."""
        return self.turn.deadline

    def _conclude(self) -> None:
        """Draw every conclusion that is due."""
        if self.turn.reached(self._rewrite_at):
            self._write()
        for tree in list(self.forest.ending.values()):
            self.forest.pursue(tree)
            if tree.gone and not self._holds(tree):
                self._bury(tree, held_a_lock=False)
        self._step_active()
        self._step_init()
        self.queue.reading = None
        if self.state is not self._state:
            self._state, self.turn.changed = self.state, True

    @property
    def state(self) -> State:
        lock = self.active
        if lock.held:
            return State.HELD
        if lock.recovery is not None and self.turn.now < lock.recovery.until and (lock.holder is None or lock.holder.stage is Stage.AWAITED):
            return State.RECOVERING
        if lock.holder is not None or lock.recovery is not None or self.queue.wanted:
            return State.FENCING
        return State.FREE

    # -- a new server (rule 7) -------------------------------------------------------------------------------------------

    def _on_started(self, event: e.Started) -> None:
        self._started = True
        record, now = event.record, self.turn.now
        if record is None:
            self.token = event.token_floor
            if event.unreadable:
                found, wait_s = Found.UNREADABLE, self.config.window_s
                self.turn.alarm("record", f"holder.json can't be read ({event.unreadable}); it was kept aside, and somebody unknown may hold the lock")
            else:
                found, wait_s = Found.NOTHING, self.config.settle_s
            self.active.recovery = Recovery(found, now, now + wait_s)
            self.init.recovery = Recovery(found, now, now + wait_s)
            return
        self.token = record.token
        self.forest.graves = dict.fromkeys(record.gone, 0)
        for lock, tenure in ((self.active, record.active), (self.init, record.permits.get(INIT))):
            if tenure is None:
                continue
            if record.boot_id != self.config.boot_id:
                self.turn.note("died_with_its_boot", engine=tenure.engine_id, lock=lock.name, token=tenure.token)
                self.forest.graves[tenure.life_file] = 0
                continue
            lock.holder, lock.told, lock.token = self.forest.awaited(tenure), True, tenure.token
            lock.granted_at, lock.endpoint, lock.verified = tenure.granted_at, tenure.endpoint, tenure.verified
            lock.recovery = Recovery(Found.HOLDER, now, now + self.config.window_s)
            self.turn.note("awaiting_holder", engine=tenure.engine_id, lock=lock.name, token=tenure.token)
        if self.forest.graves:
            self._write()
        self._probe_strangers()

    def _proven_gone(self, lock: Lock) -> bool:
        """The holder is gone by the proof; or, for a server that restarted and can't get all of it, by what rule 7 takes instead."""
        tree, recovery = lock.holder, lock.recovery
        assert tree is not None
        if tree.gone:
            return True
        if recovery is None:
            return False
        over = self.turn.reached(recovery.until)
        if over and self.config.presume_dead:
            self.turn.shout(f"{tree.engine_id} is presumed dead after the window, without proof (--unsafe-presume-dead)")
            return True
        free = tree.life is Life.FREE or (tree.life is Life.MISSING and over)
        if tree.seen_alive or not free:
            return False
        if lock is self.init or tree.members_gone or self.queue.memory_proves():
            return True
        if over and self.config.grant_unproven:
            self.turn.shout(f"{tree.engine_id} is taken for gone because its life lock is free; pidfds and memory don't prove it (--grant-unproven)")
            return True
        if over:
            self.turn.alarm(
                "unproven",
                f"the life lock of {tree.engine_id} is free, but neither pidfds nor memory prove its end; "
                "once you know that it is gone, start the server with --grant-unproven",
            )
        return False

    def _nobody_holds(self, recovery: Recovery) -> bool:
        """There was no holder file that could be read. Nobody unknown has a life lock here; and memory proves it, or time has passed."""
        over = self.turn.reached(recovery.until)
        if over and self.config.presume_dead:
            return True
        probed = self.strangers
        stale = probed is None or probed.held or (over and self._strangers_at < recovery.until)
        if stale and not self._strangers_asked and self.turn.reached(self._strangers_at + STRANGERS_EVERY_S):
            self._probe_strangers()
        if probed is None or stale:
            if over and probed is not None and probed.held:
                self.turn.alarm("strangers", f"a life lock is held by somebody who doesn't come: {', '.join(probed.held[:3])}")
            return False
        if any(tree.stage is Stage.AWAITED and tree.seen_alive for tree in self.forest.ending.values()):
            return False
        if not self.turn.reached(self._strangers_held_at + self.config.settle_s):
            return False  # who let go of its life lock may be dying, and hold memory a little longer
        if not (self.turn.reached(recovery.since + RETURN_S) and self.queue.memory_proves()):
            if not over:
                return False
            if recovery.found is Found.UNREADABLE and not self.config.grant_unproven:
                self.turn.alarm(
                    "unproven",
                    "holder.json could not be read, and neither memory nor a returning holder tells more; "
                    "once you know that no engine is awake, start the server with --grant-unproven",
                )
                return False
        self.forest.graves.update(dict.fromkeys(probed.free, 0))
        return True

    def _probe_strangers(self) -> None:
        """Everybody who has a life lock here, and has not registered with this server."""
        self._strangers_asked, self._strangers_at = True, self.turn.now
        known = tuple(name for name, tree in self.forest.trees.items() if tree.stage is not Stage.AWAITED or self._holds(tree))
        self.turn.out.append(e.ProbeStrangers(known))

    def _on_strangers_probed(self, event: e.StrangersProbed) -> None:
        self.strangers, self._strangers_asked = event, False
        recovery = self.active.recovery
        if recovery is not None and recovery.found is not Found.HOLDER:
            if event.held:
                self._strangers_held_at = self.turn.now
        else:
            for name in event.free:
                if name not in self.forest.trees and name not in self.forest.graves:
                    self.turn.out.append(e.Unlink(name))

    # -- introductions ---------------------------------------------------------------------------------------------------

    def _on_received(self, event: e.Received) -> None:
        caller, message = self.callers.get(event.conn), event.message
        if isinstance(message, m.Register | m.Join | m.Observe):
            if caller is not None:
                self._throw_out(event, "this connection has introduced itself already")
            elif message.protocol != m.PROTOCOL:
                self._turn_away(event, f"protocol {message.protocol} is not spoken here; this server speaks {m.PROTOCOL}")
            elif isinstance(message, m.Observe):
                self.callers[event.conn] = Caller(event.conn)
            elif isinstance(message, m.Register):
                self._register(event, message)
            else:
                self._join(event, message)
            return
        mains_only, action = _REQUESTS[type(message)]
        if caller is None:
            self._throw_out(event, "introduce yourself first: Register, Join or Observe")
        elif mains_only and not caller.main:
            self._throw_out(event, f"{type(message).__name__} is for the registered main process of an engine")
        else:
            action(self, event, caller)

    def _register(self, event: e.Received, message: m.Register) -> None:
        name, peer = f"{message.engine_id}.{message.incarnation}", event.peers[0]
        tree = self.forest.trees.get(name)
        why = self.forest.why_condemned(name)
        if not why and not event.life_held:
            why = "the life file that you named isn't in its place, or you have no lock on it"
        if not why and tree is not None and not self.forest.is_main(tree, peer, message.secret):
            why = f"{name} is another process (pid {tree.pid})"
        if not why and ACTIVE in message.claims:
            why = self._why_no_claim(name, message.claims[ACTIVE])
            if why:
                self.forest.outcast.add(name)
        if why:
            self._turn_away(event, why)
            return
        if tree is None:
            tree = self.forest.trees[name] = Tree(message.engine_id, message.incarnation, Stage.PRESENT)
        tree.secret = tree.secret or message.secret or event.secret
        if tree.conn is not None:
            self._end_caller(tree.conn)
        self.callers[event.conn] = Caller(event.conn, tree, main=True)
        self.forest.enter_main(tree, peer, message.pid, event.conn)
        claimed = ACTIVE in message.claims and self.active.holder is None
        if claimed:
            self.active.holder, self.active.told, self.active.token = tree, True, message.claims[ACTIVE]
            self.active.granted_at = self.turn.stamp
            self.token = max(self.token, self.active.token)
            self.turn.note("claimed", engine=tree.engine_id, token=self.active.token)
        if INIT in message.claims and self.init.holder is None:
            self.init.holder, self.init.told, claimed = tree, True, True
        if claimed:
            self._write()
        self._answer(event.conn, self._welcome(tree, MAIN), on_disk=claimed)

    def _welcome(self, tree: Tree, number: int) -> m.Welcome:
        """Says what the process holds; a holder that is back has been told everything with it."""
        holds: dict[str, int] = {}
        for lock in (self.active, self.init) if number == MAIN else ():
            if lock.holder is tree and lock.told:
                holds[lock.name] = lock.token
                if lock.recovery is not None or lock.fencing_since:
                    self.turn.note("back", engine=tree.engine_id, lock=lock.name, token=lock.token)
                lock.recovery, lock.fencing_since = None, ""
                self.turn.calm("unproven", "record", "strangers")
        policy = m.Policy(self.config.presume_dead, self.config.window_s, self.config.settle_s)
        secret = tree.secret if number == MAIN else ""
        return m.Welcome(server_incarnation=self.config.server_incarnation, number=number, policy=policy, secret=secret, holds=holds)

    def _why_no_claim(self, name: str, token: int) -> str:
        """A main process says that it holds the lock. Empty if that may be."""
        lock = self.active
        if lock.holder is not None and lock.holder.name != name:
            return f"{lock.holder.engine_id} was granted the lock with token {lock.token}"
        if lock.holder is not None:
            return "" if lock.token == token else f"the token is {lock.token}, not {token}"
        if lock.recovery is None and token <= self.token:
            return f"token {token} has ended: its holder was taken for gone"
        return ""

    def _join(self, event: e.Received, message: m.Join) -> None:
        name = f"{message.engine_id}.{message.incarnation}"
        tree = self.forest.trees.get(name)
        why = self.forest.why_closed(name)
        if not why and not event.life_held:
            why = "the life file that you named isn't in its place, or you have no lock on it"
        if not why and tree is not None and len(tree.members) >= MEMBERS_MAX:
            why = f"{name} has {MEMBERS_MAX} processes already"
        if why:
            self._turn_away(event, why)
            return
        if tree is None:
            # Its main process isn't back yet, after a restart of this server. Its life file tells that it isn't condemned.
            tree = Tree(message.engine_id, message.incarnation, Stage.AWAITED)
            self.forest.trees[name] = self.forest.ending[name] = tree
        member = self.forest.enter(tree, event.peers[0], message.pid, message.number)
        if member.conn is not None:
            self._end_caller(member.conn)
        member.conn = event.conn
        self.callers[event.conn] = Caller(event.conn, tree)
        self._acknowledge(tree, event.conn, self._welcome(tree, member.number))

    def _on_adopt(self, event: e.Received, caller: Caller) -> None:
        tree, message = caller.tree, event.message
        assert tree is not None and isinstance(message, m.Adopt)
        if len(event.peers) != 1 or event.peers[0].process is None or len(tree.members) >= MEMBERS_MAX:
            self._throw_out(event, f"Adopt takes one pidfd, and a tree at most {MEMBERS_MAX} processes")
            return
        self.forest.enter(tree, event.peers[0], message.pid, 0)
        self._acknowledge(tree, event.conn, m.Adopted(child=message.child))

    def _acknowledge(self, tree: Tree, conn: int, answer: m.ServerMessage) -> None:
        """No device access before this answer; and no answer before others have copies of the process's pidfd, and the file knows it if its tree holds."""
        self._hand_out_copies()
        if self._holds(tree):
            self._write()
        self._answer(conn, answer, on_disk=self._holds(tree))

    def _turn_away(self, event: e.Received, why: str) -> None:
        """A final no."""
        message = event.message
        who = message.engine_id if isinstance(message, m.Register | m.Join) else "a caller"
        self.turn.note("refused", engine=who, why=why)
        self._part(event, m.Refused(why=why))

    def _throw_out(self, event: e.Received, why: str) -> None:
        """A mistake: it costs the sender this connection."""
        self._part(event, m.Problem(why=why))

    def _part(self, event: e.Received, last_word: m.ServerMessage) -> None:
        self.forest.forget(event.peers)
        self.turn.send(event.conn, last_word)
        self.turn.out.append(e.Close(event.conn))
        self._on_closed(e.Closed(event.conn))

    def _end_caller(self, conn: int) -> None:
        self.callers.pop(conn, None)
        self.turn.out.append(e.Close(conn))

    # -- ends (rule 1) ---------------------------------------------------------------------------------------------------

    def _on_closed(self, event: e.Closed) -> None:
        caller = self.callers.pop(event.conn, None)
        self.switchover.asker_left(event.conn)
        if caller is None or caller.tree is None or not self.forest.closed(caller.tree, event.conn):
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
                self._end_caller(tree.conn)
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
        lock.fencing_since = self.turn.stamp
        self.turn.note("fencing", engine=lock.holder.engine_id, lock=lock.name, token=lock.token, seen_by=seen_by)
        if lock.holder.unaccounted and lock.recovery is None:
            # A member that died while the server was away, and of whose pidfd nobody kept a copy.
            lock.recovery = Recovery(Found.HOLDER, self.turn.now, self.turn.now + self.config.window_s)
        if lock is self.active:
            self.queue.new_round()
            self.switchover.holder_lost()

    def doom(self, tree: Tree) -> None:
        """The holder was told to end: there is no way back for it."""
        self._lose(tree, Stage.DOOMED, "switchover")

    def _holds(self, tree: Tree) -> bool:
        return tree is self.active.holder or tree is self.init.holder

    def _bury(self, tree: Tree, *, held_a_lock: bool) -> None:
        for conn in self.forest.bury(tree, held_a_lock=held_a_lock):
            self._end_caller(conn)

    # -- the lock `active` -----------------------------------------------------------------------------------------------

    def _step_active(self) -> None:
        lock = self.active
        if lock.holder is not None and lock.holder.stage is Stage.PRESENT:
            if lock.told:
                self.switchover.step()
            return
        if lock.holder is not None:
            self.queue.head()  # asks the next one, in parallel with the proof
            self.switchover.enforce()
            if not self._proven_gone(lock):
                return
            unknown = lock.recovery if lock.recovery is not None and lock.recovery.found is not Found.HOLDER else None
            self._release(lock)
            lock.recovery = unknown  # a waiter told of this holder; there may have been a newer one
        if lock.recovery is not None:
            self.queue.head()
            if not self._nobody_holds(lock.recovery):
                return
            lock.recovery = None
            self.turn.note("nobody_holds")
        if self._disk_fails:
            return
        waiter = self.queue.next()
        if waiter is not None:
            lock.verified, lock.waiter = self.queue.granted(waiter), waiter
            self._grant(lock, waiter.tree)
        elif not self.queue.wanted and 0 in self.forest.graves.values():
            self._write()

    def _release(self, lock: Lock) -> None:
        """The holder is gone, or has given its permit back."""
        tree = lock.holder
        assert tree is not None
        lock.holder = lock.endpoint = lock.recovery = None
        lock.told, lock.fencing_since = False, ""
        self.turn.note("released", engine=tree.engine_id, lock=lock.name, token=lock.token)
        self.turn.changed = True
        if lock is self.active and self.init.holder is tree:
            self._release(self.init)
        elif tree.stage is not Stage.PRESENT and not self._holds(tree):
            self._bury(tree, held_a_lock=True)

    def _grant(self, lock: Lock, tree: Tree) -> None:
        """First on disk; `_on_persisted` tells the new holder (rules 5 and 8)."""
        if lock is self.active:
            self.token += 1
            lock.token = self.token
            self.turn.calm("unproven", "record", "strangers")
        lock.holder, lock.told, lock.endpoint = tree, False, None
        lock.granted_at, lock.fencing_since = self.turn.stamp, ""
        self._write()
        lock.written_by = self._seq

    def _on_serving(self, event: e.Received, caller: Caller) -> None:
        message, lock = event.message, self.active
        assert isinstance(message, m.Serving)
        if lock.holder is not caller.tree or not lock.told:
            self._throw_out(event, "only the holder serves")
        elif lock.endpoint != (message.url or None):
            lock.endpoint = message.url or None
            self.turn.note("serving", engine=caller.tree.engine_id if caller.tree else "", url=message.url)
            self.turn.changed = True
            self._write()

    # -- the permit `init` -----------------------------------------------------------------------------------------------

    def _step_init(self) -> None:
        lock = self.init
        if lock.holder is not None and lock.holder.stage is not Stage.PRESENT and self._proven_gone(lock):
            self._release(lock)
            self._write()
        if lock.holder is None and lock.recovery is not None and self.turn.reached(lock.recovery.until):
            lock.recovery = None
        if lock.holder is None and self.init_waiters and not self._disk_fails and not self.why_no_init():
            self._grant(lock, self.init_waiters.pop(next(iter(self.init_waiters))))

    def why_no_init(self) -> str:
        """Nobody initialises device memory between a holder's death and its successor's Active: it would size itself by memory that moves."""
        if self.init.recovery is not None:
            return "the server is new; who had the permit may come back"
        if self.active.held and self.active.holder is not None:
            return "" if self.active.endpoint is not None else f"{self.active.holder.engine_id} is waking"
        return "" if self.state is State.FREE else f"the lock is {self.state.value}"

    def _on_release(self, event: e.Received, caller: Caller) -> None:
        assert caller.tree is not None
        self.init_waiters.pop(caller.tree.name, None)
        if self.init.holder is caller.tree:
            self._release(self.init)
            self._write()

    # -- the queue -------------------------------------------------------------------------------------------------------

    def _on_acquire(self, event: e.Received, caller: Caller) -> None:
        message, tree = event.message, caller.tree
        assert isinstance(message, m.Acquire) and tree is not None
        lock = self.active if message.lock == ACTIVE else self.init
        if lock.holder is tree:
            if lock.told:
                self.turn.send(event.conn, m.Granted(lock=lock.name, token=lock.token))
        elif lock is self.active:
            self.queue.enter(tree, message.needs, looked=not message.again)
        else:
            self.init_waiters[tree.name] = tree
            self.turn.changed = True

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
        self.turn.note("refused", engine=waiter.tree.engine_id, why=why)
        if waiter.tree.conn is not None:
            self.turn.send(waiter.tree.conn, m.Refused(why=why))

    # -- copies of the holder's pidfds: the server's memory across its own crash ------------------------------------------

    def _hand_out_copies(self) -> None:
        """A main process keeps its own tree's pidfds, and the first few waiters keep the holder's."""
        for name in sorted(self.forest.regrouped):
            tree = self.forest.trees[name]
            if tree.conn is not None and tree.numbered > MAIN:
                self._give_copies(tree.conn, tree, [member for member in tree.members.values() if member is not tree.main])
        self.forest.regrouped.clear()
        lock = self.active
        if not lock.held or lock.holder is None:
            return
        current = (lock.token, tuple(lock.holder.members))
        if current != self._kept:
            self._kept, self._keepers = current, set()
        keepers = {waiter.tree.conn for waiter in self.queue.first(self.config.keepers) if waiter.tree.conn is not None}
        for conn in sorted(keepers - self._keepers):
            self._give_copies(conn, lock.holder, list(lock.holder.members.values()))
        self._keepers = keepers

    def _give_copies(self, conn: int, tree: Tree, members: list[Member]) -> None:
        members = [member for member in members if member.process is not None]
        keep = m.Keep(token=self.active.token, tree=tree.name, numbers=[member.number for member in members])
        self.turn.out.append(e.Send(conn, keep, tuple(member.process for member in members if member.process is not None)))

    def _on_hand_back(self, event: e.Received, caller: Caller) -> None:
        message, lock = event.message, self.active
        assert isinstance(message, m.HandBack)
        if lock.recovery is not None:
            self.token = max(self.token, message.token)
        tree = self.forest.trees.get(message.tree)
        if lock.recovery is not None and lock.recovery.found is not Found.HOLDER and (tree is None or tree.stage is Stage.AWAITED):
            tree = self._holder_by_hearsay(message)
        own = tree is caller.tree
        known = own or (tree is lock.holder and lock.token == message.token)
        for number, peer in zip(message.numbers, event.peers, strict=False):
            if tree is not None and known:
                self.forest.hand_back(tree, number, peer, from_file=not own and lock.recovery is not None and lock.recovery.found is Found.HOLDER)
            else:
                self.forest.forget((peer,))
        self.forest.forget(event.peers[len(message.numbers) :])

    def _holder_by_hearsay(self, message: m.HandBack) -> Tree | None:
        """The file tells of no holder, or can't be read; a waiter tells. The newest that any of them knows of must come back, or be proven gone."""
        lock = self.active
        if message.tree in self.forest.graves or (lock.holder is not None and message.token <= lock.token):
            return self.forest.trees.get(message.tree)
        engine_id, _, incarnation = message.tree.rpartition(".")
        tree = self.forest.trees.get(message.tree)
        if tree is None:
            tree = Tree(engine_id, incarnation, Stage.AWAITED)
            self.forest.trees[message.tree] = self.forest.ending[message.tree] = tree
        lock.holder, lock.told, lock.token = tree, True, message.token
        self.turn.note("awaiting_holder", engine=engine_id, lock=lock.name, token=lock.token, known_from="a waiter")
        return tree

    # -- writing (rule 5) ------------------------------------------------------------------------------------------------

    def _write(self) -> None:
        self._seq += 1
        self._rewrite_at = math.inf
        self.forest.graves = dict.fromkeys(self.forest.graves, self._seq)
        init = self._tenure(self.init)
        record = Record(self.config.boot_id, self.token, self._tenure(self.active), {INIT: init} if init else {}, list(self.forest.graves))
        self.turn.out.append(e.Persist(self._seq, record))

    def _tenure(self, lock: Lock) -> Tenure | None:
        tree = lock.holder
        if tree is None:
            return None
        members = [MemberRecord(x.number, x.identity, x.pid) for x in tree.members.values()]
        return Tenure(tree.engine_id, tree.incarnation, lock.token, lock.granted_at, tree.name, members, tree.secret, lock.endpoint, lock.verified)

    def _on_persisted(self, event: e.Persisted) -> None:
        self._written, self._disk_fails = event.seq, False
        self.turn.calm("persist")
        for lock in (self.active, self.init):
            if lock.holder is not None and not lock.told and event.seq >= lock.written_by:
                lock.told = self.turn.changed = True
                if lock.holder.conn is not None:
                    self.turn.send(lock.holder.conn, m.Granted(lock=lock.name, token=lock.token))
                    self.turn.note("granted", engine=lock.holder.engine_id, lock=lock.name, token=lock.token)
                if lock is self.active:
                    self.switchover.granted(lock.holder, lock.token)
        if self._owed:
            due = [owed for owed in self._owed if owed[0] <= event.seq]
            self._owed = [owed for owed in self._owed if owed[0] > event.seq]
            for _, conn, answer in due:
                if conn in self.callers:
                    self.turn.send(conn, answer)
        self.forest.written(event.seq)

    def _on_persist_failed(self, event: e.PersistFailed) -> None:
        self._rewrite_at, self._disk_fails = self.turn.now + RETRY_PERSIST_S, True
        for lock in (self.active, self.init):
            if lock.holder is not None and not lock.told:
                self._take_back(lock, lock.holder)
        self.turn.alarm("persist", f"holder.json can't be written ({event.why}): nobody is granted and nobody joins the holder until it can")

    def _take_back(self, lock: Lock, tree: Tree) -> None:
        """The grant isn't on disk and nobody was told: it is decided anew once the disk works, by what is so then."""
        lock.holder, waiter, lock.waiter = None, lock.waiter, None
        self.turn.changed = True
        if tree.stage is not Stage.PRESENT:
            return
        if lock is self.init:
            self.init_waiters = {tree.name: tree, **self.init_waiters}
        elif waiter is not None:
            self.queue.put_back(waiter)

    def _answer(self, conn: int, answer: m.ServerMessage, *, on_disk: bool) -> None:
        if on_disk and self._written < self._seq:
            self._owed.append((self._seq, conn, answer))
        else:
            self.turn.send(conn, answer)

    # -- onlookers -------------------------------------------------------------------------------------------------------

    def watchers(self) -> list[int]:
        return [caller.conn for caller in self.callers.values() if caller.watching]

    def _on_watch(self, event: e.Received, caller: Caller) -> None:
        caller.watching = True
        self.turn.changed = True

    def _on_ask_status(self, event: e.Received, caller: Caller) -> None:
        self.turn.send(event.conn, picture(self))

    def _on_ask_history(self, event: e.Received, caller: Caller) -> None:
        self.turn.send(event.conn, m.History(events=list(self.turn.history)))

    def _on_ping(self, event: e.Received, caller: Caller) -> None:
        self.turn.send(event.conn, m.Pong(server_incarnation=self.config.server_incarnation))

    def _on_switchover(self, event: e.Received, caller: Caller) -> None:
        assert isinstance(event.message, m.Switchover)
        self.switchover.ask(event.conn, event.message)

    def _on_abort_switchover(self, event: e.Received, caller: Caller) -> None:
        self.switchover.call_off(event.conn)

    def _on_drained(self, event: e.Received, caller: Caller) -> None:
        assert isinstance(event.message, m.Drained)
        if caller.tree is self.active.holder:
            self.switchover.drained(event.message)

    def _on_life_probed(self, event: e.LifeProbed) -> None:
        self.forest.probed(event.tree, event.held)

    def _on_out_of_reach(self, event: e.OutOfReach) -> None:
        self.forest.out_of_reach(event.process)

    def _on_directory_replaced(self, event: e.DirectoryReplaced) -> None:
        """Nobody who opens this path finds this server any more: it must not grant, and can only make room."""
        self._started = False
        self.turn.out.append(e.Stop(event.why))

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


