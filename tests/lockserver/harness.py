"""A harness for the server's machine: it plays the shell, the kernel, the disk and the clock, and it knows the truth.

Tests say what happens in the world (`register`, `kill`, `crash`, `advance`); the harness turns that into events in the
way `lockserver/shell/server.py` does and carries the effects out. After every event it checks what must hold in every
test (`_check_*`), so that a test about one rule can't pass while another is broken. It knows nothing of the rules'
reasons: only who is really alive, and who was told what.
"""

import itertools
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeVar

import msgspec
import pytest

from evidence.rules.record import Member
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.lock import Phase
from lockserver.rules.machine import Machine
from lockserver.rules.messages import ACTIVE, INIT
from lockserver.rules.record import Tenure

M = TypeVar("M", bound=m.ServerMessage)
STARTED_AT = 1000.0
START_S = 0.05
LONG_S = 45.0
"""Longer than any period of the server."""
BOOT = "boot-1"


class Kernel(Enum):
    """What it tells about processes."""

    PIDFS = "pidfds with inodes"
    SENT = "pidfds without"
    NONE = "no pidfds at all"


every_kernel = pytest.mark.parametrize("kernel", list(Kernel), ids=lambda kernel: kernel.name)
with_pidfds = pytest.mark.parametrize("kernel", [Kernel.PIDFS, Kernel.SENT], ids=lambda kernel: kernel.name)
older_kernels = pytest.mark.parametrize("kernel", [Kernel.SENT, Kernel.NONE], ids=lambda kernel: kernel.name)


class Disk(Enum):
    WORKS = "works"
    FAILS = "fails"
    SLOW = "answers when the test says so"
    CRASH_BEFORE = "the server dies as it begins to write"
    CRASH_AFTER = "the server dies when it has written, and has told no client"


class ServerDied(Exception):
    """Inside the harness only: what was asked for by `Disk.CRASH_*` has happened."""


@dataclass(eq=False)
class Process:
    pid: int
    alive: bool = True
    reaped: bool = False
    locks: set[str] = field(default_factory=set)
    """Life files on which it has an OFD read lock."""

    def __repr__(self) -> str:
        return f"<{self.pid}{'' if self.alive else ' dead'}>"


