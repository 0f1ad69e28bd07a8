"""The door in front of vLLM itself: the engine that serves is killed in the middle of every kind of answer, and each
client has every token once.

FAILOVER_DOOR_ROUNDS=10 kills it ten times, and prints how many tokens were the undisturbed answer's, row by row
(docs/inside/door.md has them).
"""

import asyncio
import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.engine.shims import Shim
from tests.gateway.door import GatewayProgram, Stream, ask
from tests.support.waiting import DEADLINE_S
from tests.vllm.conftest import _house
from tests.vllm.pair import NAME, PROMPT, Pair, _Unix

pytestmark = pytest.mark.xdist_group("door")

ROUNDS = int(os.environ.get("FAILOVER_DOOR_ROUNDS", "1"))
TOKENS = 200
COMPLETION, CHAT = "/v1/completions", "/v1/chat/completions"
ASKED: dict[str, Any] = {
    "model": NAME,
    "max_tokens": TOKENS,
    "temperature": 0,
    "ignore_eos": True,
    "return_token_ids": True,
    "stream_options": {"include_usage": True},
}
TEXT = {**ASKED, "prompt": PROMPT}
CHANCE = {**TEXT, "temperature": 1.0}
"""This model puts special tokens between the bytes of one character as soon as anywhere else."""
TALK = {**ASKED, "messages": [{"role": "user", "content": PROMPT}]}
SCHEMA = {
    "type": "object",
    "properties": {"said": {"type": "string", "pattern": "^[a-f]{90}$"}, "count": {"type": "boolean"}},
    "required": ["said", "count"],
    "additionalProperties": False,
}


@dataclass(frozen=True)
class Row:
    path: str
    body: dict[str, Any]
    how: str
    """How it goes on."""
    full: bool = True
    """It has as many tokens as were asked for."""


ROWS = {
    "temperature 0": Row(COMPLETION, TEXT, "continued"),
    "logprobs": Row(COMPLETION, {**TEXT, "logprobs": 2}, "continued"),
    "several prompts": Row(COMPLETION, {**TEXT, "prompt": ["one engine", "the other"]}, "continued"),
    "min_tokens, logit_bias": Row(COMPLETION, {**TEXT, "min_tokens": 150, "logit_bias": {"5": 2}}, "continued"),
    "repetition_penalty": Row(COMPLETION, {**TEXT, "repetition_penalty": 1.1}, "continued"),
    "a chat": Row(CHAT, TALK, "continued"),
    "temperature 1": Row(COMPLETION, CHANCE, "continued"),
    "temperature 1, n": Row(COMPLETION, {**CHANCE, "n": 2}, "continued"),
    "a seed": Row(COMPLETION, {**CHANCE, "seed": 7}, "compared"),
    "a seed, n": Row(COMPLETION, {**CHANCE, "seed": 7, "n": 2}, "compared"),
    "presence_penalty": Row(COMPLETION, {**TEXT, "presence_penalty": 0.5}, "compared"),
    "logprobs of a chat": Row(CHAT, {**TALK, "logprobs": True, "top_logprobs": 2}, "compared"),
    "structured_outputs": Row(
        COMPLETION, {**TEXT, "ignore_eos": False, "structured_outputs": {"regex": "[a-c]{150}"}}, "compared", False
    ),
    "response_format": Row(
        CHAT,
        {
            **TALK,
            "ignore_eos": False,
            "response_format": {"type": "json_schema", "json_schema": {"name": "said", "schema": SCHEMA}},
        },
        "compared",
        False,
    ),
}
SAMPLED = {"temperature 1", "temperature 1, n"}
"""What comes out otherwise each time: its text can only be compared with that of its tokens."""
RESPONSE = {"model": NAME, "input": PROMPT, "max_output_tokens": TOKENS, "temperature": 0, "ignore_eos": True}


class Patient(Pair):
    """Its shims wait for slow steps: this is about answers, and the first step with a grammar may take long."""

    def shim(self, engine_id: str, *more: str, arguments: tuple[str, ...] = ()) -> Shim:
        bounds = ("--stall-s", f"{DEADLINE_S:g}", "--waking-timeout-s", f"{DEADLINE_S:g}")
        return super().shim(engine_id, *bounds, *more, arguments=arguments)


@pytest.fixture(scope="module")
def pair(model: Path) -> Iterator[Pair]:
    for house in _house():
        it = Patient(house, model, 1)
        it.kind = replace(it.kind, arguments=(*it.kind.arguments, "--max-num-seqs", "32"))
        it.start()
        yield it


@pytest.fixture(scope="module")
def door(pair: Pair) -> GatewayProgram:
    return GatewayProgram(pair.house, "--failover-timeout-s", f"{DEADLINE_S:g}").serving()


