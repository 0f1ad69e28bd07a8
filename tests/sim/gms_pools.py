"""A pool in the world of GMS: a lock that grants, and processes that claim the pool by it, write, and end.

What goes wrong is the business of `gms_faults.py`. What must hold stands at the top of `gms_world.py`, and is checked
here whenever a process begins to write.
"""

from typing import TYPE_CHECKING

from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.exclusive import ExclusiveRegion
from gms.rules.exclusive_client import ExclusiveClient
from gms.rules.machine import Machine
from tests.sim.gms_actors import SimClient, memory
from tests.sim.openfiles import Allocation
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.gms_world import GmsWorld

KEY = "kv-0"
MEMORY = 60
"""What the device has more of because of it: an old pool and a new one."""
SHAPES = (m.Shape("a", (12, 8), 4096), m.Shape("b", (12, 8), 4096), m.Shape("a", (10,), 4096))


class PoolEngine:
    """One process, started again when it has ended."""

    process: Process
    client: SimClient[ExclusiveClient]

    def __init__(self, pair: "Pair", number: int) -> None:
        self.pair = pair
        self.number = number
        self.started = False
        self.has_io_uring = False
        """What it reads arrives after its end."""
        self.grant: tuple[int, bool] | None = None
        """The token, and whether the grant was proven; while it has the lock."""
        self.claims = self.releasing = self.disowned = False
        self.mapped: list[int] = []
        self.writes: frozenset[Allocation] = frozenset()
        """What it may write."""
        self.asked_at = -1.0

    @property
    def alive(self) -> bool:
        return self.started and self.process.alive

    @property
    def holds(self) -> bool:
        """The lock; a process that dies holds it until it is gone."""
        return self.grant is not None and not self.process.gone

    def start(self) -> None:
        world, rng = self.pair.world, self.pair.world.rng
        process = self.process = world.kernel.spawn(f"pool-{self.number}")
        self.has_io_uring = rng.random() < 0.2
        self.grant, self.claims, self.releasing, self.disowned, self.asked_at = None, False, False, False, -1.0
        self.mapped, self.writes = [], frozenset()
        ends = not self.has_io_uring
        machine = ExclusiveClient(process.name, process.pid, KEY, world.batch, writes_end=ends)
        self.started = True
        self.client = SimClient(world, process, machine, lambda effect: self._on(effect))
        world.shim.on_death(world.shim.pidfd_open(process.pid), self._ended)
        process.after(rng.random() * 0.01, lambda: self.client.feed(c.Tick()))

    def _ended(self, pidfd: int) -> None:
        world = self.pair.world
        world.shim.close(pidfd)
        self._ends_writing()
        world.kernel.after(world.rng.random() * 0.3 + 0.01, self.start)

    def _ends_writing(self) -> None:
        if self.has_io_uring:
            self.pair.late |= self.writes
        self.writes = frozenset()

    # -- what its program does -------------------------------------------------------------------------------------

    def claim(self) -> None:
        rng, calm = self.pair.world.rng, self.pair.world.calm
        if self.grant is None or self.mapped or self.claims or self.releasing:
            return
        token, proven = self.grant
        if rng.random() < 0.1 and not calm:
            token -= 1
        shape = SHAPES[0] if calm or rng.random() < 0.8 else rng.choice(SHAPES)
        wait_s = 3.0 if calm else rng.choice((0.0, 1.0, 5.0))
        replace = calm or rng.random() < 0.3
        self.claims, self.asked_at = True, self.pair.world.kernel.now
        sizes = list(shape.sizes)
        claim = m.ClaimPool(shape.digest, sizes, shape.table_size, max(token, 1), proven, wait_s, replace)
        self.client.feed(claim)

    def _on(self, effect: c.Effect) -> None:
        rng, process = self.pair.world.rng, self.process
        if isinstance(effect, c.Owned):
            self._owns(effect)
            if rng.random() < 0.7:
                process.after(rng.random(), self.release)
        elif isinstance(effect, c.No):
            self.claims, self.asked_at = False, -1.0
            process.after(rng.random() * 0.3 + 0.005, self.claim)
        elif isinstance(effect, m.PoolReleased):
            self.releasing = False
            process.after(0.001, self.claim)
        elif isinstance(effect, c.Disowned):
            self.disowned = True
            if self.pair.world.calm or rng.random() < 0.5:
                process.after(rng.random(), process.exit)

    def _owns(self, owned: c.Owned) -> None:
        slabs, world = self.client.kept.get(owned.generation, {}), self.pair.world
        self.claims, self.asked_at = False, -1.0
        found = [memory(self.process, slabs[number]) for number in sorted(slabs)]
        if len(found) != len(owned.shape.sizes) + 1:
            world.fail(f"{self.process} owns memory {owned.generation}, and has {len(found)} parts of it")
        self.writes = frozenset(part for part in found if part is not None)
        self.mapped = [self.process.map(fd, dont_fork=True) for fd in slabs.values()]
        self.pair.begins_to_write(self, owned)

    def release(self) -> None:
        """It unmaps, says so, and gives the lock up."""
        if not self.mapped or (self.pair.world.calm and self is self.pair.newest_holder):
            return
        for mapping in self.mapped:
            self.process.unmap(mapping)
        self._ends_writing()
        self.mapped, self.grant, self.releasing = [], None, True
        self.client.feed(c.Release())


