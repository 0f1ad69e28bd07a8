"""Tries made mutants: one pytest collects the directed tests and the simulator, and a fork of it tries each mutant.

First a fork runs all tests once, and writes down which of them run which lines. A mutant is then tried by those that
run its line, the quickest first, and those that connect to something last: what a mutant leaves undone is waited for
there. It is put into the functions that are loaded already, so that nothing is imported
anew. Only tests of one process are run: one that begins to start another is left out.

    MUTANTS_TASK=FILE python -m tests.mutants.runner      FILE has what is to be tried, and where its results go
"""

import contextlib
import gc
import json
import os
import resource
import select
import signal
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import CodeType, FrameType, FunctionType
from typing import Any

import pytest

from sidecar.kernel.process_setup import signal_when_parent_dies
from tests.mutants.made import Made, all_made
from tests.sim.__main__ import WORLDS
from tests.test_imports import ROOT, rules

TESTS = {
    "lockserver": ("lockserver",),
    "evidence": ("evidence", "lockserver"),
    "gms": ("gms",),
    "engine_shim": ("engine", "kv"),
    "fleet": ("fleet",),
    "gateway": ("gateway", "fleet"),
    "pool": ("pool",),
    "sidecar": ("sidecar", "lockserver", "gms"),
    "dual_pods": ("dual_pods",),
    "vram": ("vram",),
}
"""Whose tests try the mutants of a package."""
NOT_THESE = "not slow and not chaos and not root and not torch and not vllm"
FILES = rules()
WORLD_OF = {"lockserver": "lock", "evidence": "lock", "gms": "gms", "sidecar": "lock", "vram": "vram", "pool": "pool"}
SEEDS = 20
"""Schedules of a world that show which lines it runs; a mutant gets more of them."""
CALLS = 300
MUTANT_SEEDS = 150
TESTS_S = 12.0
"""What the tests of one mutant may take together, as far as their own durations say."""
LOOKED_AT_S = 4.0
"""Of processor. What takes longer is left to the whole of the tests."""
COMPUTES_S = 40
"""Of its own processor time: one that goes round in a circle counts as noticed, and a busy machine notices nothing."""
WAITS_S = 600.0
MEMORY = 3 << 30
STARTS_A_PROCESS = {"subprocess.Popen", "os.fork", "os.posix_spawn", "os.exec", "os.forkpty", "pty.spawn"}
CONNECTS = {"socket.bind", "socket.connect"}

Try = Callable[[], str]
"""Runs a test; what it has noticed, or nothing."""


def packages(task: dict[str, Any]) -> list[str]:
    return sorted({name.partition("/")[0] for name in task["names"]})


