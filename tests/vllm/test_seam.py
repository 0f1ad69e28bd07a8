"""Wherever an answer breaks, its client has in the end what it has of one that doesn't: with real tokenizers, through
vLLM's own way from tokens to text, and with what the door really asks. Only the model is left out: which token comes
next is drawn. FAILOVER_CHAOS_SEED=n repeats one run, FAILOVER_SEAM_BREAKS=n makes it longer.
"""

import os
import random
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from gateway.rules import kinds, sse
from gateway.rules.answers import Account
from gateway.rules.clients_part import End
from gateway.rules.continuing import Continuing
from gateway.rules.legs import Leg
from tests.support.chance import seeded
from tests.vllm import real_tokenizers

BREAKS = int(os.environ.get("FAILOVER_SEAM_BREAKS", "1300"))
"""With each of eight tokenizers: more than 10,000."""
TOKENS = 24
MAX_LEN = 4096
ALPHABETS = ((32, 127), (32, 127), (160, 1400), (0x4E00, 0x4E60), (0x1F600, 0x1F640), (0x20, 0x24), (9, 14))


class Engine:
    """vLLM's front end, with a model that says what it is told to say behind the client's prompt."""

    def __init__(self, tokenizer: Any, prompt: list[int], ids: list[int]) -> None:
        from engine_shim.vllm_engine.begun_answers import Outputs

        self._outputs = Outputs(tokenizer, log_stats=False)
        self._all = [*prompt, *ids]
        self._end = tokenizer.eos_token_id
        self._asked = 0

    def says(self, body: bytes) -> list[dict[str, Any]]:
        """The events of a streamed completion."""
        from vllm.entrypoints.openai.completion.protocol import CompletionRequest
        from vllm.v1.engine import EngineCoreRequest
        from vllm.v1.engine.output_processor import RequestOutputCollector

        wanted = CompletionRequest(**msgspec.json.decode(body))
        assert isinstance(wanted.prompt, list) and wanted.max_tokens
        params = wanted.to_sampling_params(wanted.max_tokens)
        self._asked += 1
        name = str(self._asked)
        request = EngineCoreRequest(
            name, wanted.prompt, None, params, None, 0.0, None, None, None, external_req_id=name
        )  # type: ignore[no-untyped-call, unused-ignore]
        queue = RequestOutputCollector(params.output_kind, name)
        self._outputs.add_request(request, None, None, 0, queue)
        told: list[dict[str, Any]] = []
        for count, token in enumerate(self._all[len(wanted.prompt) :], 1):
            self._outputs.process_outputs([self._step(name, token, count, params)])
            output = queue.get_nowait()
            if output is not None:
                told.append(_event(output, not told))
            if told and told[-1]["choices"][0]["finish_reason"] is not None:
                break
        return told

    def _step(self, name: str, token: int, count: int, params: Any) -> Any:
        """What EngineCore says of one token."""
        import numpy as np
        from vllm.v1.engine import EngineCoreOutput, FinishReason
        from vllm.v1.outputs import LogprobsLists

        names = LogprobsLists(np.array([[token]]), np.array([[-1.0]]), np.array([1]))
        reason = FinishReason.LENGTH if count >= params.max_tokens else None
        if token == self._end and count > params.min_tokens and not params.ignore_eos:
            reason = FinishReason.STOP
        logprobs = names if params.logprobs is not None else None
        return EngineCoreOutput(name, [token], new_logprobs=logprobs, finish_reason=reason)


def _event(output: Any, first: bool) -> dict[str, Any]:
    """As vLLM's endpoint says it (`completion_stream_generator`)."""
    (said,) = output.outputs
    names = None
    if said.logprobs is not None:
        names = {
            "tokens": [tops[token].decoded_token for token, tops in zip(said.token_ids, said.logprobs, strict=True)]
        }
    choice = {
        "index": 0,
        "text": said.text,
        "logprobs": names,
        "finish_reason": said.finish_reason,
        "stop_reason": said.stop_reason,
        "prompt_token_ids": output.prompt_token_ids if first else None,
        "token_ids": list(said.token_ids),
    }
    return {"id": "x", "object": "text_completion", "created": 1, "model": "m", "choices": [choice]}


