"""A KV cache that outlives its engine: `--kv keep` against `--kv drop`, in turns, on the reference engine.

    python -m bench --only kv                    ten rounds, most of it `drop` reading its contexts again
    python -m bench --only kv --rounds 3 --json
    python -m bench --only kv-flat --rounds 5    only the longest gap of one answer, of 1k, 4k and 16k tokens

* kill -9 -> first token: the main process of a pair that has just answered is killed, and its successor is asked
  the same, with so many tokens of context. What `keep` takes must not grow with the context. An answer's own first
  token does: attention looks at all of it. So a line has what is left without it.
* the longest gap: several streams are being read when the engine is killed. Each goes on at the successor with what it
  has, and what counts is the longest time for which any of them got nothing.
* the price while nothing happens: the same answers, to prompts that were not asked before, from both.

An engine that has adopted a cache and dies within half a minute costs the cache (docs/inside/kv.md), which is not the
takeover that is to be measured. So between two rounds with `keep` the engine that has adopted is killed once more, and
the one that follows begins with new memory. The successor's log says that it has adopted, or the round is an error.

The model is as small as it can be, so that 32k tokens can be read at all; nothing here says how long another one takes.
"""

import asyncio
import contextlib
import random
import re
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from bench.figures import Comparison, Result
from bench.pair import MAIN, TOKEN_IDS, Pair, Takeover, house, question
from bench.stage import Broken
from gms.memory.host_device import GRANULARITY
from sidecar.wire.sockets import address_of
from tests.engine.kinds import Kind
from tests.engine.shims import Shim

MODEL = "reference"
FLAT = 1.5
PRICE = 1 / 0.99
STREAMS = 16
HEARD = 8
"""Tokens of each stream before the kill, and again after it."""
ANSWER = 256
PROMPT = 16
DEADLINE_S = 900.0
_WHY = re.compile(r" kv adopted=\d+ dropped=\d+ why=(\w+)")
_BLOCK, _BLOCK_BYTES = 16, 4096
_NEWS_S = 0.001
_LINE_BYTES = 4 << 20
"""The first piece of an answer has the whole prompt in it."""


@dataclass
class _Series:
    keep: list[int] = field(default_factory=list)
    drop: list[int] = field(default_factory=list)

    def against(self, what: str, goal: float | None = None) -> Comparison:
        return Comparison(what, "--kv drop", goal_median=goal, ours=self.keep, floor=self.drop)


@dataclass
class _Stream:
    """One answer, which may be read from two engines."""

    prompt: list[int]
    tokens: list[int] = field(default_factory=list)
    times: list[int] = field(default_factory=list)
    asked: int = 0

    @property
    def gaps(self) -> list[int]:
        return [after - before for before, after in zip(self.times, self.times[1:], strict=False)]

    async def read(self, url: str, count: int) -> None:
        """Until there are so many, or it breaks off."""
        self.asked = self.asked or time.monotonic_ns()
        body = question(MODEL, self.prompt + self.tokens, ANSWER - len(self.tokens))
        with address_of(Path(url.removeprefix("unix:"))) as address:
            reader, writer = await asyncio.open_unix_connection(address, limit=_LINE_BYTES)
        try:
            head = "POST /v1/completions HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Type: application/json\r\n"
            writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
            while len(self.tokens) < count and (line := await reader.readline()):
                for found in TOKEN_IDS.findall(line):
                    self.tokens += [int(token) for token in found.split(b",")]
                    self.times.append(time.monotonic_ns())
        except OSError:
            return
        finally:
            writer.close()


