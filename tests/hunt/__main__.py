"""`make hunt S=120`: looks for what no test has thought of yet, with fresh seeds, for S seconds in all.

    make hunt S=120              a third of the time each: Hypothesis, the simulator, real processes
    make hunt S=120 SEED=4711    the same again, as far as seeds decide
    python -m tests.hunt --seconds 600 --only processes

Prints its seed first. A find fails it, with what is needed to repeat it.
"""

import argparse
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable

from tests.hunt import processes
from tests.sim.__main__ import CHUNK, WORLDS, _run
from tests.support.processes import ROOT

STATEFUL = (
    "tests/lockserver/test_stateful.py",
    "tests/gms/test_machine_stateful.py",
    "tests/engine/test_lifecycle_stateful.py",
    "tests/sidecar/test_frames_garbage.py",
)
SCRIPTS = 30


def with_hypothesis(seed: int, seconds: float) -> str:
    """Fresh examples for the machines, and fresh scripts for both kernels, until the time is over."""
    end, rounds = time.monotonic() + seconds, 0
    while rounds == 0 or time.monotonic() < end:
        environment = {**os.environ, "FAILOVER_HYPOTHESIS": "hunt", "SIM_SEED": str((seed + rounds) % (1 << 32))}
        environment["SIM_SCRIPTS"] = str(SCRIPTS)
        _pytest(environment, "-k", "random_scripts", "tests/sim/test_kernel_agrees.py")
        _pytest(
            environment, f"--hypothesis-seed={seed + rounds}", *(file for file in STATEFUL if (ROOT / file).exists())
        )
        rounds += 1
    return f"{rounds} rounds of Hypothesis, and {rounds * SCRIPTS} scripts on both kernels: nothing"


def _pytest(environment: dict[str, str], *words: str) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", *words]
    ended = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if ended.returncode not in (0, 5):  # 5: this kernel can't play them
        said = {name: environment[name] for name in ("FAILOVER_HYPOTHESIS", "SIM_SEED", "SIM_SCRIPTS")}
        again = " ".join([*(f"{name}={value}" for name, value in said.items()), *command[1:]])
        raise processes.Found(f"{ended.stdout[-6000:]}\n  again: {again}")


def with_the_simulator(seed: int, seconds: float) -> str:
    end, first, told = time.monotonic() + seconds, seed % (1 << 40), []
    jobs = len(os.sched_getaffinity(0))
    counts = dict.fromkeys(WORLDS, 0)
    while time.monotonic() < end:
        for name in WORLDS:
            outcome = _run(name, range(first, first + CHUNK), jobs)
            counts[name] += outcome.schedules
            for violation in outcome.violations:
                number = violation.split()[1].rstrip(",:")
                raise processes.Found(f"{violation}\n  again: python -m tests.sim --world {name} --seed {number}")
        first += CHUNK
    told = [f"{count} schedules of {name}" for name, count in counts.items()]
    return f"{', '.join(told)}: nothing"


PARTS: dict[str, Callable[[int, float], str]] = {
    "hypothesis": with_hypothesis,
    "simulator": with_the_simulator,
    "processes": processes.hunt,
}


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="make hunt", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seconds", type=float, default=120.0, help="in all")
    parser.add_argument("--seed", type=int, help="a fresh one by default")
    parser.add_argument("--only", choices=PARTS)
    options = parser.parse_args()
    seed = random.SystemRandom().randrange(1 << 32) if options.seed is None else options.seed
    chosen = [options.only] if options.only else list(PARTS)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that nothing of it stays behind
    print(f"hunt: SEED={seed}", flush=True)
    for name in chosen:
        began = time.monotonic()
        try:
            told = PARTS[name](seed, options.seconds / len(chosen))
        except KeyboardInterrupt:
            return 130
        except processes.Found as found:
            print(f"FOUND by {name}: {found}\n  the whole hunt again: make hunt S={options.seconds:g} SEED={seed}")
            return 1
        print(f"{name}: {told} ({time.monotonic() - began:.0f} s)", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
