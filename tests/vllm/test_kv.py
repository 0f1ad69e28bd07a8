"""The KV cache of vLLM outlives its engine: an engine is killed while it answers. Its successor reuses every token of
every full block, by vLLM's own count, and the answers go on as a cold engine would have gone on. A switchover keeps it,
too, and is no death.

With two ranks it is refused yet (docs/kv.md). The tests are the same: `params=[_apart(1), _apart(2)]`.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.engine.house import Program, Shim
from tests.vllm.conftest import _apart, _house
from tests.vllm.pair import NAME, Pair, _Unix

BLOCK = 32  # attention on the CPU wants multiples of it
ANSWER = 300
HEARD = 60
"""Tokens of an answer until the engine is killed."""
SHARED = "what they have in common is long enough for a few blocks, so that all of them build on each other: " * 2
PROMPTS = [SHARED[: 70 + 40 * number] + f"and this is number {number}" for number in range(4)]


@pytest.fixture(scope="module", params=[_apart(1)])
def keeping(request: pytest.FixtureRequest, model: Path) -> Iterator[Pair]:
    for house in _house():
        pair = Pair(house, model, request.param)
        arguments = (*pair.kind.arguments, "--block-size", str(BLOCK))
        pair.kind = replace(pair.kind, arguments=arguments, lock=("--memory", "host"))
        house.start_lock(*pair.kind.lock)
        house.start_gms(pair.kind)
        pair.shims = (pair.shim("a", "--kv", "keep"), pair.shim("b", "--kv", "keep"))
        pair.whole()
        yield pair


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


def counted(pair: Pair) -> dict[str, float]:
    found: dict[str, float] = {}
    for line in pair.house.ask("/metrics").splitlines():
        if line.startswith("vllm:prefix_cache_"):
            name, _, value = line.rpartition(" ")
            found[name.partition("{")[0]] = float(value)
    return found


def adopted(shim: Shim) -> int:
    """Blocks, by the shim's metrics, of an engine that has taken over all that there was."""
    page = shim.get("/metrics")[1]
    assert 'failover_engine_kv_wakes_total{why="none"} 1.0' in page, page
    return int(float(page.partition("\nfailover_engine_kv_blocks_adopted_total ")[2].partition("\n")[0]))


def test_every_token_of_every_full_block_is_reused_and_no_answer_is_wrong(keeping: Pair) -> None:
    pair = keeping
    active, standby = pair.whole()
    url = pair.house.endpoint()
    undisturbed = [Stream(url, prompt, ANSWER).read(ANSWER).tokens for prompt in PROMPTS]
    streams = [Stream(url, prompt, ANSWER) for prompt in PROMPTS]
    for stream in streams:
        stream.read(HEARD)
    active.main().kill()
    url = pair.successor(url)
    standby.until("Active", ready=True)
    before = counted(pair)
    full = 0
    for stream, whole in zip(streams, undisturbed, strict=True):
        stream.close()
        context = [*stream.prompt, *stream.tokens]
        full += (len(context) - 1) // BLOCK * BLOCK
        rest = Stream(url, context, ANSWER - len(stream.tokens)).read(ANSWER)
        assert [*stream.tokens, *rest.tokens] == whole
    after = counted(pair)
    reused = after["vllm:prefix_cache_hits_total"] - before.get("vllm:prefix_cache_hits_total", 0)
    print(f"{reused:.0f} of {full} tokens of full blocks reused; {adopted(standby)} blocks adopted")
    assert reused == full
    assert adopted(standby) >= full // BLOCK // len(PROMPTS)


def test_a_switchover_keeps_it_and_is_no_death(keeping: Pair) -> None:
    pair = keeping
    active, standby = pair.whole()
    house, url = pair.house, pair.house.endpoint()
    whole = Stream(url, PROMPTS[0], ANSWER).read(ANSWER)
    asked = Program(house, "switchover", "lockserver.lockctl", "--run-dir", str(house.run_dir), "switchover")
    house.add(asked)
    url = pair.successor(url)
    assert asked.code() == 0, asked.said()
    standby.until("Active", ready=True)
    before = counted(pair)
    context = [*whole.prompt, *whole.tokens[:HEARD]]
    assert Stream(url, context, ANSWER - HEARD).read(ANSWER).tokens == whole.tokens[HEARD:]
    reused = counted(pair)["vllm:prefix_cache_hits_total"] - before.get("vllm:prefix_cache_hits_total", 0)
    assert adopted(standby) and reused == (len(context) - 1) // BLOCK * BLOCK
    assert house.gms is not None
    released = [line for line in house.gms.said().splitlines() if " pool_released " in line]
    for key in ("kv-index", *(f"kv-{rank}" for rank in range(pair.ranks))):
        assert any(f'pool={key} owner="{active.engine_id} ' in line for line in released), key
