"""The table of what becomes of which request when its engine is lost (docs/inside/door.md), row by row."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from gateway.rules import events as e
from gateway.rules import kinds
from gateway.rules.answers import why_no_answer
from gateway.rules.kinds import Kind, Recovery
from tests.gateway import engine
from tests.gateway.world import World

TEXT: dict[str, Any] = {"prompt": "x", "stream": True}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}], "stream": True}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {}}}
NAMED = {"type": "function", "function": {"name": "f"}}
PICTURE = [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,"}}]}]
IN_PARTS = [{"role": "user", "content": [{"type": "text", "text": "x"}]}]
JSON_SCHEMA = {"type": "json_schema", "json_schema": {"name": "x", "schema": {}}}

ROWS: dict[str, tuple[Recovery, list[dict[str, Any]]]] = {
    "temperature 0": (Recovery.CONTINUED, [TEXT | {"temperature": 0}, CHAT | {"temperature": 0}]),
    "temperature above 0, without a seed": (Recovery.CONTINUED, [TEXT | {"temperature": 0.7}, CHAT]),
    "a seed, with temperature 0": (Recovery.CONTINUED, [TEXT | {"temperature": 0, "seed": 3}]),
    "a seed, with temperature above 0": (
        Recovery.COMPARED,
        [TEXT | {"temperature": 0.7, "seed": 3}, CHAT | {"seed": 3}],
    ),
    "top_p, top_k, min_p, logit_bias, repetition_penalty": (
        Recovery.CONTINUED,
        [TEXT | {"top_p": 0.9, "top_k": 3, "min_p": 0.1, "logit_bias": {"3": 1}, "repetition_penalty": 1.1}],
    ),
    "presence_penalty, frequency_penalty, bad_words": (
        Recovery.COMPARED,
        [TEXT | {"presence_penalty": 1}, CHAT | {"frequency_penalty": 0.1}, TEXT | {"bad_words": ["x"]}],
    ),
    "max_tokens, min_tokens, stop, stop_token_ids": (
        Recovery.CONTINUED,
        [TEXT | {"max_tokens": 5, "min_tokens": 2, "stop": ["a"], "stop_token_ids": [1]}, CHAT | {"stop": "a"}],
    ),
    "max_tokens or min_tokens that is no whole number": (
        Recovery.COMPARED,
        [TEXT | {"max_tokens": "50"}, TEXT | {"min_tokens": 2.0}],
    ),
    "n": (Recovery.CONTINUED, [TEXT | {"n": 3}, CHAT | {"n": 3}]),
    "several prompts": (Recovery.CONTINUED, [TEXT | {"prompt": ["a", "b"]}, TEXT | {"prompt": [[1], [2]]}]),
    "logprobs of a completion": (Recovery.CONTINUED, [TEXT | {"logprobs": 2}]),
    "logprobs of a chat": (Recovery.COMPARED, [CHAT | {"logprobs": True, "top_logprobs": 2}]),
    "prompt_logprobs": (Recovery.COMPARED, [TEXT | {"prompt_logprobs": 1}]),
    "echo, suffix": (Recovery.COMPARED, [TEXT | {"echo": True}, TEXT | {"suffix": "x"}]),
    "response_format, structured_outputs": (
        Recovery.COMPARED,
        [
            *(CHAT | {"response_format": it} for it in ({"type": "json_object"}, JSON_SCHEMA)),
            TEXT | {"structured_outputs": {"choice": ["a"]}},
        ],
    ),
    "response_format text": (Recovery.CONTINUED, [CHAT | {"response_format": {"type": "text"}}]),
    "tools: auto, required, named": (
        Recovery.COMPARED,
        [CHAT | {"tools": [TOOL]}, *(CHAT | {"tools": [TOOL], "tool_choice": it} for it in ("required", NAMED))],
    ),
    "no tools": (Recovery.CONTINUED, [CHAT | {"tools": []}, CHAT | {"tool_choice": "auto"}]),
    "pictures and sound": (Recovery.COMPARED, [CHAT | {"messages": PICTURE}]),
    "text in parts": (Recovery.CONTINUED, [CHAT | {"messages": IN_PARTS}]),
    "LoRA: the model's name": (Recovery.CONTINUED, [TEXT | {"model": "adapter"}]),
    "a field that the door doesn't know": (Recovery.COMPARED, [TEXT | {"something_new": 1}]),
    "beam search, best_of": (Recovery.COMPARED, [TEXT | {"use_beam_search": True}, TEXT | {"best_of": 2}]),
}


def kind(path: str, body: Any, method: str = "POST") -> Kind:
    data = b"" if body is None else json.dumps(body).encode()
    return kinds.kind_of(method, path.encode(), [], data, request_id="r", seed=5)


@pytest.mark.parametrize("row", ROWS)
def test_a_rows_requests_are_of_its_kind(row: str) -> None:
    way, bodies = ROWS[row]
    for body in bodies:
        path = "/v1/chat/completions" if "messages" in body else "/v1/completions"
        found = kind(path, body)
        assert (found.recovery, found.repeatable) == (way, True), body
        if way is Recovery.COMPARED:
            assert found.same_again, "it would not have the same answer"
            sent = json.loads(found.body)
            assert sent.get("temperature") == 0 or sent.get("seed") is not None


def test_every_row_is_in_the_docs() -> None:
    text = (Path(__file__).parents[2] / "docs" / "inside" / "door.md").read_text()
    _, continued, compared = re.split("^These are continued: |These are compared:", text, flags=re.M)
    said = {
        Recovery.CONTINUED: " ".join(continued.split()).rstrip(".").split("; "),
        Recovery.COMPARED: re.findall(r"^\| (.*?) \| ", compared, re.M),
    }
    assert [row for row, (way, _) in ROWS.items() if row not in said[way]] == []


@pytest.mark.parametrize(
    ("method", "path", "repeatable"),
    [
        ("POST", "/v1/embeddings", True),
        ("POST", "/v1/score", True),
        ("POST", "/v1/rerank", True),
        ("POST", "/tokenize", True),
        ("POST", "/v1/responses", True),
        ("POST", "/v1/audio/transcriptions", True),
        ("GET", "/v1/models", True),
        ("POST", "/v1/load_lora_adapter", False),
        ("POST", "/v1/responses/x/cancel", False),
        ("DELETE", "/v1/files/x", False),
    ],
)
def test_only_what_asks_is_ever_sent_twice(method: str, path: str, repeatable: bool) -> None:
    assert kind(path, {"model": "m"} if method == "POST" else None, method).repeatable is repeatable


def said(status: int = 200, headers: Any = engine.JSON, *pieces: bytes) -> Any:
    return lambda *_, **__: engine.Said(status, headers, pieces)


@pytest.mark.parametrize("path", ["/v1/embeddings", "/v1/score", "/v1/responses"])
def test_without_streaming_it_is_sent_again_whole(path: str) -> None:
    world = World(say=said(200, engine.JSON, b'{"data": []}'))
    world.grant()
    client = world.arrive(path, {"input": "x"})
    world.fail_over()
    world.run()
    assert (client.status, client.body, client.how) == (200, b'{"data": []}', "restarted")
    assert len(world.asked) == 2


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"<html>", b'{"choices": [{"in', b'{"choices": []}', b'{"choices": null}', b"[1]"),
        b'{"choices": [null]}',
        b'{"choices": [{}, 1]}',
        b'{"choices": [{"text": "\xff"}]}',
    ],
)
def test_what_is_no_answer_is_known_from_one(body: bytes) -> None:
    assert why_no_answer(body, choices=True)
    assert not why_no_answer(b'{"choices": [{}], "more": 1}', choices=True)


def test_what_is_no_utf8_is_no_json() -> None:
    assert why_no_answer(b'{"data": "\xff"}', choices=False)
    assert not why_no_answer(b'{"data": "\xc3\xa9"}', choices=False)


@pytest.mark.parametrize("choices", [True, False])
def test_of_a_large_answer_the_end_is_looked_at(choices: bool) -> None:
    large = b'{"choices": [{"text": "%b"}]}\n' % (b"x" * (2 << 20))
    assert not why_no_answer(large, choices=choices)
    assert why_no_answer(large[:-4], choices=choices)


def test_what_changes_something_is_not_sent_again() -> None:
    world = World(say=said(200, engine.JSON, b"{}"))
    world.grant()
    client = world.arrive("/v1/load_lora_adapter", {"lora_name": "x"})
    world.fail_over()
    world.run()
    assert client.status == 502 and len(world.asked) == 1
    assert json.loads(client.body)["error"]["retry_safe"] is False


@pytest.mark.parametrize("path", ["/v1/responses", "/v1/messages"])
def test_a_stream_in_a_form_that_is_not_known_ends_with_a_named_error(path: str) -> None:
    events = [b'event: a\ndata: {"n": %d}\n\n' % number for number in range(4)]
    world = World(say=said(200, engine.EVENTS, *events))
    world.grant()
    client = world.arrive(path, {"input": "x", "stream": True})
    world.piece(world.exchanges[0])
    world.piece(world.exchanges[0], 9)
    world.fail_over()
    world.run()
    assert client.outcome is e.Outcome.ENDED and client.ended == "cut" and len(world.asked) == 1
    assert client.body.startswith(events[0]) and b"event: error\ndata: " in client.body
    assert b'"engine_lost"' in client.body
    assert b"some of the answer was delivered" in client.body and b'"delivered_tokens":null' in client.body


def test_a_compared_answer_that_comes_out_otherwise_ends_with_an_error() -> None:
    """Never two answers in one."""
    world = World()
    world.grant()
    body = {
        "prompt": "x",
        "max_tokens": 12,
        "temperature": 0,
        "stream": True,
        "presence_penalty": 1.0,
        "ignore_eos": True,
    }
    client = world.arrive("/v1/completions", body)
    for _ in range(6):
        world.piece(world.exchanges[0])
    had = client.body
    world._say = lambda method, target, headers, _, **more: engine.answer(
        method, target, headers, json.dumps(body | {"prompt": "y", "return_token_ids": True}).encode(), **more
    )
    world.fail_over()
    world.run()
    assert client.outcome is e.Outcome.ENDED and client.ended == "cut"
    assert client.body.startswith(had) and b'"engine_lost"' in client.body[len(had) :]
    assert b"[DONE]" not in client.body


@pytest.mark.parametrize("n", [2.0, "2"])
def test_choices_that_only_the_engine_can_count_are_passed_on_as_they_come(n: object) -> None:
    """vLLM takes both of these for 2. They were an engine's mistake, with an alarm."""
    events = [
        b'data: {"id": "x", "choices": [{"index": %d, "text": "a", "finish_reason": "length"}]}\n\n' % number
        for number in range(2)
    ]
    world = World(say=said(200, engine.EVENTS, *events, b"data: [DONE]\n\n"))
    world.grant()
    client = world.arrive("/v1/completions", TEXT | {"n": n})
    world.run()
    assert (client.outcome, client.body) == (e.Outcome.ANSWERED, b"".join(events) + b"data: [DONE]\n\n")


