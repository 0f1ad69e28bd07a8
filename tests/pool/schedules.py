"""Seeded schedules of the pool: random hosts, requests and faults; one seed is one schedule, event by event.

Every claim at the top of `house.py` is checked after each event. When the faults are over, and the last request is in,
each request has to be answered whole: nothing hangs, nothing is lost.
"""

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import msgspec

from pool.entries import Entry
from pool.rules import events as e
from pool.rules import messages as m
from tests.pool.house import HouseWorld
from tests.pool.world import Kind
from tests.sim.schedule import Violation

EVENTS = 150
ENDS_S = 3600.0
"""After the last fault every request is answered within that time."""


def world_of(chance: random.Random, trace: list[str] | None) -> HouseWorld:
    names = "abcdefgh"[: chance.choice((1, 2, 2, 3, 4, 8))]
    weighs = chance.choice(((0,), (5, 10, 30, 40)))
    many = [_kind(name, weighs, chance) for name in names]
    entries = {name: _entry(chance) for name in names}
    if chance.random() < 0.5:
        _share(many, entries, chance)
    host = e.HostRules(
        swap_share=chance.choice((0.05, 0.1, 0.5)),
        drain_s=chance.choice((0.0, 1.0, 5.0)),
        ageing_s=chance.choice((10.0, 60.0)),
        longest_wait_s=chance.choice((None, None, 5.0)),
        default=chance.choice(("", "", "a")),
        asleep=chance.choice(({}, {e.HOST: 30})),
    )
    loaded, host_memory = chance.random() < 0.5, chance.choice((0, 40, 1000))
    seed = chance.randrange(1 << 30)
    return HouseWorld(many, 100, seed, entries=entries, host=host, loaded=loaded, host_memory=host_memory, trace=trace)


def _kind(name: str, weighs: tuple[int, ...], chance: random.Random) -> Kind:
    size = chance.choice((20, 45, 60, 90))
    times = chance.uniform(0.02, 2), chance.uniform(0.01, 1), chance.uniform(1, 20)
    return Kind(name, size, *times, weights=min(chance.choice(weighs), 100 - size), copy_s=chance.uniform(0.05, 2))


def _share(many: list[Kind], entries: dict[str, dict[str, Any]], chance: random.Random) -> None:
    """Some have one copy of their weights, be it called as one of them is or otherwise."""
    called = chance.choice(("w", many[0].name))
    most = min(100 - kind.bytes for kind in many)
    first = many[0]
    for number, kind in enumerate(many):
        if chance.random() < 0.6 or kind.name == called:
            many[number] = replace(kind, weights=min(first.weights, most), copy_s=first.copy_s)
            entries[kind.name]["weights"] = called


def _entry(chance: random.Random) -> dict[str, Any]:
    entry: dict[str, Any] = {}
    if chance.random() < 0.2:
        entry["keep_alive_s"] = chance.choice((0.0, 1.0, 30.0))
    if chance.random() < 0.2:
        entry["stop_after_s"] = 30.0
    if chance.random() < 0.2:
        entry["loaded_at_least_s"] = 10.0
    if chance.random() < 0.3:
        entry["priority"] = chance.choice((-1, 1))
    if chance.random() < 0.1:
        entry["preload"] = True
    return entry


