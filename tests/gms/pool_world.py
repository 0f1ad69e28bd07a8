"""Pools in a world of chance: the server's machine and the clients' machines, with a kernel, a disk and a lock that are
a few lines each. Messages cross in any order but that of their own connection; the server and the processes are killed
between any two of them. What must hold is checked whenever somebody begins to write.
"""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

import msgspec

from gms.rules import client_events as c
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record as r
from gms.rules.machine import Machine
from gms.rules.pool_client_machine import PoolClientMachine
from gms.rules.region_client import Link
from sidecar.machine.context import Time

CAPACITY = 300
SHAPES = (m.Shape("a", (60, 40), 4096), m.Shape("b", (60, 40), 4096), m.Shape("a", (50,), 4096))
KEY = "kv"


def claim(shape: m.Shape, token: int, proven: bool, replace: bool, timeout_s: float) -> m.ClaimPool:
    return m.ClaimPool(shape.digest, list(shape.sizes), shape.table_size, token, proven, timeout_s, replace)


class Violation(Exception):
    """What must not happen, with the seed."""


@dataclass
class Process:
    world: "World"
    number: int
    machine: PoolClientMachine = field(init=False)
    has_io_uring: bool = field(init=False)
    """What it reads arrives after its end."""
    alive: bool = True
    conn: int = 0
    memory: dict[int, tuple[str, ...]] = field(default_factory=dict)
    """Generation -> what its descriptors are."""
    mapped: tuple[str, ...] = ()
    """What it may write."""
    grant: tuple[int, bool] | None = None
    """The token, and whether the grant was proven; while it has the lock."""
    claims: bool = False
    releasing: bool = False
    refused: str = ""

    def __post_init__(self) -> None:
        self.has_io_uring = self.world.rng.random() < 0.2
        self.machine = PoolClientMachine(f"e{self.number}", self.number, KEY, writes_end=not self.has_io_uring)

    def feed(self, event: c.Event) -> None:
        events = deque([event])
        while events and self.alive:
            for effect in self.machine.handle(events.popleft(), self.world.now):
                self._do(effect, events)

    def _do(self, effect: c.Effect, events: deque[c.Event]) -> None:
        world = self.world
        if isinstance(effect, c.Connect):
            if world.connect(self):
                events.append(c.Connected(tuple(self.memory)))
            else:
                events.append(c.Disconnected())
        elif isinstance(effect, c.Say):
            world.to_server(self, effect.message, self.memory.get(effect.generation, ())[: effect.count])
        elif isinstance(effect, c.Keep):
            self.memory[effect.generation] = world.arriving
        elif isinstance(effect, c.LetGo):
            self.memory.pop(effect.generation, None)
            events.append(m.Dropped(effect.generation))
        elif isinstance(effect, c.Owned):
            self.claims = False
            if effect.generation not in self.memory:
                world.fail(f"e{self.number} is given memory {effect.generation}, and has no descriptors of it")
            self.mapped = self.memory[effect.generation]
            world.why_empty[effect.why_empty] += 1
            world.begins_to_write(self, adopted=effect.adopted)
        elif isinstance(effect, c.No):
            self.claims, self.refused = False, f"{effect.reason}: {effect.why}"
        elif isinstance(effect, m.PoolReleased):
            self.releasing = False


