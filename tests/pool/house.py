"""Ours, simulated: the pool's real machine over simulated locks, ledger, launcher and door, where much may go wrong.

What must hold after every event (`HouseWorld.check`):

* Never more bytes awake than the ledger has: it grants them, whatever the pool wishes; with all weights in the device.
* Weights that models share take their room once. They are parked only while all of these sleep and none is pinned, and
  never more than the host's memory may have.
* Dropped they are only while none of these has an engine and none is pinned, and where requests wait for one only while
  another is wanted, too, or they are another model's; and no engine is ended that serves.
* No stream is lost: each waits, is served, or is whole; or is refused, as its model was taken out while no pool ran.
* Nothing is left of a model that was taken out, once the faults are over.
* A pinned model is never put to sleep for another, nor one before its `loaded_at_least_s`, nor one that was waked for a
  request and hasn't had one.
* While the launcher or the ledger is away nothing is wished.

How long requests wait, and what share of time swaps take, is measured (`test_policies.py`).
"""

import math
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pool.entries import Entry, ModelDemand, State
from pool.rules import events as e
from pool.rules.machine import Machine
from pool.rules.model import runs_as
from pool.rules.turns import BEGIN_S
from sidecar.machine.context import Time
from sidecar.terminal.exit_codes import EX_OTHER_WEIGHTS
from tests.pool.world import Kind, Stream, World
from tests.sim.schedule import Violation

DEVICE = "gpu"
DRAIN_S = 1.0
ROOM_S, LOAD_ROOM_S = 20.0, 30.0
"""So long a wake, and a load, wait for memory."""
GMSCTL_S = 0.3
"""Until a process that parks has begun."""


@dataclass
class Region:
    """Weights, of one model or of several."""

    name: str
    size: int
    copy_s: float
    engines: list["Engine"] = field(default_factory=list)
    here: int = 0
    """In the device."""
    parked: int = 0
    """And in host memory; both, while they are copied."""
    copying: int = 0
    """Grows with each park that begins, and ends; odd while one is under way."""
    movers: list["Engine"] = field(default_factory=list)
    """Who brings them back, or makes them, and who waits for that."""
    stays: bool = False
    """The next park, or drop, fails."""
    of: list[str] = field(default_factory=list)
    """The arguments of the engine that has loaded them: another model's with others."""

    @property
    def names(self) -> list[str]:
        return [engine.kind.name for engine in self.engines]


@dataclass(eq=False)
class Engine:
    """A model's processes, its lock and its memory."""

    kind: Kind
    region: Region
    entry: Entry
    """What its processes were started with."""
    running: bool = False
    ends: int = 0
    exit_code: int = 0
    ready: bool = False
    resting: bool = True
    held: bool = False
    serving: bool = False
    draining: bool = False
    giving_back: bool = False
    leased: int = 0
    token: int = 0
    why: str = ""
    life: int = 0
    """Grows when it dies: what was under way means nothing any more."""
    round: int = 0
    """Grows with each sleep that begins or is called off."""
    turn_at: float = math.inf
    """When it was waked: an engine that takes over from one that died goes on with its turn."""
    had: bool = False
    """A request in its turn."""
    frees_less: int = 0
    breaks: bool = False
    """The next wake fails."""
    ending: bool = False
    again: Entry | None = None
    """With it, it is started anew once it has ended."""
    forget: bool = False

    @property
    def view(self) -> e.LockView:
        return e.LockView(resting=self.resting, why=self.why, held=self.held, serving=self.serving,
                          draining=self.draining, giving_back=self.giving_back, ready=self.ready,
                          token=self.token)  # fmt: skip


