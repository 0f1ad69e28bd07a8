"""One schedule of the simulator for GMS: engines that write, read, sleep and wake; a server; faults from one seed; and
what must hold.

 1. Never a writer and a reader together, as the processes themselves see it: a writer is one whose connection stands
    and who has not committed yet, and a reader reads on while its server is away.
 2. A committed layout is lost only to a writer that was let in, to a replacement, or when no process has it. No
    process that wasn't stopped and has the memory is told that it is stale for another reason.
 3. What is handed back, and what a reader gets, is the very memory of the layout with that number.
 4. Numbers only grow, and no two writers get the same, also where the file was lost, or an older one is there again,
    and the clock on the wall went back.
 5. First on disk, then told: what is acknowledged as committed stands in the file.
 6. No process is let in to write that is dead already.
 7. The server keeps exactly those descriptors that the machine knows; at the end all memory of the device belongs to
    the committed layouts and the pool.
 8. Once the faults stop, each waiter gets an answer within a bound, and what can be read is read. Where there
    is a ledger, what is leased then is what weights take, whichever server made it.
 9. And each client that is connected knows which layout there is.
10. What a process may write of a pool no other living process may write, nor does io_uring for one that has ended; and
    none begins with an older token than the newest. At the end the lock's holder owns it.

A file that was spoiled on purpose excuses the loss of what stood in it, and a process that was stopped what happened
while it was away.
"""

import itertools
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from gms.rules import client_events as c
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record
from gms.rules.exclusive import ExclusiveRegion
from gms.rules.region import GivenUp
from gms.rules.shared import SharedRegion
from gms.rules.weights import Generations, Weights
from tests.sim.gms_actors import DEVICE, FILE, RUN, TABLES, SimGms, memory
from tests.sim.gms_engine import WAKE_S, Engine
from tests.sim.gms_faults import GmsFaults
from tests.sim.gms_pools import KEY, MEMORY, Pair
from tests.sim.kernel import Kernel, ReleaseOrder
from tests.sim.openfiles import Allocation
from tests.sim.process import Process
from tests.sim.schedule import FAULTS_END_S, Schedule

CAPACITY = 100
HOST_MEMORY = 90
"""Not enough for two models at once."""
WINDOW_S = 1.0
MEMORY_WAIT_S = 0.5


