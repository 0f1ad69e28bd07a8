"""A door in the simulated fleet: `gateway/rules/lease.py` itself, what admission makes of it for interactive requests
(`admission.py`, rule 8, in a few lines), and what has really been with an engine. And a run that asks whether its time
was clean (`clean.py`), which is held against that.

What must hold beside what stands in `sim.py`:

- a door's lease excludes every exclusive one that is relied on, in real time
- a run that is called clean had no request of a door's with the engine in its time; and where nothing errs each is
  clean. Some time after the last fault one is tainted only by a door that really had a request there
- a door lets nothing in while another has the host alone and runs, as far as the door has heard of that lease
- when all is over each door is open, and verified
"""

import math
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from fleet.cli import clean
from fleet.rules import term as t
from gateway.rules.events import LeaseSeen
from gateway.rules.lease import Bounds, DoorLease

if TYPE_CHECKING:
    from tests.fleet.sim import World

Row = dict[str, Any]
HOST = "h"


class Door:
    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number, self.incarnation = world, number, 0
        self.offset, self.rate = world.random.uniform(-1e6, 1e6), world.drift()
        self.stalled_until = self.cut_off_until = 0.0
        self.relied: tuple[float, float, bool] | None = None
        self.machine: DoorLease | None = None
        self.requests = 0
        self.begin()
        world.at(world.random.uniform(0, 4), self.arrive)

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def begin(self) -> None:
        if self.machine is not None:
            return
        dice = self.world.random
        self.incarnation += 1
        self.name = name = f"{self.number:08}-door-{self.incarnation:07}"
        ttl_s, drain_s = dice.choice((3.0, 6.0, 6.0, 12.0)), dice.choice((0.0, 2.0, 10.0))
        self.machine = DoorLease(Bounds(HOST, f"door {self.number}", name, ttl_s, drain_s), self.clock())
        self.gate, self.uncovered, self.armed = LeaseSeen(open=False), 0, 0
        self.engine: dict[int, bool] = {}
        """Requests that are with it, as the door knows; and whether it is uncovered."""
        self.begun: dict[int, int] = {}
        """Which attempt of each."""
        self.waiting: list[int] = []
        self.asked: list[t.Ask] = []
        """The first one is under way."""
        self.asked_at = 0.0
        self.others: dict[int, float] = {}
        """Token of each exclusive lease that it has heard of, and how long that lasts at least in real time."""
        self.pending: list[Callable[[], None]] = []
        self.feed(t.Tick())

    # -- the shell -------------------------------------------------------------------------------------------------

    def feed(self, event: t.Answered | t.Failed | t.Tick) -> None:
        if self.machine is None:
            return
        if self.stalled(lambda: self.feed(event)):
            return
        now = self.clock()
        self.carry_out(self.machine.handle(event, now, self.uncovered, len(self.engine), sum(self.engine.values())))
        gate = self.machine.gate(now)
        self.rely(gate)
        if gate != self.gate:
            self.tell(gate)
        wait_s = max(0.0, self.machine.deadline - now)
        self.armed += 1
        number, machine = self.armed, self.machine

        def tick() -> None:
            if self.armed == number and self.machine is machine:
                self.feed(t.Tick())

        self.world.at(self.world.now + wait_s / self.rate + 1e-6, tick)

    def stalled(self, what: Callable[[], None]) -> bool:
        if self.world.now < self.stalled_until:
            self.pending.append(what)
            return True
        return False

    def rely(self, gate: LeaseSeen) -> None:
        """On its own lease, which covers what is with the engine."""
        assert self.machine is not None
        if not self.machine._term.holds(self.clock()):
            self.relied = None
            return
        since = self.relied[0] if self.relied is not None else self.world.now
        self.relied = since, (self.machine._term.until - self.offset) / self.rate, False
        self.world.exclude(self)

    def carry_out(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, t.Ask):
                self.asked.append(effect)
                if len(self.asked) == 1:
                    self.ask_next()
            elif isinstance(effect, t.Cut) and self.asked:
                self.answer(t.Failed(self.asked[0].question, "cut"), self.asked[0])

    def ask_next(self) -> None:
        ask, world = self.asked[0], self.world
        self.asked_at = world.now

        def came(answer: list[Row] | bool) -> None:
            if world.now >= self.cut_off_until:
                self.answer(world.event(ask, answer), ask)

        world.transmit(self, lambda: world.database.call(ask.name, dict(ask.values)), came)
        if ask.name == "report":  # the shell's connection ends by itself when no packet comes back

            def lost() -> None:
                self.answer(t.Failed(ask.question, "lost"), ask)

            world.at(world.now + 15, lost)

    def answer(self, event: t.Answered | t.Failed, ask: t.Ask) -> None:
        """In the asker's thread, which hears of it while the machine's is away, too."""
        if self.machine is not None and self.asked and self.asked[0] is ask:
            if self.stalled(lambda: self.answer(event, ask)):
                return
            if isinstance(event, t.Answered) and ask.name == "look" and event.rows[0]["mode"] == "exclusive":
                self.hear_of(event.rows[0])
            self.asked.pop(0)
            if self.asked:
                self.ask_next()
            self.feed(event)

    def hear_of(self, row: Mapping[str, Any]) -> None:
        if row["token"] is not None:
            self.others[row["token"]] = self.asked_at + (row["expires_at"] - row["now"]) / 1.1

    # -- admission -------------------------------------------------------------------------------------------------

    def tell(self, gate: LeaseSeen) -> None:
        before, self.gate = self.gate, gate
        if gate.open:
            self.no_other_runs()
        if gate.until == -math.inf < before.until:
            for request in self.engine:
                self.count(request)
        elif before.until == -math.inf < gate.until:
            self.engine = dict.fromkeys(self.engine, False)
        if gate.open:
            waiting, self.waiting = self.waiting, []
            for request in waiting:
                self.admit(request)
        self.pause()

    def no_other_runs(self) -> None:
        now = self.world.now
        for client in self.world.clients:
            until = client.relied[1] if client.relied is not None and client.relied[2] else 0.0
            known_until = self.others.get(client.term.token, 0.0) if client.term is not None else 0.0
            self.world.claim(now >= min(until, known_until), f"door {self.number} is open, and {client.number} runs")

    def pause(self) -> None:
        if not self.gate.open and self.engine:
            if self.clock() >= self.gate.pause_at:
                for request in self.engine:
                    self.count_if_uncovered(request)
                self.waiting += self.engine
                for request in self.engine:
                    self.world.truth.left(self, request)
                self.engine = {}
            elif self.gate.pause_at < math.inf:
                gate, wait_s = self.gate, self.gate.pause_at - self.clock()
                self.world.at(self.world.now + wait_s / self.rate + 1e-6, lambda: self.paused(gate))

    def paused(self, gate: LeaseSeen) -> None:
        here = self.machine is not None and self.gate is gate
        if here and not self.stalled(lambda: self.paused(gate)):
            self.pause()

    def count_if_uncovered(self, request: int) -> None:
        if self.clock() >= self.gate.until:
            self.count(request)

    def count(self, request: int) -> None:
        self.uncovered += not self.engine[request]
        self.engine[request] = True

    def arrive(self) -> None:
        world = self.world
        if world.late() and self.requests:
            return
        world.at(world.now + world.random.uniform(0, 6), self.arrive)
        if self.machine is not None and world.now >= self.stalled_until:
            self.requests += 1
            if self.gate.open:
                self.admit(self.requests)
            else:
                self.waiting.append(self.requests)

    def admit(self, request: int) -> None:
        world, machine = self.world, self.machine
        self.engine[request] = False
        self.count_if_uncovered(request)
        begun = self.begun[request] = world.truth.came(self, request)

        def ends() -> None:
            if world.truth.left(self, request, begun):
                over()

        def over() -> None:
            here = self.machine is machine and request in self.engine and self.begun.get(request) == begun
            if here and not self.stalled(over):
                self.count_if_uncovered(request)
                del self.engine[request]

        world.at(world.now + world.random.choice((0.2, 3.0, 15.0)), ends)

    # -- faults, and the end ---------------------------------------------------------------------------------------

    def stall(self, for_s: float) -> None:
        self.stalled_until = self.world.now + for_s
        self.world.at(self.stalled_until + 1e-6, self.wake)

    def wake(self) -> None:
        """It comes upon what has happened in any order."""
        pending, self.pending = self.pending, []
        self.world.random.shuffle(pending)
        for each in pending:
            each()
        self.feed(t.Tick())

    def die(self) -> None:
        for request in self.engine:
            self.world.truth.left(self, request)
        self.machine = self.relied = None
        self.world.at(self.world.now + self.world.random.uniform(0, 10), self.begin)

    def close(self) -> None:
        """When no client is left."""
        assert self.machine is not None
        self.world.claim(self.gate.open and self.gate.until > self.clock(), f"door {self.number} stays {self.gate}")
        self.machine = None


