"""kubelet's rules for one pod. Pure: events and the time go in, effects come out; no process, socket or clock.

**Order.** Init containers one after the other: an ordinary one has to end with 0; a native sidecar (restartPolicy
Always) counts as started once its startup probe has passed, or at once without one. Then all main containers together.
What has been started in this order once isn't gone through again: a sidecar that dies later is started again by itself.

**Ends.** kubelet sees a container's end when it looks the next time (`relist_s`, once a second), and starts it again
by its back-off (`backoff.py`; the pod's restartPolicy is Always): not as soon as that is over, but at a look after 1.0
to 1.5 times what was left of it, drawn at random (11.1 s for 10 and 22.5 s for 20 were seen on 1.36.2). One that fails
its liveness or startup probe is ended (`container.py`) with the probe's own grace period, else the pod's, and started
again.

**Ready.** A container is ready when it runs, its startup probe has passed, and its readiness probe, if it has one, has,
too. The pod is ready when all its sidecars and main containers are. So *every* restart of any of them makes the pod not
ready, whatever the readiness probes of the others say.

**Deletion.** All containers' preStop hooks at once. Main containers get SIGTERM right after theirs; sidecars wait until
all main containers have ended, and end in the reverse of their order. The grace period is one for all of it.

What is not modelled: other restart policies, postStart hooks, resources, eviction, container restart rules, resizing,
ephemeral containers.
"""

import math
import random
from dataclasses import dataclass, field

from . import events as e
from .backoff import INITIAL_S, MOST_S, Backoff
from .container import NEVER, Life, Phase
from .probing import Probing
from .spec import Kind, Pod, Role

MOST_FLIPS = 1000
DELETED = "the pod is deleted"
_ROUNDING_S = 0.001
"""A tick of a probe's clock may be a rounding error before the moment that it comes after."""


@dataclass(frozen=True)
class Settings:
    back_off_s: float = INITIAL_S
    back_off_most_s: float = MOST_S
    relist_s: float = 1.0
    """How often kubelet looks whether containers have ended."""
    jitter: float = 0.5
    """A back-off may take so much longer, as a part of itself."""
    seed: int = 0
    """Of what is drawn at random."""


@dataclass(frozen=True)
class Flip:
    at: float
    ready: bool
    why: str


