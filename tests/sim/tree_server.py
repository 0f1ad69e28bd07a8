"""The simulator's shell for a server that binds trees: what the real one does (`evidence/shell/shell.py`), on the
simulated kernel, with the same order of calls. Between any two effects it may be killed. The lock's is in `actors.py`,
the ledger's in `vram_actors.py`.
"""

import contextlib
import errno
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any, ClassVar

from msgspec.structs import replace

from evidence.rules import client_events as c
from evidence.rules import events as e
from evidence.rules import messages as m
from sidecar.machine import context
from sidecar.machine.context import Time
from tests.sim.process import Process
from tests.sim.shell import ServerShell
from tests.sim.tree_client import Where, leads

ENDING_S = 1.0
ANOTHER_VERSION = 99


class TreeServer(ServerShell[Any, Any]):
    machine: Any
    tick = context.Tick()
    run: ClassVar[str]
    socket_name: ClassVar[str]
    file: ClassVar[str]
    """Beneath `run`."""
    effects: ClassVar[Mapping[type, Callable[[Any, Any], None]]]

    def __init__(self, world: Any) -> None:
        super().__init__(world, world.kernel.spawn("server", container=world.apart), "server")
        self.where: Where = world
        self.processes: dict[int, int] = {}
        self.met: set[Process] = set()
        self.probes: dict[str, int] = {}
        self.old_probes: dict[str, list[int]] = {}
        self.directory = 0
        self.socket = 0
        self.readings_asked = 0
        self.free_when_read = 0
        """What the newest reading said: memory moves between it and the grant."""
        self.last_read: dict[str, tuple[int, int]] = {}
        self.speaks_another_version = world.rng.random() < world.skew
        self.incarnation = f"{world.rng.getrandbits(32):08x}"
        self.gives_up_at = self.kernel.now + ENDING_S

    # -- the server's own ------------------------------------------------------------------------------------------

    def new_machine(self, config: Any) -> Any:
        raise NotImplementedError

    def what_was_left(self) -> Any:
        """The event with which its machine begins."""
        raise NotImplementedError

    def encode(self, record: Any) -> bytes:
        raise NotImplementedError

    def heard(self, conn: int, message: Any) -> None:
        """A caller says something that isn't about processes."""

    # --------------------------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Raises OSError where the directory can't be used."""
        process, world = self.process, self.where
        self.directory = process.open_directory(self.run)
        lock = process.open(f"{self.run}/server.lock", create=True)
        if not process.try_flock(lock):
            process.close(lock)
            process.close(self.directory)
            if self.kernel.now >= self.gives_up_at:
                process.exit()
            else:
                process.after(0.05, self.start_or_end)
            return
        process.reserve(self.file)
        self.machine = self.new_machine(world.server_config(self.incarnation))
        self.feed(self.what_was_left())
        if self.stopped:
            return
        with contextlib.suppress(FileNotFoundError):
            process.unlink(f"{self.run}/{self.socket_name}")
        listener = process.listen(f"{self.run}/{self.socket_name}")
        self.socket = process.stat(f"{self.run}/{self.socket_name}")
        process.on_readable(listener, self._on_connect)

    @property
    def serves(self) -> bool:
        return self.process.alive and self.socket != 0 and not self.stopped

    def _due(self) -> float:
        due: float = self.machine.deadline
        return due

    def _handle(self, event: Any) -> Iterable[Any]:
        yield from self.machine.handle(event, Time(self.kernel.now, self.kernel.wall_time_s))

    def _do(self, effect: Any) -> None:
        action = self.effects.get(type(effect))
        if action is not None:
            action(self, effect)

    def _do_close(self, effect: context.Close) -> None:
        self._drop(effect.conn)

    def _do_watch_death(self, effect: e.WatchDeath) -> None:
        process = effect.process

        def dead(fd: int) -> None:
            self.process.unwatch(fd)
            self.feed(e.Died(process))

        self.process.on_death(self.processes[process], dead)

    def _do_forget_process(self, effect: e.ForgetProcess) -> None:
        fd = self.processes.pop(effect.process, None)
        if fd is not None:
            self.process.close(fd)

    def _do_kill(self, effect: e.Kill) -> None:
        try:
            self.process.pidfd_kill(self.processes[effect.process])
        except OSError as error:
            if error.errno in (errno.EINVAL, errno.EPERM):
                self.pending.append(e.OutOfReach(effect.process))

    def _do_probe_life(self, effect: e.ProbeLife) -> None:
        probe = self._probe(effect.incarnation)
        held = None if probe is None else self.process.is_locked(probe)
        if any(self.process.is_locked(old) for old in self.old_probes.get(effect.incarnation, ())):
            held = True
        self.pending.append(e.LifeProbed(effect.incarnation, held))

    def _do_probe_strangers(self, effect: e.ProbeStrangers) -> None:
        held: list[str] = []
        free: list[str] = []
        names, unreadable = self._list_or_make()
        for name in names:
            if name not in effect.known:
                fd = self.process.open(f"{self.run}/life/{name}")
                (held if self.process.is_locked(fd) else free).append(name)
                self.process.close(fd)
        self.pending.append(e.StrangersProbed(tuple(held), tuple(free), unreadable))

    def _list_or_make(self) -> tuple[list[str], str]:
        try:
            return sorted(self.process.list_directory(f"{self.run}/life")), ""
        except FileNotFoundError:
            try:
                self.process.mkdir(f"{self.run}/life")
            except OSError as error:
                return [], str(error)
            return [], ""
        except OSError as error:
            return [], str(error)

    def _do_look_up(self, effect: e.LookUp) -> None:
        gone: list[int] = []
        alive: list[tuple[int, e.Peer]] = []
        for number, local_pid, identity in effect.members:
            try:
                pidfd = self.process.pidfd_open(local_pid)
            except ProcessLookupError:
                gone.append(number)
                continue
            peer = self._peer(pidfd, local_pid, local_pid)
            if identity and peer.identity == identity:
                alive.append((number, replace(peer, dead=self.process.is_dead(pidfd))))
                continue
            self._do_forget_process(e.ForgetProcess(self.number))
            if identity and peer.identity:
                gone.append(number)
        self.pending.append(e.LookedUp(effect.incarnation, tuple(gone), tuple(alive)))

    def _do_unlink(self, effect: e.Unlink) -> None:
        self._stop_looking_at(effect.incarnation)
        with contextlib.suppress(OSError):
            self.process.unlink(f"{self.run}/life/{effect.incarnation}")

    def _do_read_memory(self, effect: e.ReadMemory) -> None:
        """In a thread of its own, one reading after the other."""
        self.readings_asked += 1
        if self.readings_asked == 1:
            self.process.after(self.where.rng.random() * 0.002, self._read_memory)

    def _read_memory(self) -> None:
        hangs_s = self.where.reader_hangs_until - self.kernel.now
        if hangs_s > 0:
            if hangs_s < math.inf:
                self.process.after(hangs_s, self._read_memory)
            return
        devices: dict[str, tuple[int, int]] = {}
        reading = e.MemoryRead(devices)
        for name, device in self.kernel.devices.items():
            free = self.kernel.read_free_bytes(name)
            if free is None:
                reading = e.MemoryRead({}, problem="the reader fails")
                break
            devices[name] = (free, device.capacity)
        self.process.after(self.where.rng.random() * 0.0005, lambda: self._memory_was_read(reading))

    def _memory_was_read(self, reading: e.MemoryRead) -> None:
        self.readings_asked -= 1
        if self.readings_asked:
            self.process.after(0.0, self._read_memory)
        self.free_when_read = min((free for free, _ in reading.devices.values()), default=0)
        self.last_read = reading.devices
        self.feed(reading)

    def _do_persist(self, effect: e.Persist) -> None:
        if self.replaced():
            self.pending.append(context.DirectoryReplaced("replaced"))
            return
        try:
            self.process.write_durable(self.file, self.encode(effect.record))
        except OSError as error:
            self.pending.append(context.PersistFailed(effect.seq, str(error.strerror)))
        else:
            self.pending.append(context.Persisted(effect.seq))

    def _at_rest(self) -> None:
        super()._at_rest()
        if not self.machine.disk.failing:
            self.where.met |= self.met  # what it has learned of a holder is in its file by now

    def _do_note(self, effect: context.Note) -> None:
        self.where.noted(self, effect)

    def _do_stop(self, effect: context.Stop) -> None:
        self._stop()

    def process_behind(self, number: int) -> Process:
        """In the truth."""
        return self.process.behind(self.processes[number])

    def life_is_locked(self, name: str) -> bool:
        """In the truth."""
        return name in self.probes and self.process.is_locked(self.probes[name])

    def replaced(self) -> bool:
        """Who comes anew doesn't come here."""
        process = self.process
        try:
            if self.socket and process.stat(f"{self.run}/{self.socket_name}") != self.socket:
                return True
        except PermissionError:
            pass
        except OSError:
            return True
        return leads(process, self.run, self.directory) in (c.There.ANOTHER, c.There.NO_SERVER)

    def path_changed(self) -> None:
        """The kernel says that the path may lead elsewhere."""
        if self.socket and not self.stopped and self.replaced():
            self.feed(context.DirectoryReplaced("replaced"))

    def _closed(self, conn: int) -> Any:
        return context.Closed(conn)

    def _on_message(self, conn: int, fd: int, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.Introduction):
            self._on_introduction(conn, fd, message, descriptors)
        elif descriptors:
            dead = [self.process.is_dead(passed) for passed in descriptors]
            peers = [
                replace(self._peer(passed, 0, 0), dead=gone) for passed, gone in zip(descriptors, dead, strict=True)
            ]
            self.feed(e.Received(conn, message, tuple(peers)))
        else:
            self.heard(conn, message)
            self.feed(e.Received(conn, message))

    def _on_introduction(self, conn: int, fd: int, message: m.Introduction, descriptors: tuple[int, ...]) -> None:
        world, process = self.where, self.process
        pid = process.peer_pid(fd)
        if world.evidence == "sent":
            peer = self._peer(descriptors[0], pid or message.pid, pid)
        else:
            for passed in descriptors:
                process.close(passed)
            if world.evidence == "none":
                peer = e.Peer(None, "", pid or message.pid, pid)
            else:
                peer = self._peer(process.peer_pidfd(fd), pid or message.pid, pid)
        held = self._life_held(f"{message.engine_id}.{message.incarnation}", message.life)
        if self.speaks_another_version:
            message = replace(message, protocol=ANOTHER_VERSION, newest=ANOTHER_VERSION)
        self.feed(e.Received(conn, message, (peer,), held, f"{world.rng.getrandbits(64):016x}"))
        if not self.machine.reception.knows(f"{message.engine_id}.{message.incarnation}"):
            self._stop_looking_at(f"{message.engine_id}.{message.incarnation}")

    def _peer(self, pidfd: int, pid: int, local_pid: int) -> e.Peer:
        self.number += 1
        self.processes[self.number] = pidfd
        self.met.add(self.process_behind(self.number))
        inode, found = self.process.pidfd_inode(pidfd), max(self.process.pidfd_pid(pidfd), 0)
        identity = f"pidfs:{inode}" if inode is not None else ""
        return e.Peer(self.number, identity, pid or found, local_pid or found)

    def _life_held(self, name: str, inode: tuple[int, int]) -> bool:
        process, old = self.process, self.probes.get(name)
        try:
            new = process.open(f"{self.run}/life/{name}")
        except OSError:
            return False
        if process.fstat(new) != inode[1] or not process.is_locked(new):
            process.close(new)
            return False
        if old is not None and process.fstat(old) != inode[1] and process.is_locked(old):
            self.old_probes.setdefault(name, []).append(old)
        elif old is not None:
            process.close(old)
        self.probes[name] = new
        return True

    def _stop_looking_at(self, name: str) -> None:
        for probe in (*self.old_probes.pop(name, ()), *((self.probes.pop(name),) if name in self.probes else ())):
            self.process.close(probe)

    def _probe(self, name: str) -> int | None:
        fd = self.probes.get(name)
        if fd is None:
            try:
                fd = self.probes[name] = self.process.open(f"{self.run}/life/{name}")
            except OSError:
                return None
        return fd


TreeServer.effects = {
    context.Close: TreeServer._do_close,
    e.WatchDeath: TreeServer._do_watch_death,
    e.ForgetProcess: TreeServer._do_forget_process,
    e.Kill: TreeServer._do_kill,
    e.ProbeLife: TreeServer._do_probe_life,
    e.ProbeStrangers: TreeServer._do_probe_strangers,
    e.LookUp: TreeServer._do_look_up,
    e.Unlink: TreeServer._do_unlink,
    e.ReadMemory: TreeServer._do_read_memory,
    e.Persist: TreeServer._do_persist,
    context.Note: TreeServer._do_note,
    context.Stop: TreeServer._do_stop,
}
