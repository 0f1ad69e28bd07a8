"""The rules of the lock: who may be awake.

Pure: an event and the time go in, effects come out (`events.py`); `lockserver/shell/server.py` carries the effects out,
and the sockets are in `sidecar/wire/connections.py`. This file takes events in and composes; `succession.py` says what
follows from how things stand, and does it. The parts know neither of them. A part that finds something about the lock
says it by one of the lock's transitions (`lock.py`). What is known of processes is in the package `evidence`, which has
its own rules, with an E.

How it goes. An engine's main process registers, the other processes of its incarnation join; from then on their ends
are watched. The main process says `Acquire` and waits in the queue. The states of the lock and what may follow what
stand in `lock.py`.

The rules, and where they stand:

 1. Fencing starts when the holder's connection ends *or* its pidfd is readable. Only the proof ends it (rule E1 of the
    package `evidence`).
 2. A rule about processes: E2.
 3. Where memory can be read, what the next one needs must be free (`evidence/rules/free_memory.py`, `queue.py`).
 4. A waiter is granted only if it is there, alive, ready, and has looked at its engine since the last holder was lost
    (`queue.py`).
 5. First on disk, then told: `Persist`, `Persisted`, `Granted`. A grant that can't be written isn't made.
 6. A rule about processes: E6.
 7. After a restart the file rules (`recovery.py`): its holder comes back unnoticed; or is proven gone by what
    is found of its processes and what the clients kept (E8, `hearsay.py`); or the window ends and the flags decide,
    which by default is to go on waiting. No file, or one that can't be read: an unknown holder may be there (E9).
 8. Tokens only grow, across restarts, reboots and restored files. Of two claims the newer token is the true one.
 9. No waiter is granted while another process has the name of this path, or of a device, or lost it a moment ago and
    may be dying (`exclusion.py`).
10. A holder that can't talk with this server (another version) keeps what it has, and is fenced by its pidfds alone.
11. A waiter that gives up (`Withdraw`) isn't granted until it asks again; unless the grant came first, which holds.
12. A takeover that hangs for longer than the window is an alarm that says what lives, and how it is (`overdue.py`).
13. A rule about processes: E7.
14. A holder may give the lock back and live on: its engine is asleep, and nothing of it is on a device. Then, and when
    no engine holds it and a caller says so, the lock is *at rest*: no waiter is granted until it is waked (`rest.py`).
    One that is told to give back and doesn't is killed, and fenced like any other (`switchover.py`).

The permit `init` is a lock too, with less (`permit.py`).
"""

from evidence.rules.admission import Admitted, Reception, TurnedAway
from evidence.rules.callers import Caller
from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import MAIN, Incarnation, Stage
from evidence.rules.tree_machine import Answer, TreeMachine
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules.claims import Claims
from lockserver.rules.context import Context
from lockserver.rules.hearsay import Hearsay
from lockserver.rules.invariants import Invariants
from lockserver.rules.lock import Lock, Phase, State, WrongTransition
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.status import history_of, status_of
from lockserver.rules.succession import Succession
from sidecar.machine.disk_writes import DiskWrites
from sidecar.machine.plan import Circle
from sidecar.wire.versions import Spoken


