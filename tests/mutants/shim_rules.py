# ruff: noqa: E501 (quotes from the source)
"""The mutants of the shim's shell, of presence, of `failover up`'s nursery, and of what the reference engine does to its
device. Each names the quickest tests that must fail: real processes where only they can show it.
"""

from dataclasses import replace

from tests.mutants.rules import Mutant

SHIM = "engine_shim/shim.py"
PRESENCE = "engine_shim/membership.py"
RANK = "reference_engine/rank.py"
KV = "reference_engine/kv.py"
STORE = "reference_engine/store.py"
CREW = "reference_engine/crew.py"
WORKER = "reference_engine/worker.py"
ENGINE = "reference_engine/engine.py"
OURS = "tests/engine/test_shim_rules.py::"
DEVICE = "tests/reference_engine/test_device.py::"


def _rule(path: str, name: str, without: str, test: str, *edits: tuple[str, str]) -> Mutant:
    at = OURS if path in (SHIM, PRESENCE) else DEVICE
    return Mutant(name, without, tuple((path, text, instead) for text, instead in edits), tests=(at + test,))


_WHOLE = "test_whatever_an_engine_has_started_ends_with_it_and_only_then_comes_the_next"
_WHO = "test_the_engine_knows_who_it_is_and_signals_go_to_it"
_HELLO = "test_one_hello_of_this_protocol_for_this_start_and_one_main_process"
_ONLY_MAIN = "test_only_the_main_process_says_steps"
_FAILS = "test_any_process_of_the_tree_may_say_that_no_start_can_help_and_the_shim_ends"
_LEFT = "test_what_a_killed_engine_leaves_is_gone_before_the_next"
_ANY = "test_the_end_of_any_registered_process_is_seen_and_is_the_end_of_all"
_KILLED = "test_a_shim_that_is_killed_takes_its_engine_with_it_and_leaves_no_core"
_WORKER = "test_a_worker_is_armed_is_known_to_the_shim_and_counts_with_the_lock_before_it_goes_on"
_WELCOME = "test_a_worker_registers_armed_and_joins_the_lock_only_when_it_is_welcome"

