"""The ledger: what does a lease take beside the lock, and what does it take to keep a thousand?

Two `vramctl hold`, of which one has room, and two `lockctl hold`, in turns, as in `hold.py`: one that holds is killed,
and it counts until the next one's command runs. Both have a guard, a server that sees the end, and its proof; a lease
is written to disk with more, and asked for by its bytes. So the floor is the lock.

Memory: VmRSS of the ledger with 1,000 leases, each of a tree of its own, which is the most that it can have to keep of
them.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from bench import hold, stage
from bench.cast import Line, Player
from bench.figures import Comparison, Reading
from bench.rest import MEMORY_LIMIT_MB, memory_of
from sidecar.kernel import process_setup
from vram.client import LedgerClient
from vram.observer import Observer, ObserverError, Status

GOAL = 1.5
DEVICE, BYTES = "host:bench", 1 << 20
PROCESSES = 4


@contextlib.contextmanager
def ledger(parent: Path, leases: int) -> Iterator[tuple[Path, "subprocess.Popen[bytes]"]]:
    """A real one, with room for so many leases. Its host directory, and its process."""
    with stage.directory(parent) as scratch, open(scratch / "log", "wb") as log:
        run_dir = scratch / "run"
        how = ("--memory", "none", "--total", f"{DEVICE}={leases * BYTES}")
        command = [sys.executable, "-m", "vram", "--run-dir", str(run_dir), *how]
        process = subprocess.Popen(command, cwd=stage.ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        try:
            stage.until(lambda: (seen := status(run_dir)) is not None and not seen.settled, "a ledger that leases")
            yield run_dir, process
        finally:
            process.kill()
            process.wait()


def status(run_dir: Path) -> Status | None:
    with contextlib.suppress(ObserverError), Observer(run_dir) as observer:
        return observer.status()
    return None


def of_the_ledger(run_dir: Path, observer: Observer, said: hold.Said) -> hold.Holds:
    words = ["vram.cli.vramctl", "hold", "--run-dir", str(run_dir), "--needs", f"{DEVICE}={BYTES}", "--name"]
    return hold.Holds(
        lambda name: [*words, name],
        lambda: stage.until(lambda: observer.status().waiters_total == 1, "a place in the queue"),
        said,
    )


def measure(parent: Path, rounds: int) -> Iterator[Comparison]:
    result = Comparison("kill of a `vramctl hold` -> the next one's command runs", "the same of `lockctl hold`", GOAL)
    with contextlib.ExitStack() as stack:
        server = stack.enter_context(stage.lock_server(parent))
        run_dir, _ = stack.enter_context(ledger(parent, 1))
        place = stack.enter_context(stage.directory(parent))
        saids = [hold.Said(place / "ours"), hold.Said(place / "floor")]
        for said in saids:
            stack.callback(said.close)
        ours = of_the_ledger(run_dir, stack.enter_context(Observer(run_dir)), saids[0])
        stack.callback(ours.end)
        floor = hold.of_the_lock(server, saids[1])
        stack.callback(floor.end)
        yield result.in_turns(rounds, hold.WARM_UP, floor.round, ours.round)


def measure_memory(parent: Path, leases: int) -> Iterator[Reading]:
    with contextlib.ExitStack() as stack:
        run_dir, process = stack.enter_context(ledger(parent, leases))
        empty = memory_of(process.pid)["Rss"]
        each = [range(number, leases, PROCESSES) for number in range(PROCESSES)]
        players = [Player(lambda line, those=those: _lease(line, run_dir, those)) for those in each]  # type: ignore[misc]
        for player in players:
            stack.callback(player.end)
        for player, those in zip(players, each, strict=True):
            player.hear(len(those))
        seen = status(run_dir)
        if seen is None or seen.leases_total != leases:
            raise stage.Broken(f"there should be {leases} leases: {seen and seen.leases_total}")
        yield Reading(
            f"resident memory of the ledger, {leases:,} leases, each a tree's own",
            memory_of(process.pid)["Rss"],
            "MB",
            MEMORY_LIMIT_MB,
            f"with none {empty:.1f} MB",
        )


def _lease(line: Line, run_dir: Path, those: range) -> None:
    process_setup.raise_descriptor_limit()
    for number in those:
        LedgerClient(run_dir, f"tree{number}").start().reserve(f"lease{number}", {DEVICE: BYTES})
        line.say(0)
