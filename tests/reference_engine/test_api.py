"""The endpoint, over real sockets: what OpenAI's clients and the door rely on, and what bad input costs whom."""

import json
import threading
from typing import Any

import pytest

from reference_engine import tokenizer
from reference_engine.engine import ReferenceEngine
from tests.reference_engine.serving import SMALL, Client, ask, serving

GREEDY: dict[str, Any] = {"prompt": "Who is there?", "max_tokens": 12, "temperature": 0}
CHAT: dict[str, Any] = {
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hello"}],
    "max_tokens": 12,
    "temperature": 0,
}
PATHS = {"/v1/completions": GREEDY, "/v1/chat/completions": CHAT}


def text(event: Any) -> str:
    choice = event["choices"][0]
    found: str = choice["text"] if "text" in choice else choice["delta"].get("content", "")
    return found


# -- answers -------------------------------------------------------------------------------------------------------


def test_a_completion_has_what_a_client_looks_for(client: Client) -> None:
    status, body = client.ask("/v1/completions", GREEDY)
    choice = body["choices"][0]
    assert status == 200
    assert (body["object"], body["model"], body["id"][:5]) == ("text_completion", "reference", "cmpl-")
    assert (choice["index"], choice["finish_reason"], choice["stop_reason"]) == (0, "length", None)
    assert choice["text"]
    prompt = len(tokenizer.encode(GREEDY["prompt"])) + 1
    assert body["usage"] == {"prompt_tokens": prompt, "completion_tokens": 12, "total_tokens": prompt + 12}
    assert "token_ids" not in choice


def test_a_chat_has_what_a_client_looks_for(client: Client) -> None:
    status, body = client.ask("/v1/chat/completions", CHAT)
    assert status == 200
    assert (body["object"], body["id"][:9]) == ("chat.completion", "chatcmpl-")
    assert body["choices"][0]["message"]["role"] == "assistant"
    assert body["choices"][0]["message"]["content"]


@pytest.mark.parametrize("path", PATHS)
def test_a_stream_adds_up_to_the_answer_without_one(client: Client, path: str) -> None:
    asked = {**PATHS[path], "return_token_ids": True}
    _, whole = client.ask(path, asked)
    *chunks, done = client.stream(path, asked)
    assert done == "[DONE]"
    choice = whole["choices"][0]
    assert "".join(map(text, chunks)) == (choice["text"] if "text" in choice else choice["message"]["content"])
    ids = [token for chunk in chunks for token in chunk["choices"][0].get("token_ids", [])]
    assert ids == choice["token_ids"]
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks] == [None] * (len(chunks) - 1) + ["length"]
    assert len({chunk["id"] for chunk in chunks}) == 1


def test_the_prompts_ids_come_with_the_first_chunk_and_only_there(client: Client) -> None:
    prompt = [tokenizer.BEGIN, *tokenizer.encode(GREEDY["prompt"])]
    *chunks, _ = client.stream("/v1/completions", {**GREEDY, "return_token_ids": True})
    assert chunks[0]["choices"][0]["prompt_token_ids"] == prompt
    assert all(chunk["choices"][0]["prompt_token_ids"] is None for chunk in chunks[1:])
    *chunks, _ = client.stream("/v1/chat/completions", {**CHAT, "return_token_ids": True})
    asked = tokenizer.chat([("system", "Be kind."), ("user", "Hello")])
    assert chunks[0]["prompt_token_ids"] == asked
    assert chunks[0]["choices"][0]["delta"] == {"role": "assistant", "content": ""}
    assert all("prompt_token_ids" not in chunk for chunk in chunks[1:])