class Trial:
    """The plugin: takes over once the tests are collected."""

    def __init__(self, task: dict[str, Any]) -> None:
        self.task = task
        self.failed = ""

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.failed and not self.failed:
            self.failed = report.nodeid

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        tries = self._tries(session)
        began = time.monotonic()
        known, took, left_out = self._looked_at(tries)
        print(
            f"{len(took)} tests run rules, {sum(took.values()):.0f} s of processor; "
            f"seen in {time.monotonic() - began:.0f} s"
        )
        print(f"{len(left_out)} fail where no process may be started, and are left out: {left_out}")
        chosen = set(self.task["names"])
        mutants = [mutant for mutant in all_made() if mutant.name in chosen]
        with open(self.task["to"], "w", encoding="utf-8") as to:
            for mutant, found in self._all_tried(mutants, tries, known, took):
                to.write(json.dumps([mutant.name, found]) + "\n")
                to.flush()
        return True

    def _tries(self, session: pytest.Session) -> dict[str, Try]:
        def item(of: pytest.Item) -> Try:
            def run() -> str:
                self.failed = ""
                of.config.hook.pytest_runtest_protocol(item=of, nextitem=None)
                return self.failed

            return run

        worlds = {WORLD_OF[package] for package in packages(self.task) if package in WORLD_OF}
        return {of.nodeid: item(of) for of in session.items} | {
            f"simulator of {world}": partial(simulated, world, SEEDS) for world in sorted(worlds)
        }

    # -- which test runs which line ------------------------------------------------------------------------------------

    def _looked_at(self, tries: dict[str, Try]) -> tuple[dict[str, dict[int, list[str]]], dict[str, float], list[str]]:
        """File -> line -> the tests that run it; how long each takes; and which of them fail."""
        workers = len(os.sched_getaffinity(0))
        names = list(tries)
        parts = in_forks([partial(self._look, names[at::workers], tries) for at in range(workers)])
        known: dict[str, dict[int, list[str]]] = defaultdict(lambda: defaultdict(list))
        took: dict[str, float] = {}
        connecting = set[str]()
        left_out: list[str] = []
        for part in parts:
            for name, seconds, lines, failed, connects in part:
                if failed:
                    left_out.append(failed)
                    continue
                took[name] = seconds
                if connects:
                    connecting.add(name)
                for path, numbers in lines.items():
                    for number in numbers:
                        known[path][number].append(name)
        for of_file in known.values():
            for tests in of_file.values():
                tests.sort(key=lambda name: (name in connecting, took[name]))
        return known, took, left_out

    def _look(
        self, names: list[str], tries: dict[str, Try]
    ) -> list[tuple[str, float, dict[str, list[int]], str, bool]]:
        refuse_processes()
        connections = list[str]()
        sys.addaudithook(lambda event, _: connections.append(event) if event in CONNECTS else None)
        signal.signal(signal.SIGPROF, _too_slow)
        found = []
        for name in names:
            seen: dict[str, set[int]] = {}
            began = time.process_time()
            connections.clear()
            with watching(seen):
                signal.setitimer(signal.ITIMER_PROF, 0 if name.startswith("simulator") else LOOKED_AT_S)
                failed = tries[name]()
                signal.setitimer(signal.ITIMER_PROF, 0)
            lines = {path: sorted(numbers) for path, numbers in seen.items() if numbers}
            if lines:
                found.append((name, time.process_time() - began, lines, failed, bool(connections)))
        return found

    # -- one mutant after the other ------------------------------------------------------------------------------------

    def _all_tried(
        self,
        mutants: list[Made],
        tries: dict[str, Try],
        known: dict[str, dict[int, list[str]]],
        took: dict[str, float],
    ) -> Iterator[tuple[Made, str]]:
        """As many at a time as there are processors. A mutant that no test runs, and one that is in no memory, live."""
        functions = loaded()
        gc.freeze()
        waiting, running = list(reversed(mutants)), dict[int, tuple[Made, int, float]]()
        while waiting or running:
            while waiting and len(running) < len(os.sched_getaffinity(0)):
                mutant = waiting.pop()
                tests = chosen(known[mutant.path].get(mutant.noticed_by, []), took)
                if not tests or (mutant.path, mutant.function) not in functions:
                    yield mutant, ""
                    continue
                code = mutant.code(FILES[mutant.path])
                of = functions[mutant.path, mutant.function]
                pid, end = forked(lambda: noticed(of, code, tests, tries))  # noqa: B023 (run at once, in the fork)
                running[end] = mutant, pid, time.monotonic() + WAITS_S
            ready, _, _ = select.select(list(running), [], [], 0.5)
            now = time.monotonic()
            for end, (mutant, pid, until) in list(running.items()):
                if end in ready or now > until:
                    found = said(end) if end in ready else "it waits for ever"
                    ended(pid, end)
                    del running[end]
                    yield mutant, found


def chosen(tests: list[str], took: dict[str, float]) -> list[str]:
    """The quickest, as many as have the time; and at least one, and the simulator."""
    some, together = list[str](), 0.0
    for test in tests:
        together += took[test]
        if together <= TESTS_S or not some or test.startswith("simulator"):
            some.append(test)
    return some


def noticed(of: list[FunctionType], code: CodeType, tests: list[str], tries: dict[str, Try]) -> str:
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CPU, (COMPUTES_S, COMPUTES_S))
    refuse_processes()
    for function in of:
        function.__code__ = code
    for test in tests:
        world = test.removeprefix("simulator of ")
        found = simulated(world, MUTANT_SEEDS) if world in WORLDS else tries[test]()
        if found:
            return found
    return "-"


def simulated(world: str, seeds: int) -> str:
    for seed in range(seeds):
        try:
            WORLDS[world](seed).run()
        except Exception as error:
            return f"simulator of {world}, seed {seed}: {type(error).__name__}: {error}"[:200]
    return ""


