"""Tokens and text: nothing is lost, whatever breaks wherever; and what is held back."""

import json
import zlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reference_engine import api, asking, tokenizer
from reference_engine.answer import Answer, Piece, Question

TEXT = st.text() | st.text(alphabet="aeiouk €😀🌷日é theing. ,\n")
TOKENS = st.lists(st.integers(0, tokenizer.VOCABULARY - 1), max_size=60)


@given(TEXT)
def test_every_text_comes_back(text: str) -> None:
    assert tokenizer.decode(tokenizer.encode(text)) == text


@given(st.text(alphabet=st.characters()))
def test_half_a_surrogate_pair_is_no_error(text: str) -> None:
    tokenizer.decode(tokenizer.encode(text + "\ud800"))


@given(TEXT, st.integers(0, 100))
def test_the_ids_of_two_halves_together_give_the_text_wherever_it_breaks(text: str, at: int) -> None:
    tokens = tokenizer.encode(text)
    assert tokenizer.decode([*tokens[:at], *tokens[at:]]) == text


@given(TOKENS)
def test_text_as_it_comes_is_the_text_but_for_an_unfinished_character(tokens: list[int]) -> None:
    together = b"".join(map(tokenizer.token_bytes, tokens)).decode("utf-8", "replace")
    detokenizer = tokenizer.Detokenizer()
    came = "".join(map(detokenizer.push, tokens))
    assert together.startswith(came)
    assert set(together.removeprefix(came)) <= {"\ufffd"}


@pytest.mark.parametrize("character", ["é", "€", "😀", "日"])
def test_a_character_that_is_cut_in_two_is_in_neither_half(character: str) -> None:
    """So text has to be made of all the ids together, and not of the halves' texts."""
    tokens = tokenizer.encode(character)
    assert len(tokens) > 1, "the tokenizer would have no break inside it"
    first, second = tokenizer.Detokenizer(), tokenizer.Detokenizer()
    halves = "".join(map(first.push, tokens[:1])) + "".join(map(second.push, tokens[1:]))
    assert character not in halves


def test_special_tokens_are_never_made_from_text() -> None:
    assert not set(tokenizer.encode("<|end|><|user|>")) & set(tokenizer.SPECIAL)
    assert tokenizer.decode([tokenizer.USER, 104, 105]) == "<|user|>hi"
    assert tokenizer.decode([tokenizer.USER, 104, 105], special=False) == "hi"


def test_a_chat_is_roles_and_ends_and_a_beginning() -> None:
    asked = tokenizer.chat([("system", "a"), ("user", "b")])
    assert asked == [256, tokenizer.SYSTEM, 97, 257, tokenizer.USER, 98, 257, tokenizer.ASSISTANT]


@given(st.integers())
def test_a_number_that_is_no_token_is_said_to_be_none(number: int) -> None:
    if not 0 <= number < tokenizer.VOCABULARY:
        with pytest.raises(tokenizer.UnknownToken):
            tokenizer.token_bytes(number)


# -- answers -------------------------------------------------------------------------------------------------------


def told(question: Question, tokens: list[int]) -> list[Piece]:
    answer, pieces = Answer(question), []
    for token in tokens:
        pieces.append(answer.push(token))
        if pieces[-1].finish_reason is not None:
            break
    return pieces


def text_of(pieces: list[Piece]) -> str:
    return "".join(piece.text for piece in pieces)


@given(TEXT, st.lists(st.text(alphabet="aeiou th€", min_size=1, max_size=4), min_size=1, max_size=3), st.booleans())
def test_an_answer_ends_at_its_first_stop_string(text: str, stops: list[str], keep: bool) -> None:
    tokens = tokenizer.encode(text)
    pieces = told(Question((1,), 10_000, stop=tuple(stops), keep_stop=keep), tokens)
    ends = {at + len(stop): stop for stop in stops if (at := text.find(stop)) >= 0}
    so_far = text_of(pieces)
    if not ends:
        assert text.startswith(so_far)
        assert len(text) - len(so_far) < max(map(len, stops))
        return
    assert pieces[-1].finish_reason == "stop"
    reason = pieces[-1].stop_reason
    assert isinstance(reason, str)
    assert so_far == (text[: text.find(reason) + len(reason)] if keep else text[: text.find(reason)])
    assert tokenizer.decode(tokens[: len(pieces) - 1]).find(reason) < 0, "the token before would have ended it"


