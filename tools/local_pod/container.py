"""One container of a pod: its runs, how it is ended, when it may start again. Pure.

    WAITING      its turn has not come, or nothing is to start it
    STARTING     it is being made, which may fail
    RUNNING      its first process runs
    ENDING       kubelet is ending it: hook, turn, SIGTERM, SIGKILL
    ENDED        its process has ended; kubelet may not have seen that yet
    BACKING_OFF  kubelet has seen it and waits before the next start (CrashLoopBackOff)
    DONE         it won't be started again

How one is ended (kuberuntime's killContainer): the preStop hook may take the whole grace period. What it took is taken
off, in whole seconds. A sidecar of a pod that ends then waits for its turn, which is taken off, too. What is left, but
never less than two seconds, lies between SIGTERM and SIGKILL.

What this file may not do: know other containers. `machine.py` says when a sidecar's turn has come.
"""

import enum
from dataclasses import dataclass, field

from . import events as e
from .backoff import Backoff
from .probing import Probing
from .spec import Container, Kind, Role

LEAST_GRACE_S = 2
NEVER = float("inf")


class Phase(enum.Enum):
    WAITING = "waiting"
    STARTING = "starting"
    RUNNING = "running"
    ENDING = "ending"
    ENDED = "ended"
    BACKING_OFF = "backing off"
    DONE = "done"


MAY_FOLLOW = {
    Phase.WAITING: {Phase.STARTING, Phase.DONE},
    Phase.STARTING: {Phase.RUNNING, Phase.ENDED},
    Phase.RUNNING: {Phase.ENDING, Phase.ENDED},
    Phase.ENDING: {Phase.ENDED},
    Phase.ENDED: {Phase.STARTING, Phase.BACKING_OFF, Phase.DONE},
    Phase.BACKING_OFF: {Phase.STARTING, Phase.DONE},
    Phase.DONE: set(),
}


class IllegalPhase(Exception):
    """A bug in these rules."""


class Stage(enum.Enum):
    """How far kubelet has come in ending a container."""

    HOOK = "preStop"
    TURN = "waiting for its turn"
    TERM = "SIGTERM"
    KILL = "SIGKILL"


@dataclass
class Ending:
    why: str
    grace_s: int
    ordered: bool
    """The whole pod ends: sidecars wait for their turn."""
    stage: Stage = Stage.HOOK
    since: float = 0.0
    until: float = NEVER


@dataclass(frozen=True)
class Last:
    """How a run ended."""

    code: int
    signal: int
    reason: str
    started_at: float
    ended_at: float


