"""One schedule of the simulator for the ledger: programs that lease, grow, shrink and give back memory of a device, and
that die; a ledger; faults from one seed; and what must hold.

 1. Never two that were promised the same bytes: what living trees have been told, and haven't given back, is never more
    than the device has. What a tree was promised that is dying counts until it is gone, where that can be proven.
 2. Where memory can be read, what is granted was seen to be free; or the tree has it again that never gave it back.
 3. A program that uses no more than it was granted always gets it from the device, where no program has lied about what
    it gave back and no other has used the device.
 4. First on disk, then told: what a tree is told stands in the file under its name.
 5. A number is one lease's, one name's and one tree's, ever.
 6. A program that isn't stopped or killed never loses what it has, whatever happens to the server or its file.
 7. Once the faults stop, every wish is answered within a bound.
 8. The server's sums are those of its leases. It keeps no pidfd that its machine doesn't know, and the other way round.
 9. While an heir of a name lives, a dead holder's bytes are no other's, unless they were to be given back.
10. The machine never finds one of its own rules broken.
11. What outlives its holder is no other's, as long as a process keeps it and the next holder has the window to come,
    from the end of the last one that had it.
12. At the end no other program uses the device, and nothing is foreign, where all ends were proven (what is kept may
    wait for such a lease, and is foreign until it is found).
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

from sidecar.machine.context import Note
from tests.sim.kernel import Kernel, ReleaseOrder
from tests.sim.openfiles import Connection
from tests.sim.process import Process
from tests.sim.schedule import FAULTS_END_S, Schedule
from tests.sim.vram_actors import FILE, LIFE, SimLedger
from tests.sim.vram_faults import VramFaults
from tests.sim.vram_programs import CAPACITY, DEVICE, OTHER, Slot, Tree
from vram.rules import messages as m
from vram.rules import record
from vram.rules.events import Config

WINDOW_S = 1.0
SETTLE_S = 0.3
READER_S = 0.2
OWN = 1 << 40
"""From here on a client counts what it gives back."""
ANSWERED_S = 5.0
"""The longest that a wish may wait at the end: several others have their turn before it."""
SETTLED_S = 3.0
SETTLED_GRANTS = 2
"""Once each program has been given something so often since the faults ended, no more is to be expected."""


class VramWorld(Schedule[SimLedger]):
    calm_s = 12.0
    most_events = 40_000

    def __init__(self, seed: int, *, trace: bool = False) -> None:
        super().__init__(seed, trace=trace)
        rng = self.rng
        self.reads_memory = rng.random() < 0.7
        self.evidence = rng.choices(("peer", "sent", "none"), (7, 2, 1))[0]
        self.apart = rng.random() < 0.4
        self.maps = rng.random() < 0.9
        self.skew = rng.choice((0.0, 0.0, 0.0, 0.0, 0.3))
        self.cut_rate = rng.choice((0.0, 0.0, 0.001, 0.01)) if self.evidence != "none" else 0.0
        self.kernel = Kernel(
            rng,
            order=rng.choice((ReleaseOrder.HIGHEST_FIRST, ReleaseOrder.ANY)),
            release_step_s=rng.choice((0.0005, 0.005, 0.05)),
            has_peer_pidfd=self.evidence == "peer",
            has_pidfs=self.evidence == "peer" and rng.random() < 0.85,
            reuses_pids=rng.random() < 0.3,
        )
        self.devices = (DEVICE, OTHER) if rng.random() < 0.3 else (DEVICE,)
        for device in self.devices:
            self.kernel.add_device(device, CAPACITY)
        self.kernel.make_directories(LIFE)
        self.shim = self.kernel.spawn("shim")
        self.trees: dict[str, Tree] = {}
        self.spawned: list[Process] = []
        self.crash_rate = rng.choice((0.0, 0.0, 0.002, 0.02))
        self.slots = [Slot(self, number) for number in range(rng.choice((2, 3, 4, 5)))]
        self.met: set[Process] = set()
        self.reader_hangs_until = 0.0
        self.directory_lost = False
        self.spoiled = self.clock_went_back = False
        self.lied = self.others_used = self.driver_is_late = False
        self.names_of: dict[int, str] = {}
        """Lease -> its name."""
        self.seen: dict[int, dict[str, tuple[int, int]]] = {}
        """Lease -> what was seen of each device as it was granted."""
        self.held_by: dict[int, str] = {}
        """Lease -> the one tree that was told that it has it."""
        self.newest_of: dict[str, int] = {}
        """Name -> the lease of it that was granted last."""
        self.asked: set[int] = set()
        self.told: dict[tuple[str, int], dict[str, int]] = {}
        """Tree and lease -> what a server said last that it has."""
        self.left: set[int] = set()
        """Estates that were left to others, for their heirs wanted more."""
        self.found_late = False
        """What outlived its holder was given to others, as no next holder came in time."""
        self.again: Counter[tuple[str, str]] = Counter()
        """Tree and device -> what a server said that it has again."""
        self._faults = VramFaults(self)

    # -- what the shells are told ----------------------------------------------------------------------------------

    def server_config(self, incarnation: str) -> Config:
        return Config(
            server_incarnation=incarnation,
            boot_id=self.kernel.boot_id,
            pid_namespace=incarnation if self.apart else "the only one",
            evidence=self.evidence,
            window_s=WINDOW_S,
            settle_s=SETTLE_S,
            reader_s=READER_S,
            age_s=0.1,
            ask_s=0.5,
            ask_again_s=0.5,
            least_held_s=0.2,
            patience_s=0.5,
            foreign_s=1.0,
            reads_memory=self.reads_memory,
            totals={} if self.reads_memory else dict.fromkeys(self.devices, CAPACITY),
            history_size=10,
            copies_under_way=2,
            most_copies_under_way=5,
        )

    def leaves_undone(self) -> bool:
        if self.cut_rate and self.rng.random() < self.cut_rate and self.kernel.now < FAULTS_END_S:
            self.note_fault("something raises in a client's turn")
            return True
        return False

    def unmap(self, process: Process, mapping: int) -> None:
        process.memory.unmap(mapping)

    # -- what must hold --------------------------------------------------------------------------------------------

    def saying(self, server: SimLedger, name: str, message: Any) -> None:
        """The server says something to a tree's process."""
        tree = self.trees[name]
        if isinstance(message, m.Asked):
            self.asked.add(message.lease)
        elif isinstance(message, m.Granted):
            if message.bytes and message.number < OWN:
                self._granting(server, tree, message)
            self.told[name, message.lease] = message.bytes

    def _granting(self, server: SimLedger, tree: Tree, message: m.Granted) -> None:
        lease, bytes = message.lease, message.bytes
        on_disk = {one.lease: one for one in record.decode(self.kernel.files.find(FILE).data).leases}
        found = on_disk.get(lease)
        if found is None or found.tree != tree.name or found.bytes != bytes:
            self.fail(f"{tree.name} is told that lease {lease} has {bytes}, and on disk is {found}")
        named = self.names_of.setdefault(lease, found.name)
        if named != found.name:
            self.fail(f"lease {lease} is {found.name}'s, and was {named}'s")
        if self.held_by.setdefault(lease, tree.name) != tree.name:
            self.fail(f"{tree.name} is told that it has lease {lease}, which was {self.held_by[lease]}'s")
        self.newest_of[named] = lease
        before, told = tree.promised.get(lease, {}), self.told.get((tree.name, lease), {})  # it may be giving this back
        more = {device: count - max(before.get(device, 0), told.get(device, 0)) for device, count in bytes.items()}
        if any(count > 0 for count in more.values()):
            self._check_promises(tree, lease, bytes)
            self.grants += 1
            seen = self.seen[lease]
            for device, count in more.items():
                again = self.again.pop((tree.name, device), 0)
                if self.reads_memory and count > seen.get(device, (0, 0))[0] + again:
                    self.fail(f"{tree.name} is granted {count} of {device}, of which {seen.get(device)} was seen free")

    def got(self, tree: Tree, lease: int, bytes: dict[str, int]) -> None:
        """The program hears of it."""
        tree.promised[lease] = dict(bytes)
        self._check_promises(tree, lease, bytes)

    def _check_promises(self, to: Tree, lease: int, bytes: dict[str, int]) -> None:
        promised: Counter[str] = Counter(bytes)
        shown = [f"{to.name} {lease}: {bytes}"]
        for tree in self.trees.values():
            for number, has in tree.promised.items():
                if number == lease or not self._counts(tree):
                    continue
                promised.update(has)
                shown.append(f"{tree.name} {number}: {has}{'' if tree.alive else ' (dying)'}")
        for slot in self.slots:
            mine = [tree for tree in self.trees.values() if tree.name.startswith(slot.engine_id)]
            if to not in mine and not any(tree.promised and self._counts(tree) for tree in mine):
                promised.update(kept := self._kept(slot))
                shown.append(f"kept for {slot.engine_id}: {kept}")
        for device, count in promised.items():
            if count > CAPACITY and not self.found_late:
                self.fail(f"{count} bytes of {device} are promised: {'; '.join(shown)}")
        self._check_heirs(to, lease, bytes)

    def _kept(self, slot: Slot) -> dict[str, int]:
        """Claim 11."""
        in_use, heard_first = slot.in_use(), self.kernel.wake_s  # the server may hear of an end before the shim
        over = self.kernel.now >= slot.died_at - heard_first + WINDOW_S
        if in_use and (self.spoiled or self.evidence == "none" or over):
            self.found_late = True
            return {}
        return in_use

    def _counts(self, tree: Tree) -> bool:
        """What it was promised is its own, as far as can be known."""
        if tree.let_go and not tree.processes:
            return False
        lost = tree.was_stopped or tree.let_go or not tree.main.alive or tree.impostor or self._is_deaf(tree)
        if self.spoiled and lost:
            return False  # it couldn't come back to a server whose file knows nothing of it
        if tree.alive:
            return any(process.alive and process not in tree.forks for process in tree.processes) or self.maps
        dying_will_do = self.evidence == "none" or self.reads_memory or not self.maps
        return not tree.gone and not dying_will_do and not any(not p.gone for p in tree.forks)

    def _is_deaf(self, tree: Tree) -> bool:
        """A server that is dying has its connection yet: it hasn't heard that it is to come back."""
        file = tree.main.descriptors.get(tree.client.fd or 0)
        return isinstance(file, Connection) and self.server is not None and file.peer.maker is not self.server.process

    def _check_heirs(self, to: Tree, lease: int, bytes: dict[str, int]) -> None:
        """Claim 9."""
        if self.spoiled or self.evidence == "none" or self.found_late:
            return
        kept: Counter[str] = Counter(bytes)
        for tree in self.trees.values():
            for number, has in tree.promised.items():
                if number != lease and self._counts(tree):
                    kept.update(has)
                elif number != lease and self._is_kept(tree, number):
                    kept.update(self._wanted_of(number, has))
        for device, count in kept.items():
            if count > CAPACITY:
                self.fail(f"{count} bytes of {device} are promised or kept for heirs, and {to.name} got {bytes}")

    def _wanted_of(self, lease: int, has: dict[str, int]) -> dict[str, int]:
        """An heir that wishes for less leaves the rest to others, as soon as that is decided; it may not hear of it."""
        name = self.names_of[lease]
        for one in record.decode(self.kernel.files.find(FILE).data).leases:
            if one.name == name and one.lease != lease:
                has = {device: min(count, one.bytes.get(device, 0)) for device, count in has.items()}
        for slot in self.slots:
            for wish in slot.client.machine.wishes.values() if slot.client is not None else ():
                if isinstance(wish.said, m.Reserve) and wish.said.name == name:
                    needs = wish.said.needs
                    has = {device: min(count, needs.get(device, 0)) for device, count in has.items()}
        return has

    def _is_kept(self, tree: Tree, lease: int) -> bool:
        """It died, and an heir has not had its lease yet."""
        others, name = [other for other in self.trees.values() if other is not tree], self.names_of.get(lease, "")
        heirs = any(other.main.alive and other.heir_of.get(name, math.inf) < tree.died_at for other in others)
        inherited = self.newest_of.get(name, lease) != lease
        return heirs and not inherited and not tree.alive and not tree.let_go and lease not in self.asked | self.left

    def is_heir(self, tree: Tree, name: str) -> None:
        for other in self.trees.values():
            if not other.main.alive:  # its shim may not have seen that yet
                other.died_at = min(other.died_at, self.kernel.now)
        tree.heir_of.setdefault(name, self.kernel.now)

    def out_of_memory(self, tree: Tree, device: str, size: int) -> None:
        excused = self.lied or self.others_used or self.driver_is_late or self.spoiled or self.found_late
        if not excused and self.evidence != "none":
            free = self.kernel.devices[device].free_bytes
            self.fail(f"{tree.name} finds {free} bytes of {device} where {size} are its own")

    def lost(self, tree: Tree, why: str) -> None:
        excused = tree.was_stopped or tree.impostor or tree.let_go or not tree.promised
        if not excused:
            self.fail(f"{tree.name} lost what it has though nothing was wrong with it: {why}")

    def noted(self, server: SimLedger, note: Note) -> None:
        if note.alarm and "a bug of the ledger" in str(note.detail["text"]):
            self.fail(str(note.detail["text"]))
        if note.event == "granted":
            self.seen[int(note.detail["lease"])] = server.last_read
        if note.event in ("has_again", "found"):
            self.again[str(note.detail["tree"]), str(note.detail["device"])] += int(note.detail["bytes"])
        if note.event == "left_to_others":
            of_it = {number for number, name in self.names_of.items() if name == note.detail["name"]}
            self.left |= of_it | {int(note.detail["lease"])}  # it may be a next one's, which was never told of it

    # -- a schedule ------------------------------------------------------------------------------------------------

    def _new_server(self) -> SimLedger | None:
        try:
            self.kernel.make_directories(LIFE)
        except OSError:
            self.kernel.after(0.1, self.start_server)
            return None
        return SimLedger(self)

    def _clients(self) -> Iterable[Callable[[], None]]:
        return [slot.start for slot in self.slots]

    def _any_fault(self) -> None:
        self._faults.any()

    def _is_settled(self) -> bool:
        fed = all(slot.given_in_calm >= SETTLED_GRANTS for slot in self.slots)
        return fed and self.kernel.now >= FAULTS_END_S + SETTLED_S

    def _calm(self) -> None:
        kernel = self.kernel
        self.skew = 0.0
        self._faults.end()
        for process in list(kernel.processes.values()):
            if process.stopped:
                kernel.cont(process)
        if self.server is not None and self.server.speaks_another_version:
            kernel.kill(self.server.process)
        current = {slot.tree.name for slot in self.slots if slot.tree is not None and slot.tree.main.alive}
        for tree in self.trees.values():
            if tree.name not in current:
                for process in (*tree.processes, *tree.children):
                    kernel.kill(process)
        for slot in self.slots:
            slot.shim_kills, slot.forks, slot.hears = True, False, True
            slot.calm_down()

    @property
    def undecided(self) -> bool:
        """An end can't be proven, and an alarm says so. (Where the server sees all processes it can be.)"""
        can_prove = self.kernel.has_pidfs and not self.apart and not self.spoiled
        alarms = self.server.machine.context.alarms if self.server is not None and self.server.serves else {}
        return not can_prove and any("nothing proves" in text for text in alarms.values())

    def _check_the_end(self) -> None:
        server, now = self.server, self.kernel.now
        if server is None or not server.serves:
            self.fail("no server runs at the end")
        machine = server.machine
        for slot in self.slots if not self.undecided else ():
            for number, since in slot.wished_at.items():
                if slot.tree is not None and slot.tree.main.alive and not slot.tree.let_go and now - since > ANSWERED_S:
                    self.fail(
                        f"{slot.tree.name} has waited {now - since:.1f} s for its wish {number}: {machine.status}"
                    )
        leased: Counter[str] = Counter()
        returning: Counter[str] = Counter()
        for lease in machine.leases.all.values():
            leased.update(lease.bytes)
            returning.update(lease.returning)
        if +leased != +machine.leases.leased or +returning != +machine.leases.sum_returning:
            self.fail(
                f"the sums are {machine.leases.leased} and {machine.leases.sum_returning}, of {machine.leases.all}"
            )
        known, kept = set(machine.incarnations._by_process), set(server.processes)
        if known != kept:
            self.fail(f"pidfds only the machine knows: {sorted(known - kept)}; only the shell: {sorted(kept - known)}")
        if self.reads_memory and +machine.devices.foreign and not self.undecided:
            self.fail(f"at the end {+machine.devices.foreign} are foreign: {machine.status}")
        if "broken" in machine.context.alarms:
            self.fail(machine.context.alarms["broken"])
