"""One schedule of the simulator: engines, a lock server, somebody who asks for switchovers, faults from one seed; and
what must hold.

What must hold, by policy:

 1. Never two: when `Granted` goes out (and when it arrives), no process of any earlier holder's tree lives. With the
    kernel's evidence it must be *gone* (its pidfd readable), unless memory proved it to a server that had restarted;
    where only end-of-file can be seen, or a person asked for `--grant-unproven`, it may be dying, but runs no more.
    Under `--unsafe-presume-dead` only this holds: no earlier main process that is not stopped still thinks that it
    holds.
 2. Nobody of a former holder's tree takes device memory after its successor's grant.
 3. Where memory can be read, what the new holder needs is free when it is granted; or there was an alarm.
 4. Tokens strictly grow, also when the directory or the file is lost.
 5. Once the faults stop, somebody is granted within a bound; or the server says in an alarm what it can't prove.
 6. With proof, a holder that is not stopped or killed never loses the lock, whatever happens to the server or the
    holder file.
 7. Who is granted has looked at its engine since the last holder was lost.
 8. The permit: one at a time, and nobody between a holder's death and its successor's Active.
 9. The server keeps no pidfd that the machine doesn't know, and no machine waits for a pidfd that the server doesn't
    have.
"""

import errno
import random
from collections import Counter
from dataclasses import dataclass, field

from lockserver import client_events as c
from lockserver import events as e
from lockserver import messages as m
from lockserver.client_machine import Me
from tests.sim.actors import HOLDER, LIFE, RUN, SOCKET, SimClient, SimServer
from tests.sim.kernel import Kernel, Process, ReleaseOrder

DEVICE = "gpu"
CAPACITY = 100
NEED = 60
STANDBY = 4
FAULTS_END_S = 4.0
WINDOW_S = 1.0
SETTLE_S = 0.3
MEMORY_BOUND_S = 1.0
PREPARE_S = 0.1
CALM_S = 12.0
"""After the faults: every wait of the server fits in it several times."""


class Violation(AssertionError):
    """Something that must hold did not."""


@dataclass
class Tree:
    name: str
    main: Process
    processes: list[Process] = field(default_factory=list)
    """Everybody who may touch the device: the main process, members, and what they forked."""
    forks: list[Process] = field(default_factory=list)
    """Those of them who are no members: the life lock alone covers them, up to the moment when they begin to die."""
    children: list[Process] = field(default_factory=list)
    """Everybody that its shim would kill, whether they have joined or not."""
    granted: int = 0
    holds: bool = False
    looked_at: float = -1.0
    """When the server last heard that its engine could wake."""
    initialises: bool = False
    was_stopped: bool = False
    impostor: bool = False
    """A child of it took itself for the main process. Without a file that tells who is who, it may be believed."""
    over: bool = False
    """Another was granted after it."""
    needs: int = 0


