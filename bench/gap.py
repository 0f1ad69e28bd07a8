"""The pause that a client sees in its answer when its engine is killed, through the door: beside the engine's own pace,
and beside the time that reading all contexts again takes.

    python -m bench --only gap                   a hundred kills, a quarter of an hour
    python -m bench --only gap --rounds 10

* 64 clients read an answer each, from an engine that paces itself as a large model would. When all of them have some of
  theirs, its main process is killed, and the other engine continues all 64. What counts is each client's longest gap
  between two pieces of its answer. The floor is the same from the rounds in which nothing is killed, one for every four
  kills. Each answer has to be the undisturbed one, or there are no figures.
* The same with 16 clients whose contexts are long, with `--kv drop` and with `--kv keep`, in turns. The floor is what
  the engine took to read those contexts in the first place, all together, just before: they are in its cache when the
  answers begin, else the first answer would be over before the last has begun.

What this file may not do: know how the door continues an answer.
"""

import asyncio
import contextlib
import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from bench import kv
from bench.figures import Comparison, Result
from bench.pair import Pair, house
from bench.stage import Broken
from tests.engine.kinds import REFERENCE, Kind
from tests.gateway.door import GatewayProgram, Stream
from tests.support.processes import Process

CLIENTS = 64
TOKENS_A_SECOND = 20
TOKENS = 60
HEARD = 8
"""Pieces that every client has before the kill."""
UNDISTURBED_EVERY = 4
PACE = ("--tokens-per-s", str(TOKENS_A_SECOND))
_LOOK_S = 0.002


def measure(parent: Path, kills: int, contexts: Sequence[int], rounds: int) -> Iterator[Result]:
    yield _under_load(parent, kills)
    yield from _long_contexts(parent, contexts, rounds)


def _under_load(parent: Path, kills: int) -> Comparison:
    result = Comparison(f"the longest gap of each of {CLIENTS} clients, a kill", "no kill")
    room = ("--max-batch", str(CLIENTS), "--kv-bytes", "16MiB", "--layers", "2", "--width", "64")
    arguments = (*REFERENCE.arguments, *room, *PACE)
    kind = Kind("reference", "reference", arguments, REFERENCE.path, REFERENCE.gms, REFERENCE.lock)
    with house(parent) as here:
        pair = Pair(here, kind, kv.MODEL)
        door = GatewayProgram(here).serving()
        asked = [question(f"question {number}") for number in range(CLIENTS)]
        usual = asyncio.run(read(door.port, asked))
        for number in range(kills):
            if number % UNDISTURBED_EVERY == 0:
                result.floor += map(gap_ns, asyncio.run(read(door.port, asked)))
            streams = asyncio.run(read(door.port, asked, pair.whole()[0].main()))
            if [one.alike for one in streams] != [one.alike for one in usual]:
                raise Broken("an answer is not the undisturbed one: no figure is worth anything then")
            result.ours += map(gap_ns, streams)
    return result


def _long_contexts(parent: Path, contexts: Sequence[int], rounds: int) -> Iterator[Result]:
    rng = random.Random(0)
    seen = {
        (context, cache): Comparison(
            f"the longest gap of {kv.STREAMS} clients, {context} tokens of context each, --kv {cache}",
            "reading them all the first time",
        )
        for context in contexts
        for cache in ("drop", "keep")
    }
    with contextlib.ExitStack() as stack:
        kind = kv.engine(max(contexts), kv.STREAMS * max(contexts), *PACE)
        pairs = kv.both(stack, parent, kind)
        doors = {cache: GatewayProgram(pair.house).serving() for cache, pair in pairs.items()}
        for _ in range(rounds):
            for (context, cache), result in seen.items():
                pair, door = pairs[cache], doors[cache]
                if cache == "keep":
                    kv.begin_anew(pair)
                asked = [question(kv.prompt_of(rng, context)) for _ in range(kv.STREAMS)]
                first = asyncio.run(read(door.port, [{**body, "max_tokens": 1} for body in asked]))
                streams = asyncio.run(read(door.port, asked, pair.whole()[0].main()))
                if cache == "keep":
                    kv.must_have_adopted(pair.whole()[0])
                result.ours.append(max(map(gap_ns, streams)))
                result.floor.append(round(max(one.at[-1] - one.at[0] for one in first) * 1e9))
    yield from seen.values()


def question(prompt: str | list[int], model: str = kv.MODEL, tokens: int = TOKENS) -> dict[str, Any]:
    return {"model": model, "prompt": prompt, "max_tokens": tokens, "temperature": 0, "ignore_eos": True}


async def read(port: int, asked: Sequence[dict[str, Any]], victim: Process | None = None) -> list[Stream]:
    """All of them at once, to their ends. The engine that is to die is killed when each has some of its answer."""
    streams = [Stream(body) for body in asked]
    tasks = [asyncio.create_task(one.run(port, f"q{place}")) for place, one in enumerate(streams)]
    if victim is not None:
        while any(len(one.at) <= HEARD for one in streams):
            if any(task.done() for task in tasks):
                have = sorted((len(one.at) - 1, one.status, one.error) for one in streams)
                raise Broken(f"an answer was over before its engine was killed: {have[0]} ... {have[-1]}")
            await asyncio.sleep(_LOOK_S)
        victim.kill()
    await asyncio.gather(*tasks)
    for one in streams:
        if one.status != 200 or not one.whole or one.error:
            raise Broken(f"a client has no whole answer: {one.status} {one.error} {one.raw[-300:]!r}")
    return streams


def gap_ns(stream: Stream) -> int:
    """Nanoseconds; no reader waits for the first piece."""
    return round(max(after - before for before, after in pairwise(stream.at[1:])) * 1e9)
