"""Three models of vLLM on a host where one of them fits at a time, one with two ranks: they take turns in the middle of
their answers, again and again. No answer is cut, each has the tokens that it has when nothing happens, nothing grows.
"""

import asyncio
import itertools
import json
import os
import re
from functools import partial
from pathlib import Path

import pytest

from pool.entries import State
from tests.engine.shims import House
from tests.gateway.door import Stream
from tests.many.host import Counted, Host
from tests.support.waiting import DEADLINE_S
from tests.vllm import pair

pytestmark = pytest.mark.xdist_group("many")
SWAPS = int(os.environ.get("FAILOVER_MANY_SWAPS", "20"))
TOKENS = 240
DEVICES = ["host:0", "host:1"]
RANKS = {"one": 1, "two": 2, "three": 1}
PROMPTS = ("the other one is awake", "one engine sleeps while the other one is awake, " * 6)
"""The second fills blocks: what a sleep loses may not be found in a prefix cache after it."""
PARKED = {"one": "", "two": "1GiB", "three": "1GiB"}


@pytest.fixture
def host(house: House, tmp_path: Path) -> Host:
    from tests.vllm import tiny_model

    def entry(seed: int, name: str, ranks: int) -> dict[str, object]:
        model = tiny_model.make(tmp_path / f"model{seed}", seed)
        words = list(pair.kind(model, ranks).arguments)
        at = words.index("--served-model-name")
        del words[at : at + 2]
        devices = DEVICES[:ranks]
        return {
            "engine": "vllm",
            "arguments": words,
            "kv_parked": PARKED[name],
            "devices": devices,
            "memory": dict.fromkeys(devices, pair.KV_BYTES),
        }

    for name in ("STALL_S", "WAKING_TIMEOUT_S"):  # a slow machine's engine isn't a dead one
        house.environment[f"FAILOVER_ENGINES_{name}"] = f"{DEADLINE_S:g}"
    models = {name: entry(seed, name, ranks) for seed, (name, ranks) in enumerate(RANKS.items())}
    return Host(house, models, devices=DEVICES, capacity="40MiB", drain_s=0.05, swap_share=0.5)


def loaded(host: Host, name: str) -> bool:
    return host.states().get(name) in (State.ASLEEP, State.AWAKE)


def tokens(stream: Stream) -> list[int]:
    assert (stream.status, stream.whole, stream.error) == (200, True, ""), (stream.error, stream.raw[-600:])
    said = [json.loads(event.removeprefix(b"data: ")) for event in stream.events if not event.endswith(b"[DONE]")]
    found = [token for one in said for choice in one["choices"] for token in choice.get("token_ids") or ()]
    assert len(found) == stream.body["max_tokens"], (len(found), stream.raw[-600:])
    return found


def test_three_models_take_turns_in_the_middle_of_answers_and_each_has_its_own_tokens(host: Host) -> None:
    for name in RANKS:  # each start takes most of what a test usually waits
        host.until(partial(loaded, host, name), f"{name} is loaded")
    host.ready()
    asked = {
        (name, prompt): host.stream(name, prompt, TOKENS, ignore_eos=True, return_token_ids=True)
        for name, prompt in itertools.product(RANKS, PROMPTS)
    }
    alone = {which: tokens(host.run([stream])[0]) for which, stream in asked.items()}
    assert len({tuple(found) for found in alone.values()}) == len(asked), "each model has answers of its own"
    begun = sum(one.swaps for one in host.shown())
    counted: list[Counted] = []

    async def client(name: str) -> None:
        for prompt in itertools.cycle(PROMPTS):
            stream = asked[name, prompt]
            found = await Stream(stream.body).run(host.port)
            assert tokens(found) == alone[name, prompt], name
            swaps = sum(one.swaps for one in host.shown()) - begun
            if swaps >= SWAPS // 2 and not counted:
                counted.append(host.counted())
            if swaps >= SWAPS:
                return

    async def story() -> None:
        await asyncio.gather(*map(client, RANKS))

    asyncio.run(story())
    counted.append(host.counted())
    shown = host.shown()
    parked = {
        name for name, why in re.findall(r"^(\w+) .* kv adopted=[1-9]\d* dropped=0 why=(none)$", host.up.said(), re.M)
    }
    assert parked == {name for name, most in PARKED.items() if most}, "their KV caches slept with them"
    print(sum(one.swaps for one in shown) - begun, "swaps,", sum(one.pauses for one in shown), "pauses", counted[-1])
    assert sum(one.failures for one in shown) == 0 and all(one.pauses for one in shown), shown
    (descriptors, memory), (then, memory_then) = ((sum(it.descriptors.values()), it.memory) for it in counted[::-1])
    assert descriptors <= then + 8, f"descriptors grew from {then} to {descriptors}: {counted}"  # others are awake now
    assert memory <= memory_then * 1.05, f"memory grew from {memory_then} to {memory} bytes"