class Slot:
    """Where an engine runs, and is started again when it has ended: a container with a shim."""

    def __init__(self, world: "World", number: int) -> None:
        self.world = world
        self.engine_id = f"engine-{'abc'[number]}"
        self.tree: Tree | None = None
        self.client: SimClient | None = None
        rng = world.rng
        self.forks = rng.random() < 0.25
        self.spawns = rng.choice((0, 1, 1, 2))
        self.arms = rng.random() < 0.7
        """Its processes ask to die with their parent."""
        self.shim_kills = rng.random() < 0.6
        self.needs = rng.random() < 0.85
        self.memory_in_child = rng.random() < 0.5
        self.sickly = self.was_sickly = rng.random() < 0.15

    def start(self) -> None:
        world, rng, kernel = self.world, self.world.rng, self.world.kernel
        if world.over:
            return
        main = kernel.spawn(self.engine_id)
        me = Me(self.engine_id, f"{rng.getrandbits(48):012x}", main.pid, True)
        client = self.client = SimClient(world, main, me, lambda effect: self._on(client, tree, effect))
        tree = self.tree = Tree(client.name, main, [main], needs=NEED if self.needs else 0)
        world.trees[tree.name] = tree
        watcher = world.shim
        pidfd = watcher.pidfd_open(main.pid)
        watcher.on_death(pidfd, lambda fd: self._ended(tree, fd))
        main.after(rng.random() * 0.01, lambda: client.feed(c.Tick()))

    def _ended(self, tree: Tree, pidfd: int) -> None:
        self.world.shim.close(pidfd)
        if self.shim_kills:
            for process in tree.children:
                self.world.kernel.kill(process)
        self.world.kernel.after(self.world.rng.random() * 0.5 + 0.01, self.start)

    # -- the engine's life -----------------------------------------------------------------------------------------

    def _on(self, client: SimClient, tree: Tree, effect: c.Effect) -> None:
        world, rng = self.world, self.world.rng
        kind = type(effect)
        if kind is c.Joined:
            if not tree.processes[1:] and client.machine.wants == {} and not client.machine.holds and tree.granted == 0:
                self._initialise(client, tree)
        elif kind is c.Got and isinstance(effect, c.Got):
            if effect.lock == m.INIT:
                world.permitted(tree)
                self._take(client.process, tree, STANDBY)
                client.process.after(rng.random() * 0.1, lambda: self._initialised(client, tree))
            else:
                world.got(tree, effect.token)
                children = [process for process in tree.processes[1:] if process.alive and process not in tree.forks]
                taker = children[0] if self.memory_in_child and children else client.process
                taker.after(rng.random() * 0.02, lambda: self._take(taker, tree, NEED))
                client.process.after(rng.random() * 0.05, lambda: client.feed(c.SetServing(tree.name)))
        elif isinstance(effect, c.Check):
            ok = not (self.sickly and rng.random() < 0.5)
            client.feed(c.Checked(effect.round, ok))
        elif isinstance(effect, c.BeginDrain):
            ok, in_round = rng.random() < 0.8, effect.round
            client.process.after(rng.random() * 0.2, lambda: client.feed(c.DrainEnded(in_round, ok)))
        elif kind is c.End:
            client.process.exit()
        elif isinstance(effect, c.Lost):
            world.lost(tree, effect.why)
            client.process.exit()
        elif isinstance(effect, c.No):
            client.process.exit()

    def _initialise(self, client: SimClient, tree: Tree) -> None:
        rng = self.world.rng
        for _ in range(self.spawns):
            client.process.after(rng.random() * 0.2, lambda: self._spawn(client, tree))
        if self.forks:
            client.process.after(rng.random() * 0.3, lambda: self._fork(client, tree))
        if rng.random() < 0.5:
            client.feed(c.Want(m.INIT))
        else:
            client.process.after(rng.random() * 0.2, lambda: self._initialised(client, tree))

    def _initialised(self, client: SimClient, tree: Tree) -> None:
        tree.initialises = False
        client.feed(c.Withdraw(m.INIT))
        client.feed(c.Want(m.ACTIVE, {DEVICE: tree.needs} if tree.needs else {}))

    def _take(self, process: Process, tree: Tree, size: int) -> None:
        """Touches the device."""
        self.world.touching(tree, process)
        try:
            process.allocate_mapped(DEVICE, size)
        except OSError:
            process.exit()

    def _fork(self, client: SimClient, tree: Tree) -> None:
        """A grandchild by fork: it has the socket, and the life lock."""
        child = client.process.fork(f"{self.engine_id}/fork")
        tree.processes.append(child)
        tree.forks.append(child)
        tree.children.append(child)
        if self.world.directory_lost:
            self.world.silent.add(child)  # it may have only the lock on the old file
        rng = self.world.rng
        if rng.random() < 0.5:
            child.after(rng.random(), lambda: self._take(child, tree, STANDBY))
        child.after(rng.random() * 3, child.exit)

    def _spawn(self, client: SimClient, tree: Tree) -> None:
        """A child that inherits nothing and joins: late, perhaps."""
        rng, world = self.world.rng, self.world
        main = client.process
        child = main.spawn(f"{self.engine_id}/worker")
        world.spawned.append(child)
        tree.children.append(child)
        me = Me(client.me.engine_id, client.me.incarnation, child.pid, False)

        def on(effect: c.Effect) -> None:
            if isinstance(effect, c.Joined) and child not in tree.processes:
                tree.processes.append(child)
                self._take(child, tree, STANDBY)
            elif isinstance(effect, c.Lost | c.No):
                child.exit()

        membership = SimClient(world, child, me, on)

        def armed() -> None:
            child.die_with_parent()
            if child.parent is not main or not main.alive:
                child.exit()

        if self.arms:
            child.after(rng.random() * 0.05, armed)
        child.after(rng.random() ** 2 * 1.0, lambda: membership.feed(c.Tick()))


