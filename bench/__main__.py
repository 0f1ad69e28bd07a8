"""The command: what to measure, the table, the JSON. The measuring is in the modules beside it."""

import argparse
import gc
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from bench import (
    failover,
    gap,
    handoff,
    hold,
    kv,
    lease,
    pair,
    parking,
    pod,
    rest,
    snapshot,
    stage,
    turns,
    vllm,
    weights,
)
from bench.figures import Result, machine, table

EXAMPLES = """\
examples:
  python -m bench                          everything but what has to be named, in about twenty minutes
  python -m bench --quick                  does it all work? A few rounds of each; the figures mean little
  python -m bench --only handoff           one of: {names};
                                           or, which has to be named: {named}
                                           (vllm-* with vLLM's own Python: make bench-vllm)
  python -m bench --rounds 1000 --only handoff --only crowd
  python -m bench --disk-dir /var/tmp      which disk

Every ratio is to a floor that was measured in the same run and in turns. A missed goal is said in the table and is no
error: the exit code is 1 only when something breaks. docs/inside/measurements.md tells how to read the table.
"""


@dataclass(frozen=True)
class Size:
    """How much of everything."""

    rounds: int
    disk_rounds: int
    crowd_rounds: int
    start_rounds: int
    connections: int
    rest_s: float
    weights_bytes: int = 4 << 30
    tensors: int = 10_000
    heavy_rounds: int = 10
    """Rounds of what takes a new process each."""
    kills: int = 200
    """An engine takes a second to come back, and vLLM most of a minute."""
    stalls: int = 50
    vllm_kills: int = 20
    contexts: tuple[int, ...] = (1 << 10, 8 << 10, 32 << 10)
    """Tokens of one stream's context."""
    flat_contexts: tuple[int, ...] = (1 << 10, 4 << 10, 16 << 10)
    stream_contexts: tuple[int, ...] = (1 << 10, 8 << 10)
    """Each of sixteen streams has so many. To read sixteen of 32k again is a matter of many minutes."""
    gap_kills: int = 100
    gap_rounds: int = 3
    pod_rounds: int = 10
    """A round is a pod from its start to its end, and the death of each container's first process."""
    pod_kills: int = 100
    pod_rest_s: float = 60.0


FULL = Size(rounds=400, disk_rounds=100, crowd_rounds=120, start_rounds=20, connections=1000, rest_s=3.0)
QUICK = Size(
    rounds=5,
    disk_rounds=3,
    crowd_rounds=3,
    start_rounds=2,
    connections=50,
    rest_s=0.3,
    weights_bytes=64 << 20,
    tensors=500,
    heavy_rounds=2,
    kills=2,
    stalls=1,
    vllm_kills=2,
    contexts=(128, 512),
    flat_contexts=(128, 512),
    stream_contexts=(128,),
    gap_kills=2,
    gap_rounds=1,
    pod_rounds=1,
    pod_kills=2,
    pod_rest_s=5.0,
)


@dataclass(frozen=True)
class Where:
    tmpfs: Path
    disk: Path


Bench = Callable[[Where, Size], Iterator[Result]]