def measure(parent: Path, contexts: Sequence[int], of_streams: Sequence[int], rounds: int) -> Iterator[Result]:
    """`contexts`: tokens of one answer's context; `of_streams`: tokens of the context of each of several."""
    rng = random.Random(0)
    with contextlib.ExitStack() as stack:
        kind = engine(max(*contexts, *of_streams), max(*contexts, STREAMS * max(of_streams)))
        keep, drop = both(stack, parent, kind).values()
        first, more, cache = ({context: _Series() for context in contexts} for _ in range(3))
        gaps = {context: _Series() for context in of_streams}
        price, between = _Series(), _Series()
        for _ in range(rounds):
            for context in contexts:
                prompt = prompt_of(rng, context)
                for pair, one, net, other in (
                    (keep, first[context].keep, more[context].keep, cache[context].keep),
                    (drop, first[context].drop, more[context].drop, cache[context].drop),
                ):
                    played = _taken_over(pair, prompt, adopts=pair is keep)
                    one.append(played.total)
                    net.append(played.total - played.beside)
                    other.append(played.phases["KV cache created"])
            for context in of_streams:
                prompts = [prompt_of(rng, context) for _ in range(STREAMS)]
                gaps[context].keep.append(_longest_gap(keep, prompts, adopts=True))
                gaps[context].drop.append(_longest_gap(drop, prompts, adopts=False))
            prompts = [prompt_of(rng, PROMPT) for _ in range(STREAMS)]
            for pair, took, betweens in ((keep, price.keep, between.keep), (drop, price.drop, between.drop)):
                streams = [_Stream(prompt) for prompt in prompts]
                pair.whole()
                asyncio.run(_all(streams, pair.house.endpoint(), ANSWER))
                took.append(max(one.times[-1] for one in streams) - min(one.asked for one in streams))
                betweens += [gap for one in streams for gap in one.gaps]
    for context in contexts:
        yield first[context].against(f"--kv keep: kill -9 -> first token, {context} tokens of context")
    short, long = first[min(contexts)], first[max(contexts)]
    what = f"--kv keep: {max(contexts)} tokens of context"
    yield Comparison(what, f"{min(contexts)} tokens", FLAT, ours=long.keep, floor=short.keep)
    short, long = more[min(contexts)], more[max(contexts)]
    what = "    less what the same answer takes when nothing happens"
    yield Comparison(what, f"{min(contexts)} tokens", ours=long.keep, floor=short.keep)
    yield cache[max(contexts)].against(f"    of it the KV cache, {max(contexts)} tokens of context")
    for context in of_streams:
        yield gaps[context].against(f"--kv keep: longest gap of {STREAMS} streams, {context} tokens of context each")
    yield price.against(f"--kv keep, no kill: {STREAMS} answers of {ANSWER} tokens", PRICE)
    yield between.against("    between two tokens of one of them")


def measure_flat(parent: Path, contexts: Sequence[int], rounds: int) -> Iterator[Result]:
    """The longest gap of one answer whose engine is killed: both kinds and all contexts in turns, so that a machine
    that becomes busy is so for all of them.
    """
    rng = random.Random(0)
    with contextlib.ExitStack() as stack:
        keep, drop = both(stack, parent, engine(max(contexts), max(contexts))).values()
        gaps = {context: _Series() for context in contexts}
        for _ in range(rounds):
            for context, series in gaps.items():
                prompts = [prompt_of(rng, context)]
                series.keep.append(_longest_gap(keep, prompts, adopts=True))
                series.drop.append(_longest_gap(drop, prompts, adopts=False))
    for context in contexts:
        yield gaps[context].against(f"--kv keep: longest gap of an answer, {context} tokens of context")
    yield from flat("--kv keep", {context: series.keep for context, series in gaps.items()})


def flat(what: str, keep: dict[int, list[int]]) -> Iterator[Result]:
    """What must not grow with the context: each against the shortest."""
    first, *others = sorted(keep)
    for context in others:
        said = f"{what}: {context} tokens of context"
        yield Comparison(said, f"{first} tokens", FLAT, ours=keep[context], floor=keep[first])


