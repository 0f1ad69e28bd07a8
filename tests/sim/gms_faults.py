"""What goes wrong in a schedule of the simulator for GMS, from outside: one fault at a time, chosen by the seed.

A fault that takes something away which nothing could prove afterwards says so (`GmsWorld.spoiled`, `blind`, ...): what
must hold in spite of it stands in `gms_world.py`.
"""

import contextlib
import errno
from typing import TYPE_CHECKING

from gms.rules import messages as m
from gms.rules import record
from tests.sim.gms_actors import DEVICE, FILE, SOCKET, SimGms
from tests.sim.gms_engine import Engine, document
from tests.sim.gms_pools import KEY, PoolEngine
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.gms_world import GmsWorld


Living = list[Engine | PoolEngine]


class GmsFaults:
    def __init__(self, world: "GmsWorld") -> None:
        self.world = world
        self.rng = world.rng
        self.kernel = world.kernel
        self._keys = (*world.keys, *([KEY] if world.pair is not None else []))

    def any(self) -> None:
        """What can't go wrong now is passed over, and the next in the list goes wrong."""
        roll = self.rng.random()
        engines: Living = [*self.world.engines, *(self.world.pair.engines if self.world.pair is not None else [])]
        living = [engine for engine in engines if engine.alive]
        server = self.world.server
        if server is not None and not server.process.alive:
            server = None
        if roll < 0.25 and living:
            self._kill_an_engine(living)
        elif roll < 0.50 and server is not None:
            self._kill_the_server(server, living)
        elif roll < 0.62 and (living or server is not None):
            self._stop_any(server, living)
        elif roll < 0.70:
            self._fill_the_disk()
        elif roll < 0.73:
            self._jump_the_clock()
        elif roll < 0.81:
            self._take_memory()
        elif roll < 0.84 and server is not None:
            self._dead_waiter(server)
        elif roll < 0.88 and living:
            self._fork(self.rng.choice(living))
        elif roll < 0.93:
            self._impostor()
        elif roll < 0.95:
            self._drop()
        else:
            self.world.note_fault("everything is killed at once")
            for process in [*(engine.process for engine in living), *([server.process] if server else [])]:
                self.kernel.kill(process)

    def end(self) -> None:
        self._disk_ok()
        self._foreign_gone()

    # -- processes -------------------------------------------------------------------------------------------------

    def _kill_an_engine(self, living: Living) -> None:
        rng = self.rng
        writers = [engine for engine in living if isinstance(engine, PoolEngine) or engine.is_writer]
        victim = rng.choice(writers if writers and rng.random() < 0.5 else living)
        self.world.note_fault(f"kill {victim.process}")
        self.kernel.kill(victim.process, step_s=rng.choice((None, None, 0.2)))

    def _kill_the_server(self, server: SimGms, living: Living) -> None:
        rng = self.rng
        self.world.note_fault("kill the server")
        self.kernel.kill(server.process)
        if rng.random() < 0.15:
            self._spoil(rng.choice(("tear", "corrupt", "unlink", "restore an older version of")))
        if rng.random() < 0.3 and living:
            self.kernel.kill(rng.choice(living).process)

    def _stop_any(self, server: SimGms | None, living: Living) -> None:
        victims = [engine.process for engine in living] + ([server.process] if server is not None else [])
        stopped = self.rng.choice(victims)
        self.world.note_fault(f"stop {stopped}")
        self.kernel.stop(stopped)
        for engine in self.world.engines:
            engine.was_stopped = engine.was_stopped or (engine.alive and engine.process is stopped)
        self.kernel.after(self.rng.random() * 2, lambda: self.kernel.cont(stopped) if stopped.alive else None)

    def _dead_waiter(self, server: SimGms) -> None:
        """The server finds both at once: those who kept a writer out have gone, and the writer has died."""
        waiting = [engine for engine in self.world.engines if engine.alive and engine.waits_to_write]
        if not waiting or server.process.stopped:
            return
        victim = self.rng.choice(waiting)
        self.world.note_fault(f"{victim.process} dies while it waits, unnoticed")
        self.kernel.stop(server.process)
        for engine in self.world.engines:
            if engine.alive and not engine.process.stopped:
                engine.process.after(0.0, engine._sleep)
        self.kernel.kill(victim.process)
        self.kernel.after(0.5, lambda: self.kernel.cont(server.process) if server.process.alive else None)

    def _fork(self, engine: Engine | PoolEngine) -> None:
        """A grandchild has the connection and the descriptors, and outlives its parent."""
        self.world.note_fault(f"{engine.process} forks")
        child = engine.process.fork("fork")
        child.after(self.rng.random(), child.exit)
        self.kernel.after(self.rng.random() * 0.1, lambda: self.kernel.kill(engine.process))

    # -- files, memory, time ---------------------------------------------------------------------------------------

    def _fill_the_disk(self) -> None:
        self.world.note_fault("the disk is full")
        self.kernel.files.disk_errno = errno.ENOSPC
        self.kernel.after(self.rng.random() * 1.0, self._disk_ok)

    def _disk_ok(self) -> None:
        self.kernel.files.disk_errno = 0

    def _jump_the_clock(self) -> None:
        self.world.note_fault("the clock jumps")
        seconds = self.rng.choice((-1, 1)) * self.rng.random() * 1e6
        self.kernel.jump_wall_clock(seconds)

    def _take_memory(self) -> None:
        self.world.note_fault("another process takes device memory")
        self.kernel.devices[DEVICE].foreign_bytes = self.rng.choice((30, 60, 95))
        self.kernel.after(self.rng.random() * 1.5, self._foreign_gone)

    def _foreign_gone(self) -> None:
        self.kernel.devices[DEVICE].foreign_bytes = 0

    def _spoil(self, how: str) -> None:
        before = self.world.on_disk()
        try:
            if how == "tear":
                self.kernel.tear(FILE)
            elif how == "corrupt":
                self.kernel.corrupt(FILE)
            elif how == "unlink":
                self.kernel.files.unlink(FILE)
            else:
                self.kernel.files.find(FILE).data = self.rng.choice(self.world.older or [b""])
        except FileNotFoundError:
            return
        self.world.blind = self.world.blind or how == "unlink"
        if self.world.on_disk() != before:
            self.world.spoiled = True
            self.world.last_given = 0
            if self.world.pair is not None:
                self.world.pair.spoiled = True
            self.world.blind = self.world.blind or self.world.on_disk() is not None
            if before is not None:
                self.world.over_since |= {each.generation: "a spoiled file" for each in before.regions}
        self.world.note_fault(f"{how} the file")

    def _drop(self) -> None:
        """A person gives a model or a pool up: `gmsctl drop`."""
        person = self.kernel.spawn("gmsctl")
        with contextlib.suppress(OSError):
            fd = person.connect(SOCKET)
            self.world.note_fault("a region is dropped")
            person.send(fd, m.Observe(protocol=m.PROTOCOL))
            person.send(fd, m.DropRegion(key=self.rng.choice(self._keys), timeout_s=0.5))
        person.after(self.rng.random(), person.exit)

    # -- a process that lies --------------------------------------------------------------------------------------

    def _impostor(self) -> None:
        """A process that hands back what it has not, or talks out of turn."""
        rng = self.rng
        impostor = self.kernel.spawn("impostor")
        try:
            fd = impostor.connect(SOCKET)
        except OSError:
            impostor.exit()
            return
        self.world.note_fault("an impostor")
        disk = self.world.on_disk()
        if rng.random() < 0.8:
            key = rng.choice(self._keys)
            policy: m.Policy = "exclusive" if key == KEY else "shared"
            impostor.send(
                fd, m.Hello(protocol=m.PROTOCOL, engine_id="impostor", pid=impostor.pid, key=key, policy=policy)
            )
        roll = rng.random()
        if roll < 0.6:
            self._hand_back(impostor, fd, disk.region(rng.choice(self._keys)) if disk is not None else None)
        elif roll < 0.8:
            impostor.send(
                fd,
                rng.choice(
                    (m.Create(size=5), m.Commit(layout=b"x"), m.Withdraw(), m.Dropped(generation=1), m.ReleasePool())
                ),
            )
            impostor.send(fd, m.Open(mode="ro", timeout_s=0.1, have=disk.given if disk is not None else 0))
            impostor.send(fd, m.Open(mode="ro"))
        else:
            impostor.send(fd, m.Observe(protocol=m.PROTOCOL))
            impostor.send(fd, m.Watch())
            impostor.send(fd, m.AskStatus())
        impostor.after(rng.random() * 0.5, impostor.exit)

    def _hand_back(self, impostor: Process, fd: int, disk: record.Region | None) -> None:
        """Nearly what stands in the file."""
        world, rng = self.world, self.rng
        sizes = [slab.size for slab in disk.slabs] if disk is not None and disk.slabs else [7]
        wrong = rng.choice(("memory", "generation", "hash", "sizes", "nothing", "half"))
        if wrong == "memory" and not world.tells:
            wrong = "hash"  # other memory can't be told from the right one there: who would do that is trusted
        made: list[int] = []
        with contextlib.suppress(OSError):
            made = [impostor.allocate(DEVICE, 1) for _ in sizes]
        for slab in made:
            world.identities[impostor.descriptors[slab]] = f"impostor's {slab}"  # type: ignore[index]
        back = m.HandBack(
            generation=(disk.generation if disk is not None else 0) + (wrong == "generation"),
            hash="0" * 64 if wrong == "hash" else disk.hash if disk is not None else "",
            sizes=[*sizes, 3] if wrong == "sizes" else sizes,
            layout=document(tuple(sizes)),
            reading=rng.random() < 0.5,
            token=rng.choice((0, disk.token if disk is not None else 0)),
        )
        if wrong == "nothing" or not world.tells:
            made = []
        impostor.send(fd, back, made[: len(made) // 2] if wrong == "half" else made)