class World:
    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.rng = random.Random(seed)
        self.now = 100.0
        self.processes: list[Process] = []
        self.machine: Machine | None = None
        self.handles: dict[int, str] = {}
        """The memory of each of the server's descriptors."""
        self.disk = b""
        self.disk_fails = False
        self.knows_processes = self.rng.random() < 0.8
        """The kernel has names for processes; else a new server can't look for the owner."""
        self.lock_lies = self.rng.random() < 0.5
        """It says that every grant is proven. The server's own knowledge has to be enough then."""
        self.newest = 0
        """Token with which anybody began to write."""
        self.late: set[str] = set()
        """Memory into which io_uring still reads for a process that has ended or released it."""
        self.inbound: dict[int, deque[tuple[m.ClientMessage, tuple[str, ...]]]] = {}
        self.outbound: dict[int, deque[tuple[m.ServerMessage, tuple[str, ...]]]] = {}
        self.of_conn: dict[int, Process] = {}
        self.deaths: list[Process] = []
        self.watched: dict[int, Process] = {}
        """Handles of the server's pidfds."""
        self.arriving: tuple[str, ...] = ()
        self.token = 0
        self.last = 0
        self.grants = self.adoptions = 0
        self.why_empty: Counter[str] = Counter()
        self.calm = False
        self.start_server()

    def fail(self, what: str) -> None:
        raise Violation(f"seed {self.seed}, at {self.now:.3f}: {what}")

    def number(self) -> int:
        self.last += 1
        return self.last

    # -- the server ------------------------------------------------------------------------------------------------

    def start_server(self) -> None:
        config = e.Config(device="host:0", server_incarnation=str(self.number()), boot_id="boot", capacity=CAPACITY)
        self.machine = Machine(config)
        record = r.decode(self.disk) if self.disk else None
        owners = []
        for pool in record.regions if record is not None else ():
            if pool.owner is None:
                continue
            process = self.processes[int(pool.owner.identity or pool.owner.name.split()[0][1:])]
            if not self.knows_processes:
                owners.append(e.FoundOwner(KEY))
            elif process.alive:
                handle = self.number()
                self.watched[handle] = process
                owners.append(e.FoundOwner(KEY, handle))
            else:
                owners.append(e.FoundOwner(KEY, gone=True))
        self.feed(e.Started(record, generation_floor=int(self.now * 1000), owners=tuple(owners)))
        self.feed(e.Received(-1, m.Observe(protocol=m.PROTOCOL)))

    def kill_server(self) -> None:
        self.machine = None
        self.handles.clear()
        self.watched.clear()
        self.inbound.clear()
        for conn in list(self.of_conn):
            self.outbound[conn].append((m.Pong(server_incarnation="gone"), ()))  # an end of file, after all the rest

    def feed(self, event: e.Event) -> None:
        events = deque([event])
        while events and self.machine is not None:
            for effect in self.machine.handle(events.popleft(), Time(self.now, self.now)):
                self._do(effect, events)
                # Often between what is on disk and the word about it.
                if self.rng.random() < (0.4 if isinstance(effect, e.Persist) else 0.002) and not self.calm:
                    self.kill_server()
                    return
        machine = self.machine
        if machine is None:
            return
        if machine.device.why_closed:
            self.fail(machine.device.why_closed)
        if {slab.handle for slab in machine.slabs} != set(self.handles):
            self.fail(f"the server has descriptors {sorted(self.handles)}; its machine knows others")

    def _do(self, effect: e.Effect, events: deque[e.Event]) -> None:
        if isinstance(effect, e.Send):
            if effect.conn in self.outbound:
                came = tuple(self.handles[handle] for handle in effect.slabs)
                self.outbound[effect.conn].append((effect.message, came))
        elif isinstance(effect, e.Close):
            if effect.conn in self.outbound:
                self.outbound[effect.conn].append((m.Pong(server_incarnation="gone"), ()))
                self.inbound.pop(effect.conn, None)
        elif isinstance(effect, e.ForgetProcess):
            if self.watched.pop(effect.process, None) is None:
                self.fail("a pidfd is forgotten twice")
        elif isinstance(effect, e.Allocate):
            needed = sum(effect.sizes)
            free = CAPACITY - sum(int(each.split(":")[1]) for each in self.living() if each.startswith("range"))
            if needed > free:
                events.append(e.NotAllocated(effect.conn, needed, free))
                return
            names = [f"range:{size}:{self.number()}" for size in effect.sizes] + [f"table:0:{self.number()}"]
            slabs = tuple(e.Slab(self.number(), name) for name in names)
            self.handles |= {slab.handle: slab.identity for slab in slabs}
            events.append(e.Allocated(effect.conn, slabs))
        elif isinstance(effect, e.Persist):
            if self.disk_fails:
                events.append(e.PersistFailed(effect.seq, "full"))
            else:
                self.disk = r.encode(effect.record)
                events.append(e.Persisted(effect.seq))
        elif isinstance(effect, e.Forget):
            for handle in effect.slabs:
                del self.handles[handle]

    def living(self) -> set[str]:
        """Memory of which anybody has a descriptor, or a mapping."""
        alive = [process for process in self.processes if process.alive]
        here = set(self.handles.values())
        for process in alive:
            here |= set(process.mapped).union(*process.memory.values())
        for queue in self.outbound.values():
            here = here.union(*(came for _, came in queue))
        for said in self.inbound.values():
            here = here.union(*(brought for _, brought in said))
        return here

    # -- connections -----------------------------------------------------------------------------------------------

    def connect(self, process: Process) -> bool:
        if self.machine is None:
            return False
        conn = process.conn = self.number()
        self.of_conn[conn] = process
        self.inbound[conn], self.outbound[conn] = deque(), deque()
        return True

    def to_server(self, process: Process, message: m.ClientMessage, brought: tuple[str, ...]) -> None:
        if process.conn in self.inbound:
            self.inbound[process.conn].append((message, brought))

    def deliver_to_server(self, conn: int) -> None:
        message, brought = self.inbound[conn].popleft()
        process = self.of_conn[conn]
        slabs = tuple(e.Slab(self.number(), name) for name in brought)
        self.handles |= {slab.handle: slab.identity for slab in slabs}
        if isinstance(message, m.Hello):
            handle = self.number()
            self.watched[handle] = process
            identity = str(process.number) if self.knows_processes else ""
            self.feed(e.Received(conn, message, (), handle, identity, process.number, writes_end=message.writes_end))
        else:
            self.feed(e.Received(conn, message, slabs))

    def deliver_to_client(self, conn: int) -> None:
        message, came = self.outbound[conn].popleft()
        process = self.of_conn[conn]
        if isinstance(message, m.Pong):
            self.hang_up(conn)
            if process.conn == conn:
                process.feed(c.Disconnected())
        elif process.conn == conn:
            self.arriving = came
            process.feed(c.Heard(msgspec.structs.replace(message, fds=len(came))))

    def hang_up(self, conn: int) -> None:
        self.outbound.pop(conn, None)
        self.of_conn.pop(conn, None)
        if self.inbound.pop(conn, None) is not None:
            self.feed(e.Closed(conn))

    # -- what happens ----------------------------------------------------------------------------------------------

    def step(self) -> None:
        rng = self.rng
        self.now += rng.choice((0.0001, 0.001, 0.01) if self.calm else (0.0001, 0.001, 0.01, 0.3))
        if rng.random() < 0.01 and not self.calm:
            self.now += 40.0
        queues = [(conn, True) for conn, queue in self.inbound.items() if queue and self.machine is not None]
        queues += [(conn, False) for conn, queue in self.outbound.items() if queue and self.of_conn[conn].alive]
        kind = rng.random()
        if queues and kind < 0.6:
            conn, to_server = rng.choice(queues)
            self.deliver_to_server(conn) if to_server else self.deliver_to_client(conn)
        elif kind < 0.8:
            self.time_passes()
        elif kind < 0.86:
            self.deaths_are_seen()
        elif not self.calm:
            self.something_happens()
        if self.machine is None and rng.random() < 0.3:
            self.start_server()

    def time_passes(self) -> None:
        machine = self.machine
        if machine is not None and self.now >= machine.deadline:
            self.feed(e.Tick())
        for process in self.processes:
            if process.alive and self.now >= process.machine.deadline:
                process.feed(c.Tick())

    def deaths_are_seen(self) -> None:
        """Connections' ends and pidfds, in any order."""
        dead = [process for process in self.processes if not process.alive]
        what = [("conn", conn) for conn, process in self.of_conn.items() if process in dead]
        if self.machine is not None:
            what += [("pidfd", handle) for handle, process in self.watched.items() if process in dead]
        if not what:
            return
        kind, number = self.rng.choice(what)
        if kind == "conn":
            while self.machine is not None and self.inbound.get(number):  # what it had said is read first
                self.deliver_to_server(number)
            self.hang_up(number)
        else:
            self.feed(e.Died(number))

    def something_happens(self) -> None:
        rng, alive = self.rng, [process for process in self.processes if process.alive]
        kind = rng.random()
        if len(alive) < 3 and len(self.processes) < 40:
            self.processes.append(Process(self, len(self.processes)))
            self.processes[-1].feed(c.Tick())
        elif kind < 0.12:
            self.kill(rng.choice(alive))
        elif kind < 0.2:
            if self.machine is not None:
                self.kill_server()
        elif kind < 0.25:
            self.disk_fails = rng.random() < 0.3
        elif kind < 0.3:
            conns = [conn for conn, process in self.of_conn.items() if process.alive]
            if conns:
                conn = rng.choice(conns)
                process = self.of_conn[conn]
                self.hang_up(conn)
                if process.conn == conn:
                    process.feed(c.Disconnected())
        elif kind < 0.35:
            self.feed(e.Received(-1, m.DropRegion(key=KEY)))
        elif kind < 0.5:
            self.grant()
        elif kind < 0.7:
            process = rng.choice(alive)
            if process.mapped and rng.random() < 0.5:
                self.release(process)
        else:
            process = rng.choice(alive)
            if process.grant is not None and not process.mapped and not process.claims and not process.releasing:
                token, proven = process.grant
                if rng.random() < 0.1:
                    token -= 1
                process.claims = True
                wait = rng.choice((0.0, 1.0, 5.0))
                shape = SHAPES[0] if rng.random() < 0.8 else rng.choice(SHAPES)
                process.feed(claim(shape, max(token, 1), proven, rng.random() < 0.3, wait))

    def kill(self, process: Process) -> None:
        self.ends_writing(process)
        process.alive, process.grant = False, None
        process.memory.clear()

    def ends_writing(self, process: Process) -> None:
        if process.has_io_uring:
            self.late |= set(process.mapped)
        process.mapped = ()

    def release(self, process: Process) -> None:
        """It unmaps, says so, and gives the lock up."""
        self.ends_writing(process)
        process.releasing, process.grant = True, None
        process.feed(c.Release())

    def grant(self) -> None:
        """The lock's: proven if the last holder has ended or given it up; now and then it isn't, and that is said."""
        holders = [process for process in self.processes if process.alive and process.grant is not None]
        rest = [process for process in self.processes if process.alive and process.grant is None]
        if not rest or (holders and self.rng.random() < 0.7):
            return
        process = self.rng.choice(rest)
        self.token += 1
        process.grant = (self.token, self.lock_lies or not holders)
        if holders:  # (whoever was passed over lives on, and may write what it has)
            for holder in holders:
                holder.grant = (holder.grant[0], self.lock_lies) if holder.grant is not None else None

    def begins_to_write(self, process: Process, *, adopted: bool) -> None:
        self.grants += 1
        self.adoptions += adopted
        if process.machine.token < self.newest:
            self.fail(f"e{process.number} writes with token {process.machine.token} after {self.newest}")
        self.newest = process.machine.token
        if self.late & set(process.mapped):
            self.fail(f"e{process.number} is given what io_uring still writes for another")
        for other in self.processes:
            if other is not process and other.alive and set(other.mapped) & set(process.mapped):
                self.fail(f"e{process.number} is given what e{other.number} may write")

    # -- the end ---------------------------------------------------------------------------------------------------

    def run(self, steps: int) -> None:
        for _ in range(steps):
            self.step()
        self.calm, self.disk_fails = True, False
        for process in self.processes:
            if process.alive and process.mapped and process.grant is None:
                self.release(process)
        idle = [process for process in self.processes if process.alive and not (process.mapped or process.claims)]
        last = self.rng.choice(idle) if idle and self.rng.random() < 0.5 else Process(self, len(self.processes))
        for process in self.processes:
            ends = self.rng.random() < 0.7 or process.mapped or process.claims
            self.kill(process) if ends and process is not last else None
        if last not in self.processes:
            self.processes.append(last)
        last.feed(c.Tick())
        self._until(lambda: last.machine.link is Link.IN, "the last one is connected")
        self.token += 1
        last.claims = True
        last.feed(claim(SHAPES[0], self.token, True, True, 30.0))
        self._until(lambda: not last.claims, "the last claim is answered")
        if not last.mapped:
            self.fail(f"the last claim is refused: {last.refused}")
        self._until(lambda: self.living() == set(last.mapped), "only the pool's memory is left")

    def _until(self, so: Callable[[], bool], what: str) -> None:
        for _ in range(20000):
            if so():
                return
            self.step()
            self.deaths_are_seen()
            self.time_passes()
        self.fail(f"it never comes to this: {what}")