@dataclass
class Life:
    spec: Container
    backoff: Backoff
    probes: dict[Kind, Probing] = field(default_factory=dict)
    phase: Phase = Phase.WAITING
    run: int = 0
    started_at: float = 0.0
    last: Last | None = None
    seen_end: float | None = None
    """The newest end that kubelet knows of."""
    before_kill: float | None = None
    """What it knew when it decided to end a container itself: the back-off of that restart goes by it."""
    killed_by_kubelet: bool = False
    noticed_at: float = NEVER
    start_at: float = NEVER
    """When its back-off ends."""
    ending: Ending | None = None
    passed: bool = False
    """It has once been started as far as the pod's order goes."""

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def alive(self) -> bool:
        """As far as kubelet knows."""
        return self.phase in (Phase.RUNNING, Phase.ENDING) or (self.phase is Phase.ENDED and self.noticed_at < NEVER)

    @property
    def started(self) -> bool:
        startup = self.probes.get(Kind.STARTUP)
        return self.alive and (startup is None or startup.result is True)

    @property
    def ready(self) -> bool:
        readiness = self.probes.get(Kind.READINESS)
        return self.started and (readiness is None or readiness.result is True)

    @property
    def succeeded(self) -> bool:
        return self.phase is Phase.DONE and not self.failed

    @property
    def failed(self) -> bool:
        return self.last is not None and (self.last.code != 0 or self.last.signal != 0)

    @property
    def deadline(self) -> float:
        times = [self.noticed_at]
        if self.ending is not None:
            times.append(self.ending.until)
        if self.phase is Phase.BACKING_OFF:
            times.append(self.start_at)
        return min(times)

    # -- starts ----------------------------------------------------------------------------------------------------

    def start(self, now: float) -> list[e.Effect]:
        """It is started now."""
        self.backoff.started(self.before_kill if self.killed_by_kubelet else self.seen_end, now)
        self.killed_by_kubelet = False
        self._to(Phase.STARTING)
        self.run += 1
        return [e.Start(self.name, self.run)]

    def on_started(self, now: float) -> list[e.Effect]:
        self._to(Phase.RUNNING)
        self.started_at = now
        for probing in self.probes.values():
            probing.new_run(self.run, now)
        return [e.Note("started", {"container": self.name, "run": self.run})]

    # -- ends ------------------------------------------------------------------------------------------------------

    def on_ended(self, now: float, event: e.Ended, noticed_at: float) -> list[e.Effect]:
        """Its process has ended. kubelet sees that at once where it ended it itself."""
        follows: list[e.Effect] = []
        why = self.ending.why if self.ending is not None else ""
        if self.ending is not None and self.ending.stage is Stage.HOOK:
            follows.append(e.CancelHook(self.name, self.run))
        reason = event.reason or ("Completed" if event.code == 0 and not event.signal else "Error")
        self.last = Last(event.code, event.signal, reason, self.started_at, now)
        self.killed_by_kubelet = self.ending is not None
        self.ending = None
        self._to(Phase.ENDED)
        self.noticed_at = now if self.killed_by_kubelet else noticed_at
        detail: dict[str, object] = {"container": self.name, "run": self.run, "code": event.code, "reason": reason}
        if event.signal:
            detail["signal"] = event.signal
        if why:
            detail["why"] = why
        return [*follows, e.Note("ended", detail)]

    def on_not_started(self, now: float, why: str) -> list[e.Effect]:
        self.last = Last(128, 0, "StartError", now, now)
        self._to(Phase.ENDED)
        self.noticed_at = now
        return [e.Note("start_failed", {"container": self.name, "run": self.run, "why": why})]

    def notice(self, now: float) -> None:
        """kubelet sees the end."""
        self.noticed_at = NEVER
        for probing in self.probes.values():
            probing.ended()
        self.seen_end = self.last.ended_at if self.last is not None else now

    @property
    def comes_back(self) -> bool:
        """The pod's restartPolicy is Always: only an init container that has succeeded doesn't."""
        return self.spec.role is not Role.INIT or self.failed

    def may_start_at(self) -> float:
        return self.backoff.until(self.before_kill if self.killed_by_kubelet else self.seen_end)

    def back_off(self, start_at: float) -> list[e.Effect]:
        self._to(Phase.BACKING_OFF)
        self.start_at = start_at
        return [e.Note("back_off", {"container": self.name, "back_off_s": self.backoff.delay_s})]

    def done(self) -> None:
        self._to(Phase.DONE)

    # -- being ended -----------------------------------------------------------------------------------------------

    def end(self, now: float, why: str, grace_s: int, *, ordered: bool) -> list[e.Effect]:
        """kubelet ends it."""
        if self.phase is not Phase.RUNNING:
            return []
        self._to(Phase.ENDING)
        self.before_kill = self.seen_end
        self.ending = Ending(why, grace_s, ordered, since=now)
        follows: list[e.Effect] = [e.Note("ending", {"container": self.name, "why": why, "grace_s": grace_s})]
        if self.spec.pre_stop is not None and grace_s > 0:
            self.ending.until = now + grace_s
            return [*follows, e.RunHook(self.name, self.run)]
        return follows + self._after_hook(now)

    def hurry(self, now: float, grace_s: int) -> None:
        """The pod is deleted while this one is being ended already: the shorter time counts."""
        if self.ending is not None and self.ending.stage is not Stage.KILL:  # after which there is nothing to wait for
            self.ending.ordered = True
            self.ending.until = min(self.ending.until, now + grace_s)

    def on_hook(self, now: float, ok: bool, why: str) -> list[e.Effect]:
        if self.ending is None or self.ending.stage is not Stage.HOOK:
            return []
        note: list[e.Effect] = [] if ok else [e.Note("hook_failed", {"container": self.name, "why": why})]
        return note + self._after_hook(now)

    def advance(self, now: float, turn: bool) -> list[e.Effect]:
        """The next stage, if it is time for it."""
        ending = self.ending
        if ending is None:
            return []
        if ending.stage is Stage.HOOK and now >= ending.until:
            return [e.CancelHook(self.name, self.run), *self._after_hook(now)]
        if ending.stage is Stage.TURN and (turn or now >= ending.until):
            ending.grace_s -= int(now - ending.since)
            return self._terminate(now)
        if ending.stage is Stage.TERM and now >= ending.until:
            ending.stage, ending.until = Stage.KILL, NEVER
            return [e.Signal(self.name, self.run, "SIGKILL")]
        return []

    def _after_hook(self, now: float) -> list[e.Effect]:
        ending = self.ending
        assert ending is not None
        ending.grace_s -= int(now - ending.since)
        ending.since = now
        if ending.ordered and ending.grace_s > 0:
            ending.stage, ending.until = Stage.TURN, now + ending.grace_s
            return []
        return self._terminate(now)

    def _terminate(self, now: float) -> list[e.Effect]:
        ending = self.ending
        assert ending is not None
        ending.stage = Stage.TERM
        ending.until = now + max(ending.grace_s, LEAST_GRACE_S)
        return [e.Signal(self.name, self.run, "SIGTERM")]

    def _to(self, phase: Phase) -> None:
        if phase not in MAY_FOLLOW[self.phase]:
            raise IllegalPhase(f"{self.name}: {phase.name} can't follow {self.phase.name}")
        self.phase = phase