@pytest.mark.parametrize("ask", [TEXT, CHAT])
def test_an_account_is_kept_of_so_many_choices_and_no_more(ask: dict[str, Any]) -> None:
    """It is made choice by choice when the engine dies: of the `n` that a client dreams up the door would die, too."""

    def kind(n: int) -> Kind:
        target = b"/v1/chat/completions" if "messages" in ask else b"/v1/completions"
        body = json.dumps(ask | {"n": n}).encode()
        return kinds.kind_of("POST", target, [], body, request_id="r", seed=1)

    most = kind(kinds.MOST_CHOICES)
    assert (most.recovery, most.choices) == (Recovery.CONTINUED, kinds.MOST_CHOICES)
    for more in (kind(kinds.MOST_CHOICES + 1), kind(10**12)):
        assert more.api is kinds.Api.OTHER and more.recovery is not Recovery.CONTINUED and more.streams
        assert more.choices == 1, "nothing is counted"


@pytest.mark.parametrize("breaks", [False, True])
def test_more_choices_than_an_account_is_kept_of_are_passed_on_as_they_come(breaks: bool) -> None:
    events = [
        b'data: {"id": "x", "choices": [{"index": %d, "text": "a", "finish_reason": "length"}]}\n\n' % number
        for number in range(kinds.MOST_CHOICES + 5)
    ]
    world = World(say=said(200, engine.EVENTS, *events, b"data: [DONE]\n\n"))
    world.grant()
    client = world.arrive("/v1/completions", TEXT | {"n": len(events)})
    if breaks:
        for _ in events[:-2]:
            world.piece(world.exchanges[0])
        world.fail_over()
    world.run()
    if breaks:
        assert client.outcome is e.Outcome.ENDED and client.ended == "cut" and b'"engine_lost"' in client.body
    else:
        assert (client.outcome, client.body) == (e.Outcome.ANSWERED, b"".join(events) + b"data: [DONE]\n\n")


def test_a_form_that_was_made_to_take_long_does_not() -> None:
    """Each of its lines could begin a match that reads to the body's end."""
    body = b'name="model"\r\n' * 75_000
    assert kinds.kind_of("POST", b"/v1/audio/transcriptions", [], body, request_id="", seed=0).model == ""
