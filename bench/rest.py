"""The lock server at rest, and how soon it is up.

Wake-ups: its voluntary context switches (`/proc/PID/status`) over a few seconds in which the lock is held, 1,000
connections wait and watch, and nothing happens. A process that sleeps in the kernel until a client comes has none. They
are counted for all its threads.

Memory: VmRSS with those connections, the figure that a container's limit goes by; beside it what is private to the
process (its own) and what it shares with others (libraries).

Start: from the spawn until a connect succeeds, in a fresh run directory, on tmpfs; against `python -c pass` from spawn
to end, in turns: what the interpreter itself takes on this machine.
"""

import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench import crowd, stage
from bench.cast import Line, Player
from bench.figures import Comparison, Reading
from lockserver.client import LockClient

WARM_UP = 2
WATCHERS = 10
START_LIMIT_MS = 200
MEMORY_LIMIT_MB = 40


def measure(parent: Path, connections: int, rest_s: float) -> Iterator[Reading]:
    with ExitStack() as stack:
        server = stack.enter_context(stage.lock_server(parent))
        empty = memory_of(server.process.pid)["Rss"]
        holder = Player(lambda line: _hold(line, server.run_dir))
        stack.callback(holder.end)
        holder.hear()
        # One connection is the holder's, one is the benchmark's own.
        stack.enter_context(crowd.crowd(server, connections - WATCHERS - 2, watchers=WATCHERS))
        time.sleep(0.2)  # watchers are still being told of the last one that came
        before = _voluntary_switches(server.process.pid)
        time.sleep(rest_s)
        woken = _voluntary_switches(server.process.pid) - before
        memory = memory_of(server.process.pid)
        state = server.status().state
        if state != "HELD":
            raise stage.Broken(f"the lock is {state}; it should be held")
    yield Reading(f"wake-ups in {rest_s:g} s, held, {connections:,} connections", woken, "", 0)
    private = memory["Private_Clean"] + memory["Private_Dirty"]
    beside = f"private {private:.1f} MB, Pss {memory['Pss']:.1f} MB; with no connection {empty:.1f} MB"
    yield Reading(f"resident memory, {connections:,} connections", memory["Rss"], "MB", MEMORY_LIMIT_MB, beside)


def _hold(line: Line, run_dir: Path) -> None:
    LockClient(run_dir, "holder").start().acquire()
    line.say(0)


def _voluntary_switches(pid: int) -> int:
    count = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        for line in (task / "status").read_text(encoding="ascii").splitlines():
            if line.startswith("voluntary_ctxt_switches:"):
                count += int(line.split()[1])
    return count


def memory_of(pid: int) -> dict[str, float]:
    """Megabytes (1,000,000 bytes), by the names of smaps_rollup."""
    found: dict[str, float] = {}
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines()[1:]:
        name, _, rest = line.partition(":")
        found[name] = int(rest.split()[0]) * 1024 / 1e6
    return found


def measure_start(parent: Path, rounds: int) -> Iterator[Comparison | Reading]:
    result = Comparison("start: spawn -> connect succeeds", "python -c pass")
    yield result.in_turns(rounds, WARM_UP, _bare, lambda: _start(parent))
    yield Reading("start, median", statistics.median(result.ours) / 1e6, "ms", START_LIMIT_MS)


def _bare() -> int:
    before = time.monotonic_ns()
    subprocess.run([sys.executable, "-c", "pass"], check=True)
    return time.monotonic_ns() - before


def _start(parent: Path) -> int:
    with stage.directory(parent) as scratch:
        before = time.monotonic_ns()
        with stage.listening(scratch / "run"):
            return time.monotonic_ns() - before