class Machine(TreeMachine):
    def __init__(self, config: e.Config) -> None:
        context = Context(config.history_size)
        super().__init__(context, Evidence(config, context), DiskWrites())
        self.config = config
        self.succession = succession = Succession(config, context, self.callers, self.evidence)
        permit, rest = succession.permit.lock, succession.rest
        claims = Claims(context, self.active, permit, rest, lambda: succession.newest_token, succession.give_back)
        spoken = Spoken(m.OLDEST, m.PROTOCOL)
        self.reception = Reception(context, self.evidence, self.callers, spoken, claims, self)
        self.hearsay = Hearsay(config, context, self.evidence)
        self.broken = ""
        """Which of its own rules this machine has broken: a bug. No waiter is granted any more then."""
        self._invariants = Invariants()
        self._state = State.FREE

    @property
    def active(self) -> Lock:
        return self.succession.active

    # -- the one door ----------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, time: e.Time) -> list[e.Effect]:
        context = self.context
        context.begin(time)
        try:
            self.handlers[type(event)](self, event)
            if self.is_started:
                self._conclude()
            broken = self._invariants.check(self.succession, self.incarnations, self.disk)
        except (WrongTransition, Circle) as error:
            broken = str(error)
        if broken and not self.broken:
            self._stop_granting(broken, event)
        if context.changed:
            context.changed = False
            self.hand_out()
            context.out.append(e.Publish())
        return context.out

    @property
    def deadline(self) -> float:
        """When `Tick` is due. Infinite while there is nothing to wait for: a server at rest sleeps."""
        return self.context.deadline

    @property
    def status(self) -> m.Status:
        return status_of(self.config, self.context, self.succession)

    def _conclude(self) -> None:
        """Draw every conclusion that is due."""
        succession = self.succession
        succession.conclude(may_grant=not self.disk.failing and not self.broken)
        self.write_if_due()
        if succession.state is not self._state:
            self._state, self.context.changed = succession.state, True

    def _stop_granting(self, rule: str, event: e.Event) -> None:
        self.broken = rule
        lock, disk = self.active, self.disk
        holder = lock.holder.name if lock.holder is not None else "no holder"
        happened = event.message if isinstance(event, e.Received) else event
        self.context.alarm(
            "broken",
            f"a bug of the lock server: no engine is granted any more, and the holder serves on. "
            f"Please report this with the log: {rule}; in {type(happened).__name__}; {lock.phase.value}, {holder}, "
            f"token {lock.token} of {self.succession.newest_token}, write {disk.done} of {disk.asked}. "
            "Restart the lock server to go on",
        )

    # -- ends (rule 1) ---------------------------------------------------------------------------------------------

    def closed(self, conn: int) -> None:
        self.succession.switchover.asker_left(conn)
        super().closed(conn)

    def lost(self, who: Incarnation, stage: Stage, seen_by: str) -> None:
        self.succession.lose(who, stage, seen_by)

    def holds(self, who: Incarnation) -> bool:
        return self.succession.holds(who)

    # -- who comes in (rules 2, 7, 8 and 10) -----------------------------------------------------------------------

    def introduced(self, event: e.Received, outcome: Admitted | TurnedAway) -> None:
        hello, main = event.message, isinstance(event.message, m.Register)
        token = hello.claims.get(ACTIVE, 0) if main else 0
        self.succession.token_told(token)
        if isinstance(outcome, TurnedAway):
            return
        if not main:
            self._welcome(event.conn, outcome, {}, self.record_member(outcome.who))
            return
        self.succession.token_granted(token)
        held = [lock for lock in self.succession.locks if lock.held_by(outcome.who)]
        if any(lock.recorded_by is None for lock in held):
            self.write()
        after = max((lock.recorded_by or 0 for lock in held), default=0)
        self._welcome(event.conn, outcome, {lock.name: lock.token for lock in held}, after)

    def watch_unheard(self, hello: m.Register | m.Join) -> None:
        self.succession.token_granted(hello.claims.get(ACTIVE, 0) if isinstance(hello, m.Register) else 0)
        self.succession.must_write = True

    def _welcome(self, conn: int, admitted: Admitted, holds: dict[str, int], after: int) -> None:
        """Says what the process holds; a holder that is back has been told everything with it."""
        welcome = m.Welcome(
            server_incarnation=self.config.server_incarnation,
            number=admitted.number,
            policy=m.Policy(self.config.presume_dead, self.config.window_s, self.config.settle_s),
            secret=admitted.who.secret if admitted.number == MAIN else "",
            holds=holds,
            protocol=admitted.version,
        )
        self.say_on_disk(conn, welcome, after)

    def hand_out(self) -> None:
        """Copies of pidfds: of its own incarnation to each main process, of the holder to the first few waiters. While
        it is fenced, too, as more of its processes may come (rule E2); but not by a server that lacks some of them, as
        what it gives replaces what waiters have.
        """
        holder, copies = self.active.holder, self.evidence.copies
        self.reception.hand_out(self.active.token)
        if self.active.phase not in (Phase.HELD, Phase.FENCING) or holder is None or self.active.doubt is not None:
            return
        for waiter in self.succession.queue.first(self.config.recipients):
            who = waiter.incarnation
            if who.conn is not None:
                for give in copies.give(who.conn, who, holder, list(holder.members.values()), self.active.token):
                    self.reception.give(give, self.active.token)

    def send(self, conn: int, message: m.ServerMessage, processes: tuple[int, ...] = ()) -> None:
        self.context.out.append(e.Send(conn, message, processes))

    # -- requests --------------------------------------------------------------------------------------------------

    def _on_acquire(self, event: e.Received, message: m.Acquire, who: Incarnation) -> None:
        succession = self.succession
        lock = succession.active if message.lock == ACTIVE else succession.permit.lock
        if lock.holder is who:
            if lock.held_by(who):
                self._tell_granted(event.conn, lock)
        elif lock is succession.active:
            succession.queue.enter(who, message.needs, looked=not message.again)
        else:
            succession.permit.enter(who)

    def _on_release(self, event: e.Received, message: m.Release, who: Incarnation) -> None:
        if message.lock == INIT:
            self.succession.give_permit_back(who)
        elif self.active.held_by(who) and message.token == self.active.token:
            self.succession.give_back(who, message.why)

    def _on_withdraw(self, event: e.Received, message: m.Withdraw, who: Incarnation) -> None:
        lock = self.active
        if message.lock == INIT:
            self.succession.give_permit_back(who)
        elif lock.holder is who:  # the grant came first: it has been told, or is when it is on disk
            if lock.waiter is not None:
                lock.waiter.ready = False  # should it come to nothing
            return
        else:
            self.succession.queue.update(who, ready=False, looked=False, needs=None)
        self.send(event.conn, m.Withdrawn(lock=message.lock, number=message.number))

    def _on_ready(self, event: e.Received, message: m.Ready, who: Incarnation) -> None:
        self.succession.queue.update(who, ready=message.ready, looked=message.ready, needs=message.needs)

    def _on_prepared(self, event: e.Received, message: m.Prepared, who: Incarnation) -> None:
        self.succession.queue.answered(who, message.round, ok=message.ok, why=message.why)

    def _on_serving(self, event: e.Received, message: m.Serving, who: Incarnation) -> None:
        if not self.active.held_by(who):
            self.reception.throw_out(event, "only the holder serves")
        elif self.active.serve_at(message.url or None, message.kept):
            self.context.note("serving", engine=who.engine_id, url=message.url)
            self.context.changed = self.succession.must_write = True

    def _on_drained(self, event: e.Received, message: m.Drained, who: Incarnation) -> None:
        if who is self.active.holder:
            self.succession.switchover.drained(message)

    def _on_hand_back(self, event: e.Received, message: m.HandBack, who: Incarnation) -> None:
        self.succession.token_told(message.mark)
        before = _known_of_the_holder(self.active)
        self.hearsay.handed_back(message, event.peers, who, self.active, self.succession.newest_token)
        if _known_of_the_holder(self.active) != before:
            self.succession.must_write = True  # the file is older; the next server may not hear it of a waiter
        if self.active.holder is not None:
            self.succession.token_granted(self.active.token)  # it may have been heard of just now
        self.hand_out()  # a process that only its own main process knew of is one to keep a copy of

    def _on_ask_status(self, event: e.Received, message: m.AskStatus, caller: Caller) -> None:
        self.send(event.conn, self.status)

    def _on_ask_history(self, event: e.Received, message: m.AskHistory, caller: Caller) -> None:
        self.send(event.conn, history_of(self.context))

    def _on_ping(self, event: e.Received, message: m.Ping, caller: Caller) -> None:
        self.send(event.conn, m.Pong(server_incarnation=self.config.server_incarnation))

    def _on_switchover(self, event: e.Received, message: m.Switchover, caller: Caller) -> None:
        self.succession.switchover.ask(event.conn, message, self.active, self.succession.state.value)

    def _on_abort_switchover(self, event: e.Received, message: m.AbortSwitchover, caller: Caller) -> None:
        self.succession.switchover.call_off(event.conn)

    def _on_sleep(self, event: e.Received, message: m.Sleep, caller: Caller) -> None:
        self.succession.switchover.sleep(event.conn, message, self.active)

    def _on_wake(self, event: e.Received, message: m.Wake, caller: Caller) -> None:
        self.succession.switchover.wake(event.conn)

    # -- what is said ----------------------------------------------------------------------------------------------

    def _tell_granted(self, conn: int, lock: Lock) -> None:
        token = lock.token_on_disk(self.disk.done)
        granted = m.Granted(lock=lock.name, token=token, proven=lock.proven)
        self.context.out.append(e.Send(conn, granted, names=lock is self.active))

    def say(self, conn: int, message: m.ServerMessage) -> None:
        holds = message.holds if isinstance(message, m.Welcome) else {}
        for lock in self.succession.locks:
            if lock.name in holds:
                lock.token_on_disk(self.disk.done)
        self.context.out.append(e.Send(conn, message, names=ACTIVE in holds))

    # -- writing (rule 5) ------------------------------------------------------------------------------------------

    @property
    def must_write(self) -> bool:
        return self.succession.must_write or self.succession.rest.must_write or super().must_write

    def persist(self, number: int) -> None:
        succession = self.succession
        succession.bind()
        for lock in succession.locks:
            lock.written_by(number)
        for conn, step in succession.rest.owed:
            self.disk.owe(Answer(conn, step))
        succession.rest.owed.clear()
        succession.must_write = succession.rest.must_write = False
        record = succession.recovery.record(succession.active, succession.permit.lock, succession.newest_token)
        self.context.out.append(e.Persist(number, record))

    def written(self, number: int) -> None:
        if self.broken:
            self.succession.take_back()
            self.succession.must_write = True  # the file names a waiter that was chosen and never told
        for lock in self.succession.locks:
            if lock.phase is Phase.GRANTING and lock.recorded_by is not None and lock.recorded_by <= number:
                self._granted(lock)

    def _granted(self, lock: Lock) -> None:
        lock.hold()
        self.context.changed = True
        holder = lock.holder
        if holder is not None and holder.conn is not None:
            self._tell_granted(holder.conn, lock)
            self.context.note("granted", engine=holder.engine_id, lock=lock.name, token=lock.token)
        if holder is not None and lock is self.active:
            self.succession.switchover.granted(holder, lock.token)

    def _on_persist_failed(self, event: e.PersistFailed) -> None:
        if not self.on_persist_failed(event):
            return
        self.succession.take_back()
        self.context.alarm(
            "persist",
            f"holder.json can't be written ({event.why}): no engine is granted and no process joins the holder "
            "until it can",
        )

    # -- the rest --------------------------------------------------------------------------------------------------

    def _on_started(self, event: e.Started) -> None:
        self.is_started = True
        record, succession = event.record, self.succession
        succession.newest_token, succession.token_floor = record.token if record is not None else 0, event.token_floor
        succession.exclusion.begin()
        succession.recovery.begin(event, succession.active, succession.permit.lock)
        if record is not None:
            succession.bind()
            self.evidence.strangers.ask()
        succession.must_write = bool(self.incarnations.pending_unlinks)

    def _on_directory_replaced(self, event: e.DirectoryReplaced) -> None:
        """One of many that no engine has, and whose directory was removed, ends as is meant: a model was taken out."""
        if event.removed and self.config.at_rest and self.succession.nobody_has_any:
            self.leave_path("its directory was removed", meant=True)
        else:
            self.leave_path(event.why)