class Schedule:
    def __init__(self, seed: int, *, trace: bool = False, events: int = EVENTS) -> None:
        self.seed, self.until = seed, events
        self.trace = list[str]() if trace else None
        self.chance = random.Random(seed)
        self.faults: Counter[str] = Counter()
        self.world = world_of(self.chance, self.trace)

    @property
    def events(self) -> int:
        return self.world.events

    @property
    def grants(self) -> int:
        """Wakes."""
        return self.world.swaps

    @property
    def undecided(self) -> bool:
        return False

    def run(self) -> None:
        world, chance = self.world, self.chance
        try:
            while world.events < self.until:
                world.run(world.now + chance.expovariate(1 / chance.choice((0.05, 1.0, 10.0))), self.until)
                world.check()
                do = chance.choices(_STEPS, _WEIGHTS)[0]
                world.say(do)
                if do not in ("asks", "leaves"):
                    self.faults[do] += 1
                _DOES[do][0](self)
                world.check()
            world.say("the faults end")
            self.heal()
            until = world.now + ENDS_S
            while world.now < until and (any(not one.over for one in world.streams) or world.left()):
                world.run(world.now + 10.0)
            world.check()
            if hanging := [one for one in world.streams if not one.over]:
                raise Violation(f"{len(hanging)} requests were never answered: {hanging[0]}")
            if left := world.left():
                raise Violation(f"taken out of the file, and there: {', '.join(left)}")
        except Violation as violation:
            raise Violation(f"seed {self.seed}, at {world.now:.4f} s: {violation}") from violation

    # -- what happens ----------------------------------------------------------------------------------------------

    def name(self) -> str:
        return self.chance.choice(list(self.world.engines))

    def asks(self) -> None:
        name, tokens = self.name(), self.chance.choice((1, 20, 500))
        if name not in self.world.out:  # doors refuse what isn't in the file
            self.world.ask(name, tokens)

    def leaves(self) -> None:
        waiting = [one for many in self.world.waiting.values() for one in many]
        if waiting:
            self.world.over(self.chance.choice(waiting), "left")
            self.world._said()

    def dies(self) -> None:
        engine = self.world.engines[self.name()]
        if engine.running:
            self.world.die(
                engine, again=self.chance.random() < 0.8, why=self.chance.choice(("", "it can't be started"))
            )

    def breaks(self) -> None:
        self.world.engines[self.name()].breaks = True

    def frees_less(self) -> None:
        self.world.engines[self.name()].frees_less = self.chance.choice((1, 10))

    def stays(self) -> None:
        self.world.engines[self.name()].region.stays = True

    def foreign(self) -> None:
        self.world.foreign = self.chance.choice((0, 0, 10, 40, 99))
        self.world.tell_ledger()
        self.world.lend()

    def goes_away(self) -> None:
        who = self.chance.choice(("launcher", "ledger", "gms", self.name()))
        self.world.away ^= {who}
        self.tell(who)  # first: what it hears of others may make it act
        self.tell_all()

    def tell(self, who: str) -> None:
        told = {"gms": self.world.tell_gms, "launcher": self.world.tell_launcher, "ledger": self.world.tell_ledger}
        told[who]() if who in told else self.world.tell_lock(who)

    def tell_all(self) -> None:
        self.world.tell_gms()
        self.world.tell_launcher()
        self.world.tell_ledger()
        for name in self.world.engines:
            self.world.tell_lock(name)

    def pool_dies(self) -> None:
        self.world.begin()

    def door_dies(self) -> None:
        self.world.feed(e.Closed(1))
        self.world._said()

    def person(self) -> None:
        verb: m.Verb = self.chance.choice(("wake", "sleep", "stop", "pin", "unpin"))
        self.world.feed(e.Asked(5, m.Command(number=1, verb=verb, name=self.name())))

    def lockctl(self) -> None:
        self.world._wake(self.world.engines[self.name()], by="person")

    def reload(self) -> None:
        """Of one model, or of all that share its weights; with another model's arguments, or under another name."""
        chance, entries = self.chance, self.world.entries
        name = self.name()
        arguments = chance.choice(([], [], [str(chance.random())]))
        entries[name] = Entry(
            name=name, engine="reference", **_entry(chance), arguments=arguments, weights=entries[name].weights
        )
        if chance.random() < 0.7:
            those = [one for one in entries.values() if one.region == entries[name].region]
            entries |= {one.name: msgspec.structs.replace(one, arguments=arguments) for one in those}
        if chance.random() < 0.2:
            size, kinds = self.world.kinds[name].weights, self.world.kinds.values()
            weights = chance.choice(["", *(entries[kind.name].weights for kind in kinds if kind.weights == size)])
            entries[name] = msgspec.structs.replace(entries[name], weights=weights)
        self.world.configure()

    def takes_out(self) -> None:
        """Or puts it in again. Not each change is followed by a SIGHUP."""
        out = self.world.out
        out ^= {self.chance.choice(sorted(out)) if out and self.chance.random() < 0.7 else self.name()}
        if self.chance.random() < 0.8:
            self.world.configure()

    def heal(self) -> None:
        world = self.world
        world.out = world.out if self.chance.random() < 0.5 else set()
        world.away.clear()
        world.foreign = 0
        for engine in world.engines.values():
            engine.breaks, engine.frees_less, engine.region.stays = False, 0, False
            waits = (engine.kind.name, engine.life) in world.memory
            if not engine.serving and not engine.draining and (waits or not engine.held):
                engine.leased = 0
            name, weights = engine.kind.name, world.entries[engine.kind.name].weights
            world.entries[name] = Entry(name=name, engine="reference", weights=weights)
        world.configure()
        for name in world.engines:
            world.feed(e.Asked(5, m.Command(number=1, verb="unpin", name=name)))
        self.tell_all()
        world.lend()
        world._said()


_DOES: dict[str, tuple[Any, int]] = {
    "asks": (Schedule.asks, 30),
    "leaves": (Schedule.leaves, 4),
    "dies": (Schedule.dies, 3),
    "breaks": (Schedule.breaks, 2),
    "frees_less": (Schedule.frees_less, 1),
    "stays": (Schedule.stays, 1),
    "foreign": (Schedule.foreign, 2),
    "goes_away": (Schedule.goes_away, 3),
    "pool_dies": (Schedule.pool_dies, 2),
    "door_dies": (Schedule.door_dies, 1),
    "person": (Schedule.person, 3),
    "reload": (Schedule.reload, 2),
    "takes_out": (Schedule.takes_out, 2),
    "lockctl": (Schedule.lockctl, 1),
}
_STEPS, _WEIGHTS = list(_DOES), [weight for _, weight in _DOES.values()]