def test_usage_comes_where_it_is_asked_for(client: Client) -> None:
    *chunks, last, _ = client.stream("/v1/completions", {**GREEDY, "stream_options": {"include_usage": True}})
    assert last["choices"] == []
    assert last["usage"]["completion_tokens"] == 12
    assert all("usage" not in chunk for chunk in chunks)
    options = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, _, _ = client.stream("/v1/completions", {**GREEDY, "stream_options": options})
    assert [chunk["usage"]["completion_tokens"] for chunk in chunks] == list(range(1, 13))


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("broken_at", [1, 7, 11])
def test_the_ids_so_far_as_a_prompt_give_the_rest(client: Client, path: str, broken_at: int) -> None:
    """What the door does when an engine dies within an answer."""
    _, body = client.ask(path, {**PATHS[path], "return_token_ids": True})
    ids = body["choices"][0]["token_ids"]
    prompt = body.get("prompt_token_ids") or body["choices"][0]["prompt_token_ids"]
    rest = {
        "prompt": prompt + ids[:broken_at],
        "max_tokens": 12 - broken_at,
        "temperature": 0,
        "return_token_ids": True,
    }
    _, body = client.ask("/v1/completions", rest)
    assert body["choices"][0]["token_ids"] == ids[broken_at:]


def test_many_at_once_get_what_each_gets_alone(engine: ReferenceEngine) -> None:
    questions = [{**GREEDY, "prompt": f"Question {number}", "max_tokens": 20 + number} for number in range(24)]
    alone = [ask(engine, "/v1/completions", question)[1]["choices"] for question in questions]
    together: list[Any] = [None] * len(questions)

    def one(number: int) -> None:
        together[number] = ask(engine, "/v1/completions", questions[number])[1]["choices"]

    threads = [threading.Thread(target=one, args=(number,)) for number in range(len(questions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert together == alone


def test_a_stop_string_ends_an_answer_and_is_not_in_it(client: Client) -> None:
    _, body = client.ask("/v1/completions", {**GREEDY, "max_tokens": 100})
    whole = body["choices"][0]["text"]
    stop = whole[20:23]
    end = whole.find(stop)
    _, body = client.ask("/v1/completions", {**GREEDY, "max_tokens": 100, "stop": ["never this", stop]})
    choice = body["choices"][0]
    assert (choice["text"], choice["finish_reason"], choice["stop_reason"]) == (whole[:end], "stop", stop)


def test_seeded_answers_are_the_same_again(client: Client) -> None:
    asked = {**GREEDY, "temperature": 1.0, "seed": 11, "top_p": 0.9, "max_tokens": 30}
    first, again, other = (
        client.ask("/v1/completions", {**asked, "seed": seed})[1]["choices"] for seed in (11, 11, 12)
    )
    assert first == again != other


def test_the_model_and_the_health_are_there(client: Client) -> None:
    status, body = client.ask("/v1/models", method="GET")
    assert (status, [model["id"] for model in body["data"]]) == (200, ["reference"])
    assert client.ask("/health", method="GET") == (200, None)


def test_nulls_and_what_asks_for_nothing_and_what_is_unknown_are_let_pass(client: Client) -> None:
    extra = {
        "n": 1, "logprobs": None, "stop": None, "seed": None, "stream_options": None, "presence_penalty": 0,
        "frequency_penalty": 0.0, "user": "somebody", "something_new": {"a": 1}, "best_of": 1, "echo": False,
    }  # fmt: skip
    assert client.ask("/v1/completions", {**GREEDY, **extra})[0] == 200
    parts = [{"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}]
    assert client.ask("/v1/chat/completions", {"messages": parts, "max_completion_tokens": 2})[0] == 200


# -- bad input -----------------------------------------------------------------------------------------------------


def tool(property: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": "f", "parameters": {"properties": {"a": property}}}}


BAD: list[tuple[str, object, int, str | None]] = [
    ("/v1/completions", b"{", 400, None),
    ("/v1/completions", b"[1]", 400, None),
    ("/v1/completions", b"", 400, None),
    ("/v1/completions", b"\xff\xfe", 400, None),
    ("/v1/completions", b"[" * 100_000, 400, None),
    ("/v1/completions", b'{"prompt":' + b"[" * 100_000, 400, None),
    ("/v1/completions", {"max_tokens": 1}, 400, None),
    ("/v1/completions", {"prompt": 7}, 400, "prompt"),
    ("/v1/completions", {"prompt": []}, 400, "prompt"),
    ("/v1/completions", {"prompt": ["a", 7]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [1, "b"]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [-1]}, 400, None),
    ("/v1/completions", {"prompt": [384]}, 400, "prompt"),
    ("/v1/completions", {"prompt": [10**30]}, 400, None),
    ("/v1/completions", {"prompt": "a" * 10_000}, 400, "prompt"),
    ("/v1/completions", {**GREEDY, "max_tokens": 0}, 400, "max_tokens"),
    ("/v1/completions", {**GREEDY, "max_tokens": 100_000}, 400, "max_tokens"),
    ("/v1/completions", {**GREEDY, "max_tokens": "many"}, 400, "max_tokens"),
    ("/v1/completions", {**GREEDY, "max_tokens": True}, 400, "max_tokens"),
    ("/v1/completions", {**GREEDY, "temperature": -1}, 400, "temperature"),
    ("/v1/completions", {**GREEDY, "top_p": 0}, 400, "top_p"),
    ("/v1/completions", {**GREEDY, "seed": 1 << 70}, 400, None),
    ("/v1/completions", {**GREEDY, "stop": [""]}, 400, None),
    ("/v1/completions", {**GREEDY, "min_tokens": 99}, 400, "min_tokens"),
    ("/v1/completions", {**GREEDY, "n": 0}, 400, "n"),
    ("/v1/completions", {**GREEDY, "logprobs": 99}, 400, "logprobs"),
    ("/v1/completions", {**GREEDY, "use_beam_search": True}, 400, "use_beam_search"),
    ("/v1/completions", {**GREEDY, "logit_bias": {"x": 1}}, 400, "logit_bias"),
    ("/v1/completions", {**GREEDY, "prompt_logprobs": 1}, 400, "prompt_logprobs"),
    ("/v1/completions", {**GREEDY, "model": "gpt-4"}, 404, "model"),
    ("/v1/chat/completions", {"messages": []}, 400, "messages"),
    ("/v1/chat/completions", {"messages": [{"role": "tool", "content": "a"}]}, 400, None),
    ("/v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, 400, None),
    ("/v1/chat/completions", {**CHAT, "logprobs": 3}, 400, "logprobs"),
    ("/v1/chat/completions", {**CHAT, "tools": [{"type": "function"}]}, 400, "tools"),
    ("/v1/chat/completions", {**CHAT, "tools": [tool({"type": ["string", "null"]})]}, 400, "tools"),
    ("/v1/chat/completions", {**CHAT, "tools": [tool({"type": "array"})]}, 400, "tools"),
    ("/v1/chat/completions", {**CHAT, "tools": [tool(True)]}, 400, "tools"),
    ("/v1/chat/completions", {**CHAT, "response_format": {"type": "xml"}}, 400, "response_format"),
    ("/v1/embeddings", {"input": 7}, 400, "input"),
    ("/nowhere", {}, 404, None),
    ("/v1/../etc/passwd", {}, 404, None),
]


@pytest.mark.parametrize(("path", "body", "status", "param"), BAD)
def test_what_is_wrong_is_said_in_openais_form_and_the_connection_goes_on(
    client: Client, path: str, body: object, status: int, param: str | None
) -> None:
    got, answer = client.ask(path, body)
    assert (got, answer["error"]["code"]) == (status, status)
    assert answer["error"]["message"]
    assert "Traceback" not in answer["error"]["message"]
    if param is not None:
        assert (answer["error"]["param"] or "").startswith(param)
    assert client.ask("/health", method="GET")[0] == 200


def test_another_method_is_refused_with_the_one_that_is_allowed(client: Client) -> None:
    client.request("/v1/completions", method="GET")
    status, headers = client.head()
    assert (status, headers["allow"]) == (405, "POST")


def test_another_kind_of_body_is_refused(client: Client) -> None:
    assert (
        client.ask("/v1/completions", b"prompt=a", headers="content-type: application/x-www-form-urlencoded\r\n")[0]
        == 415
    )


GARBAGE = [
    b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
    b"GET /health HTTP/1.1\r\nhost: a\r\nx: " + b"y" * 100_000 + b"\r\n\r\n",
    b"\x00" * 50_000,
]


@pytest.mark.parametrize("data", GARBAGE)
def test_garbage_costs_its_sender_the_connection_and_no_other_anything(
    engine: ReferenceEngine, client: Client, data: bytes
) -> None:
    with Client(engine.address) as other:
        other.request("/v1/completions", {**GREEDY, "stream": True, "max_tokens": 100, "ignore_eos": True})
        client.say(data)
        said = client.ended()
        assert said.startswith(b"HTTP/1.1 4")
        assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["code"] >= 400
        assert other.head()[0] == 200
        assert len(list(other.events())) == 101


def test_who_asks_whether_it_may_send_is_told_to_go_on(client: Client) -> None:
    body = json.dumps(GREEDY).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: a\r\ncontent-length: {len(body)}\r\n"
    client.say(head.encode() + b"expect: 100-continue\r\n\r\n")
    assert client.head()[0] == 100
    client.say(body)
    assert client.answer()[0] == 200


# -- who goes, and who comes when --------------------------------------------------------------------------------


def until_queued(engine: ReferenceEngine, count: int) -> None:
    """Waits on the engine's own figure."""
    pause = threading.Event()
    for _ in range(3000):
        if engine.health().queued == count:
            return
        pause.wait(0.01)
    raise AssertionError(f"{engine.health().queued} are queued, and not {count}")


@pytest.mark.parametrize("stream", [True, False])
def test_nothing_is_computed_for_a_client_that_is_gone(stream: bool) -> None:
    with serving(*SMALL, "--tokens-per-s", "20") as engine:
        with Client(engine.address) as client:
            client.request("/v1/completions", {**GREEDY, "max_tokens": 400, "ignore_eos": True, "stream": stream})
            if stream:
                next(client.events()) if client.head()[0] == 200 else None
            until_queued(engine, 1)
        until_queued(engine, 0)
        assert ask(engine, "/v1/completions", GREEDY)[0] == 200


def test_a_paced_stream_has_its_first_token_at_once_and_the_others_one_by_one() -> None:
    with serving(*SMALL, "--tokens-per-s", "4") as engine, Client(engine.address) as client:
        client.request("/v1/completions", {**GREEDY, "max_tokens": 400, "stream": True})
        assert client.head()[0] == 200
        next(client.events())
        assert engine.health().steps <= 1, "it came before the next one was made"


def test_draining_it_finishes_what_it_has_takes_nothing_new_and_can_be_called_off() -> None:
    with serving(*SMALL, "--tokens-per-s", "200") as engine, Client(engine.address) as client:
        client.request("/v1/completions", {**GREEDY, "max_tokens": 60, "stream": True, "ignore_eos": True})
        assert client.head()[0] == 200
        drained = threading.Thread(target=engine.drain, args=(30.0,))
        drained.start()
        while ask(engine, "/v1/completions", GREEDY)[0] != 503:
            assert drained.is_alive()
        assert len(list(client.events())) == 61
        drained.join()
        assert ask(engine, "/v1/completions", GREEDY)[0] == 503
        assert ask(engine, "/health", method="GET")[0] == 200
        engine.resume()
        assert ask(engine, "/v1/completions", GREEDY)[0] == 200


def test_a_drain_ends_when_its_time_is_over() -> None:
    with serving(*SMALL, "--tokens-per-s", "0.01") as engine, Client(engine.address) as client:
        client.request("/v1/completions", {**GREEDY, "max_tokens": 60, "stream": True})
        assert client.head()[0] == 200
        engine.drain(0.05)
        assert engine.health().queued == 1


@pytest.mark.slow
def test_more_requests_than_the_cache_holds_are_all_answered() -> None:
    """Two of them fit at a time."""
    with serving(*SMALL, "--kv-bytes", "1MiB") as engine:
        clients = [Client(engine.address) for _ in range(6)]
        for client in clients:
            client.request("/v1/completions", {**GREEDY, "max_tokens": 400, "ignore_eos": True})
        answers = {client.answer()[1]["choices"][0]["text"] for client in clients}
        assert len(answers) == 1
        for client in clients:
            client.close()
