"""vLLM on the CPU: kill -9 -> first token from the other engine, and a cold start of the same engine in the same run.

    make bench-vllm                                          twenty kills of the main process: a quarter of an hour
    .venv-vllm/bin/python -m bench --only vllm-core          EngineCore; vllm-worker: a rank's process, of two

The rounds are those of the reference engine (`failover.py`), without its floor: a second engine that is killed and
started beside each round would take the processors for half a minute. What stands beside instead is what anybody has
without a second engine: a cold start, from the command to the first token. The model is tiny and made from a seed, so
that next to nothing of a cold start is the loading of weights.

Only for a Python that has vLLM; nothing here is part of `python -m bench` unless it is named.
"""

import importlib.util
from collections.abc import Iterator
from pathlib import Path

from bench.failover import parts
from bench.figures import Comparison, Result
from bench.pair import Pair, Victim, house, signalled
from bench.stage import Broken, directory

GOAL_MS = 300.0
GOAL_TIMES = 40
DEADLINE_S = 300.0
NAMES = {"main": "the main process", "core": "EngineCore", "worker": "a worker"}


def measure(parent: Path, part: str, ranks: int, rounds: int) -> Iterator[Result]:
    """`part`: one of NAMES."""
    if importlib.util.find_spec("vllm") is None:
        raise Broken("vLLM isn't installed in this Python: make bench-vllm has one of its own")
    from tests.vllm import pair as staged
    from tests.vllm import tiny_model

    victim = Victim(NAMES[part], signalled(lambda shim: staged.victim(shim, part)))
    with directory(parent) as scratch, house(parent, staged.ENVIRONMENT) as here:
        kind = staged.kind(tiny_model.make(scratch / "model"), ranks)
        pair = Pair(here, kind, staged.NAME, deadline_s=DEADLINE_S)
        taken = [pair.takeover(victim) for _ in range(rounds)]
    yield Comparison(
        f"vLLM, {ranks} rank{'s' * (ranks > 1)}: kill -9 of {victim.name} -> first token",
        "its cold start",
        goal_median=1 / GOAL_TIMES,
        goal_ms=GOAL_MS,
        ours=[one.total for one in taken],
        floor=[pair.cold_start_ns],
    )
    yield from parts(taken)