@dataclass(eq=False)
class Engine:
    """One start of one engine: its processes, and what its main process has heard."""

    harness: "Harness"
    engine_id: str
    incarnation: str
    main: Process
    conn: int = 0
    secret: str = ""
    token: int = 0
    """Its token for the lock `active`, once it was told."""
    gave_back: int = 0
    """That of the grant that it gave back."""
    wakes: bool | None = True
    """What it answers to `Prepare`; None: nothing, until the test lets it (`looks`)."""
    processes: list[Process] = field(default_factory=list)
    numbers: dict[Process, int] = field(default_factory=dict)
    answers_keep: bool = True
    """False: it is stopped, and takes nothing of what it is sent."""
    copies: dict[str, tuple[m.Keep, tuple[Process, ...]]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.engine_id}.{self.incarnation}"

    @property
    def alive(self) -> bool:
        return any(process.alive for process in self.processes)

    @property
    def connected(self) -> bool:
        return self.conn in self.harness.conns

    def hello(self, **changed: Any) -> m.Register:
        said: dict[str, Any] = {
            "protocol": m.PROTOCOL,
            "engine_id": self.engine_id,
            "incarnation": self.incarnation,
            "life": (1, 1),
            "pid": self.main.pid,
            "claims": {ACTIVE: self.token} if self.token else {},
            "secret": self.secret,
            "mapped": True,
            "gave_back": self.gave_back,
        }
        return m.Register(**{**said, **changed})

    def register(self, *, process: Process | None = None, **changed: Any) -> "Engine":
        process = process or self.main
        self.conn = self.harness.connect(process)
        held = self.harness.life_held(self.name) and self.name in process.locks
        peer = self.harness.peer(process, process.pid)
        self.harness.receive(self.conn, self.hello(**changed), (peer,), life_held=held)
        return self

    def comes_back(self) -> None:
        """As `client_machine.py` does it: the claim first, then the copies that it keeps, then its wish."""
        self.register()
        for keep, processes in list(self.copies.values()):
            self.says(m.HandBack(mark=keep.mark, tree=keep.tree, numbers=keep.numbers), processes)
        if not self.token:
            self.acquire()

    def join(self, process: Process | None = None, *, number: int | None = None) -> Process:
        """Another process of the tree: its own if none is given (a new one)."""
        if process is None:
            process = self.fork()
        conn = self.harness.connect(process)
        said = self.numbers.get(process, 0) if number is None else number
        message = m.Join(
            protocol=m.PROTOCOL,
            engine_id=self.engine_id,
            incarnation=self.incarnation,
            life=(1, 1),
            pid=process.pid,
            number=said,
            mapped=True,
        )
        held = self.harness.life_held(self.name) and self.name in process.locks
        self.harness.receive(conn, message, (self.harness.peer(process, process.pid),), life_held=held)
        welcome = self.harness.last(conn, m.Welcome)
        if welcome is not None:
            self.numbers[process] = welcome.number
        return process

    def fork(self) -> Process:
        """A child that the server isn't told of; it has the life lock by inheritance."""
        process = self.harness.process()
        process.locks.add(self.name)
        self.processes.append(process)
        return process

    def executes_anew(self) -> "Engine":
        """Its main process runs its program anew, which closes and unmaps the life file."""
        again = self.harness.engine(self.engine_id)
        again.main, again.processes, self.processes = self.main, [self.main], self.processes[1:]
        self.main.locks = {again.name}
        return again

    def says(self, message: m.ClientMessage, descriptors: Iterable[Process] = ()) -> None:
        self.harness.receive(self.conn, message, tuple(self.harness.peer(process, 0) for process in descriptors))

    def acquire(self, **needs: int) -> "Engine":
        self.says(m.Acquire(needs=needs))
        return self

    def gives_back(self, why: str = "") -> None:
        """Its engine is asleep."""
        self.gave_back, self.token = self.token, 0
        for copies in self.harness.named.values():
            copies.discard(self.main)
        if self.connected and self.harness.up:
            self.says(m.Release(lock=ACTIVE, token=self.gave_back, why=why))

    def keeps(self, keep: m.Keep, processes: list[Process]) -> None:
        """As `session.py` does it: instead of those before, or in addition to them."""
        assert len(keep.numbers) == len(processes)
        copies: dict[int, Process] = {}
        if keep.more and keep.tree in self.copies:
            before, there = self.copies[keep.tree]
            copies = {n: one for n, one in zip(before.numbers, there, strict=True) if n not in keep.gone}
        copies |= dict(zip(keep.numbers, processes, strict=True))
        self.copies[keep.tree] = (msgspec.structs.replace(keep, numbers=list(copies)), tuple(copies.values()))

    def hand_back(self, other: "Engine") -> None:
        keep, processes = self.copies[other.name]
        self.says(m.HandBack(mark=keep.mark, tree=keep.tree, numbers=keep.numbers), processes)

    def looks(self, *, ok: bool = True) -> None:
        """Answers the newest `Prepare`."""
        asked = self.last(m.Prepare)
        assert asked is not None, f"{self.name} was not asked"
        self.says(m.Prepared(round=asked.round, ok=ok))

    def wants_permit(self) -> "Engine":
        self.says(m.Acquire(lock=INIT))
        return self

    @property
    def has_permit(self) -> bool:
        """It was told so, and the server says so."""
        told = any(granted == m.Granted(lock=INIT, token=0) for granted in self.heard(m.Granted))
        return told and self.harness.status.permits[INIT].holder == self.engine_id

    @property
    def welcomed_with(self) -> dict[str, int] | None:
        """What it holds by the word of the newest welcome; None: there was none."""
        welcome = self.last(m.Welcome)
        return None if welcome is None else dict(welcome.holds)

    def heard(self, kind: type[M]) -> list[M]:
        return self.harness.heard(self.conn, kind)

    def last(self, kind: type[M]) -> M | None:
        return self.harness.last(self.conn, kind)

    @property
    def holds(self) -> bool:
        """It was told so, on whatever connection, and lives."""
        return self.token > 0 and self.main.alive

    @property
    def proven(self) -> bool:
        """It was told that its grant stands on the whole proof."""
        granted = self.last(m.Granted)
        return granted is not None and granted.proven

    @property
    def refused(self) -> str:
        refused = self.last(m.Refused)
        return refused.why if refused else ""


