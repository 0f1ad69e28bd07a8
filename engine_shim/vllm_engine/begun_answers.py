"""Answers that another engine began: vLLM's own detokenizer goes through what the client has before it says more.

A completion says in `vllm_xargs` how many of its prompt's last tokens are answer (`failover_answer_tokens`), how many
characters of their text the client has (`failover_answer_chars`), and those characters' CRC-32
(`failover_answer_crc32`). The detokenizer begins with the rest of the prompt, as it did where the answer began, and is
given the answer's tokens one by one: spaces, special tokens, bytes of a character and text that is kept back because of
stop strings are then what they were there. What is said next begins behind the characters that the client has.

That it was done is seen in the answer: the `prompt_token_ids` of its first chunk end where the answer begins. A request
whose text isn't what its client has is answered as if it had said nothing of this.

What this file may not do: be loaded by a vLLM that isn't known to fit it (`versions.py`).
"""

import zlib
from collections.abc import Mapping
from copy import copy
from dataclasses import dataclass
from typing import Any

from vllm.logprobs import append_logprobs_for_next_position
from vllm.sampling_params import RequestOutputKind
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.detokenizer import BaseIncrementalDetokenizer, IncrementalDetokenizer
from vllm.v1.engine.output_processor import OutputProcessor

_NAMED_BY = 4
"""vLLM names a token that completes a character by so many tokens before it (`v1/engine/logprobs.py`)."""


@dataclass(frozen=True)
class Begun:
    """What a request says of the answer that its prompt ends with."""

    tokens: int
    chars: int
    crc32: int

    @classmethod
    def of(cls, said: Mapping[str, Any] | None) -> "Begun | None":
        given = [(said or {}).get(f"failover_answer_{name}") for name in ("tokens", "chars", "crc32")]
        tokens, chars, crc32 = given
        if not (type(tokens) is int and type(chars) is int and type(crc32) is int) or tokens < 1 or chars < 0:
            return None
        return cls(tokens, chars, crc32)


class Engine(AsyncLLM):
    output_processor: Any

    def _run_output_handler(self) -> None:
        """The first call comes before the first request."""
        if self.output_handler is None:
            old = self.output_processor
            names = ("log_stats", "stream_interval", "tracing_enabled", "admission_stats")  # 0.26 hasn't the last
            settings = {name: getattr(old, name) for name in names if hasattr(old, name)}
            self.output_processor = Outputs(old.tokenizer, **settings)
        super()._run_output_handler()

    async def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kwargs: Any) -> Any:
        bound(params, self.model_config)
        return await super().add_request(request_id, prompt, params, *args, **kwargs)


def bound(params: Any, model: Any) -> None:
    """The model's own bound (`max_new_tokens`) counts what there is of the answer. One from `--generation-config DIR`
    or `--override-generation-config` always holds, one of the model's own files where the client gave none.
    """
    said = getattr(params, "extra_args", None) or {}
    begun, is_open = Begun.of(said), said.get("failover_answer_open") == 1
    if not (begun or is_open) or params.max_tokens is None:
        return
    default = model.get_diff_sampling_param().get("max_tokens")
    own = model.generation_config in ("auto", "vllm")
    always = model.override_generation_config.get("max_new_tokens") if own else default
    most = default if is_open else always
    if most is not None:
        params.max_tokens = max(1, min(params.max_tokens, most - (begun.tokens if begun else 0)))


class Outputs(OutputProcessor):
    def add_request(self, request: Any, *args: Any, **kwargs: Any) -> None:
        known = request.request_id in self.request_states
        super().add_request(request, *args, **kwargs)
        params = request.sampling_params
        begun = None if known or params is None else Begun.of(params.extra_args)
        if begun is not None and params.output_kind == RequestOutputKind.DELTA:
            go_on(self.tokenizer, request, self.request_states[request.request_id], begun)


def go_on(tokenizer: Any, request: Any, state: Any, begun: Begun) -> None:
    """Makes of a new request's `state` that of an answer whose beginning the client has; where the texts agree."""
    ids = request.prompt_token_ids
    if ids is None or begun.tokens >= len(ids):
        return
    prompt, answer = ids[: -begun.tokens], ids[-begun.tokens :]
    first = copy(request)
    first.prompt_token_ids = prompt
    detokenizer = IncrementalDetokenizer.from_new_request(tokenizer, first)
    if not isinstance(detokenizer, BaseIncrementalDetokenizer):
        return
    stop, detokenizer.stop = detokenizer.stop, []  # what looks like one by now is within `min_tokens`
    detokenizer.update(answer, False)
    detokenizer.stop = stop
    detokenizer.min_tokens += len(answer)
    has = detokenizer.output_text[: begun.chars]
    if len(has) < begun.chars or zlib.crc32(has.encode("utf-8", "replace")) != begun.crc32:
        return
    detokenizer._last_output_text_offset = begun.chars
    state.detokenizer = detokenizer
    state.prompt_token_ids = prompt
    state.sent_tokens_offset = len(answer)
    names = state.logprobs_processor
    if names is not None and names.logprobs is not None:
        for token in answer[-_NAMED_BY:]:
            append_logprobs_for_next_position(names.logprobs, [token], [0.0], [None], 0, names.num_logprobs)
