"""GMS's machine under Hypothesis: any interleaving of what processes, disk, memory, people and time may do.

The shell (`machine_shell.py`) checks after each event that no writer is beside a reader, that the machine knows exactly
the descriptors that there are, and that no deadline has passed already. Here stand what may happen, and that the file,
read by a server after a crash, never tells of anything that wasn't committed. A failing example is printed with its
blob.
"""

import msgspec
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gms.rules import events as e
from gms.rules import messages as m
from gms.rules.sessions import IDLE, Doing
from gms.rules.shared import SharedRegion
from gms.rules.weights import Draft
from tests.gms.machine_shell import CAPACITY, House, document

MODEST = settings(
    max_examples=200,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
pick = st.integers(min_value=0, max_value=1000)
sizes = st.lists(st.integers(1, 300), min_size=1, max_size=3)


class GmsProcesses(RuleBasedStateMachine):
    @initialize(tells=st.booleans(), batch=st.sampled_from((1, 2, 253)))
    def begin(self, tells: bool, batch: int) -> None:
        self.tells, self.batch = tells, batch
        self.house = House(tells=tells, batch=batch)
        self.next_conn = 0
        self.committed: dict[int, tuple[str, tuple[tuple[str, int], ...]]] = {}
        """Number -> its hash and its memory."""
        self.given: list[int] = []

    @property
    def conns(self) -> list[int]:
        return list(self.house.machine.sessions.clients)

    def doing(self, conn: int) -> Doing:
        return self.house.doing(conn)

    def of(self, conn: int) -> SharedRegion:
        """The region that it is about."""
        return self.house.region(self.house.machine.sessions.clients[conn].key)

    @property
    def drafts(self) -> list[Draft]:
        regions = (self.house.region(key) for key in self.house.machine.regions)
        return [region.weights.draft for region in regions if region.weights.draft is not None]

    def one(self, index: int) -> int | None:
        return self.conns[index % len(self.conns)] if self.conns else None

    @rule(key=st.sampled_from((m.WEIGHTS, m.WEIGHTS, "other")))
    def a_client_comes(self, key: str) -> None:
        if len(self.conns) < 6:
            self.next_conn += 1
            self.house.hello(self.next_conn, key=key)

    @rule(key=st.sampled_from((m.WEIGHTS, "other")))
    def a_person_drops(self, key: str) -> None:
        if 9999 not in self.house.machine.sessions.observers:
            self.house.says(9999, m.Observe(protocol=m.PROTOCOL))
        self.house.says(9999, m.DropRegion(key=key, timeout_s=1.0))

    @rule(
        index=pick,
        mode=st.sampled_from(("rw", "ro", "rw_or_ro")),
        replace=st.booleans(),
        wait=st.sampled_from((None, 0.0, 2.0)),
    )
    def a_client_asks(self, index: int, mode: m.Mode, replace: bool, wait: float | None) -> None:
        conn = self.one(index)
        if conn is not None and self.doing(conn) in IDLE:
            self.house.says(conn, m.Open(mode=mode, replace=replace, timeout_s=wait, bytes=100))

    @rule(size=st.integers(1, CAPACITY + 10), which=pick)
    def a_writer_makes(self, size: int, which: int) -> None:
        draft = self.drafts[which % len(self.drafts)] if self.drafts else None
        if draft is not None and self.house.machine.device.making.of(draft.writer) is None:
            self.house.says(draft.writer, m.Create(size=size))

    @rule(which=pick)
    def a_writer_commits(self, which: int) -> None:
        draft = self.drafts[which % len(self.drafts)] if self.drafts else None
        if draft is None or self.house.machine.device.making.of(draft.writer) is not None or not draft.slabs:
            return
        region = self.of(draft.writer)
        memory = tuple((slab.identity, slab.size) for slab in draft.slabs)
        answer = self.house.says(draft.writer, m.Commit(layout=document(*[size for _, size in memory])))
        committed = self.house.heard(draft.writer, m.Committed)
        if region.weights.committed is not None and region.weights.draft is None:
            last = committed[-1]
            assert isinstance(last, m.Committed) and answer is not None
            said = self.house.on_disk.region(region.key)
            assert said is not None and said.generation == last.generation, "first on disk, then told"
            self.committed[last.generation] = (last.hash, memory)

    @rule(index=pick, keeps=st.booleans())
    def a_client_withdraws(self, index: int, keeps: bool) -> None:
        conn = self.one(index)
        if conn is not None:
            layout = self.of(conn).weights.committed
            self.house.says(conn, m.Withdraw(keeps=layout.generation if keeps and layout is not None else 0))

    @rule(index=pick, noticed=st.booleans())
    def a_client_dies(self, index: int, noticed: bool) -> None:
        conn = self.one(index)
        if conn is not None:
            self.house.dead.add(conn)
            if noticed:
                self.house.leaves(conn)

    @rule()
    def the_dead_are_noticed(self) -> None:
        for conn in sorted(self.house.dead & set(self.conns)):
            self.house.leaves(conn)

    @rule(index=pick, which=pick, wrong=st.sampled_from(("", "", "", "memory", "hash", "sizes")), reading=st.booleans())
    def a_client_hands_back(self, index: int, which: int, wrong: str, reading: bool) -> None:
        conn = self.one(index)
        if conn is None or not self.committed:
            return
        if self.doing(conn) not in IDLE or self.of(conn).hand_backs.comes_from(conn):
            return
        generation = sorted(self.committed)[which % len(self.committed)]
        name, memory = self.committed[generation]
        region = self.of(conn)
        awaited = region.weights.awaited is not None
        for first in range(0, len(memory), self.batch) if awaited else (0,):
            came = memory[first : first + self.batch] if awaited else ()
            message = m.HandBack(
                generation=generation,
                hash="0" * 64 if wrong == "hash" else name,
                sizes=[size + (wrong == "sizes") for _, size in memory],
                first=first,
                layout=document(*[size for _, size in memory]) if first == 0 else b"",
                reading=reading,
            )
            self.house.says(
                conn, message, tuple((f"not {each}", size) for each, size in came) if wrong == "memory" else came
            )
            if conn not in self.house.machine.sessions.clients:
                return
        layout = region.weights.committed
        if awaited and layout is not None:
            assert not wrong and layout.generation == generation
            assert tuple((slab.identity, slab.size) for slab in layout.slabs) == memory

    @rule(index=pick, generation=st.integers(0, 200))
    def a_client_has_dropped(self, index: int, generation: int) -> None:
        conn = self.one(index)
        if conn is not None:
            self.house.says(conn, m.Dropped(generation=generation))

    @rule(
        index=pick,
        message=st.sampled_from((m.Create(size=1), m.Commit(layout=b"x"), m.Watch(), m.AskStatus(), m.Ping())),
    )
    def a_client_says_anything(self, index: int, message: m.ClientMessage) -> None:
        conn = self.one(index)
        if conn is not None:
            self.house.says(conn, message)

    @rule(fails=st.booleans())
    def the_disk(self, fails: bool) -> None:
        self.house.disk_fails = fails

    @rule(foreign=st.sampled_from((0, 0, 500, 990)))
    def another_process_takes_memory(self, foreign: int) -> None:
        self.house.foreign = foreign

    @rule(seconds=st.sampled_from((0.01, 0.5, 3.0, 11.0)))
    def time_passes(self, seconds: float) -> None:
        self.house.later(seconds)

    @rule(stopped_s=st.sampled_from((1.0, 30.0)))
    def the_server_was_stopped(self, stopped_s: float) -> None:
        self.house.now += stopped_s
        self.house.feed(e.Tick())

    @rule(a_client_has_it=st.booleans())
    def the_server_crashes(self, a_client_has_it: bool) -> None:
        before = self.house.file
        identities = frozenset(each for _, memory in self.committed.values() for each, _ in memory)
        fresh = House(before, tells=self.tells, batch=self.batch, held=identities if a_client_has_it else frozenset())
        fresh.number = self.house.number
        self.house = fresh

    @invariant()
    def the_file_tells_only_of_what_was_committed(self) -> None:
        house = getattr(self, "house", None)
        for told in house.on_disk.regions if house is not None and house.file is not None else ():
            assert told.generation in self.committed and told.hash == self.committed[told.generation][0]
            assert tuple((slab.identity, slab.size) for slab in told.slabs) == self.committed[told.generation][1]

    @invariant()
    def the_file_says_what_is_so_unless_the_disk_failed(self) -> None:
        house = getattr(self, "house", None)
        if house is not None and house.file is not None and "disk" not in house.machine.context.alarms:
            assert house.on_disk == msgspec.structs.replace(house.machine.device.record(), given=house.on_disk.given)

    @invariant()
    def numbers_grow(self) -> None:
        house = getattr(self, "house", None)
        for draft in sorted(self.drafts, key=lambda each: each.generation) if house is not None else ():
            if draft.generation not in self.given:
                assert not self.given or draft.generation > self.given[-1]
                self.given.append(draft.generation)


TestGmsProcesses = GmsProcesses.TestCase
TestGmsProcesses.settings = MODEST
