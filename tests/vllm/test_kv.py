"""The KV cache of vLLM outlives its engine, with one rank and with two. The next engine reuses every token of every
full block, by vLLM's own count, and the answers go on as a cold engine would have gone on: the same engine, started
again where no engine took over; the other one, after a kill in the middle of answers; and after a switchover.

FAILOVER_KV_TURNS=10 makes test-vllm ONLY=test_kv      so many switchovers, and nothing grows; by default there is one

All of them go through one pair, in this order; each can be run alone.
"""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gms.rules.exclusive import SECOND_DEATH_S
from tests.engine import census
from tests.engine.shims import Program, Shim
from tests.support.waiting import NEVER_S, until
from tests.vllm.conftest import _apart, _house
from tests.vllm.pair import BLOCK, NAME, Pair, _Unix, asked, kept, victim

ANSWER = 120
HEARD = 50
"""Tokens of an answer until the engine is killed."""
SHARED = "what they have in common is long enough for a few blocks, so that all of them build on each other: " * 2
PROMPTS = [SHARED[: 70 + 40 * number] + f"and this is number {number}" for number in range(4)]
STUCK = "of this one no step is ever finished on every rank: " * 4
TURNS = int(os.environ.get("FAILOVER_KV_TURNS", "1"))
BOUNDS = ("--stall-s", "60", "--waking-timeout-s", "60")


@pytest.fixture(scope="module", params=[_apart(1), _apart(2)])
def keeping(request: pytest.FixtureRequest, model: Path) -> Iterator[Pair]:
    """The first engine serves. The second one is started by `both`."""
    for house in _house():
        pair = Pair(house, model, request.param)
        house.start_lock(*pair.kind.lock)
        house.start_gms(pair.kind)
        pair.shims = (pair.shim("a", *BOUNDS, "--kv", "keep"),)
        house.until_announced(pair.shims[0])
        yield pair
        print(pair._said())  # is shown if a test fails


def both(pair: Pair) -> tuple[Shim, Shim]:
    if len(pair.shims) == 1:
        pair.shims = (*pair.shims, pair.shim("b", *BOUNDS, "--kv", "keep"))
    return pair.whole()


class Stream:
    """One answer, by token ids."""

    def __init__(self, url: str, prompt: str | list[int], count: int) -> None:
        body: dict[str, Any] = {"model": NAME, "prompt": prompt, "max_tokens": count, "temperature": 0}
        body |= {"ignore_eos": True, "stream": True, "return_token_ids": True}
        self._connection = _Unix(url.removeprefix("unix:"))
        self._connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json"})
        self._response = self._connection.getresponse()
        assert self._response.status == 200, self._response.read()
        self.prompt: list[int] = []
        self.tokens: list[int] = []

    def read(self, count: int) -> "Stream":
        """Until there are so many, or it ends."""
        while len(self.tokens) < count:
            line = self._response.readline()
            if not line or line.startswith(b"data: [DONE]"):
                break
            if line.startswith(b"data: {"):
                choice = json.loads(line[6:])["choices"][0]
                self.prompt = self.prompt or choice.get("prompt_token_ids") or []
                self.tokens += choice.get("token_ids") or []
        return self

    def close(self) -> None:
        self._connection.close()


def answers(pair: Pair) -> list[Stream]:
    """To all prompts, undisturbed."""
    url = pair.house.endpoint()
    streams = [Stream(url, prompt, ANSWER) for prompt in PROMPTS]
    return [stream.read(ANSWER) for stream in streams]


def hits(pair: Pair) -> float:
    """Tokens that vLLM has found in its prefix cache."""
    lines = pair.house.ask("/metrics").splitlines()
    return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith("vllm:prefix_cache_hits_total"))


