"""Every kind of answer, broken between any two of its events and in the middle of each: what its client has in the end
is what it has when nothing happens.
"""

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gateway.rules import events as e
from gateway.rules import sse
from gateway.rules.kinds import Recovery
from reference_engine import tokenizer
from tests.gateway import engine
from tests.gateway.world import SimClient, World, undisturbed

COMPLETION = "/v1/completions"
CHAT = "/v1/chat/completions"
PROMPT: dict[str, Any] = {"prompt": "The old lighthouse", "max_tokens": 14, "temperature": 0, "stream": True}
TALK: dict[str, Any] = {
    "messages": [{"role": "user", "content": "Hello"}],
    "max_tokens": 14,
    "temperature": 0,
    "stream": True,
}
TOOLS = [
    {
        "type": "function",
        "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
    }
]
USAGE = {"stream_options": {"include_usage": True}}
EACH = {"stream_options": {"include_usage": True, "continuous_usage_stats": True}}

CONTINUED: dict[str, tuple[str, dict[str, Any]]] = {
    "completion": (COMPLETION, PROMPT),
    "chat": (CHAT, TALK),
    "usage": (COMPLETION, PROMPT | USAGE),
    "chat with usage in each chunk": (CHAT, TALK | EACH),
    "ids": (COMPLETION, PROMPT | {"return_token_ids": True}),
    "chat with ids": (CHAT, TALK | {"return_token_ids": True}),
    "to its own end": (COMPLETION, PROMPT | {"max_tokens": 200, "prompt": "b"}),
    "least tokens": (COMPLETION, PROMPT | {"min_tokens": 12}),
    "log probabilities": (COMPLETION, PROMPT | {"logprobs": 2}),
    "two prompts": (COMPLETION, PROMPT | {"prompt": ["one", "two"], "max_tokens": 6} | USAGE),
    "two choices": (COMPLETION, PROMPT | {"n": 2, "max_tokens": 6} | USAGE),
    "two choices of a chat": (CHAT, TALK | {"n": 2, "max_tokens": 6} | USAGE),
    "repetition penalty": (COMPLETION, PROMPT | {"repetition_penalty": 1.3}),
    "bias": (COMPLETION, PROMPT | {"logit_bias": {"97": 3}}),
    "special tokens shown": (
        COMPLETION,
        PROMPT | {"prompt": "egebjgfi", "max_tokens": 30, "ignore_eos": True, "skip_special_tokens": False},
    ),
    "stop token": (COMPLETION, PROMPT | {"stop_token_ids": [32], "min_tokens": 5}),
    "a choice of tools without any": (CHAT, TALK | {"tool_choice": "auto"}),
    "no limit of its own": (CHAT, {name: TALK[name] for name in TALK if name != "max_tokens"}),
}
COMPARED: dict[str, tuple[str, dict[str, Any]]] = {
    "presence penalty": (COMPLETION, PROMPT | {"presence_penalty": 1.5}),
    "frequency penalty": (COMPLETION, PROMPT | {"frequency_penalty": 1.5} | USAGE),
    "bad words": (COMPLETION, PROMPT | {"bad_words": ["ka", "se"]}),
    "seed": (COMPLETION, PROMPT | {"temperature": 1.0, "seed": 11}),
    "chat with a seed": (CHAT, TALK | {"temperature": 1.0, "seed": 11} | USAGE),
    "choices with a seed": (COMPLETION, PROMPT | {"temperature": 1.0, "seed": 11, "n": 3, "max_tokens": 5} | USAGE),
    "sampled, with a penalty": (COMPLETION, PROMPT | {"temperature": 1.0, "presence_penalty": 1.0}),
    "json": (CHAT, TALK | {"response_format": {"type": "json_object"}, "max_tokens": 60} | USAGE),
    "choice": (COMPLETION, PROMPT | {"structured_outputs": {"choice": ["a long one", "another"]}}),
    "tools, auto": (CHAT, TALK | {"tools": TOOLS, "max_tokens": 90} | USAGE),
    "tools, required": (CHAT, TALK | {"tools": TOOLS, "tool_choice": "required", "max_tokens": 90}),
    "tools, sampled": (CHAT, TALK | {"tools": TOOLS, "max_tokens": 90, "temperature": 1.0}),
    "thoughts": (CHAT, TALK | {"chat_template_kwargs": {"enable_thinking": True}, "max_tokens": 40} | USAGE),
    "chat with log probabilities": (CHAT, TALK | {"logprobs": True, "top_logprobs": 2}),
    "echo": (COMPLETION, PROMPT | {"echo": True}),
    "a picture": (
        CHAT,
        TALK | {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:,x"}}]}]},
    ),
    "an unknown field": (COMPLETION, PROMPT | {"vllm_xargs": {"x": 1}}),
}
ALL = CONTINUED | COMPARED
Say = Callable[..., engine.Said]
NEAR_THE_ENDS = 16


def broken(
    path: str, body: Any, *cuts: tuple[int, int | None], runs: bool = True, say: Say = engine.answer
) -> tuple[World, SimClient]:
    """Each engine in its turn says so many pieces, and so many bytes of the next, and is gone."""
    world = World(say=say)
    world.grant()
    client = world.arrive(path, body)
    for pieces, rest in cuts:
        it = world.serving
        assert it is not None
        said = 0
        while said < pieces and it.exchanges:
            world.piece(next(iter(it.exchanges.values())))
            said += 1
        if rest is not None and it.exchanges:
            world.piece(next(iter(it.exchanges.values())), rest)
        world.die(it)
        world.lock("FENCING")
        world.grant()
    if runs:
        world.run()
    return world, client


def check(client: SimClient, like: SimClient) -> None:
    assert client.outcome is e.Outcome.ANSWERED, client.why
    assert (client.status, client.ended) == (like.status, like.ended)
    assert by_choice(client.events) == by_choice(like.events)


def by_choice(events: list[Any]) -> dict[int, list[Any]]:
    """Between choices there is no order; what belongs to none comes last."""
    found: dict[int, list[Any]] = {}
    for event in events:
        choices = event["choices"] if isinstance(event, dict) else []
        assert choices or -1 in found or all(choice >= 0 for choice in found)
        assert not choices or -1 not in found, "a chunk comes behind the closing ones"
        found.setdefault(choices[0]["index"] if choices else -1, []).append(event)
    return found


def ways(path: str, pieces: Any) -> list[tuple[int, int | None]]:
    """Between any two pieces, and within each: in turns behind its first byte, in its middle, before its last. Of a
    long answer the first and the last pieces, and between them as many more.
    """
    found: list[tuple[int, int | None]] = []
    step = max(1, len(pieces) // NEAR_THE_ENDS)
    for place, piece in enumerate(pieces):
        if NEAR_THE_ENDS < place < len(pieces) - NEAR_THE_ENDS and place % step:
            continue
        found += [(place, None), (place, (1, len(piece) // 2, len(piece) - 1)[place % 3])]
    return found


@pytest.mark.parametrize("name", ALL)
def test_a_break_anywhere_is_not_in_what_the_client_has(name: str) -> None:
    path, body = ALL[name]
    like, pieces = undisturbed(path, body)
    assert like.events[-1] == "[DONE]"
    for cut in ways(path, pieces):
        world, client = broken(path, body, cut)
        check(client, like)
        assert client.how != "compared" or not any(b"failover_answer" in ask.body for ask in world.asked)


NOT_THE_SAME = ("tools, sampled", "sampled, with a penalty")
"""The door gives these a seed."""


@pytest.mark.parametrize("name", [name for name in ALL if name not in NOT_THE_SAME])
def test_undisturbed_it_is_what_the_engine_says_event_for_event(name: str) -> None:
    """To whom doesn't ask for token ids an engine says nothing of a token that its parser keeps to itself."""
    path, body = ALL[name]
    like, _ = undisturbed(path, body)
    said = engine.answer("POST", path.encode(), [(b"x-request-id", b"r1")], json.dumps(body).encode())
    assert like.events == SimClient(1, like.kind, body=said.body).events


@pytest.mark.parametrize("name", ALL)
def test_two_breaks_within_one_answer_are_not_either(name: str) -> None:
    path, body = ALL[name]
    like, pieces = undisturbed(path, body)
    step = max(1, len(pieces) // 6)
    for first in range(0, len(pieces), step):
        for second in (0, 1, 4):
            _, client = broken(path, body, (first, 7), (second, None))
            check(client, like)


@pytest.mark.parametrize("name", [*CONTINUED, "stop string"])
def test_the_rest_may_come_in_one_piece(name: str) -> None:
    """On a busy machine. The engine that goes on isn't told of stop strings, and ends its answer behind them."""
    text = "".join(event["choices"][0]["text"] for event in undisturbed(COMPLETION, PROMPT)[0].events[:-1])
    path, body = CONTINUED.get(name) or (COMPLETION, PROMPT | {"stop": [text[-4:-1]]} | USAGE)
    like, pieces = undisturbed(path, body)
    for cut in dict.fromkeys(place for place, _ in ways(path, pieces)):
        world, client = broken(path, body, (cut, None), runs=False)
        while world.exchanges or world.connecting:
            if world.connecting:
                world.connect(world.connecting[0])
                continue
            exchange = world.exchanges[0]
            exchange.said = replace(exchange.said, pieces=(b"".join(exchange.said.pieces),))
            world.piece(exchange)
        check(client, like)


@pytest.mark.parametrize("name", ALL)
def test_what_is_continued_is_not_made_again_and_what_is_compared_is_asked_as_it_was(name: str) -> None:
    path, body = ALL[name]
    _, pieces = undisturbed(path, body)
    world, client = broken(path, body, (len(pieces) // 2 + 2, None))
    if name in CONTINUED:
        assert client.how == Recovery.CONTINUED.value
        later = [json.loads(ask.body) for ask in world.asked if ask.token == 2 and ask.target == b"/v1/completions"]
        assert later and all(len(asked["prompt"]) > 2 for asked in later)
        return
    assert client.how == Recovery.COMPARED.value
    first, *others = [ask.body for ask in world.asked if ask.target.decode() == path]
    assert others == [first]


IN_PIECES = {
    "completion": (COMPLETION, PROMPT | {"return_token_ids": True} | USAGE),
    "log probabilities": (COMPLETION, PROMPT | {"logprobs": 2, "presence_penalty": 1.5}),
    "seed": (COMPLETION, PROMPT | {"temperature": 1.0, "seed": 11, "return_token_ids": True} | USAGE),
    "stop": (COMPLETION, PROMPT | {"stop": ["zq"], "return_token_ids": True}),
    "chat": (CHAT, TALK | {"return_token_ids": True}),
    "chat with log probabilities": (CHAT, TALK | {"logprobs": True, "top_logprobs": 2, "return_token_ids": True}),
}


def in_larger_pieces(method: str, target: bytes, headers: Any, body: bytes, *, created: int = 1) -> engine.Said:
    """Every engine but the first says several tokens at a time, as vLLM does when it is quicker than its reader."""
    said = engine.answer(method, target, headers, body, created=created)
    return said if created == 1 else replace(said, pieces=tuple(joined(said.pieces, created)))


def joined(pieces: Sequence[bytes], most: int) -> Iterator[bytes]:
    """Events that add to one choice, so many in one."""
    waits: Any = None
    count = 0
    for piece in pieces:
        data = piece.removeprefix(b"data: ")
        said = json.loads(data) if data.startswith(b"{") else {}
        choices = said.get("choices") or []
        adds = bool(choices and choices[0].get("token_ids"))
        if waits is not None and adds and count < most and choices[0]["finish_reason"] is None:
            put_together(waits["choices"][0], choices[0])
            count += 1
            continue
        if waits is not None:
            yield b"data: " + json.dumps(waits).encode() + b"\n\n"
        waits, count = (said, 1) if adds else (None, 0)
        if not adds:
            yield piece


def put_together(one: dict[str, Any], more: dict[str, Any]) -> None:
    one["token_ids"] += more["token_ids"]
    if "text" in one:
        one["text"] += more["text"]
    else:
        one["delta"]["content"] = one["delta"].get("content", "") + more["delta"].get("content", "")
    for name, values in (more.get("logprobs") or {}).items():
        if isinstance(values, list):
            one["logprobs"][name] += values


def put_all_together(events: Sequence[Any]) -> Any:
    found: Any = None
    ends = []
    for event in events:
        choices = event["choices"] if isinstance(event, dict) else []
        if not choices:
            ends.append(event)
            continue
        choice = choices[0]
        ends += [end for end in (choice["finish_reason"], choice.get("stop_reason")) if end is not None]
        if choice.get("token_ids") is None:
            continue
        if found is None:
            found = choice
        else:
            put_together(found, choice)
    return [{**found, "finish_reason": None, "prompt_token_ids": None}, ends]


@pytest.mark.parametrize("name", IN_PIECES)
def test_pieces_of_several_tokens_are_cut_where_the_client_has_some(name: str) -> None:
    path, body = IN_PIECES[name]
    body = body | {"return_token_ids": True}
    like, pieces = undisturbed(path, body)
    for first in range(1, len(pieces) - 1):
        world = World(say=in_larger_pieces)
        world.grant()
        client = world.arrive(path, body)
        for _ in range(first):
            world.piece(world.exchanges[0])
        for _ in range(2):  # two at a time, then three
            dead = world.serving
            assert dead is not None
            world.die(dead)
            world.lock("FENCING")
            world.grant()
            if world.exchanges:
                world.piece(world.exchanges[0])
        world.run()
        assert client.outcome is e.Outcome.ANSWERED, client.why
        assert put_all_together(client.events) == put_all_together(like.events), first


def with_a_fingerprint(method: str, target: bytes, headers: Any, body: bytes, *, created: int = 1) -> engine.Said:
    """As vLLM says what it is: where an answer ends, with the usage if that is asked for."""
    said = engine.answer(method, target, headers, body, created=created)
    usage = b"include_usage" in body
    pieces = []
    for piece in said.pieces:
        data = piece.removeprefix(b"data: ")
        chunk = json.loads(data) if data.startswith(b"{") else {}
        choices = chunk.get("choices")
        if choices == [] or (choices and choices[0]["finish_reason"] is not None and not usage):
            piece = b"data: " + json.dumps({**chunk, "system_fingerprint": "vllm-x"}).encode() + b"\n\n"
        pieces.append(piece)
    return replace(said, pieces=tuple(pieces))


@pytest.mark.parametrize(
    "body", [PROMPT, PROMPT | USAGE, PROMPT | {"n": 2, "max_tokens": 6} | USAGE, TALK, TALK | EACH]
)
def test_what_the_engine_calls_itself_is_said_behind_a_break_too(body: dict[str, Any]) -> None:
    path = CHAT if "messages" in body else COMPLETION
    found = []
    for cut in (0, 3, 7):
        world = World(say=with_a_fingerprint)
        world.grant()
        client = world.arrive(path, body)
        for _ in range(cut):
            world.piece(world.exchanges[0])
        if cut:
            assert world.serving is not None
            world.die(world.serving)
            world.lock("FENCING")
            world.grant()
        world.run()
        assert b'"vllm-x"' in client.body and (client.how == "continued" or not cut)
        found.append(by_choice(client.events))
    assert found[1] == found[2] == found[0]


@pytest.mark.parametrize("keep", [False, True])
@pytest.mark.parametrize("least", [0, 9])
def test_a_stop_string_on_both_sides_of_the_break_stops(keep: bool, least: int) -> None:
    """Every two and three characters of the answer, as a stop string, and a break anywhere."""
    base = PROMPT | {"max_tokens": 30, "min_tokens": least, "include_stop_str_in_output": keep}
    whole, _ = undisturbed(COMPLETION, PROMPT | {"max_tokens": 30})
    text = "".join(event["choices"][0]["text"] for event in whole.events[:-1])
    stopped = 0
    for at in range(2, len(text) - 3, 3):
        body = base | {"stop": [text[at : at + 3], "never"]} | USAGE
        like, pieces = undisturbed(COMPLETION, body)
        stopped += like.events[-3]["choices"][0]["finish_reason"] == "stop"
        for cut in range(1, len(pieces)):
            _, client = broken(COMPLETION, body, (cut, None))
            check(client, like)
    assert stopped > 3


@pytest.mark.parametrize(("more", "ids"), [({}, False), ({"return_token_ids": True}, True), ({"logprobs": 1}, True)])
def test_of_what_a_client_has_nothing_is_asked_anew(more: dict[str, Any], ids: bool) -> None:
    """Tokenizers of SentencePiece's kind say their first token otherwise than one in the middle."""
    body = PROMPT | {"max_tokens": 30, "stop": ["never said at all"]} | more
    like, pieces = undisturbed(COMPLETION, body)
    assert all(b'"text":""' in piece for piece in pieces[1:3]), "a stop string could begin there"
    world, client = broken(COMPLETION, body, (2, None))
    check(client, like)
    assert len(client.events) == len(like.events), "no empty chunk twice"
    for second in range(3):  # pieces of an engine that comes between, and the first that comes to more
        check(broken(COMPLETION, body, (2, None), (second, None))[1], like)
    again = [asked for ask in world.asked if (asked := json.loads(ask.body).get("prompt"))][1]
    prompt = 1 + len(tokenizer.encode(PROMPT["prompt"]))  # with the token that begins a text
    assert len(again) == prompt + (2 if ids else 0)


def test_a_break_inside_a_character_is_mended_with_the_same_pieces() -> None:
    """Its bytes are several tokens; the engine that goes on has only some of them."""
    wide = 0
    for prompt in ("The old lighthouse", "b", "sea"):
        body = PROMPT | {"prompt": prompt, "max_tokens": 40, "return_token_ids": True}
        like, _ = undisturbed(COMPLETION, body)
        texts = [event["choices"][0]["text"] for event in like.events[:-1]]
        for place, text in enumerate(texts):
            if not text:
                wide += 1
                _, client = broken(COMPLETION, body, (place + 1, None))
                check(client, like)
    assert wide > 5


class _Whole:
    """As vLLM has it: a token whose text ends within a character is kept back with all of its text."""

    def __init__(self, *, special: bool = False) -> None:
        self._held = b""

    def push(self, token: int) -> str:
        self._held += tokenizer.token_bytes(token)
        text = self._held.decode("utf-8", "replace")
        if text.endswith("\ufffd"):
            return ""
        self._held = b""
        return text


def test_a_space_that_begins_the_token_of_an_emoji_is_not_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    """There are such tokens in the vocabularies that people serve. No stop string is asked for."""
    lead, spaced = b"\xf0\x9f\x98", b" \xf0\x9f\x98"
    at = tokenizer._PIECES.index(lead)
    pieces = tuple(spaced if piece == lead else piece for piece in tokenizer._PIECES)
    monkeypatch.setattr(tokenizer, "_PIECES", pieces)
    monkeypatch.setattr(tokenizer, "_BYTES", tuple(map(tokenizer.token_bytes, range(tokenizer.VOCABULARY))))
    monkeypatch.setattr(tokenizer, "Detokenizer", _Whole)
    body = PROMPT | {
        "prompt": "The old lighthouse",
        "max_tokens": 40,
        "logit_bias": {str(tokenizer._FIRST_PIECE + at): 4},
    }
    like, events = undisturbed(COMPLETION, body)
    assert _text(like).count(" ") > 20
    for place in range(1, len(events) - 2):
        _, client = broken(COMPLETION, body, (place, None))
        assert _text(client) == _text(like)


def _text(client: SimClient) -> str:
    return "".join(event["choices"][0]["text"] for event in client.events if isinstance(event, dict))


def test_a_token_that_the_engine_does_not_show_is_not_shown_behind_a_break_either() -> None:
    """`ignore_eos`: the token that ends an answer is one like any other, but for having no text."""
    hidden = 0
    for prompt in ("egebjgfi", "adnnkilj", "ljmh gcf"):
        body = PROMPT | {"prompt": prompt, "max_tokens": 30, "ignore_eos": True, "return_token_ids": True}
        like, _ = undisturbed(COMPLETION, body)
        for place, event in enumerate(like.events[:-1]):
            if event["choices"][0]["token_ids"] == [tokenizer.END]:
                hidden += 1
                _, client = broken(COMPLETION, body, (place, None))
                assert client.events == like.events
    assert hidden > 2


def that_begins_anew(method: str, target: bytes, headers: Any, body: bytes, *, created: int = 1) -> engine.Said:
    """An engine that is told of an answer's beginning, and doesn't know what that means: any but ours."""
    fields = json.loads(body or b"{}")
    fields.pop("vllm_xargs", None)
    return engine.answer(method, target, headers, json.dumps(fields).encode(), created=created)


@pytest.mark.parametrize("name", ["completion", "chat with ids", "two choices", "log probabilities", "stop token"])
def test_an_answer_is_compared_where_the_engine_cannot_begin_in_the_middle(name: str) -> None:
    path, body = CONTINUED[name]
    like, pieces = undisturbed(path, body)
    hows = set()
    for cut in range(1, len(pieces) - 1):
        _, client = broken(path, body, (cut, None), say=that_begins_anew)
        check(client, like)
        hows.add(client.how)
    assert "compared" in hows


def test_a_sampled_answer_ends_where_the_engine_cannot_begin_in_the_middle() -> None:
    """No text is guessed: what the client has is the answer's beginning, and the error says how much that is."""
    body = PROMPT | {"temperature": 1.0, "return_token_ids": True, "ignore_eos": True}
    _, client = broken(COMPLETION, body, (6, None), say=that_begins_anew)
    *chunks, error = client.events
    assert (client.outcome, client.ended, len(chunks)) == (e.Outcome.ENDED, "cut", 6)
    assert (error["error"]["type"], error["error"]["delivered_tokens"]) == ("engine_lost", 6)


def test_without_streaming_an_answer_is_made_again_whole() -> None:
    body = PROMPT | {"stream": False}
    like, (whole,) = undisturbed(COMPLETION, body)
    for at in (0, 1, len(whole) // 2, len(whole) - 1):
        _, client = broken(COMPLETION, body, (0, at))
        assert (client.status, client.outcome, client.how) == (200, e.Outcome.ANSWERED, "restarted")
        assert json.loads(client.body)["choices"] == json.loads(like.body)["choices"]


def test_a_plain_sampled_answer_goes_on_from_its_tokens() -> None:
    body = PROMPT | {"temperature": 1.0, "ignore_eos": True, "return_token_ids": True} | USAGE
    world, client = broken(COMPLETION, body, (6, None))
    assert (client.outcome, client.how) == (e.Outcome.ANSWERED, "continued")
    *chunks, usage, done = client.events
    assert done == "[DONE]" and usage["usage"]["completion_tokens"] == 14
    assert sum(len(chunk["choices"][0]["token_ids"]) for chunk in chunks) == 14
    assert b'"seed"' not in world.asked[-1].body


def test_no_usage_is_made_up_where_the_tokens_are_not_known() -> None:
    """An echo comes without token ids; what was said of its usage was that there were no tokens."""
    body = PROMPT | {"echo": True} | USAGE
    like, pieces = undisturbed(COMPLETION, body)
    _, client = broken(COMPLETION, body, (len(pieces) - 2, None))
    *chunks, usage, done = like.events
    assert usage["usage"]["completion_tokens"] == 14 and client.events == [*chunks, done]


@pytest.mark.parametrize("name", ["chat", "no limit of its own"])
def test_an_engine_that_goes_on_is_told_where_the_client_set_no_bound(name: str) -> None:
    world, client = broken(*CONTINUED[name], (5, None))
    told = json.loads(world.asked[-1].body)["vllm_xargs"]
    assert client.how == "continued" and ("failover_answer_open" in told) is (name != "chat")


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\n\n", b"\n\r\n"])
def test_an_event_is_the_same_however_its_lines_end_and_its_bytes_come(end: bytes) -> None:
    for said in (b"data: [DONE]" + end, b"\xef\xbb\xbfdata: [DONE]" + end):
        for pieces in ([said], [said[at : at + 1] for at in range(len(said))]):
            reader = sse.Reader(100)
            assert [data for piece in pieces for _, data in reader.feed(piece)[1]] == [sse.DONE]
