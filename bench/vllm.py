"""vLLM on the CPU: kill -9 -> first token from the other engine, and a cold start of the same engine in the same run.

    make bench-vllm                                          twenty kills of the main process: a quarter of an hour
    .venv-vllm/bin/python -m bench --only vllm-core          EngineCore; vllm-worker: a rank's process, of two
    .venv-vllm/bin/python -m bench --only vllm-turns         two models take turns, in place and by stop and start
    .venv-vllm/bin/python -m bench --only vllm-flat          a cache that is kept, of 1k, 4k and 16k tokens, in turns

The rounds are those of the reference engine (`failover.py`), without its floor: a second engine that is killed and
started beside each round would take the processors for half a minute. What stands beside instead is what a user has
without a second engine: a cold start, from the command to the first token. The model is tiny and made from a seed, so
that next to nothing of a cold start is the loading of weights.

`vllm-flat` is the longest gap of one client's answer through the door, with `--kv keep` and with `--kv drop`. Beside
it stands what an engine takes to which nothing happens: the first token of an answer whose context is in its cache, and
the time between two tokens. The parts of a gap are the door's own figures. An engine that has adopted a cache is killed
only when its death doesn't cost the cache any more.

Only for a Python that has vLLM; nothing here is part of `python -m bench` unless it is named.
"""

import asyncio
import contextlib
import importlib.util
import os
import random
import statistics
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from bench import gap, kv
from bench.failover import parts
from bench.figures import Comparison, Part, Reading, Result
from bench.pair import TOKENS, Pair, Victim, house, question, signalled
from bench.stage import Broken, directory
from bench.turns import Turn
from gms.memory.host_device import GRANULARITY
from gms.rules.exclusive import SECOND_DEATH_S
from tests.engine.kinds import Kind
from tests.engine.many import Host
from tests.gateway.door import GatewayProgram

GOAL_MS = 300.0
GOAL_TIMES = 40
SWAP_GOAL_TIMES = 20
DEADLINE_S = 300.0
ANSWER = 1024
"""Tokens: so many that an answer isn't over before its client, on a busy machine, has seen it begin."""
WAKE = "of it the wake"
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


def measure_turns(parent: Path, rounds: int) -> Iterator[Result]:
    """The turns of `turns.py`. Beside each the engine that woke is stopped and started again, which is what other
    programs that swap models do; its weights are in GMS already, so that it reads none from a disk.
    """
    if importlib.util.find_spec("vllm") is None:
        raise Broken("vLLM isn't installed in this Python: make bench-vllm has one of its own")
    from tests.vllm import pair as staged
    from tests.vllm import tiny_model

    body = question(staged.NAME, staged.PROMPT, TOKENS)
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(directory(parent))
        here = stack.enter_context(house(parent, staged.ENVIRONMENT))
        os.environ["FAILOVER_HOST_DEVICES"] = str(here.devices)
        host = Host(here)
        kinds = [staged.kind(tiny_model.make(scratch / f"model{seed}", seed), 1) for seed in range(2)]
        asleep, awake = (Turn(host, f"m{n}", stack, kind, body, DEADLINE_S) for n, kind in enumerate(kinds))
        for turn in (asleep, awake):
            turn.wakes()
            if turn is asleep:
                turn.sleeps()
        swaps, restarts = [], []
        for number in range(1 + rounds):
            took = asleep.swapped(awake)
            awake, asleep = asleep, awake
            cold = awake.restarts()
            if number:
                swaps.append(took)
                restarts.append(cold)
    yield Comparison(
        "vLLM, a wish for the other model -> its first token",
        "stop and start of the same engine",
        goal_median=1 / SWAP_GOAL_TIMES,
        ours=swaps,
        floor=restarts,
    )


@dataclass
class _Series:
    """Of one context and one kind of cache. Nanoseconds."""

    gaps: list[int] = field(default_factory=list)
    first: list[int] = field(default_factory=list)
    """The first token of an answer whose context is in the cache."""
    between: list[int] = field(default_factory=list)
    """The median of each answer's, from its end."""
    parts: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    """Of the gap, as the door counts them; and of the time until there was another engine, its wake."""


