"""The text around a break with a real tokenizer, whose tokens are bytes: wherever an answer of any tokens breaks, its
text is the one of an answer that doesn't. FAILOVER_CHAOS_SEED=n repeats one run.
"""

import random
from pathlib import Path
from typing import Any

import pytest

from gateway.seam import UNDECODED, Piece, Seam
from tests.support.chance import seeded
from tests.vllm import tiny_model

BREAKS, TOKENS = 3000, 60
SPECIAL = range(len(tiny_model.SPECIAL))


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
    while len(ids) < TOKENS:
        whole = not said or said[-1] or ids[-1] in SPECIAL
        ids.append(rng.randrange(0 if whole else len(SPECIAL), tokenizer.get_vocab_size()))
        said.append(engine.says(ids[-1]))
    return ids, said


@pytest.mark.parametrize("hold", [0, 5])
def test_wherever_an_answer_breaks_its_text_is_that_of_one_that_does_not(tmp_path: Path, hold: int) -> None:
    from tokenizers import Tokenizer

    tiny_model._tokenizer(tmp_path)
    tokenizer = Tokenizer.from_file(str(tmp_path / "tokenizer.json"))
    prompt = tokenizer.encode("one engine sleeps").ids
    rng = seeded()
    near_special = 0
    for _ in range(BREAKS):
        ids, said = answer(rng, tokenizer, prompt)
        at = rng.randrange(1, TOKENS - 10)
        begun = "".join(said[:at])
        begun = begun[: max(0, len(begun) - hold)]
        if hold and len(begun) < 16:
            continue  # too little to see whether what looks special is shown
        near_special += any(token in SPECIAL for token in ids[at - 5 : at + 5])
        engine, other = Engine(tokenizer, prompt + ids[:at]), Other(tokenizer, Seam(begun, ids[:at], hold))
        other.listen()
        broke_at = at
        while at < TOKENS:
            some = ids[at : at + rng.randrange(1, 4)]
            at += len(some)
            other.push(Piece(some, engine.says(*some), None, "length" if at == TOKENS else None))
        # Bytes at the very end that are no character are told where it broke, and left out where it didn't.
        assert (begun + other.text).rstrip(UNDECODED) == "".join(said), (broke_at, ids)
    assert near_special > BREAKS / 50
