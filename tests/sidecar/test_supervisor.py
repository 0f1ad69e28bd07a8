"""Child programs that are kept running: real processes, but for the signals that are sent to them."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from sidecar.machine.supervisor import NEVER, Child, Supervisor, how_it_ended


class Kept(Supervisor):
    """Notes what it is told by its children, and of them."""

    def __init__(self, *children: Child, relayed: bool = True) -> None:
        self.lines: list[str] = []
        self.ends: list[tuple[str, str, float]] = []
        super().__init__(
            children,
            ended=lambda child, how, pause_s: self.ends.append((child.name, how, pause_s)),
            relay=(lambda name, line: self.lines.append(f"{name}: {line}")) if relayed else None,
        )

    def run_until_all_have_ended(self) -> None:
        self.turn(time.monotonic())
        self.stop_restarting()
        while any(child.unfinished for child in self.children):
            self.turn(NEVER)
        for child in self.living:
            os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        self.collect()


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of modules that children can run."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    return tmp_path


def test_what_children_print_is_passed_on_with_their_names(programs: Path) -> None:
    (programs / "talks.py").write_text("import sys; print('one'); print('two', file=sys.stderr); print('end', end='')")
    kept = Kept(Child("a", ("talks",)), Child("b", ("talks",)))
    kept.run_until_all_have_ended()
    assert sorted(kept.lines) == [f"{name}: {word}" for name in ("a", "b") for word in ("end", "one", "two")]


def test_a_line_without_end_is_passed_on_in_pieces(programs: Path) -> None:
    (programs / "long.py").write_text("print('x' * 300_000)")
    kept = Kept(Child("a", ("long",)))
    kept.run_until_all_have_ended()
    assert sum(line.count("x") for line in kept.lines) == 300_000 and max(map(len, kept.lines)) < 200_000


def test_a_child_gets_its_own_environment_beside_ours(programs: Path) -> None:
    (programs / "told.py").write_text("import os; print(os.environ['TOLD'], 'PYTHONPATH' in os.environ)")
    kept = Kept(Child("a", ("told",), {"TOLD": "yes"}))
    kept.run_until_all_have_ended()
    assert kept.lines == ["a: yes True"]


def test_an_end_is_reported_and_followed_by_another_start(programs: Path) -> None:
    (programs / "ends.py").write_text("import os; os.kill(os.getpid(), 9)")
    child = Child("a", ("ends",))
    kept = Kept(child)
    for starts in (1, 2):
        kept.turn(time.monotonic())
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        kept.collect()
        assert child.restarts.starts == starts and not child.pid and child.start_at < NEVER
        child.start_at = 0.0
    assert kept.ends == [("a", "SIGKILL", 0.0), ("a", "SIGKILL", 0.5)] and kept.hopeless is None


def test_a_child_that_cant_be_helped_is_named_and_stays_down(programs: Path) -> None:
    (programs / "wrong.py").write_text("raise SystemExit(64)")
    child = Child("a", ("wrong",))
    kept = Kept(child)
    kept.turn(time.monotonic())
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
    kept.collect()
    assert kept.hopeless is child and child.code == 64 and child.start_at == NEVER and not kept.ends


def test_only_living_children_are_told_and_none_is_started_after_that(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int]] = []
    monkeypatch.setattr(os, "kill", lambda pid, number: told.append((pid, number)))
    alive, gone = Child("a", ("m",), pid=11), Child("b", ("m",))
    kept = Kept(alive, gone)
    kept.stop_restarting()
    kept.tell([alive, gone], signal.SIGTERM)
    assert told == [(11, signal.SIGTERM)] and kept.deadline == NEVER


def test_children_die_with_their_supervisor(programs: Path) -> None:
    (programs / "stays.py").write_text("import os, threading; print(os.getpid(), flush=True); threading.Event().wait()")
    program = "import time; from sidecar.machine.supervisor import *; "
    program += "kept = Supervisor([Child('a', ('stays',))], ended=print); kept.turn(time.monotonic()); kept.turn(NEVER)"
    with subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE) as supervisor:
        assert supervisor.stdout is not None
        pidfd = os.pidfd_open(int(supervisor.stdout.readline()))
        supervisor.kill()
        assert supervisor.stdout.read() == b"", "no process has the pipe any more"
    os.close(pidfd)


@pytest.mark.parametrize(("code", "said"), [(0, "exit code 0"), (-15, "SIGTERM"), (-40, "signal 40")])
def test_how_something_ended_in_words(code: int, said: str) -> None:
    assert how_it_ended(code) == said


@pytest.mark.parametrize("child", [Child("a", ("m",), {"A=B": "x\0y"}), Child("a", ("m", "a\0b"))])
def test_a_child_that_cant_be_started_is_said_and_tried_again_and_the_others_run(programs: Path, child: Child) -> None:
    (programs / "talks.py").write_text("print('one')")
    kept = Kept(child, Child("b", ("talks",)))
    before = len(os.listdir("/proc/self/fd"))
    kept.turn(time.monotonic())
    assert kept.lines[0].startswith("a: it can't be started: ") and kept.ends[0][:2] == ("a", "exit code 1")
    assert not child.pid and child.start_at < NEVER
    kept.run_until_all_have_ended()
    assert "b: one" in kept.lines and len(os.listdir("/proc/self/fd")) <= before
