"""The pool, simulated.

python -m tests.pool                             policies side by side, on each kind of traffic
python -m tests.pool --only bursts --seconds 600 --seed 7

Seeded schedules with faults (`schedules.py`) are a world of the simulator: python -m tests.sim --world pool
"""

import argparse
import random
import sys

from bench.traffic import kinds
from sidecar.terminal import table
from tests.pool import peers
from tests.pool.house import HouseWorld
from tests.pool.world import Figures, Kind, PeerWorld, World

CAPACITY = 100
"""Of the device. Of two models each takes 60, so one fits; of four or eight each takes 45, so two do."""
COLUMNS = ("requests", "whole", "refused", "cut", "p50 s", "p99 s", "longest s", "pause p99 s", "swapping")


def worlds(names: tuple[str, ...], seed: int) -> dict[str, World]:
    size = 60 if len(names) == 2 else 45
    many = [Kind(name, size) for name in names]
    return {
        "ours": HouseWorld(many, CAPACITY, seed),
        "llama-swap": PeerWorld(many, CAPACITY, seed, peers.LlamaSwap, cold=True),
        "llama-swap's rule, our engines": PeerWorld(many, CAPACITY, seed, peers.LlamaSwap, cold=False),
        "Ollama": PeerWorld(many, CAPACITY, seed, peers.Ollama, cold=True),
        "Ollama's rule, our engines": PeerWorld(many, CAPACITY, seed, peers.Ollama, cold=False),
        "drain for 30 s, then cut": PeerWorld(many, CAPACITY, seed, peers.Draining, cold=True),
    }


def measured(kind: str, seconds: float, seed: int, only: str = "") -> dict[str, Figures]:
    names, _ = kinds(random.Random(seed))[kind]
    found = {}
    for policy, world in worlds(names, seed).items():
        if only in policy:
            world.play(kinds(random.Random(seed))[kind][1])
            world.run(seconds)
            found[policy] = world.figures()
    return found


def row(f: Figures) -> list[str]:
    times = (f.p50_s, f.p99_s, f.longest_s, f.pause_p99_s)
    return (
        [str(count) for count in (f.requests, f.whole, f.refused, f.cut)]
        + [f"{s:.1f}" for s in times]
        + [f"{f.share:.1%}"]
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=3600.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", default="", help="kinds of traffic whose name has this in it")
    options = parser.parse_args()
    for kind in kinds(random.Random(0)):
        if options.only in kind:
            rows = [(policy, *row(f)) for policy, f in measured(kind, options.seconds, options.seed).items()]
            print(f"\n{kind} ({options.seconds:g} s, seed {options.seed})")
            print("\n".join(table.lines([("", *COLUMNS), *rows], right=range(1, 10))))
    return 0


if __name__ == "__main__":
    sys.exit(main())
