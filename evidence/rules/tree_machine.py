"""What the machine of a server that binds trees does, whatever it grants: callers that come and go, ends, copies of
pidfds, and what is said once it is on disk.

Pure. A machine derives from this and says what its requests mean (`requests`, `of_any_caller`), what follows when a
tree is lost (`lost`), and what its file says (`persist`). It takes `TreeMachine.handlers` into its own.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from evidence.rules import events as e
from evidence.rules import messages as m
from evidence.rules.admission import NOT_INTRODUCED, Admitted, Host, Reception, TurnedAway
from evidence.rules.callers import Caller, Callers
from evidence.rules.evidence import Evidence
from evidence.rules.incarnation import Incarnation, Stage
from sidecar.machine.context import (
    Closed,
    Context,
    DirectoryReplaced,
    Hindered,
    PathWatched,
    Persisted,
    PersistFailed,
    Stop,
    Tick,
)
from sidecar.machine.disk_writes import DiskWrites

MEMBER_WRITE_S = 0.05
"""A member's normal end is on disk by then; several at a time cost one write."""
MOST_OWED = 10_000


@dataclass(frozen=True, slots=True)
class Answer:
    """What is said once it is on disk."""

    conn: int
    message: Any


@dataclass(frozen=True, slots=True)
class MemberEnded:
    """Its clients may drop their copies of the dead one's pidfd: the file doesn't name it any more."""

    incarnation: str


