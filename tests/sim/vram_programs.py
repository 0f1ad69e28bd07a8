"""The programs of the simulator that have memory of a device on the record: what their processes do with their leases,
and with the memory itself. What goes wrong from outside: `vram_faults.py`; what must hold: `vram_world.py`.

A `Tree` is one start of one program, with what the truth knows of it. A `Slot` is where programs run, one after the
other.
"""

import functools
import math
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from msgspec import UNSET
from msgspec.structs import replace

from evidence.rules import client_events as ec
from evidence.rules.standing import Me
from tests.sim.process import Process
from tests.sim.vram_actors import SimHolder
from vram.rules import messages as m
from vram.rules.client_machine import GiveUp

if TYPE_CHECKING:
    from tests.sim.vram_world import VramWorld

DEVICE, OTHER = "gpu", "gpu2"
CAPACITY = 100
SIZES = (10, 20, 30, 50, 70, 100)
NAMES = ("x", "y", "z")


@dataclass(eq=False)
class Tree:
    name: str
    main: Process
    client: SimHolder
    processes: list[Process] = field(default_factory=list)
    """Those that may touch a device: the main process, members, and what they forked."""
    forks: list[Process] = field(default_factory=list)
    """Those of them that are no members: only the life lock covers them."""
    children: list[Process] = field(default_factory=list)
    """All that its shim would kill."""
    promised: dict[int, dict[str, int]] = field(default_factory=dict)
    """Lease -> what the program has been told that it has, and hasn't given back."""
    memory: dict[int, list[tuple[Process, int, str, int]]] = field(default_factory=dict)
    """Lease -> process, mapping, device, size."""
    kept: list[tuple[Process, int]] = field(default_factory=list)
    """Mappings that it said it had given back."""
    heir_of: dict[str, float] = field(default_factory=dict)
    """As the server has acknowledged, and when."""
    died_at: float = math.inf
    """When its main process was seen to have ended."""
    begun: bool = False
    was_stopped: bool = False
    let_go: bool = False
    """Its program closed the client, or runs another program now."""
    impostor: bool = False

    @property
    def alive(self) -> bool:
        return any(process.alive for process in self.processes)

    @property
    def gone(self) -> bool:
        return all(process.gone for process in self.processes)


