"""A holder is killed: how long until the next `acquire` has returned?

Ours: two processes with the real client at a real server. One holds the lock, the other is in a blocking `acquire`. The
benchmark takes the time and kills the holder; the waiter takes the time when `acquire` has returned. Then the waiter is
the next holder, and a new process waits. Each does what an engine does: it has had the permit `init` before its
`acquire`, and says where it serves after it.

The floor: a waiter that polls a pidfd of the victim, and does nothing else. No lock can tell it sooner that the process
is gone. It is a fair floor because everything else is the same: killer, victim and waiter are three processes in both;
victims are forked from the same process, have the same client with its thread, socket and life lock, and were granted
by a server (`stage.MuteServer`, which never looks at them again). What is left of the difference is the lock itself:
end of file, the waiter's second look at its engine, pidfd, life lock, the new holder on disk, the grant.

The same with a longer rest before each kill stands beside it, because the ratio depends on it: the floor's waiter has a
dozen instructions to run, the lock some thousands, and after a rest they come from memory instead of the caches. The
goal is for the short rest.

Beside it, too, a flock that is polled every 100 ms, which is how the best-known peer does it; the kill comes at a
random moment of the 100 ms.

With 1,000 waiters: two servers side by side, one with one waiter and one with 1,000, and a round of each in turns. Who
gets the next turn is a real process as above; the crowd behind is connections of a few processes, each with its own
incarnation, life file and place in the queue. The server can't tell the difference.
"""

import contextlib
import fcntl
import os
import random
import select
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Self

from bench import crowd, stage
from bench.cast import Line, Player
from bench.figures import Comparison
from lockserver.client import LockClient

WARM_UP = 5
REST_S = 0.002
"""Between a waiter's word that it waits and the kill: until all processes sleep in the kernel again."""
LONG_REST_S = 0.05
FLOCK_EVERY_S = 0.1
URL = "http://127.0.0.1:8000"
"""Without it the next engine would not get the permit."""


class Relay:
    """What the three chains share: a line of processes, of which the first holds. After each round the second does."""

    def __init__(self, rest_s: float = REST_S) -> None:
        self.players: list[Player] = []
        self._rest_s = rest_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        while self.players:
            self.players.pop().end()

    def kill_the_first(self) -> int:
        """The line moves up by one. Returns the nanoseconds until the waiter was awake."""
        holder, waiter = self.players[0], self.players[1]
        time.sleep(self._rest_s)
        killed_at = holder.kill()
        (awake_at,) = waiter.hear()
        self.players.pop(0).collect()
        return awake_at - killed_at


class LockChain(Relay):
    """At a real server. One process waits; more than one only where a crowd is to stand behind them."""

    def __init__(self, server: stage.LockServer, rest_s: float = REST_S) -> None:
        super().__init__(rest_s)
        self._server = server
        self._started = 0
        self.add()
        self.players[0].hear()

    def add(self) -> None:
        """One more process, in its place in the queue when this returns."""
        self._started += 1
        engine_id = f"e{self._started}"
        before = self._server.status().waiters_total
        player = Player(lambda line: _acquire(line, self._server.run_dir, engine_id))
        self.players.append(player)
        player.hear()
        if len(self.players) > 1:
            self._server.until(lambda status: status.waiters_total > before, "a place in the queue")

    def round(self) -> int:
        if len(self.players) < 2:
            self.add()
        return self.kill_the_first()


def _acquire(line: Line, run_dir: Path, engine_id: str) -> None:
    client = LockClient(run_dir, engine_id).start()
    with client.permit():
        line.say(0)
    client.acquire()
    line.say(time.monotonic_ns())
    client.serving(URL)


