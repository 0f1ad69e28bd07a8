"""`make sim SEEDS=...`: runs schedules of the simulator and says what it found.

    python -m tests.sim --seeds 20000                    seeds 0 to 19999 of each world, on every core
    python -m tests.sim --world gms --seeds 5000:6000    those seeds of one world: lock, gms, vram or pool
    python -m tests.sim --world gms --seed 4711          one schedule, event by event (of the lock unless it is named)

One seed is one schedule and replays exactly. Exits 1 when something that must hold did not, with the seeds.
"""

import argparse
import gc
import json
import math
import os
import signal
import sys
import time
import traceback
from collections import Counter
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field
from types import FrameType

from tests.pool import schedules as pool
from tests.sim.gms_world import GmsWorld
from tests.sim.schedule import Violation
from tests.sim.vram_world import VramWorld
from tests.sim.world import World

CHUNK = 250
"""At most: of few schedules each process gets a share."""
STUCK_S = 60
"""A schedule takes milliseconds: one that takes so long goes round in a circle, and is a finding like any other."""
SAYS_SO_EVERY_S = 60
WORLDS: dict[str, type[World] | type[GmsWorld] | type[VramWorld] | type[pool.Schedule]] = {
    "lock": World,
    "gms": GmsWorld,
    "vram": VramWorld,
    "pool": pool.Schedule,
}


class Stuck(BaseException):
    """No caller on the way up takes it for an error of its own."""


@dataclass
class Outcome:
    schedules: int = 0
    events: int = 0
    grants: int = 0
    faults: Counter[str] = field(default_factory=Counter)
    undecided: int = 0
    """Ended with an alarm that nothing proves the holder's end: by default the server then goes on waiting."""
    violations: list[str] = field(default_factory=list)

    def add(self, other: "Outcome") -> None:
        self.schedules += other.schedules
        self.events += other.events
        self.grants += other.grants
        self.undecided += other.undecided
        self.faults.update(other.faults)
        self.violations += other.violations


def run_seeds(job: tuple[str, range]) -> Outcome:
    name, seeds = job
    outcome = Outcome()
    for seed in seeds:
        world = WORLDS[name](seed)
        signal.setitimer(signal.ITIMER_VIRTUAL, STUCK_S)  # its own processor time: nothing in it waits
        try:
            world.run()
        except Violation as violation:
            outcome.violations.append(str(violation))
        except (Exception, Stuck) as error:  # a program that breaks is a finding like any other, and has a seed
            outcome.violations.append(f"seed {seed}: {type(error).__name__}: {error}")
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        outcome.schedules += 1
        outcome.events += world.events
        outcome.grants += world.grants
        outcome.undecided += world.undecided
        outcome.faults.update(world.faults)
        if seed % 10 == 0:
            gc.collect()
    return outcome


def _worker_begins() -> None:
    gc.disable()  # the worlds are full of cycles, and short-lived: collecting them now and then is faster
    gc.freeze()  # what there was before is no world: a tenth to a quarter of the time went into looking at it
    signal.signal(signal.SIGVTALRM, _is_stuck)


def _is_stuck(_signal: int, frame: FrameType | None) -> None:
    where = " < ".join(f"{at.name} ({os.path.basename(at.filename)}:{at.lineno})" for at in _innermost(frame))
    raise Stuck(f"not at its end after {STUCK_S} s, in {where}")


def _innermost(frame: FrameType | None) -> list[traceback.FrameSummary]:
    return list(reversed(traceback.extract_stack(frame)))[:5]


def _seeds(text: str) -> range:
    first, colon, last = text.partition(":")
    try:
        seeds = range(int(first), int(last)) if colon else range(int(first))
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither a number of schedules nor FIRST:LAST") from None
    if not seeds:
        raise argparse.ArgumentTypeError(f"{text!r} names no seed")
    return seeds


def _one(name: str, seed: int) -> int:
    world = WORLDS[name](seed, trace=True)
    try:
        world.run()
    except Violation as violation:
        verdict = f"VIOLATION: {violation}"
    else:
        verdict = "all that must hold held"
    finally:  # a program that breaks is a finding, too
        print("\n".join(world.trace or ()))
    print(verdict)
    return 1 if verdict.startswith("VIOLATION") else 0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make sim", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=_seeds, default=range(2000), metavar="N|FIRST:LAST")
    parser.add_argument("--seed", type=int, help="one schedule only, event by event")
    parser.add_argument("--world", choices=WORLDS, help="only this one")
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    if options.seed is not None:
        return _one(options.world or "lock", options.seed)
    names = [options.world] if options.world else list(WORLDS)
    violations = 0
    for name in names:
        began = time.monotonic()
        total = _run(name, options.seeds, options.jobs)
        _report(name, total, options.seeds, time.monotonic() - began, as_json=options.json)
        violations += len(total.violations)
    return 1 if violations else 0


def _run(name: str, seeds: range, jobs: int) -> Outcome:
    total = Outcome()
    size = min(CHUNK, math.ceil(len(seeds) / (8 * jobs)))
    chunks = [(name, seeds[at : at + size]) for at in range(0, len(seeds), size)]
    on_a_terminal, said = sys.stderr.isatty(), time.monotonic()
    with ProcessPoolExecutor(jobs, initializer=_worker_begins) as pool:
        for done in as_completed([pool.submit(run_seeds, chunk) for chunk in chunks]):
            found = done.result()
            total.add(found)
            for violation in found.violations:
                print(f"VIOLATION {violation}", file=sys.stderr)
            so_far = f"{name}: {total.schedules} of {len(seeds)} schedules, {len(total.violations)} violations"
            if on_a_terminal:
                print(f"\r{so_far}", end="", file=sys.stderr)
            elif time.monotonic() >= said + SAYS_SO_EVERY_S:
                said = time.monotonic()
                print(so_far, file=sys.stderr)
    return total


def _report(name: str, total: Outcome, seeds: range, took_s: float, *, as_json: bool) -> None:
    if as_json:
        print(
            json.dumps(
                {
                    "world": name,
                    "seeds": [seeds[0], seeds[-1]],
                    "schedules": total.schedules,
                    "events": total.events,
                    "grants": total.grants,
                    "faults": dict(total.faults),
                    "undecided": total.undecided,
                    "violations": total.violations,
                    "seconds": round(took_s, 1),
                }
            )
        )
        return
    print(
        f"\nsimulator of {name}: {total.schedules} schedules (seeds {seeds[0]} to {seeds[-1]}) "
        f"in {took_s:.0f} s: {total.events} events, {total.grants} grants, "
        f"{sum(total.faults.values())} faults, {len(total.violations)} violations"
    )
    print("faults: " + ", ".join(f"{fault} {count}" for fault, count in total.faults.most_common()))
    if name == "lock":
        print(f"ended undecided, with an alarm (no proof to be had, and the default is to wait): {total.undecided}")
    for violation in total.violations[:20]:
        seed = violation.split()[1].rstrip(",:")
        print(f"VIOLATION {violation}\n  replay: python -m tests.sim --world {name} --seed {seed}")


if __name__ == "__main__":
    sys.exit(main())
