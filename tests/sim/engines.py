"""The engines of the simulator: what their processes do with the lock, and with device memory.

A `Tree` is one start of one engine, with everything that the truth knows of it. A `Slot` is where engines run, one
after the other. What goes wrong from outside: `faults.py`; what must hold: `world.py`.
"""

import functools
import math
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from evidence.rules.standing import Me
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from tests.sim.actors import SimClient
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.world import World

DEVICE = "gpu"
CAPACITY = 100
NEED = 60
STANDBY = 4


@dataclass(eq=False)
class Tree:
    name: str
    main: Process
    processes: list[Process] = field(default_factory=list)
    """All that may touch the device: the main process, members, and what they forked."""
    forks: list[Process] = field(default_factory=list)
    """Those of them who are no members: the life lock alone covers them, up to the moment when they begin to die."""
    children: list[Process] = field(default_factory=list)
    """All that its shim would kill, whether they have joined or not; its next program's, too."""
    workers: list[Process] = field(default_factory=list)
    """Those that it spawned itself, and that join it: late, perhaps."""
    announced: int = 0
    """The token with which a server has said that it holds."""
    granted: int = 0
    holds: bool = False
    awake: tuple[Process, int] | None = None
    """The process that has what an engine needs to be awake, and where that is mapped."""
    sleeps: bool = False
    """It is giving back: nothing more is taken."""
    gave_back: bool = False
    """The last grant: a server that knows an older file, and what a waiter kept, takes it for the holder."""
    looked_at: float = -1.0
    """When the server last heard that its engine could wake."""
    begun: bool = False
    initialises: bool = False
    was_stopped: bool = False
    impostor: bool = False
    """A child of it took itself for the main process. Without a file that tells who is who, it may be believed."""
    over: bool = False
    """Another was granted after it."""
    told_to_end: bool = False
    let_go: bool = False
    """Its program closed the client, or runs another program now: it wants nothing more."""
    closed_at: float = math.inf
    """When its program closed the client without having held, and went on with a new one."""
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
        self.children_end = rng.random() < 0.3
        """Its workers come and go."""
        self.joins_twice = rng.random() < 0.1
        self.polls = rng.random() < 0.25
        """It waits for a moment only, and asks again a little later."""
        self.sickly = self.was_sickly = rng.random() < 0.15
        self.has_standby: set[Process] = set()
        """Processes that have memory of the device already."""

    def start(self) -> None:
        main = self.world.kernel.spawn(self.engine_id)
        tree = self._run(main)
        watcher = self.world.shim
        pidfd = watcher.pidfd_open(main.pid)
        watcher.on_death(pidfd, lambda fd: self._ended(tree, fd))

    def _run(self, main: Process) -> Tree:
        """A program that wants the lock begins in this process."""
        world, rng = self.world, self.world.rng
        me = Me(self.engine_id, f"{rng.getrandbits(48):012x}", main.pid, True)
        client = self.client = SimClient(world, main, me, lambda effect: self._on(client, tree, effect))
        tree = self.tree = Tree(client.name, main, [main], needs=NEED if self.needs else 0)
        world.trees[tree.name] = tree
        main.after(rng.random() * 0.01, lambda: client.feed(c.Tick()))
        return tree

    def runs_another_program(self) -> None:
        """The main process executes its own program anew: another incarnation, and the same process."""
        before, main = self.tree, self.client.process if self.client is not None else None
        if before is None or main is None or self.client is None:
            return
        before.let_go, before.holds = True, False
        before.processes = [process for process in before.processes if process is not main]
        self.client.stopped = True
        main.execute()
        self.has_standby.discard(main)
        self._run(main).children = before.children

    def _ended(self, tree: Tree, pidfd: int) -> None:
        self.world.shim.close(pidfd)
        if self.shim_kills:
            for process in tree.children:
                self.world.kernel.kill(process)
        self.world.kernel.after(self.world.rng.random() * 0.5 + 0.01, self.start)

    # -- the engine's life -----------------------------------------------------------------------------------------

    def _on(self, client: SimClient, tree: Tree, effect: c.Effect) -> None:
        world, rng = self.world, self.world.rng
        if isinstance(effect, c.Joined):
            if not tree.begun:
                tree.begun = True
                self._initialise(client, tree)
        elif isinstance(effect, c.Got):
            client.ever_held |= effect.lock == m.ACTIVE
            self._got(client, tree, effect)
        elif isinstance(effect, c.Without) and effect.lock == m.ACTIVE:
            anew = not (tree.children or client.ever_held) and world.others.random() < 0.5
            again = self._asks_anew if anew else self._wait
            client.process.after(rng.random() * 0.05, lambda: again(client, tree))
        elif isinstance(effect, c.Check):
            ok = not (self.sickly and rng.random() < 0.5)
            client.feed(c.Checked(effect.round, ok))
        elif isinstance(effect, c.BeginDrain):
            ok, in_round = rng.random() < 0.8, effect.round
            client.process.after(rng.random() * 0.2, lambda: client.feed(c.DrainEnded(in_round, ok)))
        elif isinstance(effect, c.End):
            client.process.exit()
        elif isinstance(effect, c.GiveItBack):
            client.process.after(world.others.random() * 0.2, lambda: self._sleep(client, tree))
        elif isinstance(effect, c.Lost):
            world.lost(tree, effect.why)
            client.process.exit()
        elif isinstance(effect, c.No):
            client.process.exit()

    def _got(self, client: SimClient, tree: Tree, got: c.Got) -> None:
        world, rng = self.world, self.world.rng
        if got.lock == m.INIT:
            if not tree.initialises:
                world.permitted(tree)
                if client.process not in self.has_standby:  # a program that asks anew, each time with another client
                    self.has_standby.add(client.process)
                    self._take(client.process, tree, STANDBY)
                client.process.after(rng.random() * 0.1, lambda: self._initialised(client, tree))
        elif world.got(tree, got.token):
            children = [process for process in tree.processes[1:] if process.alive and process not in tree.forks]
            taker = children[0] if self.memory_in_child and children else client.process
            taker.after(rng.random() * 0.02, lambda: self._wake(taker, tree, got.token))
            client.process.after(rng.random() * 0.05, lambda: client.feed(c.SetServing(tree.name)))
            if world.others.random() < 0.05:  # there is no room for it, say
                client.process.after(world.others.random(), lambda: self._sleep(client, tree))

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
        self._wait(client, tree)

    def _wait(self, client: SimClient, tree: Tree) -> None:
        client.feed(c.Want(m.ACTIVE, {DEVICE: tree.needs} if tree.needs else {}))
        if self.polls:
            client.process.after(self.world.rng.random() * 0.2, lambda: client.feed(c.Withdraw(m.ACTIVE)))

    def _asks_anew(self, client: SimClient, before: Tree) -> None:
        """A program that asks for a moment only, with a client of its own each time."""
        if client.stopped:
            return
        client.close()
        before.let_go, before.processes, before.closed_at = True, before.processes[1:], self.world.kernel.now
        self._run(client.process).children = before.children

    def _take(self, process: Process, tree: Tree, size: int) -> None:
        """Touches the device."""
        self.world.touching(tree, process)
        try:
            process.allocate_mapped(DEVICE, size)
        except OSError:
            process.exit()

    def _wake(self, process: Process, tree: Tree, token: int) -> None:
        if tree.granted == token and not tree.sleeps:
            self._take(process, tree, NEED)
            tree.awake = (process, process.memory.last_mapping)

    def _sleep(self, client: SimClient, tree: Tree) -> None:
        """The rank that has the memory unmaps it, if it runs; then the main process gives the lock back."""
        if not tree.holds or client.stopped:
            return
        tree.sleeps = True
        rank = tree.awake[0] if tree.awake else client.process

        def unmap() -> None:  # twice where it is told to sleep while it goes to sleep unasked
            if tree.awake is not None:
                rank.unmap(tree.awake[1])
            tree.awake = None
            if client.process.alive:
                client.process.after(self.world.others.random() * 0.02, give_back)

        def give_back() -> None:
            if tree.holds and not client.stopped:
                tree.holds, tree.granted, tree.gave_back, tree.sleeps = False, 0, True, False
                client.feed(c.GaveBack())

        if rank.alive:
            rank.after(0.0, unmap)
        else:
            client.process.exit()  # a tree lives and dies as a whole

    def _fork(self, client: SimClient, tree: Tree) -> None:
        """A grandchild by fork: it has the socket, and the life lock."""
        child = client.process.fork(f"{self.engine_id}/fork")
        tree.processes.append(child)
        tree.forks.append(child)
        tree.children.append(child)
        if self.world.life_lost:
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
        tree.workers.append(child)
        me = Me(client.me.engine_id, client.me.incarnation, child.pid, False)

        def on(effect: c.Effect) -> None:
            if isinstance(effect, c.Joined) and child not in tree.processes:
                tree.processes.append(child)
                self._take(child, tree, STANDBY)
                if self.children_end:
                    child.after(rng.random() * 2, child.exit)
            elif isinstance(effect, c.Lost | c.No):
                child.exit()

        memberships = [SimClient(world, child, me, on) for _ in range(2 if self.joins_twice else 1)]

        def armed() -> None:
            child.die_with_parent()
            if child.parent is not main or not main.alive:
                child.exit()

        if self.arms:
            child.after(rng.random() * 0.05, armed)
        for membership in memberships:
            child.after(rng.random() ** 2 * 1.0, functools.partial(membership.feed, c.Tick()))