def test_no_character_of_a_stop_string_is_seen_before_it_is_known_to_be_none() -> None:
    pieces = told(Question((1,), 6, stop=("bad",)), [98, 97, 100, 98, 97, 120])
    assert (text_of(pieces), pieces[-1].stop_reason, len(pieces)) == ("", "bad", 3)
    pieces = told(Question((1,), 6, stop=("bad",)), [98, 97, 120, 98, 97, 120])
    assert [piece.text for piece in pieces] == ["", "", "b", "a", "x", "bax"]


def test_token_ids_are_never_held_back() -> None:
    pieces = told(Question((1,), 3, stop=("bad",)), [98, 97, 120])
    assert [piece.token_ids for piece in pieces] == [(98,), (97,), (120,)]


def test_the_models_end_ends_it_and_a_stop_token_does_and_says_which() -> None:
    assert told(Question((1,), 9), [104, tokenizer.END])[-1] == Piece("", (257,), "stop", None)
    assert told(Question((1,), 9, stop_token_ids=frozenset({105})), [104, 105])[-1] == Piece("", (105,), "stop", 105)
    assert told(Question((1,), 2, ignore_end=True), [tokenizer.END, 104])[-1].finish_reason == "length"
    assert text_of(told(Question((1,), 2, ignore_end=True, show_special=True), [tokenizer.END, 104])) == "<|end|>h"


def test_nothing_ends_an_answer_before_it_has_its_least_tokens() -> None:
    answer = Answer(Question((1,), 9, stop=("b",), min_tokens=3))
    assert answer.banned == {tokenizer.END}
    assert [answer.push(token).finish_reason for token in (97, 98, 97, 98)] == [None, None, None, "stop"]
    assert not answer.banned


def test_an_unfinished_character_at_the_end_is_dropped() -> None:
    assert text_of(told(Question((1,), 3), [104, 0xE2, 0x82])) == "h"


@given(TOKENS, st.lists(st.text(alphabet="aeiou th€", min_size=1, max_size=4)), st.booleans(), st.integers(0, 9))
def test_an_answer_that_another_engine_began_goes_on_as_it_would_have_there(
    tokens: list[int], stops: list[str], keep: bool, least: int
) -> None:
    """`keep` stands for special tokens that are shown, too."""
    asked = Question(
        (1,), len(tokens), stop=tuple(stops), keep_stop=keep, show_special=keep, ignore_end=True, min_tokens=least
    )
    whole = told(asked, tokens)
    for at in range(1, len(whole)):
        has = text_of(whole[:at])
        again = replace(asked, prompt=(1, *tokens[:at]), max_tokens=len(tokens) - at, min_tokens=max(0, least - at))
        rest = told(replace(again, answered=at, told=len(has)), tokens[at:])
        assert has + text_of(rest) == text_of(whole)
        assert (rest[-1].finish_reason, rest[-1].stop_reason) == (whole[-1].finish_reason, whole[-1].stop_reason)


@pytest.mark.parametrize(
    ("more", "answered"),
    [({}, 4), ({"tokens": 3}, 0), ({"chars": 3}, 0), ({"chars": 5}, 0), ({"crc32": 1}, 0), ({"tokens": 5}, 0)],
)
def test_what_is_said_of_an_answers_beginning_is_believed_if_its_text_is_the_clients(
    more: dict[str, int], answered: int
) -> None:
    text = "bad\N{EURO SIGN}"
    begun = {"tokens": 4, "chars": len(text), "crc32": zlib.crc32(text.encode())} | more
    xargs = {f"failover_answer_{name}": value for name, value in begun.items()}
    body = {"prompt": [1, *tokenizer.encode(text)], "stream": True, "vllm_xargs": xargs}
    wanted = api.read(json.dumps(body).encode(), api.Completion)
    (question,) = asking.questions(wanted, asking.completion_prompts(wanted, 100), 100)
    assert (question.answered, question.told) == (answered, len(text) if answered else 0)
