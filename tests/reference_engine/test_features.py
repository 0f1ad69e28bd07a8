"""What an answer can be made to be: several choices, probabilities, penalties, grammars, tools, thoughts, vectors."""

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from reference_engine import grammar, tokenizer
from reference_engine.parser import Parser
from tests.reference_engine.serving import Client

GREEDY: dict[str, Any] = {"prompt": "Who is there?", "max_tokens": 12, "temperature": 0}
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 200, "temperature": 0}
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}, "warm": {"type": "boolean"}},
        },
    },
}
TIME = {"type": "function", "function": {"name": "time", "parameters": {"type": "object"}}}


def completion(client: Client, **more: Any) -> Any:
    status, body = client.ask("/v1/completions", {**GREEDY, "return_token_ids": True, **more})
    assert status == 200, body
    return body


def chat(client: Client, **more: Any) -> Any:
    status, body = client.ask("/v1/chat/completions", {**CHAT, **more})
    assert status == 200, body
    return body


def joined(events: list[Any]) -> dict[str, Any]:
    """What a client makes of a chat's stream."""
    found: dict[str, Any] = {"content": "", "reasoning": "", "calls": {}, "finish": None, "roles": 0}
    for event in events:
        for choice in event["choices"] if event != "[DONE]" else ():
            delta = choice["delta"]
            found["roles"] += "role" in delta
            found["content"] += delta.get("content") or ""
            found["reasoning"] += delta.get("reasoning") or ""
            for call in delta.get("tool_calls") or ():
                known = found["calls"].setdefault(call["index"], {"name": "", "arguments": ""})
                known["name"] += call["function"].get("name") or ""
                known["arguments"] += call["function"].get("arguments") or ""
            found["finish"] = choice["finish_reason"] or found["finish"]
    return found


def test_several_choices_are_seeded_one_by_one(client: Client) -> None:
    body = completion(client, n=3, seed=7, temperature=1.0)
    alone = [completion(client, seed=7 + place, temperature=1.0)["choices"][0] for place in range(3)]
    assert [choice["token_ids"] for choice in body["choices"]] == [choice["token_ids"] for choice in alone]
    assert [choice["index"] for choice in body["choices"]] == [0, 1, 2]
    assert body["usage"]["completion_tokens"] == sum(len(choice["token_ids"]) for choice in body["choices"])
    assert body["usage"]["prompt_tokens"] == len(alone[0]["prompt_token_ids"])


def test_several_choices_stream_each_to_its_own_end_and_end_once(client: Client) -> None:
    asked = {**GREEDY, "n": 2, "seed": 7, "temperature": 1.0, "stream_options": {"include_usage": True}}
    *chunks, usage, done = client.stream("/v1/completions", asked)
    assert done == "[DONE]" and usage["choices"] == []
    whole = completion(client, n=2, seed=7, temperature=1.0)
    texts = {0: "", 1: ""}
    for chunk in chunks:
        texts[chunk["choices"][0]["index"]] += chunk["choices"][0]["text"]
    assert texts == {choice["index"]: choice["text"] for choice in whole["choices"]}
    assert usage["usage"] == whole["usage"]


def test_several_prompts_are_answered_as_each_alone(client: Client) -> None:
    body = completion(client, prompt=["one", "two"])
    alone = [completion(client, prompt=prompt)["choices"][0] for prompt in ("one", "two")]
    assert [choice["text"] for choice in body["choices"]] == [choice["text"] for choice in alone]


def test_log_probabilities_stand_beside_their_tokens_and_count_characters(client: Client) -> None:
    whole = completion(client, logprobs=2)["choices"][0]["logprobs"]
    assert len(whole["tokens"]) == len(whole["token_logprobs"]) == len(whole["top_logprobs"]) == 12
    assert whole["text_offset"][0] == 0
    for place in range(1, 12):
        assert whole["text_offset"][place] == whole["text_offset"][place - 1] + len(whole["tokens"][place - 1])
    assert all(logprob <= 0 for logprob in whole["token_logprobs"])
    assert all(
        max(top.values()) == own for top, own in zip(whole["top_logprobs"], whole["token_logprobs"], strict=True)
    )
    *chunks, _ = client.stream("/v1/completions", {**GREEDY, "logprobs": 2})
    streamed = [chunk["choices"][0]["logprobs"] for chunk in chunks]
    assert [one for piece in streamed for one in piece["text_offset"]] == whole["text_offset"]
    assert [one for piece in streamed for one in piece["token_logprobs"]] == whole["token_logprobs"]


def test_a_chats_log_probabilities_have_bytes(client: Client) -> None:
    found = chat(client, max_tokens=5, logprobs=True, top_logprobs=3)["choices"][0]["logprobs"]["content"]
    assert len(found) == 5
    assert all(len(one["top_logprobs"]) == 3 and one["top_logprobs"][0]["logprob"] == one["logprob"] for one in found)
    assert bytes(byte for one in found for byte in one["bytes"])


def test_an_echo_begins_with_the_prompt(client: Client) -> None:
    plain = completion(client)["choices"][0]["text"]
    _, body = client.ask("/v1/completions", {**GREEDY, "echo": True})
    assert body["choices"][0]["text"] == GREEDY["prompt"] + plain
    *chunks, _ = client.stream("/v1/completions", {**GREEDY, "echo": True})
    assert "".join(chunk["choices"][0]["text"] for chunk in chunks) == GREEDY["prompt"] + plain


