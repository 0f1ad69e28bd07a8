"""Real servers, real lockctls and what they run. Every wait is for a line, an end or a state, and has a deadline."""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

from evidence.shell.lifefiles import life_files
from lockserver.cli import lockctl
from lockserver.observer import NoServer, Observer, ServerSilent
from lockserver.rules import messages as m
from lockserver.shell.rundir import GUARD, LIFE, SOCKET
from sidecar.kernel.lifelock import LifeLock
from tests.support.processes import Program, run_here
from tests.support.waiting import DEADLINE_S, until

LOCKCTL = (sys.executable, "-m", "lockserver.cli.lockctl")
STAY = ("sh", "-c", "echo started $$; exec sleep 1000")
"""A command that says its pid and stays."""


class House:
    """A run directory and all processes that have to do with it."""

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
        (name,) = [file.name for file in life_files(self.run_dir / LIFE)[0] if holder.pid in file.locked_by]
        return LifeLock.join(self.run_dir / LIFE, name)

    def lockctl(self, *words: str, environment: dict[str, str] | None = None) -> Program:
        """Starts it."""
        return self.run(*LOCKCTL, "--run-dir", str(self.run_dir), *words, environment=environment)

    def ask(self, *words: str) -> tuple[int, str, str]:
        """Runs it to its end, in this process: exit code, standard output, standard error."""
        return run_here(lockctl.main, "--run-dir", self.run_dir, *words)

    def hold(self, engine_id: str, *words: str, command: tuple[str, ...] = STAY) -> Program:
        """Starts `lockctl hold`."""
        return self.lockctl("hold", "--engine-id", engine_id, *words, "--", *command)

    def holds(self, engine_id: str, *words: str) -> tuple[Program, int]:
        """The same, and its command runs: a pidfd of that comes with it."""
        program = self.hold(engine_id, *words)
        return program, self.pidfd(int(program.out.with_words("started").split()[1]))

    def pidfd(self, pid: int) -> int:
        """The process is killed in the end, if it isn't dead by then."""
        self._pidfds.append(os.pidfd_open(pid))
        return self._pidfds[-1]

    def pidfds(self, pids: list[int]) -> list[int]:
        """The same for several, without those that are gone by now."""
        found = []
        for pid in pids:
            with contextlib.suppress(ProcessLookupError):
                found.append(self.pidfd(pid))
        return found

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