def drawn(rng: random.Random, tokenizer: Any) -> list[int]:
    """Any tokens, special ones, and those of some text."""
    special = sorted({*tokenizer.all_special_ids, *tokenizer.get_added_vocab().values()})
    ids: list[int] = []
    while len(ids) < TOKENS:
        kind = rng.random()
        if kind < 0.3:
            ids.append(rng.randrange(len(tokenizer)))
        elif kind < 0.45:
            ids.append(rng.choice(special))
        elif kind < 0.55:
            text = real_tokenizers.TEXT
            ids += tokenizer.encode(text[(at := rng.randrange(len(text))) : at + 9], add_special_tokens=False)
        else:
            text = "".join(chr(rng.randrange(*rng.choice(ALPHABETS))) for _ in range(rng.randrange(1, 4)))
            ids += tokenizer.encode(text, add_special_tokens=False)
    return ids[:TOKENS]


def asked(rng: random.Random, prompt: list[int]) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": prompt, "max_tokens": TOKENS, "temperature": 0, "stream": True}
    body |= {"return_token_ids": True, "skip_special_tokens": rng.random() < 0.6, "ignore_eos": rng.random() < 0.7}
    body["spaces_between_special_tokens"] = rng.random() < 0.5
    if rng.random() < 0.2:
        body["logprobs"] = 1
    if rng.random() < 0.2:
        body["stream_interval"] = 3
    return body


def stopping(rng: random.Random, body: dict[str, Any], text: str) -> dict[str, Any]:
    """The same with stop strings, one of which may be in its text."""
    at = rng.randrange(len(text) + 1)
    found = text[at : at + rng.randrange(1, 9)]
    stop = [found, found + "never", "Observation:"] if found else ["Observation:"]
    body = body | {"stop": rng.sample(stop, len(stop) - (rng.random() < 0.5)) or stop}
    return body | {"include_stop_str_in_output": rng.random() < 0.3, "min_tokens": rng.choice([0, 0, 3, 12])}


def kind_of(body: dict[str, Any]) -> kinds.Kind:
    data = msgspec.json.encode(body)
    return kinds.kind_of("POST", b"/v1/completions", [], data, request_id="r", seed=1)


def had(kind: kinds.Kind, events: list[dict[str, Any]]) -> Account:
    account = Account(kind)
    for event in events:
        account.take(msgspec.json.encode(event))
    return account


def go_on(engine: Engine, kind: kinds.Kind, account: Account, pieces: int | None = None) -> list[dict[str, Any]]:
    """What the client gets of an engine that goes on, which says all of it or so many pieces."""
    assert kind.recovery is kinds.Recovery.CONTINUED and Continuing.can(kind, account, MAX_LEN)
    mode = Continuing(kind, account, MAX_LEN)
    data, ((_, body),) = mode.begin()
    leg = Leg(choice=0)
    leg.reader = sse.Reader(1 << 20)
    for event in engine.says(body)[:pieces]:
        part = mode.take(leg, sse.event(msgspec.json.encode(event)))
        assert part.end is None, part.why
        data += part.data
    return [msgspec.json.decode(event[6:]) for event in data.split(b"\n\n") if event]


def told(events: list[dict[str, Any]]) -> dict[str, Any]:
    """What a client makes of them."""
    choices = [event["choices"][0] for event in events]
    return {
        "text": "".join(choice["text"] for choice in choices),
        "ids": [token for choice in choices for token in choice["token_ids"]],
        "names": [name for choice in choices for name in (choice["logprobs"] or {"tokens": []})["tokens"]],
        "ends": [(choice["finish_reason"], choice["stop_reason"]) for choice in choices if choice["finish_reason"]],
    }