_SHIM = (
    _rule(
        SHIM,
        "shim-adopts",
        "orphans of an engine become the shim's",
        _WHOLE,
        ("        process_setup.adopt_orphans()\n", ""),
    ),
    _rule(
        SHIM,
        "shim-descendants",
        "whatever an engine has started is killed, in whatever session",
        _WHOLE,
        ("            process_tree.kill(process_tree.descendants(os.getpid()), 0)\n", "            pass\n"),
    ),
    _rule(
        SHIM,
        "shim-no-child-left",
        "the next start waits until no child is left",
        _WHOLE,
        ("        left = int(self._collect())\n", "        self._collect()\n        left = 0\n"),
        ("            process_tree.kill(process_tree.descendants(os.getpid()), 0)\n", "            pass\n"),
    ),
    _rule(
        SHIM,
        "shim-pidfds",
        "a registered process is killed by its pidfd, whoever started it",
        "test_a_registered_process_that_nobody_here_has_started_ends_with_the_tree",
        ("            self.processes.kill(known)\n", "            pass\n"),
    ),
    _rule(
        SHIM,
        "shim-on-death",
        "the end of a registered process is seen",
        _ANY,
        ("        self.processes.on_death(number, lambda: self._on_death(number))\n", ""),
    ),
    _rule(
        SHIM,
        "shim-sigchld",
        "the main process's exit code is its own",
        "test_the_exit_code_of_an_engine_that_was_called_wrongly_is_its_shims",
        ("            self.feed(e.Ended(code))\n", "            self.feed(e.Ended(1))\n"),
    ),
    _rule(
        SHIM,
        "shim-exit-code",
        "the shim ends with what its machine says",
        "test_the_exit_code_of_an_engine_that_was_called_wrongly_is_its_shims",
        ("        self.code = effect.code\n", "        self.code = 1\n"),
    ),
    _rule(
        SHIM,
        "shim-engine-id",
        "an engine knows who it is",
        _WHO,
        ('            "ENGINE_ID": options.config.engine_id,\n', ""),
    ),
    _rule(SHIM, "shim-role", "and its role", _WHO, ('            "ENGINE_ROLE": options.config.role,\n', "")),
    _rule(
        SHIM,
        "shim-passes-signals-on",
        "SIGUSR1 and SIGUSR2 go to the main process",
        _WHO,
        ("            self._tell_main(number)\n", "            pass\n"),
    ),
    _rule(
        SHIM,
        "shim-forwards",
        "SIGTERM reaches an engine that serves",
        _WHO,
        ("        self._tell_main(signal.SIGTERM)\n", "        pass\n"),
    ),
    _rule(
        SHIM,
        "shim-told",
        "and ends the shim",
        _WHO,
        ("                self.feed(e.Terminate(number.name))\n", "                pass\n"),
    ),
    _rule(
        SHIM,
        "shim-only-main-speaks",
        "steps are the main process's",
        _ONLY_MAIN,
        (
            "        elif self._members.get(conn, (0, False))[1] or (isinstance(message, m.Failing) and conn",
            "        elif (conn",
        ),
    ),
    _rule(
        SHIM,
        "shim-anybody-fails",
        "but why it fails anybody of the tree may say",
        _FAILS,
        ("(isinstance(message, m.Failing) and conn in self._members)", "False"),
    ),
    _rule(
        SHIM,
        "shim-no-stranger-fails",
        "and nobody else",
        _ONLY_MAIN,
        ("(isinstance(message, m.Failing) and conn in self._members)", "isinstance(message, m.Failing)"),
    ),
    _rule(
        SHIM,
        "shim-strangers",
        "and no stranger's",
        _ONLY_MAIN,
        (
            "        elif self._members.get(conn, (0, False))[1] or",
            "        elif self._members.get(conn, (0, True))[1] or",
        ),
    ),
    _rule(
        SHIM,
        "shim-protocol",
        "another protocol is refused",
        _HELLO,
        ("        if hello.protocol != m.PROTOCOL or conn", "        if conn"),
    ),
    _rule(
        SHIM,
        "shim-one-hello",
        "one connection is one process",
        _HELLO,
        (
            "        if hello.protocol != m.PROTOCOL or conn in self._members:\n",
            "        if hello.protocol != m.PROTOCOL:\n",
        ),
    ),
    _rule(
        SHIM,
        "shim-which-start",
        "a process of another start is turned away",
        _HELLO,
        (
            "        self.feed(e.Registered(conn, number, hello.start, hello.main))\n",
            "        self.feed(e.Registered(conn, number, self.machine.number, hello.main))\n",
        ),
    ),
    _rule(
        SHIM,
        "shim-which-is-main",
        "there is one main process",
        _HELLO,
        (
            "        self.feed(e.Registered(conn, number, hello.start, hello.main))\n",
            "        self.feed(e.Registered(conn, number, hello.start, False))\n",
        ),
    ),
    _rule(
        SHIM,
        "shim-turned-away",
        "who is turned away hears why and is let go",
        _HELLO,
        ("        self.connections.complain(effect.conn, effect.why)\n", "        pass\n"),
    ),
    _rule(
        SHIM,
        "shim-doorway",
        "a start in which nobody could register is none",
        "test_a_start_in_which_nobody_could_register_is_none",
        ("        if self._doorway.replaced():\n", "        if False:\n"),
    ),
    _rule(
        SHIM,
        "shim-life-lock",
        "nothing is started while somebody holds a life lock of this engine",
        "test_while_somebody_holds_a_life_lock_of_this_engine_nothing_is_started",
        ("not left and paths.life_held(options.run_dir, options.config.engine_id)", "False"),
    ),
    _rule(
        SHIM,
        "shim-endpoints",
        "sockets of earlier grants go",
        _LEFT,
        ("        paths.remove_endpoints(self.options.run_dir, self.options.config.engine_id)\n", ""),
    ),
    _rule(
        SHIM,
        "shim-leftovers",
        "and what it left in /dev/shm",
        _LEFT,
        ("        removed = self._leftovers.remove()\n", "        removed: list[str] = []\n"),
    ),
    _rule(
        PRESENCE,
        "presence-main-armed",
        "the main process dies with its shim",
        _KILLED,
        ("def arm_main() -> None:\n", "def arm_main() -> None:\n    process_setup.forbid_core_dumps()\n    return\n"),
    ),
    _rule(PRESENCE, "presence-no-core", "and leaves no core", _KILLED, ("    process_setup.forbid_core_dumps()\n", "")),
    _rule(
        PRESENCE,
        "presence-armed",
        "a worker dies with its parent",
        _WORKER,
        ("    process_setup.die_with_parent(parent if parent not in (shim_pid, 1) else -1)\n", ""),
    ),
    _rule(
        PRESENCE,
        "presence-armed-first",
        "it is armed before it registers",
        _WELCOME,
        ("    process_setup.die_with_parent(parent if parent not in (shim_pid, 1) else -1)\n", ""),
        (
            "    return Presence(shim, client.join())\n",
            "    process_setup.die_with_parent(parent)\n    return Presence(shim, client.join())\n",
        ),
    ),
    _rule(
        PRESENCE,
        "presence-orphan",
        "one whose parent was gone before ends itself",
        "test_a_process_whose_parent_ended_before_it_was_armed_ends_itself",
        ("die_with_parent(parent if parent not in (shim_pid, 1) else -1)", "die_with_parent(parent)"),
    ),
    _rule(
        PRESENCE,
        "presence-registers",
        "it is known to the shim",
        _WORKER,
        (
            "    shim = _register(main=False)\n    return Presence(shim, client.join())\n",
            "    return Presence(None, client.join())  # type: ignore\n",
        ),
    ),
    _rule(
        PRESENCE,
        "presence-joins",
        "it counts with the lock, and has its life lock",
        _WORKER,
        ("    return Presence(shim, client.join())\n", "    return Presence(shim, None)  # type: ignore\n"),
    ),
    _rule(
        PRESENCE,
        "presence-welcome",
        "it waits until it is welcome",
        _WELCOME,
        ("    return Shim(channel, _welcome(channel).beat_s)\n", "    return Shim(channel, 1.0)\n"),
    ),
    _rule(
        PRESENCE,
        "presence-turned-away",
        "who is turned away does not go on",
        "test_who_is_turned_away_does_not_go_on",
        (
            '                raise NotAMember(f"the engine-shim turned',
            '                return m.Welcome(beat_s=1.0)\n                raise NotAMember(f"the engine-shim turned',
        ),
    ),
    _rule(
        PRESENCE,
        "presence-environment",
        "without a shim nobody enters",
        "test_without_a_shim_nobody_enters",
        (
            "    value = os.environ.get(variable)\n    if not value:\n",
            "    value = os.environ.get(variable, '1')\n    if False:\n",
        ),
    ),
    _rule(
        PRESENCE,
        "presence-its-start",
        "a process says to which start it belongs",
        _WELCOME,
        ("start=int(_given(START_VARIABLE))", "start=0"),
    ),
)

