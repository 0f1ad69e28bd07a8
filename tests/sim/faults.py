"""What goes wrong in a schedule of the simulator, from outside: one fault at a time, chosen by the seed.

A fault that takes something from sight which nothing could prove afterwards says so (`World.silent`, `file_lost`, ...):
what must hold in spite of it stands in `world.py`.
"""

import contextlib
import errno
import math
from typing import TYPE_CHECKING

from evidence.rules.standing import Me
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from tests.sim.actors import HOLDER, RUN, SOCKET, SimClient
from tests.sim.engines import DEVICE, Slot, Tree
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World


class Faults:
    def __init__(self, world: "World") -> None:
        self.world = world
        self.rng = world.rng
        self.kernel = world.kernel
        self._backups: list[bytes] = []

    def any(self) -> None:
        roll = self.rng.random()
        for share, fault in _FAULTS:
            roll -= share
            if roll < 0:
                fault(self)
                break
        self.world.lose_sight()

    # -- processes -------------------------------------------------------------------------------------------------

    def _victims(self) -> list[Process]:
        mains = [slot.tree.main for slot in self.world.slots if slot.tree is not None]
        return [process for process in mains + self.world.spawned[-6:] if process.alive]

    def _slot_of_the_holder(self) -> Slot | None:
        for slot in self.world.slots:
            if slot.tree is not None and slot.tree.holds and slot.tree.main.alive:
                return slot
        return None

    def _holder(self) -> Tree | None:
        slot = self._slot_of_the_holder()
        return slot.tree if slot is not None else None

    def _kill_the_holder(self) -> None:
        holder, rng = self._holder(), self.rng
        if holder is None:
            return self._kill_anybody()
        self.world.note_fault(f"kill the holder {holder.name}")
        step_s = rng.choice((None, None, 0.3))
        if rng.random() < 0.15 and holder.main.alive:
            self._pin(holder.main)
        self.kernel.kill(holder.main, step_s=step_s)
        if rng.random() < 0.3:
            for process in holder.processes[1:]:
                self.kernel.kill(process)
        return None

    def _kill_anybody(self) -> None:
        victims = self._victims()
        if victims:
            victim = self.rng.choice(victims)
            self.world.note_fault(f"kill {victim}")
            self.kernel.kill(victim, step_s=self.rng.choice((None, 0.2)))

    def _kill_the_server(self) -> None:
        rng, server, holder = self.rng, self.world.server, self._holder()
        if server is None or not server.process.alive:
            return
        self.world.note_fault("kill the server")
        self.back_up()
        self.kernel.kill(server.process)
        spoil = rng.random()
        for share, how in ((0.12, "tear"), (0.12, "corrupt"), (0.06, "unlink"), (0.18, "restore")):
            spoil -= share
            if spoil < 0:
                self._spoil(how)
                break
        if rng.random() < 0.4 and holder is not None:
            self.kernel.kill(holder.main)

    def _stop_anybody(self) -> None:
        world, server = self.world, self.world.server
        victims = self._victims() + ([server.process] if server is not None and server.process.alive else [])
        if not victims:
            return
        victim = self.rng.choice(victims)
        world.note_fault(f"stop {victim}")
        world.server_was_stopped |= server is not None and victim is server.process
        self.kernel.stop(victim)
        for tree in world.trees.values():
            if victim in tree.processes or victim is tree.main:
                tree.was_stopped = True
        self.kernel.after(self.rng.random() * 2, lambda: self._cont(victim))

    def freeze_the_holder(self) -> None:
        """One of its processes: no kill ends that before it is thawed."""
        holder = self._holder()
        if holder is None or not self.world.others.random() < 0.9:
            return
        victim = self.world.others.choice([process for process in holder.processes if process.alive])
        self.world.note_fault(f"freeze {victim} and kill the holder {holder.name}")
        holder.was_stopped = True
        self.world.frozen.add(victim)
        self.kernel.freeze(victim)
        self.kernel.kill(holder.main)
        self.kernel.after(0.5 + self.world.others.random() * 3, lambda: self.kernel.thaw(victim))

    def _cont(self, process: Process) -> None:
        if self.world.server is not None and process is self.world.server.process:
            self.world.server_went_on_at = self.kernel.now
        if process.alive:
            self.world.say(f"continue {process}")
            self.kernel.cont(process)

    def _kill_all(self) -> None:
        self.world.note_fault("everything is killed at once")
        server = self.world.server
        for process in [*self._victims(), *([server.process] if server else [])]:
            self.kernel.kill(process)

    def _pin(self, process: Process) -> None:
        """A driver that keeps memory for a while after its owner is gone."""
        fd = -1
        for number, file in process.descriptors.items():
            if type(file).__name__ == "Allocation":
                fd = number
        if fd >= 0:
            process.pin(fd, self.rng.random())

    # -- what programs do that nobody expects ----------------------------------------------------------------------

    def _impostor(self) -> None:
        """A process of an engine's tree that takes itself for the main process."""
        holder = self._holder()
        if holder is None or holder.main.stopped:
            return
        self.world.note_fault("a child takes itself for the main process")
        child = holder.main.spawn("impostor")
        holder.children.append(child)
        holder.impostor = True
        engine_id, _, incarnation = holder.name.rpartition(".")

        def on(effect: c.Effect) -> None:
            if isinstance(effect, c.Lost | c.No):
                child.exit()

        client = SimClient(self.world, child, Me(engine_id, incarnation, child.pid, True), on)
        client.machine.holds[m.ACTIVE] = holder.granted
        child.after(0.001, lambda: client.feed(c.Tick()))
        child.after(0.5, child.exit)

    def _close(self) -> None:
        """The holder's program closes its client and lives on, with all that it has on the device."""
        slot = self._slot_of_the_holder()
        if slot is None or slot.tree is None or slot.client is None or slot.tree.main.stopped:
            return
        self.world.note_fault("the holder closes its client and lives on")
        slot.tree.let_go = True
        slot.client.close()
        slot.tree.main.after(self.rng.random() * 2, slot.tree.main.exit)

    def _execute(self) -> None:
        slot = self._slot_of_the_holder()
        if slot is None or slot.tree is None or slot.tree.main.stopped or not self.kernel.has_pidfs:
            return  # (older kernels can't tell that it is the same process)
        self.world.note_fault("the holder executes its program anew")
        slot.runs_another_program()

    def _switchover(self) -> None:
        admin = self.kernel.spawn("admin")
        try:
            fd = admin.connect(f"{RUN}/{SOCKET}")
        except OSError:
            admin.exit()
            return
        self.world.note_fault("a switchover is asked for")
        admin.send(fd, m.Observe(protocol=m.PROTOCOL))
        admin.send(
            fd, m.Switchover(to=self.rng.choice(("", "engine-a", "engine-b")), drain_timeout_s=self.rng.random() * 0.4)
        )
        admin.after(self.rng.random() * 0.6, admin.exit)

    # -- the disk --------------------------------------------------------------------------------------------------

    def _spoil(self, how: str) -> None:
        world = self.world
        try:
            if how == "tear":
                self.kernel.tear(HOLDER)
            elif how == "corrupt":
                self.kernel.corrupt(HOLDER)
            elif how == "restore":
                if not self._backups:
                    return
                self.kernel.files.find(HOLDER).data = self.rng.choice(self._backups)
            else:
                self.kernel.files.unlink(HOLDER)
        except OSError:
            return
        world.spoiled = True
        if how == "restore":
            world.older_file = True
            world.met.clear()
        world.file_lost = world.file_lost or how in ("unlink", "restore")
        world.note_fault(f"{how} the holder file")

    def back_up(self) -> None:
        with contextlib.suppress(OSError):
            self._backups.append(self.kernel.files.find(HOLDER).data)

    def _disk(self) -> None:
        full = self.rng.random() < 0.5
        self.world.note_fault("the disk is full" if full else "the disk fails")
        self.kernel.files.disk_errno = errno.ENOSPC if full else errno.EIO
        self.kernel.after(self.rng.random() * 1.0, self._disk_ok)

    def _disk_ok(self) -> None:
        self.kernel.files.disk_errno = 0

    # -- time and memory -------------------------------------------------------------------------------------------

    def _clock(self) -> None:
        seconds = self.rng.choice((-1, 1)) * self.rng.random() * 1e6
        self.world.note_fault("the clock jumps")
        self.world.clock_went_back |= seconds < 0
        self.kernel.jump_wall_clock(seconds)

    def _foreign_memory(self) -> None:
        self.world.note_fault("somebody else takes device memory")
        self.kernel.devices[DEVICE].foreign_bytes = self.rng.choice((30, 50, 90))
        self.kernel.after(self.rng.random() * 2, self._foreign_gone)

    def _foreign_gone(self) -> None:
        self.kernel.devices[DEVICE].foreign_bytes = 0

    def _reader(self) -> None:
        if self.rng.random() < 0.5:
            self.world.note_fault("the memory reader fails")
            self.kernel.devices[DEVICE].reader_works = False
            self.kernel.after(self.rng.random(), self._reader_ok)
        else:
            self.world.note_fault("the memory reader hangs")
            self.world.reader_hangs_until = self.kernel.now + self.rng.random()

    def _reader_ok(self) -> None:
        self.kernel.devices[DEVICE].reader_works = True

    # -- the path --------------------------------------------------------------------------------------------------

    def _path(self) -> None:
        self.world.paths.any()

    # -- the end of all faults -------------------------------------------------------------------------------------

    def end(self) -> None:
        self._disk_ok()
        self._foreign_gone()
        self._reader_ok()
        # (An engine that asks for a moment only begins the bound anew for all, each time that it is the first.)
        patient = not any(slot.polls for slot in self.world.slots)
        hangs_on = patient and self.world.memory_bound_s < math.inf and self.rng.random() < 0.2
        self.world.reader_hangs_until = math.inf if hangs_on else 0.0
        self.world.paths.end()


_FAULTS = (
    (0.28, Faults._kill_the_holder),
    (0.11, Faults._kill_anybody),
    (0.19, Faults._kill_the_server),
    (0.10, Faults._stop_anybody),
    (0.05, Faults._disk),
    (0.04, Faults._path),
    (0.03, Faults._clock),
    (0.05, Faults._foreign_memory),
    (0.03, Faults._reader),
    (0.03, Faults._switchover),
    (0.02, Faults._impostor),
    (0.02, Faults._close),
    (0.02, Faults._execute),
    (0.03, Faults._kill_all),
)