class PidfdChain(Relay):
    """The floor."""

    def __init__(self, server: stage.MuteServer, rest_s: float = REST_S) -> None:
        super().__init__(rest_s)
        self._server = server
        self._started = 0
        self._add()

    def _add(self) -> None:
        self._started += 1
        engine_id = f"floor{self._started}"
        holder = self.players[-1].pid if self.players else 0
        player = Player(lambda line: _poll_pidfd(line, self._server.run_dir, engine_id, holder))
        self.players.append(player)
        self._server.serve_one()
        player.hear()

    def round(self) -> int:
        self._add()
        took = self.kill_the_first()
        self._server.forget_the_dead()
        return took


def _poll_pidfd(line: Line, run_dir: Path, engine_id: str, holder: int) -> None:
    client = LockClient(run_dir, engine_id).start()
    with client.permit():
        pass
    client.acquire()
    client.serving(URL)
    if holder == 0:
        line.say(0)
        return
    pidfd = os.pidfd_open(holder)
    poll = select.poll()
    poll.register(pidfd, select.POLLIN)
    line.say(0)
    poll.poll()
    line.say(time.monotonic_ns())
    os.close(pidfd)


class FlockChain(Relay):
    """A file lock, polled. The victims are forked from the same process; they have no client."""

    def __init__(self, directory: Path) -> None:
        super().__init__()
        self._path = directory / "flock"
        self._random = random.Random(1)
        self._add()
        self.players[0].hear()

    def _add(self) -> None:
        player = Player(lambda line: _poll_flock(line, self._path))
        self.players.append(player)
        player.hear()

    def round(self) -> int:
        self._add()
        time.sleep(self._random.uniform(0, FLOCK_EVERY_S))
        return self.kill_the_first()


def _poll_flock(line: Line, path: Path) -> None:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    line.say(0)
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(FLOCK_EVERY_S)
        else:
            line.say(time.monotonic_ns())
            return


def measure(parent: Path, where: str, rounds: int, *, goals: bool) -> Iterator[Comparison]:
    """Kill -> acquired, and its floor, in turns; and the polled flock beside them."""
    wanted = (1.5, 2.0) if goals else (None, None)
    result = Comparison(f"kill -> acquire returned ({where})", "pidfd poll", *wanted)
    beside = Comparison("flock polled at 100 ms, beside it", "pidfd poll", floor=result.floor)
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(LockChain(stack.enter_context(stage.lock_server(parent))))
        floor = stack.enter_context(PidfdChain(stack.enter_context(stage.mute_server(parent))))
        polled = stack.enter_context(FlockChain(stack.enter_context(stage.directory(parent))))
        for number in range(WARM_UP + rounds):
            result.add(floor.round(), ours.round(), keep=number >= WARM_UP)
            if number % 10 == 0:
                beside.ours.append(polled.round())
    yield result
    yield beside


def measure_rested(parent: Path, rounds: int) -> Iterator[Comparison]:
    """The same when nothing has run for a while: what waits is cold then, in every cache."""
    result = Comparison(f"the same after {LONG_REST_S * 1e3:g} ms of rest", "pidfd poll")
    with contextlib.ExitStack() as stack:
        ours = stack.enter_context(LockChain(stack.enter_context(stage.lock_server(parent)), LONG_REST_S))
        floor = stack.enter_context(PidfdChain(stack.enter_context(stage.mute_server(parent)), LONG_REST_S))
        yield result.in_turns(rounds, WARM_UP, floor.round, ours.round)


def measure_crowd(parent: Path, rounds: int, waiters: int) -> Iterator[Comparison]:
    """The same with a crowd in the queue, against the same with one waiter."""
    result = Comparison(f"the same with {waiters:,} waiters", "one waiter", goal_median=2.0)
    with contextlib.ExitStack() as stack:
        alone = stack.enter_context(LockChain(stack.enter_context(stage.lock_server(parent))))
        server = stack.enter_context(stage.lock_server(parent))
        crowded = stack.enter_context(LockChain(server))
        for _ in range(WARM_UP + rounds):
            crowded.add()
        stack.enter_context(crowd.crowd(server, waiters, watchers=0))
        yield result.in_turns(rounds, WARM_UP, alone.round, crowded.round)
