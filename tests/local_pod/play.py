"""A pod on a virtual clock: the machine of local-pod, and containers that do what a test says.

    play = Play(pod(main("a", lives=[5, None])))
    play.until(30)
    assert play.starts("a") == [0, 6]

Times are seconds from the pod's begin. Nothing sleeps.
"""

import heapq
import itertools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tools.local_pod import events as e
from tools.local_pod.container import Phase
from tools.local_pod.machine import Machine, Settings
from tools.local_pod.spec import Container, Http, Kind, Pod, Probe, Role, Sleep

Answers = Callable[[float], bool]
"""Seconds since the run began -> what the probe finds."""


@dataclass
class Behaviour:
    """What a container does, run by run; the last entry counts for all later runs."""

    lives: list[float | None]
    """How long it lives by itself; None: until it is ended."""
    codes: list[int]
    starts_s: float
    starts: bool
    term_s: float | None
    """How long it takes to end after SIGTERM; None: it doesn't mind."""
    answers: dict[Kind, Answers]
    answer_s: float
    hook_s: float | None

    def life(self, run: int) -> float | None:
        return self.lives[min(run, len(self.lives)) - 1]

    def code(self, run: int) -> int:
        return self.codes[min(run, len(self.codes)) - 1]


@dataclass
class Made:
    spec: Container
    behaviour: Behaviour


def _yes(_: float) -> bool:
    return True


def probe(kind: Kind, **fields: Any) -> Probe:
    return Probe(kind, Http(8000), **fields)


def container(
    name: str,
    role: Role,
    *,
    lives: list[float | None] | None = None,
    codes: list[int] | None = None,
    starts_s: float = 0.0,
    starts: bool = True,
    term_s: float | None = 0.0,
    startup: Probe | None = None,
    liveness: Probe | None = None,
    readiness: Probe | None = None,
    answers: dict[Kind, Answers] | None = None,
    answer_s: float = 0.0,
    pre_stop: int | None = None,
    hook_s: float | None = None,
) -> Made:
    probes = {each.kind: each for each in (startup, liveness, readiness) if each is not None}
    spec = Container(
        name=name,
        role=role,
        command=("x",),
        probes=probes,
        pre_stop=None if pre_stop is None else Sleep(pre_stop),
    )
    behaviour = Behaviour(lives or [None], codes or [1], starts_s, starts, term_s, answers or {}, answer_s, hook_s)
    return Made(spec, behaviour)


def main(name: str, **fields: Any) -> Made:
    return container(name, Role.MAIN, **fields)


def sidecar(name: str, **fields: Any) -> Made:
    return container(name, Role.SIDECAR, **fields)


def init(name: str, **fields: Any) -> Made:
    return container(name, Role.INIT, **{"lives": [0.5], "codes": [0], **fields})


@dataclass
class Play:
    made: list[Made]
    settings: Settings = field(default_factory=lambda: Settings(jitter=0))
    grace_s: int = 30
    now: float = 0.0
    history: list[tuple[float, e.Effect]] = field(default_factory=list)

    def __post_init__(self) -> None:
        pod = Pod("pod", tuple(each.spec for each in self.made), grace_s=self.grace_s)
        self.behaviours = {each.spec.name: each.behaviour for each in self.made}
        self.machine = Machine(pod, self.settings)
        self.count = itertools.count()
        self.queue: list[tuple[float, int, e.Event]] = []
        self.began: dict[str, float] = {}
        self.dead: set[tuple[str, int]] = set()
        self.at(0, e.Begin())

    def at(self, time: float, event: e.Event) -> None:
        heapq.heappush(self.queue, (time, next(self.count), event))

    def delete(self, time: float, grace_s: int | None = None) -> "Play":
        self.at(time, e.Delete(grace_s))
        return self

    def kill(self, name: str, time: float) -> "Play":
        """SIGKILL to whatever run it has then."""
        self.until(time)
        if self.machine.lives[name].phase in (Phase.RUNNING, Phase.ENDING):
            self._end(name, self.machine.lives[name].run, 0.0, 137, 9)
        return self

    def until(self, time: float) -> "Play":
        while True:
            next_event = self.queue[0][0] if self.queue else float("inf")
            due = min(next_event, self.machine.deadline)
            if due > time or due == float("inf"):
                self.now = max(self.now, time)
                return self
            self.now = max(self.now, due)
            event = heapq.heappop(self.queue)[2] if next_event <= self.machine.deadline else e.Tick()
            if isinstance(event, e.Ended) and (event.name, event.run) in self.dead:
                continue
            if isinstance(event, e.Ended):
                self.dead.add((event.name, event.run))
            if isinstance(event, e.Started):
                self.began[event.name] = self.now
                life = self.behaviours[event.name].life(event.run)
                if life is not None:
                    self._end(event.name, event.run, life, self.behaviours[event.name].code(event.run), 0)
            for effect in self.machine.handle(event, self.now):
                self.history.append((round(self.now, 3), effect))
                self._do(effect)

    def _end(self, name: str, run: int, after: float, code: int, number: int) -> None:
        self.at(self.now + after, e.Ended(name, run, code, number))

    def _do(self, effect: e.Effect) -> None:
        if isinstance(effect, e.Start):
            behaviour = self.behaviours[effect.name]
            started: e.Event = e.Started(effect.name, effect.run)
            self.at(
                self.now + behaviour.starts_s,
                started if behaviour.starts else e.NotStarted(effect.name, effect.run, "no"),
            )
        elif isinstance(effect, e.Ask):
            behaviour = self.behaviours[effect.name]
            finds = behaviour.answers.get(effect.kind, _yes)
            dead = (effect.name, effect.run) in self.dead
            ok = not dead and finds(self.now - self.began.get(effect.name, self.now))
            self.at(self.now + behaviour.answer_s, e.Answered(effect.name, effect.run, effect.kind, ok))
        elif isinstance(effect, e.RunHook):
            spec = self.machine.pod.container(effect.name)
            handler = spec.pre_stop
            takes = self.behaviours[effect.name].hook_s
            if takes is None:
                takes = float(handler.seconds) if isinstance(handler, Sleep) else 0.0
            self.at(self.now + takes, e.HookEnded(effect.name, effect.run, True))
        elif isinstance(effect, e.Signal):
            behaviour = self.behaviours[effect.name]
            if effect.signal == "SIGKILL":
                self._end(effect.name, effect.run, 0.0, 137, 9)
            elif behaviour.term_s is not None:
                self._end(effect.name, effect.run, behaviour.term_s, 0, 0)

    # -- what was seen ---------------------------------------------------------------------------------------------

    def times(self, effects: type, name: str, **wanted: object) -> list[float]:
        return [
            at
            for at, effect in self.history
            if isinstance(effect, effects)
            and getattr(effect, "name", None) == name
            and all(getattr(effect, key) == value for key, value in wanted.items())
        ]

    def starts(self, name: str) -> list[float]:
        return self.times(e.Start, name)

    def asked(self, name: str, kind: Kind) -> list[float]:
        return self.times(e.Ask, name, kind=kind)

    def signals(self, name: str) -> list[tuple[float, str]]:
        return [(at, each.signal) for at, each in self.history if isinstance(each, e.Signal) and each.name == name]

    def ends(self, name: str) -> list[float]:
        return [
            at
            for at, each in self.history
            if isinstance(each, e.Note) and each.event == "ended" and each.detail["container"] == name
        ]

    def flips(self) -> list[tuple[float, bool]]:
        return [(round(flip.at, 3), flip.ready) for flip in self.machine.flips]