@pytest.fixture(scope="module")
def rows(door: GatewayProgram) -> dict[str, Row]:
    """With a stop string, which has to be in the answer."""
    body = {name: value for name, value in TEXT.items() if name != "stream_options"}
    text = json.loads(ask(door.port, COMPLETION, body)[2])["choices"][0]["text"]
    places = {text.find(text[at : at + 3]): at for at in range(len(text) - 3) if text[at : at + 3].isascii()}
    at = min(places, key=lambda place: abs(place - len(text) * 2 // 3))
    stops = {**TEXT, "stop": [text[at : at + 3], "never said"]}
    return {**ROWS, "stop": Row(COMPLETION, stops, "continued", False)}


@dataclass
class Choice:
    """All that was said of one, put together."""

    text: str = ""
    ids: list[int] = field(default_factory=list)
    finish: list[str] = field(default_factory=list)
    stop: list[Any] = field(default_factory=list)
    roles: int = 0
    chosen: list[str] = field(default_factory=list)
    """Tokens as log probabilities name them."""
    offsets: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list, compare=False)

    def add(self, said: dict[str, Any]) -> None:
        delta = said.get("delta") or {}
        self.text += said.get("text") or delta.get("content") or ""
        self.ids += said.get("token_ids") or []
        self.roles += "role" in delta
        if said["finish_reason"] is not None:
            self.finish.append(said["finish_reason"])
            self.stop.append(said.get("stop_reason"))
        found = said.get("logprobs") or {}
        self.chosen += found.get("tokens") or [one["token"] for one in found.get("content") or ()]
        self.offsets += found.get("text_offset") or []
        self.logprobs += found.get("token_logprobs") or [one["logprob"] for one in found.get("content") or ()]


class Answer:
    def __init__(self, stream: Stream) -> None:
        assert (stream.status, stream.whole, stream.error) == (200, True, ""), (stream.raw[-600:], stream.error)
        *events, done = stream.events
        assert done == b"data: [DONE]" and stream.raw.count(b"[DONE]") == 1
        said = [json.loads(event.removeprefix(b"data: ")) for event in events]
        assert len({one["id"] for one in said}) == len({one["created"] for one in said}) == 1
        self.usage, self.fingerprint = said[-1]["usage"], said[-1].get("system_fingerprint")
        assert said[-1]["choices"] == [] and all(one["choices"] for one in said[:-1])
        self.choices: dict[int, Choice] = {}
        for one in said[:-1]:
            for choice in one["choices"]:
                self.choices.setdefault(choice["index"], Choice()).add(choice)

    @property
    def ids(self) -> list[int]:
        return [token for _, choice in sorted(self.choices.items()) for token in choice.ids]


def check(row: Row, answer: Answer) -> None:
    """What is so of every answer, whatever it says."""
    several = row.body["prompt"] if isinstance(row.body.get("prompt"), list) else [None]
    assert sorted(answer.choices) == list(range(row.body.get("n", 1) * len(several)))
    for choice in answer.choices.values():
        assert len(choice.finish) == 1 and choice.roles == (row.path == CHAT)
        if row.full:
            assert (choice.finish, len(choice.ids)) == (["length"], TOKENS)
        if choice.chosen:
            assert len(choice.chosen) == len(choice.logprobs) == len(choice.ids)
    assert answer.usage["completion_tokens"] == len(answer.ids)
    assert answer.usage["total_tokens"] == answer.usage["prompt_tokens"] + len(answer.ids)


@dataclass
class Round:
    """All rows at once, and beside them OpenAI's own client, an answer that doesn't stream, and one in a form that is
    not known.
    """

    rows: dict[str, Row]
    streams: dict[str, Stream] = field(init=False)
    broken: set[str] = field(default_factory=set)
    """Rows whose clients didn't have all of their answer at the strike."""
    text: str = ""
    """What OpenAI's own client has of a chat."""
    whole: Any = None
    unknown: Stream = field(default_factory=lambda: Stream(RESPONSE, "/v1/responses"))

    async def run(self, port: int, strike: Callable[[], None] | None = None) -> "Round":
        """`strike` is called when each of the answers has begun."""
        self.streams = {name: Stream(row.body, row.path) for name, row in self.rows.items()}
        async with openai.AsyncOpenAI(
            base_url=f"http://127.0.0.1:{port}/v1", api_key="x", max_retries=0, timeout=DEADLINE_S
        ) as client:
            asked = [self._talk(client), self._respond(client), self.unknown.run(port, "unknown")]
            asked += [stream.run(port, name_of(row)) for row, stream in self.streams.items()]
            asking = asyncio.gather(*asked)
            if strike is not None:
                while not asking.done() and not self._in_mid_answer:
                    await asyncio.sleep(0.002)
                self.broken = {name for name, stream in self.streams.items() if not stream.whole}
                strike()
            await asking
        return self

    @property
    def _in_mid_answer(self) -> bool:
        streams = [*self.streams.values(), self.unknown]
        return bool(self.text) and all(stream.raw.count(b"data: ") > 8 for stream in streams)

    async def _talk(self, client: openai.AsyncOpenAI) -> None:
        messages: Any = TALK["messages"]
        chunks = await client.chat.completions.create(
            model=NAME,
            messages=messages,
            max_tokens=TOKENS,
            temperature=0,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        async for chunk in chunks:
            self.text += chunk.choices[0].delta.content or ""

    async def _respond(self, client: openai.AsyncOpenAI) -> None:
        self.whole = await client.post("/responses", body=RESPONSE, cast_to=object)


def name_of(row: str) -> str:
    return row.replace(" ", "-").replace(",", "")


def how(door: GatewayProgram, row: str) -> str:
    """How its last answer went on, as the door's own log says."""
    line = [line for line in door.said().splitlines() if f" id={name_of(row)} " in line][-1]
    return line.partition(" how=")[2].split()[0] if " how=" in line else "passed"


def test_the_engines_own_metrics_are_the_doors(pair: Pair, door: GatewayProgram) -> None:
    own = of_vllm(asked_directly(serves(pair), "/metrics")[1])
    page = ask(door.port, "/metrics")[2]
    assert {"vllm:num_requests_running", "vllm:time_to_first_token_seconds"} <= own == of_vllm(page)
    assert b"failover_door_requests_total" in page


def test_what_the_engine_does_not_do_is_its_own_word(pair: Pair, door: GatewayProgram) -> None:
    active = serves(pair)
    body = {"model": NAME, "input": "x"}
    status, _, said = ask(door.port, "/v1/embeddings", body)
    assert 400 <= status < 500 and (status, said) == asked_directly(active, "/v1/embeddings", body)


def test_a_kill_in_mid_answer_loses_no_token_and_repeats_none(
    pair: Pair, door: GatewayProgram, rows: dict[str, Row], model: Path
) -> None:
    undisturbed = asyncio.run(Round(rows).run(door.port))
    like = {name: Answer(stream) for name, stream in undisturbed.streams.items()}
    for name, row in rows.items():
        check(row, like[name])
    assert undisturbed.unknown.whole and undisturbed.text == like["a chat"].choices[0].text
    agree = {name: [0, 0] for name in rows}
    gaps: dict[str, float] = {}
    for _ in range(ROUNDS):
        active, _ = pair.whole()
        found = asyncio.run(Round(rows).run(door.port, lambda active=active: active.main().kill()))  # type: ignore[misc]
        ways = {name: how(door, name) for name in found.broken}
        assert set(ways.values()) - {"passed"}, "none was in mid-answer"
        for name, row in rows.items():
            answer = Answer(found.streams[name])
            check(row, answer)
            agree[name][0] += sum(a == b for a, b in zip(answer.ids, like[name].ids, strict=False))
            agree[name][1] += len(like[name].ids)
            gaps[name] = max(gaps.get(name, 0), found.streams[name].gap_s)
            assert ways.get(name, "passed") in (row.how, "passed")  # what was on its way at the kill may be all
            if name in SAMPLED:
                assert all(choice.text == text_of(model, choice.ids) for choice in answer.choices.values()), name
            else:
                assert answer.choices == like[name].choices, name
            assert answer.fingerprint == like[name].fingerprint
        assert found.text == undisturbed.text
        assert found.whole["output"][0]["content"] == undisturbed.whole["output"][0]["content"]
        assert found.unknown.whole or b"event: error\ndata: " in found.unknown.raw
    assert of_vllm(ask(door.port, "/metrics")[2]) == of_vllm(asked_directly(serves(pair), "/metrics")[1])
    for name, row in rows.items():
        print(f"| {name} | {row.how} | {agree[name][0]} of {agree[name][1]} | {gaps[name]:.2f} s |")


def text_of(model: Path, ids: list[int]) -> str:
    """As vLLM tells it behind the prompt where nothing breaks."""
    from tokenizers import Tokenizer, decoders

    tokenizer: Any = Tokenizer.from_file(str(model / "tokenizer.json"))
    stream: Any = decoders.DecodeStream(ids=tokenizer.encode(PROMPT).ids, skip_special_tokens=True)
    return "".join(stream.step(tokenizer, token) or "" for token in ids)


def serves(pair: Pair) -> Shim:
    return next(shim for shim in pair.shims if shim.state()["state"] == "Active")


def of_vllm(page: bytes) -> set[str]:
    names = (family.name for family in text_string_to_metric_families(page.decode()))
    return {name for name in names if name.startswith("vllm:")}


def asked_directly(shim: Shim, path: str, body: Any = None) -> tuple[int, bytes]:
    connection = _Unix(shim.state()["url"].removeprefix("unix:"))
    if body is None:
        connection.request("GET", path)
    else:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
    response = connection.getresponse()
    try:
        return response.status, response.read()
    finally:
        connection.close()
