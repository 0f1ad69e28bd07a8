"""The ledger's machine in a world that the test makes: processes, life locks, a device, a disk, a clock.

Trees are registered, wish, and die; every question of the machine is answered at once, as the shell does.
"""

from collections import deque
from typing import Any

from msgspec.structs import replace

from evidence.rules import events as e
from sidecar.machine.context import Closed, Died, Note, Persisted, PersistFailed, Publish, Tick, Time
from vram.rules import messages as m
from vram.rules import record
from vram.rules.events import Config, Started
from vram.rules.machine import Machine

GPU = "gpu"
TOTAL = 100
MOMENT_S = 0.01
"""In which memory is read again."""


class Tree:
    """One start of one program, with its main process."""

    def __init__(self, world: "World", name: str, conn: int, process: int) -> None:
        self.world = world
        self.engine_id = name
        self.incarnation = f"{process:08x}"
        self.conn = conn
        self.process = process
        self.alive = True
        self.life = True
        self.heard: list[Any] = []
        self.numbers = 0

    @property
    def name(self) -> str:
        return f"{self.engine_id}.{self.incarnation}"

    def register(self, claims: list[m.Claim] | None = None, heirs: list[str] | None = None, **more: Any) -> "Tree":
        hello = m.Register(
            protocol=more.pop("protocol", 1),
            engine_id=self.engine_id,
            incarnation=self.incarnation,
            life=(1, 1),
            pid=self.process,
            claims=claims or [],
            heirs=heirs or [],
            mapped=True,
            **more,
        )
        peer = e.Peer(self.world.handle(self), f"pidfs:{self.process}", self.process, self.process)
        self.world.feed(e.Received(self.conn, hello, (peer,), life_held=self.life, secret="s"))
        return self

    def comes_back(self, claims: list[m.Claim] | None = None, **more: Any) -> "Tree":
        self.conn += 1000
        return self.register(claims, **more)

    def says(self, message: Any) -> None:
        self.world.feed(e.Received(self.conn, message))
        self.world.advance(MOMENT_S)

    def reserve(self, count: int = 0, name: str = "", device: str = GPU, **more: Any) -> int:
        self.numbers += 1
        needs = more.pop("needs", {device: count})
        self.says(m.Reserve(number=self.numbers, name=name or self.engine_id, needs=needs, **more))
        return self.numbers

    def resize(self, lease: int, count: int, **more: Any) -> int:
        self.numbers += 1
        bytes = more.pop("bytes", {GPU: count} if count else {})
        self.says(m.Resize(number=self.numbers, lease=lease, bytes=bytes, **more))
        return self.numbers

    def all(self, kind: type) -> list[Any]:
        return [message for message in self.heard if isinstance(message, kind)]

    @property
    def leases(self) -> dict[int, dict[str, int]]:
        """As far as it has heard."""
        has: dict[int, dict[str, int]] = {}
        for granted in self.all(m.Granted):
            has[granted.lease] = granted.bytes
        return {lease: bytes for lease, bytes in has.items() if bytes}

    @property
    def lease(self) -> int:
        (lease,) = self.leases
        return lease

    @property
    def has(self) -> int:
        return sum(bytes.get(GPU, 0) for bytes in self.leases.values())

    def claims(self, unused_s: float = 0.0) -> list[m.Claim]:
        return [m.Claim(lease, self.engine_id, bytes, unused_s=unused_s) for lease, bytes in self.leases.items()]

    def hangs_up(self) -> None:
        self.world.feed(Closed(self.conn))

    def dies(self, *, proven: bool = True) -> None:
        """`proven`: its life lock is free with it."""
        self.alive, self.life = False, not proven
        self.world.used.pop(self.name, None) if proven else None
        if self.process in self.world.watched:
            self.world.feed(Died(self.world.watched[self.process]))
        self.world.feed(Closed(self.conn))
        self.world.advance(MOMENT_S)


