"""The shells of the simulator: the real machines of server and client, on the simulated kernel.

`SimServer` does what `lockserver/shell/server.py` does, and `SimClient` what `evidence/shell/session.py` and
`lockserver/shell/session.py` do, with the same order of calls; between any two effects of the server it may be killed.
Who starts them, what goes wrong and what must hold is `world.py`'s business.
"""

import contextlib
import errno
import math
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from evidence.rules.standing import Link, Me
from lockserver.rules import client_events as c
from lockserver.rules import events as e
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.client_machine import ClientMachine
from lockserver.rules.machine import Machine
from tests.sim.files import Lock
from tests.sim.process import Process
from tests.sim.shell import INF, ServerShell, Shell

if TYPE_CHECKING:
    from tests.sim.world import World

RUN = "/srv/link/pair"
"""A path with everything in it that can be changed: a directory above, a symlink, and a place to mount something on."""
SOCKET = "lock.sock"
LIFE = f"{RUN}/life"
HOLDER = f"{RUN}/holder.json"
SERVER_LOCK = f"{RUN}/server.lock"
ENDING_S = 1.0
ANOTHER_VERSION = 99
_NOBODY = (errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.ECONNREFUSED)


class SimServer(ServerShell[e.Event, e.Effect]):
    machine: Machine
    tick = e.Tick()

    def __init__(self, world: "World") -> None:
        super().__init__(world, world.kernel.spawn("server", container=world.apart), "server")
        self.world = world
        self.processes: dict[int, int] = {}
        self.met: set[Process] = set()
        self.probes: dict[str, int] = {}
        self.old_probes: dict[str, list[int]] = {}
        self.names: dict[str, int] = {}
        self.directory = 0
        self.socket = 0
        self.readings_asked = 0
        self.free_when_read = 0
        """What the newest reading said: memory moves between it and the grant."""
        self.speaks_another_version = world.rng.random() < world.skew
        self.incarnation = f"{world.rng.getrandbits(32):08x}"
        self.gives_up_at = self.kernel.now + ENDING_S

    def start(self) -> None:
        """Raises OSError where the directory can't be used."""
        process, world = self.process, self.world
        self.directory = process.open_directory(RUN)
        lock = process.open(SERVER_LOCK, create=True)
        if not process.try_flock(lock):
            process.close(lock)
            process.close(self.directory)
            if self.kernel.now >= self.gives_up_at:
                process.exit()
            else:
                process.after(0.05, self.start_or_end)
            return
        process.reserve(HOLDER)
        self.machine = Machine(world.server_config(self.incarnation))
        self.feed(self._read_what_was_left())
        if self.stopped:
            return
        with contextlib.suppress(FileNotFoundError):
            process.unlink(f"{RUN}/{SOCKET}")
        listener = process.listen(f"{RUN}/{SOCKET}")
        self.socket = process.stat(f"{RUN}/{SOCKET}")
        process.on_readable(listener, self._on_connect)

    @property
    def serves(self) -> bool:
        return self.process.alive and self.socket != 0 and not self.stopped

    def _read_what_was_left(self) -> e.Started:
        process, floor = self.process, int(self.kernel.wall_time_s * 1000)
        try:
            return e.Started(record.decode(process.read_file(HOLDER)), token_floor=floor)
        except FileNotFoundError:
            aside = any(".unreadable-" in name for name in process.list_directory(RUN))
            return e.Started(None, unreadable="kept aside" if aside else "", token_floor=floor)
        except record.UnreadableRecord as error:
            process.rename(HOLDER, f"{HOLDER}.unreadable-{self.incarnation}")
            return e.Started(None, unreadable=str(error), token_floor=floor)

    def _handle(self, event: e.Event) -> Iterable[e.Effect]:
        return self.machine.handle(event, e.Time(self.kernel.now, self.kernel.wall_time_s))

    def _do(self, effect: e.Effect) -> None:
        action = _DO.get(type(effect))
        if action is not None:
            action(self, effect)

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_send(self, effect: e.Send) -> None:
        if effect.conn not in self.conns:
            return
        message = effect.message
        if isinstance(message, m.Granted) and message.lock == m.ACTIVE:
            self.world.granting(self, effect.conn)
        elif isinstance(message, m.Welcome) and m.ACTIVE in message.holds:
            self.world.granting(self, effect.conn, back=True)
        elif type(message) is m.Exit:
            self.world.exiting(self)
        passed = [self.processes[p] for p in effect.processes if p in self.processes]
        if effect.names:
            passed = list(self.names.values())
        self._send(effect.conn, message, passed)
        if isinstance(message, m.Keep):
            unread = [sent for fd in self.conns.values() for sent in self.process.unread(fd)]
            self.world.copies_sent(sum(len(sent.passed) for sent in unread if isinstance(sent.message, m.Keep)))

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
                fd = self.process.open(f"{LIFE}/{name}")
                (held if self.process.is_locked(fd) else free).append(name)
                self.process.close(fd)
        self.pending.append(e.StrangersProbed(tuple(held), tuple(free), unreadable))

    def _list_or_make(self) -> tuple[list[str], str]:
        try:
            return sorted(self.process.list_directory(LIFE)), ""
        except FileNotFoundError:
            try:
                self.process.mkdir(LIFE)
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
            self._do_forget(e.Forget(self.number))
            if identity and peer.identity:
                gone.append(number)
        self.pending.append(e.LookedUp(effect.incarnation, tuple(gone), tuple(alive)))

    def _do_look_at(self, effect: e.LookAt) -> None:
        """In a thread of its own; where /proc hangs no answer comes."""
        seen = tuple((number, "lives") for number in effect.processes)
        if self.world.rng.random() < 0.8:
            answer = e.LookedAt(effect.incarnation, seen, ("somebody",) if effect.life else ())
            self.process.after(self.world.rng.random() * 0.05, lambda: self.feed(answer))

    def _do_take_names(self, effect: e.TakeNames) -> None:
        paths = dict.fromkeys((RUN, self.process.files.real_path(RUN)))
        missing: list[tuple[str, str]] = []
        for name in (*(f"lock {path}" for path in paths), *(f"device {device}" for device in effect.devices)):
            if name not in self.names:
                try:
                    self.names[name] = self.process.listen_abstract(name)
                except OSError:
                    missing.append((name, "somebody"))
        self.pending.append(e.NamesTaken(tuple(missing)))

    def _do_unlink(self, effect: e.Unlink) -> None:
        self._stop_looking_at(effect.incarnation)
        with contextlib.suppress(OSError):
            self.process.unlink(f"{LIFE}/{effect.incarnation}")

    def _do_read_memory(self, effect: e.ReadMemory) -> None:
        """In a thread of its own, one reading after the other."""
        self.readings_asked += 1
        if self.readings_asked == 1:
            self.process.after(self.world.rng.random() * 0.002, self._read_memory)

    def _read_memory(self) -> None:
        hangs_s = self.world.reader_hangs_until - self.kernel.now
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
        self.process.after(self.world.rng.random() * 0.0005, lambda: self._memory_was_read(reading))

    def _memory_was_read(self, reading: e.MemoryRead) -> None:
        self.readings_asked -= 1
        if self.readings_asked:
            self.process.after(0.0, self._read_memory)
        self.free_when_read = min((free for free, _ in reading.devices.values()), default=0)
        self.feed(reading)

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
        self._stop()

    def holder_on_disk(self) -> tuple[str, int] | None:
        """In the truth: who stands in this server's file, and with which token."""
        file = self.process.directory_inode(self.directory).entries.get("holder.json")
        try:
            active = record.decode(file.data).active if file is not None else None
        except record.UnreadableRecord:
            return None
        return (active.life_file, active.token) if active is not None else None

    def process_behind(self, number: int) -> Process:
        """In the truth."""
        return self.process.behind(self.processes[number])

    def life_is_locked(self, name: str) -> bool:
        """In the truth."""
        return name in self.probes and self.process.is_locked(self.probes[name])

    # -- connections -----------------------------------------------------------------------------------------------

    def replaced(self) -> bool:
        """Who comes anew doesn't come here."""
        process = self.process
        try:
            if self.socket and process.stat(f"{RUN}/{SOCKET}") != self.socket:
                return True
        except PermissionError:
            pass
        except OSError:
            return True
        return leads(process, self.directory) in (c.There.ANOTHER, c.There.NOBODY)

    def path_changed(self) -> None:
        """The kernel says that the path may lead elsewhere."""
        if self.socket and not self.stopped and self.replaced():
            self.feed(e.DirectoryReplaced("replaced"))

    def _closed(self, conn: int) -> e.Event:
        return e.Closed(conn)

    def _on_message(self, conn: int, fd: int, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.Register | m.Join):
            self._on_introduction(conn, fd, message, descriptors)
        elif descriptors:
            dead = [self.process.is_dead(passed) for passed in descriptors]
            peers = [
                replace(self._peer(passed, 0, 0), dead=gone) for passed, gone in zip(descriptors, dead, strict=True)
            ]
            self.feed(e.Received(conn, message, tuple(peers)))
        else:
            caller = self.machine.callers.by_conn.get(conn)
            if caller is not None and caller.incarnation is not None:
                self.world.heard(caller.incarnation.name, message)
            self.feed(e.Received(conn, message))

    def _on_introduction(self, conn: int, fd: int, message: m.Register | m.Join, descriptors: tuple[int, ...]) -> None:
        world, process = self.world, self.process
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
        for met in (self.met, self.world.met):
            met.add(self.process_behind(self.number))
        inode, found = self.process.pidfd_inode(pidfd), max(self.process.pidfd_pid(pidfd), 0)
        identity = f"pidfs:{inode}" if inode is not None else ""
        return e.Peer(self.number, identity, pid or found, local_pid or found)

    def _life_held(self, name: str, inode: tuple[int, int]) -> bool:
        process, old = self.process, self.probes.get(name)
        try:
            new = process.open(f"{LIFE}/{name}")
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
                fd = self.probes[name] = self.process.open(f"{LIFE}/{name}")
            except OSError:
                return None
        return fd


