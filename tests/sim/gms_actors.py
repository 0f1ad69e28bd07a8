"""The shells of the simulator for GMS: the real machines of server and client, on the simulated kernel.

`SimGms` does what `gms/shell/server.py` does, and `SimClient` what `gms/client.py` does, with the same order of calls;
between any two effects of the server it may be killed. Who starts them, what goes wrong and what must hold is
`gms_world.py`'s business.
"""

import contextlib
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from gms.rules import client_events as c
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record
from gms.rules.client_machine import ClientMachine, Link
from gms.rules.machine import Machine
from gms.rules.weights import numbers_begin
from sidecar.machine.reconnect import Reconnect
from tests.sim.openfiles import Allocation, Connection
from tests.sim.process import Process
from tests.sim.shell import ServerShell, Shell

if TYPE_CHECKING:
    from tests.sim.gms_world import GmsWorld

RUN = "/run"
SOCKET = "/run/gpu.sock"
FILE = "/run/gpu.json"
DEVICE = "gpu"
TABLES = "the host's memory"
"""Where tables of pools are."""
RETRY_MOST_S = 0.04
"""A client that finds no server tries again so often: as every wait here it is nearer to the others than in truth, and
most of a schedule would be such tries.
"""


def memory(process: Process, fd: int) -> Allocation | None:
    file = process.descriptors.get(fd)
    return file if isinstance(file, Allocation) else None


