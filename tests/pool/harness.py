"""Plays everything around the pool's machine: the launcher, the ledger, locks and doors, by hand and at once."""

from typing import Any

from pool.entries import Entry, ModelDemand, State
from pool.rules import events as e
from pool.rules import messages as m
from pool.rules.machine import Machine
from sidecar.machine.context import Time

GPU = "gpu"
Wishes = list[tuple[str, str]]


class Pool:
    """Models are named by letters. Each takes 60 of the device's 100 while it is awake, or what `sizes` says; `on`: of
    another device than the usual one.
    """

    def __init__(
        self,
        names: str = "ab",
        *,
        sizes: dict[str, int] | None = None,
        on: dict[str, str] | None = None,
        entries: dict[str, dict[str, Any]] | None = None,
        running: bool = True,
        heard: bool = True,
        door: bool = True,
        costs: tuple[float, float] = (0.6, 0.3),
        began: e.Began | None = None,
        **host: Any,
    ) -> None:
        self.now = 100.0
        self.machine = Machine()
        self.out: list[Any] = []
        self.sizes = dict.fromkeys(names, 60) | (sizes or {})
        self.on = on or {}
        self.entries = entries or {}
        self.host = host
        self.children = {name: e.Child(running) for name in names}
        self.views = {name: e.LockView(resting=True, ready=True) for name in names}
        self.demands: dict[str, ModelDemand] = {}
        learned = {name: e.Learned(wake_s=costs[0], sleep_s=costs[1], load_s=30.0) for name in names}
        self.feed(began or e.Began(learned))
        if door:
            self.door()
        self.configure(names)
        self.room()
        self.launcher()
        for name in names if running and heard else "":
            self.lock(name)

    # -- what happens ----------------------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        self.out += self.machine.handle(event, Time(self.now, self.now))

    def configure(self, names: str) -> None:
        models = {
            name: e.ModelRules(
                entry=Entry(name=name, engine="reference", **self.entries.get(name, {})),
                devices=(device := self.on.get(name, GPU),),
                bytes={device: self.sizes[name]} if self.sizes[name] else {},
            )
            for name in names
        }
        self.feed(e.Configured(e.HostRules(**self.host), models))

    def room(self, total: int | None = 100, **lacking: int) -> None:
        """`lacking`: what each that waits in the ledger lacks there. `total`: of each device."""
        lacks = {name: {GPU: size} for name, size in lacking.items()}
        devices = [GPU, *self.on.values()]
        self.feed(e.LedgerSeen(None if total is None else dict.fromkeys(devices, total), {}, lacks))

    def weights(self, host_left: int = 100, parked: dict[str, int] | None = None, **here: int) -> None:
        """GMS: what models' weights take of the device, and of the host's memory."""
        self.feed(e.WeightsSeen(GPU, here, parked or {}, host_left))

    def launcher(self, **children: e.Child) -> None:
        self.children |= children
        self.feed(e.LauncherSeen(self.children))

    def lock(self, name: str, away: bool = False, **view: Any) -> None:
        if view:
            self.views[name] = e.LockView(**view)
        self.feed(e.LockSeen(name, None if away else self.views[name]))

    def door(self, **models: ModelDemand) -> None:
        """All that the door has from now on."""
        self.feed(e.DemandSaid(1, models))

    def asks(self, verb: Any, name: str) -> m.CommandDone:
        self.feed(e.Asked(9, m.Command(number=1, verb=verb, name=name)))
        done = next(one.message for one in reversed(self.out) if isinstance(one, e.Answer))
        assert isinstance(done, m.CommandDone)
        return done

    def advance(self, seconds: float) -> None:
        """Time passes, with a tick wherever the machine wants one."""
        until = self.now + seconds
        while self.machine.deadline <= until:
            self.now = max(self.machine.deadline, self.now)
            self.feed(e.Tick())
        self.now = until
        self.feed(e.Tick())

    # -- what engines do -------------------------------------------------------------------------------------------

    def wakes(self, name: str, after: float = 0.6) -> None:
        """Its lock takes the wish, and its engine serves after that."""
        self.feed(e.LockAnswered(name, True))
        self.lock(name, resting=False, held=True)
        self.now += after
        self.lock(name, resting=False, held=True, serving=True)

    def sleeps(self, name: str, after: float = 0.3) -> None:
        self.feed(e.LockAnswered(name, True))
        self.lock(name, resting=False, held=True, draining=True, giving_back=True)
        self.now += after
        self.lock(name, resting=True, ready=True)

    def put_to_sleep(self, *names: str) -> None:
        """By a person, a second after the one before; each has been awake for a request."""
        for name in names:
            self.awake(name)
            self.advance(1)
            self.asks("sleep", name)
            self.sleeps(name)
        self.wishes()

    def awake(self, name: str, demand: ModelDemand | None = None) -> None:
        """It is, as if it had been wished; and has had a request."""
        self.door(**{**self.demands, name: ModelDemand(waiting=1)})
        self.wakes(name)
        self.door(**{**self.demands, name: ModelDemand(streaming=1)})
        self.demands[name] = demand or ModelDemand(served=1)
        self.door(**self.demands)
        self.wishes()

    def wants(self, name: str, **demand: Any) -> None:
        self.demands[name] = ModelDemand(**{"waiting": 1, **demand})
        self.door(**self.demands)

    # -- what it wishes --------------------------------------------------------------------------------------------

    def wishes(self) -> Wishes:
        """Since the last time that this was asked."""
        words: dict[Any, str] = {
            e.Sleep: "sleep",
            e.Wake: "wake",
            e.Start: "start",
            e.End: "end",
            e.Park: "park",
            e.Drop: "drop",
        }
        found = [(words[type(one)], getattr(one, "weights", "") or one.model) for one in self.out if type(one) in words]
        self.out.clear()
        return found

    def state(self, name: str) -> State:
        return self.machine.models[name].state
