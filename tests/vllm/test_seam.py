"""The text around a break with a real tokenizer, whose tokens are bytes: wherever an answer of any tokens breaks, its
text is the one of an answer that doesn't. FAILOVER_CHAOS_SEED=n repeats one run.
"""

import random
from typing import Any

import pytest

from gateway.seam import Piece, Seam
from tests.support.chance import seeded
from tests.vllm import tiny_model

BREAKS, TOKENS = 2000, 60
SPECIAL = ("<|end|>", "<s>", "[INST]")
TAGS = (
    "<b>\N{SNOWMAN}</b> [1]\N{GRINNING FACE} <e>\N{GRINNING FACE}</e>[a]\N{WHITE STAR}\N{BLACK STAR}<i>\N{SNOWMAN}</i> "
    "x<\N{SNOWMAN}> ><b>\N{GRINNING FACE}"
)
"""Text in which names that look special are made of ordinary tokens, some of which begin a character, too."""


class Engine:
    """Text as vLLM's engine tells it, behind these tokens."""

    def __init__(self, tokenizer: Any, prompt: list[int]) -> None:
        from tokenizers import decoders

        self._tokenizer = tokenizer
        self._stream = decoders.DecodeStream(ids=prompt, skip_special_tokens=True)

    def says(self, *tokens: int) -> str:
        return "".join(self._stream.step(self._tokenizer, token) or "" for token in tokens)


class Other:
    """Goes on where it broke: what the client has of it in the end."""

    def __init__(self, tokenizer: Any, seam: Seam) -> None:
        self._tokenizer = tokenizer
        self._seam = seam
        self._told: list[Piece] = []

    def listen(self) -> None:
        while self._seam.wants is not None:
            self._told += self._seam.heard(self._tokenizer.decode(self._seam.wants, skip_special_tokens=False))

    def push(self, piece: Piece) -> None:
        self._told += self._seam.push(piece)
        self.listen()

    @property
    def text(self) -> str:
        return self._seam.owed + "".join(piece.text for piece in self._told)


def answer(rng: random.Random, tokenizer: Any, prompt: list[int]) -> tuple[list[int], list[str]]:
    """Any tokens, special ones between characters only, and what an engine says of each."""
    engine = Engine(tokenizer, prompt)
    ids: list[int] = []
    said: list[str] = []
    while len(ids) < TOKENS:  # behind the last one no character has begun
        whole = not said or said[-1] or ids[-1] < len(SPECIAL)
        any_token = rng.randrange(0 if whole else len(SPECIAL), tokenizer.get_vocab_size())
        ids.append(any_token if len(ids) < TOKENS - 1 else tokenizer.token_to_id("a"))
        said.append(engine.says(ids[-1]))
    return ids, said


@pytest.mark.parametrize("text", [tiny_model.TEXT, TAGS], ids=["words", "tags"])
@pytest.mark.parametrize("hold", [0, 5])
def test_wherever_an_answer_breaks_its_text_is_that_of_one_that_does_not(text: str, hold: int) -> None:
    tokenizer = tiny_model.tokenizer_of(text, SPECIAL)
    prompt = tokenizer.encode("one engine sleeps").ids
    rng = seeded()
    near_special = 0
    for _ in range(BREAKS):
        ids, said = answer(rng, tokenizer, prompt)
        at = rng.randrange(1, TOKENS - 10)
        begun = "".join(said[:at])
        begun = begun[: max(0, len(begun) - hold)]
        kept_back = tokenizer.decode(ids[:at], skip_special_tokens=False)[-20:]
        if hold and (len(begun) < 16 or any(mark in kept_back for mark in "<>[]")):
            continue  # what the engine keeps back can't be compared with anything
        near_special += any(token < len(SPECIAL) for token in ids[at - 5 : at + 5])
        engine, other = Engine(tokenizer, prompt + ids[:at]), Other(tokenizer, Seam(begun, ids[:at], hold))
        other.listen()
        broke_at = at
        while at < TOKENS:
            some = ids[at : at + rng.randrange(1, 6)]
            at += len(some)
            other.push(Piece(some, engine.says(*some), None, "length" if at == TOKENS else None))
        assert begun + other.text == "".join(said), (broke_at, ids)
    assert hold or near_special > BREAKS / 50
