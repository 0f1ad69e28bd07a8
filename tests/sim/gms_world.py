"""One schedule of the simulator for GMS: engines that write, read, sleep and wake; a server; faults from one seed; and
what must hold.

 1. Never a writer and a reader together, as the processes themselves see it: a writer is one whose connection stands
    and who has not committed yet, and a reader reads on while its server is away.
 2. A committed layout is lost only to a writer that was let in, to a replacement, or when nobody has it any more. No
    process that wasn't stopped and has the memory is told that it is stale for another reason.
 3. What is handed back, and what a reader gets, is the very memory of the layout with that number.
 4. Numbers only grow, and no two writers get the same, also where the file was lost or an older one is there again
    (unless the clock on the wall went back, too).
 5. First on disk, then told: what is acknowledged as committed stands in the file.
 6. Nobody is let in to write who is dead already.
 7. The server keeps exactly those descriptors that the machine knows; at the end all memory of the device belongs to
    the committed layout.
 8. Once the faults stop, everybody who waits gets an answer within a bound, and what can be read is read.
 9. And everybody who is connected knows which layout there is.

A file that was spoiled on purpose excuses the loss of what stood in it, and a process that was stopped what happened
while it was away.
"""

import contextlib
import errno
import itertools
import random
from collections import Counter
from dataclasses import dataclass, field

from msgspec.structs import replace

from gms import client_events as c
from gms import events as e
from gms import layout as lay
from gms import messages as m
from gms import record
from gms.client_machine import Doing
from tests.sim.gms_actors import DEVICE, FILE, RUN, SOCKET, SimGms, SimReader, memory
from tests.sim.kernel import Kernel, Process, ReleaseOrder
from tests.sim.openfiles import Allocation
from tests.sim.world import Violation, kind_of

CAPACITY = 100
FAULTS_END_S = 4.0
WINDOW_S = 1.0
MEMORY_WAIT_S = 0.5
WAKE_S = 3.0
CALM_S = 10.0
MOST_EVENTS = 30_000
SHAPES = ((20,), (10, 15), (8, 8, 8, 8), (30, 25))
"""Slabs of the models that are loaded here: some layouts are of the same structure, and other memory."""


def document(sizes: tuple[int, ...]) -> bytes:
    tensors = tuple(lay.Tensor(f"t{slab}", slab, 0, (size,), (1,), "uint8") for slab, size in enumerate(sizes))
    return lay.encode(lay.Layout(sizes, tensors))