class SimGms(ServerShell[e.Event, e.Effect]):
    machine: Machine
    tick = e.Tick()

    def __init__(self, world: "GmsWorld") -> None:
        super().__init__(world, world.kernel.spawn("gms"), "gms")
        self.world = world
        self.slabs: dict[int, int] = {}
        """Handle -> descriptor."""
        self.pidfds: dict[int, int] = {}
        self.process_of: dict[int, int] = {}
        """Connection -> handle of its process."""
        self.leased: dict[str, int] = {}
        """What its ledger has for it."""
        self.lease_at: dict[str, float] = {}
        """Region -> when the last wish for it is answered."""
        self.leasing: dict[str, deque[e.Lease]] = {}
        """Region -> its wishes that wait for their turns."""
        self.incarnation = f"{world.rng.getrandbits(32):08x}"
        self.machine = Machine(world.server_config(self.incarnation))

    def start(self) -> None:
        process = self.process
        self.feed(self._read_what_was_left())
        with contextlib.suppress(FileNotFoundError):
            process.unlink(SOCKET)
        process.on_readable(process.listen(SOCKET), self._on_connect)

    def _read_what_was_left(self) -> e.Started:
        floor = numbers_begin(self.kernel.wall_time_s, self.incarnation)
        try:
            file = record.decode(self.process.read_file(FILE))
        except FileNotFoundError:
            return e.Started(None, generation_floor=floor)
        except record.UnreadableRecord as error:
            return e.Started(None, unreadable=str(error), generation_floor=floor)
        owners = [(region.key, region.owner) for region in file.regions if region.owner is not None]
        found = tuple(self._find_owner(key, owner) for key, owner in owners)
        return e.Started(file, generation_floor=floor, owners=found)

    def _find_owner(self, key: str, owner: record.Owner) -> e.FoundOwner:
        try:
            pidfd = self.process.pidfd_open(owner.pid)
        except ProcessLookupError:
            return e.FoundOwner(key, gone=True)
        identity = self._identity(pidfd)
        if owner.identity and identity == owner.identity:
            self.number += 1
            self.pidfds[self.number] = pidfd
            return e.FoundOwner(key, self.number)
        self.process.close(pidfd)
        return e.FoundOwner(key, gone=bool(owner.identity and identity))

    def _identity(self, pidfd: int) -> str:
        inode = self.process.pidfd_inode(pidfd)
        return "" if inode is None else f"pidfs:{inode}"

    def _due(self) -> float:
        return self.machine.deadline

    def _handle(self, event: e.Event) -> Iterable[e.Effect]:
        return self.machine.handle(event, e.Time(self.kernel.now, self.kernel.wall_time_s))

    def _do(self, effect: e.Effect) -> None:
        action = _DO.get(type(effect))
        if action is not None:
            action(self, effect)

    def _at_rest(self) -> None:
        self.world.turn_ended(self)
        super()._at_rest()

    # -- effects ---------------------------------------------------------------------------------------------------

    def _do_send(self, effect: e.Send) -> None:
        fd = self.conns.get(effect.conn)
        if fd is None:
            return
        message: m.ServerMessage = effect.message
        self.world.sending(self, effect.conn, fd, message)
        if isinstance(message, m.Slabs | m.Created | m.PoolIs | m.PoolOwned):
            message = type(message)(**{**_fields(message), "fds": len(effect.slabs)})
        self._send(effect.conn, message, [self.slabs[handle] for handle in effect.slabs])

    def _do_close(self, effect: e.Close) -> None:
        self._drop(effect.conn)

    def _do_watch_death(self, effect: e.WatchDeath) -> None:
        handle = effect.process

        def dead(fd: int) -> None:
            self.process.unwatch(fd)
            self.feed(e.Died(handle))

        self.process.on_death(self.pidfds[handle], dead)

    def _do_forget_process(self, effect: e.ForgetProcess) -> None:
        self.process.close(self.pidfds.pop(effect.process))

    def _do_allocate(self, effect: e.Allocate) -> None:
        made: list[int] = []
        try:
            for size in effect.sizes:
                made.append(self.process.allocate(DEVICE, size))
        except OSError:
            for fd in made:
                self.process.close(fd)
            free = self.kernel.devices[DEVICE].free_bytes
            self.pending.append(e.NotAllocated(effect.conn, sum(effect.sizes), free))
            return
        if effect.table_size:
            made.append(self.process.allocate(TABLES, 1))
        self.pending.append(e.Allocated(effect.conn, tuple(self._slab(fd) for fd in made)))

    def _slab(self, fd: int) -> e.Slab:
        self.number += 1
        self.slabs[self.number] = fd
        return e.Slab(self.number, self.world.identity(memory(self.process, fd)))

    def _do_lease(self, effect: e.Lease) -> None:
        if not effect.wish:
            self.leased[effect.key] = effect.bytes
            return
        rng, now = self.world.rng, self.kernel.now
        turns = self.leasing.setdefault(effect.key, deque())
        if not turns and effect.found and self.leased.get(effect.key, effect.found) != effect.found:
            self.world.fail(f"{effect} is said to be found, and {self.leased} are leased")
        at = max(now + rng.choice((0.0, rng.random() * effect.timeout_s)), self.lease_at.get(effect.key, 0.0))
        if at > now or turns:  # one after the other
            self.lease_at[effect.key] = at + 0.001
            turns.append(effect)
            self.process.after(at - now, lambda: self._lease(turns.popleft(), later=True))
        else:
            self._lease(effect)

    def _lease(self, effect: e.Lease, *, later: bool = False) -> None:
        """What a ledger answers. What was found in use needs no room, and once no fault comes there is room for all."""
        full = effect.bytes > effect.found and self.world.rng.random() < 0.1
        why = "it has no more" if not self.world.calm and (full or self.world.rng.random() < 0.1) else ""
        if not why:
            self.leased[effect.key] = effect.bytes
        answer = e.Leased(effect.wish, why)
        if later:
            self.feed(answer)
        else:
            self.pending.append(answer)

    def _do_forget(self, effect: e.Forget) -> None:
        for handle in effect.slabs:
            self.process.close(self.slabs.pop(handle))

    def _do_check_memory(self, effect: e.CheckMemory) -> None:
        self.pending.append(e.MemoryChecked(self.kernel.devices[DEVICE].free_bytes, self.world.held(effect.identities)))

    def _do_check_peer(self, effect: e.CheckPeer) -> None:
        fd = self.conns.get(effect.conn)
        there = fd is not None and not self._ended(fd)
        handle = self.process_of.get(effect.conn)
        if handle is not None and handle in self.pidfds and self.process.is_dead(self.pidfds[handle]):
            there = False
        self.pending.append(e.PeerChecked(effect.conn, there))

    def _ended(self, fd: int) -> bool:
        file = self.process.descriptors[fd]
        return isinstance(file, Connection) and file.ended

    def _do_persist(self, effect: e.Persist) -> None:
        before = self.world.on_disk()
        try:
            self.process.write_durable(FILE, record.encode(effect.record))
        except OSError as error:
            self.pending.append(e.PersistFailed(effect.seq, str(error.strerror)))
        else:
            self.pending.append(e.Persisted(effect.seq))
        finally:  # it may have been killed in the middle
            self.world.wrote(self, before)

    def _do_note(self, effect: e.Note) -> None:
        self.world.noted(self, effect)

    def _do_stop(self, effect: e.Stop) -> None:
        self._stop()

    # -- connections -----------------------------------------------------------------------------------------------

    def _closed(self, conn: int) -> e.Event:
        return e.Closed(conn)

    def _on_message(self, conn: int, fd: int, message: Any, descriptors: tuple[int, ...]) -> None:
        if isinstance(message, m.Hello):
            for passed in descriptors:
                self.process.close(passed)
            self.number += 1
            pidfd = self.pidfds[self.number] = self.process.peer_pidfd(fd)
            self.process_of[conn] = self.number
            identity, pid = self._identity(pidfd), self.process.peer_pid(fd)
            self.feed(e.Received(conn, message, (), self.number, identity, pid, message.writes_end))
        else:
            self.feed(e.Received(conn, message, tuple(self._slab(passed) for passed in descriptors)))

    def _drop(self, conn: int) -> None:
        self.process_of.pop(conn, None)
        super()._drop(conn)


