"""`lockctl hold` is killed: how long until the next one's command runs?

Ours: two `lockctl hold` at a real server, each with the same small command, which says when it runs. The benchmark
kills the one that holds, and hears the next one's command. What is in between: the guard kills the dead one's command
and lets go of the life lock; the server sees that and grants; the next one says go to its command, which is executed.

The floor: a process that waits for the end of such a command with a pidfd, and starts the same command again. A held
command can't run sooner than that: one process has to end, and one to begin.
"""

import contextlib
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from bench import stage
from bench.cast import Line, Player
from bench.figures import Comparison

WARM_UP = 3
REST_S = 0.05
"""Between a process's word that it is ready and the kill: until all processes sleep in the kernel again."""


class Said:
    """A FIFO that commands write a line to as soon as they run."""

    def __init__(self, path: Path) -> None:
        os.mkfifo(path)
        self._fd = os.open(path, os.O_RDWR)
        self.command = ["/bin/sh", "-c", f"echo runs > {path}; exec sleep 3600"]

    def hear(self) -> int:
        """The time at which the next command runs."""
        if not select.select([self._fd], [], [], stage.DEADLINE_S)[0]:
            raise stage.Broken(f"no command ran within {stage.DEADLINE_S:g} s")
        now = time.monotonic_ns()
        os.read(self._fd, 5)
        return now

    def close(self) -> None:
        os.close(self._fd)


class Holds:
    """One that holds and one that waits; after each round the one that waited holds."""

    def __init__(self, hold: Callable[[str], list[str]], await_waiter: Callable[[], None], said: Said) -> None:
        """`hold`: the command line up to the `--`, by the name that it has."""
        self._hold, self._await_waiter, self._said = hold, await_waiter, said
        self._started = 0
        self._line: list[subprocess.Popen[bytes]] = []
        self._add()
        said.hear()

    def round(self) -> int:
        self._add()
        self._await_waiter()
        time.sleep(REST_S)
        holder = self._line.pop(0)
        killed_at = time.monotonic_ns()
        holder.kill()
        took = self._said.hear() - killed_at
        holder.wait()
        return took

    def end(self) -> None:
        for process in reversed(self._line):
            process.kill()
            process.wait()

    def _add(self) -> None:
        self._started += 1
        command = [sys.executable, "-m", *self._hold(f"h{self._started}"), "--quiet", "--", *self._said.command]
        self._line.append(subprocess.Popen(command, cwd=stage.ROOT, stdin=subprocess.DEVNULL))


def of_the_lock(server: stage.LockServer, said: Said) -> Holds:
    words = ["lockserver.cli.lockctl", "hold", "--run-dir", str(server.run_dir), "--engine-id"]
    return Holds(
        lambda name: [*words, name],
        lambda: server.until(lambda status: status.waiters_total == 1, "a place in the queue"),
        said,
    )


class Respawn:
    """The floor."""

    def __init__(self, said: Said) -> None:
        self._said = said
        self._player = Player(lambda line: _respawn(line, said.command))
        self._pid = self._next()

    def round(self) -> int:
        time.sleep(REST_S)
        killed_at = time.monotonic_ns()
        os.kill(self._pid, signal.SIGKILL)
        took = self._said.hear() - killed_at
        (self._pid,) = self._player.hear()
        return took

    def end(self) -> None:
        self._player.end()
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._pid, signal.SIGKILL)

    def _next(self) -> int:
        (pid,) = self._player.hear()
        self._said.hear()
        return pid


def _respawn(line: Line, command: list[str]) -> None:
    while True:
        pid = os.posix_spawn(command[0], command, os.environ)
        line.say(pid)
        pidfd = os.pidfd_open(pid)
        select.select([pidfd], [], [])
        os.close(pidfd)
        os.waitpid(pid, 0)


def measure(parent: Path, rounds: int) -> Iterator[Comparison]:
    result = Comparison("kill of a `lockctl hold` -> the next one's command runs", "a command started again", 3.0)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(stage.lock_server(parent))
        place = stack.enter_context(stage.directory(parent))
        saids = [Said(place / "ours"), Said(place / "floor")]
        for said in saids:
            stack.callback(said.close)
        ours, floor = of_the_lock(server, saids[0]), Respawn(saids[1])
        stack.callback(ours.end)
        stack.callback(floor.end)
        yield result.in_turns(rounds, WARM_UP, floor.round, ours.round)
