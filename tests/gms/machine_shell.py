"""A shell for GMS's machine without any I/O: it answers its questions as a disk, a device and a kernel would, and
remembers what was said.

Time stands still unless `later` is called. After each event it checks
what must always hold: no writer beside a reader, every handle known to the machine or forgotten once, no deadline that
has passed already.
"""

import msgspec

from gms import layout as lay
from gms.rules import events as e
from gms.rules import messages as m
from gms.rules import record
from gms.rules.exclusive import ExclusiveRegion
from gms.rules.machine import Machine
from gms.rules.sessions import Doing
from gms.rules.shared import SharedRegion
from gms.rules.weights import Weights

BOOT = "this boot"
CAPACITY = 1000
WINDOW_S = 10.0
MEMORY_WAIT_S = 3.0
FLOOR = 100


def document(*sizes: int, name: str = "w") -> bytes:
    tensors = tuple(lay.Tensor(f"{name}{slab}", slab, 0, (size,), (1,), "uint8") for slab, size in enumerate(sizes))
    return lay.encode(lay.Layout(sizes, tensors))


class House:
    def __init__(
        self,
        file: bytes | None = None,
        *,
        tells: bool = True,
        boot: str = BOOT,
        batch: int = 253,
        held: frozenset[str] = frozenset(),
        granularity: int = 1,
        ledger: int | None = None,
        host_memory: int = 0,
    ) -> None:
        self.file = file
        self.disk_fails = False
        self.tells = tells
        self.held = set(held)
        """Identities of memory that some process has."""
        self.foreign = 0
        """Bytes that other processes have."""
        self.slabs: dict[int, tuple[str, int]] = {}
        """Handle -> identity and size: the descriptors of this server."""
        self.dead: set[int] = set()
        """Connections whose process is gone, noticed or not."""
        self.processes: set[int] = set()
        self.closed: set[int] = set()
        self.sent: dict[int, list[tuple[m.ServerMessage, tuple[str, ...]]]] = {}
        self.notes: list[e.Note] = []
        self.log: list[e.Effect] = []
        self.ledger = ledger
        """Bytes that it has for each region; None: there is no ledger."""
        self.ledger_waits = False
        """It doesn't answer wishes for more."""
        self.ledger_refuses = False
        self.lease_refused = False
        self.leased: dict[str, int] = {}
        self.now = 0.0
        self.number = 0
        config = e.Config("gpu", "s1", boot_id=boot, capacity=CAPACITY, granularity=granularity, window_s=WINDOW_S)
        self.machine = Machine(
            msgspec.structs.replace(
                config,
                memory_wait_s=MEMORY_WAIT_S,
                history_size=50,
                batch=batch,
                leases=ledger is not None,
                host_memory=host_memory,
            )
        )
        self.feed(self._started())

    def _started(self) -> e.Started:
        if self.file is None:
            return e.Started(None, generation_floor=FLOOR)
        try:
            return e.Started(record.decode(self.file), generation_floor=FLOOR)
        except record.UnreadableRecord as error:
            return e.Started(None, unreadable=str(error), generation_floor=FLOOR)

    # -- the shell -------------------------------------------------------------------------------------------------

    @property
    def free(self) -> int:
        return CAPACITY - self.foreign - sum(size for _, size in self.slabs.values())

    def feed(self, event: e.Event) -> list[e.Effect]:
        answers: list[e.Event] = [event]
        effects: list[e.Effect] = []
        for _ in range(200):
            if not answers:
                break
            for effect in self.machine.handle(answers.pop(0), e.Time(self.now, 1e9 + self.now)):
                effects.append(effect)
                self.log.append(effect)
                answer = self._carry_out(effect)
                if answer is not None:
                    answers.append(answer)
        else:
            raise AssertionError("the machine asks the same for ever")
        self._check()
        return effects

    def _carry_out(self, effect: e.Effect) -> e.Event | None:
        if isinstance(effect, e.Persist):
            if self.disk_fails:
                return e.PersistFailed(effect.seq, "no space left")
            self.file = record.encode(effect.record)
            return e.Persisted(effect.seq)
        if isinstance(effect, e.Allocate):
            if sum(effect.sizes) > self.free:
                return e.NotAllocated(effect.conn, sum(effect.sizes), self.free)
            slabs = [self._slab(f"m{self.number + 1}", size) for size in effect.sizes]
            slabs += [self._slab(f"table:{self.number + 1}", 0)] if effect.table_size else []
            return e.Allocated(effect.conn, tuple(slabs))
        if isinstance(effect, e.CheckMemory):
            held = bool(self.held & set(effect.identities)) if self.tells else None
            return e.MemoryChecked(self.free, held)
        if isinstance(effect, e.CheckPeer):
            return e.PeerChecked(effect.conn, effect.conn not in self.dead | self.closed)
        if isinstance(effect, e.Lease):
            return self.lease(effect)
        if isinstance(effect, e.Forget):
            for handle in effect.slabs:
                del self.slabs[handle]
        elif isinstance(effect, e.ForgetProcess):
            self.processes.remove(effect.process)
        elif isinstance(effect, e.Close):
            self.closed.add(effect.conn)
        elif isinstance(effect, e.Send):
            identities = tuple(self.slabs[handle][0] for handle in effect.slabs)
            self.sent.setdefault(effect.conn, []).append((effect.message, identities))
        elif isinstance(effect, e.Note):
            self.notes.append(effect)
        return None

    def lease(self, effect: e.Lease) -> e.Leased | None:
        """The ledger's answer."""
        refused = self.ledger_refuses or effect.bytes - effect.found > (self.ledger or 0)
        self.lease_refused = bool(effect.wish and refused)
        if effect.wish and (self.ledger_waits or refused):
            return None if self.ledger_waits else e.Leased(effect.wish, "the ledger has none")
        assert effect.wish or effect.bytes < self.leased[effect.key], "less is given back"
        self.leased[effect.key] = effect.bytes
        return e.Leased(effect.wish) if effect.wish else None

    def _slab(self, identity: str, size: int) -> e.Slab:
        self.number += 1
        self.slabs[self.number] = (identity, size)
        return e.Slab(self.number, identity)

    def _check(self) -> None:
        machine, sessions = self.machine, self.machine.sessions
        for region in machine.regions.values():
            doing = [region.doing(client) for client in region.clients]
            assert not (Doing.WRITING in doing and Doing.READING in doing), "a writer beside a reader"
            if isinstance(region, SharedRegion):
                assert doing.count(Doing.WRITING) == (region.weights.draft is not None)
        assert not machine.device.why_closed, machine.device.why_closed
        known = [slab.handle for slab in machine.slabs]
        assert sorted(known) == sorted(self.slabs), "descriptors are leaked, or known twice"
        owners = {
            region.pool.owner.process
            for region in machine.regions.values()
            if isinstance(region, ExclusiveRegion) and region.pool.owner
        }
        assert {client.process for client in sessions.clients.values() if client.process} | owners == self.processes
        if self.ledger is not None:
            host = {handle for handle, (identity, _) in self.slabs.items() if identity.startswith("table:")}
            made = {
                key: sum(slab.size for slab in region.slabs if slab.handle not in host)
                for key, region in machine.regions.items()
            }
            waits = self.ledger_waits or self.lease_refused
            assert waits or all(self.leased.get(key, 0) >= size for key, size in made.items()), "memory without a lease"
        assert machine.deadline > self.now, "its deadline has passed already"
        coming = sum(slab.size for region in machine.regions.values() for slab in region.hand_backs.kept)
        told = sum(each.bytes for each in machine.status().regions if machine.regions[each.key].awaited is None)
        assert told == sum(size for _, size in self.slabs.values()) - coming

    # -- what tests do ---------------------------------------------------------------------------------------------

    def later(self, seconds: float) -> None:
        """Time passes, and the machine is called whenever it wanted to be."""
        until = self.now + seconds
        while self.machine.deadline <= until:
            self.now = self.machine.deadline
            self.feed(e.Tick())
        self.now = until

    def hello(
        self,
        conn: int,
        engine_id: str = "",
        key: str = m.WEIGHTS,
        policy: m.Policy = "shared",
        *,
        parks: bool = False,
    ) -> m.Welcome:
        self.number += 1
        self.processes.add(self.number)
        engine_id = engine_id or f"engine-{conn}"
        hello = m.Hello(protocol=m.PROTOCOL, engine_id=engine_id, pid=conn, key=key, policy=policy, parks=parks)
        self.feed(e.Received(conn, hello, process=self.number, identity=f"pidfs:{conn}", local_pid=conn))
        welcome = self.last(conn)
        assert isinstance(welcome, m.Welcome)
        return welcome

    def says(
        self, conn: int, message: m.ClientMessage, slabs: tuple[tuple[str, int], ...] = ()
    ) -> m.ServerMessage | None:
        """Its newest answer, if it got one now."""
        before = len(self.sent.get(conn, ()))
        handles = tuple(self._slab(identity, size) for identity, size in slabs)
        self.feed(e.Received(conn, message, handles))
        return self.last(conn) if len(self.sent.get(conn, ())) > before else None

    def last(self, conn: int) -> m.ServerMessage:
        return self.sent[conn][-1][0]

    def heard(self, conn: int, kind: type) -> list[m.ServerMessage]:
        return [message for message, _ in self.sent.get(conn, ()) if type(message) is kind]

    def doing(self, conn: int) -> Doing:
        client = self.machine.sessions.clients[conn]
        return self.machine.regions[client.key].doing(client)

    def leaves(self, conn: int) -> None:
        self.closed.add(conn)
        self.feed(e.Closed(conn))

    def region(self, key: str = m.WEIGHTS) -> SharedRegion:
        region = self.machine.regions[key]
        assert isinstance(region, SharedRegion)
        return region

    @property
    def weights(self) -> Weights:
        return self.region().weights

    @property
    def on_disk(self) -> record.Record:
        assert self.file is not None
        return record.decode(self.file)

    @property
    def record(self) -> record.Region:
        """What the file says of the weights."""
        return self.on_disk.region(m.WEIGHTS) or record.Region(m.WEIGHTS, "shared")

    @property
    def status(self) -> m.Status:
        return self.machine.status(self.free)

    @property
    def state(self) -> str:
        return self.status.state

    def writer(self, conn: int, *sizes: int, key: str = m.WEIGHTS, **wish: object) -> m.Opened:
        """Comes in to write, and makes slabs."""
        self.hello(conn, key=key)
        opened = self.says(conn, m.Open(mode="rw", **wish))  # type: ignore[arg-type]
        assert isinstance(opened, m.Opened) and opened.mode == "rw", opened
        for size in sizes:
            assert isinstance(self.says(conn, m.Create(size=size)), m.Created)
        return opened

    def commits(self, conn: int, *sizes: int) -> m.Committed:
        committed = self.says(conn, m.Commit(layout=document(*sizes)))
        assert isinstance(committed, m.Committed), committed
        return committed

    def loaded(self, *sizes: int, by: int = 1, key: str = m.WEIGHTS) -> m.Committed:
        """A layout is there, and its writer is gone again."""
        self.writer(by, *sizes, key=key)
        committed = self.commits(by, *sizes)
        self.leaves(by)
        return committed


def restarted(
    house: House,
    *,
    batch: int = 253,
    tells: bool = True,
    boot: str = BOOT,
    held: bool = True,
    ledger: int | None = None,
) -> House:
    """The next server, after a crash of this one. A process has the memory of its layout unless `held` is False."""
    slabs = [slab for region in house.on_disk.regions for slab in region.slabs]
    identities = frozenset(slab.identity for slab in slabs) if held else frozenset()
    return House(house.file, batch=batch, tells=tells, boot=boot, held=identities, ledger=ledger)


def memory_of(house: House) -> tuple[tuple[str, int], ...]:
    return tuple((slab.identity, slab.size) for slab in house.record.slabs)
