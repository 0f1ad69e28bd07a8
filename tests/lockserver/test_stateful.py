"""Both machines under Hypothesis: any interleaving of what processes, kernel, disk, memory, people and time may do.

The world of the server's machine is `harness.py`: it knows who is really alive, and checks with every grant that no
other is, that tokens grow and that the disk knew first; and after every event that each handle is either the forest's
or was forgotten, once, and that no deadline has passed already. Here stand what may happen, what must hold between
events, and that a waiter is granted once faults stop. A failing example is printed with its blob.
"""

import math
from typing import Any

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from evidence.rules.incarnation import Stage
from evidence.rules.record import Processes
from lockserver.rules import client_events as c
from lockserver.rules import messages as m
from lockserver.rules import record
from lockserver.rules.lock import Phase
from lockserver.rules.messages import ACTIVE, INIT
from tests.lockserver.harness import BOOT, Disk, Engine, Harness, Kernel, Process
from tests.lockserver.test_client_machine import Client, where

MODEST = settings(
    max_examples=100,
    stateful_step_count=40,
    deadline=None,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large],
)
WINDOW_S, SETTLE_S, BOUND_S, GPU = 5.0, 1.0, 4.0, 80
MOST_ENGINES = 6
pick = st.integers(min_value=0, max_value=1000)