class HouseWorld(World):
    def __init__(
        self,
        kinds: list[Kind],
        capacity: int,
        seed: int,
        *,
        entries: dict[str, dict[str, Any]] | None = None,
        host: e.HostRules | None = None,
        loaded: bool = True,
        host_memory: int = 0,
        trace: list[str] | None = None,
    ) -> None:
        super().__init__(kinds, capacity, seed)
        self.trace = trace
        self.host_memory = host_memory
        """Of which parked weights may have so much."""
        self.entries = {
            name: Entry(name=name, engine="reference", **(entries or {}).get(name, {})) for name in self.kinds
        }
        self.out: set[str] = set()
        """Models that were taken out of the file."""
        self.regions: dict[str, Region] = {}
        self.engines: dict[str, Engine] = {}
        for kind in kinds:
            name = self.entries[kind.name].region
            region = self.regions.setdefault(name, Region(name, kind.weights, kind.copy_s))
            its = self.entries[kind.name]
            self.engines[kind.name] = engine = Engine(kind, region, its, running=loaded, ready=loaded)
            region.engines.append(engine)
        for region in self.regions.values() if loaded else ():
            fits = sum(one.here for one in self.regions.values()) + region.size <= capacity
            region.here = region.size if fits else 0
            region.parked = region.size if not fits and self.host_left() >= region.size else 0
            for engine in region.engines:
                engine.running = engine.ready = region.here + region.parked == region.size
        self.memory: list[tuple[str, int]] = []
        """Who waits for memory, in the ledger's order."""
        self.loads: list[tuple[str, int]] = []
        """Whose weights do, behind them all."""
        self.foreign = 0
        """Bytes that another program has."""
        self.host = host or e.HostRules()
        self.away: set[str] = set()
        """`launcher`, `ledger`, or a model whose lock doesn't answer."""
        self.learned = e.Began({})
        self.arrived = self._arrived
        self.finished = lambda stream: self._said()
        self._tick_at = math.inf
        self.swaps = self.drops = 0
        self.begin()

    # -- the pool --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A pool begins, and looks how things stand."""
        self.machine = Machine()
        self.feed(self.learned)
        self.configure()
        self.tell_launcher()
        for region in self.regions.values():
            self._copied(region)  # what parked has ended with the pool
        self.tell_gms()
        self.tell_ledger()
        for name in self.engines:
            self.tell_lock(name)
        self._said()

    def configure(self) -> None:
        rules = {
            name: e.ModelRules(entry=entry, devices=(DEVICE,), bytes={DEVICE: self.kinds[name].bytes})
            for name, entry in self.entries.items()
            if name not in self.out
        }
        self.feed(e.Configured(self.host, rules))

    def say(self, what: Any) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.now:9.4f} {what}")

    def feed(self, event: Any) -> None:
        self.say(event)
        for effect in self.machine.handle(event, Time(self.now, self.now)):
            self.say(effect)
            self._do(effect)
        if self.machine.deadline < self._tick_at:
            self._tick_at = self.machine.deadline
            self.after(max(self._tick_at - self.now, 0.0), self._tick)

    def _tick(self) -> None:
        if self._tick_at <= self.now + 1e-9:  # a sum of its parts may be a little less
            self._tick_at = math.inf
            self.feed(e.Tick())

    def _do(self, effect: Any) -> None:
        name = getattr(effect, "model", "")
        if isinstance(effect, e.Sleep | e.Wake | e.Start | e.End):
            if name not in self.machine.models:
                self.after(0.0005, partial(self._end_leftover, name))
                return
            engine = self.engines[name]
            begins = isinstance(effect, e.Start) and engine.ending  # it was taken out, and is back
            if {"launcher", "ledger"} & self.away or (name in self.away and engine.running and not begins):
                raise Violation(f"{effect} while {self.away} are away")
        if isinstance(effect, e.Wake):
            self.after(0.0005, lambda: self._wake(engine))
        elif isinstance(effect, e.Sleep):
            heard = self.machine.models[name].view
            if heard is not None and heard.held and not (heard.serving or heard.draining or heard.resting):
                raise Violation(f"{name} is to sleep while it wakes")
            self._may_sleep(engine, effect.why)
            self.after(0.0005, lambda: self._sleep(engine, effect.drain_s))
        elif isinstance(effect, e.Start):
            self.after(0.0005, partial(self._start, engine, self.machine.models[name].rules.entry))
        elif isinstance(effect, e.End):
            if engine.serving:
                raise Violation(f"{name} is to be ended while it serves")
            self.after(0.0005, lambda: self._end(engine))
        elif isinstance(effect, e.Park):
            self._may_park(self.regions[effect.weights])
            self.after(GMSCTL_S, partial(self._park, self.regions[effect.weights], self.machine))
        elif isinstance(effect, e.Drop):
            self._may_drop(self.regions[effect.weights])
            self.after(GMSCTL_S, partial(self._drop, self.regions[effect.weights], self.machine))
        elif isinstance(effect, e.Save):
            self.learned = self.machine.learned()

    def _may_park(self, region: Region) -> None:
        if "gms" in self.away:
            raise Violation(f"{region.name} is to be parked while GMS is away")
        pinned = any(one.pinned for one in self.machine.models.values() if one.region.name == region.name)
        if pinned or any(engine.serving for engine in region.engines):
            raise Violation(f"{region.name} is to be parked, and has a model that is awake or pinned")

    def _may_drop(self, region: Region) -> None:
        models = self.machine.models
        these = [one for one in models.values() if one.region.name == region.name]
        others = any(other.wants for other in models.values() if other not in these)
        older = any(one.has_others for one in these)
        needed = any(one.pinned or (one.demand.wants and not others) for one in these) and not older
        if "gms" in self.away or needed or any(one.child.running for one in these):
            raise Violation(f"the weights {region.name} are to be dropped, which may be needed")

    def _may_sleep(self, engine: Engine, why: str) -> None:
        if not why.endswith("is next"):
            return
        entry, turn_s = self.machine.models[engine.kind.name].rules.entry, self.now - engine.turn_at
        if entry.pin:
            raise Violation(f"{entry.name} is pinned, and is to sleep: {why}")
        if engine.serving and turn_s < entry.loaded_at_least_s - 1e-6:
            raise Violation(f"{entry.name} is to sleep after {turn_s:.3f} s: {why}")
        waits = self.waiting[entry.name] and self.machine.doors  # with a door that dies, its requests have gone
        if engine.serving and not engine.had and waits and turn_s < BEGIN_S - 1e-6:
            raise Violation(f"{entry.name} was waked for a request, and is to sleep before it had it")

    # -- what it is told -------------------------------------------------------------------------------------------

    def _said(self) -> None:
        """The door's demand, now. What isn't the pool's it refuses: it was taken out while no pool ran, say. So is what
        was taken out, and finds another model's weights.
        """
        stay = {name for name, one in self.machine.models.items() if not one.found_others}
        for name in sorted(self.out - stay):
            for stream in (*self.waiting[name], *self.served[name]):
                self.over(stream, "refused")
        models = {}
        for name in self.kinds:
            waiting, streaming = self.waiting[name], self.served[name]
            if waiting or streaming or self.ended[name]:
                since, paused = self.now, 0
                for one in waiting:
                    since = min(since, one.at if one.paused_at is None else one.paused_at)
                    paused += one.paused_at is not None
                models[name] = ModelDemand(
                    waiting=len(waiting) - paused,
                    paused=paused,
                    streaming=len(streaming),
                    oldest_wait_ms=round(1000 * (self.now - since)),
                    priority=self.entries[name].priority,
                    served=self.ended[name],
                )
        self.feed(e.DemandSaid(1, models))

    def tell_lock(self, name: str) -> None:
        engine = self.engines[name]
        if engine.running:
            self.feed(e.LockSeen(name, None if name in self.away else engine.view))

    def tell_launcher(self) -> None:
        children = {
            name: e.Child(one.running, one.ends, "" if one.running else one.why, 0, runs_as(one.entry), one.exit_code)
            for name, one in self.engines.items()
            if one.running or one.ends
        }
        self.feed(e.LauncherSeen(None if "launcher" in self.away else children))

    def tell_ledger(self) -> None:
        leases = {name: {DEVICE: one.leased} for name, one in self.engines.items() if one.leased and one.serving}
        room = {DEVICE: self.capacity - self.foreign}
        lacking = {
            self.waits_as(name): {DEVICE: missing}
            for name, life in (*self.loads, *self.memory)
            if self.engines[name].life == life and (missing := self._lacks(self.engines[name])) > 0
        }
        self.feed(e.LedgerSeen(None if "ledger" in self.away else room, leases, lacking))

    def waits_as(self, name: str) -> str:
        """A load waits in GMS' name."""
        return name if self.engines[name].held else self.engines[name].region.name

    def tell_gms(self) -> None:
        regions = self.regions.items()
        here, parked = ({name: getattr(one, what) for name, one in regions} for what in ("here", "parked"))
        away = e.WeightsSeen(DEVICE, None)
        self.feed(away if "gms" in self.away else e.WeightsSeen(DEVICE, here, parked, self.host_left()))

    def host_left(self) -> int:
        return self.host_memory - sum(region.parked for region in self.regions.values())

    # -- engines and locks -----------------------------------------------------------------------------------------

    def _arrived(self, stream: Stream) -> None:
        if self.engines[stream.model].serving:
            self._admit(stream.model)
        self._said()

    def _admit(self, name: str) -> None:
        for stream in list(self.waiting[name]):
            self.serve(stream)
            self.engines[name].had = True

    def _start(self, engine: Engine, entry: Entry) -> None:
        engine.again = entry if engine.ending else None
        if engine.running or engine.ending:
            return
        engine.running, engine.ready, engine.resting, engine.why = True, False, True, ""
        engine.entry = entry
        engine.turn_at, engine.exit_code = math.inf, 0
        engine.region.engines.remove(engine)
        name = engine.entry.region
        engine.region = self.regions.setdefault(name, Region(name, engine.kind.weights, engine.kind.copy_s))
        engine.region.engines.append(engine)
        life = engine.life
        self.after(engine.kind.load_s, lambda: self._ready(engine, life))
        self.tell_launcher()
        self.tell_lock(engine.kind.name)

    def _end_leftover(self, name: str) -> None:
        """The launcher is told that it is a model no more."""
        if engine := self.engines.get(name):
            self._end(engine, forget=True)

    def _end(self, engine: Engine, *, forget: bool = False) -> None:
        """It drains first. A start meanwhile follows."""
        engine.again, engine.ending = None, True
        engine.forget = engine.forget or forget
        self.after(self.chance.choice((0.0, 0.5, 10.0)), partial(self._has_ended, engine))

    def _has_ended(self, engine: Engine) -> None:
        if not engine.ending:
            return
        if engine.running:
            self.die(engine, again=False)
        if engine.forget:
            engine.ends, engine.why, engine.exit_code = 0, "", 0
        again, engine.ending, engine.again, engine.forget = engine.again, False, None, False
        self.tell_launcher()
        if again:
            self._start(engine, again)

    def left(self) -> list[str]:
        """What is there of models that were taken out."""
        unread = [one for one in self.regions.values() if not {*one.names} - self.out]
        weights = [f"weights {one.name}" for one in unread if one.here or one.parked]
        return [*(name for name in self.out if self.engines[name].running), *weights]

    def _ready(self, engine: Engine, life: int) -> None:
        name, region = engine.kind.name, engine.region
        if engine.life != life or not engine.running:
            return
        if engine in region.movers:
            self._is_back(region)
        elif (region.here or region.parked) and region.of != engine.entry.arguments:
            self.die(engine, again=False, why="GMS has the weights of another model", exit_code=EX_OTHER_WEIGHTS)
            return
        if region.here < region.size or region.movers:
            if region.parked and not region.movers and not region.copying % 2 and self._lacks(engine) > 0:
                self.die(engine, again=True)  # what comes back is refused at once
                return
            self.loads.append((name, life))
            self.after(LOAD_ROOM_S, lambda: self._unloadable(engine, life))
            self.lend()
            self.tell_ledger()
        else:
            region.parked = region.parked if region.copying % 2 else 0
            engine.ready = True
            self._grant(engine)
            self.tell_gms()
            self.tell_lock(name)

    def _unloadable(self, engine: Engine, life: int) -> None:
        if (engine.kind.name, life) in self.loads:
            self.loads.remove((engine.kind.name, life))
            self.die(engine, again=True)

    def _wake(self, engine: Engine, by: str = "pool") -> None:
        """`by` the pool, or a person with `lockctl`."""
        name = engine.kind.name
        if not engine.running:
            return
        engine.resting, engine.why = False, ""
        if engine.draining and by == "pool":
            engine.turn_at = math.inf
        if engine.draining and not engine.giving_back:
            engine.draining, engine.serving, engine.turn_at = False, True, min(engine.turn_at, self.now)
            engine.round += 1
            self.awake.add(name)
            if by != "pool":
                self.feed(e.LockAnswered(name, False, "it was waked"))
        if by == "pool":
            self.feed(e.LockAnswered(name, True))
        self._grant(engine)
        self.tell_lock(name)
        self._admit_if(engine)

    def _admit_if(self, engine: Engine) -> None:
        if engine.serving:
            self._admit(engine.kind.name)
            self._said()

    def _grant(self, engine: Engine) -> None:
        if engine.resting or engine.held or not engine.ready:
            return
        engine.held, engine.token = True, engine.token + 1
        self.memory.append((engine.kind.name, engine.life))
        life, token = engine.life, engine.token
        self.after(ROOM_S, lambda: self._refused(engine, life, token))
        self.lend()
        self.tell_ledger()

    def lend(self) -> None:
        """The ledger: first come, first served."""
        while self.memory:
            name, life = self.memory[0]
            engine = self.engines[name]
            if engine.life == life and engine.held:
                if self._lacks(engine) > 0 or engine.region.copying % 2:
                    return
                engine.leased += engine.kind.bytes
                takes = engine.kind.wake_s * self.chance.uniform(0.8, 1.2) + self._comes_back(engine)
                self.moving.add(name)
                self.after(takes, partial(self._waked, engine, life))
            self.memory.pop(0)
        for name, life in list(self.loads):
            engine = self.engines[name]
            if engine.life != life or (self._lacks(engine) <= 0 and not engine.region.movers):
                self.loads.remove((name, life))
                if engine.life == life:
                    self.after(self._comes_back(engine), partial(self._ready, engine, life))

    def _comes_back(self, engine: Engine) -> float:
        """How long its weights take. What another one brings back it awaits."""
        region = engine.region
        if region.here == region.size and not region.movers:
            return 0.0
        region.here = region.size
        region.of = region.of if region.parked else engine.entry.arguments
        region.movers.append(engine)
        self.tell_gms()
        return region.copy_s if region.parked else 0.0

    def _is_back(self, region: Region) -> None:
        """They are, whoever has brought them."""
        region.movers.clear()
        region.parked = 0

    def _lacks(self, engine: Engine) -> int:
        """What has to be free beside what is, for what its engine waits for."""
        kv = engine.kind.bytes if engine.held else 0
        return self.leased() + kv + engine.region.size - engine.region.here - (self.capacity - self.foreign)

    def leased(self) -> int:
        """With weights: those of several models once."""
        weights = sum(region.here for region in self.regions.values())
        return weights + sum(engine.leased for engine in self.engines.values())

    def _park(self, region: Region, by: Machine) -> None:
        """What `gmsctl park` does."""
        if by is not self.machine:
            return  # it has ended with its pool
        size, is_read = region.size, bool(region.movers) or any(one.held for one in region.engines)
        if is_read or region.parked or region.here < size or region.stays or self.host_left() < size:
            why = "" if region.parked and not region.here else "a process reads, or there is no room"
            region.stays = False
            self.feed(e.ParkEnded(region.name, why))
            return
        region.parked, region.copying = size, region.copying + 1
        self.tell_gms()
        self.after(region.copy_s, partial(self._parked, region, region.copying))

    def _parked(self, region: Region, copying: int) -> None:
        if region.copying != copying:
            return
        region.copying, region.here = copying + 1, 0
        if self.chance.random() < 0.5:  # whichever is heard first
            self.tell_gms()
        self.feed(e.ParkEnded(region.name))
        self.tell_gms()
        self.lend()
        self.tell_ledger()

    def _copied(self, region: Region) -> None:
        """A copy under way has come to nothing."""
        if region.copying % 2:
            region.copying, region.parked = region.copying + 1, 0

    def _drop(self, region: Region, by: Machine) -> None:
        """What `gmsctl drop` does."""
        if by is not self.machine:
            return
        is_read = any(one.running for one in region.engines) or region.copying % 2
        why = "a process reads" if is_read or region.stays else ""
        region.stays = False
        region.here, region.parked = (region.here, region.parked) if why else (0, 0)
        self.drops += not why
        self.feed(e.DropEnded(region.name, why))
        self.tell_gms()
        self.lend()
        self.tell_ledger()

    def _refused(self, engine: Engine, life: int, token: int) -> None:
        """Its memory wasn't there in time."""
        if engine.life == life and engine.token == token and (engine.kind.name, life) in self.memory:
            self.memory.remove((engine.kind.name, life))
            self._at_rest(engine, "the ledger had no room in time")

    def _at_rest(self, engine: Engine, why: str) -> None:
        engine.held = engine.serving = engine.draining = engine.giving_back = False
        engine.resting, engine.why, engine.turn_at = True, why, math.inf
        self.tell_lock(engine.kind.name)

    def _waked(self, engine: Engine, life: int) -> None:
        name = engine.kind.name
        self.moving.discard(name)
        if engine.life != life:
            return
        self._is_back(engine.region)  # whatever comes of the rest
        self.tell_gms()
        if engine.breaks:
            engine.breaks, engine.leased = False, 0
            self._at_rest(engine, "it doesn't fit")
            self.lend()
            return
        engine.serving, engine.had = True, engine.had and engine.turn_at < self.now
        engine.turn_at = min(engine.turn_at, self.now)
        self.awake.add(name)
        self.swaps += 1
        weights = {self.engines[one].region.name: self.kinds[one].weights for one in self.awake}
        if sum(self.kinds[one].bytes for one in self.awake) + sum(weights.values()) > self.capacity:
            raise Violation(f"{self.awake} are awake together, and don't fit")
        self.tell_lock(name)
        self.tell_ledger()
        self.after(0.001, lambda: self._admit_if(engine) if engine.life == life else None)

    def _sleep(self, engine: Engine, drain_s: float) -> None:
        name = engine.kind.name
        if not engine.running:
            return
        if engine.held and not engine.serving and not engine.draining:  # granted since it was wished
            self.feed(e.LockAnswered(name, False, "a grant is being written: ask again"))
            return
        self.feed(e.LockAnswered(name, True))
        if engine.draining:
            return  # the pool before this one has wished it, too
        if not engine.held:
            self._at_rest(engine, "it was asked for")
            return
        engine.draining = True
        engine.resting = True
        engine.serving = False
        engine.round += 1
        life, turn = engine.life, engine.round
        self.tell_lock(name)
        self.after(drain_s if self.served[name] else 0.0, lambda: self._drained(engine, life, turn))

    def _drained(self, engine: Engine, life: int, turn: int) -> None:
        name = engine.kind.name
        if engine.life != life or engine.round != turn or not engine.draining:
            return
        self.pause_all(name)
        self.awake.discard(name)
        self.moving.add(name)
        engine.giving_back = True
        self.tell_lock(name)
        self._said()
        self.after(engine.kind.sleep_s * self.chance.uniform(0.8, 1.2), lambda: self._asleep(engine, life))

    def _asleep(self, engine: Engine, life: int) -> None:
        self.moving.discard(engine.kind.name)
        if engine.life == life:
            engine.leased, engine.frees_less = engine.frees_less, 0
            if engine.resting:
                self._at_rest(engine, "it was asked for")
            else:  # it was waked after it had begun to give back
                engine.held = engine.serving = engine.draining = engine.giving_back = False
                self.feed(e.LockAnswered(engine.kind.name, False, "it was waked meanwhile"))
                self._grant(engine)
                self.tell_lock(engine.kind.name)
            self.tell_ledger()
            self.lend()

    def die(self, engine: Engine, *, again: bool, why: str = "", exit_code: int = 0) -> None:
        """kill -9. `again`: its shim starts it again; else the launcher has ended it, or it can't be started."""
        name = engine.kind.name
        engine.life += 1
        region = engine.region
        if engine in region.movers:
            region.movers.remove(engine)
            if not region.movers and not region.copying % 2:
                region.here = 0  # what it was bringing back is where it was
        self.tell_gms()
        self.pause_all(name)
        self.awake.discard(name)
        self.moving.discard(name)
        engine.held = engine.serving = engine.draining = engine.giving_back = engine.ready = False
        engine.leased = engine.frees_less = 0
        if again:
            life = engine.life
            self.after(engine.kind.load_s, lambda: self._ready(engine, life))
            self.tell_lock(name)
        else:
            self.tell_lock(name)
            engine.running, engine.why, engine.exit_code = False, why, exit_code
            engine.ends += 1
            self.tell_launcher()
        self._said()
        self.lend()

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.leased() > self.capacity:
            raise Violation(f"{self.leased()} of {self.capacity} bytes are leased")
        if self.host_left() < 0:
            raise Violation(f"parked weights have {-self.host_left()} bytes more of the host's memory than they may")
        for name, model in self.machine.models.items():
            engine = self.engines[name]
            if model.state is State.AWAKE and not {"launcher", name} & self.away and not engine.serving:
                raise Violation(f"the pool takes {name} for awake")
