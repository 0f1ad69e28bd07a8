"""The shells of the simulator: the real machines of server and client, on the simulated kernel.

`SimServer` does what `lockserver/server.py` does, and `SimClient` what `lockserver/client.py` does, with the same
order of calls; between any two effects of the server it may be killed. Who starts them, what goes wrong and what must
hold is `world.py`'s business.
"""

import contextlib
import errno
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from lockserver import client_events as c
from lockserver import events as e
from lockserver import messages as m
from lockserver import record
from lockserver.client_machine import ClientMachine, Me
from lockserver.machine import Machine
from tests.sim.files import Lock
from tests.sim.kernel import Process
from tests.sim.process import Event

if TYPE_CHECKING:
    from tests.sim.world import World

RUN = "/run"
LIFE = "/run/life"
SOCKET = "/run/lock.sock"
HOLDER = "/run/holder.json"
SERVER_LOCK = "/run/server.lock"
INF = float("inf")


def life_file(name: str) -> str:
    return f"{LIFE}/{name}"


class SimServer:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.kernel = world.kernel
        self.process = world.kernel.spawn("server")
        self.processes: dict[int, int] = {}
        self.probes: dict[str, int] = {}
        self.conns: dict[int, int] = {}
        self.by_fd: dict[int, int] = {}
        self.number = 0
        self.pending: deque[e.Event] = deque()
        self.timer: Event | None = None
        self.stopped = False
        self.directory = 0
        self.socket = 0
        self.machine: Machine
        self.incarnation = f"{world.rng.getrandbits(32):08x}"

    def start(self) -> None:
        process, world = self.process, self.world
        self.directory = process.stat(RUN)
        lock = process.open(SERVER_LOCK, create=True)
        if not process.try_flock(lock):
            process.exit()
            return
        self.machine = Machine(world.server_config(self.incarnation))
        self.feed(self._first_event())
        with contextlib.suppress(FileNotFoundError):
            process.unlink(SOCKET)
        listener = process.listen(SOCKET)
        self.socket = process.stat(SOCKET)
        process.on_readable(listener, self._on_connect)

    def _first_event(self) -> e.Started:
        process, floor = self.process, int(self.kernel.now * 1000) + 1
        try:
            return e.Started(record.decode(process.read_file(HOLDER)), token_floor=floor)
        except FileNotFoundError:
            aside = any(".unreadable-" in name for name in process.list_directory(RUN))
            return e.Started(None, unreadable="kept aside" if aside else "", token_floor=floor)
        except record.UnreadableRecord as error:
            process.rename(HOLDER, f"{HOLDER}.unreadable-{self.incarnation}")
            return e.Started(None, unreadable=str(error), token_floor=floor)

    def feed(self, event: e.Event) -> None:
        if self.stopped:
            return
        self.pending.append(event)
        if len(self.pending) > 1:
            return
        world, machine = self.world, self.machine
        while self.pending and not self.stopped:
            event = self.pending[0]
            if world.trace is not None:
                world.say(f"server < {event}")
            for effect in machine.handle(event, e.Time(self.kernel.now, self.kernel.wall_time_s)):
                world.effect_boundary(self)
                if world.trace is not None:
                    world.say(f"server > {effect}")
                action = _DO.get(type(effect))
                if action is not None:
                    action(self, effect)
                if self.stopped:
                    return
            self.pending.popleft()
        self._set_timer()

    def _set_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.machine.deadline < INF:
            self.timer = self.process.after(max(0.0, self.machine.deadline - self.kernel.now), self._tick)

    def _tick(self) -> None:
        self.timer = None
        self.feed(e.Tick())

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_send(self, effect: e.Send) -> None:
        fd = self.conns.get(effect.conn)
        if fd is None:
            return
        if type(effect.message) is m.Granted and effect.message.lock == m.ACTIVE:
            self.world.granting(self, effect)
        elif type(effect.message) is m.Exit:
            self.world.exiting(self)
        passed = [self.processes[p] for p in effect.processes if p in self.processes]
        with contextlib.suppress(BrokenPipeError):  # its end of file is under way
            self.process.send(fd, effect.message, passed)

    def _do_close(self, effect: e.Close) -> None:
        self._drop(effect.conn)

    def _do_watch_death(self, effect: e.WatchDeath) -> None:
        process = effect.process

        def dead(fd: int) -> None:
            self.process.unwatch(fd)
            self.feed(e.Died(process))

        self.process.on_death(self.processes[process], dead)

    def _do_forget(self, effect: e.Forget) -> None:
        fd = self.processes.pop(effect.process, None)
        if fd is not None:
            self.process.close(fd)

    def _do_kill(self, effect: e.Kill) -> None:
        try:
            self.process.pidfd_kill(self.processes[effect.process])
        except OSError as error:
            if error.errno == errno.EINVAL:
                self.pending.append(e.OutOfReach(effect.process))

    def _do_probe_life(self, effect: e.ProbeLife) -> None:
        probe = self._probe(effect.tree)
        self.pending.append(e.LifeProbed(effect.tree, None if probe is None else self.process.is_locked(probe)))

    def _do_probe_strangers(self, effect: e.ProbeStrangers) -> None:
        held: list[str] = []
        free: list[str] = []
        for name in sorted(self._life_files()):
            if name not in effect.known and not name.startswith("."):
                fd = self.process.open(life_file(name))
                (held if self.process.is_locked(fd) else free).append(name)
                self.process.close(fd)
        self.pending.append(e.StrangersProbed(tuple(held), tuple(free)))

    def _life_files(self) -> list[str]:
        try:
            return self.process.list_directory(LIFE)
        except FileNotFoundError:
            return []

    def _do_unlink(self, effect: e.Unlink) -> None:
        probe = self.probes.pop(effect.tree, None)
        if probe is not None:
            self.process.close(probe)
        with contextlib.suppress(FileNotFoundError):
            self.process.unlink(life_file(effect.tree))

    def _do_read_memory(self, effect: e.ReadMemory) -> None:
        devices = {}
        for name, device in self.kernel.devices.items():
            free = self.kernel.read_free_bytes(name)
            if free is None:
                self.pending.append(e.MemoryRead({}, problem="the reader fails"))
                return
            devices[name] = (free, device.capacity)
        self.pending.append(e.MemoryRead(devices))

    def _do_persist(self, effect: e.Persist) -> None:
        if self.replaced():
            self.pending.append(e.DirectoryReplaced("replaced"))
            return
        try:
            self.process.write_durable(HOLDER, record.encode(effect.record))
        except OSError as error:
            self.pending.append(e.PersistFailed(effect.seq, str(error.strerror)))
        else:
            self.pending.append(e.Persisted(effect.seq))

    def _do_note(self, effect: e.Note) -> None:
        self.world.noted(self, effect)

    def _do_stop(self, effect: e.Stop) -> None:
        self.stopped = True
        self.process.exit()

    # -- connections -----------------------------------------------------------------------------------------------

    def replaced(self) -> bool:
        try:
            return self.process.stat(RUN) != self.directory or bool(
                self.socket and self.process.stat(SOCKET) != self.socket
            )
        except FileNotFoundError:
            return True

    def directory_changed(self) -> None:
        if self.directory and not self.stopped and self.replaced():
            self.feed(e.DirectoryReplaced("replaced"))

    def _on_connect(self, listener: int) -> None:
        while (fd := self.process.accept(listener)) is not None:
            self.number += 1
            self.conns[self.number] = fd
            self.by_fd[fd] = self.number
            self.process.on_readable(fd, self._on_ready)

    def _on_ready(self, fd: int) -> None:
        conn = self.by_fd.get(fd)
        if conn is None:
            return
        received, ended = self.process.receive(fd)
        for message, descriptors in received:
            if conn in self.conns:
                self._on_message(conn, fd, message, descriptors)
            else:
                for passed in descriptors:
                    self.process.close(passed)
        if ended and conn in self.conns:
            self._drop(conn)
            self.feed(e.Closed(conn))

    def _on_message(self, conn: int, fd: int, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.Register | m.Join):
            world = self.world
            if world.evidence == "none":
                for passed in descriptors:
                    self.process.close(passed)
                peer = e.Peer(None, "", self.process.peer_pid(fd) or message.pid)
            elif world.evidence == "peer":
                for passed in descriptors:
                    self.process.close(passed)
                peer = self._peer(self.process.peer_pidfd(fd), self.process.peer_pid(fd) or message.pid)
            else:
                peer = self._peer(descriptors[0], self.process.peer_pid(fd) or message.pid)
            held = self._life_held(f"{message.engine_id}.{message.incarnation}", message.life)
            self.feed(e.Received(conn, message, (peer,), held, f"{world.rng.getrandbits(64):016x}"))
        elif descriptors:
            self.feed(e.Received(conn, message, tuple(self._peer(passed, 0) for passed in descriptors)))
        else:
            caller = self.machine.desk.callers.get(conn)
            if caller is not None and caller.tree is not None:
                self.world.heard(caller.tree.name, message)
            self.feed(e.Received(conn, message))

    def _peer(self, pidfd: int, pid: int) -> e.Peer:
        self.number += 1
        self.processes[self.number] = pidfd
        inode = self.process.pidfd_inode(pidfd)
        return e.Peer(
            self.number, f"pidfs:{inode}" if inode is not None else "", pid or max(self.process.pidfd_pid(pidfd), 0)
        )

    def _life_held(self, name: str, inode: tuple[int, int]) -> bool:
        old = self.probes.pop(name, None)
        if old is not None:
            self.process.close(old)
        probe = self._probe(name)
        return probe is not None and self.process.fstat(probe) == inode[1] and self.process.is_locked(probe)

    def _probe(self, name: str) -> int | None:
        fd = self.probes.get(name)
        if fd is None:
            try:
                fd = self.probes[name] = self.process.open(life_file(name))
            except FileNotFoundError:
                return None
        return fd

    def _drop(self, conn: int) -> None:
        fd = self.conns.pop(conn, None)
        if fd is not None:
            del self.by_fd[fd]
            self.process.close(fd)