_SHARE = "test_two_engines_share_one_copy_and_answer_alike"
_SLEPT = "test_a_slept_engine_holds_no_memory_but_the_weights_that_all_share"
_FIT = "test_two_awake_engines_do_not_fit"
_SHADOW = "test_a_shadow_waits_for_a_writer_and_never_writes"
_SHARES = "test_workers_have_their_share_of_the_cache_and_the_answer_is_the_same"
_ASLEEP = "test_a_worker_that_is_killed_asleep_is_noticed_and_a_wake_fails"
_SILENT = "test_a_worker_that_does_not_answer_means_that_the_engine_cannot_wake"

_DEVICE = (
    _rule(
        RANK,
        "kv-not-before-the-grant",
        "no KV cache before the wake",
        _SHARE,
        ("        self._part = Part(", "        self._cache.allocate()\n        self._part = Part("),
    ),
    _rule(
        RANK,
        "kv-given-back",
        "a sleep gives the cache back",
        _SLEPT,
        ("    def sleep(self) -> None:\n        self._cache.free()\n", "    def sleep(self) -> None:\n"),
    ),
    _rule(
        KV,
        "kv-released",
        "to the device, not only its addresses",
        _SLEPT,
        (
            "        if handle is not None:\n            self._memory.release(handle)\n",
            "",
        ),
    ),
    _rule(
        RANK,
        "kv-of-the-device",
        "the cache is the device's memory: out of memory is real",
        _FIT,
        (
            "            pages = self._device_pages = DevicePages(memory, size)\n",
            "            self._device_pages, pages = DevicePages(memory, size), OwnPages(size)\n",
        ),
    ),
    _rule(
        RANK,
        "kv-needs",
        "what must be free for a wake is said",
        _SHARE,
        (
            "        return 0 if self._device_pages is None else self._device_pages.needs\n",
            "        return 0\n",
        ),
    ),
    _rule(
        RANK,
        "kv-out-of-memory",
        "where there is none the wake fails",
        _FIT,
        (
            "        self._cache.allocate()\n        return",
            "        try:\n            self._cache.allocate()\n        except Exception:\n            pass\n        return",
        ),
    ),
    _rule(
        CREW,
        "kv-of-all-ranks",
        "the needs of all processes add up",
        _SHARES,
        ("needs.get(device, 0) + needed", "needed"),
    ),
    _rule(
        CREW,
        "workers-sleep",
        "workers sleep, too",
        _SHARES,
        ('        self._together(Ask("sleep"), self.main.sleep)\n', "        self.main.sleep()\n"),
        (
            '        mine, theirs = self._together(Ask("start"), own)\n',
            '        mine, theirs = self._together(Ask("start"), own)\n        self._together(Ask("wake"), self.main.wake)\n',
        ),
    ),
    _rule(
        STORE,
        "weights-role",
        "a shadow never writes",
        _SHADOW,
        (
            "self._client.write_or_read(timeout_s) if writes else self._client.read(timeout_s)",
            "self._client.write_or_read(timeout_s)",
        ),
    ),
    _rule(
        ENGINE,
        "weights-awaited",
        "a shadow waits for a writer before it starts",
        _SHADOW,
        ("        if self._home is None or self._home.writes:\n", "        if True:\n"),
    ),
    _rule(
        STORE,
        "weights-of-this-model",
        "weights of another model are refused",
        "test_weights_of_another_model_are_refused",
        ("    if said != _described(shape):\n", "    if False:\n"),
    ),
    _rule(
        STORE,
        "weights-shared",
        "asleep nobody has them mapped, and a wake maps them again",
        "test_asleep_the_weights_are_not_mapped",
        ("        self._reader.sleep()\n", "        pass\n"),
    ),
    _rule(
        STORE,
        "weights-replaced",
        "who can't have its weights back isn't well",
        "test_an_engine_whose_weights_were_replaced_says_that_it_cannot_wake",
        ("        return self._latest == self._reader.hash\n", "        return True\n"),
    ),
    _rule(
        STORE,
        "weights-changes-are-heard",
        "because it hears of it",
        "test_an_engine_whose_weights_were_replaced_says_that_it_cannot_wake",
        ("        self._latest = hash\n", "        pass\n"),
    ),
    _rule(
        STORE,
        "weights-read-only-alone",
        "weights are read-only, alone, too",
        "test_weights_are_read_only",
        ("            array.flags.writeable = False\n", "            pass\n"),
    ),
    _rule(
        "gms/mapped.py",
        "weights-read-only",
        "weights from GMS are mapped read-only",
        "test_weights_are_read_only",
        ("self._addresses.map(held, writable=False)", "self._addresses.map(held, writable=True)"),
    ),
    _rule(
        CREW,
        "workers-are-missed",
        "a worker that is gone means that it isn't well",
        _ASLEEP,
        ("not self._main.well or self.missing():\n", "not self._main.well:\n"),
        ("            return all(answer.well for answer in answers)\n", "            return True\n"),
        (
            "        except WorkerFailed:\n            return False\n",
            "        except WorkerFailed:\n            return True\n",
        ),
    ),
    _rule(
        CREW,
        "workers-are-named",
        "and is named",
        _ASLEEP,
        ('        return f"worker {', '        return "" and f"worker {'),
    ),
    _rule(
        CREW,
        "workers-answer",
        "one that doesn't answer, too",
        _SILENT,
        (
            "        except WorkerFailed:\n            return False\n",
            "        except WorkerFailed:\n            return True\n",
        ),
    ),
    _rule(
        CREW,
        "workers-wake-or-fail",
        "a wake without it fails",
        _ASLEEP,
        (
            '        mine, theirs = self._together(Ask("wake"), self.main.wake)\n',
            "        mine, theirs = self.main.wake(), []\n",
        ),
    ),
    _rule(
        WORKER,
        "workers-die",
        "a worker dies with its main process",
        "test_a_worker_dies_with_its_main_process",
        ("    process_setup.die_with_parent(_PARENT)\n", ""),
        (
            "    except (OSError, EOFError):\n        return  # the",
            "    except (OSError, EOFError):\n        __import__('time').sleep(100)  # the",
        ),
    ),
    _rule(
        ENGINE,
        "endpoint-mode",
        "the endpoint is its user's alone",
        "test_the_endpoint_is_there_only_once_it_serves",
        ("self._door.open()", "self._door.open(0o666)"),
    ),
    _rule(
        ENGINE,
        "endpoint-goes",
        "and goes with it",
        "test_the_endpoint_is_there_only_once_it_serves",
        ("            self._door.close()\n", "            pass\n"),
    ),
)

