"""Processes of the tests: seen through their pidfds, and programs with what they say."""

import contextlib
import io
import os
import signal
import subprocess
import time
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from unittest import mock

from sidecar.kernel import peers
from tests.support.waiting import DEADLINE_S, readable, until

ROOT = Path(__file__).resolve().parents[2]
"""The repository: every program is started there."""


def gone(pidfd: int) -> bool:
    return peers.is_dead(pidfd)


class Process:
    """Any process. A caller that has a pidfd of it, from before the process could be collected, gives that, and closes
    it; else one is opened here.
    """

    def __init__(self, pid: int, pidfd: int | None = None) -> None:
        self.pid = pid
        if pidfd is None:
            pidfd = os.pidfd_open(pid)
            weakref.finalize(self, os.close, pidfd)
        self.pidfd = pidfd

    @property
    def dead(self) -> bool:
        return gone(self.pidfd)

    def signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            signal.pidfd_send_signal(self.pidfd, number)

    def kill(self) -> None:
        """SIGKILL, and dead when this returns."""
        self.signal(signal.SIGKILL)
        self.wait()

    def wait(self, deadline_s: float = DEADLINE_S) -> None:
        assert readable(self.pidfd, deadline_s), f"process {self.pid} does not end"

    def stop(self) -> None:
        """SIGSTOP, and every thread stopped when this returns."""
        self.signal(signal.SIGSTOP)
        until(lambda: self.thread_states() <= {"T", "Z"}, f"process {self.pid} stops")

    def go_on(self) -> None:
        self.signal(signal.SIGCONT)

    def thread_states(self) -> set[str]:
        states = set()
        for task in Path(f"/proc/{self.pid}/task").iterdir():
            with contextlib.suppress(OSError):
                states.add((task / "stat").read_text().rpartition(")")[2].split()[0])
        return states

    def descriptors(self) -> dict[int, str]:
        found = {}
        for entry in Path(f"/proc/{self.pid}/fd").iterdir():
            with contextlib.suppress(FileNotFoundError):
                found[int(entry.name)] = os.readlink(entry)
        return found


class Lines:
    """What comes out of a pipe, by lines."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._rest = b""
        self.said: list[str] = []

    def next(self) -> str:
        """The next line; empty at the end."""
        return self._next() or ""

    def with_words(self, words: str) -> str:
        """The next line that has these words in it."""
        while (line := self._next()) is not None:
            if words in line:
                return line
        raise AssertionError(f"it ended and never said {words!r}: {self.said}")

    def rest(self) -> str:
        """Everything up to the end."""
        lines = []
        while (line := self._next()) is not None:
            lines.append(line)
        return "\n".join(lines)

    def _next(self) -> str | None:
        end = time.monotonic() + DEADLINE_S
        while b"\n" not in self._rest:
            assert readable(self._fd, end - time.monotonic()), f"nothing more is said; so far: {self.said}"
            more = os.read(self._fd, 65536)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        self.said.append(line.decode())
        return self.said[-1]


def environment_with(more: dict[str, str] | None = None) -> dict[str, str]:
    """A program finds this repository's packages wherever it runs."""
    return {**os.environ, "PYTHONPATH": str(ROOT), **(more or {})}


class Program:
    """A process in a group of its own, and what it says."""

    def __init__(self, *command: str, environment: dict[str, str] | None = None, directory: Path = ROOT) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env=environment_with(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            process_group=0,
        )
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.pid = self.process.pid
        self.out = Lines(self.process.stdout.fileno())
        self.err = Lines(self.process.stderr.fileno())

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def ends(self) -> int:
        """Its exit code; below zero for a signal."""
        return self.process.wait(DEADLINE_S)

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def close(self) -> None:
        """Nothing is left of its whole group."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


def run_to_end(*command: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
    """Exit code, standard output, standard error."""
    done = subprocess.run(
        command,
        cwd=ROOT,
        env=environment_with(environment),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
    )
    return done.returncode, done.stdout, done.stderr


def run_here(
    main: Callable[[list[str]], int], *words: object, environment: Mapping[str, str] = {}
) -> tuple[int, str, str]:
    """The same of a command in the test's own process: to start a program takes longer than most of what they do."""
    out, err = io.StringIO(), io.StringIO()
    here = mock.patch.dict(os.environ, environment)
    with here, contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main([str(word) for word in words])
        except SystemExit as end:
            code = int(end.code or 0)
    return code, out.getvalue(), err.getvalue()


def when_its_reader_leaves(command: list[str]) -> tuple[int, bytes]:
    """How a command ends, and what it says of it, when its output is read no more after the first line."""
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as started:
        assert started.stdout is not None and started.stderr is not None
        started.stdout.readline()
        started.stdout.close()
        try:
            return started.wait(DEADLINE_S), started.stderr.read()
        finally:
            started.kill()


def cmdline(pid: int) -> bytes:
    """Its words, each with a zero behind it; nothing of one that is gone."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def resident(pid: int) -> int:
    """Bytes of memory that it has now."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