def _known_of_the_holder(active: Lock) -> tuple[str, int]:
    return (active.holder.name, len(active.holder.members)) if active.holder is not None else ("", 0)


Machine.handlers = {
    **TreeMachine.handlers,
    e.Started: Machine._on_started,
    e.StrangersProbed: lambda machine, event: machine.evidence.strangers.probed(event, keep=machine.active.unnamed),
    e.LookedAt: lambda machine, event: machine.succession.looked_at(event),
    e.NamesTaken: lambda machine, event: machine.succession.exclusion.taken(event),
    e.MemoryRead: lambda machine, event: machine.succession.memory_read(event),
    e.PersistFailed: Machine._on_persist_failed,
    e.DirectoryReplaced: Machine._on_directory_replaced,
}
Machine.requests = {
    **TreeMachine.requests,
    m.Acquire: Machine._on_acquire,
    m.Ready: Machine._on_ready,
    m.Prepared: Machine._on_prepared,
    m.Serving: Machine._on_serving,
    m.Release: Machine._on_release,
    m.Withdraw: Machine._on_withdraw,
    m.Drained: Machine._on_drained,
    m.HandBack: Machine._on_hand_back,
}
Machine.of_any_caller = {
    m.Watch: TreeMachine.watch,
    m.AskStatus: Machine._on_ask_status,
    m.AskHistory: Machine._on_ask_history,
    m.Switchover: Machine._on_switchover,
    m.AbortSwitchover: Machine._on_abort_switchover,
    m.Sleep: Machine._on_sleep,
    m.Wake: Machine._on_wake,
    m.Ping: Machine._on_ping,
}