def go_on(pair: Pair, whole: list[Stream], had: list[int]) -> None:
    """With answers of which there are so many tokens."""
    before, url = hits(pair), pair.house.endpoint()
    contexts = [[*stream.prompt, *stream.tokens[:count]] for stream, count in zip(whole, had, strict=True)]
    rests = [Stream(url, context, ANSWER - count) for context, count in zip(contexts, had, strict=True)]
    for stream, count, rest in zip(whole, had, rests, strict=True):
        assert rest.read(ANSWER).tokens == stream.tokens[count:]
    full = sum((len(context) - 1) // BLOCK * BLOCK for context in contexts)
    reused = hits(pair) - before
    print(f"{reused:.0f} of {full} tokens of full blocks reused")
    assert reused == full


def adopted(shim: Shim, *, wakes: int = 1) -> int:
    """Blocks, by the shim's metrics. So many of its wakes took over all that there was, and none of them less."""
    page = shim.get("/metrics")[1]
    lines = [line for line in page.splitlines() if line.startswith("failover_engine_kv_wakes_total")]
    found = [line for line in lines if 'why="new"' not in line]
    assert found == [f'failover_engine_kv_wakes_total{{why="none"}} {wakes}.0'], found
    return kept(shim)[1]


def records(pair: Pair) -> int:
    """Of the table, as GMS counts them."""
    said = pair.house.weights()
    return 0 if said is None else sum(pool.blocks for pool in said.regions if pool.key == "kv-index")


def test_an_engine_that_is_started_again_where_no_engine_took_over_goes_on_with_its_cache(keeping: Pair) -> None:
    """With two ranks one of them stops in the middle of a step: nothing of that step is believed."""
    pair, active = keeping, keeping.shims[0]
    house = pair.house
    whole = answers(pair)
    there = records(pair)
    assert there
    if pair.ranks > 1:
        victim(active, "worker").signal(signal.SIGSTOP)
        waits = asked(house.endpoint(), 4, STUCK)
        with pytest.raises(AssertionError, match="not within"):
            until(lambda: records(pair) != there, "a block of an unfinished step is published", deadline_s=5 * NEVER_S)
    active.main().kill()
    if pair.ranks > 1:
        waits.close()
    active.until("Active", ready=True, starts=2)
    house.until_announced(active)
    assert adopted(active) == there
    status = house.status()
    assert status is not None and status.holder is not None and status.holder.kept is not None
    assert (status.holder.kept.block, status.holder.kept.tokens % BLOCK) == (BLOCK, 0) < (BLOCK, there)
    go_on(pair, whole, [HEARD] * len(whole))
    if pair.ranks > 1:
        before = hits(pair)
        first = Stream(house.endpoint(), STUCK, HEARD).read(HEARD)
        assert len(first.prompt) > 2 * BLOCK and hits(pair) == before
        assert Stream(house.endpoint(), STUCK, HEARD).read(HEARD).tokens == first.tokens and hits(pair) > before


def test_every_token_of_every_full_block_is_reused_and_no_answer_is_wrong(keeping: Pair) -> None:
    pair = keeping
    active, standby = both(pair)
    whole = answers(pair)
    until(lambda: active.state()["for_s"] > SECOND_DEATH_S, "its death won't count as one soon after an adoption")
    url = pair.house.endpoint()
    streams = [Stream(url, prompt, ANSWER) for prompt in PROMPTS]
    for stream in streams:
        stream.read(HEARD)
    active.main().kill()
    pair.successor(url)
    standby.until("Active", ready=True)
    for stream, undisturbed in zip(streams, whole, strict=True):
        stream.close()
        assert stream.tokens == undisturbed.tokens[: len(stream.tokens)]
    assert adopted(standby)
    go_on(pair, whole, [len(stream.tokens) for stream in streams])


@pytest.mark.timeout(900 + 360 * TURNS)
def test_a_switchover_keeps_it_and_is_no_death_and_nothing_grows(keeping: Pair) -> None:
    pair = keeping
    house = pair.house
    whole: list[Stream] = []
    had = {shim.engine_id: kept(shim)[0] for shim in both(pair)}
    for _ in range(TURNS):
        active, standby = pair.whole()
        whole = whole or answers(pair)
        url = house.endpoint()
        asked_for = Program(
            house, "switchover", "lockserver.cli.lockctl", "--run-dir", str(house.run_dir), "switchover"
        )
        house.add(asked_for)
        pair.successor(url)
        assert asked_for.code() == 0, asked_for.said()
        standby.until("Active", ready=True)
        had[standby.engine_id] += 1
        assert adopted(standby, wakes=had[standby.engine_id])
        go_on(pair, whole, [HEARD] * len(whole))
        assert house.gms is not None
        released = [line for line in house.gms.said().splitlines() if " pool_released " in line]
        for key in ("kv-index", *(f"kv-{rank}" for rank in range(pair.ranks))):
            assert any(f'region={key} owner="{active.engine_id} ' in line for line in released), key
        if TURNS > 1:
            pair.settles(standby, active)
            pair.begin_to_count()  # after the first turn
    if TURNS > 1:
        first = pair.census
        until(lambda: not census.grown(pair.count(), first, TURNS), f"as after one turn: {first}; now {pair.count()}")
        assert not pair.lying_about()
        more = pair.resident() - pair.counted_resident
        print(f"{TURNS} turns: {pair.count()}, after one: {first}; {more / 1024:.0f} KiB more of servers and shims")
        assert more < census.MOST_MORE
