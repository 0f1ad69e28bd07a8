"""Text to tokens and back, by bytes: every text has tokens, and every sequence of tokens is some sequence of bytes.

A token is a byte, a piece of several bytes, or special. Some pieces end within a character, as those of the large
models' tokenizers do: so an answer that breaks after any token may break inside a character, and its second half alone
doesn't decode to the second half of its text.

What this file may not do: know the model. Which token likes to follow which is `weights.py`.
"""

import codecs
import re
from collections.abc import Iterable, Sequence

BEGIN, END, SYSTEM, USER, ASSISTANT = range(256, 261)
SPECIAL = {BEGIN: "<|begin|>", END: "<|end|>", SYSTEM: "<|system|>", USER: "<|user|>", ASSISTANT: "<|assistant|>"}
ROLES = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT}

SYLLABLES = tuple(consonant + vowel for consonant in "bdfgklmnprstvz" for vowel in "aeiou")
ENGLISH = (" the", " and", " to", " of", "ing", "er", "in", "on", "th", "qu", "ee", "ch", "sh", "?\n", ". ", ", ", "ll")
LEADS = (b"\xe2\x82", b"\xf0\x9f\x98", b"\xf0\x9f\x8c", b"\xe6\x97")
"""Beginnings of characters: of the euro sign and others, of faces, of weather and plants, of ideographs."""

_FIRST_PIECE = 264
_PIECES = (*(piece.encode() for piece in (*SYLLABLES, *ENGLISH)), *LEADS)
VOCABULARY = 384
"""Ids 261 to 263, and those behind the last piece, stand for nothing: they decode to no bytes."""


class UnknownToken(ValueError):
    """A number that isn't a token's."""


def token_bytes(token: int) -> bytes:
    """Nothing for a special one."""
    if not 0 <= token < VOCABULARY:
        raise UnknownToken(f"token id {token} is out of the vocabulary: 0 to {VOCABULARY - 1}")
    if token < 256:
        return bytes([token])
    piece = token - _FIRST_PIECE
    return _PIECES[piece] if 0 <= piece < len(_PIECES) else b""


_BYTES = tuple(token_bytes(token) for token in range(VOCABULARY))
_BY_BYTES = {bytes([byte]): byte for byte in range(256)} | {
    piece: _FIRST_PIECE + at for at, piece in enumerate(_PIECES)
}
_SPLIT = re.compile(b"|".join(re.escape(piece) for piece in sorted(_PIECES, key=len, reverse=True)) + b"|.", re.DOTALL)
BYTES_MAX = max(map(len, _PIECES))
"""No token has more: a text has at least a token for so many bytes."""


def encode_bytes(piece: bytes) -> int:
    """The token that is just that."""
    return _BY_BYTES[piece]


def encode(text: str) -> list[int]:
    """The longest piece first, from left to right. What looks like a special token is text like any other. Half a
    surrogate pair, which JSON can carry and UTF-8 can't, becomes a question mark."""
    return [_BY_BYTES[piece] for piece in _SPLIT.findall(text.encode("utf-8", "replace"))]


def decode(tokens: Iterable[int], *, special: bool = True) -> str:
    """Bytes that are no UTF-8 become U+FFFD. Special tokens are shown by their names, or left out."""
    parts = [SPECIAL[token].encode() if special and token in SPECIAL else token_bytes(token) for token in tokens]
    return b"".join(parts).decode("utf-8", "replace")


def chat(messages: Sequence[tuple[str, str]]) -> list[int]:
    """(role, text) ... as the model sees it: a special token for the role, the text, the end; then the answer's."""
    tokens = [BEGIN]
    for role, text in messages:
        tokens += [ROLES[role], *encode(text), END]
    return [*tokens, ASSISTANT]


class Detokenizer:
    """Text as the tokens come. What may still become a character is held back until it is one, or can't be any more;
    at the end of an answer it is dropped. It knows nothing of tokens before its first, so it can't complete a
    character that began in the prompt.
    """

    def __init__(self, *, special: bool = False) -> None:
        """`special`: special tokens are shown by their names."""
        self._special = special
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def push(self, token: int) -> str:
        return SPECIAL[token] if self._special and token in SPECIAL else self._decoder.decode(_BYTES[token])