_DO: dict[type, Callable[[SimServer, Any], None]] = {
    e.Send: SimServer._do_send,
    e.Close: SimServer._do_close,
    e.WatchDeath: SimServer._do_watch_death,
    e.Forget: SimServer._do_forget,
    e.Kill: SimServer._do_kill,
    e.ProbeLife: SimServer._do_probe_life,
    e.ProbeStrangers: SimServer._do_probe_strangers,
    e.LookUp: SimServer._do_look_up,
    e.LookAt: SimServer._do_look_at,
    e.TakeNames: SimServer._do_take_names,
    e.Unlink: SimServer._do_unlink,
    e.ReadMemory: SimServer._do_read_memory,
    e.Persist: SimServer._do_persist,
    e.Note: SimServer._do_note,
    e.Stop: SimServer._do_stop,
}


def leads(process: Process, directory: int) -> c.There | None:
    """Where the run directory's path leads now, as seen by somebody who has been there. None: it can't be looked at."""
    try:
        there = process.stat(RUN)
    except OSError as error:
        return c.There.NOBODY if error.errno in _NOBODY else None
    return c.There.SAME if there == process.fstat(directory) else c.There.ANOTHER


class _LifeFileGone(Exception):
    """Its engine's end was proven, or the engine is elsewhere."""