class GmsWorld(Schedule[SimGms]):
    calm_s = 10.0
    most_events = 30_000

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        super().__init__(seed, trace=trace)
        rng = self.rng
        self.tells = rng.random() < 0.7
        """Memory can be told apart from outside (host: by its place, and what is made there later is called the same);
        else (CUDA) descriptors all look alike.
        """
        self.batch = rng.choice((1, 2, 253))
        self.kernel = Kernel(
            rng,
            order=rng.choice((ReleaseOrder.HIGHEST_FIRST, ReleaseOrder.ANY)),
            release_step_s=rng.choice((0.0005, 0.005, 0.05)),
            reuses_pids=rng.random() < 0.3,
        )
        self.kernel.has_pidfs = self.kernel.reuses_pids or rng.random() < 0.8  # a number alone is a process's for long
        self.kernel.fault = self._inside_a_write
        self.keys = rng.choice(((m.WEIGHTS,), (m.WEIGHTS, "other")))
        """The models on this device."""
        self.ledger = rng.random() < 0.5
        self.pair = Pair(self, rng.choice((2, 3))) if rng.random() < 0.5 else None
        self.capacity = CAPACITY * len(self.keys) + (MEMORY if self.pair is not None else 0)
        self.kernel.add_device(DEVICE, self.capacity)
        self.kernel.add_device(TABLES, 1000)
        self.kernel.make_directories(RUN)
        self.shim = self.kernel.spawn("shim")
        self.engines = [Engine(self, number) for number in range(rng.choice((2, 3, 4)) * len(self.keys))]
        self.crash_rate = rng.choice((0.0, 0.0, 0.002, 0.02))
        self.layouts: dict[int, list[Allocation | None]] = {}
        """What was said to be committed under a number: its memory."""
        self.over_since: dict[int, str] = {}
        """Layouts that were rightly lost, and to whom."""
        self.last_given = 0
        self.given: set[int] = set()
        """Every generation that any writer was let in with."""
        self.older: list[bytes] = []
        """What the file said before: backups."""
        self.spoiled = False
        """The file was destroyed: whatever stood in it may be lost, until a new layout is committed."""
        self.blind = False
        """And nothing shows that: it was deleted, or says something else."""
        self._read = b""
        self._file: record.Record | None = None
        """What was read of the file last."""
        self.identities: dict[Allocation, str] = {}
        self.parked = 0
        """How often a layout was parked."""
        self.adoptions = 0
        """Contents of the pool that were handed on."""
        self._faults = GmsFaults(self)

    # -- what the shells ask ---------------------------------------------------------------------------------------

    def server_config(self, incarnation: str) -> e.Config:
        return e.Config(
            device=DEVICE,
            server_incarnation=incarnation,
            boot_id=self.kernel.boot_id,
            capacity=self.capacity,
            window_s=WINDOW_S,
            memory_wait_s=MEMORY_WAIT_S,
            history_size=10,
            batch=self.batch,
            host_memory=HOST_MEMORY,
            leases=self.ledger,
        )

    def identity(self, allocation: Allocation | None) -> str:
        if allocation is None:
            return "no memory at all"
        is_table = allocation.device is self.kernel.devices[TABLES]
        if not self.tells and not is_table:
            return "memory"
        if allocation not in self.identities and is_table:
            self.identities[allocation] = f"table:{len(self.identities)}"
        elif allocation not in self.identities:
            living = {self.identities.get(each) for each in self.kernel.devices[DEVICE].allocations}
            place = next(number for number in itertools.count() if f"m{number}" not in living)
            self.identities[allocation] = f"m{place}"
        return self.identities[allocation]

    def held(self, identities: tuple[str, ...]) -> bool | None:
        if not self.tells:
            return None
        return any(self.identities.get(each) in identities for each in self.kernel.devices[DEVICE].allocations)

    def _inside_a_write(self, process: Process, where: str) -> None:
        if self.rng.random() < self.crash_rate * 2 and self.kernel.now < FAULTS_END_S:
            self.note_fault("the server is killed inside a write")
            self.kernel.kill(process)

    # -- what must hold --------------------------------------------------------------------------------------------

    def together(self, key: str) -> None:
        """Asked when a process of that model begins to write or to read."""
        engines = [engine for engine in self.engines if engine.key == key]
        writers = [engine for engine in engines if engine.is_writer]
        if not writers:
            return
        if len(writers) > 1:
            self.fail(f"{writers[0].process} and {writers[1].process} both write")
        for engine in engines:
            if engine.is_reader and not engine.was_stopped and engine is not writers[0] and not self.blind:
                self.fail(f"{writers[0].process} writes while {engine.process} reads")

    def turn_ended(self, server: SimGms) -> None:
        machine = server.machine
        known = {slab.handle for slab in machine.slabs}
        if known != set(server.slabs):
            only = sorted(set(server.slabs) - known), sorted(known - set(server.slabs))
            self.fail(f"descriptors that only the shell has: {only[0]}; only the machine: {only[1]}")
        processes = {client.process for client in machine.sessions.clients.values()}
        owner = region.pool.owner if isinstance(region := machine.regions.get(KEY), ExclusiveRegion) else None
        if owner is not None and owner.process is not None:
            processes.add(owner.process)
        if processes != set(server.pidfds):
            self.fail(f"pidfds {sorted(server.pidfds)}, known {sorted(map(str, processes))}")

    def on_disk(self) -> record.Record | None:
        try:
            data = self.kernel.files.find(FILE).data
        except FileNotFoundError:
            return None
        if data is not self._read:
            self._read = data
            try:
                self._file = record.decode(data)
            except record.UnreadableRecord:
                self._file = None
        return self._file

    def wrote(self, server: SimGms, old: record.Record | None) -> None:
        new = self.on_disk()
        if old is not None and new != old:
            self.older.append(record.encode(old))
        if old is None or new is None or new == old:
            return
        if new.given < old.given:
            self.fail(f"the file goes back from number {old.given} to {new.given}")
        for key in self.keys:
            before, after = old.region(key), new.region(key)
            if before is not None and before.generation and before != after:
                self._lost(server, key, before.generation, after, a_writer=new.given > old.given)

    def _lost(self, server: SimGms, key: str, lost: int, after: record.Region | None, *, a_writer: bool) -> None:
        machine = server.machine
        region = machine.regions[key]
        if after is not None and after.generation > lost:
            self.over_since[lost] = "a replacement"
        elif any(isinstance(owed.what, GivenUp) and owed.what.by for owed in machine.device.file.owed):
            self.over_since[lost] = "a person who dropped it"
            for engine in self.engines:
                if (
                    engine.alive
                    and engine.client.welcome
                    and engine.reads == lost
                    and not engine.was_stopped
                    and not self.spoiled
                ):
                    self.fail(f"layout {lost} is dropped, and {engine.process} reads it")
        elif a_writer:
            self.over_since[lost] = "a writer"
            if region.awaited is not None:
                self._none_was_there(lost, "a writer is let in over")
        elif lost not in self.over_since:
            self.over_since[lost] = "no process has it"
            self._none_was_there(lost, "without a writer the server gives up")

    def _none_was_there(self, generation: int, what: str) -> None:
        for engine in self.engines:
            if engine.has(generation) and not engine.was_stopped and not self.spoiled:
                self.fail(f"{what} layout {generation}, which {engine.process} has")

    def sending(self, server: SimGms, conn: int, fd: int, message: m.ServerMessage) -> None:
        client = server.machine.sessions.clients.get(conn)
        disk = self.on_disk()
        said = disk.region(client.key) if disk is not None and client is not None else None
        if isinstance(message, m.Committed):
            if said is None or said.generation != message.generation:
                self.fail(f"layout {message.generation} is acknowledged, and the file says {disk}")
            if len(self.keys) == 1:
                self.spoiled = self.blind = False
        elif isinstance(message, m.Opened) and message.mode == "rw":
            if server._ended(fd):
                self.fail("a client is let in to write whose connection has ended")
            if message.generation <= self.last_given and not self.spoiled:
                self.fail(f"number {message.generation} is given after {self.last_given}")
            if message.generation in self.given:
                self.fail(f"number {message.generation} is given twice")
            self.given.add(message.generation)
            if disk is None or disk.given < message.generation:
                self.fail(f"number {message.generation} is given, and the file says {disk}")
            self.last_given = max(self.last_given, message.generation)
        elif isinstance(message, m.Opened):
            self.grants += 1

    def told_stale(self, engine: Engine, stale: c.Stale) -> None:
        lost = stale.generation in self.over_since
        if not lost and not self.spoiled and not engine.was_stopped:
            self.fail(f"{engine.process} is told that layout {stale.generation} is stale, and it is not: {stale.why}")

    def reading(self, engine: Engine, generation: int, slabs: list[Allocation | None]) -> None:
        if slabs != self.layouts.get(generation):
            self.fail(f"{engine.process} reads other memory than that of layout {generation}")
        if generation in self.over_since and not engine.was_stopped and not self.spoiled:
            self.fail(f"{engine.process} gets layout {generation}, which was lost to {self.over_since[generation]}")

    def letting_go(self, process: Process, generation: int) -> None:
        for engine in self.engines:
            if engine.alive and engine.process is process and engine.mapped and engine.reads == generation:
                self.fail(f"{engine.process} is told to let go of layout {generation}, which it has mapped")

    def noted(self, server: SimGms, note: e.Note) -> None:
        if note.event == "rule_broken":
            self.fail(f"the server says that it is broken: {note.detail}")
        layout = self._weights(server, str(note.detail.get("region", m.WEIGHTS))).committed
        if note.event == "handed_back" and layout is not None:
            slabs = [memory(server.process, server.slabs[slab.handle]) for slab in layout.slabs]
            disk = self.on_disk()
            said = disk.region(str(note.detail["region"])) if disk is not None else None
            if said is None or (said.generation, said.hash) != (layout.generation, layout.hash):
                self.fail(f"layout {layout.generation} is taken back, and the file says {disk}")
            if self.tells and slabs != self.layouts.get(layout.generation):
                self.fail(f"what is taken back as layout {layout.generation} is other memory")

    @staticmethod
    def _weights(server: SimGms, key: str) -> Weights:
        region = server.machine.regions.get(key)
        return region.weights if isinstance(region, SharedRegion) else Weights(key, Generations())

    # -- a schedule ------------------------------------------------------------------------------------------------

    def _new_server(self) -> SimGms:
        return SimGms(self)

    def _clients(self) -> Iterable[Callable[[], None]]:
        return [*(engine.start for engine in self.engines), *([self.pair.start] if self.pair is not None else [])]

    def _any_fault(self) -> None:
        self._faults.any()

    def _calm(self) -> None:
        self._faults.end()
        for process in list(self.kernel.processes.values()):
            if process.stopped:
                self.kernel.cont(process)
        if self.pair is not None:
            self.pair.calm()

    def _check_the_end(self) -> None:
        server = self.server
        if server is None or not server.process.alive:
            self.fail("no server runs at the end")
        machine = server.machine
        for engine in self.engines:
            late_s = self.kernel.now - engine.asked_at
            if engine.alive and engine.asked_at >= 0 and late_s > WAKE_S + 1.0:
                self.fail(f"{engine.process} has waited for {late_s:.1f} s")
        mine: set[int] = set()
        for key in self.keys:
            weights = self._weights(server, key)
            there = weights.committed.generation if weights.committed is not None else 0
            for engine in self.engines:
                if engine.alive and engine.key == key and engine.client.welcome and engine.told != there:
                    self.fail(f"{engine.process} was told that there is layout {engine.told}, and there is {there}")
            if weights.committed is None and weights.draft is None:
                self.fail(f"nothing is committed of {key} {self.calm_s} s after the faults, and no client writes")
            layouts = (weights.committed, weights.draft)
            takes = sum(each.on_device for each in layouts if each is not None)
            growing = machine.device.making.keys | {each.key for each in machine.device.leases._growing.values()}
            if self.ledger and key not in growing and server.leased.get(key, 0) != takes:
                self.fail(f"{key} takes {takes}, and {server.leased} are leased")
            mine |= {server.slabs[slab.handle] for each in layouts if each is not None for slab in each.slabs}
        if self.pair is not None:
            self.pair.check_the_end(machine)
            mine |= {server.slabs[slab.handle] for slab in machine.regions[KEY].slabs}
        disk, truth = self.on_disk(), machine.device.record()
        if self.kernel.files.disk_errno == 0 and (disk is None or replace(truth, given=disk.given) != disk):
            self.fail(f"the file says {disk}, and so is {truth}")
        known = {memory(server.process, fd) for fd in mine}
        devices = self.kernel.devices.values()
        leaked = [each for device in devices for each in device.allocations if each not in known]
        if leaked:
            self.fail(f"{sum(each.size for each in leaked)} bytes belong to no region: {leaked}")
