# ruff: noqa: E501 (quotes from the source)
"""The mutants of the way of an engine's main process: the order in `engine_shim/main_process.py`, and what it says of itself."""

from dataclasses import replace

from tests.mutants.rules import Mutant

RUN = "engine_shim/main_process.py"


def _rule(name: str, without: str, *edits: tuple[str, str]) -> Mutant:
    return Mutant(f"way-{name}", without, tuple((RUN, text, instead) for text, instead in edits))


_SERVING = "        lock.serving(at.url)\n"
_STANDBY = '        self._step("standby")\n'

_ALL = (
    _rule(
        "registers-first",
        "it registers with the lock before anything touches a device",
        ("        lock.start()\n", ""),
        (
            '            with self._timed("sleep"):\n',
            '            lock.start()\n            with self._timed("sleep"):\n',
        ),
    ),
    _rule(
        "names-its-tree",
        "its workers find their tree's name in their environment",
        ("        os.environ.update(lock.environment())\n", ""),
    ),
    _rule(
        "says-its-name",
        "the shim knows under which name the lock has this start",
        ("        self.shim.say(m.Named(incarnation=lock.name))\n", ""),
    ),
    _rule("permit", "it initialises with the permit", ("        with lock.permit():\n", "        if True:\n")),
    _rule(
        "waits-before-the-permit",
        "it waits for others before it asks for the permit",
        ("                engine.await_others()\n", "                pass\n"),
        (
            '            with self._timed("init"):\n',
            '            engine.await_others()\n            with self._timed("init"):\n',
        ),
    ),
    _rule(
        "waits-for-others",
        "a shadow waits for its weights",
        ("                engine.await_others()\n", "                pass\n"),
    ),
    _rule(
        "sleeps",
        "it sleeps before it waits for the lock",
        ("                engine.sleep()\n", "                pass\n"),
    ),
    _rule(
        "sleeps-before-standby",
        "who says Standby sleeps",
        ("                engine.start()\n", f"                engine.start()\n        {_STANDBY}"),
        ("                engine.sleep()\n" + _STANDBY, "                engine.sleep()\n"),
    ),
    _rule(
        "sleeps-with-the-permit",
        "it gives the device back before it gives the permit back",
        (
            '            with self._timed("sleep"):\n                engine.sleep()\n',
            '        with self._timed("sleep"):\n            engine.sleep()\n',
        ),
    ),
    _rule(
        "standby",
        "it says Standby when it sleeps, not when it has the lock",
        (_STANDBY, ""),
        ('        self._step("waking"', '        self._step("standby")\n        self._step("waking"'),
    ),
    _rule(
        "beats-in-standby",
        "it beats from Standby on",
        ('        threading.Thread(target=self._beat, name="beat", daemon=True).start()\n', ""),
    ),
    _rule("needs", "it says what must be free for its wake", ("lock.acquire(engine.needs())", "lock.acquire({})")),
    _rule(
        "wakes-with-the-lock",
        "it wakes only with the lock",
        ("        grant = lock.acquire(", "        engine.wake()\n        grant = lock.acquire("),
        ("            engine.wake()\n        at =", "            pass\n        at ="),
    ),
    _rule(
        "waking",
        "it says Waking before it wakes",
        (
            '        self._step("waking", token=grant.token)\n        with self._timed("wake"):\n            engine.wake()\n',
            '        with self._timed("wake"):\n            engine.wake()\n        self._step("waking", token=grant.token)\n',
        ),
    ),
    _rule("token", "it says with which token", ('self._step("waking", token=grant.token)', 'self._step("waking")')),
    _rule(
        "wake-is-fatal",
        "a wake that fails is the end",
        (
            '        with self._timed("wake"):\n            engine.wake()\n',
            '        with self._timed("wake"), __import__("contextlib").suppress(Exception):\n            engine.wake()\n',
        ),
    ),
    _rule(
        "serve-is-fatal",
        "an endpoint that can't be bound is the end",
        (
            '        with self._timed("serve"):\n',
            '        with self._timed("serve"), __import__("contextlib").suppress(Exception):\n',
        ),
    ),
    _rule(
        "sleep-is-fatal",
        "a sleep that fails is the end",
        (
            '            with self._timed("sleep"):\n',
            '            with self._timed("sleep"), __import__("contextlib").suppress(Exception):\n',
        ),
    ),
    _rule(
        "bound-after-the-wake",
        "the endpoint is bound only after the wake",
        (
            '        with self._timed("wake"):\n',
            '        at = listen or Listen(path=str(paths.endpoint(self.run_dir, self.engine_id, grant.token)))\n        engine.serve(at)\n        with self._timed("wake"):\n',
        ),
        ("            engine.serve(at)\n" + _SERVING, "            pass\n" + _SERVING),
    ),
    _rule(
        "announced-after-the-bind",
        "and announced only when it is bound",
        ('        with self._timed("serve"):\n', _SERVING + '        with self._timed("serve"):\n'),
        ("            engine.serve(at)\n" + _SERVING, "            engine.serve(at)\n"),
    ),
    _rule("announced", "it is announced", (_SERVING, "")),
    _rule(
        "announced-before-active",
        "Active means that it is announced",
        (
            _SERVING + '        self._step("active", token=grant.token, url=at.url)\n',
            '        self._step("active", token=grant.token, url=at.url)\n' + _SERVING,
        ),
    ),
    _rule(
        "named-by-the-token",
        "the socket's name has the token",
        (
            "paths.endpoint(self.run_dir, self.engine_id, grant.token)",
            "paths.endpoint(self.run_dir, self.engine_id, 0)",
        ),
    ),
    _rule("listen", "it serves where it is told to", ("        at = listen or Listen(", "        at = Listen(")),
    _rule("withdraws", "the endpoint is withdrawn on the way out", ('                self.lock.serving("")\n', "")),
    _rule(
        "withdraws-first",
        "before it says Draining",
        ('                self.lock.serving("")\n', ""),
        (
            "                order.done.set()\n",
            '                self.lock.serving("")\n                order.done.set()\n',
        ),
    ),
    _rule("withdraws-before-the-drain", "and before the drain begins", ("        order.done.wait()\n", "")),
    _rule(
        "draining",
        "it says Draining",
        ('                    self._step("draining", token=token)\n', "                    pass\n"),
    ),
    _rule("drains", "told to end, it drains", ("                    self.engine.drain(self.drain_s)\n", "")),
    _rule("drain-bound", "within its bound", ("self.engine.drain(self.drain_s)", "self.engine.drain(1e9)")),
    _rule(
        "switchover-bound",
        "within the switchover's bound",
        ("self.engine.drain(timeout_s)", "self.engine.drain(self.drain_s)"),
    ),
    _rule("stops", "the engine ends its other processes and its endpoint", ("        engine.stop()\n", "")),
    _rule(
        "resumes",
        "a switchover that is called off: the engine takes requests again",
        (
            "                self.engine.resume()\n                self.lock.serving(url)\n",
            "                self.lock.serving(url)\n",
        ),
    ),
    _rule("announced-again", "and is announced again", ("                self.lock.serving(url)\n", "")),
    _rule(
        "announced-again-when-it-serves",
        "when it does",
        (
            "                self.engine.resume()\n                self.lock.serving(url)\n",
            "                self.lock.serving(url)\n                self.engine.resume()\n",
        ),
    ),
    _rule(
        "active-again",
        "and Active",
        (
            '                self.lock.serving(url)\n                self._step("active", token=token, url=url)\n',
            "                self.lock.serving(url)\n",
        ),
    ),
    _rule(
        "nothing-to-resume",
        "who serves has nothing to resume",
        ('elif order.what == "resume" and self.state == "draining":', 'elif order.what == "resume":'),
    ),
    _rule(
        "late-drain",
        "a drain that begins after it was called off is taken back",
        ("                self.engine.resume()  # called off", "                pass  # called off"),
    ),
    _rule(
        "a-drain-stands",
        "one that stands stays",
        ('elif order.what == "drained" and self.state == "active":', 'elif order.what == "drained":'),
    ),
    _rule(
        "drained-though-it-failed",
        "also one that failed",
        (
            '        finally:\n            self.orders.put(Order("drained"))\n',
            '        except SystemExit:\n            pass\n        else:\n            self.orders.put(Order("drained"))\n',
        ),
    ),
    _rule(
        "a-failed-drain",
        "a drain that fails calls the switchover off",
        (
            '        finally:\n            self.orders.put(Order("drained"))\n',
            '        except Exception:\n            pass\n        finally:\n            self.orders.put(Order("drained"))\n',
        ),
    ),
    _rule(
        "sigterm",
        "told to end, an engine that serves drains",
        (
            "        signal.signal(signal.SIGTERM, self._on_sigterm)\n",
            "        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))\n",
        ),
    ),
    _rule(
        "sigterm-asleep",
        "any other ends at once",
        (
            '        if self.state in ("active", "draining"):\n            self.orders',
            "        if True:\n            self.orders",
        ),
    ),
    _rule(
        "sigterm-in-a-drain",
        "one that drains for a switchover drains",
        (
            '        if self.state in ("active", "draining"):\n            self.orders',
            '        if self.state == "active":\n            self.orders',
        ),
    ),
    _rule("lost", "who has lost the lock ends", ("        client.end_process(why)\n", "        pass\n")),
    _rule(
        "lost-says-so",
        "and says so",
        ('        self.shim.failing(f"lock lost', '        0 and self.shim.failing(f"lock lost'),
    ),
    _rule(
        "on-lost",
        "the lock's client knows whom to tell",
        ("            on_lost=self._on_lost,\n", "            on_lost=lambda why: None,\n"),
    ),
    _rule(
        "on-resume",
        "a switchover that is called off reaches the engine",
        ('on_resume=lambda why: self.orders.put(Order("resume"))', "on_resume=lambda why: None"),
    ),
    _rule("on-exit", "a switchover ends with the process", ("on_exit=lambda: os._exit(0)", "on_exit=lambda: None")),
    _rule(
        "check",
        "the engine is asked before a grant whether it could wake",
        ("            check=engine.well,\n", "            check=lambda: True,\n"),
    ),
    _rule(
        "beat-asleep",
        "asleep it says how it is",
        (
            '            if self.state == "standby":\n                beat',
            "            if False:\n                beat",
        ),
    ),
    _rule(
        "beat-tells-the-lock",
        "the lock hears that it isn't well",
        ("                    self.lock.ready(beat.well)\n", "                    pass\n"),
    ),
    _rule(
        "beat-tells-the-lock-of-a-change",
        "of a change",
        ("                if beat.well is not was_well:\n", "                if True:\n"),
    ),
    _rule(
        "beat-awake",
        "awake it says how it is",
        (
            '            elif self.state in ("active", "draining"):\n                self.shim',
            "            elif False:\n                self.shim",
        ),
    ),
    _rule(
        "beat-draining",
        "draining, too",
        (
            '            elif self.state in ("active", "draining"):\n                self.shim',
            '            elif self.state == "active":\n                self.shim',
        ),
    ),
    _rule(
        "beat-asleep-fails",
        "a check that fails is an engine that isn't well",
        (
            "            well = self.engine.well(fresh=False)\n        except Exception as error:",
            "            well = self.engine.well(fresh=False)\n        except ZeroDivisionError as error:",
        ),
    ),
    _rule(
        "beat-awake-fails",
        "awake, too",
        (
            "            health = self.engine.health()\n        except Exception as error:",
            "            health = self.engine.health()\n        except ZeroDivisionError as error:",
        ),
    ),
    _rule(
        "beat-says-why",
        "what the engine says is wrong",
        ("        well = not health.detail\n", "        well = True\n"),
    ),
    _rule(
        "beat-queued",
        "how much is queued and done",
        ("queued=health.queued, steps=health.steps", "queued=0, steps=health.queued"),
    ),
    _rule(
        "armed-first",
        "it is armed before it counts",
        (
            "        membership.arm_main()\n        shim = membership.enter_main()\n",
            "        shim = membership.enter_main()\n        membership.arm_main()\n",
        ),
    ),
    _rule(
        "counts-before-the-engine",
        "it counts before there is an engine",
        ("        shim = membership.enter_main()\n", ""),
        ("        main = Main(engine", "        shim = membership.enter_main()\n        main = Main(engine"),
        ("shim.phase)\n        engine", "lambda *_: None)\n        engine"),
    ),
    _rule(
        "fails-aloud",
        "why it ends is said to the shim",
        (
            '        why = f"failed in {state}: {_said(error)}"\n        if shim is not None:\n            shim.failing(why)\n',
            '        why = f"failed in {state}: {_said(error)}"\n',
        ),
    ),
    _rule(
        "trace-elsewhere",
        "what went wrong in another process is no trace of this one",
        ("CannotServe | WorkerFailed | KeyboardInterrupt", "CannotServe | KeyboardInterrupt"),
    ),
    _rule(
        "failure-ends",
        "whatever fails ends it with an exit code that says so",
        ("        _tell(why)\n        os._exit(1)\n", "        _tell(why)\n        os._exit(0)\n"),
    ),
    _rule(
        "cannot-run",
        "64 is what another start can't help",
        ("os._exit(EX_USAGE if isinstance(error, CannotRun) else 1)", "os._exit(1)"),
    ),
    _rule(
        "cannot-run-is-said",
        "and it is said so",
        ("hopeless=isinstance(error, CannotRun)", "hopeless=False"),
    ),
    _rule(
        "presence-is-tried-again",
        "no shim is nothing of the kind",
        ("os._exit(EX_USAGE if isinstance(error, CannotRun) else 1)", "os._exit(EX_USAGE)"),
    ),
    _rule(
        "arguments",
        "arguments that the engine's parser refuses are",
        ("        os._exit(EX_USAGE)  # the engine's", "        os._exit(1)  # the engine's"),
    ),
)

WAY = tuple(replace(mutant, tests=("tests/engine/test_main_process_rules.py",), in_process=True) for mutant in _ALL)
