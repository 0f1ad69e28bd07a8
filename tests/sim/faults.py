"""What goes wrong in a schedule of the simulator, from outside: one fault at a time, chosen by the seed.

A fault that takes something from sight which nothing could prove afterwards says so (`World.silent`, `file_lost`, ...):
what must hold in spite of it stands in `world.py`.
"""

import contextlib
import math

from evidence.rules.standing import Me
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from tests.sim.actors import HOLDER, RUN, SOCKET, SimClient
from tests.sim.engines import DEVICE, Slot, Tree
from tests.sim.process import Process
from tests.sim.tree_faults import TreeFaults


class Faults(TreeFaults):
    file = HOLDER
    device = DEVICE

    def any(self) -> None:
        roll = self.rng.random()
        for share, fault in _FAULTS:
            roll -= share
            if roll < 0:
                fault(self)
                break
        self.world.lose_sight()

    # -- processes -------------------------------------------------------------------------------------------------

    def _slot_of_the_holder(self) -> Slot | None:
        slots: list[Slot] = self.world.slots
        holders = (slot for slot in slots if slot.tree is not None and slot.tree.holds and slot.tree.main.alive)
        return next(holders, None)

    def _holder(self) -> Tree | None:
        slot = self._slot_of_the_holder()
        return slot.tree if slot is not None else None

    def _kill_the_holder(self) -> None:
        holder, rng = self._holder(), self.rng
        if holder is None:
            return self._kill_any()
        self.world.note_fault(f"kill the holder {holder.name}")
        step_s = rng.choice((None, None, 0.3))
        if rng.random() < 0.15 and holder.main.alive:
            self._pin(holder.main)
        self.kernel.kill(holder.main, step_s=step_s)
        if rng.random() < 0.3:
            for process in holder.processes[1:]:
                self.kernel.kill(process)
        return None

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

    def _stop_any(self) -> None:
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
        self.world.lose_sight()
        self.kernel.after(0.5 + self.world.others.random() * 3, lambda: self.kernel.thaw(victim))

    def _cont(self, process: Process) -> None:
        if self.world.server is not None and process is self.world.server.process:
            self.world.server_went_on_at = self.kernel.now
        if process.alive:
            self.world.say(f"continue {process}")
            self.kernel.cont(process)

    def _pin(self, process: Process) -> None:
        """A driver that keeps memory for a while after its owner is gone."""
        fd = -1
        for number, file in process.descriptors.items():
            if type(file).__name__ == "Allocation":
                fd = number
        if fd >= 0:
            process.pin(fd, self.rng.random())

    # -- what programs do unexpectedly -----------------------------------------------------------------------------

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

    def rest(self) -> None:
        """The lock is to be at rest, for a while or until the faults end; perhaps the caller leaves too early."""
        rng, admin = self.world.others, self.kernel.spawn("admin")
        try:
            fd = admin.connect(f"{RUN}/{SOCKET}")
        except OSError:
            admin.exit()
            return
        self.world.note_fault("a sleep is asked for")
        admin.send(fd, m.Observe(protocol=m.PROTOCOL))
        admin.send(fd, m.Sleep(drain_timeout_s=rng.random() * 0.4))
        admin.after(rng.random() ** 2 * 2, admin.exit)
        if rng.random() < 0.7:
            self.kernel.after(rng.random() * 2, self.wake)

    def wake(self) -> None:
        admin = self.kernel.spawn("admin")
        with contextlib.suppress(OSError):
            fd = admin.connect(f"{RUN}/{SOCKET}")
            self.world.note_fault("a wake is asked for")
            admin.send(fd, m.Observe(protocol=m.PROTOCOL))
            admin.send(fd, m.Wake())
        admin.after(0.5, admin.exit)

    def _wake_again(self) -> None:
        """When all faults have ended, until it is heard."""
        server = self.world.server
        if server is None or not server.serves or server.machine.succession.rest.why:
            self.wake()
        self.kernel.after(0.5, self._wake_again)

    # -- the disk --------------------------------------------------------------------------------------------------

    def _spoil(self, how: str) -> bool:
        if not super()._spoil(how):
            return False
        world = self.world
        if how == "restore":
            world.older_file = True
            world.met.clear()
        world.file_lost = world.file_lost or how in ("unlink", "restore")
        world.note_fault(f"{how} the holder file")
        return True

    # -- time and memory -------------------------------------------------------------------------------------------

    def _foreign_memory(self) -> None:
        self.world.note_fault("another process takes device memory")
        self.kernel.devices[DEVICE].foreign_bytes = self.rng.choice((30, 50, 90))
        self.kernel.after(self.rng.random() * 2, self._foreign_gone)

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
        self._wake_again()
        self.world.paths.end()


_FAULTS = (
    (0.28, Faults._kill_the_holder),
    (0.11, Faults._kill_any),
    (0.19, Faults._kill_the_server),
    (0.10, Faults._stop_any),
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