class Pair:
    """The processes of one pool, and their lock. Now and then it passes a holder over that lives, as it may where
    nothing can be proven; half of the locks then say all the same that the grant was proven: what the server itself
    knows has to be enough.
    """

    def __init__(self, world: "GmsWorld", engines: int) -> None:
        self.world = world
        self.engines = [PoolEngine(self, number) for number in range(engines)]
        self.lies = world.rng.random() < 0.5
        self.token = 0
        self.newest = self.newest_memory = 0
        """Token with which any process began to write, and the number of what it writes."""
        self.newest_holder: PoolEngine | None = None
        self.late: set[Allocation] = set()
        """Memory into which io_uring still reads for a process that has ended or released it."""
        self.spoiled = False
        """The file was destroyed, or is an older one: what it said of owners is lost."""

    def start(self) -> None:
        for engine in self.engines:
            engine.start()
        self._grant_now_and_then()

    def _grant_now_and_then(self) -> None:
        world, rng = self.world, self.world.rng
        holders = [engine for engine in self.engines if engine.holds]
        rest = [engine for engine in self.engines if engine.alive and engine.grant is None]
        if rest and (not holders or (rng.random() < 0.1 and not world.calm)):
            self.token += 1
            self.newest_holder = engine = rng.choice(rest)
            engine.grant = (self.token, self.lies or not holders)
            for holder in holders:  # it lives on, and may write what it has
                holder.grant = (holder.grant[0], self.lies) if holder.grant is not None else None
            engine.process.after(rng.random() * 0.1, engine.claim)
        world.kernel.after(rng.random() * 0.3, self._grant_now_and_then)

    def calm(self) -> None:
        """Those that were passed over, or were told that it is theirs no more, end; and one holder stays."""
        for engine in self.engines:
            passed_over = engine is not self.newest_holder and (engine.mapped or engine.grant)
            if engine.alive and (passed_over or engine.disowned):
                engine.process.exit()

    # -- what must hold --------------------------------------------------------------------------------------------

    def begins_to_write(self, engine: PoolEngine, owned: c.Owned) -> None:
        world, token = self.world, engine.client.machine.token
        world.grants += 1
        world.adoptions += owned.adopted
        for other in self.engines:
            clash = other is not engine and not other.process.gone and other.writes & engine.writes
            if clash and not (self.spoiled and self.lies):
                world.fail(f"{engine.process} is given what {other.process} may write")
        if self.spoiled:
            return
        if (
            token < self.newest and owned.generation >= self.newest_memory
        ):  # (else it was stopped, and hears of it late)
            world.fail(f"{engine.process} writes with token {token} after {self.newest}")
        if token >= self.newest:
            self.newest, self.newest_memory = token, owned.generation
        if self.late & engine.writes:
            world.fail(f"{engine.process} is given what io_uring still writes for another")

    def check_the_end(self, machine: Machine) -> None:
        holder, region = self.newest_holder, machine.regions.get(KEY)
        if holder is None or not holder.alive or not holder.mapped or not isinstance(region, ExclusiveRegion):
            self.world.fail(f"no process owns {KEY} at the end: {holder}")
        owner = region.pool.owner
        if owner is None or owner.name.split()[0] != holder.process.name:
            self.world.fail(f"{holder.process} owns {KEY}, and the server says {owner}")
