"""The rules of the shim: the life of one engine, from start to start.

Pure: an event and the time go in, effects come out (`events.py`); `shim.py` has the processes and the sockets. What the
probes answer follows from this machine and the time (`probes.py`).

    Init       the engine loads, builds and captures. Before the very first start nothing runs yet.
    Standby    it is asleep and waits for the lock. It could take over.
    Waking     it has the lock: weights are mapped again, the KV cache is allocated, the endpoint is bound.
    Active     it serves.
    Draining   it finishes what it has and takes nothing new: for a switchover, a sleep, or its end.
    Sleeping   it gives the device and the lock back in place, for another model. Standby follows, and the next wake.
    Dead       its processes are being killed or proven gone, or it waits for its next start.

The main process reports each step when it has *taken* it. So Active means that the endpoint is bound and announced.

The rules:

 1. There is one process tree at a time. The next is started only when nothing is left of the last: none of its
    processes, and none that holds a life lock of this engine. So a tree that an earlier shim of the same name has
    left doesn't count as gone too early either. Where that can't be known, it waits, and says why.
 2. A tree lives and dies as a whole: when any registered process ends, the rest is killed at once.
 3. A process that registers late, for a start that is over, is turned away and ends.
 4. Steps come from the main process, in the order of the table. Any other step means a broken engine, and its end.
 5. Nothing may take for ever. Init, Waking and Sleeping have their bounds. From Standby on the main process beats;
    silence for `stall_s` ends the tree, and so does queued work without a step for that long while the tree uses no
    processor. One that uses it may be compiling: that is an alarm, and its end after `busy_stall_s` without a step. An
    engine that says itself that it isn't well (a sleeper whose weights are gone, say) is ended after `UNWELL_S`.
 6. In place, an ended engine is started again: at once after the first failure, then after longer and longer pauses.
    Having served, or having been ready for a while, makes the next failure the first again. An engine that held the
    lock first leaves the processors to its successor for a moment. With `exit` the shim ends instead.
 7. Told to end, an engine that serves drains within `drain_s`; any other has nothing to lose and is killed. Told again,
    it is killed. The end waits for our own processes and for nothing else; the next start has rule 1.
 8. An engine isn't started again when one of its processes says in Init that another start changes nothing (wrong
    arguments, the weights of another model), or when it ends in Init with exit code 64 or 65: the shim ends with that.
    Nor is it when Init fails with the same words again and again (`init_failures.py`): the shim ends with 78.
 9. It is ready, and not redundant, while its counterpart takes other requests than it does: an alarm
    (`counterparts.py`).
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import Any

from engine_shim.rules import events as e
from engine_shim.rules.counterparts import Counterparts
from engine_shim.rules.counters import Counters
from engine_shim.rules.events import Restart, State
from engine_shim.rules.init_failures import MOST_ALIKE, InitFailures
from sidecar.terminal.exit_codes import EX_FAILS_ALIKE, EX_OTHER_WEIGHTS, EX_USAGE

UNWELL_S = 5.0
DRAIN_MARGIN_S = 2.0
"""The main process keeps the bound of its drain itself. This margin is for one that doesn't."""
STEADY_S = 30.0
BACK_OFF_FIRST_S = 0.5
BACK_OFF_MOST_S = 60.0
LOOK_FIRST_S = 0.002
LOOK_MOST_S = 0.1
HANDOFF_S = 0.25
"""How long a dead holder's next start waits, unless the successor serves before: a start that takes a processor in that
time makes the handoff slower for all."""
FIRST_ANSWERS_S = 0.1
"""How long a successor that has just announced its endpoint is left alone, too: all clients that waited ask it now."""
STUCK_S = 10.0
"""After so long nothing of a killed tree should be left."""
LATE_BEATS = 3
LATE_STEP = 0.25
"""A share of `stall_s`. Work that has waited so long for a step is told, long before that ends the tree."""
BUSY_SHARE = 0.05
"""So much of one processor is use: a compiler gets that on a machine with twenty times the work that it has processors
for. An idle vLLM was seen to take 0.02 in all, most of it EngineCore's."""
LOOKS_PER_STALL = 4

STEPS = {
    # what the main process may say next
    (State.INIT, State.STANDBY),
    (State.STANDBY, State.WAKING),
    (State.WAKING, State.ACTIVE),
    (State.ACTIVE, State.DRAINING),
    (State.DRAINING, State.ACTIVE),
    (State.DRAINING, State.SLEEPING),
    (State.SLEEPING, State.STANDBY),
}
BEATING = (State.STANDBY, State.ACTIVE, State.DRAINING)
SERVING = (State.ACTIVE, State.DRAINING)