class TreeMachine(Host):
    reception: Reception
    """The derived machine's: which versions it speaks, and what a claim is worth."""
    handlers: ClassVar[Mapping[type, Callable[[Any, Any], object]]]
    requests: ClassVar[Mapping[type, Callable[[Any, e.Received, Any, Incarnation], object]]]
    """What only a registered main process may ask for."""
    of_any_caller: ClassVar[Mapping[type, Callable[[Any, e.Received, Any, Caller], object]]]
    """What every caller that has introduced itself may ask for."""

    def __init__(self, context: Context[Any], evidence: Evidence, disk: DiskWrites[Any]) -> None:
        self.context = context
        self.evidence = evidence
        self.incarnations = evidence.incarnations
        self.callers = Callers(context, evidence.copies.left)
        self.disk = disk
        self.is_started = False
        """It may decide: it knows what the server before has left, and its clients find it."""
        self._members_ended: set[str] = set()
        """Incarnations that lost a member which the file still names."""

    # -- the derived machine's -------------------------------------------------------------------------------------

    def lost(self, who: Incarnation, stage: Stage, seen_by: str) -> None:
        """Its main process is dead, or its connection ended."""
        raise NotImplementedError

    def welcome(self, event: e.Received, admitted: Admitted) -> None:
        """Says welcome (`say_on_disk`)."""
        raise NotImplementedError

    def persist(self, number: int) -> None:
        """A write, with this number, of everything that outlives this server, as it is now."""
        raise NotImplementedError

    def written(self, number: int) -> None:
        """So much is on disk; what it owed to that is said next."""

    def on_disk(self, owed: Any) -> None:
        """What it owed, beside answers."""

    def holds(self, who: Incarnation) -> bool:
        """The file knows its members."""
        return who.bound

    def hand_out(self) -> None:
        """Copies of pidfds."""
        self.reception.hand_out(0)

    # -- who calls -------------------------------------------------------------------------------------------------

    def on_received(self, event: e.Received) -> None:
        message, caller = event.message, self.callers.by_conn.get(event.conn)
        if isinstance(message, m.Introduction | m.Observe):
            self.reception.introduce(event, message)
        elif caller is None:
            self.reception.throw_out(event, NOT_INTRODUCED)
        elif type(message) in self.of_any_caller:
            self.of_any_caller[type(message)](self, event, message, caller)
        elif caller.incarnation is None or not caller.main:
            self.reception.throw_out(event, f"{type(message).__name__} is for the registered main process of a tree")
        else:
            self.requests[type(message)](self, event, message, caller.incarnation)

    def introduced(self, event: e.Received, outcome: Admitted | TurnedAway) -> None:
        if isinstance(outcome, Admitted):
            self.welcome(event, outcome)

    def closed(self, conn: int) -> None:
        caller = self.callers.leave(conn)
        who = caller.incarnation if caller is not None else None
        if who is not None and self.incarnations.closed(who, conn):
            dead = who.main is not None and who.main.dead
            self.lost(who, Stage.DOOMED if dead else Stage.LOST, "end of file")

    def on_died(self, event: e.Died) -> None:
        found = self.incarnations.died(event.process)
        if found is None:
            return
        who, was_main = found
        if was_main:
            self.lost(who, Stage.DOOMED, "pidfd")
            if who.conn is not None:
                self.callers.end(who.conn)
                who.conn = None
        elif self.holds(who):
            self._members_ended.add(who.name)
            if who.stage is Stage.PRESENT:  # else the write of its end comes soon enough
                self.disk.soon(self.context.now + MEMBER_WRITE_S)
        else:
            self.incarnations.drop_dead(who.name)

    def vouch(self, event: e.Received, message: m.Vouch, who: Incarnation) -> None:
        self.reception.vouch(event, message, who)

    def end(self, conns: list[int]) -> None:
        for conn in conns:
            self.callers.end(conn)

    def record_member(self, who: Incarnation) -> int:
        """No device access before the answer; and no answer before others have copies of the process's pidfd, and the
        file knows it if its tree is bound. Returns the write that must be on disk before.
        """
        self.hand_out()
        if not self.holds(who):
            return 0
        self.write()
        return self.disk.asked

    def watch_unheard(self, hello: Any) -> None:
        self.disk.now()

    def handed_back(self, event: e.Received, message: m.HandBack, who: Incarnation) -> None:
        self.evidence.handed_back(who if message.tree == who.name else None, message.numbers, event.peers)
        self.hand_out()

    def kept(self, event: e.Received, message: m.Kept, who: Incarnation) -> None:
        self.evidence.copies.taken(event.conn, message.copies)
        self.hand_out()

    def watch(self, event: e.Received, message: Any, caller: Caller) -> None:
        caller.watching = self.context.changed = True

    # -- first on disk, then told ----------------------------------------------------------------------------------

    def send(self, conn: int, message: Any, processes: tuple[int, ...] = ()) -> None:
        self.context.out.append(e.Send(conn, message, processes))

    def say(self, conn: int, message: Any) -> None:
        """What it tells is on disk."""
        self.send(conn, message)

    def say_on_disk(self, conn: int, message: Any, after: int) -> None:
        """Now, or as soon as that write is on disk."""
        if self.disk.done >= after:
            self.say(conn, message)
        elif len(self.disk.owed) >= MOST_OWED:
            self.callers.end(conn)
        else:
            self.disk.owe(Answer(conn, message), after)

    def write(self) -> None:
        number = self.disk.ask()
        self.incarnations.unlink_after(number)
        for name in sorted(self._members_ended):
            self.disk.owe(MemberEnded(name))
        self._members_ended.clear()
        self.persist(number)

    @property
    def must_write(self) -> bool:
        """The last write doesn't say how things stand now."""
        return self.context.now >= self.disk.due_at

    def write_if_due(self) -> None:
        if self.must_write:
            self.write()
        self.context.wake(self.disk.due_at)

    def on_persisted(self, event: Persisted) -> None:
        due = self.disk.persisted(event.seq)
        self.context.calm("persist")
        self.written(event.seq)
        for owed in due:
            if isinstance(owed, MemberEnded):
                self.incarnations.drop_dead(owed.incarnation)
            elif not isinstance(owed, Answer):
                self.on_disk(owed)
            elif owed.conn in self.callers.by_conn:
                self.say(owed.conn, owed.message)
        self.incarnations.written(event.seq)

    def leave_path(self, why: str, meant: bool = False) -> None:
        """A client that opens this path doesn't find this server: it must not grant, and can only make room."""
        self.is_started = False
        self.context.out.append(Stop(why, meant))

    def on_persist_failed(self, event: PersistFailed) -> bool:
        """False: that decides nothing; else what follows from it would be one more write that fails, and so on."""
        return self.disk.failed(event.seq, event.why, self.context.now)


TreeMachine.requests = {
    m.Vouch: TreeMachine.vouch,
    m.HandBack: TreeMachine.handed_back,
    m.Kept: TreeMachine.kept,
}
TreeMachine.handlers = {
    e.Received: TreeMachine.on_received,
    Closed: lambda machine, event: machine.closed(event.conn),
    e.Died: TreeMachine.on_died,
    e.OutOfReach: lambda machine, event: machine.incarnations.out_of_reach(event.process, event.why),
    e.LifeProbed: lambda machine, event: machine.incarnations.probed(event.incarnation, event.held),
    e.LookedUp: lambda machine, event: machine.incarnations.looked_up(event),
    Persisted: TreeMachine.on_persisted,
    PersistFailed: TreeMachine.on_persist_failed,
    DirectoryReplaced: lambda machine, event: machine.leave_path(event.why),
    PathWatched: lambda machine, event: machine.context.path_watched(event),
    Hindered: lambda machine, event: machine.context.hindered(event),
    Tick: lambda machine, event: None,  # time has passed; the conclusions follow
}