@pytest.mark.parametrize("make", [*real_tokenizers.FAST, *real_tokenizers.SLOW], ids=lambda make: make.__name__)
def test_wherever_an_answer_breaks_its_client_has_what_it_has_of_one_that_does_not(make: Callable[[], Any]) -> None:
    from transformers import PreTrainedTokenizerFast

    tokenizer = real_tokenizers.made(make)
    assert isinstance(tokenizer, PreTrainedTokenizerFast) is (make in real_tokenizers.FAST), "vLLM's detokenizer"
    rng = seeded()
    breaks = kept_back = within = 0
    while breaks < BREAKS:
        prompt, ids = drawn(rng, tokenizer)[: rng.randrange(1, 9)], drawn(rng, tokenizer)
        engine = Engine(tokenizer, prompt, ids)
        body = asked(rng, prompt)
        if rng.random() < 0.5:
            body = stopping(rng, body, told(engine.says(msgspec.json.encode(body)))["text"])
        like = engine.says(msgspec.json.encode(body))
        kind = kind_of(body)
        for at in range(1, len(like)):
            breaks += 1
            kept_back += "stop" in body
            within += not like[at - 1]["choices"][0]["text"]
            account = had(kind, like[:at])
            events = list(like[:at])
            if rng.random() < 0.3:  # the second one breaks, too
                events += go_on(engine, kind, account, rng.randrange(len(like) - at))
            events += go_on(engine, kind, account)
            assert told(events) == told(like), (at, body, ids)
    print(f"{breaks} breaks, {kept_back} of them with stop strings, {within} behind a token without text")
    assert min(kept_back, within) > BREAKS / 20


@pytest.mark.parametrize("wrong", [{"tokens": 3}, {"chars": 1}, {"crc32": 0}, {"chars": 9999}, {"tokens": 9999}])
def test_an_engine_that_cannot_begin_where_the_client_stands_does_not_say_that_it_does(wrong: dict[str, int]) -> None:
    """The door sees it, believes nothing of its text, and makes the answer again or ends it."""
    tokenizer = real_tokenizers.made(real_tokenizers.byte_pairs)
    prompt, ids = tokenizer.encode("one engine"), tokenizer.encode(" sleeps while the other one is awake")
    engine = Engine(tokenizer, prompt, ids)
    body = {"prompt": prompt, "max_tokens": len(ids), "temperature": 0, "stream": True, "return_token_ids": True}
    kind = kind_of(body)
    account = had(kind, engine.says(msgspec.json.encode(body))[:4])
    mode = Continuing(kind, account, MAX_LEN)
    _, ((_, rest),) = mode.begin()
    asked = msgspec.json.decode(rest)
    asked["vllm_xargs"] |= {f"failover_answer_{name}": value for name, value in wrong.items()}
    event = engine.says(msgspec.json.encode(asked))[0]
    assert event["choices"][0]["prompt_token_ids"] == asked["prompt"]
    leg = Leg(choice=0)
    leg.reader = sse.Reader(1 << 20)
    part = mode.take(leg, sse.event(msgspec.json.encode(event)))
    assert (part.data, part.end) == (b"", End.TORN)


@pytest.mark.parametrize("where", ["auto", "vllm", "a directory"])
def test_the_models_own_bound_counts_what_there_is_of_the_answer(where: str) -> None:
    """It held for the rest alone, or not at all: an answer of at most 50 tokens had up to the model's whole length."""
    from types import SimpleNamespace

    from vllm.sampling_params import SamplingParams

    from engine_shim.vllm_engine.begun_answers import bound

    override = {"max_new_tokens": 50} if where == "vllm" else {}
    model = SimpleNamespace(
        generation_config=where,
        override_generation_config=override,
        get_diff_sampling_param=lambda: {"max_tokens": 50},
    )
    begun = {f"failover_answer_{name}": value for name, value in {"tokens": 30, "chars": 9, "crc32": 1}.items()}
    no_bound = {"failover_answer_open": 1}

    def most(asked: int, said: dict[str, int]) -> int | None:
        params = SamplingParams(max_tokens=asked, extra_args=said)
        bound(params, model)
        most: int | None = params.max_tokens
        return most

    assert most(4000, begun | no_bound) == 20 and most(4000, no_bound) == 50 and most(7, begun | no_bound) == 7
    assert most(40, begun) == (40 if where == "auto" else 20), "the client's own is above that of the model's own files"
    assert most(4000, {}) == 4000, "that is for vLLM itself to bound"
