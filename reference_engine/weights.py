"""What the weights are: whole numbers drawn from a seed, and a taste for text that a person can look at.

A model whose weights are chance says bytes by chance, hardly any of which make characters. So one of its weights, the
prior, says which token may follow which: syllables, spaces and marks, a line's end now and then, and often a character
of two to four bytes in as many tokens as the tokenizer makes of it. Which of those that may follow does follow is the
transformer's business, and depends on every token before.

What this file may not do: know where weights are. It fills arrays that it is given: `store.py`.
"""

import zlib
from collections.abc import Iterable, Mapping

import numpy as np

from reference_engine import tokenizer as t
from reference_engine.model import WEIGHT_MAX, Floats, Shape

_NEVER = np.float32(-30.0)
"""No logit makes up for it."""
_PIECE = 1 << 20


def fill(shape: Shape, arrays: Mapping[str, Floats]) -> None:
    """Writes the weights of this shape and seed. The same everywhere: only raw bits of the generator are used, which
    numpy promises never to change.
    """
    for name, array in arrays.items():
        if name == "prior":
            array[:] = _prior(shape.vocabulary)
        elif name.endswith("norm"):
            array[:] = 1 + _drawn(f"{shape.seed}:{name}", array.size) / np.float32(64)
        else:
            flat = array.reshape(-1)
            for at in range(0, flat.size, _PIECE):
                some = flat[at : at + _PIECE]
                some[:] = _drawn(f"{shape.seed}:{name}:{at}", some.size)


def _drawn(name: str, count: int) -> Floats:
    """Whole numbers from -7 to 7."""
    bits = np.random.PCG64(zlib.crc32(name.encode())).random_raw(-(-count // 8))
    drawn = np.asarray(bits, "<u8").view(np.uint8)[:count] % (2 * WEIGHT_MAX + 1)
    return drawn.astype(np.float32) - np.float32(WEIGHT_MAX)


def _prior(vocabulary: int) -> Floats:
    syllables = _ids(t.SYLLABLES)
    letters = list(range(ord("a"), ord("z") + 1))
    space, newline = ord(" "), ord("\n")
    marks = _ids((", ", ". "))
    accents = range(0xA0, 0xB8)
    euro, face, weather, ideograph = (t.encode_bytes(lead) for lead in t.LEADS)
    within = {
        0xC3: accents,
        euro: range(0xA0, 0xB0),
        face: range(0x80, 0x90),
        weather: range(0xB0, 0xC0),
        ideograph: range(0xA0, 0xB0),
    }
    free = np.full(vocabulary, _NEVER, np.float32)
    free[syllables] = 0
    free[letters] = -2
    free[[0xC3, euro, face, weather, ideograph]] = 0.5
    free[space] = 4
    free[marks] = 1
    free[[newline, t.END]] = -3
    prior = np.tile(free, (vocabulary, 1))
    np.fill_diagonal(prior, _NEVER)  # nothing twice in a row
    for lead, rest in within.items():
        prior[lead] = _NEVER
        prior[lead, list(rest)] = 0
    for token in (space, newline, *marks):  # a word begins
        prior[token, [space, newline, *marks]] = _NEVER
    prior[_ids((". ",)), t.END] = 1
    return prior


def _ids(pieces: Iterable[str]) -> list[int]:
    return [t.encode_bytes(piece.encode()) for piece in pieces]
