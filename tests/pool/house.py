"""Ours, simulated: the pool's real machine over simulated locks, ledger, launcher and door, where much may go wrong.

What must hold after every event (`HouseWorld.check`):

* Never more bytes awake than the ledger has: it grants them, whatever the pool wishes.
* No stream is cut, and none is lost: each waits, is served, or is whole.
* A pinned model is never put to sleep for another, nor one before its `loaded_at_least_s`, nor one that was waked for a
  request and hasn't had one.
* While the launcher or the ledger is away nothing is wished.

How long requests wait, and what share of time swaps take, is measured (`test_policies.py`).
"""

import math
from dataclasses import dataclass
from functools import partial
from typing import Any

from pool.entries import Entry, ModelDemand, State
from pool.rules import events as e
from pool.rules.machine import Machine
from pool.rules.turns import BEGIN_S
from sidecar.machine.context import Time
from tests.pool.world import Kind, Stream, World, WrongWorld

DEVICE = "gpu"
DRAIN_S = 1.0


@dataclass
class Engine:
    """A model's processes, its lock and its memory."""

    kind: Kind
    running: bool = False
    ends: int = 0
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
    waked_at: float = 0.0
    had: bool = False
    """A request since it was waked."""
    frees_less: int = 0
    breaks: bool = False
    """The next wake fails."""

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
    ) -> None:
        super().__init__(kinds, capacity, seed)
        self.engines = {kind.name: Engine(kind, running=loaded, ready=loaded) for kind in kinds}
        self.memory: list[tuple[str, int]] = []
        """Who waits for memory, in the ledger's order."""
        self.foreign = 0
        """Bytes that another program has."""
        self.host = host or e.HostRules()
        self.entries = {
            name: Entry(name=name, engine="reference", **(entries or {}).get(name, {})) for name in self.kinds
        }
        self.away: set[str] = set()
        """`launcher`, `ledger`, or a model whose lock doesn't answer."""
        self.learned = e.Began({})
        self.arrived = self._arrived
        self.finished = lambda stream: self._said()
        self._tick_at = math.inf
        self.swaps = 0
        self.begin()

    # -- the pool --------------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A pool begins, and looks how things stand."""
        self.machine = Machine()
        self.feed(self.learned)
        self.configure()
        self.tell_launcher()
        self.tell_ledger()
        for name in self.engines:
            self.tell_lock(name)
        self._said()

    def configure(self) -> None:
        rules = {
            name: e.ModelRules(entry=entry, devices=(DEVICE,), bytes={DEVICE: self.kinds[name].bytes})
            for name, entry in self.entries.items()
        }
        self.feed(e.Configured(self.host, rules))

    def feed(self, event: Any) -> None:
        for effect in self.machine.handle(event, Time(self.now, self.now)):
            self._do(effect)
        if self.machine.deadline < self._tick_at:
            self._tick_at = self.machine.deadline
            self.after(max(self._tick_at - self.now, 0.0), self._tick)

    def _tick(self) -> None:
        if self._tick_at <= self.now:
            self._tick_at = math.inf
            self.feed(e.Tick())

    def _do(self, effect: Any) -> None:
        name = getattr(effect, "model", "")
        if isinstance(effect, e.Sleep | e.Wake | e.Start | e.End):
            if {"launcher", "ledger"} & self.away or (name in self.away and self.engines[name].running):
                raise WrongWorld(f"{effect} while {self.away} are away")
            engine = self.engines[name]
        if isinstance(effect, e.Wake):
            self.after(0.0005, lambda: self._wake(engine))
        elif isinstance(effect, e.Sleep):
            self._may_sleep(engine, effect.why)
            self.after(0.0005, lambda: self._sleep(engine, effect.drain_s))
        elif isinstance(effect, e.Start):
            self.after(0.0005, lambda: self._start(engine))
        elif isinstance(effect, e.End):
            self.after(0.0005, lambda: self.die(engine, again=False))
        elif isinstance(effect, e.Save):
            self.learned = self.machine.learned()

    def _may_sleep(self, engine: Engine, why: str) -> None:
        if not why.endswith("is next"):
            return
        entry, awake_s = self.entries[engine.kind.name], self.now - engine.waked_at
        if entry.pin:
            raise WrongWorld(f"{entry.name} is pinned, and is to sleep: {why}")
        if engine.serving and awake_s < entry.loaded_at_least_s - 1e-6:
            raise WrongWorld(f"{entry.name} is to sleep after {awake_s:.3f} s: {why}")
        if engine.serving and not engine.had and self.waiting[entry.name] and awake_s < BEGIN_S - 1e-6:
            raise WrongWorld(f"{entry.name} was waked for a request, and is to sleep before it had it")

    # -- what it is told -------------------------------------------------------------------------------------------

    def _said(self) -> None:
        """The door's demand, now."""
        models = {}
        for name in self.kinds:
            waiting, streaming = self.waiting[name], self.served[name]
            if waiting or streaming or self.ended[name]:
                paused = [one.paused_at for one in waiting if one.paused_at is not None]
                since = min([self.now, *paused, *(one.at for one in waiting if one.paused_at is None)])
                models[name] = ModelDemand(
                    waiting=len(waiting) - len(paused),
                    paused=len(paused),
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
            name: e.Child(one.running, one.ends, one.why if not one.running else "")
            for name, one in self.engines.items()
        }
        self.feed(e.LauncherSeen(None if "launcher" in self.away else children))

    def tell_ledger(self) -> None:
        leases = {name: {DEVICE: one.leased} for name, one in self.engines.items() if one.leased and one.serving}
        self.feed(e.LedgerSeen(None if "ledger" in self.away else {DEVICE: self.capacity - self.foreign}, leases))

    # -- engines and locks -----------------------------------------------------------------------------------------

    def _arrived(self, stream: Stream) -> None:
        if self.engines[stream.model].serving:
            self._admit(stream.model)
        self._said()

    def _admit(self, name: str) -> None:
        for stream in list(self.waiting[name]):
            self.serve(stream)
            self.engines[name].had = True

    def _start(self, engine: Engine) -> None:
        if engine.running:
            return
        engine.running, engine.ready, engine.resting, engine.why = True, False, True, ""
        life = engine.life
        self.after(engine.kind.load_s, lambda: self._ready(engine, life))
        self.tell_launcher()
        self.tell_lock(engine.kind.name)

    def _ready(self, engine: Engine, life: int) -> None:
        if engine.life == life and engine.running:
            engine.ready = True
            self._grant(engine)
            self.tell_lock(engine.kind.name)

    def _wake(self, engine: Engine) -> None:
        name = engine.kind.name
        if not engine.running:
            return
        engine.resting, engine.why = False, ""
        if engine.draining and not engine.giving_back:
            engine.draining, engine.serving = False, True
            engine.round += 1
            self.awake.add(name)
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
        self.after(20.0, lambda: self._refused(engine, life, token))
        self.lend()

    def lend(self) -> None:
        """The ledger: first come, first served."""
        while self.memory:
            name, life = self.memory[0]
            engine = self.engines[name]
            if engine.life == life and engine.held:
                if self.leased() + engine.kind.bytes > self.capacity - self.foreign:
                    return
                engine.leased += engine.kind.bytes
                self.moving.add(name)
                self.after(engine.kind.wake_s * self.chance.uniform(0.8, 1.2), partial(self._waked, engine, life))
            self.memory.pop(0)

    def leased(self) -> int:
        return sum(engine.leased for engine in self.engines.values())

    def _refused(self, engine: Engine, life: int, token: int) -> None:
        """Its memory wasn't there in time."""
        if engine.life == life and engine.token == token and (engine.kind.name, life) in self.memory:
            self.memory.remove((engine.kind.name, life))
            self._at_rest(engine, "the ledger had no room in time")

    def _at_rest(self, engine: Engine, why: str) -> None:
        engine.held = engine.serving = engine.draining = engine.giving_back = False
        engine.resting, engine.why = True, why
        self.tell_lock(engine.kind.name)

    def _waked(self, engine: Engine, life: int) -> None:
        name = engine.kind.name
        self.moving.discard(name)
        if engine.life != life:
            return
        if engine.breaks:
            engine.breaks, engine.leased = False, 0
            self._at_rest(engine, "it doesn't fit")
            self.lend()
            return
        engine.serving, engine.waked_at, engine.had = True, self.now, False
        self.awake.add(name)
        self.swaps += 1
        if sum(self.kinds[one].bytes for one in self.awake) > self.capacity:
            raise WrongWorld(f"{self.awake} are awake together, and don't fit")
        self.tell_lock(name)
        self.tell_ledger()
        self.after(0.001, lambda: self._admit_if(engine) if engine.life == life else None)

    def _sleep(self, engine: Engine, drain_s: float) -> None:
        name = engine.kind.name
        if not engine.running:
            return
        self.feed(e.LockAnswered(name, True))
        if not engine.held:
            self._at_rest(engine, "it was asked for")
            return
        if not engine.serving:
            raise WrongWorld(f"{name} is to sleep while it wakes")
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
                self._grant(engine)
                self.tell_lock(engine.kind.name)
            self.tell_ledger()
            self.lend()

    def die(self, engine: Engine, *, again: bool, why: str = "") -> None:
        """kill -9. `again`: its shim starts it again; else the launcher has ended it, or it can't be started."""
        name = engine.kind.name
        engine.life += 1
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
            engine.running, engine.why = False, why
            engine.ends += 1
            self.tell_launcher()
        self._said()
        self.lend()

    # -- what must hold --------------------------------------------------------------------------------------------

    def check(self) -> None:
        if self.leased() > self.capacity:
            raise WrongWorld(f"{self.leased()} of {self.capacity} bytes are leased")
        cut = [stream for stream in self.streams[-50:] if stream.over not in ("", "whole", "left")]
        if cut:
            raise WrongWorld(f"a stream was cut: {cut[0]}")
        for name, model in self.machine.models.items():
            engine = self.engines[name]
            if model.state is State.AWAKE and not {"launcher", name} & self.away and not engine.serving:
                raise WrongWorld(f"the pool takes {name} for awake")