class LockWorld(RuleBasedStateMachine):
    """Engines that behave as their clients make them behave, and die as they like."""

    @initialize(
        kernel=st.sampled_from(Kernel),
        reads=st.booleans(),
        recipients=st.integers(min_value=1, max_value=4),
        fresh=st.integers(min_value=0, max_value=9),
        engines=st.integers(min_value=0, max_value=4),
        locks_are_closed=st.booleans(),
    )
    def begin(
        self, kernel: Kernel, reads: bool, recipients: int, fresh: int, engines: int, locks_are_closed: bool
    ) -> None:
        self.harness = Harness(
            kernel,
            memory={"gpu": (GPU, GPU)} if reads else None,
            window_s=WINDOW_S,
            settle_s=SETTLE_S,
            memory_bound_s=BOUND_S,
            exit_timeout_s=3.0,
            recipients=recipients,
            grant_unproven=not reads,  # else a person must be called, and there is no bound to the wait
        )
        if fresh:
            self.harness.file = record.encode(
                record.Record(Processes(BOOT), 5)
            )  # no engine holds: else most examples are over before the settling time is
        self.harness.start()
        self.wanting: dict[Engine, int] = {}
        self.asker = 0
        self.locks_are_closed = locks_are_closed and kernel is not Kernel.NONE
        """Members may close their life locks: pidfds still tell, but only to a server that has been there all the
        time."""
        for number in range(engines):
            self.an_engine_comes_and_wants_the_lock("abcd"[number], 1 + number)
            if number == 0:
                self.harness.engines[0].join()

    # -- what is there ---------------------------------------------------------------------------------------------

    def living(self) -> list[Engine]:
        return [engine for engine in self.harness.engines if engine.main.alive]

    def present(self) -> list[Engine]:
        return [engine for engine in self.living() if self.harness.up and engine.connected]

    def one(self, engines: list[Engine], index: int) -> Engine | None:
        return engines[index % len(engines)] if engines else None

    def mind(self, engine: Engine) -> None:
        """What a client does by itself: refused, or not known as the holder that it is, or told to end, it ends; its
        wishes are its own."""
        if not engine.main.alive or not engine.conn:
            return
        welcome = engine.last(m.Welcome)
        unknown = engine.token and welcome is not None and ACTIVE not in welcome.holds and not engine.heard(m.Granted)
        if engine.refused or unknown or engine.heard(m.Exit):
            self.harness.dies(engine.main)
        if engine.token:
            self.wanting.pop(engine, None)

    def come_in(self, engine: Engine) -> None:
        engine.register()
        if not engine.connected or not self.harness.up:
            return
        for keep, processes in list(engine.copies.values()):
            if engine.connected:
                engine.says(m.HandBack(mark=keep.mark, tree=keep.tree, numbers=keep.numbers), processes)
        if engine in self.wanting and not engine.token and engine.connected:
            engine.says(m.Acquire(needs=self.needs(engine), again=True))

    def needs(self, engine: Engine) -> dict[str, int]:
        return {"gpu": self.wanting[engine]} if self.harness.memory is not None else {}

    def children_come_in(self, engine: Engine) -> None:
        for child in engine.processes[1:]:
            if child.alive and child in engine.numbers and child not in self.harness.conns.values() and self.harness.up:
                engine.join(child)
                conns = [conn for conn, owner in self.harness.conns.items() if owner is child]
                if self.harness.up and not conns:
                    self.harness.dies(child)  # refused

    # -- engines ---------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.harness.up and len(self.living()) < MOST_ENGINES)
    @rule(name=st.sampled_from("abc"), need=st.integers(min_value=1, max_value=GPU))
    def an_engine_comes_and_wants_the_lock(self, name: str, need: int) -> None:
        engine = self.harness.engine(name)
        self.wanting[engine] = need
        engine.register()
        if engine.connected and self.harness.up:
            engine.says(m.Acquire(needs=self.needs(engine)))

    @rule(index=pick)
    def comes_back(self, index: int) -> None:
        engine = self.one([x for x in self.living() if x not in self.present()], index)
        if engine is not None and self.harness.up:
            self.come_in(engine)

    @rule(index=pick)
    def connects_once_more(self, index: int) -> None:
        engine = self.one(self.present(), index)
        if engine is not None:
            self.come_in(engine)

    @rule(index=pick)
    def children_come_back(self, index: int) -> None:
        engine = self.one(self.harness.engines, index)
        if engine is not None and self.harness.up:
            self.children_come_in(engine)

    @rule(index=pick, how=st.sampled_from(["join", "adopt", "stray"]))
    def a_child_is_born(self, index: int, how: str) -> None:
        engine = self.one(self.present(), index)
        if engine is None or len(engine.processes) > 4:
            return
        if how == "join":
            engine.join()
        elif how == "adopt" and self.harness.kernel is not Kernel.NONE:
            child = engine.fork()
            engine.says(m.Vouch(child=child.pid, pid=child.pid), [child])
        else:
            engine.fork()

    @rule(index=pick)
    def a_child_comes_late(self, index: int) -> None:
        """Spawned, so that it inherited nothing: it opens the life file, if that is still there, and joins before it
        touches a device."""
        engine = self.one(self.harness.engines, index)
        if engine is None or engine.name not in self.harness.life or not self.harness.up or len(engine.processes) > 6:
            return
        child = engine.join()
        if child not in self.harness.conns.values():
            self.harness.dies(child)

    @precondition(lambda self: self.locks_are_closed)
    @rule(which=pick)
    def a_member_of_the_holder_closes_its_life_lock(self, which: int) -> None:
        for engine in [x for x in self.present() if x.token]:
            members = [engine.main, *engine.numbers]
            members[which % len(members)].locks.clear()

    @rule(index=pick, ready=st.booleans(), need=st.integers(min_value=1, max_value=GPU))
    def says_whether_it_is_ready(self, index: int, ready: bool, need: int) -> None:
        engine = self.one([x for x in self.present() if x in self.wanting], index)
        if engine is not None:
            self.wanting[engine] = need
            engine.says(m.Ready(ready=ready, needs=self.needs(engine)))

    @rule(index=pick, wakes=st.sampled_from([True, True, False, None]))
    def its_engine_is_well_or_not(self, index: int, wakes: bool | None) -> None:
        engine = self.one(self.living(), index)
        if engine is not None:
            engine.wakes = wakes

    @rule(index=pick, in_round=st.integers(min_value=0, max_value=20), ok=st.booleans())
    def answers_late_or_out_of_turn(self, index: int, in_round: int, ok: bool) -> None:
        engine = self.one(self.present(), index)
        if engine is not None:
            engine.says(m.Prepared(round=in_round, ok=ok))

    @rule(index=pick, url=st.sampled_from(["u", ""]))
    def serves(self, index: int, url: str) -> None:
        engine = self.one([x for x in self.present() if x.token and not x.heard(m.Exit)], index)
        if engine is not None:
            engine.says(m.Serving(url=url))

    @rule(index=pick, wants=st.booleans())
    def wants_or_gives_back_the_permit(self, index: int, wants: bool) -> None:
        engine = self.one(self.present(), index)
        if engine is not None:
            engine.says(m.Acquire(lock=INIT) if wants else m.Release())

    @rule(index=pick, which=pick, seen=st.sampled_from(["nothing", "end of file", "pidfd", "both"]))
    def a_process_dies(self, index: int, which: int, seen: str) -> None:
        engine = self.one(self.harness.engines, index)
        if engine is None:
            return
        process = engine.processes[which % len(engine.processes)]
        self.harness.dies(process)
        if seen in ("end of file", "both"):
            self.harness.hangs_up(process)
        if seen in ("pidfd", "both") and self.harness.up:
            self.harness.pidfd_readable(process)

    @rule(only_main=st.booleans(), shown=st.booleans())
    def the_holder_dies(self, only_main: bool, shown: bool) -> None:
        for engine in [x for x in self.living() if x.token]:
            dying = [engine.main] if only_main else list(engine.processes)
            self.harness.dies(*dying)
            for process in dying if shown else []:
                self.show(process)

    @rule()
    def the_holder_loses_its_connection(self) -> None:
        for engine in [x for x in self.present() if x.token]:
            self.harness.hangs_up(engine.main)

    @rule(index=pick, which=pick)
    def a_process_loses_its_connection(self, index: int, which: int) -> None:
        engine = self.one(self.harness.engines, index)
        if engine is not None:
            self.harness.hangs_up(engine.processes[which % len(engine.processes)])

    @rule(index=pick)
    def the_kernel_shows_a_death(self, index: int) -> None:
        dead = [process for engine in self.harness.engines for process in engine.processes if not process.alive]
        if dead and self.harness.up:
            self.show(dead[index % len(dead)])

    def show(self, process: Process) -> None:
        self.harness.hangs_up(process)
        if self.harness.up:
            self.harness.pidfd_readable(process)

    @rule(index=pick)
    def a_process_is_out_of_reach(self, index: int) -> None:
        children = [process for engine in self.harness.engines for process in engine.processes[1:]]
        if children:
            self.harness.unkillable.add(children[index % len(children)])

    # -- people ----------------------------------------------------------------------------------------------------

    @precondition(lambda self: self.harness.up)
    @rule(
        what=st.sampled_from([m.Switchover(drain_timeout_s=3.0), m.AbortSwitchover(), m.Sleep(), m.Wake(), m.Watch()])
    )
    def an_observer_asks(self, what: m.ClientMessage) -> None:
        if self.asker not in self.harness.conns:
            self.asker = self.harness.observer()
        self.harness.receive(self.asker, what)

    @rule(index=pick, ok=st.booleans())
    def a_holder_has_drained(self, index: int, ok: bool) -> None:
        engine = self.one([x for x in self.present() if x.heard(m.Drain)], index)
        if engine is not None:
            drain = engine.last(m.Drain)
            assert drain is not None
            engine.says(m.Drained(round=drain.round, ok=ok))

    @rule(index=pick, asks_again=st.booleans())
    def a_holder_gives_back(self, index: int, asks_again: bool) -> None:
        """Asked to or not."""
        engine = self.one([x for x in self.living() if x.token and not x.heard(m.Exit)], index)
        if engine is not None:
            engine.gives_back()
            self.wanting[engine] = 1
            if asks_again and engine in self.present():
                engine.acquire(**self.needs(engine))

    # -- the machine's own world -----------------------------------------------------------------------------------

    @rule(disk=st.sampled_from([Disk.WORKS, Disk.WORKS, Disk.FAILS, Disk.CRASH_BEFORE, Disk.CRASH_AFTER]))
    def the_disk(self, disk: Disk) -> None:
        if not (self.locks_are_closed and disk in (Disk.CRASH_BEFORE, Disk.CRASH_AFTER)):
            self.harness.disk = disk

    @precondition(lambda self: not self.locks_are_closed)
    @rule(lost=st.sampled_from(["", "", "", "file", "unreadable"]))
    def the_server_starts_again(self, lost: str) -> None:
        self.harness.crash().disk = Disk.WORKS
        if lost:
            self.harness.file = None
        self.harness.start(unreadable="torn" if lost == "unreadable" else "")

    @rule(holder_too=st.booleans())
    def all_come_back(self, holder_too: bool) -> None:
        for engine in self.living():
            if self.harness.up and engine not in self.present() and (holder_too or not engine.token):
                self.come_in(engine)
                self.children_come_in(engine)

    @precondition(lambda self: self.harness.memory is not None)
    @rule(free=st.integers(min_value=0, max_value=GPU), problem=st.sampled_from(["", "", "", "no driver"]))
    def memory_is_what_it_is(self, free: int, problem: str) -> None:
        self.harness.memory = {"gpu": (free, GPU)}
        self.harness.reader_problem = problem

    @rule(seconds=st.sampled_from([0.001, 0.01, 0.1, 0.5, 1.0, 3.0, WINDOW_S, 30.0]))
    def time_passes(self, seconds: float) -> None:
        self.harness.advance(seconds)

    # -- what holds between events ---------------------------------------------------------------------------------

    @invariant()
    def clients_end_when_they_are_told(self) -> None:
        for engine in self.harness.engines:
            self.mind(engine)

    @invariant()
    def at_most_one_living_engine_was_told_that_it_holds(self) -> None:
        told = [engine.name for engine in self.harness.engines if engine.token and engine.alive]
        assert len(told) <= 1, told

    @invariant()
    def a_lock_at_rest_is_no_engines_and_stays_so_across_a_crash(self) -> None:
        if self.harness.up and (machine := self.harness.machine).succession.rest.why:
            assert machine.active.phase not in (Phase.GRANTING, Phase.HELD)
            on_disk = machine.disk.done == machine.disk.asked and not machine.disk.failing
            assert not on_disk or (self.harness.record is not None and self.harness.record.resting)

    @invariant()
    def a_server_at_rest_sleeps(self) -> None:
        if not self.harness.up:
            return
        machine = self.harness.machine
        succession = machine.succession
        at_rest = (
            succession.active.phase is Phase.HELD
            and all(incarnation.stage is Stage.PRESENT for incarnation in machine.evidence.incarnations.known.values())
            and succession.switchover.under_way is None
            and succession.permit.lock.doubt is None
            and not (succession.permit.waiters and succession.permit_may_be_held)  # a new server, within its window
            and not machine.context.alarms
            and machine.disk.due_at == math.inf
            and all(waiter.vetted for waiter in succession.queue.waiters.values())
        )
        assert not at_rest or machine.deadline == math.inf

    # -- once faults stop ------------------------------------------------------------------------------------------

    def teardown(self) -> None:
        if not hasattr(self, "harness"):
            return
        harness = self.harness
        harness.disk = Disk.WORKS
        if not harness.up:
            harness.start()
        if harness.memory is not None:
            harness.memory, harness.reader_problem = {"gpu": (GPU, GPU)}, ""
        if self.asker in harness.conns:
            harness.receive(self.asker, m.AbortSwitchover())
        for _ in range(3):
            if self.asker not in harness.conns:
                self.asker = harness.observer()
            harness.receive(self.asker, m.Wake())
            self.engines_come_to_rest()
            harness.advance(WINDOW_S + SETTLE_S + BOUND_S + 10)
            if "--grant-unproven" in harness.alarms:  # a person has looked, and says that no engine is awake
                harness.restart(grant_unproven=True)
        self.clients_end_when_they_are_told()
        waiting = [engine.name for engine in self.present() if engine in self.wanting]
        holding = [engine for engine in self.living() if engine.token]
        unheard = [engine.name for engine in self.living() if engine.gave_back and engine.name not in engine.main.locks]
        told = [engine.name for engine in holding]
        if holding and all(
            engine.name in engine.main.locks for engine in holding
        ):  # else it isn't let in, and serves on
            assert harness.state == "HELD", (
                f"{told} holds and is back, and the lock is {harness.state}: {harness.waiting_for}"
            )
        assert told or unheard or not waiting, (
            f"{waiting} is ready, no engine holds, and the lock is {harness.state}: {harness.waiting_for}"
        )

    def engines_come_to_rest(self) -> None:
        for engine in self.harness.engines:
            engine.wakes = True
            self.mind(engine)
            if not engine.main.alive:
                self.harness.dies(*engine.processes)
                for process in engine.processes:
                    self.show(process)
        for engine in self.living():
            if engine not in self.present():
                self.come_in(engine)
            self.mind(engine)
            self.children_come_in(engine)
            if engine in self.wanting and engine in self.present():
                engine.says(m.Ready(needs=self.needs(engine)))
                engine.acquire(**self.needs(engine))