def _fields(message: Any) -> dict[str, Any]:
    return {name: getattr(message, name) for name in message.__struct_fields__}


_DO: dict[type, Callable[[SimGms, Any], None]] = {
    e.Send: SimGms._do_send,
    e.Close: SimGms._do_close,
    e.WatchDeath: SimGms._do_watch_death,
    e.ForgetProcess: SimGms._do_forget_process,
    e.Allocate: SimGms._do_allocate,
    e.Lease: SimGms._do_lease,
    e.Forget: SimGms._do_forget,
    e.CheckMemory: SimGms._do_check_memory,
    e.CheckPeer: SimGms._do_check_peer,
    e.Persist: SimGms._do_persist,
    e.Note: SimGms._do_note,
    e.Stop: SimGms._do_stop,
}


C = TypeVar("C", bound=ClientMachine)


class SimClient(Shell[c.Event, c.Effect], Generic[C]):
    """One process's client: the machine, its connection, its descriptors. What its program does is told to `on`."""

    machine: C
    tick = c.Tick()

    def __init__(self, world: "GmsWorld", process: Process, machine: C, on: Callable[[c.Effect], None]) -> None:
        super().__init__(world, process, process)
        self.world = world
        self.machine = machine
        machine.reconnect = Reconnect(RETRY_MOST_S)
        self.on = on
        self.fd: int | None = None
        self.kept: dict[int, dict[int, int]] = {}
        """Generation -> slab -> descriptor."""
        self.arriving: tuple[int, ...] = ()

    @property
    def connected(self) -> bool:
        """Its server runs."""
        if self.fd is None:
            return False
        file = self.process.descriptors.get(self.fd)
        return isinstance(file, Connection) and not file.ended

    @property
    def welcome(self) -> bool:
        """And has let it in."""
        return self.connected and self.machine.link is Link.IN

    def _due(self) -> float:
        return self.machine.deadline

    def _handle(self, event: c.Event) -> Iterable[c.Effect]:
        yield from self.machine.handle(event, self.world.kernel.now)
        for fd in self.arriving:  # what wasn't kept
            self.process.close(fd)
        self.arriving = ()

    def _do(self, effect: c.Effect) -> None:
        if type(effect) is c.Say:
            self._say(effect)
        elif type(effect) is c.Connect:
            self.pending.append(self._connect())
        elif type(effect) is c.Keep:
            self._keep(effect)
        elif type(effect) is c.LetGo:
            for fd in self.kept.pop(effect.generation, {}).values():
                self.process.close(fd)
            self.world.letting_go(self.process, effect.generation)
            self.pending.append(m.Dropped(effect.generation))
        else:
            self.on(effect)

    def _keep(self, effect: c.Keep) -> None:
        slabs = self.kept.setdefault(effect.generation, {})
        if effect.first == len(slabs):
            slabs.update(enumerate(self.arriving, effect.first))
            self.arriving = ()  # what it has already comes again, and is closed

    def _connect(self) -> c.Event:
        try:
            self.fd = self.process.connect(SOCKET)
        except OSError:
            return c.Disconnected()
        self.process.on_readable(self.fd, self._on_ready)
        return c.Connected(tuple(self.kept))

    def _say(self, effect: c.Say) -> None:
        if self.fd is None:
            return
        slabs = self.kept.get(effect.generation, {})
        passed = [slabs[number] for number in range(effect.first, effect.first + effect.count)]
        with contextlib.suppress(BrokenPipeError):  # its end of file is under way
            self.process.send(self.fd, effect.message, passed)

    def _on_ready(self, fd: int) -> None:
        if fd != self.fd:
            return
        received, ended = self.process.receive(fd)
        for message, descriptors in received:
            self.arriving = descriptors
            self.feed(c.Heard(message))
        if ended and self.fd == fd:
            self.process.close(fd)
            self.fd = None
            self.feed(c.Disconnected())
