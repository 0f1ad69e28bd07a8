"""`failover up --engine vllm -- MODEL`, as the documentation has it: compiled, without a size of the KV cache, and from
an empty cache of kernels, as on a first day. What is asked for through the door is answered, whatever its length, and
nothing is compiled any more once an engine is ready.
"""

import json
import urllib.request
from pathlib import Path
from typing import Any

import pytest

from tests.engine.shims import House, Program
from tests.support.waiting import DEADLINE_S, until
from tests.vllm.pair import UNCOMPILED

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("tp2")]

LENGTHS = (1, 2, 5, 40, 300, 3)
"""Of prompts, in tokens: the first one must not decide for the others."""
TOKENS = 6
FIRST_DAY_S = 3 * DEADLINE_S
"""Until the first engine serves: it compiles everything, and the other one loads beside it."""
COMPILES = "torchdynamo start tracing"
KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 0.8, "top_p": 0.9, "top_k": 5, "presence_penalty": 0.5, "repetition_penalty": 1.2, "n": 3},
    {"logprobs": 3},
    {"logprobs": 1, "n": 4, "temperature": 1.0},
    {"prompt_logprobs": 2, "stream": False},
)


def started(house: House, directory: Path, *words: str) -> Program:
    for name in UNCOMPILED:
        house.environment.pop(name)
    house.environment |= {
        "VLLM_CACHE_ROOT": str(directory / "cache"),
        "TORCHINDUCTOR_CACHE_DIR": str(directory / "inductor"),
        "TORCH_LOGS": "dynamo",
    }
    place = ("--run-dir", str(house.run_dir), "--listen", "127.0.0.1:0", "--capacity", "128MiB")
    up = Program(house, "up", "engine_shim.cli.failover", "up", *place, "--engine", "vllm", "--", *words)
    house.add(up)
    return up


def door(up: Program) -> str:
    until(lambda: up.dead or "OpenAI-compatible: " in up.said(), "clients can come", FIRST_DAY_S)
    assert not up.dead, up.said()[-4000:]
    return up.said().partition("OpenAI-compatible: ")[2].split()[0]


def ask(up: Program, prompt: list[int], count: int = TOKENS, **more: Any) -> list[int]:
    """The tokens, at temperature 0 unless something else is said."""
    body = {"prompt": prompt, "max_tokens": count, "temperature": 0, "ignore_eos": True, "return_token_ids": True}
    asked = urllib.request.Request(
        f"{door(up)}/completions", json.dumps({**body, **more}).encode(), {"content-type": "application/json"}
    )
    try:
        with urllib.request.urlopen(asked, timeout=DEADLINE_S) as answer:
            return list(json.load(answer)["choices"][0]["token_ids"])
    except urllib.error.HTTPError as error:
        raise AssertionError(f"{error.read()!r}; {up.said()[-4000:]}") from None


def prompts() -> list[list[int]]:
    return [[3 + (length + 7 * place) % 250 for place in range(length)] for length in LENGTHS]


def test_every_prompt_is_answered_by_both_and_nothing_is_compiled_while_serving(
    house: House, model: Path, tmp_path: Path
) -> None:
    """In bfloat16, which vLLM chooses by itself."""
    up = started(house, tmp_path, str(model))
    door(up)
    first = until(house.endpoint, "one serves")
    answers = [ask(up, prompt) for prompt in prompts()]
    until(lambda: up.dead or redundant(house), "the other one is ready to take over", FIRST_DAY_S)
    compiled = up.said().count(COMPILES)
    assert compiled, "it isn't seen what is compiled"
    for kind in KINDS:
        ask(up, prompts()[3], **kind)
    assert up.said().count(COMPILES) == compiled
    killed = Program(house, "kill", "engine_shim.cli.failover", "kill", "--run-dir", str(house.run_dir), "active")
    house.add(killed)
    assert killed.code() == 0, killed.said()
    assert house.endpoint() != first
    assert [ask(up, prompt) for prompt in prompts()] == answers
    ended = [line for line in up.said().splitlines() if " tree_ends " in line]
    assert len(ended) == 1, ended


def test_in_float32_an_answer_is_the_same_in_one_piece_and_in_two(house: House, model: Path, tmp_path: Path) -> None:
    up = started(house, tmp_path, str(model), "--dtype", "float32")
    for prompt in prompts():
        whole = ask(up, prompt)
        assert whole == ask(up, prompt, 2) + ask(up, [*prompt, *whole[:2]], TOKENS - 2)
    assert " tree_ends " not in up.said()


def redundant(house: House) -> bool:
    status = house.status()
    return status is not None and any(waiter.ready for waiter in status.waiters)