class TreePhase(Enum):
    """Which processes of the engine there are."""

    NONE = "none"
    ALIVE = "alive"
    ENDING = "ending"
    """They are killed, or were never seen. None may be left before the next start."""


class Lifecycle:
    def __init__(self, config: e.Config) -> None:
        self.config = config
        self.counters = Counters()
        self.state = State.INIT
        self.since = self.since_wall = 0.0
        self.tree = TreePhase.NONE
        self.number = 0
        """Counts the starts; 0 before the first."""
        self.incarnation = ""
        """The name of this start with the lock server."""
        self.token = 0
        self.url = ""
        self.processes: set[int] = set()
        self.main: int | None = None
        self.well, self.unwell_why = True, ""
        self.queued = 0
        self.unreachable = ""
        """Why no client could connect to its address; empty if clients can, or could once it serves."""
        self.counterparts = Counterparts()
        self.why = ""
        """Why the last tree ended."""
        self.left_init = False
        self.restart_at = math.inf
        self.failures = 0
        self.terminating = False
        self.exiting = False
        self._exit_code: int | None = None
        self._ended_in = State.INIT
        """The state in which the last tree ended."""
        self._failing, self._refuses, self._transient = "", 0, False
        self._init_failures = InitFailures()
        self._beat_at = self._progress_at = self._busy_at = 0.0
        self._used: tuple[float, float] | None = None
        """The processor time that the tree had used at some moment since its last step."""
        self._said_busy = False
        self._steps = -1
        self._unwell_since = math.inf
        self._terminate_by = math.inf
        self._look_at = math.inf
        self._look_wait_s = LOOK_FIRST_S
        self._ending_since = 0.0
        self._said_stuck = False
        self._lost_at: float | None = None
        """When this engine last served or could have; None while it does or can."""
        self._behind = False
        """Another engine held the lock while this engine waited."""
        self._fencing_at: float | None = None
        self._out: list[e.Effect] = []
        self._now = self._wall = 0.0

    # -- the one entry ---------------------------------------------------------------------------------------------

    def handle(self, event: e.Event, time: e.Time) -> list[e.Effect]:
        self._out = []
        self._now, self._wall = time
        if not self.exiting:
            _HANDLERS[type(event)](self, event)
            self._mind_time()
        return self._out

    @property
    def deadline(self) -> float:
        if self.exiting:
            return math.inf
        if self.tree is TreePhase.ENDING:
            return self._look_at
        if self.tree is TreePhase.NONE:
            return self.restart_at
        return self.end_by

    @property
    def end_by(self) -> float:
        """When the living tree has to be ended unless something happens before (rules 5 and 7)."""
        return min(self.bound, self._unwell_since + UNWELL_S, self._terminate_by)

    @property
    def bound(self) -> float:
        """The bound of this state: the main process has to move on, beat, or get on with its work before."""
        if self.state is State.INIT:
            return self.since + self.config.init_timeout_s if self.number else math.inf
        if self.state in (State.WAKING, State.SLEEPING):
            return self.since + self.config.waking_timeout_s
        if self.state in BEATING:
            config = self.config
            no_step = min(max(self._progress_at, self._busy_at) + config.stall_s, self._step_by)
            return min(self._beat_at + config.stall_s, no_step)
        return math.inf

    @property
    def _step_by(self) -> float:
        """When a step has to be finished, whatever the tree uses."""
        return self._progress_at + max(self.config.stall_s, self.config.busy_stall_s)

    def makes_no_step(self, queued: int, steps: int) -> bool:
        """Whether a beat that says this is one without progress: then what the tree uses is of interest."""
        return bool(queued) and steps == self._steps

    def beats(self, now: float) -> bool:
        """The main process has said something of late."""
        return now < self._beat_at + LATE_BEATS * self.config.beat_s

    def silent_s(self, now: float) -> float:
        """For how long the main process has said nothing; 0 while it speaks, or needn't."""
        alive = self.tree is TreePhase.ALIVE and self.state in BEATING
        return now - self._beat_at if alive and not self.beats(now) else 0.0

    def no_step_s(self, now: float) -> float:
        """For how long work has waited and no step was finished; 0 while that isn't long."""
        waits = self.tree is TreePhase.ALIVE and self.state in BEATING and self.queued
        since_s = now - self._progress_at if waits else 0.0
        return since_s if since_s >= self.config.stall_s * LATE_STEP else 0.0

    def _mind_time(self) -> None:
        now = self._now
        if self.tree is TreePhase.ALIVE and now >= self.end_by:
            self._end(self._why_now())
        if self.tree is TreePhase.ENDING and now >= self._look_at:
            self._look_at = now + self._look_wait_s
            self._look_wait_s = min(self._look_wait_s * 2, LOOK_MOST_S)
            self._out += [e.KillTree(), e.Look()]
        elif self.tree is TreePhase.NONE and now >= self.restart_at:
            self._start()

    def _why_now(self) -> str:
        now, config = self._now, self.config
        if now >= self._terminate_by:
            return f"it was told to end and had not drained within {config.drain_s:g} s"
        if now < self.bound:
            return f"it was not well for {UNWELL_S:g} s: {self.unwell_why}"
        if self.state is State.INIT:
            return f"Init took longer than {config.init_timeout_s:g} s"
        if self.state in (State.WAKING, State.SLEEPING):
            what = "wake" if self.state is State.WAKING else "sleep"
            return f"the {what} took longer than {config.waking_timeout_s:g} s"
        if self._beat_at <= self._progress_at:
            return f"its main process was silent for {config.stall_s:g} s: is it stopped?"
        if now >= self._step_by and self._busy_at > self._progress_at:
            return f"work was queued and no step finished for {config.busy_stall_s:g} s, though it used processors"
        return f"work was queued and no step finished for {config.stall_s:g} s"

    # -- a start, and an end ---------------------------------------------------------------------------------------

    def _on_started(self, event: e.Started) -> None:
        self.since, self.since_wall = self._now, self._wall
        self.counters.entered_at[State.INIT] = self._wall
        self._await_end()

    def _await_end(self) -> None:
        self.tree = TreePhase.ENDING
        self._look_at, self._look_wait_s = self._now, LOOK_FIRST_S
        self._ending_since, self._said_stuck = self._now, False

    def _start(self) -> None:
        self.number += 1
        self.counters.starts += 1
        self.tree, self.restart_at = TreePhase.ALIVE, math.inf
        self.incarnation, self.token, self.url = "", 0, ""
        self.processes, self.main = set(), None
        self.well, self.unwell_why, self.queued, self.unreachable = True, "", 0, ""
        self.counterparts.takes = {}
        self._unwell_since = math.inf
        self._failing, self._refuses, self._transient = "", 0, False
        self._behind, self._fencing_at = False, None
        if self.state is State.INIT:
            self.since, self.since_wall = self._now, self._wall
        else:
            self._move(State.INIT)
        self._out.append(e.Start(self.number))
        self._note("start", number=self.number)

    def _end(self, why: str) -> None:
        """Ends the rest of the tree, too (rule 2)."""
        said, why = self._failing, self._failing or why
        steady = self.state in SERVING or (self.state is State.STANDBY and self._now >= self.since + STEADY_S)
        self.failures = 1 if steady else self.failures + 1
        expected = self.terminating or self.state is State.DRAINING
        self.counters.deaths += not expected
        self.why, self.url = why, ""
        if self._lost_at is None and self.state is not State.INIT:
            self._lost_at = self._now
        self._note("tree_ends", alarm=not expected, state=self.state.value, token=self.token, why=why)
        self._ended_in = self.state
        if self.state is State.INIT and not self.terminating:
            if self._init_failures.failed(said, transient=self._transient):
                self.why = f"Init failed {MOST_ALIKE} times with the same words, so no further start: {why}"
                self._exit_code = EX_FAILS_ALIKE
            if self._refuses:
                self._exit_code = self._refuses
        self._move(State.DEAD)
        self._await_end()

    def _on_looked(self, event: e.Looked) -> None:
        if self.tree is not TreePhase.ENDING:
            return
        if event.left or (event.held and not self._ends_for_good):
            self._say_if_stuck(event)
            return
        self.tree, self._look_at = TreePhase.NONE, math.inf
        if self.processes:
            self._out.append(e.Forget(sorted(self.processes)))
            self.processes, self.main = set(), None
        self._out.append(e.CleanUp())
        if self._ends_for_good:
            self._exit()
            return
        self.restart_at = self._now + max(self.back_off_s, HANDOFF_S if self.token else 0.0)
        if self.back_off_s:
            self._note("back_off", seconds=self.back_off_s, failures=self.failures)

    @property
    def _ends_for_good(self) -> bool:
        in_exit_mode = self.config.restart is Restart.EXIT and self.number > 0
        return self.terminating or in_exit_mode or self._exit_code is not None

    @property
    def back_off_s(self) -> float:
        if self.failures <= 1:
            return 0.0
        doubled = BACK_OFF_FIRST_S * 2.0 ** min(self.failures - 2, 16)
        return min(doubled, BACK_OFF_MOST_S)

    def _exit(self) -> None:
        code = self._exit_code or (0 if self.terminating else 1)
        self.exiting = True
        self._out.append(e.Exit(code, self.why))

    def _say_if_stuck(self, event: e.Looked) -> None:
        if self._now < self._ending_since + STUCK_S or self._said_stuck:
            return
        self._said_stuck = True
        left = f"{event.left} of its processes can't be killed" if event.left else event.why
        hint = "" if event.left else f"; is another engine-shim called {self.config.engine_id}, or an old one's engine?"
        self._note("not_gone", alarm=True, why=f"the last tree isn't gone: {left}{hint}")

    def _on_died(self, event: e.Died) -> None:
        if self.tree is TreePhase.ALIVE and event.process in self.processes:
            main = event.process == self.main
            self._end("its main process died" if main else "one of its processes died")

    def _on_ended(self, event: e.Ended) -> None:
        how = f"with exit code {event.code}" if event.code >= 0 else f"by signal {-event.code}"
        why = f"its main process ended {how}"
        if self.tree is TreePhase.ALIVE:
            self._end(why)
        elif self.terminating:
            return
        refused = event.code in (EX_USAGE, EX_OTHER_WEIGHTS) and self._ended_in is State.INIT
        if refused and self.tree is TreePhase.ENDING:
            # Also when a worker, which dies with its parent's thread, was seen to end before its parent did.
            self._exit_code, self.why = event.code, self._failing or why

    def _on_not_started(self, event: e.NotStarted) -> None:
        if self.tree is TreePhase.ALIVE:
            self._end(event.why)

    def _on_failing(self, event: e.Failing) -> None:
        """The process that says it first knows the cause. For the others the cause is that it has gone."""
        if not self._failing:
            self._transient = event.transient
        self._failing = self._failing or event.why
        self._refuses = self._refuses or event.exit_code

    # -- what the tree says ----------------------------------------------------------------------------------------

    def _on_registered(self, event: e.Registered) -> None:
        if self.tree is not TreePhase.ALIVE or event.start != self.number:
            self._out.append(e.TurnAway(event.conn, f"start {event.start} of {self.config.engine_id} is over"))
            self._out.append(e.Forget([event.process]))
            return
        if event.main and self.main is not None:
            self._out.append(e.TurnAway(event.conn, "there is a main process already"))
            self._out.append(e.Forget([event.process]))
            return
        self.processes.add(event.process)
        if event.main:
            self.main = event.process
        self._out.append(e.Admit(event.conn))

    def _on_named(self, event: e.Named) -> None:
        self.incarnation = event.incarnation

    def _on_reported(self, event: e.Reported) -> None:
        if self.tree is not TreePhase.ALIVE:
            return
        if (self.state, event.to) not in STEPS:
            self._end(f"its main process says {event.to.value} in {self.state.value}")
            return
        if event.to is State.STANDBY:
            self.left_init = True
            self._init_failures.succeeded()
            self._behind, self._fencing_at = False, None
        elif event.to is State.WAKING:
            self.token = event.token
            if self._fencing_at is not None:
                self.counters.phase("fence_wait", self._now - self._fencing_at)
        elif event.to is State.ACTIVE and self.state is State.WAKING:
            self.failures = 0
            self.counters.failovers += self._behind
        self.url = event.url if event.to is State.ACTIVE else ""
        self._beat_at = self._progress_at = self._now
        self._steps = -1
        self._move(event.to)
        if event.to is State.STANDBY:
            if self.counterparts.lock is not None:
                self._mind_lock(self.counterparts.lock)
            if self._lost_at is not None:
                self.counters.restored.add(self._now - self._lost_at)
        if event.to in (State.STANDBY, State.ACTIVE):
            self._lost_at = None

    def _on_beat(self, event: e.Beat) -> None:
        if self.tree is not TreePhase.ALIVE or self.state not in BEATING:
            return
        if self.makes_no_step(event.queued, event.steps):
            self._mind_use(event.used_s)
        else:
            self._progress_at = self._now
            self._used, self._said_busy = None, False
        self._beat_at, self._steps, self.queued = self._now, event.steps, event.queued
        if event.well is not self.well:
            self._note("well" if event.well else "unwell", alarm=not event.well, why=event.why)
        if event.unreachable != self.unreachable:
            self._note(
                "unreachable" if event.unreachable else "reachable",
                alarm=bool(event.unreachable),
                why=event.unreachable,
            )
        self.unreachable = event.unreachable
        self.well, self.unwell_why = event.well, event.why
        self._unwell_since = math.inf if event.well else min(self._unwell_since, self._now)

    def _mind_use(self, used_s: float | None) -> None:
        now, config = self._now, self.config
        if used_s is None or self._used is None:
            self._used = None if used_s is None else (used_s, now)
            return
        before_s, at = self._used
        if now >= at + config.stall_s / LOOKS_PER_STALL:
            self._used = (used_s, now)
            if used_s - before_s >= BUSY_SHARE * (now - at):
                self._busy_at = now
        if now >= self._progress_at + config.stall_s and self._busy_at > self._progress_at and not self._said_busy:
            self._said_busy = True
            self._note(
                "no_step",
                alarm=True,
                why=f"work is queued and no step finished for {config.stall_s:g} s, but it uses processors: it may be "
                f"compiling; it is ended after {config.busy_stall_s:g} s without a step (--busy-stall-s)",
            )

    def _on_phase(self, event: e.Phase) -> None:
        self.counters.phase(event.name, event.seconds)

    def _on_adopted(self, event: e.Adopted) -> None:
        self.counters.kept(event.adopted, event.dropped, event.why)

    def _move(self, to: State) -> None:
        self.counters.moved(self.state, to, self._wall)
        self._note("state", state=to.value, before=self.state.value, token=self.token)
        self.state, self.since, self.since_wall = to, self._now, self._wall

    # -- from outside ----------------------------------------------------------------------------------------------

    def _on_terminate(self, event: e.Terminate) -> None:
        again, self.terminating = self.terminating, True
        self.why = f"told to end ({event.signal})"
        if self.tree is TreePhase.NONE:
            self._exit()
        elif self.tree is TreePhase.ENDING:
            if again:
                self._exit()
            self._look_at = self._now
        elif self.state in SERVING and not again:
            self._terminate_by = self._now + self.config.drain_s + DRAIN_MARGIN_S
            self._out.append(e.Forward())
        else:
            self._end(self.why)

    def _on_lock_seen(self, event: e.LockSeen) -> None:
        if self.tree is TreePhase.NONE and event.serves and event.holder != self.incarnation and not self.back_off_s:
            self.restart_at = min(self.restart_at, self._now + FIRST_ANSWERS_S)
        self._mind_differences(self.counterparts.sees(event))
        if self.state is State.STANDBY:
            self._mind_lock(event)

    def _on_lock_away(self, event: e.LockAway) -> None:
        self.counterparts.lock_is_away()

    def _on_takes(self, event: e.Takes) -> None:
        self._mind_differences(self.counterparts.says(event.takes))

    def _on_others_take(self, event: e.OthersTake) -> None:
        self._mind_differences(self.counterparts.others_say(event.engines))

    def _mind_differences(self, news: tuple[str, ...]) -> None:
        if news:
            self._note("takes_other_requests", alarm=True, why="; ".join(news))

    def _mind_lock(self, seen: e.LockSeen) -> None:
        """While it waits: behind whom, and since when it waits for that one's end."""
        if seen.holder and seen.holder != self.incarnation:
            self._behind = True
        if not seen.fencing:
            self._fencing_at = None
        elif self._fencing_at is None:
            self._fencing_at = self._now

    def _note(self, event: str, *, alarm: bool = False, **detail: str | int | float | bool) -> None:
        self._out.append(e.Note(event, {"engine": self.config.engine_id, **detail}, alarm))


_HANDLERS: dict[type, Callable[[Lifecycle, Any], None]] = {
    e.Started: Lifecycle._on_started,
    e.Registered: Lifecycle._on_registered,
    e.Named: Lifecycle._on_named,
    e.Reported: Lifecycle._on_reported,
    e.Beat: Lifecycle._on_beat,
    e.Takes: Lifecycle._on_takes,
    e.OthersTake: Lifecycle._on_others_take,
    e.Phase: Lifecycle._on_phase,
    e.Adopted: Lifecycle._on_adopted,
    e.Failing: Lifecycle._on_failing,
    e.Died: Lifecycle._on_died,
    e.Ended: Lifecycle._on_ended,
    e.NotStarted: Lifecycle._on_not_started,
    e.Looked: Lifecycle._on_looked,
    e.Terminate: Lifecycle._on_terminate,
    e.LockSeen: Lifecycle._on_lock_seen,
    e.LockAway: Lifecycle._on_lock_away,
    e.Tick: lambda machine, event: None,  # time has passed; `_mind_time` finds what follows
}
