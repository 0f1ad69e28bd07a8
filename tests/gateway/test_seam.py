"""Where another engine goes on with an answer: the text around the break, and what its tokens are called."""

from typing import Any

import pytest

from gateway.seam import Piece, Seam, Stops, Torn

BEGUN = "\N{REPLACEMENT CHARACTER}"
"""What an engine says of a character of which it has the beginning only."""


def in_a_character() -> Seam:
    """The client has "ab"; its third token begins a character."""
    seam = Seam("ab", [1, 2, 3], 0)
    assert seam.wants == [1, 2, 3] and seam.heard("ab" + BEGUN) == []
    return seam


def logprobs(*names: str) -> dict[str, Any]:
    tops = [{name: -1.0, "x": -2.0} for name in names]
    return {"tokens": list(names), "token_logprobs": [-1.0 for _ in names], "top_logprobs": tops}


@pytest.mark.parametrize(
    ("ids", "said", "called", "text", "names"),
    [
        ([4], "", [""], "ab\N{SNOWMAN}", ["\N{SNOWMAN}"]),
        ([4, 5], "7", ["", "7"], "ab\N{SNOWMAN}7", ["\N{SNOWMAN}", "7"]),
        ([4], "", [""], "ab" + BEGUN, [""]),
        ([4], "7", ["7"], "ab" + BEGUN + "7", ["7"]),
        ([4], "c", ["c"], "ab\N{SNOWMAN}c", ["c"]),
    ],
    ids=["completes it", "and more", "still none", "never one", "has a name"],
)
def test_a_token_that_completes_a_character_behind_the_break_is_named_after_it(
    ids: list[int], said: str, called: list[str], text: str, names: list[str]
) -> None:
    """As it is where nothing breaks: the engine that goes on calls it nothing."""
    seam = in_a_character()
    assert seam.push(Piece(ids, said, logprobs(*called))) == [] and seam.wants == [1, 2, 3, *ids]
    (piece,) = seam.heard(text)
    assert piece.logprobs == logprobs(*names)


def test_who_asked_for_no_log_probabilities_gets_none() -> None:
    seam = in_a_character()
    seam.push(Piece([4], ""))
    (piece,) = seam.heard("ab\N{SNOWMAN}")
    assert (piece.text, piece.logprobs) == ("\N{SNOWMAN}", None)


HIDDEN = "<|end|>"
"""A special token: `/detokenize` tells it, and an engine doesn't."""


@pytest.mark.parametrize(
    ("sent", "text"),
    [
        ("what it said " * 3, "what it said " * 3 + HIDDEN),
        ("what it said " * 3, "what it said " * 2 + "what " + HIDDEN + "it said " + BEGUN),
        ("what it said was <b>", "what it said was <b>" + BEGUN),
        ("", HIDDEN + BEGUN),
    ],
    ids=["at the break", "before a character that has begun", "said, and only looks so", "before anything is sent"],
)
def test_what_the_engine_does_not_show_is_not_told_at_the_break(sent: str, text: str) -> None:
    seam = Seam(sent, [1, 2, 3], 0)
    assert seam.heard(text) == [] and seam.owed == ""
    assert seam.push(Piece([4], "")) == []
    (piece,) = seam.heard(text.removesuffix(BEGUN) + "\N{SNOWMAN}")
    assert piece.text == "\N{SNOWMAN}"


@pytest.mark.parametrize(("said", "told"), [("", ""), (HIDDEN, HIDDEN)], ids=["hidden", "shown"])
def test_behind_the_break_the_engine_tells_what_it_shows(said: str, told: str) -> None:
    seam = in_a_character()
    seam.push(Piece([4, 5], said + "c"))
    (piece,) = seam.heard("ab\N{SNOWMAN}" + HIDDEN + "c")
    assert piece.text == "\N{SNOWMAN}" + told + "c"
    seam.push(Piece([6], "d"))
    assert [piece.text for piece in ([] if seam.wants is None else seam.heard(f"ab\N{SNOWMAN}{HIDDEN}cd"))] == ["d"]


@pytest.mark.parametrize(
    "said",
    [
        [("<" + BEGUN, "<"), ("<\N{SNOWMAN}e>", "\N{SNOWMAN}e>")],
        [("<e>" + BEGUN, "<e"), ("<e>\N{SNOWMAN}", ">\N{SNOWMAN}")],
    ],
)
def test_what_looks_special_and_is_said_in_two_pieces_is_told(said: list[tuple[str, str]]) -> None:
    """An engine keeps back a token in which a character begins, with all that is in it."""
    seam = in_a_character()
    told = ""
    for token, (text, own) in enumerate(said, 4):
        seam.push(Piece([token], own))
        told += seam.heard("ab\N{WHITE STAR}" + text)[0].text
    assert told == "\N{WHITE STAR}" + said[-1][0]


def test_a_lines_end_that_is_a_byte_is_not_told_again_with_the_character_that_begins_the_next_line() -> None:
    """Tokenizers of Llama 2's kind: neither of them can be decoded until that character is whole."""
    seam = Seam("the first line\n", [1, 2, 3, 4], 0)
    assert seam.heard("the first line" + BEGUN * 3) == [] and seam.owed == ""
    seam.push(Piece([5], "\N{SNOWMAN}"))
    assert [piece.text for piece in seam.heard("the first line\n\N{SNOWMAN}")] == ["\N{SNOWMAN}"]


def test_bytes_between_which_something_is_hidden_do_not_end_an_answer() -> None:
    """The client has a character where the text has bytes that are none."""
    seam = Seam("so far \N{SNOWMAN} and", [1, 2, 3], 0)
    assert seam.heard("so far " + BEGUN + HIDDEN + BEGUN + " and" + BEGUN) == [] and seam.owed == ""


def test_what_the_client_has_seen_is_shown() -> None:
    """Either could be what is hidden, by the number of characters that the engine keeps back."""
    sent = "a <b> tag is one of many, and then "
    seam = Seam(sent, [1, 2, 3], 5)
    seam.heard(sent + "<s><b>zz")
    assert seam.owed == "<b>zz"


def test_a_token_may_be_whole_characters_and_the_beginning_of_another_in_a_short_answer_too() -> None:
    seam = Seam("so", [1, 2], 0)
    assert seam.heard("so]\N{SNOWMAN}" + BEGUN) == [] and seam.owed == "]\N{SNOWMAN}"


def test_texts_of_another_tokenizer_do_not_fit() -> None:
    seam = Seam("what it said", [1, 2, 3], 0)
    with pytest.raises(Torn):
        seam.heard("something else" + BEGUN)


def test_a_stop_string_across_the_break_is_found_behind_less_text_than_it_has() -> None:
    stops = Stops(("Observation:",), keep=True, min_tokens=0, count=1, sent="Observ", owed="")
    assert stops.push(Piece((7,), "ation: so")) == Piece((7,), "ation:", None, "stop", "Observation:")
