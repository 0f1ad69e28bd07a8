"""The engines of the simulator for GMS: each is one process that writes, reads, sleeps and wakes, and is started again
when it has ended.

What must hold is `gms_world.py`'s business, and what goes wrong `gms_faults.py`'s.
"""

from functools import partial
from typing import TYPE_CHECKING

from gms import layout as lay
from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.shared_client import Doing, SharedClient
from tests.sim.gms_actors import SimClient, memory
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.gms_world import GmsWorld

WAKE_S = 3.0
SHAPES = ((20,), (10, 15), (8, 8, 8, 8), (30, 25))
"""Slabs of the models that are loaded here: some layouts are of the same structure, and other memory."""


def document(sizes: tuple[int, ...]) -> bytes:
    tensors = tuple(lay.Tensor(f"t{slab}", slab, 0, (size,), (1,), "uint8") for slab, size in enumerate(sizes))
    return lay.encode(lay.Layout(sizes, tensors))


class Engine:
    """One process, started again when it has ended."""

    process: Process
    client: SimClient[SharedClient]

    def __init__(self, world: "GmsWorld", number: int) -> None:
        self.world = world
        self.number = number
        self.key = world.keys[number % len(world.keys)]
        """Which model it is an engine of."""
        self.role = ("primary", "shadow", "deployer", "shadow")[number // len(world.keys)]
        self.started = False
        self.mapped: list[int] = []
        self.reads = 0
        """The layout that it has mapped."""
        self.bound = ""
        """The structure by which its views are laid out."""
        self.writes: tuple[int, ...] = ()
        self.moves = self.parks = False
        """It writes a layout that it has kept, to park it or to bring it back; until that is answered it only waits."""
        self.made = 0
        self.wakes = self.stale = self.was_stopped = False
        self.asked_at = -1.0
        self.wish = m.Open("ro")
        """The last one."""
        self.told = 0
        """Which layout there is, as far as it was told."""

    @property
    def alive(self) -> bool:
        return self.started and self.process.alive

    def start(self) -> None:
        world, rng = self.world, self.world.rng
        process = self.process = world.kernel.spawn(f"{self.role}-{self.number}")
        self.mapped, self.reads, self.bound, self.writes, self.made = [], 0, "", (), 0
        self.moves = self.parks = False
        self.wakes = self.stale = self.was_stopped = False
        self.asked_at, self.told = -1.0, 0
        machine = SharedClient(f"{self.role}-{self.number}", process.pid, self.key, world.batch)
        client = self.client = SimClient(world, process, machine, lambda effect: self._on(effect))
        self.started = True
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
            wish = m.Open("rw", rng.choice((0.05, 0.5, 2.0)), replace=replace, bytes=sum(self.writes))
        elif self.role == "shadow":
            wish = m.Open("ro", timeout)
        else:
            self.writes = rng.choice(SHAPES)
            wish = m.Open("rw_or_ro", timeout)
        self._ask(wish)

    def again(self, most_s: float = 0.2) -> None:
        self.process.after(self.world.rng.random() * most_s + 0.005, self.want)

    def _on(self, effect: c.Effect) -> None:
        world, rng, process = self.world, self.world.rng, self.process
        if isinstance(effect, c.Got | m.Committed | c.No):
            world.together(self.key)
        if isinstance(effect, c.Got):
            self.asked_at = -1.0
            if effect.mode == "rw":
                self.made, self.moves, self.parks = 0, bool(self.wish.moves), bool(self.wish.parks)
                process.after(rng.random() * 0.05, self._make)
            else:
                if self.bound not in ("", effect.hash):
                    world.fail(f"{process} wakes on a layout of another structure")
                self.bound = effect.hash
                self._read(effect.generation)
        elif isinstance(effect, m.Created):
            self.made, self.asked_at = self.made + 1, -1.0
            process.after(rng.random() * 0.05, self._make)
        elif isinstance(effect, m.Changed):
            self.told = effect.generation
        elif isinstance(effect, m.RegionDropped) or (isinstance(effect, m.Committed) and self.parks):
            self.asked_at, self.parks = -1.0, False
            world.parked += 1
            process.after(rng.random() * 0.5, self._wake)
        elif isinstance(effect, m.Committed):
            world.grants, self.asked_at = world.grants + 1, -1.0
            self.told = effect.generation
            self.bound = effect.hash
            self._read(effect.generation)
        elif isinstance(effect, c.No):
            self._refused(effect)
        elif isinstance(effect, c.Lost):
            self.asked_at, self.parks = -1.0, False
            process.after(rng.random() * 0.1, self._wake) if self.bound else self.again()
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
        if no.reason == "parked":
            process.after(rng.random() * 0.01, self._bring_back)
        elif self.wish.parks:
            process.after(rng.random() * 0.5, self._wake)
        elif self.wakes or no.reason == "stale":
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
                self.client.feed(m.Create(self.writes[self.made]))
        else:
            self._publish()

    def _publish(self) -> None:
        if self.client.machine.doing is not Doing.WRITING:
            return
        generation, sizes = self.client.machine.draft, self.writes
        if self.world.rng.random() < 0.05:
            self.client.feed(c.Publish(document((*sizes, 1)), sizes))  # refused: those aren't its slabs
            return
        slabs, old = self.client.kept[generation], self.client.machine.kept
        self.asked_at = self.world.kernel.now
        self.world.layouts[generation] = [memory(self.process, slabs[number]) for number in range(len(sizes))]
        self.client.feed(c.Publish(old.layout if self.moves and old is not None else document(sizes), sizes))

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
            self.client.feed(m.Checksums(generation, ["ab" for _ in slabs]))

    def _unmap(self) -> None:
        for mapping in self.mapped:
            self.process.unmap(mapping)
        self.mapped, self.reads = [], 0

    def _give_up(self) -> None:
        if self.client.machine.doing is Doing.NOTHING and not self.stale:
            return
        if self.world.calm and self.client.machine.doing is Doing.READING:
            return
        if self.moves and self.client.machine.doing is Doing.WRITING:
            self.asked_at, self.parks = -1.0, False
            self.client.feed(c.Sleep())
            self.process.after(self.world.rng.random() * 0.1, self._bring_back)
            return
        self._unmap()
        self.stale, self.bound, self.asked_at = False, "", -1.0
        self.client.feed(c.Release())
        self.again(0.5)

    def _sleep(self) -> None:
        if self.client.machine.doing is Doing.READING:
            self._unmap()
            self.client.feed(c.Sleep())
            if self.world.rng.random() < 0.5 and not self.world.calm:
                self.process.after(self.world.rng.random() * 0.5 + 0.001, self._park)
            elif self.world.rng.random() < 0.8:  # else it sleeps until it is killed, or its layout is no more
                self.process.after(self.world.rng.random() * 1.0 + 0.001, self._wake)

    def _wake(self) -> None:
        if self.client.machine.doing is Doing.NOTHING and not self.stale and not self.parks:
            self.wakes = True
            self._ask(m.Open("ro", WAKE_S, expect=self.bound))

    def _ask(self, wish: m.Open) -> None:
        self.wish, self.asked_at = wish, self.world.kernel.now
        self.client.feed(wish)
        if (wish.expect or wish.moves) and not self.world.calm and self.world.rng.random() < 0.2:
            self.process.after(self.world.rng.random() * 0.3, partial(self._call_off, wish))

    def _call_off(self, wish: m.Open) -> None:
        """Its program is interrupted while it waits, and tries again later."""
        if self.wish is wish and self.client.machine.doing is Doing.WAITING:
            self.asked_at = -1.0
            self.client.feed(c.Sleep())
            self.process.after(self.world.rng.random() * 0.5, self._wake if self.bound else self.want)

    @property
    def is_parked(self) -> bool:
        kept = self.client.machine.kept
        return kept is not None and kept.table

    def _park(self) -> None:
        kept = self.client.machine.kept
        if kept is None or self.is_parked or self.client.machine.doing is not Doing.NOTHING or self.stale:
            self._wake()
            return
        self.writes = (sum(kept.sizes),)
        self._ask(m.Open("rw", self.world.rng.choice((0.0, 0.5)), replace=True, parks=kept.generation))

    def _bring_back(self) -> None:
        """Or, where another process has done that, what was wanted is wanted again."""
        kept = self.client.machine.kept
        if self.client.machine.doing is not Doing.NOTHING:
            return
        if kept is None or not kept.table:
            self._wake() if self.bound else self.want()
            return
        self.writes = lay.decode(kept.layout).slabs
        wish = m.Open("rw", WAKE_S, replace=True, bytes=sum(self.writes), unparks=kept.generation)
        self._ask(wish)

    # -- how the world sees it -------------------------------------------------------------------------------------

    @property
    def is_writer(self) -> bool:
        return (
            self.alive
            and self.client.machine.doing is Doing.WRITING  # the others are dearer, and all are asked at each event
            and not self.client.machine.commits
            and self.client.connected
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