class World:
    def __init__(self, *, reads: bool = True, settled: bool = True, **config: Any) -> None:
        usual: dict[str, Any] = {"settle_s": 2.0, "least_held_s": 0.0, "boot_id": "boot", "pid_namespace": "ns"}
        self.config = Config(server_incarnation="s1", reads_memory=reads, **usual | config)
        self.now = 0.0
        self.totals = {GPU: TOTAL}
        self.used: dict[str, int | dict[str, int]] = {}
        """Who has how much of the device, in truth: trees by their names, and others."""
        self.trees: dict[str, Tree] = {}
        self.notes: list[Note] = []
        self.unlinked: list[str] = []
        self.published: m.Status | None = None
        self.file: record.Record | None = None
        self.disk_fails = ""
        self.disk_answers = True
        self.asked_to_write = 0
        self.reader_answers = True
        self.reader_problem = ""
        self.unanswered = 0
        self.strangers: dict[str, bool] = {}
        self.numbers = 0
        self._serve(Started(None, number_floor=10))
        if settled:
            self.advance(2.5)

    def _serve(self, started: Started) -> None:
        self.machine = Machine(self.config)
        self.watched: dict[int, int] = {}
        self.handles: dict[int, Tree] = {}
        self.unanswered = 0
        self.feed(started)

    # -- what a test does ------------------------------------------------------------------------------------------

    def tree(self, name: str) -> Tree:
        self.numbers += 1
        tree = self.trees[name] = Tree(self, name, self.numbers, self.numbers)
        return tree.register()

    def holder(self, tree: str, count: int, **more: Any) -> Tree:
        """It has so much, and uses it."""
        made = self.tree(tree)
        made.reserve(count, **more)
        assert made.has == count
        self.used[made.name] = count
        return made

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            self.feed(Tick())
        self.now = end

    def restart(self, *, lost: bool = False, unreadable: str = "", boot_id: str = "boot") -> None:
        """Another server, on what this one has left; the trees live on, and haven't come back."""
        self.config = replace(self.config, boot_id=boot_id)
        found = None if lost or unreadable else self.file
        self._serve(Started(found, unreadable, number_floor=self.machine.grants.newest + 1000))

    def answer_readings(self) -> None:
        self.reader_answers = True
        while self.unanswered:
            self.unanswered -= 1
            self.feed(self.reading())

    def disk_has_answered(self) -> None:
        self.disk_answers = True
        self.feed(Persisted(self.asked_to_write))

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def alarms(self) -> str:
        return "; ".join(self.machine.context.alarms.values())

    @property
    def status(self) -> m.Status:
        return self.machine.status

    def device(self, name: str = GPU) -> m.DeviceState:
        return next(device for device in self.status.devices if device.device == name)

    def noted(self, event: str) -> list[Note]:
        return [note for note in self.notes if note.event == event]

    # -- the shell -------------------------------------------------------------------------------------------------

    def handle(self, tree: Tree) -> int:
        handle = 10_000 + len(self.handles)
        self.handles[handle] = tree
        return handle

    def reading(self) -> e.MemoryRead:
        if self.reader_problem:
            return e.MemoryRead({}, self.reader_problem)
        devices = {}
        for device, total in self.totals.items():
            parts = [used if isinstance(used, dict) else {GPU: used} for used in self.used.values()]
            devices[device] = (total - sum(part.get(device, 0) for part in parts), total)
        return e.MemoryRead(devices)

    def feed(self, event: Any) -> None:
        pending = deque([event])
        while pending:
            effects = self.machine.handle(pending.popleft(), Time(self.now, 1e9 + self.now))
            for effect in effects:
                answer = self._do(effect)
                if answer is not None:
                    pending.append(answer)

    def _do(self, effect: Any) -> Any:
        match effect:
            case e.Send(conn, message, _):
                for tree in self.trees.values():
                    if tree.conn == conn:
                        tree.heard.append(message)
            case e.Persist(seq, said):
                self.asked_to_write = seq
                if self.disk_fails:
                    return PersistFailed(seq, self.disk_fails)
                self.file = record.decode(record.encode(said))
                return Persisted(seq) if self.disk_answers else None
            case e.WatchDeath(handle):
                self.watched[self.handles[handle].process] = handle
                if not self.handles[handle].alive:
                    return Died(handle)
            case e.ProbeLife(name):
                probed = self.trees.get(name.rpartition(".")[0])
                return e.LifeProbed(name, self.strangers.get(name, probed.life if probed is not None else False))
            case e.ProbeStrangers(known):
                named = {tree.name: tree.life for tree in self.trees.values()} | self.strangers
                held = tuple(name for name, locked in named.items() if locked and name not in known)
                free = tuple(name for name, locked in named.items() if not locked and name not in known)
                return e.StrangersProbed(held, free)
            case e.LookUp(name, members):
                sought = self.trees.get(name.rpartition(".")[0])
                if sought is None or not sought.alive:
                    return e.LookedUp(name, tuple(number for number, _, _ in members), ())
                peer = e.Peer(self.handle(sought), f"pidfs:{sought.process}", sought.process, sought.process)
                return e.LookedUp(name, (), ((members[0][0], peer),))
            case e.ReadMemory():
                if self.reader_answers:
                    return self.reading()
                self.unanswered += 1
            case e.Unlink(name):
                self.unlinked.append(name)
            case Publish():
                self.published = self.status
            case Note():
                self.notes.append(effect)
        return None
