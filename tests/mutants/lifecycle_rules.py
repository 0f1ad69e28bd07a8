# ruff: noqa: E501 (quotes from the source)
"""The mutants of the shim's pure part: the rules of `engine_shim/lifecycle.py`, by its numbers, and the probes' table.

Each names the directed tests that must fail. The shells' rules: `engine_shells.py`.
"""

from dataclasses import replace

from tests.mutants.rules import Mutant

LIFECYCLE = "engine_shim/lifecycle.py"
PROBES = "engine_shim/probes.py"


def _rule(name: str, without: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(f"engine-{name}", without, tuple((LIFECYCLE, text, instead) for text, instead in edits))


_ONE_TREE = (
    _rule(
        "next-waits-for-processes",
        "1: the next start waits until none of the last tree's processes is left",
        ("        if event.left or (event.held", "        if (event.held"),
    ),
    _rule(
        "next-waits-for-life-lock",
        "1: and until nobody holds a life lock of this engine",
        ("        if event.left or (event.held and not self._ends_for_good):", "        if event.left:"),
    ),
    _rule(
        "first-start-waits",
        "1: the first start, too: an earlier shim may have left a tree",
        (
            "        self.counters.entered_at[State.INIT] = self._wall\n        self._await_end()\n",
            "        self.counters.entered_at[State.INIT] = self._wall\n        self._start()\n",
        ),
    ),
    _rule(
        "kills-again",
        "1: what is still there is killed again, each time: it may have forked",
        (
            "            self._out += [e.KillTree(), e.Look()]\n",
            "            self._out += [e.KillTree(), e.Look()] if now == self._ending_since else [e.Look()]\n",
        ),
    ),
    _rule(
        "looks-often",
        "1: looks are never far apart",
        ("min(self._look_wait_s * 2, LOOK_MOST_S)", "self._look_wait_s * 2"),
    ),
    _rule(
        "looks-soon",
        "1: each end is looked after at once, not where the last one's looks had got to",
        ("        self._look_at, self._look_wait_s = self._now, LOOK_FIRST_S\n", "        self._look_at = self._now\n"),
    ),
    _rule(
        "stuck-is-said",
        "1: what can't be killed is said after a while",
        ('        self._note("not_gone"', '        0 and self._note("not_gone"'),
    ),
    _rule(
        "stuck-is-said-once",
        "1: once for each end",
        ("        self._said_stuck = True\n", "        pass\n"),
    ),
    _rule(
        "stuck-is-said-each-end",
        "1: and again for the next",
        (
            "        self._ending_since, self._said_stuck = self._now, False\n",
            "        self._ending_since = self._now\n",
        ),
    ),
    _rule(
        "cleans-up",
        "1: what the tree left is removed when it is proven gone",
        ("        self._out.append(e.CleanUp())\n", "        pass\n"),
    ),
    _rule(
        "cleans-up-after-the-proof",
        "1: and not before",
        (
            "        if self.tree is not TreePhase.ENDING:\n            return\n        if event.left",
            "        if self.tree is not TreePhase.ENDING:\n            return\n        self._out.append(e.CleanUp())\n"
            "        if event.left",
        ),
    ),
    _rule(
        "forgets-pidfds",
        "1: pidfds of a tree that is gone are closed",
        ("            self._out.append(e.Forget(sorted(self.processes)))\n", "            pass\n"),
    ),
    _rule(
        "a-look-that-nobody-awaits",
        "1: a look that comes late proves nothing of a living tree",
        ("        if self.tree is not TreePhase.ENDING:\n            return\n", ""),
    ),
)

_AS_A_WHOLE = (
    _rule(
        "a-part-ends-all-ends",
        "2: any registered process's end is the end of all: here only the main one's",
        ("event.process in self.processes:\n", "event.process == self.main:\n"),
    ),
    _rule(
        "strangers-end",
        "2: and nobody else's",
        (
            "        if self.tree is TreePhase.ALIVE and event.process in self.processes:\n",
            "        if self.tree is TreePhase.ALIVE:\n",
        ),
    ),
    _rule(
        "main-exit-0",
        "2: the main process never just ends, whatever its exit code",
        (
            "    def _on_ended(self, event: e.Ended) -> None:\n",
            "    def _on_ended(self, event: e.Ended) -> None:\n        if not event.code:\n            return\n",
        ),
    ),
    _rule(
        "killed-at-once",
        "2: the rest is killed at once",
        (
            "        if self.tree is TreePhase.ENDING and now >= self._look_at:\n",
            "        if self.tree is TreePhase.ENDING and now > self._look_at:\n",
        ),
    ),
    _rule(
        "ended-once",
        "2: a tree that is ending ends only once",
        (
            "    def _on_died(self, event: e.Died) -> None:\n        if self.tree is TreePhase.ALIVE and",
            "    def _on_died(self, event: e.Died) -> None:\n        if",
        ),
    ),
    _rule(
        "last-words",
        "2: what the main process said of its failure is the reason, not how it ended",
        ("        why = self._failing or why\n", ""),
    ),
    _rule(
        "last-words-of-the-last",
        "2: and not what an earlier one said",
        ("        self._steps = -1\n        self._failing, self", "        self._steps = -1\n        _, self"),
    ),
    _rule(
        "dead-serves-nowhere",
        "2: who is dead serves nowhere",
        ('        self.why, self.url = why, ""\n', "        self.why = why\n"),
    ),
)

_LATE = (
    _rule(
        "late-registration",
        "3: who registers for a start that is over is turned away",
        (
            "        if self.tree is not TreePhase.ALIVE or event.start != self.number:\n",
            "        if self.tree is not TreePhase.ALIVE:\n",
        ),
    ),
    _rule(
        "late-join-of-an-ending-tree",
        "3: and who registers with a tree that is ending",
        (
            "        if self.tree is not TreePhase.ALIVE or event.start != self.number:\n",
            "        if event.start != self.number:\n",
        ),
    ),
    _rule(
        "one-main",
        "3: there is one main process",
        ("        if event.main and self.main is not None:\n", "        if False:\n"),
    ),
    _rule(
        "turned-away-forgotten",
        "3: of who is turned away nothing is kept",
        (
            'is over"))\n            self._out.append(e.Forget([event.process]))\n',
            'is over"))\n',
        ),
    ),
    _rule(
        "admits",
        "3: who belongs to this start is admitted",
        ("        self._out.append(e.Admit(event.conn))\n", "        pass\n"),
    ),
    _rule(
        "a-start-is-anew",
        "3: a new start has none of the last one's processes",
        (
            "            self.processes, self.main = set(), None\n        self._out.append(e.CleanUp())",
            "            pass\n        self._out.append(e.CleanUp())",
        ),
        ("        self.processes, self.main = set(), None\n        self.well", "        self.well"),
    ),
)

_STEPS = (
    _rule(
        "steps-in-order",
        "4: steps come in the order of the table",
        ("        if (self.state, event.to) not in STEPS:\n", "        if False:\n"),
    ),
    _rule(
        "no-way-round-standby",
        "4: nobody wakes who has not slept",
        ("    (State.INIT, State.STANDBY),\n", "    (State.INIT, State.STANDBY),\n    (State.INIT, State.WAKING),\n"),
    ),
    _rule(
        "no-way-round-waking",
        "4: nobody serves who has not woken",
        (
            "    (State.STANDBY, State.WAKING),\n",
            "    (State.STANDBY, State.WAKING),\n    (State.STANDBY, State.ACTIVE),\n",
        ),
    ),
    _rule(
        "no-way-back-to-standby",
        "4: nobody who holds the lock goes back to sleep",
        (
            "    (State.DRAINING, State.ACTIVE),\n",
            "    (State.DRAINING, State.ACTIVE),\n    (State.ACTIVE, State.STANDBY),\n",
        ),
    ),
    _rule(
        "a-switchover-called-off",
        "4: a drain that is called off goes back to Active",
        ("    (State.DRAINING, State.ACTIVE),\n", ""),
    ),
    _rule(
        "a-dying-trees-words",
        "4: what a dying tree still says counts for nothing",
        (
            "    def _on_reported(self, event: e.Reported) -> None:\n        if self.tree is not TreePhase.ALIVE:\n            return\n",
            "    def _on_reported(self, event: e.Reported) -> None:\n",
        ),
    ),
    _rule(
        "url-in-active-alone",
        "4: a URL is said in Active alone",
        ('event.url if event.to is State.ACTIVE else ""', "event.url"),
    ),
)

_BOUNDS = (
    _rule(
        "init-bound",
        "5: Init has its bound",
        ("self.since + self.config.init_timeout_s if self.number else math.inf", "math.inf"),
    ),
    _rule(
        "init-bound-runs-with-the-start",
        "5: which runs from its start, not from the shim's",
        (
            "        if self.state is State.INIT:\n            self.since, self.since_wall = self._now, self._wall\n        else:\n",
            "        if self.state is not State.INIT:\n",
        ),
    ),
    _rule(
        "waking-bound",
        "5: Waking has its bound",
        ("            return self.since + self.config.waking_timeout_s\n", "            return math.inf\n"),
    ),
    _rule(
        "waking-needs-no-beats",
        "5: and needs no beats",
        ("BEATING = (State.STANDBY,", "BEATING = (State.STANDBY, State.WAKING,"),
        (
            "        if self.state is State.WAKING:\n            return self.since",
            "        if self.state is State.WAKING and self._now + self.config.stall_s > self.since + self.config.waking_timeout_s:\n            return self.since",
        ),
    ),
    _rule(
        "standby-beats",
        "5: a silent Standby is ended",
        ("BEATING = (State.STANDBY, State.ACTIVE", "BEATING = (State.ACTIVE"),
    ),
    _rule(
        "active-beats",
        "5: a silent Active is ended",
        ("BEATING = (State.STANDBY, State.ACTIVE, ", "BEATING = (State.STANDBY, "),
    ),
    _rule(
        "draining-beats",
        "5: a silent Draining is ended",
        ("State.ACTIVE, State.DRAINING)\nSERVING", "State.ACTIVE)\nSERVING"),
    ),
    _rule(
        "silence",
        "5: silence is a stall: here only missing progress",
        ("min(self._beat_at, self._progress_at) + self", "self._progress_at + self"),
        (
            "        self._beat_at, self._steps, self.queued =",
            "        self._progress_at = max(self._progress_at, self._now) if not event.queued else self._progress_at\n        self._beat_at, self._steps, self.queued =",
        ),
        ("        if self._beat_at <= self._progress_at:\n", "        if False:\n"),
    ),
    _rule(
        "no-step",
        "5: work queued and no step is a stall, though it beats",
        ("min(self._beat_at, self._progress_at) + self", "self._beat_at + self"),
    ),
    _rule(
        "no-work-is-no-stall",
        "5: no work queued is none",
        ("        if not event.queued or event.steps != self._steps:\n", "        if event.steps != self._steps:\n"),
    ),
    _rule(
        "a-long-queue-is-no-stall",
        "5: a long queue is none while steps finish",
        ("        if not event.queued or event.steps != self._steps:\n", "        if not event.queued:\n"),
    ),
    _rule(
        "a-step-is-a-beat",
        "5: each step of the table begins the bound anew",
        (
            "        self._beat_at = self._progress_at = self._now\n",
            "        self._beat_at = self._progress_at = max(self._beat_at, self.since)\n",
        ),
    ),
    _rule(
        "beats-in-their-states",
        "5: a beat in Init or Waking, which have bounds of their own, counts for nothing",
        (
            "        if self.tree is not TreePhase.ALIVE or self.state not in BEATING:\n            return\n",
            "        if self.tree is not TreePhase.ALIVE:\n            return\n",
        ),
    ),
    _rule(
        "unwell-is-ended",
        "5: an engine that says that it isn't well is ended",
        ("min(self.bound, self._unwell_since + UNWELL_S, self._terminate_by)", "min(self.bound, self._terminate_by)"),
    ),
    _rule(
        "unwell-for-a-while",
        "5: after a while, not at once",
        ("UNWELL_S = 5.0", "UNWELL_S = 0.0"),
    ),
    _rule(
        "unwell-from-the-first",
        "5: from the first time that it says so",
        ("min(self._unwell_since, self._now)", "self._now"),
    ),
    _rule(
        "well-again",
        "5: one that gets well is not ended",
        (
            "math.inf if event.well else min(self._unwell_since, self._now)",
            "self._unwell_since if event.well else min(self._unwell_since, self._now)",
        ),
    ),
    _rule(
        "well-at-a-start",
        "5: a new start is well until it says otherwise",
        ("        self._unwell_since = math.inf\n        self._steps", "        self._steps"),
        ('        self.well, self.unwell_why, self.queued = True, "", 0\n', ""),
    ),
    _rule(
        "unwell-says-why",
        "5: and the end says why it wasn't well",
        ('s: {self.unwell_why}"\n', 's"\n'),
    ),
)

_AGAIN = (
    _rule(
        "first-failure-at-once",
        "6: at once after the first failure",
        (
            "        if self.failures <= 1:\n            return 0.0\n",
            "        if self.failures < 1:\n            return 0.0\n",
        ),
    ),
    _rule(
        "back-off",
        "6: after longer and longer pauses",
        ("        self.failures = 1 if steady else self.failures + 1\n", "        self.failures = 1\n"),
    ),
    _rule(
        "back-off-doubles",
        "6: that double",
        ("BACK_OFF_FIRST_S * 2.0 **", "BACK_OFF_FIRST_S * 1.0 **"),
    ),
    _rule(
        "back-off-ends",
        "6: up to a minute",
        ("        return min(doubled, BACK_OFF_MOST_S)\n", "        return doubled\n"),
    ),
    _rule(
        "served-is-steady",
        "6: having served makes the next failure the first again",
        ("steady = self.state in SERVING or (", "steady = ("),
        ("            self.failures = 0\n", "            pass\n"),
    ),
    _rule(
        "standby-is-steady",
        "6: and having been ready for a while",
        ("(self.state is State.STANDBY and self._now >= self.since + STEADY_S)", "False"),
    ),
    _rule(
        "standby-for-a-moment-is-not-steady",
        "6: but not for a moment",
        ("and self._now >= self.since + STEADY_S)", "and True)"),
    ),
    _rule(
        "a-wake-is-not-steady",
        "6: a wake that fails each time is backed off from",
        ("SERVING = (State.ACTIVE,", "SERVING = (State.WAKING, State.ACTIVE,"),
    ),
    _rule(
        "leaves-the-processors",
        "6: one that held the lock leaves its successor the processors",
        ("HANDOFF_S if self.token else 0.0", "0.0"),
    ),
    _rule(
        "only-one-that-held-the-lock",
        "6: and one that didn't starts at once",
        ("HANDOFF_S if self.token else 0.0", "HANDOFF_S"),
    ),
    _rule(
        "token-of-this-start",
        "6: an earlier start's token is not this one's",
        ('        self.name, self.token, self.url = "", 0, ""\n', '        self.name, self.url = "", ""\n'),
    ),
    _rule(
        "until-the-successor-serves",
        "6: until that serves",
        ("event.serves and event.holder != self.name", "False and event.holder != self.name"),
    ),
    _rule(
        "serves-not-only-holds",
        "6: not only holds the lock",
        ("        if self.tree is TreePhase.NONE and event.serves and", "        if self.tree is TreePhase.NONE and"),
    ),
    _rule(
        "its-own-endpoint-is-no-successors",
        "6: its own last endpoint is no successor's",
        (" and event.serves and event.holder != self.name and not", " and event.serves and not"),
    ),
    _rule(
        "no-way-round-the-pause",
        "6: a pause after failures isn't cut short",
        (" and event.holder != self.name and not self.back_off_s:", " and event.holder != self.name:"),
    ),
    _rule(
        "first-answers",
        "6: the successor's first answers have the processors",
        ("self._now + FIRST_ANSWERS_S)", "self._now)"),
    ),
    _rule(
        "exit-mode",
        "6: with `exit` the shim ends instead",
        ("self.terminating or in_exit_mode or self._exit_code", "self.terminating or self._exit_code"),
    ),
    _rule(
        "exit-mode-starts-once",
        "6: having started it once",
        ("self.config.restart is Restart.EXIT and self.number > 0", "self.config.restart is Restart.EXIT"),
    ),
    _rule(
        "exit-mode-exit-code",
        "6: with an exit code that says so",
        ("(0 if self.terminating else 1)", "0"),
    ),
    _rule(
        "not-started",
        "6: an engine that can't be started at all is tried again later",
        ("            self._end(event.why)\n", "            pass\n"),
    ),
)

_TOLD = (
    _rule(
        "drains",
        "7: told to end, an engine that serves drains",
        ("            self._out.append(e.Forward())\n", "            self._end(self.why)\n"),
    ),
    _rule(
        "draining-serves",
        "7: one that drains already, for a switchover, too",
        (
            "        elif self.state in SERVING and not again:\n",
            "        elif self.state is State.ACTIVE and not again:\n",
        ),
    ),
    _rule(
        "nothing-to-lose",
        "7: any other is killed",
        ("        elif self.state in SERVING and not again:\n", "        elif not again:\n"),
    ),
    _rule(
        "drain-bound",
        "7: within its bound",
        ("            self._terminate_by = self._now + self.config.drain_s + DRAIN_MARGIN_S\n", "            pass\n"),
    ),
    _rule(
        "drain-margin",
        "7: which the main process keeps itself, unless it doesn't",
        ("self.config.drain_s + DRAIN_MARGIN_S\n", "self.config.drain_s - DRAIN_MARGIN_S\n"),
    ),
    _rule(
        "told-again",
        "7: told again, it is killed",
        ("self.state in SERVING and not again:", "self.state in SERVING:"),
    ),
    _rule(
        "told-again-while-it-ends",
        "7: and doesn't wait for what can't be killed either",
        ("            if again:\n                self._exit()\n", ""),
    ),
    _rule(
        "waits-for-its-own",
        "7: told to end, it waits for its own processes",
        ("        if event.left or (event.held and not", "        if (event.left or event.held) and (not"),
    ),
    _rule(
        "waits-for-nobody-else",
        "7: and for nobody else",
        ("(event.held and not self._ends_for_good)", "event.held"),
    ),
    _rule(
        "between-two-starts",
        "7: told to end between two starts, it ends",
        (
            "        if self.tree is TreePhase.NONE:\n            self._exit()\n",
            "        if self.tree is TreePhase.NONE:\n            pass\n",
        ),
    ),
    _rule(
        "not-started-again",
        "7: told to end, it is not started again",
        ("        return self.terminating or in_exit_mode", "        return in_exit_mode"),
    ),
    _rule(
        "told-while-it-ends",
        "7: told while a tree is ending, it looks at once",
        ("            self._look_at = self._now\n        elif", "            pass\n        elif"),
    ),
    _rule(
        "clean-exit",
        "7: told to end, the exit code is 0",
        ("(0 if self.terminating else 1)", "1"),
    ),
    _rule(
        "exits-once",
        "7: and nothing follows",
        ("        if not self.exiting:\n", "        if True:\n"),
    ),
)

_CALLED_WRONGLY = (
    _rule(
        "exit-64",
        "8: an engine that was called wrongly isn't started again",
        ("self._exit_code, self.why = EX_USAGE, self._failing or why", "pass"),
    ),
    _rule(
        "hopeless",
        "8: nor one of which a process says that no start can help",
        ("if self._hopeless and self.state is State.INIT:", "if False:"),
    ),
    _rule(
        "hopeless-in-init",
        "8: which means nothing later on",
        ("if self._hopeless and self.state is State.INIT:", "if self._hopeless:"),
    ),
    _rule(
        "hopeless-once",
        "8: nor for the next start",
        (
            '        self._steps = -1\n        self._failing, self._hopeless = "", False\n',
            '        self._steps = -1\n        self._failing = ""\n',
        ),
    ),
    _rule(
        "first-words",
        "8: who says it first knows the cause",
        ("        self._failing = self._failing or event.why\n", "        self._failing = event.why\n"),
    ),
    _rule(
        "exit-64-in-init",
        "8: 64 means nothing later on",
        ("event.code == EX_USAGE and self._ended_in is State.INIT and", "event.code == EX_USAGE and"),
    ),
    _rule(
        "exit-64-after-a-worker",
        "8: it counts also where a worker was seen to end first",
        (
            "        elif self.terminating:\n            return\n        if event.code",
            "        else:\n            return\n        if event.code",
        ),
    ),
    _rule(
        "exit-64-of-the-last-start",
        "8: an exit code that comes when the tree was told to end changes nothing",
        ("        elif self.terminating:\n            return\n", ""),
    ),
    _rule(
        "exit-64-is-passed-on",
        "8: and the shim ends with it",
        ("self._exit_code or (", "("),
    ),
)

_FIGURES = (
    _rule(
        "failover-is-behind-another",
        "a failover is a wake after having waited behind another",
        ("            self.counters.failovers += self._behind\n", "            self.counters.failovers += 1\n"),
    ),
    _rule(
        "failovers-count",
        "failovers are counted",
        ("                self._mind_lock(self._lock)\n", "                pass\n"),
    ),
    _rule(
        "behind-at-a-start",
        "who waited before an earlier start doesn't count for this one",
        ("        self._behind, self._fencing_at = False, None\n", "        self._fencing_at = None\n"),
    ),
    _rule(
        "a-resumed-drain-is-no-failover",
        "a switchover that is called off is no failover",
        (
            "        elif event.to is State.ACTIVE and self.state is State.WAKING:\n",
            "        elif event.to is State.ACTIVE:\n",
        ),
    ),
    _rule(
        "fence-wait-is-measured",
        "the wait for the fence is measured",
        ('                self.counters.phase("fence_wait", self._now - self._fencing_at)\n', "                pass\n"),
    ),
    _rule(
        "fence-wait-from-its-begin",
        "from its begin",
        ("        elif self._fencing_at is None:\n", "        else:\n"),
    ),
    _rule(
        "restore-is-measured",
        "the time to restore redundancy runs from the death to the next Standby",
        ("                self.counters.restored.add(self._now - self._lost_at)\n", "                pass\n"),
    ),
    _rule(
        "restore-from-the-first-death",
        "from the first death, where the next start fails, too",
        ("        if self._lost_at is None and self.state is not State.INIT:\n", "        if True:\n"),
    ),
    _rule(
        "expected-ends-alarm-nobody",
        "an end that was wanted alarms nobody, any other does",
        ("alarm=not expected,", "alarm=False,"),
    ),
    _rule(
        "a-wanted-end-is-no-alarm",
        "an end that was wanted alarms nobody",
        ("alarm=not expected,", "alarm=True,"),
    ),
    _rule(
        "redundancy",
        "whether the pair is redundant is what the lock shows",
        ("        self.redundant = event.redundant\n", ""),
    ),
)


def _probe(name: str, without: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(f"probe-{name}", without, tuple((PROBES, text, instead) for text, instead in edits))


_PROBES = (
    _probe(
        "init-in-place",
        "/live in Init, in place: 200",
        ('        return Answer(False, "Init")\n', '        return Answer(in_place, "Init")\n'),
        ("    if state is State.INIT and not in_place:\n", "    if state is State.INIT and in_place:\n"),
    ),
    _probe(
        "init-exit",
        "/live in Init, exit: 503",
        ("    if state is State.INIT and not in_place:\n", "    if False:\n"),
    ),
    _probe("dead-in-place", "/live in Dead, in place: 200", ('Answer(in_place, f"Dead', 'Answer(False, f"Dead')),
    _probe("dead-exit", "/live in Dead, exit: 503", ('Answer(in_place, f"Dead', 'Answer(True, f"Dead')),
    _probe("bounds", "/live: 503 from the bound of a state on", ("    if now >= machine.bound:\n", "    if False:\n")),
    _probe(
        "at-its-bound",
        "at the bound and not after it",
        ("    if now >= machine.bound:\n", "    if now > machine.bound:\n"),
    ),
    _probe(
        "active-not-well",
        "/live in Active: 503 when it isn't well",
        (
            "    if state in (State.ACTIVE, State.DRAINING) and not machine.well:\n",
            "    if state is State.DRAINING and not machine.well:\n",
        ),
    ),
    _probe(
        "draining-not-well",
        "/live in Draining: the same",
        (
            "    if state in (State.ACTIVE, State.DRAINING) and not machine.well:\n",
            "    if state is State.ACTIVE and not machine.well:\n",
        ),
    ),
    _probe(
        "standby-not-well-lives",
        "/live in Standby: 200 though it isn't well: the shim sees to that",
        ("    if state in (State.ACTIVE, State.DRAINING) and not machine.well:\n", "    if not machine.well:\n"),
    ),
    _probe(
        "startup-in-place",
        "/startup in place: always 200",
        ("    if machine.config.restart is Restart.IN_PLACE:\n        return Answer(True, machine.state.value)\n", ""),
    ),
    _probe("startup-exit", "/startup, exit: 503 in Init", ("Answer(machine.left_init, ", "Answer(True, ")),
    _probe(
        "startup-exit-remembers",
        "/startup, exit: 200 once Init was left, after its death, too",
        ("Answer(machine.left_init, ", "Answer(machine.state not in (State.INIT, State.DEAD), "),
    ),
    _probe(
        "ready-in-standby",
        "/ready in Standby: 200",
        ("    if state not in (State.STANDBY, State.ACTIVE):\n", "    if state is not State.ACTIVE:\n"),
    ),
    _probe(
        "ready-in-active",
        "/ready in Active: 200",
        ("    if state not in (State.STANDBY, State.ACTIVE):\n", "    if state is not State.STANDBY:\n"),
    ),
    _probe(
        "ready-in-waking",
        "/ready in Waking: 503",
        (
            "    if state not in (State.STANDBY, State.ACTIVE):\n",
            "    if state not in (State.STANDBY, State.ACTIVE, State.WAKING):\n",
        ),
    ),
    _probe(
        "ready-in-draining",
        "/ready in Draining: 503",
        (
            "    if state not in (State.STANDBY, State.ACTIVE):\n",
            "    if state not in (State.STANDBY, State.ACTIVE, State.DRAINING):\n",
        ),
    ),
    _probe(
        "ready-in-init",
        "/ready in Init: 503",
        (
            "    if state not in (State.STANDBY, State.ACTIVE):\n",
            "    if state not in (State.STANDBY, State.ACTIVE, State.INIT):\n",
        ),
    ),
    _probe(
        "ready-in-dead",
        "/ready in Dead: 503",
        (
            "    if state not in (State.STANDBY, State.ACTIVE):\n",
            "    if state not in (State.STANDBY, State.ACTIVE, State.DEAD):\n",
        ),
    ),
    _probe("ready-not-well", "/ready: 503 when it isn't well", ("    if not machine.well:\n", "    if False:\n")),
    _probe(
        "ready-beats",
        "/ready in Standby: 503 when it is silent, long before it is ended",
        ("    if state is State.STANDBY and not machine.beats(now):\n", "    if False:\n"),
    ),
    _probe(
        "ready-one-late-beat",
        "one late beat is no silence",
        (
            "    if state is State.STANDBY and not machine.beats(now):\n",
            "    if state is State.STANDBY and now >= machine._beat_at + machine.config.beat_s:\n",
        ),
    ),
    _probe(
        "ready-in-bounds",
        "/ready in Active: as /live",
        ("    return live(machine, now)\n", "    return Answer(True, state.value)\n"),
    ),
)

_DIRECTED = ("tests/engine/test_lifecycle.py", "tests/engine/test_lifecycle_rules.py", "tests/engine/test_probes.py")

LIFE = tuple(
    replace(mutant, tests=_DIRECTED, in_process=True)
    for mutant in (
        *_ONE_TREE,
        *_AS_A_WHOLE,
        *_LATE,
        *_STEPS,
        *_BOUNDS,
        *_AGAIN,
        *_TOLD,
        *_CALLED_WRONGLY,
        *_FIGURES,
        *_PROBES,
    )
)