@dataclass
class Engine:
    """One process, started again when it has ended."""

    world: "GmsWorld"
    number: int
    process: Process = field(init=False)
    client: SimReader = field(init=False)
    mapped: list[int] = field(default_factory=list)
    reads: int = 0
    """The layout that it has mapped."""
    bound: str = ""
    """The structure by which its views are laid out."""
    writes: tuple[int, ...] = ()
    made: int = 0
    wakes: bool = False
    stale: bool = False
    was_stopped: bool = False
    asked_at: float = -1.0
    told: int = 0
    """Which layout there is, as far as it was told."""

    def __post_init__(self) -> None:
        self.role = ("primary", "shadow", "deployer", "shadow")[self.number]

    @property
    def alive(self) -> bool:
        return hasattr(self, "client") and self.process.alive

    def start(self) -> None:
        world, rng = self.world, self.world.rng
        if world.over:
            return
        process = self.process = world.kernel.spawn(f"{self.role}-{self.number}")
        self.mapped, self.reads, self.bound, self.writes, self.made = [], 0, "", (), 0
        self.wakes = self.stale = self.was_stopped = False
        self.asked_at, self.told = -1.0, 0
        client = self.client = SimReader(world, process, f"{self.role}-{self.number}", lambda effect: self._on(effect))
        pidfd = world.shim.pidfd_open(process.pid)
        world.shim.on_death(pidfd, self._ended)
        process.after(rng.random() * 0.01, lambda: client.feed(c.Tick()))
        process.after(rng.random() * 0.2, self.want)

    def _ended(self, pidfd: int) -> None:
        self.world.shim.close(pidfd)
        self.world.kernel.after(self.world.rng.random() * 0.3 + 0.01, self.start)

    # -- what its program does -------------------------------------------------------------------------------------

    def want(self) -> None:
        rng, world = self.world.rng, self.world
        if self.client.machine.doing is not Doing.NOTHING or self.bound:
            return  # (who sleeps wakes)
        self.wakes = False
        timeout = rng.choice((None, 0.0, 0.1, 2.0)) if not world.calm else WAKE_S
        if self.role == "deployer" and not world.calm:
            self.writes = rng.choice(SHAPES)
            replace = rng.random() < 0.5
            wish = c.Want("rw", rng.choice((0.05, 0.5, 2.0)), replace=replace, bytes=sum(self.writes))
        elif self.role == "shadow":
            wish = c.Want("ro", timeout)
        else:
            self.writes = rng.choice(SHAPES)
            wish = c.Want("rw_or_ro", timeout)
        self.asked_at = world.kernel.now
        self.client.feed(wish)

    def again(self, most_s: float = 0.2) -> None:
        self.process.after(self.world.rng.random() * most_s + 0.005, self.want)

    def _on(self, effect: c.Effect) -> None:
        world, rng, process = self.world, self.world.rng, self.process
        if isinstance(effect, c.Got):
            self.asked_at = -1.0
            if effect.opened.mode == "rw":
                self.made = 0
                process.after(rng.random() * 0.05, self._make)
            else:
                if self.bound not in ("", effect.opened.hash):
                    world.fail(f"{process} wakes on a layout of another structure")
                self.bound = effect.opened.hash
                self._read(effect.opened.generation)
        elif isinstance(effect, c.Made):
            self.made, self.asked_at = self.made + 1, -1.0
            process.after(rng.random() * 0.05, self._make)
        elif isinstance(effect, c.Changed):
            self.told = effect.generation
        elif isinstance(effect, c.Done):
            world.grants, self.asked_at = world.grants + 1, -1.0
            self.told = effect.generation
            self.bound = effect.hash
            self._read(effect.generation)
        elif isinstance(effect, c.No):
            self._refused(effect)
        elif isinstance(effect, c.Lost):
            self.asked_at = -1.0
            self.again()
        elif isinstance(effect, c.Stale):
            world.told_stale(self, effect)
            if self.mapped:
                self.stale = True
                process.after(rng.random() * 0.02, self._give_up if rng.random() < 0.3 else process.exit)
            else:
                process.after(rng.random() * 2, self._wake)

    def _refused(self, no: c.No) -> None:
        rng, process, machine = self.world.rng, self.process, self.client.machine
        self.asked_at = -1.0
        if machine.doing is Doing.WRITING:
            if no.reason == "disk" and rng.random() < 0.7:
                process.after(0.05 + rng.random() * 0.1, self._publish)
            else:
                process.after(0.001, self._give_up)
            return
        if self.wakes or no.reason == "stale":
            process.after(0.001, process.exit)  # a wake that fails is fatal
        else:
            self.again()

    def _make(self) -> None:
        rng = self.world.rng
        if self.client.machine.doing is not Doing.WRITING:
            return
        if self.made < len(self.writes):
            if rng.random() < 0.03:
                self._give_up()
            else:
                self.asked_at = self.world.kernel.now
                self.client.feed(c.Make(self.writes[self.made]))
        else:
            self._publish()

    def _publish(self) -> None:
        if self.client.machine.doing is not Doing.WRITING:
            return
        generation, sizes = self.client.machine.draft, self.writes
        if self.world.rng.random() < 0.05:
            self.client.feed(c.Publish(document((*sizes, 1)), sizes))  # refused: those aren't its slabs
            return
        slabs = self.client.kept[generation]
        self.asked_at = self.world.kernel.now
        self.world.layouts[generation] = [memory(self.process, slabs[number]) for number in range(len(sizes))]
        self.client.feed(c.Publish(document(sizes), sizes))

    def _read(self, generation: int) -> None:
        rng = self.world.rng
        slabs = self.client.kept[generation]
        self.world.reading(self, generation, [memory(self.process, slabs[number]) for number in sorted(slabs)])
        self.mapped = [self.process.map(fd) for fd in slabs.values()]
        self.reads = generation
        how_long = rng.random() * 1.0
        if self.role == "deployer" or rng.random() < 0.3:
            self.process.after(how_long, self._give_up)
        elif rng.random() < 0.8:
            self.process.after(how_long, self._sleep)
        if rng.random() < 0.3:
            self.client.feed(c.Sums(generation, tuple("ab" for _ in slabs)))

    def _unmap(self) -> None:
        for mapping in self.mapped:
            self.process.unmap(mapping)
        self.mapped, self.reads = [], 0

    def _give_up(self) -> None:
        if self.client.machine.doing is Doing.NOTHING and not self.stale:
            return
        if self.world.calm and self.client.machine.doing is Doing.READING:
            return
        self._unmap()
        self.stale, self.bound, self.asked_at = False, "", -1.0
        self.client.feed(c.Release())
        self.again(0.5)

    def _sleep(self) -> None:
        if self.client.machine.doing is Doing.READING:
            self._unmap()
            self.client.feed(c.Sleep())
            if self.world.rng.random() < 0.8:  # else it sleeps until it is killed, or its layout is no more
                self.process.after(self.world.rng.random() * 1.0 + 0.001, self._wake)

    def _wake(self) -> None:
        if self.client.machine.doing is Doing.NOTHING and not self.stale:
            self.wakes = True
            self.asked_at = self.world.kernel.now
            self.client.feed(c.Want("ro", WAKE_S, expect=self.bound))

    # -- how the world sees it -------------------------------------------------------------------------------------

    @property
    def is_writer(self) -> bool:
        return (
            self.alive
            and self.client.connected
            and self.client.machine.doing is Doing.WRITING
            and not self.client.machine.commits
        )

    @property
    def waits_to_write(self) -> bool:
        return self.role == "deployer" and self.client.machine.doing is Doing.WAITING

    @property
    def is_reader(self) -> bool:
        return self.alive and self.client.machine.doing is Doing.READING

    def has(self, generation: int) -> bool:
        """Asleep or awake, it could bring that layout back."""
        kept = self.client.machine.kept if self.alive else None
        return kept is not None and kept.generation == generation


