"""What goes wrong in a schedule of the simulator for the ledger, from outside: one fault at a time, by the seed."""

from typing import Any

from evidence.rules import client_events as ec
from evidence.rules.standing import Me
from tests.sim.openfiles import Allocation
from tests.sim.process import Process
from tests.sim.tree_faults import TreeFaults
from tests.sim.vram_actors import FILE, SimHolder
from tests.sim.vram_programs import DEVICE, Tree


class VramFaults(TreeFaults):
    file = FILE
    device = DEVICE

    def any(self) -> None:
        roll = self.rng.random()
        for share, fault in _FAULTS:
            roll -= share
            if roll < 0:
                fault(self)
                break

    # -- processes -------------------------------------------------------------------------------------------------

    def _holders(self) -> list[Tree]:
        trees = [slot.tree for slot in self.world.slots if slot.tree is not None]
        return [tree for tree in trees if tree.promised and tree.main.alive]

    def _kill_a_holder(self) -> None:
        holders, rng = self._holders(), self.rng
        if not holders:
            return
        holder = rng.choice(holders)
        self.world.note_fault(f"kill the holder {holder.name}")
        if rng.random() < 0.15:
            self._pin(holder.main)
        self.kernel.kill(holder.main, step_s=rng.choice((None, None, 0.3)))
        if rng.random() < 0.3:
            for process in holder.processes[1:]:
                self.kernel.kill(process)

    def _kill_the_server(self) -> None:
        rng, server = self.rng, self.world.server
        if server is None or not server.process.alive:
            return
        self.world.note_fault("kill the server")
        self.back_up()
        self.kernel.kill(server.process)
        spoil = rng.random()
        for share, how in ((0.08, "tear"), (0.08, "corrupt"), (0.06, "unlink"), (0.1, "restore")):
            spoil -= share
            if spoil < 0:
                self._spoil(how)
                break
        holders = self._holders()
        if rng.random() < 0.4 and holders:
            self.kernel.kill(rng.choice(holders).main)

    def _spoil(self, how: str) -> bool:
        spoiled = super()._spoil(how)
        if spoiled:
            self.world.note_fault(f"{how} the file")
        return spoiled

    def _stop_any(self) -> None:
        world, server = self.world, self.world.server
        victims = self._victims() + ([server.process] if server is not None and server.process.alive else [])
        if not victims:
            return
        victim = self.rng.choice(victims)
        world.note_fault(f"stop {victim}")
        self.kernel.stop(victim)
        for tree in world.trees.values():
            tree.was_stopped |= victim in tree.processes
        self.kernel.after(self.rng.random() * 2, lambda: self.kernel.cont(victim) if victim.alive else None)

    def _pin(self, process: Process) -> None:
        """A driver that keeps memory for a while after its owner is gone."""
        for number, file in process.descriptors.items():
            if isinstance(file, Allocation):
                process.pin(number, self.rng.random())
                self.world.driver_is_late = True
                return

    # -- what programs do that is not expected ---------------------------------------------------------------------

    def _impostor(self) -> None:
        """A process of a tree that takes itself for the main process, and claims what that has."""
        holders = self._holders()
        if not holders or holders[0].main.stopped:
            return
        holder = holders[0]
        self.world.note_fault("a child takes itself for the main process")
        child = holder.main.spawn("impostor")
        holder.children.append(child)
        holder.impostor = True
        engine_id, _, incarnation = holder.name.rpartition(".")

        def on(effect: Any) -> None:
            if isinstance(effect, ec.Lost | ec.No):
                child.exit()

        client = SimHolder(self.world, child, Me(engine_id, incarnation, child.pid, True), on)
        child.after(0.001, lambda: client.feed(ec.Tick()))
        child.after(0.5, child.exit)

    def _close(self) -> None:
        """A holder's program closes its client and lives on, with all that it has on the device."""
        for slot in self.world.slots:
            tree = slot.tree
            if (
                tree is not None
                and slot.client is not None
                and tree.promised
                and tree.main.alive
                and not tree.main.stopped
            ):
                self.world.note_fault("a holder closes its client and lives on")
                tree.let_go = True
                slot.client.close()
                tree.main.after(self.rng.random() * 2, tree.main.exit)
                return

    def _execute(self) -> None:
        for slot in self.world.slots:
            if slot.tree is not None and slot.tree.promised and slot.tree.main.alive and self.kernel.has_pidfs:
                if slot.tree.main.stopped:
                    return
                self.world.note_fault("a holder executes its program anew")
                slot.runs_another_program()
                return

    # -- the disk, time and memory ---------------------------------------------------------------------------------

    def _foreign(self) -> None:
        """A process without a lease takes memory, grows, and ends."""
        self.world.note_fault("another process takes device memory")
        self.world.others_used = True
        device = self.kernel.devices[DEVICE]
        device.foreign_bytes = self.rng.choice((20, 40, 90))
        self.kernel.after(self.rng.random(), self._foreign_grows)
        self.kernel.after(self.rng.random() * 2, self._foreign_gone)

    def _foreign_grows(self) -> None:
        device = self.kernel.devices[DEVICE]
        if device.foreign_bytes and self.kernel.now < 4.0:
            device.foreign_bytes += 10

    def end(self) -> None:
        self._disk_ok()
        self._foreign_gone()
        self._reader_ok()
        self.world.reader_hangs_until = 0.0


_FAULTS = (
    (0.28, VramFaults._kill_a_holder),
    (0.11, VramFaults._kill_any),
    (0.20, VramFaults._kill_the_server),
    (0.10, VramFaults._stop_any),
    (0.05, VramFaults._disk),
    (0.03, VramFaults._clock),
    (0.07, VramFaults._foreign),
    (0.05, VramFaults._reader),
    (0.03, VramFaults._impostor),
    (0.03, VramFaults._close),
    (0.02, VramFaults._execute),
    (0.03, VramFaults._kill_all),
)