BENCHES: dict[str, Bench] = {
    "handoff": lambda w, n: handoff.measure(w.tmpfs, "tmpfs", n.rounds, goals=True),
    "handoff-rested": lambda w, n: handoff.measure_rested(w.tmpfs, n.disk_rounds),
    "handoff-disk": lambda w, n: handoff.measure(w.disk, "disk", n.disk_rounds, goals=False),
    "crowd": lambda w, n: handoff.measure_crowd(w.tmpfs, n.crowd_rounds, n.connections),
    "rest": lambda w, n: rest.measure(w.tmpfs, n.connections, n.rest_s),
    "start": lambda w, n: rest.measure_start(w.tmpfs, n.start_rounds),
    "hold": lambda w, n: hold.measure(w.tmpfs, n.disk_rounds),
    "lease": lambda w, n: lease.measure(w.tmpfs, n.disk_rounds),
    "leases": lambda w, n: lease.measure_memory(w.tmpfs, n.connections),
    "weights-bind": lambda w, n: weights.measure_bind(w.tmpfs, n.weights_bytes, n.tensors, n.disk_rounds),
    "weights-wake": lambda w, n: weights.measure_wake(w.tmpfs, n.weights_bytes, n.tensors, n.rounds),
    "weights-read": lambda w, n: weights.measure_read(w.tmpfs, n.weights_bytes, n.tensors),
    "weights-publish": lambda w, n: weights.measure_publish(w.tmpfs, n.weights_bytes, n.tensors),
    "weights-request": lambda w, n: weights.measure_request(w.tmpfs, n.rounds),
    "weights-back": lambda w, n: weights.measure_hand_back(w.tmpfs, n.weights_bytes, n.tensors, n.heavy_rounds),
    "snapshot": lambda w, n: snapshot.measure(w.tmpfs, w.disk, n.weights_bytes // 4, n.heavy_rounds),
    "parking": lambda w, n: parking.measure(w.tmpfs, n.weights_bytes // 4, n.heavy_rounds),
    "failover-main": lambda w, n: failover.measure(w.tmpfs, pair.MAIN, n.kills),
    "failover-worker": lambda w, n: failover.measure(w.tmpfs, pair.WORKER, n.kills),
    "failover-group": lambda w, n: failover.measure(w.tmpfs, pair.GROUP, n.kills),
    "turns": lambda w, n: turns.measure(w.tmpfs, n.kills),
    "failover-stall": lambda w, n: failover.measure_stall(w.tmpfs, n.stalls),
}
NAMED: dict[str, Bench] = {
    "kv": lambda w, n: kv.measure(w.tmpfs, n.contexts, n.stream_contexts, n.heavy_rounds),
    "kv-flat": lambda w, n: kv.measure_flat(w.tmpfs, n.flat_contexts, n.heavy_rounds),
    "turns-kv": lambda w, n: turns.measure_kv(w.tmpfs, n.flat_contexts, n.heavy_rounds),
    "gap": lambda w, n: gap.measure(w.tmpfs, n.gap_kills, n.stream_contexts, n.gap_rounds),
    "vllm-main": lambda w, n: vllm.measure(w.tmpfs, "main", 1, n.vllm_kills),
    "vllm-core": lambda w, n: vllm.measure(w.tmpfs, "core", 1, n.vllm_kills),
    "vllm-worker": lambda w, n: vllm.measure(w.tmpfs, "worker", 2, n.vllm_kills),
    "vllm-turns": lambda w, n: vllm.measure_turns(w.tmpfs, n.vllm_kills),
    "vllm-flat": lambda w, n: vllm.measure_flat(w.tmpfs, n.flat_contexts, n.heavy_rounds),
    "pod": lambda w, n: pod.measure(w.tmpfs, n.pod_rounds, n.pod_kills, n.pod_rest_s),
}
"""Only when they are named: they take long, or need vLLM or local-pod."""


def main(argv: list[str] | None = None) -> int:
    options = _parser().parse_args(argv)
    size = QUICK if options.quick else FULL
    if options.rounds:
        n = options.rounds
        size = replace(size, rounds=n, disk_rounds=n, crowd_rounds=n, start_rounds=n, heavy_rounds=n)
        size = replace(size, kills=n, stalls=n, vllm_kills=n, gap_kills=n, gap_rounds=n, pod_rounds=n, pod_kills=n)
    if not options.disk_dir.is_dir():
        print(f"bench: {options.disk_dir} is no directory; give another one with --disk-dir", file=sys.stderr)
        return 1
    if options.json is not None:
        try:
            options.json.open("a").close()
        except OSError as error:
            print(f"bench: {options.json} can't be written: {error.strerror}", file=sys.stderr)
            return 1
    tmpfs = options.tmpfs_dir if options.tmpfs_dir.is_dir() else options.disk_dir
    where = Where(tmpfs, options.disk_dir)
    kinds = {name: stage.filesystem(path) for name, path in (("tmpfs", tmpfs), ("disk", options.disk_dir))}
    for name, kind in kinds.items():
        if (kind == "tmpfs") is not (name == "tmpfs"):
            print(f'note: what is called "{name}" below is {kind}; choose another with --{name}-dir', file=sys.stderr)
    here = machine()
    results: dict[str, list[Result]] = {}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that the stage is cleared then, too
    gc.freeze()  # what is here by now is shared with every child, and no collection touches it
    began, broken = time.monotonic(), False
    try:
        for name in options.only or BENCHES:
            print(f"measuring {name} ...", file=sys.stderr, flush=True)
            results[name] = list((BENCHES | NAMED)[name](where, size))
    except (stage.Broken, OSError) as error:
        print(f"bench: {error}", file=sys.stderr)
        broken = True  # what was measured before is still worth reading
    except KeyboardInterrupt:
        print("bench: stopped; nothing is left of it", file=sys.stderr)
        return 130
    if not results:
        return 1
    print(table(result for each in results.values() for result in each))
    took_s = time.monotonic() - began
    print(f"\n{here['date']}, Linux {here['kernel']}, {here['cpus']} x {here['cpu']}, Python {here['python']}")
    print(f"load {here['load']} before; {took_s:.0f} s; disk: {kinds['disk']}")
    if options.json is not None:
        document = {
            "machine": {**here, "filesystems": kinds},
            "results": {name: [result.json() for result in each] for name, each in results.items()},
        }
        options.json.write_text(json.dumps(document, indent=2) + "\n", encoding="utf-8")
    return int(broken)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m bench",
        description="The benchmarks: each a ratio to a floor measured in the same run.",
        epilog=EXAMPLES.format(names=", ".join(BENCHES), named=", ".join(NAMED)),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "--only", action="append", choices=[*BENCHES, *NAMED], metavar="NAME", help="only this one; may be repeated"
    )
    parser.add_argument("--quick", action="store_true", help="a few rounds of each, to see that it works")
    parser.add_argument("--rounds", type=_positive, metavar="N", help="this many rounds of everything")
    parser.add_argument(
        "--json",
        type=Path,
        nargs="?",
        const=Path("bench-results.json"),
        metavar="FILE",
        help="write the figures there too (default: bench-results.json)",
    )
    parser.add_argument("--tmpfs-dir", type=Path, default=stage.TMPFS, metavar="DIR", help="default: %(default)s")
    parser.add_argument(
        "--disk-dir", type=Path, default=Path(tempfile.gettempdir()), metavar="DIR", help="default: %(default)s"
    )
    return parser


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError("at least 1")
    return number


if __name__ == "__main__":
    sys.exit(main())
