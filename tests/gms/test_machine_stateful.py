"""GMS's machine under Hypothesis: any interleaving of what processes, disk, memory, people and time may do.

The shell (`machine_shell.py`) checks after each event that no writer is beside a reader, that the machine knows exactly
the descriptors that there are, and that no deadline has passed already. Here stand what may happen, and that the file,
read by a server after a crash, never tells of anything that wasn't committed. A failing example is printed with its
blob.
"""

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from gms import events as e
from gms import messages as m
from gms.sessions import IDLE, Doing
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
        sessions = self.house.machine.sessions
        return sessions.doing(sessions.clients[conn])

    def one(self, index: int) -> int | None:
        return self.conns[index % len(self.conns)] if self.conns else None

    @rule()
    def somebody_comes(self) -> None:
        if len(self.conns) < 5:
            self.next_conn += 1
            self.house.hello(self.next_conn)

    @rule(
        index=pick,
        mode=st.sampled_from(("rw", "ro", "rw_or_ro")),
        replace=st.booleans(),
        wait=st.sampled_from((None, 0.0, 2.0)),
    )
    def somebody_asks(self, index: int, mode: m.Mode, replace: bool, wait: float | None) -> None:
        conn = self.one(index)
        if conn is not None and self.doing(conn) in IDLE:
            self.house.says(conn, m.Open(mode=mode, replace=replace, timeout_s=wait, bytes=100))

    @rule(size=st.integers(1, CAPACITY + 10))
    def the_writer_makes(self, size: int) -> None:
        draft = self.house.machine.weights.draft
        if draft is not None and self.house.machine.writing.wanted is None:
            self.house.says(draft.writer, m.Create(size=size))

    @rule()
    def the_writer_commits(self) -> None:
        machine = self.house.machine
        draft = machine.weights.draft
        if draft is None or machine.writing.wanted is not None or not draft.slabs:
            return
        memory = tuple((slab.identity, slab.size) for slab in draft.slabs)
        answer = self.house.says(draft.writer, m.Commit(layout=document(*[size for _, size in memory])))
        committed = self.house.heard(draft.writer, m.Committed)
        if machine.weights.committed is not None and machine.weights.draft is None:
            last = committed[-1]
            assert isinstance(last, m.Committed) and answer is not None
            assert self.house.record.generation == last.generation, "first on disk, then told"
            self.committed[last.generation] = (last.hash, memory)

    @rule(index=pick, keeps=st.booleans())
    def somebody_withdraws(self, index: int, keeps: bool) -> None:
        conn, layout = self.one(index), self.house.machine.weights.committed
        if conn is not None:
            self.house.says(conn, m.Withdraw(keeps=layout.generation if keeps and layout is not None else 0))

    @rule(index=pick, noticed=st.booleans())
    def somebody_dies(self, index: int, noticed: bool) -> None:
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
    def somebody_hands_back(self, index: int, which: int, wrong: str, reading: bool) -> None:
        conn = self.one(index)
        if conn is None or not self.committed:
            return
        if self.doing(conn) not in IDLE or self.house.machine.recovery.comes_from(conn):
            return
        generation = sorted(self.committed)[which % len(self.committed)]
        name, memory = self.committed[generation]
        awaited = self.house.machine.weights.awaited is not None
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
        layout = self.house.machine.weights.committed
        if awaited and layout is not None:
            assert not wrong and layout.generation == generation
            assert tuple((slab.identity, slab.size) for slab in layout.slabs) == memory

    @rule(index=pick, generation=st.integers(0, 200))
    def somebody_has_dropped(self, index: int, generation: int) -> None:
        conn = self.one(index)
        if conn is not None:
            self.house.says(conn, m.Dropped(generation=generation))

    @rule(
        index=pick,
        message=st.sampled_from((m.Create(size=1), m.Commit(layout=b"x"), m.Watch(), m.AskStatus(), m.Ping())),
    )
    def somebody_says_anything(self, index: int, message: m.ClientMessage) -> None:
        conn = self.one(index)
        if conn is not None:
            self.house.says(conn, message)

    @rule(fails=st.booleans())
    def the_disk(self, fails: bool) -> None:
        self.house.disk_fails = fails

    @rule(foreign=st.sampled_from((0, 0, 500, 990)))
    def somebody_else_takes_memory(self, foreign: int) -> None:
        self.house.foreign = foreign

    @rule(seconds=st.sampled_from((0.01, 0.5, 3.0, 11.0)))
    def time_passes(self, seconds: float) -> None:
        self.house.later(seconds)

    @rule(stopped_s=st.sampled_from((1.0, 30.0)))
    def the_server_was_stopped(self, stopped_s: float) -> None:
        self.house.now += stopped_s
        self.house.feed(e.Tick())

    @rule(somebody_has_it=st.booleans())
    def the_server_crashes(self, somebody_has_it: bool) -> None:
        before = self.house.file
        identities = frozenset(each for _, memory in self.committed.values() for each, _ in memory)
        fresh = House(before, tells=self.tells, batch=self.batch, held=identities if somebody_has_it else frozenset())
        fresh.number = self.house.number
        self.house = fresh

    @invariant()
    def the_file_tells_only_of_what_was_committed(self) -> None:
        house = getattr(self, "house", None)
        if house is None or house.file is None or not house.record.hash:
            return
        told = house.record
        assert told.generation in self.committed and told.hash == self.committed[told.generation][0]
        assert tuple((slab.identity, slab.size) for slab in told.slabs) == self.committed[told.generation][1]

    @invariant()
    def the_file_says_what_is_so_unless_the_disk_failed(self) -> None:
        house = getattr(self, "house", None)
        if house is not None and house.file is not None and "disk" not in house.machine.context.alarms:
            assert house.record == house.machine.truth()

    @invariant()
    def numbers_grow(self) -> None:
        house = getattr(self, "house", None)
        draft = house.machine.weights.draft if house is not None else None
        if draft is not None and draft.generation not in self.given[-1:]:
            assert not self.given or draft.generation > self.given[-1]
            self.given.append(draft.generation)


TestGmsProcesses = GmsProcesses.TestCase
TestGmsProcesses.settings = MODEST