def kind_of(fault: str) -> str:
    """Without the names: `kill engine-a[3]` and `kill engine-b/worker[7]` are one kind."""
    return " ".join(word for word in fault.split() if not any(mark in word for mark in "[."))


class World:
    def __init__(self, seed: int, *, trace: bool = False) -> None:
        self.seed = seed
        self.trace: list[str] | None = [] if trace else None
        rng = self.rng = random.Random(seed)
        policy = rng.random()
        self.presume_dead = policy < 0.06
        self.grant_unproven = 0.06 <= policy < 0.2
        self.reads_memory = rng.random() < 0.5
        self.evidence = rng.choices(("peer", "sent", "none"), (7, 2, 1))[0]
        self.kernel = Kernel(
            rng,
            order=rng.choice((ReleaseOrder.HIGHEST_FIRST, ReleaseOrder.ANY)),
            release_step_s=rng.choice((0.0005, 0.005, 0.1)),
            has_peer_pidfd=self.evidence == "peer",
            has_pidfs=self.evidence == "peer" and rng.random() < 0.85,
            reuses_pids=rng.random() < 0.3,
        )
        self.kernel.add_device(DEVICE, CAPACITY)
        self.kernel.make_directories(LIFE)
        self.shim = self.kernel.spawn("shim")
        self.trees: dict[str, Tree] = {}
        self.spawned: list[Process] = []
        self.slots = [Slot(self, number) for number in range(rng.choice((2, 2, 3)))]
        self.server: SimServer | None = None
        self.crash_rate = rng.choice((0.0, 0.0, 0.002, 0.02))
        self.last_token = 0
        self.last_granted = ""
        self.alarms: set[str] = set()
        self.grants = 0
        self.memory_alarm = False
        self.fenced_at = self.drained_at = -1.0
        self.gap = False
        """Between a holder's death and its successor's Active."""
        self.directory_lost = self.file_lost = self.spoiled = False
        self.silent: set[Process] = set()
        """Whom a server in a new directory can't know of, without a memory reader: see `_lose_sight`."""
        self.over = False
        self.faults: Counter[str] = Counter()

    # -- what the server is told -----------------------------------------------------------------------------------

    def server_config(self, incarnation: str) -> e.Config:
        return e.Config(
            server_incarnation=incarnation,
            boot_id=self.kernel.boot_id,
            evidence=self.evidence,
            window_s=WINDOW_S,
            settle_s=SETTLE_S,
            memory_bound_s=MEMORY_BOUND_S,
            prepare_timeout_s=PREPARE_S,
            exit_timeout_s=0.3,
            presume_dead=self.presume_dead,
            grant_unproven=self.grant_unproven,
            reads_memory=self.reads_memory,
            history_size=10,
        )

    def effect_boundary(self, server: SimServer) -> None:
        if self.crash_rate and self.rng.random() < self.crash_rate and self.kernel.now < FAULTS_END_S:
            self.note_fault("the server is killed between two effects")
            self.kernel.kill(server.process)
            server.process.must_live()

    # -- what must hold --------------------------------------------------------------------------------------------

    def fail(self, what: str) -> None:
        raise Violation(f"seed {self.seed}, at {self.kernel.now:.4f} s: {what}")

    def granting(self, server: SimServer, effect: e.Send) -> None:
        """The server tells somebody that it holds."""
        caller = server.machine.desk.callers.get(effect.conn)
        if caller is None or caller.tree is None:
            return
        tree, free = self.trees[caller.tree.name], self.kernel.devices[DEVICE].free_bytes
        if tree.holds:
            return  # it asked again, and is told the same
        self._nobody_else(tree)
        if tree.looked_at < self.fenced_at:
            self.fail(f"{tree.name} is granted, and has not looked at its engine since the last holder was lost")
        if server.machine.active.recovery is None and self.reads_memory and tree.needs > free and not self.memory_alarm:
            self.fail(f"{tree.name} is granted with {free} bytes free, and needs {tree.needs}")
        self.memory_alarm = False

    def got(self, tree: Tree, token: int) -> None:
        """The new holder knows."""
        if tree.holds:
            return  # it asked again, and was told the same
        self.grants += 1
        if tree.main in self.silent or (self.presume_dead and tree.was_stopped):
            tree.holds = True  # it was stopped, and finds the grant of a server that is gone
            return
        self._nobody_else(tree)
        if token <= self.last_token:
            self.fail(f"{tree.name} got token {token} after token {self.last_token}")
        self.last_token, tree.granted, tree.holds = token, token, True

    def _nobody_else(self, tree: Tree) -> None:
        for other in self.trees.values():
            if other is tree or not other.granted or (other.impostor and self.spoiled):
                continue  # (who is who was in the file)
            other.over = True
            if self.presume_dead:
                if other.main.alive and not other.was_stopped and other.holds:
                    self.fail(f"{tree.name} is granted while {other.name} runs and thinks that it holds")
                continue
            for process in other.processes:
                if process in self.silent or (
                    self.directory_lost and tree.needs and self.reads_memory and process is not other.main
                ):
                    continue  # in a new directory, free memory is proof enough: the main process would hold more
                dying_will_do = self.grant_unproven or self.evidence == "none" or self.reads_memory
                if process.alive or not (process.gone or dying_will_do or process in other.forks):
                    self.fail(
                        f"{tree.name} is granted while {process} of {other.name} "
                        f"{'lives' if process.alive else 'is dying'}"
                    )

    def touching(self, tree: Tree, process: Process) -> None:
        if tree.over and not self.presume_dead and process not in self.silent:
            self.fail(f"{process} of {tree.name} takes device memory after another was granted")

    def lost(self, tree: Tree, why: str) -> None:
        excused = tree.was_stopped or self.directory_lost or (tree.impostor and self.spoiled)
        if tree.holds and not self.presume_dead and not excused:
            self.fail(f"{tree.name} lost the lock though nothing was wrong with it: {why}")
        tree.holds = False
        if self.directory_lost:
            self.silent.update(tree.processes)  # they begin to die

    def exiting(self, server: SimServer) -> None:
        """The holder is told to end, for a switchover."""
        plan = server.machine.switchover.plan
        if plan is not None and self.trees[plan.to.name].looked_at < self.drained_at:
            self.fail(f"{plan.old.name} is told to end, and its successor has not looked at its engine since")

    def heard(self, tree: str, message: object) -> None:
        """The server hears from a waiter."""
        looked = (isinstance(message, m.Acquire) and not message.again) or (
            isinstance(message, m.Prepared | m.Ready) and bool(getattr(message, "ok", True))
        )
        if looked:
            self.trees[tree].looked_at = self.kernel.now

    def permitted(self, tree: Tree) -> None:
        tree.initialises = True
        if self.presume_dead:
            return
        for other in self.trees.values():
            unknown = self.directory_lost or ((self.file_lost or self.spoiled) and other.main.stopped)
            if other is not tree and other.initialises and other.main.alive and not unknown:
                self.fail(f"{tree.name} got the permit while {other.name} has it")

    def noted(self, server: SimServer, note: e.Note) -> None:
        if note.alarm:
            self.alarm(note.detail["text"])
        elif note.detail.get("lock") == m.ACTIVE and note.event == "fencing":
            self.fenced_at, self.gap = self.kernel.now, True
        elif note.event == "switchover":
            self.drained_at = self.kernel.now
        elif note.event == "serving" or (note.event == "back" and server.machine.active.endpoint is not None):
            self.gap = False
        elif (
            note.event == "granted"
            and note.detail["lock"] == m.INIT
            and self.gap
            and server.machine.state.value != "FREE"
            and (self._holder_may_live(server) or self._able_waits(server))
        ):
            self.fail(f"{note.detail['engine']} may initialise between a holder's death and its successor's Active")

    def _holder_may_live(self, server: SimServer) -> bool:
        """One that a restarted server can't prove gone may be initialised beside: if in truth it is, and a window has
        passed in which it would have come back. Only a waiter's need of memory can prove more, and all may be gone.
        """
        lock = server.machine.active
        if lock.holder is None:
            return False
        if lock.recovery is None or self.kernel.now < lock.recovery.until:
            return True
        return any(process.alive for process in self.trees[lock.holder.name].processes)

    def _able_waits(self, server: SimServer) -> bool:
        """Some waiter could take over, and never gave a reason not to count on it."""
        waits = (
            slot for slot in self.slots if slot.client is not None and slot.client.name in server.machine.queue.waiters
        )
        return any(
            server.machine.queue.waiters[slot.client.name].ready
            and not (slot.was_sickly or slot.tree.was_stopped or slot.tree.main.stopped)
            for slot in waits
            if slot.client is not None and slot.tree is not None and slot.tree.main.alive
        )

    def alarm(self, text: object) -> None:
        self.alarms.add(str(text))
        if "is granted though" in str(text):
            self.memory_alarm = True

    def note_fault(self, what: str) -> None:
        self.faults[kind_of(what)] += 1
        self.say(f"fault: {what}")

    @property
    def undecided(self) -> bool:
        """The server says in an alarm that nothing proves the last holder's end."""
        return (
            self.server is not None
            and hasattr(self.server, "machine")
            and bool({"unproven", "strangers"} & set(self.server.machine.context.alarms))
        )

    def say(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.kernel.now:9.5f} {what}")

    # -- the server's container ------------------------------------------------------------------------------------

    def start_server(self) -> None:
        kernel = self.kernel
        if self.server is not None and self.server.process.alive:
            return
        try:
            kernel.make_directories(LIFE)
        except OSError:
            kernel.after(0.1, self.start_server)  # the disk is full
            return
        server = self.server = SimServer(self)
        pidfd = self.shim.pidfd_open(server.process.pid)

        def ended(fd: int) -> None:
            self.shim.close(fd)
            kernel.after(self.rng.random() ** 3 * 1.5 if kernel.now < FAULTS_END_S else 0.05, self.start_server)

        self.shim.on_death(pidfd, ended)

        def begin() -> None:
            try:
                server.start()
            except OSError:
                server.process.exit()  # no room for its socket, say

        server.process.after(0.002, begin)

    # -- faults ----------------------------------------------------------------------------------------------------

    def _victims(self) -> list[Process]:
        mains = [slot.tree.main for slot in self.slots if slot.tree is not None]
        return [process for process in mains + self.spawned[-6:] if process.alive]

    def _holder(self) -> Tree | None:
        for slot in self.slots:
            if slot.tree is not None and slot.tree.holds and slot.tree.main.alive:
                return slot.tree
        return None

    def fault(self) -> None:
        self._fault()
        if self.directory_lost or self.file_lost:
            self._lose_sight()

    def _fault(self) -> None:
        rng, kernel = self.rng, self.kernel
        roll = rng.random()
        holder = self._holder()
        if roll < 0.30 and holder is not None:
            self.note_fault(f"kill the holder {holder.name}")
            step_s = rng.choice((None, None, 0.3))
            if rng.random() < 0.15 and holder.main.alive:
                self._pin(holder.main)
            kernel.kill(holder.main, step_s=step_s)
            if rng.random() < 0.3:
                for process in holder.processes[1:]:
                    kernel.kill(process)
        elif roll < 0.42:
            victims = self._victims()
            if victims:
                victim = rng.choice(victims)
                self.note_fault(f"kill {victim}")
                kernel.kill(victim, step_s=rng.choice((None, 0.2)))
        elif roll < 0.62 and self.server is not None and self.server.process.alive:
            self.note_fault("kill the server")
            kernel.kill(self.server.process)
            spoil = rng.random()
            if spoil < 0.12:
                self._spoil("tear")
            elif spoil < 0.24:
                self._spoil("corrupt")
            elif spoil < 0.3:
                self._spoil("unlink")
            if rng.random() < 0.4 and holder is not None:
                kernel.kill(holder.main)
        elif roll < 0.72:
            victims = self._victims() + (
                [self.server.process] if self.server is not None and self.server.process.alive else []
            )
            if victims:
                victim = rng.choice(victims)
                self.note_fault(f"stop {victim}")
                kernel.stop(victim)
                for tree in self.trees.values():
                    if victim in tree.processes or victim is tree.main:
                        tree.was_stopped = True
                kernel.after(rng.random() * 2, lambda: self._cont(victim))
        elif roll < 0.77:
            self.note_fault("the disk is full")
            kernel.files.disk_errno = errno.ENOSPC
            kernel.after(rng.random() * 1.0, self._disk_ok)
        elif roll < 0.81:
            self._replace_directory()
        elif roll < 0.85:
            self.note_fault("the clock jumps")
            kernel.jump_wall_clock(rng.choice((-1, 1)) * rng.random() * 1e6)
        elif roll < 0.90:
            self.note_fault("somebody else takes device memory")
            kernel.devices[DEVICE].foreign_bytes = rng.choice((30, 50, 90))
            kernel.after(rng.random() * 2, self._foreign_gone)
        elif roll < 0.92:
            self.note_fault("the memory reader fails")
            kernel.devices[DEVICE].reader_works = False
            kernel.after(rng.random(), self._reader_ok)
        elif roll < 0.95:
            self._switchover()
        elif roll < 0.97:
            self._impostor()
        else:
            self.note_fault("everything is killed at once")
            for process in [*self._victims(), *([self.server.process] if self.server else [])]:
                kernel.kill(process)

    def _pin(self, process: Process) -> None:
        """A driver that keeps memory for a while after its owner is gone."""
        fd = -1
        for number, file in process.descriptors.items():
            if type(file).__name__ == "Allocation":
                fd = number
        if fd >= 0:
            process.pin(fd, self.rng.random())

    def _spoil(self, how: str) -> None:
        try:
            if how == "tear":
                self.kernel.tear(HOLDER)
            elif how == "corrupt":
                self.kernel.corrupt(HOLDER)
            else:
                self.kernel.files.unlink(HOLDER)
        except FileNotFoundError:
            return
        self.spoiled = True
        self.file_lost = self.file_lost or how == "unlink"
        self.note_fault(f"{how} the holder file")

    def _cont(self, process: Process) -> None:
        if process.alive:
            self.say(f"continue {process}")
            self.kernel.cont(process)

    def _disk_ok(self) -> None:
        self.kernel.files.disk_errno = 0

    def _foreign_gone(self) -> None:
        self.kernel.devices[DEVICE].foreign_bytes = 0

    def _reader_ok(self) -> None:
        self.kernel.devices[DEVICE].reader_works = True

    def _replace_directory(self) -> None:
        if self.kernel.files.disk_errno:
            return
        self.note_fault("the run directory is replaced")
        self.directory_lost = True
        self._lose_sight()
        self.kernel.replace_directory(RUN)
        self.kernel.make_directories(LIFE)
        server = self.server
        if server is not None and server.process.alive:
            server.process.after(self.rng.random() * 0.01, server.directory_changed)

    def _lose_sight(self) -> None:
        """What isn't covered without a memory reader, as the docs say.

        Where the holder file was deleted: a former holder's process that is dying. Where the directory was: also one
        that is stopped, that never joined, or that has no room on the disk for its new life file.
        """
        for tree in self.trees.values():
            for process in tree.processes:
                stuck = process.stopped or process in tree.forks or bool(self.kernel.files.disk_errno)
                if not process.gone and (not process.alive or (self.directory_lost and stuck)):
                    self.silent.add(process)

    def _switchover(self) -> None:
        admin = self.kernel.spawn("admin")
        try:
            fd = admin.connect(SOCKET)
        except OSError:
            admin.exit()
            return
        self.note_fault("a switchover is asked for")
        admin.send(fd, m.Observe(protocol=m.PROTOCOL))
        admin.send(
            fd, m.Switchover(to=self.rng.choice(("", "engine-a", "engine-b")), drain_timeout_s=self.rng.random() * 0.4)
        )
        admin.after(self.rng.random() * 0.6, admin.exit)

    def _impostor(self) -> None:
        """A process of an engine's tree that takes itself for the main process."""
        holder = self._holder()
        if holder is None or holder.main.stopped:
            return
        self.note_fault("a child takes itself for the main process")
        child = holder.main.spawn("impostor")
        holder.children.append(child)
        holder.impostor = True
        engine_id, _, incarnation = holder.name.rpartition(".")

        def on(effect: c.Effect) -> None:
            if isinstance(effect, c.Lost | c.No):
                child.exit()

        client = SimClient(self, child, Me(engine_id, incarnation, child.pid, True), on)
        client.machine.holds[m.ACTIVE] = holder.granted
        child.after(0.001, lambda: client.feed(c.Tick()))
        child.after(0.5, child.exit)

    # -- a schedule ------------------------------------------------------------------------------------------------

    def run(self) -> None:
        kernel, rng = self.kernel, self.rng
        kernel.after(0.0, self.start_server)
        for slot in self.slots:
            kernel.after(rng.random() * 0.5, slot.start)
        for _ in range(rng.choice((1, 2, 4, 8))):
            kernel.after(0.3 + rng.random() * (FAULTS_END_S - 0.5), self.fault)
        kernel.run(FAULTS_END_S)
        self._calm()
        kernel.run(FAULTS_END_S + CALM_S)
        self._check_the_end()

    def _calm(self) -> None:
        """No more faults; what is stopped goes on, and orphans are killed as their containers would be."""
        kernel = self.kernel
        self.say("the faults end")
        kernel.files.disk_errno = 0
        self._foreign_gone()
        self._reader_ok()
        waiting = [
            slot.tree.main
            for slot in self.slots
            if slot.tree is not None
            and slot.client is not None
            and slot.tree.main.alive
            and m.ACTIVE in slot.client.machine.wants
        ]
        waiting = [main for main in waiting if not self._on_file(main)]
        stays = self.rng.choice(waiting) if len(waiting) > 1 and self.rng.random() < 0.3 else None
        for process in list(kernel.processes.values()):
            if process.stopped and process is not stays:
                kernel.cont(process)
        if stays is not None:
            self.say(f"{stays} stays stopped")
            kernel.stop(stays)
        current = {slot.tree.name for slot in self.slots if slot.tree is not None and slot.tree.main.alive}
        for tree in self.trees.values():
            if tree.name not in current:
                for process in (tree.main, *tree.children):
                    kernel.kill(process)
        for slot in self.slots:
            slot.sickly, slot.shim_kills, slot.forks = False, True, False

    def _on_file(self, main: Process) -> bool:
        """It holds, though it may not know."""
        try:
            return f'"pid":{main.pid}}}'.encode() in self.kernel.files.find(HOLDER).data
        except FileNotFoundError:
            return False

    def _check_the_end(self) -> None:
        server = self.server
        if server is None or not server.process.alive or server.stopped:
            self.fail("no server runs at the end")
            return
        machine = server.machine
        if not machine.active.held and not self.undecided:
            from lockserver.status import status_of

            self.fail(f"nobody was granted within {CALM_S} s after the faults: {status_of(machine)}")
        known, kept = set(machine.forest._by_process), set(server.processes)
        if known != kept:
            self.fail(
                f"pidfds that only the machine knows: {sorted(known - kept)}; only the shell: {sorted(kept - known)}"
            )
