"""The mutants of the engine: rules that guard the claim (one engine awake, and nothing left of the last one), and those
that keep a pair from being called what it isn't. Each names the tests that must fail without it.
"""

from tests.mutants.rules import Mutant

LIFECYCLE = "engine_shim/lifecycle.py"
COUNTERPARTS = "engine_shim/counterparts.py"
PROBES = "engine_shim/probes.py"
MAIN = "engine_shim/main_process.py"
SHIM = "engine_shim/shim.py"
_LIFE = ("tests/engine/test_lifecycle.py", "tests/engine/test_lifecycle_rules.py", "tests/engine/test_probes.py")
_TREE = ("tests/engine/test_tree_rules.py", "tests/sidecar/test_process_tree.py")
_WAY = ("tests/engine/test_main_process_rules.py",)

ENGINE = (
    Mutant(
        "engine-says-that-it-may-have-io-uring",
        "a shim that can't keep its engine from io_uring says so",
        (("engine_shim/__main__.py", "        if not io_uring.why_impossible():\n", "        if False:\n"),),
        tests=(
            "tests/engine/test_orphans.py::test_an_engine_that_cant_be_kept_from_io_uring_runs_all_the_same_and_its_shim_says_so",
        ),
    ),
    Mutant(
        "engine-next-waits-for-processes",
        "1: the next start waits until none of the last tree's processes is left",
        ((LIFECYCLE, "        if event.left or (event.held", "        if (event.held"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-next-waits-for-life-lock",
        "1: and until nobody holds a life lock of this engine",
        ((LIFECYCLE, "        if event.left or (event.held and not self._ends_for_good):", "        if event.left:"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-first-start-waits",
        "1: the first start, too: an earlier shim may have left a tree",
        (
            (
                LIFECYCLE,
                "        self.counters.entered_at[State.INIT] = self._wall\n        self._await_end()\n",
                "        self.counters.entered_at[State.INIT] = self._wall\n        self._start()\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-kills-again",
        "1: what is still there is killed again, each time: it may have forked",
        (
            (
                LIFECYCLE,
                "            self._out += [e.KillTree(), e.Look()]\n",
                "            self._out += [e.KillTree(), e.Look()] if now == self._ending_since else [e.Look()]\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-a-part-ends-all-ends",
        "2: any registered process's end is the end of all: here only the main one's",
        ((LIFECYCLE, "event.process in self.processes:\n", "event.process == self.main:\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-killed-at-once",
        "2: the rest is killed at once",
        (
            (
                LIFECYCLE,
                "        if self.tree is TreePhase.ENDING and now >= self._look_at:\n",
                "        if self.tree is TreePhase.ENDING and now > self._look_at:\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-late-registration",
        "3: who registers for a start that is over is turned away",
        (
            (
                LIFECYCLE,
                "        if self.tree is not TreePhase.ALIVE or event.start != self.number:\n",
                "        if self.tree is not TreePhase.ALIVE:\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-late-join-of-an-ending-tree",
        "3: and who registers with a tree that is ending",
        (
            (
                LIFECYCLE,
                "        if self.tree is not TreePhase.ALIVE or event.start != self.number:\n",
                "        if event.start != self.number:\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-one-main",
        "3: there is one main process",
        ((LIFECYCLE, "        if event.main and self.main is not None:\n", "        if False:\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-no-way-round-waking",
        "4: nobody serves who has not woken",
        (
            (
                LIFECYCLE,
                "    (State.STANDBY, State.WAKING),\n",
                "    (State.STANDBY, State.WAKING),\n    (State.STANDBY, State.ACTIVE),\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-init-bound",
        "5: Init has its bound",
        ((LIFECYCLE, "self.since + self.config.init_timeout_s if self.number else math.inf", "math.inf"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-no-step",
        "5: work queued and no step is a stall, though it beats",
        ((LIFECYCLE, "return min(self._beat_at + config.stall_s, no_step)", "return self._beat_at + config.stall_s"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-no-step-busy",
        "5: what uses processors is ended later only",
        ((LIFECYCLE, "                self._busy_at = now\n", "                pass\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-busy-for-ever",
        "5: what uses processors without a step is ended, too",
        ((LIFECYCLE, "+ config.stall_s, self._step_by)", "+ config.stall_s, math.inf)"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-unwell-is-ended",
        "5: an engine that says that it isn't well is ended",
        (
            (
                LIFECYCLE,
                "min(self.bound, self._unwell_since + UNWELL_S, self._terminate_by)",
                "min(self.bound, self._terminate_by)",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-drains",
        "7: told to end, an engine that serves drains",
        ((LIFECYCLE, "            self._out.append(e.Forward())\n", "            self._end(self.why)\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-waits-for-its-own",
        "7: told to end, it waits for its own processes",
        (
            (
                LIFECYCLE,
                "        if event.left or (event.held and not",
                "        if (event.left or event.held) and (not",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-exit-64",
        "8: an engine that was called wrongly isn't started again",
        ((LIFECYCLE, "self._exit_code, self.why = EX_USAGE, self._failing or why", "pass"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "probe-ready-in-waking",
        "/ready in Waking: 503",
        (
            (
                PROBES,
                "    if state not in (State.STANDBY, State.ACTIVE):\n",
                "    if state not in (State.STANDBY, State.ACTIVE, State.WAKING):\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "probe-ready-not-well",
        "/ready: 503 when it isn't well",
        ((PROBES, "    if not machine.well:\n", "    if False:\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "shim-adopts",
        "orphans of an engine become the shim's",
        ((SHIM, "        process_setup.adopt_orphans()\n", ""),),
        tests=(
            "tests/engine/test_shim_rules.py::test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next",
        ),
    ),
    Mutant(
        "shim-descendants",
        "whatever an engine has started is killed, in whatever session",
        ((SHIM, "            process_tree.kill(process_tree.descendants(os.getpid()), 0)\n", "            pass\n"),),
        tests=(
            "tests/engine/test_shim_rules.py::test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next",
        ),
    ),
    Mutant(
        "shim-no-child-left",
        "the next start waits until no child is left",
        (
            (SHIM, "        left = int(self._collect())\n", "        self._collect()\n        left = 0\n"),
            (SHIM, "            process_tree.kill(process_tree.descendants(os.getpid()), 0)\n", "            pass\n"),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next",
        ),
    ),
    Mutant(
        "shim-pidfds",
        "a registered process is killed by its pidfd, whoever started it",
        ((SHIM, "            self.processes.kill(known)\n", "            pass\n"),),
        tests=(
            "tests/engine/test_shim_rules.py::test_a_registered_process_that_nobody_here_has_started_ends_with_the_tree",
        ),
    ),
    Mutant(
        "shim-on-death",
        "the end of a registered process is seen",
        ((SHIM, "        self.processes.on_death(number, lambda: self._on_death(number))\n", ""),),
        tests=(
            "tests/engine/test_shim_rules.py::test_the_end_of_any_registered_process_is_seen_and_is_the_end_of_all",
        ),
    ),
    Mutant(
        "shim-which-start",
        "a process of another start is turned away",
        (
            (
                SHIM,
                "        self.feed(e.Registered(conn, number, hello.start, hello.main))\n",
                "        self.feed(e.Registered(conn, number, self.machine.number, hello.main))\n",
            ),
        ),
        tests=("tests/engine/test_shim_rules.py::test_one_hello_of_this_protocol_for_this_start_and_one_main_process",),
    ),
    Mutant(
        "presence-main-armed",
        "the main process dies with its shim",
        (
            (
                "engine_shim/membership.py",
                "def arm_main() -> None:\n",
                "def arm_main() -> None:\n    process_setup.forbid_core_dumps()\n    return\n",
            ),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_a_shim_that_is_killed_takes_its_engine_with_it_and_leaves_no_core",
        ),
    ),
    Mutant(
        "presence-armed",
        "a worker dies with its parent",
        (
            (
                "engine_shim/membership.py",
                "    process_setup.die_with_parent(parent if parent not in (shim_pid, 1) else -1)\n",
                "",
            ),
        ),
        tests=(
            "tests/engine/test_shim_rules.py::test_a_worker_is_armed_is_known_to_the_shim_and_counts_with_the_lock_before_it_goes_on",
        ),
    ),
    Mutant(
        "presence-orphan",
        "one whose parent was gone before ends itself",
        (
            (
                "engine_shim/membership.py",
                "die_with_parent(parent if parent not in (shim_pid, 1) else -1)",
                "die_with_parent(parent)",
            ),
        ),
        tests=("tests/engine/test_shim_rules.py::test_a_process_whose_parent_ended_before_it_was_armed_ends_itself",),
    ),
    Mutant(
        "kv-not-before-the-grant",
        "no KV cache before the wake",
        (
            (
                "reference_engine/rank.py",
                "        self._part = Part(",
                "        self._cache.allocate()\n        self._part = Part(",
            ),
        ),
        tests=("tests/reference_engine/test_device.py::test_two_engines_share_one_copy_and_answer_alike",),
    ),
    Mutant(
        "weights-role",
        "a shadow never writes",
        (
            (
                "reference_engine/store.py",
                "self.client.write_or_read(timeout_s) if writes else self.client.read(timeout_s)",
                "self.client.write_or_read(timeout_s)",
            ),
        ),
        tests=("tests/reference_engine/test_device.py::test_a_shadow_waits_for_a_writer_and_never_writes",),
    ),
    Mutant(
        "weights-read-only-alone",
        "weights are read-only, alone, too",
        (("reference_engine/store.py", "            array.flags.writeable = False\n", "            pass\n"),),
        tests=("tests/engine/test_device_rules.py::test_weights_are_read_only",),
    ),
    Mutant(
        "way-registers-first",
        "it registers with the lock before anything touches a device",
        (
            (MAIN, "        lock.start()\n", ""),
            (
                MAIN,
                '            with self._timed("sleep"):\n',
                '            lock.start()\n            with self._timed("sleep"):\n',
            ),
        ),
        tests=_WAY,
        in_process=True,
    ),
    Mutant(
        "way-wakes-with-the-lock",
        "it wakes only with the lock",
        (
            (MAIN, "        grant = lock.acquire(", "        engine.wake()\n        grant = lock.acquire("),
            (MAIN, "            engine.wake()\n        at =", "            pass\n        at ="),
        ),
        tests=_WAY,
        in_process=True,
    ),
    Mutant(
        "way-permit",
        "it initialises with the permit",
        ((MAIN, "        with lock.permit():\n", "        if True:\n"),),
        tests=_WAY,
        in_process=True,
    ),
    Mutant(
        "way-withdraws",
        "the endpoint is withdrawn on the way out",
        ((MAIN, '                self.lock.serving("")\n', ""),),
        tests=_WAY,
        in_process=True,
    ),
    Mutant(
        "way-lost",
        "who has lost the lock ends",
        ((MAIN, "        client.end_process(why)\n", "        pass\n"),),
        tests=_WAY,
        in_process=True,
    ),
    Mutant(
        "tree-kill-each",
        "and each that was found",
        (("sidecar/process_tree.py", "            os.kill(pid, signal.SIGKILL)\n", "            pass\n"),),
        tests=_TREE,
        in_process=True,
    ),
    Mutant(
        "left-ours",
        "only what a process of our tree has is ours",
        (("engine_shim/shm_cleanup.py", "for inode in _files_of(pid, device, set(wanted))}", "for inode in wanted}"),),
        tests=_TREE,
        in_process=True,
    ),
    Mutant(
        "left-inode",
        "another file of the same name stays",
        (
            (
                "engine_shim/shm_cleanup.py",
                "os.lstat(self._directory / name).st_ino == inode",
                "os.lstat(self._directory / name).st_ino > 0",
            ),
        ),
        tests=_TREE,
        in_process=True,
    ),
    Mutant(
        "engine-alike-thrice",
        "8: an Init that fails again and again with the same words is not tried again",
        (("engine_shim/init_failures.py", "        return self._times >= MOST_ALIKE\n", "        return False\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-passing",
        "8: unless waiting may mend it",
        (("engine_shim/init_failures.py", "        if not said or passing:\n", "        if not said:\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-killed-says-nothing",
        "8: and a process that was killed doesn't count",
        (("engine_shim/init_failures.py", "        if not said or passing:\n", "        if passing:\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-takes-the-same",
        "9: a standby that takes other requests is no redundancy",
        ((COUNTERPARTS, "self.lock.redundant and not self.differences", "self.lock.redundant"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "engine-says-what-differs",
        "9: and that is an alarm",
        (
            (
                LIFECYCLE,
                '            self._note("takes_other_requests", alarm=True, why="; ".join(news))\n',
                "            pass\n",
            ),
        ),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "probe-ready-unreachable",
        "/ready: 503 while nobody can connect",
        ((PROBES, "    if machine.unreachable:\n", "    if False:\n"),),
        tests=_LIFE,
        in_process=True,
    ),
    Mutant(
        "way-binds-again",
        "a socket that was removed is bound again",
        (
            (
                MAIN,
                '            elif order.what == "bind" and self.state == "active":\n',
                '            elif order.what == "bound" and self.state == "active":\n',
            ),
        ),
        tests=("tests/engine/test_attacks.py::test_a_socket_that_is_removed_under_an_engine_is_bound_again[toy]",),
    ),
    Mutant(
        "shim-makes-again",
        "the shim's own files are made again",
        (
            (
                "engine_shim/own_files.py",
                "        if socket_is_there and self._lock.holds():\n            return made\n",
                "        return made\n",
            ),
        ),
        tests=("tests/engine/test_shim_rules.py::test_a_socket_that_was_removed_is_made_again_before_the_next_start",),
    ),
)