@pytest.mark.parametrize("penalty", ["presence_penalty", "frequency_penalty", "repetition_penalty"])
def test_a_penalty_changes_what_is_said(client: Client, penalty: str) -> None:
    plain = completion(client, max_tokens=60, ignore_eos=True)["choices"][0]["token_ids"]
    other = completion(client, max_tokens=60, ignore_eos=True, **{penalty: 2.0})["choices"][0]["token_ids"]
    assert plain != other and len(set(other)) > len(set(plain))


def test_what_is_biased_and_banned(client: Client) -> None:
    first = completion(client)["choices"][0]["token_ids"]
    assert completion(client, logit_bias={str(first[0]): -100})["choices"][0]["token_ids"][0] != first[0]
    banned = tokenizer.decode(first[:1])
    assert banned not in completion(client, bad_words=[banned], max_tokens=40)["choices"][0]["text"]


def test_a_picture_is_read(client: Client) -> None:
    def see(url: str) -> str:
        parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": url}}]
        body = chat(client, messages=[{"role": "user", "content": parts}], max_tokens=12)
        return str(body["choices"][0]["message"]["content"])

    assert see("data:,a") != see("data:,b")


# -- grammars --------------------------------------------------------------------------------------------------------


def test_json_without_a_schema_and_a_choice(client: Client) -> None:
    body = chat(client, response_format={"type": "json_object"})
    assert isinstance(json.loads(body["choices"][0]["message"]["content"]), dict)
    said = completion(client, structured_outputs={"choice": ["red", "green"]}, max_tokens=20)["choices"][0]
    assert said["text"] in ("red", "green") and said["finish_reason"] == "stop"


@settings(max_examples=25)
@given(st.text(max_size=8), st.lists(st.text(min_size=1, max_size=6), min_size=1, max_size=4))
def test_a_choice_is_one_of_them(wanted: str, others: list[str]) -> None:
    it = grammar.choice([*others, wanted])
    for token in tokenizer.encode(wanted):
        assert token in (grammar.allowed(it) or ())
        it = grammar.after(it, token)
    assert tokenizer.END in (grammar.allowed(it) or ())


def test_behind_thoughts_an_answer_is_free_and_may_end() -> None:
    it = grammar.thoughts(None)
    for token in tokenizer.encode("<think>a sea </think>"):
        assert token in (grammar.allowed(it) or ())
        it = grammar.after(it, token)
    assert grammar.allowed(it) is None


# -- tools and thoughts ------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("choice", ["auto", "required"])
def test_a_tool_is_called_with_arguments_that_are_json(client: Client, choice: str) -> None:
    asked = {"tools": [WEATHER, TIME], "tool_choice": choice}
    said = chat(client, **asked)["choices"][0]
    call = said["message"]["tool_calls"][0]["function"]
    assert call["name"] in ("weather", "time") and isinstance(json.loads(call["arguments"]), dict)
    assert said["finish_reason"] == "tool_calls"
    streamed = joined(client.stream("/v1/chat/completions", {**CHAT, **asked}))
    assert streamed["calls"][0] == call and streamed["finish"] == "tool_calls" and streamed["roles"] == 1
    assert streamed["content"] == (said["message"]["content"] or "")


@pytest.mark.slow
def test_thoughts_come_apart_from_the_answer(client: Client) -> None:
    asked = {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 120}
    message = chat(client, **asked)["choices"][0]["message"]
    assert message["reasoning"] and "think" not in message["reasoning"] + message["content"]
    streamed = joined(client.stream("/v1/chat/completions", {**CHAT, **asked}))
    assert (streamed["reasoning"], streamed["content"]) == (message["reasoning"], message["content"])


@given(st.lists(st.integers(1, 5), max_size=60))
def test_a_parser_says_the_same_however_the_text_is_cut(sizes: list[int]) -> None:
    text = 'a<think>why</think>so <b <tool_call>{"name":"f","arguments":{"x":{"y":1}}}</tool_call>'
    whole = Parser().push(text, last=True)
    parser, content, reasoning, arguments, names, at = Parser(), "", "", "", "", 0
    for size in [*sizes, len(text)]:
        delta = parser.push(text[at : at + size], last=at + size >= len(text))
        at += size
        content, reasoning = content + delta.content, reasoning + delta.reasoning
        arguments += "".join(call.arguments for call in delta.calls)
        names += "".join(call.name for call in delta.calls)
        if at >= len(text):
            break
    assert (content, reasoning) == (whole.content, whole.reasoning) == ("aso <b ", "why")
    assert (names, arguments) == ("f", '{"x":{"y":1}}')


# -- vectors -----------------------------------------------------------------------------------------------------


def test_texts_have_vectors_and_the_same_text_the_same_one(client: Client) -> None:
    _, body = client.ask("/v1/embeddings", {"input": ["a cat", "a cat", "rain"]})
    vectors = [one["embedding"] for one in body["data"]]
    assert vectors[0] == vectors[1] != vectors[2]
    assert abs(sum(x * x for x in vectors[0]) - 1) < 1e-3


def test_version_and_metrics_are_there(client: Client) -> None:
    assert client.ask("/version", method="GET")[1] == {"version": "reference"}
    client.request("/metrics", method="GET")
    _, headers = client.head()
    page = client.exactly(int(headers["content-length"]))
    assert b'vllm:num_requests_running{model_name="reference"} 0' in page
