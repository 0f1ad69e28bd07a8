"""An uncontended `acquire`: the lock is free, and one engine asks for it.

Ours: `LockClient.acquire()`, from its call to its return, in a process that has registered. A lock is freed only by
death, so every round has a fresh process, forked from the warm one; only the call itself is measured. The process has
had the permit `init` before, as an engine has that comes to its `acquire`.

The floor, in the same process and the moment before or after (in turns): one echo (Ping, Pong over the same frames with
the same server's loop) and one durable write of a file of the same size in the same run directory. This much any server
must do that answers only when the grant is on disk. It is measured as one piece of time, so that nothing is added up.
On disk the write is nearly all there is, so there the floor is the write alone. Both begin warm: the process has done
each once, and what that left to be written (journals) is on the disk.
"""

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path

from bench import stage
from bench.cast import Line, Player
from bench.figures import Comparison
from lockserver.client import LockClient
from lockserver.observer import Observer
from lockserver.rules import messages as m
from sidecar.kernel.durable import DurableFile

WARM_UP = 3
RECORD_BYTES = 420
"""As large as a holder.json of one process."""


def measure(parent: Path, where: str, rounds: int, *, on_disk: bool) -> Iterator[Comparison]:
    """An acquire and its floor, in turns."""
    against, goal = ("one durable write", 1.5) if on_disk else ("echo + durable write", 2.0)
    result = Comparison(f"uncontended acquire ({where})", against, goal_median=goal)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(stage.lock_server(parent))
        for number in range(WARM_UP + rounds):
            ours, floor = _round(server, f"e{number}", floor_first=number % 2 == 0, echo=not on_disk)
            result.add(floor, ours, keep=number >= WARM_UP)
            server.until(lambda status: status.state == "FREE", "a free lock")
    yield result


def _round(server: stage.LockServer, engine_id: str, *, floor_first: bool, echo: bool) -> tuple[int, int]:
    player = Player(lambda line: _one_of_each(line, server.run_dir, engine_id, floor_first=floor_first, echo=echo))
    try:
        ours, floor = player.hear(2)
    finally:
        player.end()
    return ours, floor


def _one_of_each(line: Line, run_dir: Path, engine_id: str, *, floor_first: bool, echo: bool) -> None:
    client = LockClient(run_dir, engine_id).start()
    with client.permit():
        pass
    observer = Observer(run_dir)
    stage.until(lambda: observer.ask(m.AskStatus(), m.Status).permits["init"].holder is None, "a permit given back")
    file = DurableFile(run_dir, "floor")
    data = b"x" * RECORD_BYTES

    def floor() -> int:
        before = time.monotonic_ns()
        if echo:
            observer.ask(m.Ping(), m.Pong)
        file.write(data)
        return time.monotonic_ns() - before

    observer.ask(m.Ping(), m.Pong)
    file.write(data)
    floor_took = floor() if floor_first else 0
    before = time.monotonic_ns()
    client.acquire()
    acquire_took = time.monotonic_ns() - before
    floor_took = floor_took or floor()
    line.say(acquire_took, floor_took)