_DO: dict[type, Callable[[SimServer, Any], None]] = {
    e.Send: SimServer._do_send,
    e.Close: SimServer._do_close,
    e.WatchDeath: SimServer._do_watch_death,
    e.Forget: SimServer._do_forget,
    e.Kill: SimServer._do_kill,
    e.ProbeLife: SimServer._do_probe_life,
    e.ProbeStrangers: SimServer._do_probe_strangers,
    e.Unlink: SimServer._do_unlink,
    e.ReadMemory: SimServer._do_read_memory,
    e.Persist: SimServer._do_persist,
    e.Note: SimServer._do_note,
    e.Stop: SimServer._do_stop,
}


class SimClient:
    """One process's client: the machine, its connection, its life lock. What it does with a grant is told to `on`."""

    def __init__(self, world: "World", process: Process, me: Me, on: Callable[[c.Effect], None]) -> None:
        self.world = world
        self.process = process
        self.machine = ClientMachine(me)
        self.me = me
        self.name = f"{me.engine_id}.{me.incarnation}"
        self.on = on
        self.directory: int | None = None
        self.joined = False
        self.life = 0
        self.life_inode = 0
        self.fd: int | None = None
        self.kept: dict[str, tuple[int, ...]] = {}
        self.arriving: tuple[int, ...] = ()
        self.children: dict[int, int] = {}
        self.pending: deque[c.Event] = deque()
        self.timer: Event | None = None

    def feed(self, event: c.Event) -> None:
        self.pending.append(event)
        if len(self.pending) > 1:
            return
        while self.pending:
            if self.world.trace is not None:
                self.world.say(f"{self.process} < {self.pending[0]}")
            for effect in self.machine.handle(self.pending[0], self.world.kernel.now):
                if self.world.trace is not None:
                    self.world.say(f"{self.process} > {effect}")
                if type(effect) is c.Say:
                    self._say(effect.message)
                elif type(effect) is c.Connect:
                    self.pending.append(self._connect())
                elif isinstance(effect, c.KeepCopies | c.DropCopies):
                    for fd in self.kept.pop(effect.tree, ()):
                        self.process.close(fd)
                    if isinstance(effect, c.KeepCopies):
                        self.kept[effect.tree], self.arriving = self.arriving, ()
                else:
                    if type(effect) is c.Joined:
                        self.directory, self.joined = self.process.stat(RUN), True
                    self.on(effect)
                self.process.must_live()
            self.pending.popleft()
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        if self.machine.deadline < INF:
            self.timer = self.process.after(max(0.0, self.machine.deadline - self.world.kernel.now), self._tick)

    def _tick(self) -> None:
        self.timer = None
        self.feed(c.Tick())

    def _same_directory(self) -> bool:
        try:
            return self.directory is None or self.process.stat(RUN) == self.directory
        except FileNotFoundError:
            return False

    def _connect(self) -> c.Event:
        same = self._same_directory()
        try:
            if self.directory is None:
                self.directory = self.process.stat(RUN)
            self._take_life(same)
            self.fd = self.process.connect(SOCKET)
        except OSError as error:
            if self.life_inode == 0 and error.errno == errno.ENOENT and not self.me.main and same:
                return c.Hopeless("its life file is gone")
            return c.Disconnected(same)
        self.process.on_readable(self.fd, self._on_ready)
        return c.Connected((1, self.life_inode), same)

    def _take_life(self, same: bool) -> None:
        path = life_file(self.name)
        if self.life_inode:
            if same:
                return
            try:
                if self.process.stat(path) == self.life_inode:
                    return
            except FileNotFoundError:
                pass
        if self.me.main or self.joined:
            try:
                fd = self.process.open(path, create=True, exclusive=True)
            except FileExistsError:
                fd = self.process.open(path)
        else:
            fd = self.process.open(path)
        self.process.lock(fd, Lock.READ)
        if self.process.stat(path) != self.process.fstat(fd):
            raise FileNotFoundError(errno.ENOENT, "replaced", path)
        self.life, self.life_inode = fd, self.process.fstat(fd)

    def _say(self, message: m.ClientMessage) -> None:
        if self.fd is None:
            return
        process, own = self.process, -1
        passed: tuple[int, ...] = ()
        if isinstance(message, m.Register | m.Join):
            own = process.pidfd_open(process.pid)
            passed = (own,)
        elif isinstance(message, m.HandBack):
            passed = self.kept[message.tree]
        elif isinstance(message, m.Adopt):
            passed = (self.children[message.child],)
        with contextlib.suppress(BrokenPipeError):  # its end of file is under way
            process.send(self.fd, message, passed)
        if own >= 0:
            process.close(own)

    def _on_ready(self, fd: int) -> None:
        if fd != self.fd:
            return
        received, ended = self.process.receive(fd)
        for message, descriptors in received:
            if type(message) is m.Keep:
                self.arriving = descriptors
            else:
                for passed in descriptors:
                    self.process.close(passed)
            self.feed(c.Heard(message))  # type: ignore[arg-type]
        if ended and self.fd == fd:
            self.process.close(fd)
            self.fd = None
            self.feed(c.Disconnected(self._same_directory()))