class Truth:
    """What was really with the engine, and in which runs' time."""

    def __init__(self, world: "World") -> None:
        self.world = world
        self.with_engine: dict[tuple[Door, int], int] = {}
        self.runs: set[Run] = set()
        self._number = 0

    def came(self, door: Door, request: int) -> int:
        self._number += 1
        self.with_engine[door, request] = self._number
        for run in self.runs:
            run.uncovered.add(door.name)
        return self._number

    def left(self, door: Door, request: int, number: int | None = None) -> bool:
        there = self.with_engine.get((door, request))
        if there is None or number not in (None, there):
            return False
        del self.with_engine[door, request]
        return True


class Run:
    """`fleetctl run`, as far as it asks whether its time was clean."""

    def __init__(self, world: "World", token: int) -> None:
        self.world, self.faults = world, not world.quiet()
        self._token, self._end, self._seen = token, 0.0, True
        self.uncovered = {door.name for door, _ in world.truth.with_engine}
        self._before: Mapping[str, Row] = {}
        found = self._look()
        if found is None:
            self._seen = False
        else:
            self._before = found
        world.truth.runs.add(self)

    def ends(self) -> None:
        """What it runs is over; then it gives its lease back."""
        self.world.truth.runs.discard(self)

    def judge(self) -> None:
        """When the lease has been given back."""
        self._end = self._end or self.world.now + clean.PATIENCE_S
        doors = self._look()
        if doors is not None:
            late = clean.not_heard_of(doors, self._token)
            if not late or self.world.now >= self._end:
                why = clean.taints(self._before, doors, late)
                self.world.judged[bool(why) or not self._seen] += 1
                dirty = self.uncovered & self.world.database.doors  # one that has never reached it isn't known
                self.world.claim(bool(why) or not self._seen or not dirty, "a run is called clean, and wasn't")
                may = self.faults or (self.world.errs and self.uncovered)
                self.world.claim(bool(may) or not why, f"a run is called tainted without a fault: {why}")
                return
        if self.world.now < self._end:
            self.world.at(self.world.now + 0.2, self.judge)

    def _look(self) -> Mapping[str, Row] | None:
        database = self.world.database
        if self.world.now < max(database.away_until, database.says_no_until):
            return None
        return {row["door"]: row for row in self.world.database.call("doors", {"host": HOST})}
