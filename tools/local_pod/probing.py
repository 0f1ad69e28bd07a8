"""One probe of one container: when it is asked, and what follows from the answers. Pure.

kubelet's rules (prober/worker.go): a probe has a clock of its own that ticks with its period from the pod's begin on,
whether or not its container runs. A tick does nothing while the container doesn't run, before initialDelaySeconds,
for a startup probe that has passed, and for the others until it has. An answer counts only after as many of its kind
in a row as the threshold says, and a run of them goes on in the container's next run, unless this probe itself has
ended the last one. A liveness or startup probe that failed is not asked again before there is another run.
A liveness probe begins as passed, a readiness probe as failed, a startup probe as unknown. When a pod is deleted
liveness and startup are asked no more and count as passed.

What this file may not do: know other probes, or containers.
"""

import math
from dataclasses import dataclass

from .spec import Kind, Probe

_FIRST = {Kind.LIVENESS: True, Kind.READINESS: False, Kind.STARTUP: None}


@dataclass
class Probing:
    probe: Probe
    begin: float
    """The pod's own: its clock counts from there."""
    next_at: float = 0.0
    run: int = 0
    """The container's; 0 before the first."""
    started_at: float = 0.0
    result: bool | None = None
    in_a_row: int = 0
    last: bool | None = None
    asking: bool = False
    missed: bool = False
    """A tick came while the last answer was still out: it is asked right after."""
    held: bool = False
    """It has failed, and is asked again only in the next run."""
    why: str = ""

    def __post_init__(self) -> None:
        self.next_at = self.begin
        self.result = _FIRST[self.probe.kind]

    def new_run(self, run: int, now: float) -> None:
        self.run, self.started_at = run, now
        if self.next_at < now:  # the clock ticked on meanwhile
            self.next_at = self._tick_after(now)
        self.result = _FIRST[self.probe.kind]
        self.asking = self.missed = self.held = False
        self.why = ""

    def ended(self) -> None:
        """The run is over: whatever it was, it is not well."""
        self.run = 0
        self.result = False
        self.asking = self.missed = False

    def due(self, now: float, *, wanted: bool) -> bool:
        """True if it is to be asked now; the clock goes on either way."""
        if now < self.next_at:
            return False
        self.next_at = self._tick_after(now)
        return self.ask_now(now, wanted=wanted)

    def _tick_after(self, now: float) -> float:
        return self.next_at + self.probe.period_s * (math.floor((now - self.next_at) / self.probe.period_s) + 1)

    def ask_now(self, now: float, *, wanted: bool) -> bool:
        if not wanted or not self.run or self.held:
            return False
        if int(now - self.started_at) < self.probe.initial_delay_s:
            return False
        if self.asking:
            self.missed = True
            return False
        self.asking = True
        return True

    def answered(self, ok: bool, why: str) -> bool:
        """True if the result has changed."""
        self.asking = False
        self.why = why
        self.in_a_row = self.in_a_row + 1 if ok == self.last else 1
        self.last = ok
        threshold = self.probe.success_threshold if ok else self.probe.failure_threshold
        if self.in_a_row < threshold:
            return False
        changed = self.result is not ok
        self.result = ok
        if not ok and self.probe.kind is not Kind.READINESS:
            self.held = True
            self.in_a_row = 0
        return changed
