"""Where another engine goes on with an answer: the text around the break, and what its tokens are called."""

from typing import Any

import pytest

from gateway.seam import Piece, Seam

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
