"""A simulated fleet: the real machines of clients, a model of their database (`model.py`), and a world that errs.

    python -m tests.fleet.sim --seeds 0:1000000 [--jobs 2]
    python -m tests.fleet.sim --seed 4711              one schedule, event by event

Clients' clocks are off by up to eleven days, and up to a tenth too quick or too slow; so is the database's,
which is set back now and then. Questions and answers come late, out of order, or not at all; a question that a client
has given up may still be carried out. Clients are stopped, cut off and killed; the database stands still, or says no.
In one schedule of ten nothing errs.

What must hold:

- a lease that a client relies on excludes every other that it conflicts with, in real time
- tokens grow; what was promised is never shortened; a renewal revives nothing; a wish stops new shared leases
- each wish ends, by a grant or a refusal, within its bound; and when the faults are over every wish that waits for
  long enough is granted
- where nothing errs a door gives way within its own bound, or within that of the wish
"""

import argparse
import heapq
import random
import sys
import time
from collections.abc import Callable, Mapping
from multiprocessing import Pool
from typing import Any

from fleet.rules import term as t
from fleet.rules.leases import Mode, Wish, in_the_way, seen
from tests.fleet import scripts
from tests.fleet.model import Model
from tests.fleet.sim_door import Door, Run, Truth

HOST, FAULTS_END, END = "h", 30.0, 4000.0


class Broken(AssertionError):
    """A claim doesn't hold."""


