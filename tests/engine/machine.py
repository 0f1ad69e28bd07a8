"""A machine alone: events go in with a clock that only the test moves."""

from engine_shim.rules import events as e
from engine_shim.rules.events import Config, Restart, State
from engine_shim.rules.lifecycle import Lifecycle, TreePhase

WALL = 1_700_000_000.0
MAIN, WORKER = 1, 2
CONN = 7


class Harness:
    def __init__(self, restart: Restart = Restart.IN_PLACE, **settings: float) -> None:
        self.now = 100.0
        self.machine = Lifecycle(Config("engine-a", restart=restart, **settings))  # type: ignore[arg-type]
        self.said: list[e.Effect] = []

    def feed(self, event: e.Event, after_s: float = 0.0) -> list[e.Effect]:
        self.now += after_s
        effects = self.machine.handle(event, e.Time(self.now, WALL + self.now))
        self.said += effects
        return effects

    def wait(self, seconds: float) -> list[e.Effect]:
        """Lets time pass, with a tick whenever the machine wants one."""
        end, effects = self.now + seconds, []
        while self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            effects += self.feed(e.Tick())
            if self.machine.tree is TreePhase.ENDING:
                break
        self.now = max(self.now, end) if self.machine.tree is not TreePhase.ENDING else self.now
        return effects

    def gone(self) -> list[e.Effect]:
        """Nothing is left of the last tree."""
        return self.feed(e.Looked(0, False))

    def begin(self) -> "Harness":
        self.feed(e.Started())
        self.gone()
        self.register()
        return self

    def register(self) -> None:
        number = self.machine.number
        self.feed(e.Registered(CONN, MAIN, number, True))
        self.feed(e.Registered(CONN + 1, WORKER, number, False))
        self.feed(e.Named("engine-a.0123456789abcdef"))

    def step(self, to: State) -> list[e.Effect]:
        return self.feed(e.Reported(to, token=5, url="unix:/x" if to is State.ACTIVE else ""))

    def to(self, state: State) -> "Harness":
        """By the shortest way from Init."""
        way = [State.STANDBY, State.WAKING, State.ACTIVE, State.DRAINING, State.SLEEPING]
        if state is State.DEAD:
            self.feed(e.Ended(-9))
        elif state is not State.INIT:
            for step in way[: way.index(state) + 1]:
                self.step(step)
        return self


def at(state: State, restart: Restart = Restart.IN_PLACE, **settings: float) -> Harness:
    """A machine that has come to this state; what it said on the way is forgotten."""
    harness = Harness(restart, **settings).begin().to(state)
    assert harness.machine.state is state
    harness.said.clear()
    return harness


def kinds(effects: list[e.Effect]) -> list[str]:
    return [type(effect).__name__ for effect in effects if not isinstance(effect, e.Note)]
