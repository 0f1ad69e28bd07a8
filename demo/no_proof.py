"""What the proof is for: the same death twice, once with it and once without. `python -m demo --no-proof`.

The engine that serves has two processes, and half of the KV cache lies with each. Both are killed, and one hangs in its
exit with its memory, as a process in a driver's hands does. The port is closed by then. The device has room for one KV
cache. What is switched off for the second round, and where: `unproven.py`. The hanging
exit is made with ptrace (`tests/support/slow_exits.py`).
"""

import contextlib
import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from demo.crowd import LOADS, Crowd
from demo.machine import CantPlay, check
from demo.pair import LARGE, Pair, Size
from demo.story import Whole, look
from demo.words import quiet, row, say, title
from sidecar.kernel import process_tree
from sidecar.terminal.formatting import size
from tests.support.processes import Process
from tests.support.slow_exits import dies_slowly, hangs_in_exit

HANGS_S, MOST_S = 4.0, 30.0
ROOM = Size(56, 32, LARGE.model)
LOOK_S = 0.02


@dataclass
class Seen:
    hung_s: float = 0.0
    """How long the exit did."""
    granted_s: float = 0.0
    """From the kill until another engine had the lock; 0: it never had, in the time that was watched."""
    hanging: bool = False
    """The dead engine had its memory still when that was."""
    wakes_failed: int = 0
    why: str = ""
    serves_s: float = 0.0
    failed: int = 0


def play() -> dict[str, Any]:
    title("One death, twice: with the proof that the memory is free, and without")
    say(
        "The engine that serves has two processes. Both are killed; one hangs in its exit, as in a driver's hands, with"
    )
    say("half of the KV cache. The port is closed at once, and there is no room for another cache until it is over.")
    say()
    with_proof = _one_death("engine_shim.cli.failover", "with the proof")
    without = _one_death("demo.unproven", "without it, by a lock server of the demo's own that waits for nothing")
    say()
    widths = (52, 18, 18)
    quiet(row("", "with the proof", "without it", widths=widths))
    rows = (
        ("the exit hung for", *(f"{seen.hung_s:.2f} s" for seen in (with_proof, without))),
        ("another engine had the lock after", *(f"{seen.granted_s:.2f} s" for seen in (with_proof, without))),
        ("the memory was still taken then", *("yes" if seen.hanging else "no" for seen in (with_proof, without))),
        ("wakes that ended for want of memory", with_proof.wakes_failed, without.wakes_failed),
        ("clients were served again after", *(f"{seen.serves_s:.2f} s" for seen in (with_proof, without))),
        ("requests that failed", with_proof.failed, without.failed),
    )
    for cells in rows:
        print("    " + row(*cells, widths=widths), flush=True)
    say()
    say("The engine that was woken without it has ended, too:")
    say(f"  {without.why}")
    say()
    check(not with_proof.hanging and not with_proof.wakes_failed, "an engine woke too early in spite of the proof")
    check(without.hanging and without.wakes_failed > 0, "without the proof no engine ran out of memory this time")
    return {"with": vars(with_proof), "without": vars(without)}


def _one_death(program: str, how: str) -> Seen:
    with Pair(ROOM, ("--kv", "drop"), ("--workers", "1"), program) as pair:
        whole = pair.until(lambda: look(pair), "one engine serves and the other is ready")
        crowd = Crowd(pair.host, pair.port, LOADS["reference"])
        crowd.learn()
        crowd.start()
        pair.until(lambda: crowd.everybody_reads(0.0) or None, "every client is in the middle of an answer")
        seen = Seen()
        free = size(whole.weights.free)
        say(f"{how.capitalize()}: kill -9 of {whole.holder.engine_id}; {free} of the device are free")
        worker = Process(_worker(pair, whole))
        with dies_slowly(worker, _cant) as let_go:
            main = pair.pidfd_of_main(whole.holder.pid)
            worker.signal(signal.SIGKILL)
            hangs_in_exit(worker)  # before it can end in order and free its memory, because its main process has gone
            began = time.monotonic()
            signal.pidfd_send_signal(main, signal.SIGKILL)
            while time.monotonic() < began + HANGS_S or (seen.hanging and not seen.wakes_failed and _may_hang(began)):
                _look(pair, whole, seen, began, hanging=True)
                time.sleep(LOOK_S)
            seen.hung_s = time.monotonic() - began
            let_go()
        pair.until(lambda: _look(pair, whole, seen, began, hanging=False) or None, "another engine serves")
        seen.serves_s = time.monotonic() - began
        pair.until(lambda: look(pair), "the pair is whole again")
        crowd.stop()
        seen.failed = sum(len(client.failed) for client in crowd.clients)
    return seen


def _may_hang(began: float) -> bool:
    """An engine that has been woken too early takes its time on a busy machine."""
    return time.monotonic() < began + MOST_S


def _look(pair: Pair, before: Whole, seen: Seen, began: float, *, hanging: bool) -> bool:
    """Whether another engine serves."""
    lock = pair.lock()
    holder = lock.holder if lock is not None else None
    another = holder if holder is not None and holder.token != before.holder.token else None
    engine = pair.engine(before.ready.engine_id)
    seen.wakes_failed = max(seen.wakes_failed, engine.get("deaths", 0))
    seen.why = engine.get("last_end") or seen.why
    if not seen.granted_s and (another is not None or seen.wakes_failed):  # a wake may have failed between two looks
        seen.granted_s, seen.hanging = time.monotonic() - began, hanging
    return another is not None and bool(another.endpoint)


def _worker(pair: Pair, whole: Whole) -> int:
    """The process that has the other half of the holder's cache."""
    for pid in process_tree.descendants(whole.holder.pid):
        with contextlib.suppress(OSError):
            if str(pair.directory / "devices") in Path(f"/proc/{pid}/maps").read_text():
                return pid
    raise CantPlay(f"process {whole.holder.pid} has no worker that can be seen by process {os.getpid()}")


def _cant(why: str) -> None:
    raise CantPlay(f"a process that hangs in its exit can't be played here: {why}")
