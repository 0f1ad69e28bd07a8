"""The door in front of vLLM itself: the engine that serves is killed in the middle of answers, and their clients have
every token once.
"""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.house import House
from tests.gateway.door import GatewayProgram, Stream, ask
from tests.vllm.pair import NAME, Pair

TOKENS = 240
PLAIN: dict[str, Any] = {
    "model": NAME,
    "prompt": "the other one is awake",
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}
ASKED: dict[str, dict[str, Any]] = {
    "plain": {},
    "log probabilities": {"logprobs": 1},
    "two choices": {"n": 2},
    "least tokens and a bias": {"min_tokens": 200, "logit_bias": {"5": 2}},
    "with a seed": {"temperature": 1.0, "seed": 7},
    "with a penalty": {"presence_penalty": 0.5},
}


@pytest.fixture(scope="module")
def pair(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    from tests.vllm.conftest import _house

    for house in _house():
        it = Pair(house, model, 1)
        it.start()
        yield it


@pytest.fixture(scope="module")
def door(pair: Pair) -> GatewayProgram:
    house: House = pair.house
    return GatewayProgram(house).serving()


def ids(stream: Stream) -> dict[int, list[int]]:
    found: dict[int, list[int]] = {}
    for event in stream.events:
        for choice in json.loads(event[6:])["choices"] if event != b"data: [DONE]" else ():
            found.setdefault(choice["index"], []).extend(choice.get("token_ids") or ())
    return found


async def all_of(door: GatewayProgram, strike: Any = None) -> list[Stream]:
    streams = [Stream({**PLAIN, **more}) for more in ASKED.values()]
    tasks = [asyncio.create_task(stream.run(door.port, f"q{place}")) for place, stream in enumerate(streams)]
    while strike is not None and sum(stream.raw.count(b"data: ") > 20 for stream in streams) < 2:
        await asyncio.sleep(0.002)
    if strike is not None:
        strike()
    await asyncio.gather(*tasks)
    return streams


def test_a_kill_in_mid_answer_loses_no_token_and_repeats_none(pair: Pair, door: GatewayProgram) -> None:
    like = asyncio.run(all_of(door))
    active, _ = pair.whole()
    streams = asyncio.run(all_of(door, lambda: active.main().kill()))
    state = door.state()
    assert state["continued"] >= 1 and state["ended"] == 0, state
    same = total = 0
    for name, stream, other in zip(ASKED, streams, like, strict=True):
        assert (stream.status, stream.whole, stream.error) == (200, True, ""), (name, stream.raw[-400:])
        assert stream.raw.count(b"data: [DONE]") == 1
        choices = ASKED[name].get("n", 1)
        counts = {index: len(some) for index, some in ids(stream).items()}
        assert counts == dict.fromkeys(range(choices), TOKENS), name
        usage = [json.loads(event[6:]) for event in stream.events if b'"usage":{' in event][-1]["usage"]
        assert usage["completion_tokens"] == TOKENS * choices
        for index, some in ids(stream).items():
            same += sum(a == b for a, b in zip(some, ids(other)[index], strict=True))
            total += len(some)
    how = {way: state[way] for way in ("continued", "compared", "restarted")}
    gaps = [round(stream.gap_s * 1000) for stream in streams]
    print(f"{same} of {total} tokens are the undisturbed ones; {how}; longest gaps {gaps} ms")
    assert same == total


def test_what_is_made_by_a_grammar_goes_on(pair: Pair, door: GatewayProgram) -> None:
    body = {
        **PLAIN,
        "ignore_eos": False,
        "max_tokens": 120,
        "structured_outputs": {"regex": "[a-c]{100}"},
    }

    async def one(strike: Any = None) -> Stream:
        stream = Stream(body)
        task = asyncio.create_task(stream.run(door.port, "g"))
        while strike is not None and stream.raw.count(b"data: ") < 15:
            await asyncio.sleep(0.002)
        if strike is not None:
            strike()
        return await task

    active, _ = pair.whole()
    like = asyncio.run(one())
    stream = asyncio.run(one(lambda: active.main().kill()))
    assert (stream.status, stream.whole, stream.error) == (200, True, ""), stream.raw[-400:]
    assert ids(stream) == ids(like) and door.state()["compared"] >= 1


def test_the_engines_own_metrics_are_the_doors(pair: Pair, door: GatewayProgram) -> None:
    pair.whole()
    page = ask(door.port, "/metrics")[2]
    assert b"vllm:num_requests_running" in page and b"gateway_requests_total" in page