NURSERY = "sidecar/supervisor.py"


def _kept(name: str, without: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(
        f"nursery-{name}",
        without,
        tuple((NURSERY, text, instead) for text, instead in edits),
        tests=("tests/sidecar/test_supervisor.py",),
        in_process=True,
    )


_NURSERY = (
    _kept(
        "pauses",
        "a child of failover up is started again after longer and longer pauses",
        ("PAUSES_S[min(child.failures, len(PAUSES_S)) - 1]", "0.0"),
    ),
    _kept(
        "steady",
        "having run for a while makes a failure the first again",
        ("1 if now >= child.started_at + STEADY_S else child.failures + 1", "child.failures + 1"),
    ),
    _kept(
        "hopeless",
        "one that fails at its first start ends the whole",
        ("        if code == 64 or (soon and code > 0):\n", "        if code == 64:\n"),
    ),
    _kept(
        "called-wrongly",
        "one that was called wrongly, too",
        ("        if code == 64 or (soon and code > 0):\n", "        if soon and code > 0:\n"),
    ),
    _kept(
        "killed-at-first", "one that was killed at its first start is started again", ("(soon and code > 0)", "soon")
    ),
    _kept("only-the-first-start", "a later failure ends nothing", ("child.starts == 1 and now", "now")),
    _kept(
        "soon",
        "nor does one that ran for a while",
        ("soon = child.starts == 1 and now < child.started_at + FIRST_WORDS_S", "soon = child.starts == 1"),
    ),
    _kept("stopping", "told to end, nobody is started again", ("        if self._stopping:\n            return\n", "")),
    _kept(
        "stopping-for-good",
        "nor who waited for his pause",
        ("        for child in self.children:\n            child.start_at = _NEVER\n", ""),
    ),
    _kept(
        "tell",
        "only who lives is told",
        (
            "            if child.pid:\n                os.kill(child.pid, number)\n",
            "            os.kill(child.pid or 1, number)\n",
        ),
    ),
    _kept(
        "armed",
        "children die with failover up",
        ('"-m", "sidecar.child_program", str(os.getpid()), *child.command)', '"-m", *child.command)'),
    ),
    _kept(
        "names",
        "each line has its speaker in front",
        ("            self._say(child.name, line", '            self._say("", line'),
    ),
)

_MOVED = {
    "weights-shared": "tests/engine/test_device_rules.py::test_asleep_the_weights_are_not_mapped",
    "weights-read-only": "tests/engine/test_device_rules.py::test_weights_are_read_only",
    "weights-read-only-alone": "tests/engine/test_device_rules.py::test_weights_are_read_only",
}

SHELLS_OF_THE_ENGINE = tuple(
    replace(mutant, tests=(_MOVED[mutant.name],)) if mutant.name in _MOVED else mutant
    for mutant in (*_SHIM, *_DEVICE, *_NURSERY)
)