def loaded() -> dict[tuple[str, str], list[FunctionType]]:
    """(file, function) -> what is in memory of it, wherever it is kept."""
    files = {str(ROOT / path): path for path in FILES}
    found: dict[tuple[str, str], list[FunctionType]] = defaultdict(list)
    for one in gc.get_objects():
        if isinstance(one, FunctionType) and one.__code__.co_filename in files:
            found[files[one.__code__.co_filename], one.__code__.co_qualname].append(one)
    return found


class watching:
    """Which lines of the rules' files run. A function is watched until so many calls of it in a row have brought no new
    one: to note each line takes several times as long as to run it.
    """

    def __init__(self, seen: dict[str, set[int]]) -> None:
        self._local: dict[str, Callable[..., Any]] = {}
        self._calls: dict[int, int] = {}
        for path in FILES:
            self._local[str(ROOT / path)] = self._in(seen.setdefault(path, set()))

    def _called(self, frame: FrameType, _event: str, _argument: object) -> Callable[..., Any] | None:
        code = frame.f_code
        local = self._local.get(code.co_filename)
        if local is None:
            return None
        calls = self._calls[id(code)] = self._calls.get(id(code), 0) + 1
        return local if calls <= CALLS else None

    def _in(self, lines: set[int]) -> Callable[..., Any]:
        def local(frame: FrameType, event: str, _: object) -> Callable[..., Any]:
            if event == "line" and frame.f_lineno not in lines:
                lines.add(frame.f_lineno)
                self._calls[id(frame.f_code)] = 0
            return local

        return local

    def __enter__(self) -> None:
        sys.settrace(self._called)

    def __exit__(self, *_: object) -> None:
        sys.settrace(None)


def _too_slow(_signal: int, _frame: object) -> None:
    pytest.skip("takes too long to be tried with each mutant")


def refuse_processes() -> None:
    """For good, in a fork that ends soon."""

    def hook(event: str, _: object) -> None:
        if event in STARTS_A_PROCESS:
            pytest.skip("starts a process")

    sys.addaudithook(hook)


# -- forks ------------------------------------------------------------------------------------------------------------


def forked(work: Callable[[], Any]) -> tuple[int, int]:
    """Its process, and a descriptor from which its result can be read, as JSON."""
    end, other = os.pipe()
    pid = os.fork()
    if pid:
        os.close(other)
        return pid, end
    try:
        os.setpgid(0, 0)
        signal_when_parent_dies(signal.SIGKILL)
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        result = json.dumps(work())
    except BaseException as error:
        result = json.dumps(f"{type(error).__name__}: {error}"[:200])
    with open(other, "w", encoding="utf-8") as to:
        to.write(result)
    os._exit(0)


def said(end: int) -> str:
    with open(end, encoding="utf-8", closefd=False) as readable:
        result = readable.read()
    found = json.loads(result) if result else "it dies, or goes round in a circle"
    return "" if found == "-" else str(found)


def ended(pid: int, end: int) -> None:
    os.close(end)
    with contextlib.suppress(ProcessLookupError):  # it has ended before it led a group
        os.killpg(pid, signal.SIGKILL)
    os.waitpid(pid, 0)


def in_forks(works: list[Callable[[], Any]]) -> list[Any]:
    results = []
    for pid, end in [forked(work) for work in works]:
        with open(end, encoding="utf-8", closefd=False) as readable:
            result = readable.read()
        ended(pid, end)
        found = json.loads(result)
        if isinstance(found, str):
            raise pytest.UsageError(f"the tests could not be looked at: {found}")
        results.append(found)
    return results


def main() -> int:
    task = json.loads(Path(os.environ["MUTANTS_TASK"]).read_text(encoding="utf-8"))
    there = [f"tests/{name}" for name in dict.fromkeys(name for of in packages(task) for name in TESTS[of])]
    there = task.get("tests") or [path for path in there if (ROOT / path).exists()]
    words = ["-q", "-s", "-p", "pytest_timeout", "-p", "no:cacheprovider", "--timeout=0", "-m", NOT_THESE]
    return int(pytest.main([*words, *there], plugins=[Trial(task)]))


if __name__ == "__main__":
    sys.exit(main())