def both(
    stack: contextlib.ExitStack,
    parent: Path,
    kind: Kind,
    model: str = MODEL,
    environment: dict[str, str] | None = None,
) -> dict[str, Pair]:
    """A pair that keeps its cache, and one that doesn't, each at servers of its own."""
    return {
        cache: Pair(
            stack.enter_context(house(parent, environment)), kind, model, "ab", ("--kv", cache), DEADLINE_S, kind.lock
        )
        for cache in ("keep", "drop")
    }


def engine(longest: int, cached: int, *more: str) -> Kind:
    """An engine whose cache has room for so many tokens at once. Its device has room for one such cache."""
    blocks = -(-cached // _BLOCK) + STREAMS * (ANSWER // _BLOCK + 1)
    kv_bytes = -(-max(blocks * _BLOCK_BYTES, 4 << 20) // GRANULARITY) * GRANULARITY
    arguments = (
        *("--layers", "1", "--width", "32", "--heads", "2", "--hidden", "32", "--max-batch", str(STREAMS)),
        *("--max-model-len", str(longest + ANSWER), "--kv-bytes", str(kv_bytes)),
        *more,
    )
    gms = ("--devices", "host:0", "--capacity", str(kv_bytes + (8 << 20)))
    return Kind("reference", "reference", arguments, "/v1/models", gms, ("--memory", "host"))


def prompt_of(rng: random.Random, tokens: int) -> list[int]:
    return [rng.randrange(256) for _ in range(tokens)]


def _taken_over(pair: Pair, prompt: list[int], *, adopts: bool) -> Takeover:
    if adopts:
        begin_anew(pair)
    pair.asks(prompt)
    pair.ask()  # so that it is in the cache when the takeover's own question shows what an answer takes
    played = pair.takeover(MAIN)
    if adopts:
        must_have_adopted(pair.whole()[0])
    return played


def _longest_gap(pair: Pair, prompts: list[list[int]], *, adopts: bool) -> int:
    if adopts:
        begin_anew(pair)
    active, standby = pair.whole()
    streams = [_Stream(prompt) for prompt in prompts]
    asyncio.run(_broken(pair, streams, active))
    pair.until(lambda: standby.state()["state"] == "Active", "the successor's shim to have heard of it")
    if adopts:
        must_have_adopted(standby)
    return max(max(one.gaps) for one in streams)


async def _broken(pair: Pair, streams: list[_Stream], active: Shim) -> None:
    """All of them are under way when the engine is killed, and each goes on."""
    old, main = pair.house.endpoint(), active.main()
    reading = asyncio.create_task(_all(streams, old, ANSWER))
    while any(len(one.tokens) < HEARD for one in streams):
        await asyncio.sleep(_NEWS_S)
        if reading.done():
            raise Broken("an answer ended before the engine was killed")
    heard = [len(one.tokens) for one in streams]
    main.kill()
    await reading
    if any(len(one.tokens) == ANSWER for one in streams):
        raise Broken("an answer ended before the engine was killed: give the model more to do")
    while (url := await asyncio.to_thread(pair.house.endpoint)) in ("", old):
        await asyncio.sleep(_NEWS_S)
    await _all(streams, url, min(max(heard) + HEARD, ANSWER))


async def _all(streams: list[_Stream], url: str, count: int) -> None:
    async with asyncio.TaskGroup() as group:
        for one in streams:
            group.create_task(one.read(url, count))


def begin_anew(pair: Pair) -> None:
    """Kills until the engine that serves has adopted nothing, so that its own end counts as a first death."""
    while why_adopted(active := pair.whole()[0]) == "none":
        pair.end_of(MAIN)
        pair.until(partial(_has_ended, active), "the killed engine's shim to notice")


def _has_ended(shim: Shim) -> bool:
    return bool(shim.state()["state"] != "Active")


def must_have_adopted(shim: Shim) -> None:
    if (why := why_adopted(shim)) != "none":
        raise Broken(f"{shim.engine_id} has not adopted its predecessor's KV cache: {why}")


def why_adopted(shim: Shim) -> str:
    """What its last wake said of the cache."""
    said = _WHY.findall(shim.said())
    return said[-1] if said else ""