@dataclass
class Machine:
    pod: Pod
    settings: Settings = Settings()
    begin: float = 0.0
    begun: bool = False
    deleting: bool = False
    finished: bool = False
    ready: bool = False
    flips: list[Flip] = field(default_factory=list)
    lives: dict[str, Life] = field(default_factory=dict)
    update_at: float = NEVER
    """When kubelet makes the pod's status anew."""

    def __post_init__(self) -> None:
        self._random = random.Random(self.settings.seed)

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        follows = self._take(event, now)
        follows += self._advance(now)
        self._check(now)
        return follows

    @property
    def deadline(self) -> float:
        if not self.begun or self.finished:
            return NEVER
        clocks = [probing.next_at for life in self.lives.values() if life.alive for probing in life.probes.values()]
        return min([self.update_at, *clocks, *(life.deadline for life in self.lives.values())], default=NEVER)

    # -- what happened ---------------------------------------------------------------------------------------------

    def _take(self, event: e.Event, now: float) -> list[e.Effect]:
        if isinstance(event, e.Begin):
            return self._begin(now)
        if isinstance(event, e.Delete):
            return self._delete(now, self.pod.grace_s if event.grace_s is None else event.grace_s)
        if isinstance(event, e.Tick):
            return []
        life = self.lives[event.name]
        if event.run != life.run:
            return []  # of a run that is over
        if isinstance(event, e.Started):
            follows = life.on_started(now)
            self.update_at = min(self.update_at, self._next_look(now))
            if self.deleting:
                follows += life.end(now, DELETED, self.pod.grace_s, ordered=True)
            return follows
        if isinstance(event, e.NotStarted):
            return life.on_not_started(now, event.why)
        if isinstance(event, e.Ended):
            return life.on_ended(now, event, self._next_look(now))
        if isinstance(event, e.HookEnded):
            return life.on_hook(now, event.ok, event.why)
        return self._answered(life, event, now)

    def _begin(self, now: float) -> list[e.Effect]:
        self.begin, self.begun = now, True
        for spec in self.pod.containers:
            backoff = Backoff(self.settings.back_off_s, self.settings.back_off_most_s)
            probes = {kind: Probing(probe, now) for kind, probe in spec.probes.items()}
            self.lives[spec.name] = Life(spec, backoff, probes)
        return [e.Note("begun", {"pod": self.pod.name, "seed": self.settings.seed})]

    def _next_look(self, now: float) -> float:
        every = self.settings.relist_s
        if every <= 0:
            return now
        looks = int((now - self.begin) / every) + 1
        return self.begin + looks * every

    def _after_back_off(self, until: float, now: float) -> float:
        """The look at which a container is started whose back-off is over by then."""
        at = now + (until - now) * (1 + self.settings.jitter * self._random.random())
        every = self.settings.relist_s
        return at if every <= 0 else self.begin + math.ceil((at - self.begin) / every - _ROUNDING_S) * every

    def _answered(self, life: Life, event: e.Answered, now: float) -> list[e.Effect]:
        probing = life.probes[event.kind]
        if not probing.asking:
            return []
        changed = probing.answered(event.ok, event.why)
        follows: list[e.Effect] = []
        if changed:
            self.update_at = now
            detail = {"container": life.name, "probe": event.kind.value, "ok": event.ok, "why": event.why}
            follows.append(e.Note("probe", detail))
        if probing.missed:
            probing.missed = False
            follows += self._ask(life, probing, now)
        if event.kind is Kind.READINESS or not life.alive:
            return follows
        if probing.held and not self.deleting:
            grace_s = self.pod.grace_s if probing.probe.grace_s is None else probing.probe.grace_s
            follows += life.end(now, f"{event.kind.value} probe failed: {event.why}", grace_s, ordered=False)
        return follows

    def _delete(self, now: float, grace_s: int) -> list[e.Effect]:
        if self.finished:
            return []
        follows: list[e.Effect] = []
        if not self.deleting:
            follows.append(e.Note("deleting", {"grace_s": grace_s}))
        self.deleting = True
        for life in self.lives.values():
            life.hurry(now, grace_s)
            follows += life.end(now, DELETED, grace_s, ordered=True)
        return follows

    # -- what follows from the time and the state ------------------------------------------------------------------

    def _advance(self, now: float) -> list[e.Effect]:
        if not self.begun or self.finished:
            return []
        follows: list[e.Effect] = []
        for life in self.lives.values():
            if now >= life.noticed_at:
                life.notice(now)
                self.update_at = now
        for life in self.lives.values():
            follows += self._again(life, now)
        if not self.deleting:
            follows += self._start_next(now)
        for life in self.lives.values():
            if self.deleting and life.phase in (Phase.WAITING, Phase.BACKING_OFF):
                life.done()
            follows += life.advance(now, self._turn(life))
        for life in self.lives.values():
            for probing in life.probes.values():
                if probing.due(now, wanted=self._wanted(life, probing)):
                    follows.append(e.Ask(life.name, life.run, probing.probe.kind))
        return follows + self._update(now) + self._look_at_readiness(now) + self._finish()

    def _turn(self, life: Life) -> bool:
        """Whether every container has ended that has to end before this one."""
        if life.spec.role is not Role.SIDECAR:
            return True
        names = [spec.name for spec in self.pod.init]
        later = [self.lives[name] for name in names[names.index(life.name) + 1 :]]
        mains = [self.lives[spec.name] for spec in self.pod.mains]
        return not any(other.phase in (Phase.STARTING, Phase.RUNNING, Phase.ENDING) for other in (*later, *mains))

    def _again(self, life: Life, now: float) -> list[e.Effect]:
        """What follows from an end that kubelet has seen."""
        if life.phase is Phase.BACKING_OFF and now >= life.start_at and not self.deleting:
            return life.start(now)
        if life.phase is not Phase.ENDED or life.noticed_at < NEVER:
            return []
        if self.deleting or not life.comes_back:
            life.done()
            return []
        if now >= life.may_start_at():
            return life.start(now)
        return life.back_off(self._after_back_off(life.backoff.until(life.seen_end), now))

    def _start_next(self, now: float) -> list[e.Effect]:
        """The pod's order."""
        for spec in self.pod.init:
            life = self.lives[spec.name]
            if spec.role is Role.SIDECAR:
                life.passed = life.passed or life.started
            else:
                life.passed = life.succeeded
            if life.passed:
                continue
            return life.start(now) if life.phase is Phase.WAITING else []
        follows: list[e.Effect] = []
        for spec in self.pod.mains:
            if self.lives[spec.name].phase is Phase.WAITING:
                follows += self.lives[spec.name].start(now)
        return follows

    # -- probes ----------------------------------------------------------------------------------------------------

    def _wanted(self, life: Life, probing: Probing) -> bool:
        if not life.alive:
            return False
        if probing.probe.kind is Kind.STARTUP:
            return not life.started and not self.deleting
        return life.started and (probing.probe.kind is Kind.READINESS or not self.deleting)

    def _ask(self, life: Life, probing: Probing, now: float) -> list[e.Effect]:
        if probing.ask_now(now, wanted=self._wanted(life, probing)):
            return [e.Ask(life.name, life.run, probing.probe.kind)]
        return []

    def _update(self, now: float) -> list[e.Effect]:
        """Each time kubelet makes the pod's status anew (it has seen a start, an end, another verdict of a probe) it
        asks every readiness probe that doesn't pass, whatever that one's own clock says.
        """
        if now < self.update_at:
            return []
        self.update_at = NEVER
        readiness = [(life, life.probes.get(Kind.READINESS)) for life in self.lives.values()]
        failing = [(life, probing) for life, probing in readiness if probing is not None and not probing.result]
        return [effect for life, probing in failing for effect in self._ask(life, probing, now)]

    # -- readiness and the end -------------------------------------------------------------------------------------

    def unready(self) -> list[str]:
        """Which containers keep the pod from being ready, and why."""
        found = []
        for life in self.lives.values():
            if life.spec.role is Role.INIT or life.ready:
                continue
            if life.phase is Phase.BACKING_OFF:
                why = "CrashLoopBackOff"
            elif not life.alive:
                why = life.phase.value
            elif not life.started:
                why = "its startup probe hasn't passed"
            else:
                why = "its readiness probe doesn't pass"
            found.append(f"{life.name}: {why}")
        return found

    def _look_at_readiness(self, now: float) -> list[e.Effect]:
        unready = self.unready()
        ready = not unready and all(life.succeeded for life in self.lives.values() if life.spec.role is Role.INIT)
        if ready is self.ready:
            return []
        self.ready = ready
        why = "" if ready else "; ".join(unready)
        self.flips.append(Flip(now, ready, why))
        del self.flips[:-MOST_FLIPS]
        return [e.Note("ready") if ready else e.Note("not_ready", {"why": why})]

    def _finish(self) -> list[e.Effect]:
        if not self.deleting or any(life.phase is not Phase.DONE for life in self.lives.values()):
            return []
        self.finished = True
        return [e.Finished()]

    def _check(self, now: float) -> None:
        """What must hold after every event."""
        if self.deadline < now - _ROUNDING_S:
            raise AssertionError(f"the clock would be asked again at once, for ever: {self.deadline} < {now}")
        for life in self.lives.values():
            if (life.ending is not None) != (life.phase is Phase.ENDING):
                raise AssertionError(f"{life.name}: {life.phase.name} with ending {life.ending}")
            if life.phase is not Phase.ENDED and life.noticed_at < NEVER:
                raise AssertionError(f"{life.name}: an end to notice in {life.phase.name}")
        if self.ready and any(not life.ready for life in self.lives.values() if life.spec.role is not Role.INIT):
            raise AssertionError("ready, with a container that isn't")