class Harness:
    def __init__(
        self, kernel: Kernel = Kernel.PIDFS, *, memory: dict[str, tuple[int, int]] | None = None, **config: Any
    ) -> None:
        self.kernel = kernel
        self.memory = memory
        self.reader_problem = ""
        self.reads_answered = True
        self.looks_answered = True
        self.life_answered = True
        self.late_answers: list[e.Event] = []
        self.config = config
        self.now = STARTED_AT
        self.disk = Disk.WORKS
        self.file: bytes | None = None
        self.life: set[str] = set()
        self.pid_namespace = ""
        """Where processes have numbers that the server sees; empty: every engine is in a container of its own."""
        self.named: dict[str, set[Process]] = {}
        """The names in the network namespace -> who has a descriptor of it."""
        self.probes: set[str] = set()
        self.unkillable: set[Process] = set()
        self.engines: list[Engine] = []
        self.conns: dict[int, Process] = {}
        self.said: dict[int, list[m.ServerMessage]] = {}
        self.handles: dict[int, Process] = {}
        self.watched: set[int] = set()
        self.notes: list[e.Note] = []
        self.effects: list[e.Effect] = []
        """Those of the last event, and of the answers that it brought about."""
        self.writes: list[e.Persist] = []
        """Those that wait for the test (`Disk.SLOW`)."""
        self.tokens: list[int] = []
        self.stopped = ""
        self.allows_two = False
        """A policy that gives up the proof rules; only the letter of the rest is checked."""
        self.up = False
        self.server = Process(1)
        self._number = itertools.count(1)
        self._unseen: deque[int] = deque()
        self._starts = itertools.count(1)

    # -- the server ------------------------------------------------------------------------------------------------

    def start(
        self, *, unreadable: str = "", boot_id: str = BOOT, token_floor: int | None = None, **config: Any
    ) -> "Harness":
        """A server starts on what is on the disk, which takes a moment."""
        self.now += START_S
        self.config.update(config)
        self.machine = Machine(
            e.Config(
                server_incarnation=f"server-{next(self._starts)}",
                boot_id=boot_id,
                pid_namespace=self.pid_namespace,
                reads_memory=self.memory is not None,
                **self.config,
            )
        )
        self.up, self.server = True, self.process()
        found = record.decode(self.file) if self.file is not None and not unreadable else None
        floor = int(self.now * 1000) if token_floor is None else token_floor
        self.feed(e.Started(found, unreadable=unreadable, token_floor=floor))
        return self

    def crash(self) -> "Harness":
        """SIGKILL of the server: connections end, its descriptors are gone, engines notice nothing else."""
        self.up, self.server.alive = False, False
        self.conns.clear()
        self.handles.clear()
        self.watched.clear()
        self._unseen.clear()
        self.writes.clear()
        self.probes.clear()
        return self

    def restart(self, **how: Any) -> "Harness":
        return self.crash().start(**how)

    @property
    def record(self) -> record.Record | None:
        return record.decode(self.file) if self.file is not None else None

    @property
    def tenure(self) -> Tenure:
        """What the disk says of the holder."""
        assert self.record is not None and self.record.active is not None
        return self.record.active

    @property
    def permit_waits_for(self) -> str:
        return str(self.status.permits[INIT].waiting_for)

    @property
    def members_on_disk(self) -> list[Member]:
        """The holder's."""
        return self.record.holder.members if self.record is not None and self.record.holder is not None else []

    @property
    def status(self) -> m.Status:
        return self.machine.status

    @property
    def state(self) -> str:
        return self.status.state

    @property
    def waiting_for(self) -> str:
        fencing = self.status.fencing
        return "; ".join(fencing.waiting_for) if fencing else ""

    @property
    def alarms(self) -> str:
        return "; ".join(self.status.alarms)

    def noted(self, event: str) -> bool:
        return any(note.event == event for note in self.notes)

    def shouted(self, words: str) -> bool:
        return any(note.alarm and words in str(note.detail) for note in self.notes)

    # -- the world -------------------------------------------------------------------------------------------------

    def process(self) -> Process:
        return Process(100 + next(self._number))

    def engine(self, engine_id: str) -> Engine:
        """One more start: a process with its own life file, not yet known to the server."""
        incarnation = f"{len(self.engines) + 1:08x}"
        engine = Engine(self, engine_id, incarnation, self.process())
        engine.processes.append(engine.main)
        engine.main.locks.add(engine.name)
        self.life.add(engine.name)
        self.engines.append(engine)
        return engine

    def holder(self, engine_id: str = "a", *, children: int = 0) -> Engine:
        """An engine that was granted the lock."""
        engine = self.engine(engine_id).register().acquire()
        if self.machine.active.phase is Phase.IN_DOUBT:
            self.advance(self.machine.config.settle_s)
        assert engine.holds, self.waiting_for
        for _ in range(children):
            engine.join()
        return engine

    def waiter(self, engine_id: str = "b", **needs: int) -> Engine:
        return self.engine(engine_id).register().acquire(**needs)

    def life_held(self, name: str) -> bool:
        return name in self.life and any(
            p.alive and name in p.locks for engine in self.engines for p in engine.processes
        )

    def dies(self, *processes: Process) -> None:
        """It is dead, and that went unnoticed."""
        for process in processes:
            process.alive = False

    def hangs_up(self, process: Process) -> None:
        """Its connections end."""
        for conn in [conn for conn, owner in self.conns.items() if owner is process]:
            del self.conns[conn]
            self.feed(e.Closed(conn))

    def pidfd_readable(self, process: Process) -> None:
        assert not process.alive
        for handle in [handle for handle in sorted(self.watched) if self.handles[handle] is process]:
            self._see_death(handle)

    def kill(self, *processes: Process) -> None:
        """SIGKILL, seen by the end of file first and then by the pidfd, as it is measured."""
        self.dies(*processes)
        for process in processes:
            self.hangs_up(process)
            self.pidfd_readable(process)

    def kill_tree(self, engine: Engine) -> None:
        self.kill(*[process for process in engine.processes if process.alive])

    def advance(self, seconds: float) -> None:
        """Time passes, and the machine is called when it asked for it, and only then: as by a shell on which nothing
        else happens."""
        until, at_this_instant = self.now + seconds, Counter[float]()
        while self.up and self.machine.deadline <= until:
            self.now = max(self.now, self.machine.deadline)
            at_this_instant[self.now] += 1
            assert at_this_instant[self.now] < 5, "a busy loop: called again and again at the same time"
            self.feed(e.Tick())
        self.now = max(self.now, until)

    # -- connections -----------------------------------------------------------------------------------------------

    def connect(self, process: Process) -> int:
        conn = next(self._number)
        self.conns[conn], self.said[conn] = process, []
        return conn

    def observer(self) -> int:
        conn = self.connect(self.process())
        self.receive(conn, m.Observe(protocol=m.PROTOCOL))
        return conn

    def peer(self, process: Process, said_pid: int) -> e.Peer:
        """As the shell makes it: the dead and reaped have no pid, and on older kernels nothing else either."""
        pid = said_pid or (0 if process.reaped or not process.alive else process.pid)
        if self.kernel is Kernel.NONE:
            return e.Peer(None, "", pid)
        handle = next(self._number)
        self.handles[handle] = process
        identity = f"pidfs:{process.pid + 5000}" if self.kernel is Kernel.PIDFS else ""
        local_pid = process.pid if self.pid_namespace and process.alive else 0
        return e.Peer(handle, identity, pid, local_pid, dead=not process.alive)

    def receive(
        self, conn: int, message: m.ClientMessage, peers: tuple[e.Peer, ...] = (), *, life_held: bool = False
    ) -> None:
        self.feed(
            e.Received(
                conn, message, peers, life_held, secret=f"secret-{conn}" if isinstance(message, m.Register) else ""
            )
        )

    def heard(self, conn: int, kind: type[M]) -> list[M]:
        return [message for message in self.said.get(conn, []) if isinstance(message, kind)]

    def last(self, conn: int, kind: type[M]) -> M | None:
        return next(iter(reversed(self.heard(conn, kind))), None)

    # -- the shell -------------------------------------------------------------------------------------------------

    def feed(self, event: e.Event) -> None:
        """One event, everything that its effects bring back, and the deaths that become visible with it."""
        self.effects = []
        pending: deque[e.Event] = deque([event])
        try:
            while pending:
                for effect in self.machine.handle(pending.popleft(), e.Time(self.now, 1.7e9 + self.now)):
                    self.effects.append(effect)
                    _DO[type(effect)](self, effect, pending)
                if not pending and self._unseen:
                    pending.append(self._death(self._unseen.popleft()))
        except ServerDied:
            self.crash()
            return
        self._check_handles()
        assert not self.machine.broken, self.machine.broken
        assert self.machine.deadline > self.now, "a deadline that has passed already: a busy loop"

    def _death(self, handle: int) -> e.Event:
        self.watched.discard(handle)
        return e.Died(handle)

    def _see_death(self, handle: int) -> None:
        self.feed(self._death(handle))

    def _send(self, effect: e.Send, pending: deque[e.Event]) -> None:
        for handle in effect.processes:
            assert handle in self.handles, "a copy of a pidfd that was closed already"
        if effect.conn not in self.conns:
            return  # it has hung up, and the machine doesn't know yet
        self.said[effect.conn].append(effect.message)
        owner = self.conns[effect.conn]
        if effect.names:
            for copies in self.named.values():
                copies |= {owner} if self.server in copies else set()
        engine = next((one for one in self.engines if one.main is owner and one.conn == effect.conn), None)
        if engine is None:
            return
        message = effect.message
        if isinstance(message, m.Keep):
            engine.keeps(message, [self.handles[handle] for handle in effect.processes])
            if message.answer and engine.answers_keep:
                pending.append(e.Received(effect.conn, m.Kept(copies=len(message.numbers))))
        elif isinstance(message, m.Welcome):
            engine.secret = message.secret
            if ACTIVE in message.holds:
                self._check_on_disk(engine, message.holds[ACTIVE])
                self._tell(engine, message.holds[ACTIVE])
        elif isinstance(message, m.Prepare) and engine.wakes is not None:
            pending.append(
                e.Received(
                    effect.conn, m.Prepared(round=message.round, ok=engine.wakes, why="" if engine.wakes else "no")
                )
            )
        elif isinstance(message, m.Granted) and message.lock == ACTIVE:
            self._check_on_disk(engine, message.token)
            self._tell(engine, message.token)

    def _tell(self, engine: Engine, token: int) -> None:
        if engine.token == token:
            return
        self._check_alone(engine)
        assert token > engine.gave_back, f"{engine.name} is told of the grant that it gave back"
        assert all(token > earlier for earlier in self.tokens), f"token {token} after {self.tokens}"
        assert engine.token == 0, f"{engine.name} had token {engine.token} already, and got {token}"
        self.tokens.append(token)
        engine.token = token

    def _close(self, effect: e.Close, pending: deque[e.Event]) -> None:
        assert effect.conn in self.said, f"there was never a connection {effect.conn}"
        self.conns.pop(effect.conn, None)

    def _watch_death(self, effect: e.WatchDeath, pending: deque[e.Event]) -> None:
        assert effect.process not in self.watched
        self.watched.add(effect.process)
        if not self.handles[effect.process].alive:
            self._unseen.append(effect.process)

    def _forget(self, effect: e.ForgetProcess, pending: deque[e.Event]) -> None:
        del self.handles[effect.process]  # a KeyError: forgotten twice, or never given
        self.watched.discard(effect.process)
        if effect.process in self._unseen:
            self._unseen.remove(effect.process)

    def _kill(self, effect: e.Kill, pending: deque[e.Event]) -> None:
        process = self.handles[effect.process]
        if process in self.unkillable:
            pending.append(e.OutOfReach(effect.process))
        elif process.alive:
            self.dies(process)
            pending.extend(self._death(handle) for handle in sorted(self.watched) if self.handles[handle] is process)

    def _probe_life(self, effect: e.ProbeLife, pending: deque[e.Event]) -> None:
        name = effect.incarnation
        if name in self.life:
            self.probes.add(name)
        locked = any(p.alive and name in p.locks for engine in self.engines for p in engine.processes)
        answer = e.LifeProbed(name, locked if name in self.probes else None)
        (pending if self.life_answered else self.late_answers).append(answer)

    def _probe_strangers(self, effect: e.ProbeStrangers, pending: deque[e.Event]) -> None:
        names = sorted(self.life - set(effect.known))
        pending.append(
            e.StrangersProbed(
                tuple(x for x in names if self.life_held(x)), tuple(x for x in names if not self.life_held(x))
            )
        )

    def _unlink(self, effect: e.Unlink, pending: deque[e.Event]) -> None:
        if not self.allows_two:
            name = effect.incarnation
            assert not self.life_held(name), f"{name} is unlinked while its life lock is held"
        self.probes.discard(effect.incarnation)
        self.life.discard(effect.incarnation)

    def _look_up(self, effect: e.LookUp, pending: deque[e.Event]) -> None:
        gone: list[int] = []
        alive: list[tuple[int, e.Peer]] = []
        for number, pid, identity in effect.members:
            process = next((p for engine in self.engines for p in engine.processes if p.pid == pid), None)
            if process is None or process.reaped or identity != f"pidfs:{pid + 5000}":
                if identity or process is None or process.reaped:
                    gone.append(number)
            else:
                alive.append((number, self.peer(process, pid)))
        pending.append(e.LookedUp(effect.incarnation, tuple(gone), tuple(alive)))

    def _look_at(self, effect: e.LookAt, pending: deque[e.Event]) -> None:
        if self.looks_answered:
            alive = tuple((handle, "is stopped") for handle in effect.processes if self.handles[handle].alive)
            holders = {
                p for engine in self.engines for p in engine.processes if p.alive and effect.incarnation in p.locks
            }
            life = tuple(f"process {p.pid}" for p in holders) if effect.life else ()
            pending.append(e.LookedAt(effect.incarnation, alive, life))

    def _take_names(self, effect: e.TakeNames, pending: deque[e.Event]) -> None:
        missing = []
        for name in ("the path", *effect.devices):
            copies = self.named.setdefault(name, set())
            if any(process.alive for process in copies - {self.server}) and self.server not in copies:
                missing.append((name, "another process"))
            else:
                copies.add(self.server)
        pending.append(e.NamesTaken(tuple(missing)))

    def _read_memory(self, effect: e.ReadMemory, pending: deque[e.Event]) -> None:
        assert self.memory is not None, "memory is read, and there is no reader"
        if self.reads_answered:
            pending.append(e.MemoryRead({} if self.reader_problem else dict(self.memory), problem=self.reader_problem))

    def _persist(self, effect: e.Persist, pending: deque[e.Event]) -> None:
        if self.disk is Disk.CRASH_BEFORE:
            raise ServerDied
        if self.disk is Disk.SLOW:
            self.writes.append(effect)
        elif self.disk is Disk.FAILS:
            pending.append(e.PersistFailed(effect.seq, "No space left on device"))
        else:
            self.file = record.encode(effect.record)
            if self.disk is Disk.CRASH_AFTER:
                raise ServerDied
            pending.append(e.Persisted(effect.seq))

    def write_lands(self) -> None:
        """The oldest write of a slow disk comes to its end."""
        write = self.writes.pop(0)
        self.file = record.encode(write.record)
        self.feed(e.Persisted(write.seq))

    def write_fails(self) -> None:
        self.feed(e.PersistFailed(self.writes.pop(0).seq, "No space left on device"))

    def _publish(self, effect: e.Publish, pending: deque[e.Event]) -> None:
        assert self.machine.status  # it can always be drawn

    def _note(self, effect: e.Note, pending: deque[e.Event]) -> None:
        self.notes.append(effect)

    def _stop(self, effect: e.Stop, pending: deque[e.Event]) -> None:
        self.stopped = effect.why

    # -- what must hold in every test ------------------------------------------------------------------------------

    def _check_on_disk(self, engine: Engine, token: int) -> None:
        tenure = self.record.active if self.record else None
        named = tenure is not None and (tenure.life_file, tenure.token) == (engine.name, token)
        assert named, f"{engine.name} is told that it holds with token {token}, and the disk says {tenure}"

    def _check_alone(self, engine: Engine) -> None:
        for other in self.engines:
            if other is not engine and other.token and not self.allows_two:
                assert not other.alive, f"{engine.name} is granted while {other.name} lives: {other.processes}"

    def _check_handles(self) -> None:
        known = [
            x.process
            for incarnation in self.machine.evidence.incarnations.known.values()
            for x in incarnation.members.values()
            if x.process is not None
        ]
        assert sorted(known) == sorted(self.handles), (
            f"known to the machine: {sorted(known)}, open: {sorted(self.handles)}"
        )


_DO: dict[type, Callable[[Harness, Any, deque[e.Event]], None]] = {
    e.Send: Harness._send,
    e.Close: Harness._close,
    e.WatchDeath: Harness._watch_death,
    e.ForgetProcess: Harness._forget,
    e.Kill: Harness._kill,
    e.ProbeLife: Harness._probe_life,
    e.ProbeStrangers: Harness._probe_strangers,
    e.LookUp: Harness._look_up,
    e.LookAt: Harness._look_at,
    e.TakeNames: Harness._take_names,
    e.Unlink: Harness._unlink,
    e.ReadMemory: Harness._read_memory,
    e.Persist: Harness._persist,
    e.Publish: Harness._publish,
    e.Note: Harness._note,
    e.Stop: Harness._stop,
}