class Slot:
    """Where a program runs, and is started again when it has ended."""

    def __init__(self, world: "VramWorld", number: int) -> None:
        self.world = world
        self.engine_id = f"program-{'abcde'[number]}"
        self.tree: Tree | None = None
        self.client: SimHolder | None = None
        rng = world.rng
        self.lies = rng.random() < 0.15
        """It says that it has given back what it still has."""
        self.hears = rng.random() < 0.85
        """It gives back what it is asked for."""
        self.polls = rng.random() < 0.25
        self.forks = rng.random() < 0.2
        self.spawns = rng.choice((0, 1, 1, 2))
        self.arms = rng.random() < 0.7
        self.shim_kills = rng.random() < 0.6
        self.memory_in_child = rng.random() < 0.4
        self.heir = rng.choice((*NAMES, "", "", ""))
        self.priority = rng.choice((0, 0, 0, 1, 5))
        self.evictable = rng.random() < 0.6
        self.outlives = rng.random() < 0.25
        """Another process keeps what it has, as engines keep what GMS has made; its next start finds it."""
        self.keeper: Process | None = None
        self.kept: dict[int, tuple[str, int]] = {}
        """Mapping of the keeper -> device, size."""
        if self.outlives:
            self.lies, self.heir = False, ""
        self.died_at = math.inf
        """When the last one that had what is kept was seen to have ended."""
        self.number = 0
        self.wished_at: dict[int, float] = {}
        """When it began to wait for what it hasn't been answered."""
        self.given_in_calm = 0

    def start(self) -> None:
        main = self.world.kernel.spawn(self.engine_id)
        tree = self._run(main)
        pidfd = self.world.shim.pidfd_open(main.pid)
        self.world.shim.on_death(pidfd, lambda fd: self._ended(tree, fd))

    def _run(self, main: Process) -> Tree:
        world, rng = self.world, self.world.rng
        me = Me(self.engine_id, f"{rng.getrandbits(48):012x}", main.pid, True)
        client = self.client = SimHolder(world, main, me, lambda effect: self._on(client, tree, effect))
        tree = self.tree = Tree(client.name, main, client, [main])
        world.trees[tree.name] = tree
        self.wished_at = {}
        main.after(rng.random() * 0.01, lambda: client.feed(ec.Tick()))
        return tree

    def runs_another_program(self) -> None:
        """The main process executes its own program anew: its memory is let go of with the old one."""
        before, main = self.tree, self.client.process if self.client is not None else None
        if before is None or main is None or self.client is None:
            return
        before.let_go, before.processes = True, [process for process in before.processes if process is not main]
        self._has_let_go(before)
        self.client.stopped = True
        main.execute()
        self._run(main).children = before.children

    def _has_let_go(self, tree: Tree) -> None:
        if tree.promised or not self.kept:  # one that comes and goes meanwhile gives the next no more time
            self.died_at = self.world.kernel.now

    def _ended(self, tree: Tree, pidfd: int) -> None:
        self.world.shim.close(pidfd)
        self._has_let_go(tree)
        for each in self.world.trees.values():
            if each.main is tree.main:  # it may have run its program anew since
                each.died_at = min(each.died_at, self.world.kernel.now)
        if self.shim_kills:
            for process in tree.children:
                self.world.kernel.kill(process)
        self.world.kernel.after(self.world.rng.random() * 0.5 + 0.01, self.start)

    # -- the program's life ----------------------------------------------------------------------------------------

    def _on(self, client: SimHolder, tree: Tree, effect: Any) -> None:
        world, rng = self.world, self.world.rng
        if isinstance(effect, ec.Joined):
            if not tree.begun:
                tree.begun = True
                self._begin(client, tree)
        elif isinstance(effect, m.Granted):
            self.wished_at.pop(effect.number, None)
            self._got(client, tree, effect)
        elif isinstance(effect, m.Denied | m.Withdrawn) and self.wished_at.pop(effect.number, None) is not None:
            client.process.after(rng.random() * 0.2 + 0.01, lambda: self._wish(client, tree))
        elif isinstance(effect, m.Named):
            world.is_heir(tree, effect.name)
        elif isinstance(effect, m.Asked):
            if self.hears or world.calm:
                lease = effect.lease
                client.process.after(rng.random() * 0.2, lambda: self._give_back(client, tree, lease))
        elif isinstance(effect, ec.Lost | ec.No):
            world.lost(tree, effect.why)
            client.process.exit()

    def _begin(self, client: SimHolder, tree: Tree) -> None:
        rng = self.world.rng
        for _ in range(self.spawns):
            client.process.after(rng.random() * 0.2, lambda: self._spawn(client, tree))
        if self.forks:
            client.process.after(rng.random() * 0.5, lambda: self._fork(client, tree))
        if self.heir:
            client.feed(m.Heir(name=self.heir))
        client.process.after(rng.random() * 0.2, lambda: self._wish(client, tree))

    def _wish(self, client: SimHolder, tree: Tree) -> None:
        rng = self.world.rng
        if client.stopped or not client.process.alive:
            return
        if len(client.machine.wishes) + len(tree.promised) > 1:
            client.process.after(rng.random() * 0.5, lambda: self._wish(client, tree))
            return
        needs = {device: rng.choice(SIZES) for device in self.world.devices if rng.random() < 0.8} or {DEVICE: 10}
        if self.world.calm:
            needs = {device: min(count, 50) for device, count in needs.items()}
        if self.outlives:
            found, name = self.in_use(), f"of {self.engine_id}"
            want = self._want(name, found or needs, outlives=True, found=found or UNSET)
            if not tree.promised:
                self._ask(client, want)
            return
        own = self.heir if self.world.calm or rng.random() < 0.7 else ""
        name = own or rng.choice(NAMES)
        self._ask(client, self._want(name, needs))

    def _want(self, name: str, needs: dict[str, int], **more: Any) -> m.Reserve:
        return m.Reserve(number=0, name=name, needs=needs, priority=self.priority, evictable=self.evictable, **more)

    def _ask(self, client: SimHolder, wish: m.Reserve | m.Resize) -> None:
        self.number += 1
        number = self.number
        self.wished_at[number] = self.world.kernel.now
        client.feed(replace(wish, number=number))
        tree, rng = self.tree, self.world.rng
        if tree is not None and (tree.promised or (self.polls and not self.world.calm)):
            # (To hold, and to wait for more without an end, is a deadlock.)
            gone, late_s = rng.random() < 0.3, rng.random() * (1.0 if tree.promised else 0.3)
            client.process.after(late_s, lambda: self._give_up(client, tree, number, gone=gone))

    def _give_up(self, client: SimHolder, tree: Tree, number: int, *, gone: bool) -> None:
        if number in self.wished_at and not client.stopped:
            if gone:
                del self.wished_at[number]
                client.process.after(0.05, lambda: self._wish(client, tree))
            client.feed(GiveUp(number, gone=gone))

    def _got(self, client: SimHolder, tree: Tree, got: m.Granted) -> None:
        world, rng = self.world, self.world.rng
        if not got.bytes:
            return
        world.got(tree, got.lease, got.bytes)
        self.given_in_calm += world.calm
        children = [process for process in tree.processes[1:] if process.alive and process not in tree.forks]
        taker = children[0] if self.memory_in_child and children else client.process
        if self.outlives:
            taker = self._keeper()
            if tree.memory.get(got.lease) is None:
                tree.memory[got.lease] = [(taker, mapping, *what) for mapping, what in self.kept.items()]
        taker.after(rng.random() * 0.02, lambda: self._take(taker, tree, got.lease))
        client.process.after(rng.random() * 0.6, lambda: self._go_on(client, tree, got.lease))

    def _go_on(self, client: SimHolder, tree: Tree, lease: int) -> None:
        """It has had it for a while."""
        rng = self.world.rng
        held = tree.promised.get(lease)
        if held is None or client.stopped:
            return
        roll = rng.random()
        if self.world.calm or roll < 0.45:
            self._give_back(client, tree, lease)
        elif roll < 0.6:
            self._shrink(client, tree, lease)
        elif roll < 0.75:
            more = {device: min(CAPACITY, count + rng.choice((5, 20))) for device, count in held.items()}
            self._ask(client, m.Resize(number=0, lease=lease, bytes=more))
            client.process.after(1.2, lambda: self._go_on(client, tree, lease))
        else:
            client.feed(m.Set(lease=lease, evictable=rng.choice((None, True)), used=True))
            client.process.after(rng.random(), lambda: self._go_on(client, tree, lease))

    def _give_back(self, client: SimHolder, tree: Tree, lease: int) -> None:
        if lease not in tree.promised or client.stopped or not client.process.alive:
            return
        if self._is_dying(tree, lease):
            client.process.after(0.05, lambda: self._give_back(client, tree, lease))
            return
        self._free(tree, lease)
        del tree.promised[lease]
        self.number += 1
        client.feed(m.Resize(number=self.number, lease=lease, bytes={}))
        client.process.after(self.world.rng.random() * 0.3 + 0.01, lambda: self._wish(client, tree))

    def _is_dying(self, tree: Tree, lease: int) -> bool:
        """A process that has a part of it is dying: a program waits for its own children."""
        return any(not process.alive and not process.gone for process, _, _, _ in tree.memory.get(lease, ()))

    def _shrink(self, client: SimHolder, tree: Tree, lease: int) -> None:
        if self._is_dying(tree, lease):
            client.process.after(0.05, lambda: self._go_on(client, tree, lease))
            return
        self._free(tree, lease)
        less = {device: count // 2 for device, count in tree.promised[lease].items() if count > 1}
        tree.promised[lease] = less
        self.number += 1
        client.feed(m.Resize(number=self.number, lease=lease, bytes=less))
        if not less:
            del tree.promised[lease]
        then = functools.partial(self._go_on, client, tree, lease) if less else lambda: self._wish(client, tree)
        client.process.after(self.world.rng.random() * 0.3, then)

    # -- memory ----------------------------------------------------------------------------------------------------

    def in_use(self) -> dict[str, int]:
        """What its keeper has."""
        found: Counter[str] = Counter()
        if self.keeper is not None and self.keeper.alive:
            for device, size in self.kept.values():
                found[device] += size
        return dict(found)

    def _keeper(self) -> Process:
        if self.keeper is None or not self.keeper.alive:
            self.keeper, self.kept = self.world.kernel.spawn(f"{self.engine_id}/keeper"), {}
            self.world.spawned.append(self.keeper)
        return self.keeper

    def _take(self, process: Process, tree: Tree, lease: int) -> None:
        """Uses all that it has, or a part. A keeper keeps what the tree makes, and makes nothing itself."""
        if process is self.keeper and not tree.main.alive:
            return
        memory = tree.memory.setdefault(lease, [])
        for device, count in tree.promised.get(lease, {}).items():
            size = count - sum(size for _, _, where, size in memory if where == device)
            size = size if self.world.rng.random() < 0.8 else size // 2
            if size <= 0:
                continue
            try:
                mapping = process.allocate_mapped(device, size)
            except OSError:
                self.world.out_of_memory(tree, device, size)
                process.exit()
                return
            memory.append((process, mapping, device, size))
            if process is self.keeper:
                self.kept[mapping] = device, size

    def _free(self, tree: Tree, lease: int) -> None:
        """Or says so only."""
        for process, mapping, _, _ in tree.memory.pop(lease, ()):
            if process.alive and self.lies and not self.world.calm:
                tree.kept.append((process, mapping))
                self.world.lied = True
            elif process.alive and process.memory is not None:
                self.world.unmap(process, mapping)
            if process is self.keeper:
                self.kept.pop(mapping, None)

    def calm_down(self) -> None:
        """It tells no lies, and begins with its wishes anew: what an heir waits for may wait for the heir."""
        self.lies = False
        if self.client is not None and self.tree is not None and self.client.process.alive:
            for number in list(self.wished_at):
                self._give_up(self.client, self.tree, number, gone=True)
        if self.tree is not None:
            for process, mapping in self.tree.kept:
                if process.alive:
                    self.world.unmap(process, mapping)
            self.tree.kept.clear()

    # -- its other processes ---------------------------------------------------------------------------------------

    def _fork(self, client: SimHolder, tree: Tree) -> None:
        child = client.process.fork(f"{self.engine_id}/fork")
        tree.processes.append(child)
        tree.forks.append(child)
        tree.children.append(child)
        child.after(self.world.rng.random() * 3, child.exit)

    def _spawn(self, client: SimHolder, tree: Tree) -> None:
        rng, world, main = self.world.rng, self.world, client.process
        child = main.spawn(f"{self.engine_id}/worker")
        world.spawned.append(child)
        tree.children.append(child)
        me = Me(client.me.engine_id, client.me.incarnation, child.pid, False)

        def on(effect: Any) -> None:
            if isinstance(effect, ec.Joined) and child not in tree.processes:
                tree.processes.append(child)
            elif isinstance(effect, ec.Lost | ec.No):
                child.exit()

        membership = SimHolder(world, child, me, on)

        def armed() -> None:
            child.die_with_parent()
            if child.parent is not main or not main.alive:
                child.exit()

        if self.arms:
            child.after(rng.random() * 0.05, armed)
        child.after(rng.random() ** 2, functools.partial(membership.feed, ec.Tick()))