class SimClient(Shell[c.Event, c.Effect]):
    """One process's client: the machine, its connection, its life lock. What it does with a grant is told to `on`."""

    machine: ClientMachine
    tick = c.Tick()

    def __init__(self, world: "World", process: Process, me: Me, on: Callable[[c.Effect], None]) -> None:
        super().__init__(world, process, process)
        self.world = world
        self.machine = ClientMachine(me)
        self.me = me
        self.name = f"{me.engine_id}.{me.incarnation}"
        self.on = on
        self.directory: int | None = None
        """The one that is its own: its server has welcomed this process."""
        self.there: int | None = None
        """The one whose server is at the other end of the connection."""
        self.joined = False
        self.life: int | None = None
        self.lives: list[tuple[int, int | None]] = []
        """Every life file that it has had, and where it is mapped."""
        self.ever_held = False
        self.fd: int | None = None
        self.kept: dict[str, dict[int, int]] = {}
        self.names: list[int] = []
        self.arriving: tuple[int, ...] = ()
        self.children: dict[int, int] = {}
        self.missed_a_question = False
        """Whether its engine can wake: something was raised before it could answer."""

    def _handle(self, event: c.Event) -> Iterable[c.Effect]:
        return self.machine.handle(event, self.world.kernel.now)

    def _is_left_undone(self, effect: c.Effect) -> bool:
        """The connection is made anew: what was said or heard may be half."""
        if not isinstance(effect, _MAY_RAISE) or not self.world.leaves_undone():
            return False
        self.missed_a_question |= isinstance(effect, c.Check)
        self._hang_up()
        self.pending.append(self._disconnected())
        return True

    def _due(self) -> float:
        if self.machine.standing.link is Link.IN and not self.world.directory_lost:
            return INF  # all that is due is a look at the path, which leads where it led
        return super()._due()

    def look_now_and_then(self) -> None:
        """The path has changed for the first time."""
        if not self.pending and self.process.alive:
            self._set_timer()

    def _do(self, effect: c.Effect) -> None:
        kind = type(effect)
        if isinstance(effect, c.Say):
            self._say(effect.message)
        elif kind is c.Connect:
            self.pending.append(self._connect())
        elif kind is c.LookAtPath:
            self.pending.append(self._path_seen())
        elif isinstance(effect, c.KeepCopies):
            if not effect.more:
                self._drop_copies(effect.tree, None)
            self.kept.setdefault(effect.tree, {}).update(zip(effect.numbers, self.arriving, strict=True))
            self.arriving = ()
        elif isinstance(effect, c.DropCopies):
            self._drop_copies(effect.tree, effect.numbers)
        elif kind is c.KeepNames:
            self.names += self.arriving
            self.arriving = ()
        elif kind is c.HangUp:
            self._hang_up()
        else:
            if kind is c.Joined:
                self.joined = True
                self._settle_in()
            self.on(effect)

    def _drop_copies(self, tree: str, numbers: list[int] | None) -> None:
        copies = self.kept.setdefault(tree, {})
        for number in list(copies) if numbers is None else numbers:
            if number in copies:
                self.process.close(copies.pop(number))

    # -- the connection --------------------------------------------------------------------------------------------

    def _connect(self) -> c.Event:
        process = self.process
        try:
            there = process.open_directory(RUN)
        except OSError as error:
            return c.Disconnected(c.There.NOBODY if error.errno in _NOBODY else c.There.ANOTHER)
        same = self.directory is None or process.fstat(self.directory) == process.fstat(there)
        try:
            self._take_life(there)
            fd = process.connect(SOCKET, at=there)
        except _LifeFileGone:
            process.close(there)
            if same and not self.me.main and not self.joined:
                return c.Hopeless("its life file is gone")
            return c.Disconnected(c.There.SAME if same else c.There.ANOTHER)
        except OSError as error:
            process.close(there)
            nobody = error.errno in _NOBODY
            return c.Disconnected(c.There.NOBODY if nobody else c.There.SAME if same else c.There.ANOTHER)
        self._leave_there()
        self.there, self.fd = there, fd
        process.on_readable(fd, self._on_ready)
        assert self.life is not None
        life = (1, process.fstat(self.life))
        return c.Connected(life, self.world.maps, c.There.SAME if same else c.There.ANOTHER)

    def _leave_there(self) -> None:
        if self.there is not None and self.there != self.directory:
            self.process.close(self.there)
        self.there = None

    def _settle_in(self) -> None:
        if self.there is not None and self.there != self.directory:
            if self.directory is not None:
                self.process.close(self.directory)
            self.directory = self.there

    def _take_life(self, there: int) -> None:
        process, path = self.process, f"life/{self.name}"
        if self.life is not None:
            with contextlib.suppress(OSError):
                if process.stat(path, at=there) == process.fstat(self.life):
                    return
        if self.me.main or self.joined:
            with contextlib.suppress(OSError):
                process.mkdir("life", at=there)
            try:
                fd = process.open(path, create=True, exclusive=True, at=there)
            except FileExistsError:
                fd = process.open(path, at=there)
            except FileNotFoundError:
                raise _LifeFileGone from None
        else:
            try:
                fd = process.open(path, at=there)
            except FileNotFoundError:
                raise _LifeFileGone from None
        process.lock(fd, Lock.READ)
        self.lives.append((fd, process.map(fd) if self.world.maps else None))
        self.life = fd  # an older one stays open

    def path_changed(self) -> None:
        """The kernel says that the path may lead elsewhere."""
        if self.fd is not None and self.me.main and self.joined:
            self.feed(self._path_seen())

    def _path_seen(self) -> c.Event:
        there = self.there if self.there is not None else self.directory
        return c.PathSeen(there is not None and leads(self.process, there) is c.There.ANOTHER)

    def _disconnected(self) -> c.Event:
        there = leads(self.process, self.directory) if self.directory is not None else c.There.SAME
        return c.Disconnected(there or c.There.ANOTHER)

    def _hang_up(self) -> None:
        if self.fd is not None:
            self.process.close(self.fd)
            self.fd = None

    def close(self) -> None:
        """`LockClient.close()`: whatever it may hold it holds until it ends."""
        self._hang_up()
        self.stopped = True
        for fd, mapping in [] if self.ever_held else self.lives:
            if mapping is not None:
                self.process.unmap(mapping)
            self.process.close(fd)
        for fd in (fd for copies in self.kept.values() for fd in copies.values()):
            self.process.close(fd)
        self.kept.clear()
        self.pending.clear()
        self._set_timer()

    def _say(self, message: m.ClientMessage) -> None:
        if self.fd is None:
            return
        process, own = self.process, -1
        passed: tuple[int, ...] = ()
        if isinstance(message, m.Register | m.Join):
            own = process.pidfd_open(process.pid)
            passed = (own,)
        elif isinstance(message, m.HandBack):
            kept = self.kept.get(message.tree, {})
            message = replace(message, numbers=[number for number in message.numbers if number in kept])
            passed = tuple(kept[number] for number in message.numbers)
        elif isinstance(message, m.Vouch):
            passed = (self.children[message.child],)
        with contextlib.suppress(BrokenPipeError):  # its end of file is under way
            process.send(self.fd, message, passed)
        if own >= 0:
            process.close(own)

    def _on_ready(self, fd: int) -> None:
        if fd != self.fd:
            return
        received, ended = self.process.receive(fd)
        for message, self.arriving in received:
            if self.fd == fd:
                self.feed(c.Heard(message))
            for passed in self.arriving:
                self.process.close(passed)
            self.arriving = ()
        if ended and self.fd == fd:
            self._hang_up()
            self.feed(self._disconnected())


_MAY_RAISE = (c.Connect, c.Say, c.LookAtPath, c.KeepCopies, c.KeepNames, c.Check)