def measure_flat(parent: Path, contexts: Sequence[int], rounds: int) -> Iterator[Result]:
    if importlib.util.find_spec("vllm") is None:
        raise Broken("vLLM isn't installed in this Python: make bench-vllm has one of its own")
    from tests.vllm import pair as staged
    from tests.vllm import tiny_model

    rng = random.Random(0)
    found = {(context, cache): _Series() for context in contexts for cache in ("keep", "drop")}
    with contextlib.ExitStack() as stack:
        scratch = stack.enter_context(directory(parent))
        kind = _roomy(staged.kind(tiny_model.make(scratch / "model"), 1), max(contexts) + ANSWER)
        pairs = kv.both(stack, parent, kind, staged.NAME, staged.ENVIRONMENT)
        doors = {cache: GatewayProgram(pair.house).serving() for cache, pair in pairs.items()}
        for _ in range(rounds):
            for (context, cache), series in found.items():
                pair, door = pairs[cache], doors[cache]
                _break_one(pair, door, kv.prompt_of(rng, context), series)
                if cache == "keep":
                    kv.must_have_adopted(next(shim for shim in pair.shims if shim.engine_id == pair.house.holder()))
    for context in contexts:
        keep, drop = found[context, "keep"], found[context, "drop"]
        what = f"vLLM, --kv keep: longest gap of an answer, {context} tokens of context"
        yield Comparison(what, "--kv drop", ours=keep.gaps, floor=drop.gaps)
        yield Comparison(
            "    beside its own first token when nothing happens", "that", ours=keep.gaps, floor=keep.first
        )
        yield Reading("    between two of its tokens", statistics.median(keep.between) / 1e6, "ms")
        for name, spent in keep.parts.items():
            yield Part(name, spent, keep.gaps)
    yield from kv.flat("vLLM, --kv keep", {context: found[context, "keep"].gaps for context in contexts})


def _break_one(pair: Pair, door: GatewayProgram, prompt: list[int], series: _Series) -> None:
    """One client's answer, whose engine is killed in its middle. Its context is in the cache before."""
    _may_die(pair)
    asked = [gap.question(prompt, pair.model, ANSWER)]
    for _ in range(2):
        (short,) = asyncio.run(gap.read(door.port, [{**asked[0], "max_tokens": 1}]))
    series.first.append(round((short.at[1] - short.at[0]) * 1e9))
    (broken,) = asyncio.run(gap.read(door.port, asked, pair.whole()[0].main()))
    series.gaps.append(gap.gap_ns(broken))
    shim = next(shim for shim in pair.shims if shim.engine_id == pair.house.holder())
    pair.until(lambda: shim.state()["state"] == "Active", "all that the engine has said of its wake")
    series.parts[WAKE].append(round(shim.state()["phases_s"]["wake"] * 1e9))
    for name, spent_ms in door.state()["pairs"][0]["last_failover"]["gap_ms"]["parts_p50"].items():
        series.parts[name].append(round(spent_ms * 1e6))
    later = list(pairwise(broken.at[-ANSWER // 2 :]))
    series.between.append(round(statistics.median(after - before for before, after in later) * 1e9))


def _may_die(pair: Pair) -> None:
    """Waits until the death of who serves costs its successor nothing: it isn't one soon after an adoption."""
    active = pair.whole()[0]
    if kv.why_adopted(active) == "none":
        pair.until(lambda: active.state()["for_s"] > SECOND_DEATH_S, "an engine that has served for a while")


def _roomy(kind: Kind, longest: int) -> Kind:
    """The same with a longer model, and room for one such answer and a bit. Blocks have vLLM's own size."""
    size = -(-(longest + 4096 << 10) // GRANULARITY) * GRANULARITY  # a KiB for each token
    words = list(kind.arguments)
    for flag, value in (("--max-model-len", longest), ("--kv-cache-memory-bytes", size)):
        words[words.index(flag) + 1] = str(value)
    block = words.index("--block-size")
    del words[block : block + 2]
    words += ["--hf-overrides", f'{{"max_position_embeddings": {longest}}}']
    gms = list(kind.gms)
    gms[gms.index("--capacity") + 1] = str(size + (12 << 20))
    return Kind(kind.name, kind.engine, tuple(words), kind.path, tuple(gms), kind.lock)
