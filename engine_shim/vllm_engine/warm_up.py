"""The requests that an engine answers to itself before it is ready. Pure.

Whatever a first request of its kind costs is paid then, and not by a client: vLLM compiles on first use, which takes
ten seconds of processor and more where nothing of it is in a cache yet, and looks like a stall. What is compiled on
first use, in 0.32: the model itself (where vLLM's own warm-up is switched off), sampling, the counting behind logprobs,
the embedding of several ranks, and a grammar's kernels. Most are compiled once for a batch of one and once for any
other, so there are prompts of one token and of many, and answers alone and beside each other.
"""

from collections.abc import Iterator
from typing import Any

LENGTHS = (100, 1, 33, 7)
"""How long prompts are. A long one comes first: torch leaves the loop over tokens out of what it compiles for one token, and what
is so compiled writes past its end for every longer prompt, and stays in vLLM's cache."""
_TOKENS = 2
_TOGETHER, _TOKENS_TOGETHER = 3, 8
"""They arrive one after the other, and have some steps in common."""

_KINDS: tuple[dict[str, Any], ...] = (
    {"temperature": 1.0},
    {"temperature": 1.0, "logprobs": 1},
    {
        "temperature": 0.7, "top_p": 0.9, "top_k": 5, "min_p": 0.01, "seed": 1, "min_tokens": 1,
        "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"0": -1},
    },
)  # fmt: skip


def bodies(model: str, longest: int) -> Iterator[dict[str, Any]]:
    """For /v1/completions, one after the other. `longest`: how long a prompt and its answer may be together."""
    plain = {"model": model, "max_tokens": _TOKENS, "temperature": 0, "ignore_eos": True, "stream": True}
    lengths = [min(length, longest - _TOKENS) for length in LENGTHS]
    for length in lengths:
        yield {**plain, "prompt": [0] * length}
    short = {**plain, "prompt": [0] * lengths[-1]}
    for kind in _KINDS:
        yield {**short, **kind}
        if longest >= lengths[-1] + _TOKENS_TOGETHER:
            yield {**short, **kind, "n": _TOGETHER, "max_tokens": _TOKENS_TOGETHER}
    yield {**short, "stream": False, "prompt_logprobs": 1}
    yield {**short, "structured_outputs": {"regex": "[a-z]*"}}