class Database:
    def __init__(self, world: "World", *, sqlite: bool) -> None:
        self.world = world
        self.offset, self.rate = world.random.uniform(1e9, 2e9), world.drift()
        self.model = Model(self.clock)
        self.model.init([HOST])
        self._sqlite = scripts.in_memory(self.clock) if sqlite else None
        if self._sqlite is not None:
            scripts.add_hosts(self._sqlite, [HOST])
        self.away_until = self.says_no_until = 0.0
        self.token = 0
        self.last = 0.0
        """The host's time, as it was said last."""
        self.promised: dict[str, float] = {}
        self.doors: set[object] = set()
        """The incarnations of doors that have reached it."""

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def call(self, name: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
        self.doors.update(values[each] for each in values if each == "incarnation")
        if self._sqlite is not None:
            return self._sqlite.call(name, **values)
        rows = self.model.call(name, **values)
        if name in ("ask", "renew"):
            self.world.claim(rows[0]["now"] >= self.last, "time goes back")
            self.last = rows[0]["now"]
            if rows[0]["lease"] is not None and rows[0]["token"] is not None:
                self._check(name, values["lease"], rows[0])
        return rows

    def _check(self, name: str, lease: str, row: dict[str, Any]) -> None:
        claim, before, leases = self.world.claim, self.promised.get(lease), self.model.hosts[HOST].leases
        mine = leases[lease]
        if before is None:
            claim(name == "ask", f"{lease} was granted by a renewal")
            claim(row["token"] == self.token + 1, f"token {row['token']} comes after {self.token}")
            self.token = row["token"]
        else:
            if not mine.exclusive and row["expires_at"] > before:
                ends = [max(o.asked_at, mine.granted_at or 0.0) + max(o.drain_s, mine.ttl_s) for o in leases.values() if
                        o.exclusive and o.token is None]  # fmt: skip
                claim(not ends or row["expires_at"] <= min(ends), f"{lease} goes on, and is waited for")
            claim(row["now"] < before, f"{lease} was revived")
            claim(row["expires_at"] >= before, f"{lease} was shortened")
        self.promised[lease] = row["expires_at"]


class Client:
    """One program after another, with one wish each."""

    def __init__(self, world: "World", number: int) -> None:
        self.world, self.number, self.wishes = world, number, 0
        self.offset, self.rate = world.random.uniform(-1e6, 1e6), world.drift()
        self.stalled_until = self.cut_off_until = 0.0
        self.stubborn = world.random.random() < 0.2
        self.term: t.Term | None = None
        self.armed = 0.0
        """The deadline for which a tick is under way."""
        self.relied: tuple[float, float, bool] | None = None
        """Since and until when in real time, and whether it is exclusive."""
        self.pending: list[t.Answered | t.Failed | t.GiveBack] = []
        self.end = t.End.REFUSED
        self.run: Run | None = None
        """What runs under an exclusive lease."""

    def clock(self) -> float:
        return self.offset + self.rate * self.world.now

    def begin(self) -> None:
        world, mode = self.world, Mode.EXCLUSIVE if self.world.random.random() < 0.5 else Mode.SHARED
        self.wishes += 1
        priority = world.random.choice((0, 0, 5)) if mode is Mode.EXCLUSIVE else 0
        ttl_s, wait_s = world.random.choice((3.0, 6.0, 6.0, 12.0)), world.random.choice((5.0, 60.0, 3000.0))
        wish = Wish(HOST, mode, f"c{self.number}", "", priority, ttl_s, wait_s, world.random.choice((0.0, 2.0, 10.0)))
        self.term = t.Term(wish, f"{self.number:08}.{self.wishes:07}", self.clock(), looks=not self.stubborn)
        self.feed(t.Tick())
        self.bound(self.term, wait_s)

    def bound(self, term: t.Term, wait_s: float) -> None:
        def late() -> None:
            if self.term is term and term.phase is t.Phase.WAITS and self.world.now < self.stalled_until + 12:
                self.world.at(self.stalled_until + 12, late)
            else:
                waits = self.term is term and term.phase is t.Phase.WAITS
                self.world.claim(not waits, f"{term.lease} waits beyond its bound")

        first_s = 0 if wait_s > t.FIRST_PATIENCE_S else t.FIRST_PATIENCE_S / self.rate
        self.world.at(self.world.now + wait_s / self.rate + first_s + 1, late)

    def feed(self, event: t.Answered | t.Failed | t.GiveBack | t.Tick) -> None:
        if self.term is None:
            return
        if self.world.now < self.stalled_until:
            if not isinstance(event, t.Tick):
                self.pending.append(event)
            return
        term = self.term
        for effect in term.handle(event, self.clock()):
            self.world.say(self.number, effect)
            self.carry_out(effect, term)
        if self.term is term and term.deadline != self.armed:
            self.armed = deadline = term.deadline
            if deadline < 1e300:
                at = max((deadline - self.offset) / self.rate, self.world.now) + 1e-6
                self.world.at(at, lambda: self.tick(term, deadline))

    def tick(self, term: t.Term, deadline: float) -> None:
        if self.term is term and self.armed == deadline:
            self.armed = 0.0
            self.feed(t.Tick())

    def carry_out(self, effect: t.Effect, term: t.Term) -> None:
        world = self.world
        if isinstance(effect, t.Ask):
            self.send(effect, term)
        elif isinstance(effect, (t.Granted, t.Extended)):
            since = self.relied[0] if self.relied is not None else world.now
            exclusive = term.wish.mode is Mode.EXCLUSIVE
            self.relied = since, (effect.until - self.offset) / self.rate, exclusive
            world.exclude(self)
            if isinstance(effect, t.Granted):
                world.grants += 1
                self.run = Run(world, effect.token) if exclusive else None
                for_s = world.random.choice((0.2, 5.0, 14.0))
                world.at(world.now + for_s, lambda: self.leave(term))
            world.at(self.relied[1], self.guard)
        elif isinstance(effect, t.Wanted):
            world.at(world.now + world.random.uniform(0, 3), lambda: self.leave(term))
        elif isinstance(effect, t.Ended):
            self.relied = None
            if self.run is not None:
                self.run.ends()
            self.end = effect.end
            lost = effect.end is t.End.LOST
            if world.quiet():
                waited_for = term.wish.mode is Mode.SHARED  # it goes on no longer than the drain
                may = effect.end is t.End.RELEASED or waited_for or (not lost and term.wish.wait_s < 3000)
                world.claim(may, f"{term.lease} ended without a fault: {effect}")
            if lost:
                world.lost += 1
                world.at(world.now + 0.1, lambda: self.leave(term))
        elif isinstance(effect, t.Over):
            if self.run is not None and self.end is t.End.RELEASED:
                self.run.judge()
            self.term = self.run = None
            if world.now < FAULTS_END:
                world.at(world.now + world.random.uniform(0, 10), self.begin)

    def guard(self) -> None:
        """What runs is killed when the lease is relied on no longer, also while this process is stopped."""
        if self.run is not None and (self.relied is None or self.relied[1] <= self.world.now):
            self.run.ends()

    def leave(self, term: t.Term) -> None:
        if self.term is term:
            self.feed(t.GiveBack())

    def send(self, ask: t.Ask, term: t.Term) -> None:
        world = self.world

        def carried_out() -> list[dict[str, Any]]:
            turn = ask.name == "ask" and world.random.random() < 0.2 and self.nothing_in_the_way(term)
            rows = world.database.call(ask.name, dict(ask.values))
            if not world.errs and ask.name == "ask" and term.wish.mode is Mode.EXCLUSIVE and not term.answered:
                world.wishes += 1
                self.doors_give_way(term)
            if turn and rows[0]["lease"] is not None:
                world.claim(
                    rows[0]["token"] is not None, f"nothing is in the way of {term.lease}, and it isn't granted"
                )
            return rows

        def came(answer: list[dict[str, Any]] | bool) -> None:
            if self.term is term and not world.now < self.cut_off_until:
                self.feed(world.event(ask, answer))

        world.transmit(self, carried_out, came)

    def doors_give_way(self, term: t.Term) -> None:
        world, number = self.world, self.world.wishes
        others = [each.term for each in world.clients if each is not self and each.term is not None]
        if any(other.phase is t.Phase.WAITS and other.wish.mode is Mode.EXCLUSIVE for other in others):
            return
        for door in world.doors:
            if door.machine is not None and door.gate.open:
                self.door_gives_way(door, door.machine._terms, term, number)

    def door_gives_way(self, door: Door, its_term: int, term: t.Term, number: int) -> None:
        def late() -> None:
            assert door.machine is not None
            same = self.term is term and term.phase is t.Phase.WAITS and self.world.wishes == number
            holds = door.machine._terms == its_term and door.machine._term.holds(door.clock())
            self.world.claim(not (same and holds), f"door {door.number} doesn't give way to {term.lease}")

        assert door.machine is not None
        drain_s = min(door.machine.bounds.drain_s, term.wish.drain_s)
        self.world.at(self.world.now + (t.POLL_S + drain_s) / door.rate + 0.5, late)

    def nothing_in_the_way(self, term: t.Term) -> bool:
        """What a waiter that looks just now would think."""
        host = seen(self.world.database.call("look", {"host": HOST}))
        assert host is not None
        here = any(row.lease == term.lease and row.token is None for row in host.rows)
        return here and not in_the_way(host.rows, term.lease)

    # -- faults ----------------------------------------------------------------------------------------------------

    def stall(self, for_s: float) -> None:
        self.stalled_until = self.world.now + for_s
        self.world.at(self.stalled_until + 1e-6, self.wake)

    def wake(self) -> None:
        pending, self.pending = self.pending, []
        for event in [*pending, t.Tick()]:
            self.feed(event)

    def die(self) -> None:
        """And its guard kills what it ran."""
        if self.run is not None:
            self.run.ends()
        self.term = self.relied = self.run = None
        self.pending = []
        self.world.at(self.world.now + self.world.random.uniform(0, 10), self.begin)


class World:
    def __init__(self, seed: int, say: Callable[[str], None] | None = None, *, sqlite: bool = False) -> None:
        self.random, self._say = random.Random(seed), say
        self.now, self._number, self.grants, self.lost = 0.0, 0, 0, 0
        self.errs, self.wishes = self.random.random() < 0.9, 0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self.database = Database(self, sqlite=sqlite)
        self.truth, self.judged = Truth(self), [0, 0]
        """Runs that were called clean, and tainted."""
        self.clients = [Client(self, number) for number in range(self.random.randint(2, 6))]
        self.doors = [Door(self, 100 + number) for number in range(self.random.choice((0, 0, 1, 2)))]
        for client in self.clients:
            self.at(self.random.uniform(0, 5), client.begin)
        for _ in range(self.random.randint(0, 12) if self.errs else 0):
            self.at(self.random.uniform(0, FAULTS_END - 5), self.fault)

    def fault(self) -> None:
        parties: list[Client | Door] = [*self.clients, *self.doors]
        client, length_s = self.random.choice(parties), self.random.choice((0.5, 3.0, 10.0, 20.0))
        kind = self.random.choice(("stall", "cut off", "die", "database", "says no", "clock"))
        self.say("--", kind, client.number, length_s)
        if kind == "stall":
            client.stall(length_s)
        elif kind == "cut off":
            client.cut_off_until = self.now + length_s
        elif kind == "die":
            client.die()
        elif kind == "database":
            self.database.away_until = self.now + length_s
        elif kind == "says no":
            self.database.says_no_until = self.now + length_s
        else:
            self.database.offset -= length_s / 2

    def transmit(
        self, to: "Client | Door", carried_out: Callable[[], list[dict[str, Any]]],
        came: Callable[[list[dict[str, Any]] | bool], None],
    ) -> None:  # fmt: skip
        """A question, and its answer: late, or never. Or no, and whether a person has to change something."""
        random, faults = self.random, self.errs and self.now < FAULTS_END

        def delay() -> float:
            return (0.001, 0.001, 0.05, 0.3, 4.0)[int(random.random() * 5)] if faults else 0.01

        def arrives() -> None:
            if self.now < self.database.away_until:
                self.at(self.database.away_until + 0.001, arrives)
            elif self.now >= to.cut_off_until and not (faults and random.random() < 0.05):
                no = self.now < self.database.says_no_until
                rows = random.random() < 0.5 if no else carried_out()
                if not (faults and random.random() < 0.05):
                    self.at(self.now + delay(), lambda: came(rows))

        self.at(self.now + delay(), arrives)

    @staticmethod
    def event(ask: t.Ask, answer: list[dict[str, Any]] | bool) -> t.Answered | t.Failed:
        if isinstance(answer, bool):
            return t.Failed(ask.question, "no", answer)
        return t.Answered(ask.question, answer)

    def quiet(self) -> bool:
        """Nothing errs any more, and what has erred is over."""
        return self.late() or not self.errs

    def late(self) -> bool:
        return self.now > FAULTS_END + 25

    def drift(self) -> float:
        return self.random.uniform(0.9, 1.1)

    def at(self, when: float, what: Callable[[], object]) -> None:
        self._number += 1
        heapq.heappush(self._events, (when, self._number, what))

    def say(self, *words: object) -> None:
        if self._say is not None:
            self._say(f"{self.now:9.3f}  {' '.join(map(str, words))}")

    def claim(self, holds: bool, what: str) -> None:
        if not holds:
            raise Broken(what)

    def exclude(self, client: "Client | Door") -> None:
        assert client.relied is not None
        others: list[Client | Door] = [*self.clients, *self.doors]
        for other in others:
            if other is not client and other.relied is not None and other.relied[1] > self.now:
                together = not (client.relied[2] or other.relied[2])
                self.claim(together, f"{client.number} and {other.number} rely on the host at the same time")

    def run(self) -> None:
        self.at(FAULTS_END + 26, self.finish)
        while self._events:
            self.now, _, what = heapq.heappop(self._events)
            self.claim(self.now < END, "it doesn't come to an end")
            what()
        waiting = [client.term.lease for client in self.clients if client.term is not None]
        self.claim(not waiting, f"{waiting} are forgotten")

    def finish(self) -> None:
        """Doors close some time after the last client."""
        if any(client.term is not None for client in self.clients):
            self.at(self.now + 5, self.finish)
        else:
            for door in self.doors:
                self.at(self.now + 30, door.close)


def run(seed: int) -> tuple[int, ...]:
    """One schedule. Returns grants and losses, and runs that were called clean and tainted; raises Broken."""
    try:
        world = World(seed)
        world.run()
    except Exception as error:
        raise Broken(f"seed {seed}: {type(error).__name__}: {error}") from error
    return world.grants, world.lost, *world.judged


def _many(seeds: range) -> tuple[list[int], list[str]]:
    counts, broken = [0, 0, 0, 0], []
    for seed in seeds:
        try:
            counts = [a + b for a, b in zip(counts, run(seed), strict=True)]
        except Broken as error:
            broken.append(str(error))
    return counts, broken


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fleet.sim")
    parser.add_argument("--seeds", default="0:2000")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--jobs", type=int, default=1)
    options = parser.parse_args()
    if options.seed is not None:
        World(options.seed, print).run()
        return 0
    first, last = (int(each) for each in options.seeds.split(":"))
    began, done, counts = time.monotonic(), 0, [0, 0, 0, 0]
    broken: list[str] = []
    parts = [range(at, min(at + 500, last)) for at in range(first, last, 500)]
    with Pool(options.jobs) as pool:
        for more, wrong in pool.imap(_many, parts):
            counts, done = [a + b for a, b in zip(counts, more, strict=True)], done + 1
            for each in wrong:
                print(each, flush=True)
            broken += wrong
            if done % 20 == 0 or done == len(parts):
                grants, lost, clean, tainted = counts
                print(
                    f"{parts[done - 1].stop - first} schedules, {grants} grants, {lost} leases lost, "
                    f"{clean} clean runs, {tainted} tainted, {len(broken)} broken, "
                    f"{time.monotonic() - began:.0f} s", flush=True,
                )  # fmt: skip
    return int(bool(broken))


if __name__ == "__main__":
    sys.exit(main())
