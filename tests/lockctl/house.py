"""Real servers, real lockctls and what they run. Every wait is for a line, an end or a state, and has a deadline."""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from lockserver import messages as m
from lockserver.guard import NAME as GUARD
from lockserver.lifefiles import life_files
from lockserver.observer import NoServer, Observer, ServerSilent
from lockserver.rundir import LIFE, SOCKET
from sidecar import peers
from sidecar.lifelock import LifeLock

ROOT = Path(__file__).resolve().parents[2]
DEADLINE_S = 40.0
LOCKCTL = (sys.executable, "-m", "lockserver.lockctl")
STAY = ("sh", "-c", "echo started $$; exec sleep 1000")
"""A command that says its pid and stays."""


def until(done: Callable[[], bool], what: str) -> None:
    """For what nothing announces: looks again every few milliseconds."""
    end = time.monotonic() + DEADLINE_S
    while not done():
        assert time.monotonic() < end, f"not within {DEADLINE_S:g} s: {what}"
        select.select([], [], [], 0.002)


def gone(pidfd: int) -> bool:
    return peers.is_dead(pidfd)


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
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"nothing more is said; so far: {self.said}"
            more = os.read(self._fd, 65536)
            if not more:
                return None
            self._rest += more
        line, _, self._rest = self._rest.partition(b"\n")
        self.said.append(line.decode())
        return self.said[-1]


class Program:
    """A process in a group of its own."""

    def __init__(self, *command: str, environment: dict[str, str] | None = None, directory: Path = ROOT) -> None:
        self.process = subprocess.Popen(
            command,
            cwd=directory,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
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
        """Of its whole group nothing is left."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert pipe is not None
            with contextlib.suppress(BrokenPipeError):
                pipe.close()


class House:
    """A run directory and everybody who has to do with it."""

    def __init__(self, run_dir: Path) -> None:
        self.run_dir = run_dir
        self._programs: list[Program] = []
        self._pidfds: list[int] = []

    def run(self, *command: str, environment: dict[str, str] | None = None) -> Program:
        program = Program(*command, environment=environment)
        self._programs.append(program)
        return program

    def serve(self, *settings: str, environment: dict[str, str] | None = None, settle_s: str = "0.05") -> Program:
        """A lock server that listens."""
        socket = self.run_dir / SOCKET
        old = socket.stat().st_ino if socket.exists() else None
        server = self.run(
            *(sys.executable, "-m", "lockserver", "--run-dir", str(self.run_dir), "--settle-s", settle_s),
            *(() if "--memory" in settings else ("--memory", "none")),
            *settings,
            environment=environment,
        )

        def listens() -> bool:
            assert server.process.poll() is None, server.err.rest()
            return socket.exists() and socket.stat().st_ino != old

        until(listens, "the lock server listens")
        return server

    def guard_of(self, holder: Program) -> int:
        """The guard's pid of a `lockctl hold`."""
        children = Path(f"/proc/{holder.pid}/task/{holder.pid}/children").read_text().split()
        (guard,) = [int(pid) for pid in children if Path(f"/proc/{pid}/comm").read_text().strip() == GUARD]
        return guard

    def stray(self, holder: Program) -> LifeLock:
        """This process holds the life lock of that `lockctl hold`, and hasn't joined."""
        (name,) = [file.name for file in life_files(self.run_dir / LIFE)[0] if holder.pid in file.holders]
        return LifeLock.join(self.run_dir / LIFE, name)

    def lockctl(self, *words: str, environment: dict[str, str] | None = None) -> Program:
        """Starts it."""
        return self.run(*LOCKCTL, "--run-dir", str(self.run_dir), *words, environment=environment)

    def ask(self, *words: str, environment: dict[str, str] | None = None) -> tuple[int, str, str]:
        """Runs it to its end: exit code, standard output, standard error."""
        done = subprocess.run(
            [*LOCKCTL, "--run-dir", str(self.run_dir), *words],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
        )
        return done.returncode, done.stdout, done.stderr

    def hold(self, engine_id: str, *words: str, command: tuple[str, ...] = STAY) -> Program:
        """Starts `lockctl hold`."""
        return self.lockctl("hold", "--engine-id", engine_id, *words, "--", *command)

    def holds(self, engine_id: str, *words: str) -> tuple[Program, int]:
        """The same, and its command runs: a pidfd of that comes with it."""
        program = self.hold(engine_id, *words)
        return program, self.pidfd(int(program.out.with_words("started").split()[1]))

    def pidfd(self, pid: int) -> int:
        """Of a process that is killed in the end, if it isn't dead by then."""
        self._pidfds.append(os.pidfd_open(pid))
        return self._pidfds[-1]

    def status(self) -> m.Status:
        with Observer(self.run_dir) as observer:
            return observer.ask(m.AskStatus(), m.Status)

    def until(self, so: Callable[[m.Status], bool], what: str) -> m.Status:
        """The first state of which this is so."""
        end = time.monotonic() + DEADLINE_S
        last: m.Status | None = None
        while True:
            with contextlib.suppress(NoServer), Observer(self.run_dir) as observer:
                observer.tell(m.Watch())
                with contextlib.suppress(ServerSilent):
                    while not (last and so(last)):
                        last = observer.hear(m.Status, max(0.0, end - time.monotonic()))
                    return last
            assert time.monotonic() < end, f"not within {DEADLINE_S:g} s: {what}; last seen: {last}"

    def close(self) -> None:
        for program in reversed(self._programs):
            program.close()
        for pidfd in self._pidfds:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(pidfd, signal.SIGKILL)
            os.close(pidfd)
