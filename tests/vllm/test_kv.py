"""The KV cache of vLLM outlives its engine: an engine is killed while it answers. Its successor reuses every token of
every full block, by vLLM's own count, and the answers go on as a cold engine would have gone on.
"""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.support.waiting import until
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
        a = pair.shim("a", "--kv", "keep")
        a.until("Active", ready=True)
        pair.shims = (a, pair.shim("b", "--kv", "keep"))
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


def said(pair: Pair, engine_id: str) -> str:
    shim = next(shim for shim in pair.shims if shim.engine_id == engine_id)
    return [line for line in shim.said().splitlines() if " kv-index kv " in line][-1]


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
    print(f"{reused:.0f} of {full} tokens of full blocks reused; {said(pair, standby.engine_id)}")
    assert reused == full
    until(lambda: pair.whole() == (standby, active), "the pair is whole again")
