"""How long a pair of vLLM engines on the CPU is without a first token after a kill, and how long a start takes instead.

    python -m tests.vllm.measure [--rounds 5] [--ranks 1] [--victim main|core|worker]

Each round kills a process of whoever serves, asks the other as soon as that is announced, and waits until the killed
engine is back as the standby. Nothing is left out. It says what else the machine was doing: the load, before.
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from pathlib import Path

from lockserver.onlooker import Onlooker

os.environ.setdefault("FAILOVER_CHAOS_DEADLINE_S", "300")

from tests.engine.house import House
from tests.vllm import tiny_model
from tests.vllm.pair import ENVIRONMENT, Pair, ask, end, victim


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--ranks", type=int, default=1, help="tensor parallel size")
    parser.add_argument("--victim", choices=["main", "core", "worker"], default="main")
    options = parser.parse_args()
    shm = Path("/dev/shm")
    directory = Path(tempfile.mkdtemp(prefix="failover-vllm-", dir=shm if shm.is_dir() else None))
    house = House(directory)
    house.environment.update(ENVIRONMENT)
    try:
        _measure(house, directory, options)
    finally:
        end(house)
        house.close()
        shutil.rmtree(directory, ignore_errors=True)


def _measure(house: House, directory: Path, options: argparse.Namespace) -> None:
    load = os.getloadavg()[0]
    _say(
        f"{os.cpu_count()} cores, load {load:.1f} before; tensor parallel {options.ranks}; kill -9 of {options.victim}"
    )
    pair = Pair(house, tiny_model.make(directory / "model"), options.ranks)
    _say(f"cold start of one engine, from nothing to its first token: {pair.cold_start_s:.2f} s")
    _say(f"{'round':>5} {'granted':>9} {'announced':>10} {'first token':>12} {'same tokens':>12} {'whole again':>12}")
    firsts = []
    for number in range(1, options.rounds + 1):
        active, _ = pair.whole()
        before, old = pair.tokens(), house.endpoint()
        target = victim(active, options.victim)
        with Onlooker(house.run_dir) as onlooker:
            changes = onlooker.watch()
            next(changes)
            began = time.monotonic()
            target.signal(9)
            granted = announced = 0.0
            url = ""
            while not url:
                holder = next(changes).holder
                now = time.monotonic() - began
                if holder is not None and holder.engine_id != active.engine_id:
                    granted = granted or now
                    if holder.endpoint and holder.endpoint != old:
                        announced, url = now, holder.endpoint
        answer = ask(url, len(before))
        pieces = answer.pieces()
        tokens: list[int] = []
        while not tokens:
            for choice in next(pieces)["choices"]:
                tokens += choice.get("token_ids") or []
        first = time.monotonic() - began
        tokens += answer.tokens()
        pair.whole()
        whole = time.monotonic() - began
        firsts.append(first)
        same = "yes" if tokens == before else "NO"
        _say(
            f"{number:>5} {granted * 1e3:>6.0f} ms {announced * 1e3:>7.0f} ms {first * 1e3:>9.0f} ms {same:>12} "
            f"{whole:>10.1f} s"
        )
    median = statistics.median(firsts)
    _say(
        f"kill -> first token: median {median * 1e3:.0f} ms, {min(firsts) * 1e3:.0f} to {max(firsts) * 1e3:.0f}; "
        f"a cold start takes {pair.cold_start_s / median:.0f} times as long"
    )


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