class GmsWorld:
    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.trace: list[str] | None = [] if trace else None
        rng = self.rng = random.Random(seed)
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
        self.kernel.fault = self._inside_a_write
        self.kernel.add_device(DEVICE, CAPACITY)
        self.kernel.make_directories(RUN)
        self.shim = self.kernel.spawn("shim")
        self.engines = [Engine(self, number) for number in range(rng.choice((2, 3, 4)))]
        self.server: SimGms | None = None
        self.crash_rate = rng.choice((0.0, 0.0, 0.002, 0.02))
        self.layouts: dict[int, list[Allocation | None]] = {}
        """What was said to be committed under a number: its memory."""
        self.over_since: dict[int, str] = {}
        """Layouts that were rightly lost, and to whom."""
        self.last_given = 0
        self.given: set[int] = set()
        """Every generation that any writer was let in with."""
        self.clock_went_back = False
        self.older: list[bytes] = []
        """What the file said before: backups."""
        self.spoiled = False
        """The file was destroyed: whatever stood in it may be lost, until a new layout is committed."""
        self.blind = False
        """And nothing shows that: it was deleted, or says something else."""
        self.calm = self.over = False
        self.faults: Counter[str] = Counter()
        self.grants = 0
        self.undecided = False
        self._identities: dict[Allocation, str] = {}

    # -- what the shells ask ---------------------------------------------------------------------------------------

    def server_config(self, incarnation: str) -> e.Config:
        return e.Config(
            device=DEVICE,
            server_incarnation=incarnation,
            boot_id=self.kernel.boot_id,
            capacity=CAPACITY,
            window_s=WINDOW_S,
            memory_wait_s=MEMORY_WAIT_S,
            history_size=10,
            batch=self.batch,
        )

    def identity(self, allocation: Allocation | None) -> str:
        if allocation is None:
            return "no memory at all"
        if not self.tells:
            return "memory"
        if allocation not in self._identities:
            living = {self._identities.get(each) for each in self.kernel.devices[DEVICE].allocations}
            place = next(number for number in itertools.count() if f"m{number}" not in living)
            self._identities[allocation] = f"m{place}"
        return self._identities[allocation]

    def held(self, identities: tuple[str, ...]) -> bool | None:
        if not self.tells:
            return None
        return any(self._identities.get(each) in identities for each in self.kernel.devices[DEVICE].allocations)

    def effect_boundary(self, server: SimGms) -> None:
        if self.crash_rate and self.rng.random() < self.crash_rate and self.kernel.now < FAULTS_END_S:
            self.note_fault("the server is killed between two effects")
            self.kernel.kill(server.process)
            server.process.must_live()

    def _inside_a_write(self, process: Process, where: str) -> None:
        if self.rng.random() < self.crash_rate * 2 and self.kernel.now < FAULTS_END_S:
            self.note_fault("the server is killed inside a write")
            self.kernel.kill(process)

    # -- what must hold --------------------------------------------------------------------------------------------

    def fail(self, what: str) -> None:
        raise Violation(f"seed {self.seed}, at {self.kernel.now:.4f} s: {what}")

    def together(self) -> None:
        writers = [engine for engine in self.engines if engine.is_writer]
        if not writers:
            return
        if len(writers) > 1:
            self.fail(f"{writers[0].process} and {writers[1].process} both write")
        for engine in self.engines:
            if engine.is_reader and not engine.was_stopped and engine is not writers[0] and not self.blind:
                self.fail(f"{writers[0].process} writes while {engine.process} reads")

    def client_moved(self, client: SimReader) -> None:
        self.together()
        if self.kernel.events > MOST_EVENTS:
            self.fail(f"{MOST_EVENTS} events: something goes round in a circle")

    def turn_ended(self, server: SimGms) -> None:
        machine, weights = server.machine, server.machine.weights
        known = {slab.handle for each in (weights.committed, weights.draft) if each is not None for slab in each.slabs}
        known |= {slab.handle for slab in machine.recovery.kept}
        if known != set(server.slabs):
            only = sorted(set(server.slabs) - known), sorted(known - set(server.slabs))
            self.fail(f"descriptors that only the shell has: {only[0]}; only the machine: {only[1]}")
        processes = {client.process for client in machine.sessions.clients.values()}
        if processes != set(server.pidfds):
            self.fail(f"pidfds {sorted(server.pidfds)}, known {sorted(map(str, processes))}")

    def on_disk(self) -> record.Record | None:
        try:
            return record.decode(self.kernel.files.find(FILE).data)
        except (FileNotFoundError, record.UnreadableRecord):
            return None

    def wrote(self, server: SimGms, old: record.Record | None) -> None:
        new, machine = self.on_disk(), server.machine
        if old is not None and new != old:
            self.older.append(record.encode(old))
        if old is None or new is None or new == old:
            return
        if new.given < old.given:
            self.fail(f"the file goes back from number {old.given} to {new.given}")
        if not old.generation or new.generation == old.generation:
            return
        lost = old.generation
        if new.generation > lost:
            self.over_since[lost] = "a replacement"
        elif new.given > old.given:
            self.over_since[lost] = "a writer"
            if machine.weights.awaited is not None:
                self._nobody_was_there(lost, "a writer is let in over")
        elif lost not in self.over_since:
            self.over_since[lost] = "nobody has it"
            self._nobody_was_there(lost, "without a writer the server gives up")

    def _nobody_was_there(self, generation: int, what: str) -> None:
        for engine in self.engines:
            if engine.has(generation) and not engine.was_stopped and not self.spoiled:
                self.fail(f"{what} layout {generation}, which {engine.process} has")

    def sending(self, server: SimGms, fd: int, message: m.ServerMessage) -> None:
        if isinstance(message, m.Committed):
            disk = self.on_disk()
            if disk is None or disk.generation != message.generation:
                self.fail(f"layout {message.generation} is acknowledged, and the file says {disk}")
            self.spoiled = self.blind = False
        elif isinstance(message, m.Opened) and message.mode == "rw":
            if server._ended(fd):
                self.fail("somebody is let in to write whose connection has ended")
            if message.generation <= self.last_given and not self.spoiled:
                self.fail(f"number {message.generation} is given after {self.last_given}")
            if message.generation in self.given and not self.clock_went_back:
                self.fail(f"number {message.generation} is given twice")
            self.given.add(message.generation)
            self.over_since.pop(message.generation, None)  # an older file and an older clock: it is another layout
            disk = self.on_disk()
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

    def letting_go(self, client: SimReader, generation: int) -> None:
        for engine in self.engines:
            if engine.alive and engine.client is client and engine.mapped and engine.reads == generation:
                self.fail(f"{engine.process} is told to let go of layout {generation}, which it has mapped")

    def noted(self, server: SimGms, note: e.Note) -> None:
        if note.event == "rule_broken":
            self.fail(f"the server says that it is broken: {note.detail}")
        layout = server.machine.weights.committed
        if note.event == "handed_back" and layout is not None:
            slabs = [memory(server.process, server.slabs[slab.handle]) for slab in layout.slabs]
            disk = self.on_disk()
            if disk is None or (disk.generation, disk.hash) != (layout.generation, layout.hash):
                self.fail(f"layout {layout.generation} is taken back, and the file says {disk}")
            if self.tells and slabs != self.layouts.get(layout.generation):
                self.fail(f"what is taken back as layout {layout.generation} is other memory")

    def note_fault(self, what: str) -> None:
        self.faults[kind_of(what)] += 1
        self.say(f"fault: {what}")

    def say(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.kernel.now:9.5f} {what}")

    # -- the server's container ------------------------------------------------------------------------------------

    def start_server(self) -> None:
        kernel = self.kernel
        if self.server is not None and self.server.process.alive:
            return
        server = self.server = SimGms(self)
        pidfd = self.shim.pidfd_open(server.process.pid)

        def ended(fd: int) -> None:
            self.shim.close(fd)
            kernel.after(self.rng.random() ** 3 * 1.5 if not self.calm else 0.05, self.start_server)

        self.shim.on_death(pidfd, ended)

        def begin() -> None:
            try:
                server.start()
            except OSError:
                server.process.exit()  # no room for its socket, say

        server.process.after(0.002, begin)

    # -- faults ----------------------------------------------------------------------------------------------------

    def fault(self) -> None:
        rng, kernel = self.rng, self.kernel
        roll = rng.random()
        living = [engine for engine in self.engines if engine.alive]
        server = self.server if self.server is not None and self.server.process.alive else None
        if roll < 0.25 and living:
            writers = [engine for engine in living if engine.is_writer]
            victim = rng.choice(writers if writers and rng.random() < 0.5 else living)
            self.note_fault(f"kill {victim.process}")
            kernel.kill(victim.process, step_s=rng.choice((None, None, 0.2)))
        elif roll < 0.50 and server is not None:
            self.note_fault("kill the server")
            kernel.kill(server.process)
            spoil = rng.random()
            if spoil < 0.15:
                self._spoil(rng.choice(("tear", "corrupt", "unlink", "restore an older version of")))
            if rng.random() < 0.3 and living:
                kernel.kill(rng.choice(living).process)
        elif roll < 0.62 and (living or server is not None):
            victims = [engine.process for engine in living] + ([server.process] if server is not None else [])
            stopped = rng.choice(victims)
            self.note_fault(f"stop {stopped}")
            kernel.stop(stopped)
            for engine in living:
                engine.was_stopped = engine.was_stopped or engine.process is stopped
            kernel.after(rng.random() * 2, lambda: kernel.cont(stopped) if stopped.alive else None)
        elif roll < 0.70:
            self.note_fault("the disk is full")
            kernel.files.disk_errno = errno.ENOSPC
            kernel.after(rng.random() * 1.0, self._disk_ok)
        elif roll < 0.73:
            self.note_fault("the clock jumps")
            seconds = rng.choice((-1, 1)) * rng.random() * 1e6
            self.clock_went_back = self.clock_went_back or seconds < 0
            kernel.jump_wall_clock(seconds)
        elif roll < 0.81:
            self.note_fault("somebody else takes device memory")
            kernel.devices[DEVICE].foreign_bytes = rng.choice((30, 60, 95))
            kernel.after(rng.random() * 1.5, self._foreign_gone)
        elif roll < 0.84 and server is not None:
            self._dead_waiter(server)
        elif roll < 0.88 and living:
            self._fork(rng.choice(living))
        elif roll < 0.95:
            self._impostor()
        else:
            self.note_fault("everything is killed at once")
            for process in [*(engine.process for engine in living), *([server.process] if server else [])]:
                kernel.kill(process)

    def _dead_waiter(self, server: SimGms) -> None:
        """The server finds both at once: those who kept a writer out have gone, and the writer has died."""
        waiting = [engine for engine in self.engines if engine.alive and engine.waits_to_write]
        if not waiting or server.process.stopped:
            return
        victim = self.rng.choice(waiting)
        self.note_fault(f"{victim.process} dies while it waits, unnoticed")
        self.kernel.stop(server.process)
        for engine in self.engines:
            if engine.alive and not engine.process.stopped:
                engine.process.after(0.0, engine._sleep)
        self.kernel.kill(victim.process)
        self.kernel.after(0.5, lambda: self.kernel.cont(server.process) if server.process.alive else None)

    def _spoil(self, how: str) -> None:
        before = self.on_disk()
        try:
            if how == "tear":
                self.kernel.tear(FILE)
            elif how == "corrupt":
                self.kernel.corrupt(FILE)
            elif how == "unlink":
                self.kernel.files.unlink(FILE)
            else:
                self.kernel.files.find(FILE).data = self.rng.choice(self.older or [b""])
        except FileNotFoundError:
            return
        self.blind = self.blind or how == "unlink"
        if self.on_disk() != before:
            self.spoiled, self.last_given = True, 0
            self.blind = self.blind or self.on_disk() is not None
            if before is not None:
                self.over_since[before.generation] = "a spoiled file"
        self.note_fault(f"{how} the file")

    def _disk_ok(self) -> None:
        self.kernel.files.disk_errno = 0

    def _foreign_gone(self) -> None:
        self.kernel.devices[DEVICE].foreign_bytes = 0

    def _fork(self, engine: Engine) -> None:
        """A grandchild has the connection and the descriptors, and outlives its parent."""
        self.note_fault(f"{engine.process} forks")
        child = engine.process.fork("fork")
        child.after(self.rng.random(), child.exit)
        self.kernel.after(self.rng.random() * 0.1, lambda: self.kernel.kill(engine.process))

    def _impostor(self) -> None:
        """Somebody who hands back what he has not, or talks out of turn."""
        rng = self.rng
        impostor = self.kernel.spawn("impostor")
        try:
            fd = impostor.connect(SOCKET)
        except OSError:
            impostor.exit()
            return
        self.note_fault("an impostor")
        disk = self.on_disk()
        sizes = [slab.size for slab in disk.slabs] if disk is not None and disk.slabs else [7]
        generation = disk.generation if disk is not None else 0
        named = disk.hash if disk is not None else ""
        if rng.random() < 0.8:
            impostor.send(fd, m.Hello(protocol=m.PROTOCOL, engine_id="impostor", pid=impostor.pid))
        roll = rng.random()
        if roll < 0.6:
            wrong = rng.choice(("memory", "generation", "hash", "sizes", "nothing", "half"))
            if wrong == "memory" and not self.tells:
                wrong = "hash"  # other memory can't be told from the right one there: who would do that is trusted
            made: list[int] = []
            with contextlib.suppress(OSError):
                made = [impostor.allocate(DEVICE, 1) for _ in sizes]
            for slab in made:
                self._identities[impostor.descriptors[slab]] = f"impostor's {slab}"  # type: ignore[index]
            back = m.HandBack(
                generation=generation + (wrong == "generation"),
                hash="0" * 64 if wrong == "hash" else named,
                sizes=[*sizes, 3] if wrong == "sizes" else sizes,
                layout=document(tuple(sizes)),
                reading=rng.random() < 0.5,
            )
            if wrong == "nothing" or not self.tells:
                made = []
            impostor.send(fd, back, made[: len(made) // 2] if wrong == "half" else made)
        elif roll < 0.8:
            impostor.send(
                fd, rng.choice((m.Create(size=5), m.Commit(layout=b"x"), m.Withdraw(), m.Dropped(generation=1)))
            )
            impostor.send(fd, m.Open(mode="ro", timeout_s=0.1, have=generation))
            impostor.send(fd, m.Open(mode="ro"))
        else:
            impostor.send(fd, m.Observe(protocol=m.PROTOCOL))
            impostor.send(fd, m.Watch())
            impostor.send(fd, m.AskStatus())
        impostor.after(rng.random() * 0.5, impostor.exit)

    # -- a schedule ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        kernel, rng = self.kernel, self.rng
        kernel.after(0.0, self.start_server)
        for engine in self.engines:
            kernel.after(rng.random() * 0.5, engine.start)
        for _ in range(rng.choice((1, 2, 4, 8))):
            kernel.after(0.3 + rng.random() * (FAULTS_END_S - 0.5), self.fault)
        kernel.run(FAULTS_END_S)
        self._calm()
        kernel.run(FAULTS_END_S + CALM_S)
        self._check_the_end()

    def _calm(self) -> None:
        kernel = self.kernel
        self.say("the faults end")
        self.calm = True
        self._disk_ok()
        self._foreign_gone()
        for process in list(kernel.processes.values()):
            if process.stopped:
                kernel.cont(process)

    def _check_the_end(self) -> None:
        server = self.server
        if server is None or not server.process.alive:
            self.fail("no server runs at the end")
            return
        machine = server.machine
        for engine in self.engines:
            late_s = self.kernel.now - engine.asked_at
            if engine.alive and engine.asked_at >= 0 and late_s > WAKE_S + 1.0:
                self.fail(f"{engine.process} has waited for {late_s:.1f} s")
        weights = machine.weights
        there = weights.committed.generation if weights.committed is not None else 0
        for engine in self.engines:
            if engine.alive and engine.client.welcome and engine.told != there:
                self.fail(f"{engine.process} was told that there is layout {engine.told}, and there is {there}")
        if weights.committed is None and weights.draft is None:
            self.fail(f"nothing is committed {CALM_S} s after the faults, and nobody writes")
        disk, truth = self.on_disk(), machine.truth()
        if self.kernel.files.disk_errno == 0 and (disk is None or replace(truth, given=disk.given) != disk):
            self.fail(f"the file says {disk}, and so is {truth}")
        layouts = (weights.committed, weights.draft)
        mine = {server.slabs[slab.handle] for each in layouts if each is not None for slab in each.slabs}
        known = {memory(server.process, fd) for fd in mine}
        leaked = [each for each in self.kernel.devices[DEVICE].allocations if each not in known]
        if leaked:
            self.fail(f"{sum(each.size for each in leaked)} bytes belong to no layout: {leaked}")