LockWorld.TestCase.settings = MODEST
TestTheServersMachine = LockWorld.TestCase


class ClientWorld(RuleBasedStateMachine):
    """A shell that does as it is told, a server that says anything that a server may say, and a program with wishes."""

    @initialize(main=st.booleans(), presume_dead=st.booleans())
    def begin(self, main: bool, presume_dead: bool) -> None:
        self.client = Client(main=main, presume_dead=presume_dead)
        self.main = main
        self.connecting = False
        self.connected = False
        self.welcomed = False
        self.server = 1
        self.kept: set[str] = set()
        self.children: set[int] = set()
        self.wished: set[str] = set()
        self.held: dict[str, int] = {}
        self.away_since: float | None = None
        self.over = False

    def tell(self, event: c.Event) -> None:
        """To the machine; and everything that it wants done is checked and done."""
        self.client.tell(event)
        assert not (self.over and self.client.effects), "it is over, and something is to be done"
        asked = False
        for effect in self.client.effects:
            if isinstance(effect, c.Connect):
                assert not self.connecting and not self.connected, "one connection at a time"
                self.connecting = True
            elif isinstance(effect, c.Say):
                assert self.connected, "no server is there to hear it"
                if isinstance(effect.message, m.HandBack):
                    assert effect.message.tree in self.kept, "the copies were dropped already"
                    assert not asked, "what was kept goes back before anything is asked"
                elif isinstance(effect.message, m.Vouch):
                    assert effect.message.child in self.children
                asked = asked or not isinstance(effect.message, m.HandBack | m.Register | m.Join)
            elif isinstance(effect, c.HangUp):
                assert self.connected, "there is nothing to hang up"
                self.hung_up()
            elif isinstance(effect, c.KeepCopies):
                self.kept.add(effect.tree)
            elif isinstance(effect, c.DropCopies):
                assert effect.tree in self.kept
                if effect.numbers is None:
                    self.kept.remove(effect.tree)
            elif isinstance(effect, c.Got):
                assert effect.lock in self.wished, "it wasn't wanted"
                self.held[effect.lock] = effect.token
            elif isinstance(effect, c.Lost) or (isinstance(effect, c.No) and not self.welcomed):
                self.over = True

    @precondition(lambda self: self.connecting)
    @rule(same=st.booleans())
    def the_door_opens(self, same: bool) -> None:
        self.connecting, self.connected = False, True
        self.tell(c.Connected((1, 2), True, where(same)))

    @precondition(lambda self: self.connecting)
    @rule(there=st.sampled_from(c.There))
    def the_door_stays_shut(self, there: c.There) -> None:
        self.connecting = False
        self.tell(c.Disconnected(there))

    @precondition(lambda self: self.connected)
    @rule(same=st.booleans(), new=st.booleans())
    def the_connection_ends(self, same: bool, new: bool) -> None:
        self.hung_up()
        self.server += new
        self.tell(c.Disconnected(where(same)))

    @rule(elsewhere=st.booleans())
    def its_path_is_looked_at(self, elsewhere: bool) -> None:
        self.tell(c.PathSeen(elsewhere))

    def hung_up(self) -> None:
        if self.welcomed and self.away_since is None:
            self.away_since = self.client.now
        self.connected = self.welcomed = False

    @precondition(lambda self: self.connected)
    @rule(word=st.sampled_from([m.Busy(why="full"), m.Incompatible(oldest=8, newest=9, why="x"), m.Problem(why="p")]))
    def the_server_cant_have_it(self, word: m.ServerMessage) -> None:
        self.tell(c.Heard(word))
        self.the_connection_ends(same=True, new=False)

    @precondition(lambda self: self.welcomed and not self.over)
    @rule()
    def the_server_starts_again_and_takes_it_back(self) -> None:
        self.the_connection_ends(same=True, new=True)
        self.time_passes(0.3)
        if self.connecting:
            self.the_door_opens(same=True)
        if self.connected and not self.over:
            self.it_is_welcomed("as claimed")

    @precondition(lambda self: self.connected and not self.welcomed)
    @rule(active=st.sampled_from(["as claimed", "as claimed", "nothing", "granted"]), protocol=st.sampled_from([1, 2]))
    def it_is_welcomed(self, active: str, protocol: int = 2) -> None:
        holds: dict[str, int] = {}
        if active != "nothing":
            holds.update(self.client.machine.holds.items())
        if active == "granted" and self.main and ACTIVE in self.client.machine.wants:
            holds[ACTIVE] = self.server + 10
        self.welcomed, self.away_since = True, None
        policy = m.Policy(self.client.presume_dead, 10.0, 2.0)
        self.tell(
            c.Heard(
                m.Welcome(
                    server_incarnation=f"s{self.server}",
                    number=1 if self.main else 2,
                    policy=policy,
                    holds=holds,
                    protocol=protocol,
                )
            )
        )

    @precondition(lambda self: self.connected)
    @rule(really=st.integers(min_value=0, max_value=9))
    def it_is_refused(self, really: int) -> None:
        if really == 0:
            self.tell(c.Heard(m.Refused(why="no")))

    @precondition(lambda self: self.connected and self.welcomed and self.main)
    @rule(
        message=st.sampled_from(
            [
                m.Granted(lock=ACTIVE, token=9),
                m.Granted(lock=INIT, token=0),
                m.Withdrawn(lock=ACTIVE, number=1),
                m.Withdrawn(lock=INIT, number=1),
                m.Prepare(round=1),
                m.Drain(round=1, timeout_s=1.0),
                m.Resume(why="off"),
                m.GiveBack(round=1),
                m.Vouched(child=1),
                m.Keep(mark=1, tree="x.00000001", numbers=[1]),
                m.Keep(mark=2, tree="y.00000002", numbers=[1, 2]),
                m.Keep(mark=2, tree="a.0123abcd", numbers=[2]),
                m.Keep(mark=2, tree="y.00000002", numbers=[3], more=True, gone=[1], answer=True),
            ]
        )
    )
    def the_server_says(self, message: m.ServerMessage) -> None:
        self.tell(c.Heard(message))

    @precondition(lambda self: self.main)
    @rule(
        event=st.sampled_from(
            [
                c.Want(ACTIVE, {"gpu": 1}),
                c.Want(INIT),
                c.Withdraw(ACTIVE),
                c.Withdraw(INIT),
                c.SetReady(False),
                c.SetReady(True, {"gpu": 2}),
                c.SetServing("u"),
                c.Checked(1, True),
                c.DrainEnded(1, True),
                c.GaveBack(),
                c.VouchFor(1, 77),
            ]
        )
    )
    def the_program_says(self, event: Any) -> None:
        if isinstance(event, c.Want):
            self.wished.add(event.lock)
        if isinstance(event, c.VouchFor):
            self.children.add(event.child)
        self.tell(event)
        if isinstance(event, c.Withdraw) and event.lock == INIT:
            self.wished.discard(INIT)
            self.held.pop(INIT, None)

    @rule(seconds=st.sampled_from([0.0, 0.001, 0.05, 0.3, 2.0, 9.0]))
    def time_passes(self, seconds: float) -> None:
        until = self.client.now + seconds
        for _ in range(1000):
            if self.client.machine.deadline > until or self.over or self.connecting:
                break
            self.client.now = max(self.client.now, self.client.machine.deadline)
            self.tell(c.Tick())
        else:
            raise AssertionError("a busy loop")
        self.client.now = until
        self.tell(c.Tick())

    @invariant()
    def it_says_what_it_holds(self) -> None:
        machine = self.client.machine
        if not self.over:
            assert set(machine.holds) <= set(self.held)
            assert not (set(machine.holds) & set(machine.wants))

    @invariant()
    def it_sleeps_until_there_is_something_to_do(self) -> None:
        machine = self.client.machine
        if self.over or not self.client.all:
            return
        if self.welcomed:
            assert machine.deadline == math.inf or self.main, "only a main process looks where its path leads"
        elif not self.connected and not self.connecting:
            assert machine.deadline < math.inf, "it will never knock again"
            assert machine.deadline > self.client.now

    @invariant()
    def one_that_may_be_presumed_dead_has_ended_before_it_is(self) -> None:
        if self.over or not self.client.presume_dead or self.away_since is None:
            return
        if ACTIVE in self.client.machine.holds:
            assert self.client.now < self.away_since + 10.0


ClientWorld.TestCase.settings = MODEST
TestTheClientsMachine = ClientWorld.TestCase
