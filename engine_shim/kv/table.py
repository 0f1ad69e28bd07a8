"""The table beside a KV cache: which block holds which prefix. It lies in memory that outlives its writer.

The table is an array of 64-bit words, and each word is stored at once. One engine writes at a time: GMS sees to that.
It may die between any two stores, and a reader of the table afterwards may believe these two things:

1. A record whose check sum is right was published, and was not invalidated since.
2. A header whose check sum is right belongs to a table that was made to the end.

Whatever makes a record true is stored before its check sum, and the check sum is the first thing to go. The sum covers
the block's number and the table's digest, so that no record is right in another place or for another model.

What this file may not do: decide when a block may be published (`publishing.py`), or whether to believe a table at all
(`adoption.py`).
"""

import hashlib
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

_WORD = 8
_MAGIC = int.from_bytes(b"GFTABLE1", "little")
KEY_BYTES = 40
"""The longest key: a SHA-256 and the number of its group."""

# The header's words. The first four are GMS's business, too: it counts the records whose first byte isn't 0.
_KIND, _SIZES, _BLOCKS, _MARK, _SUM, _DIGEST = 0, 1, 2, 3, 4, 5
_HEADER = 16
OWNER = 15
"""The header's last word isn't the table's: a claim of the memory writes its token there (`kept_cache.py`)."""
# A record's words. The first is its check sum.
_GENERATION, _META, _KEY = 1, 2, 3
_RECORD = 8
_SIZES_ARE = _WORD * _HEADER | _WORD * _RECORD << 32

_FIXED = struct.Struct("<8Q")
_NUMBER = struct.Struct("<Q")
_COVERED = struct.Struct("<QQQ40s")
_KEY_WORDS = struct.Struct("<5Q")
_DIGEST_WORDS = struct.Struct("<4Q")


class Words(Protocol):
    """A `memoryview` of 64-bit words, or something that behaves like one."""

    def __len__(self) -> int: ...
    def __getitem__(self, at: int, /) -> int: ...
    def __setitem__(self, at: int, value: int, /) -> None: ...
    def __iter__(self) -> Iterator[int]: ...


@dataclass(frozen=True)
class Record:
    block: int
    key: bytes
    tokens: int
    """How many tokens of a prompt end with this block; an engine that doesn't need it says 0."""


class TableTooSmall(ValueError):
    """There is no room for a record of each block."""


class KeyTooLong(ValueError):
    """A record has no room for this key."""


def table_bytes(blocks: int) -> int:
    """What a table of so many blocks needs."""
    return _WORD * (_HEADER + _RECORD * blocks)


class Table:
    def __init__(self, words: Words, blocks: int) -> None:
        """Writes nothing. Before `format`, or after `matches` has said yes, nothing else may be called."""
        if len(words) < _HEADER + _RECORD * blocks:
            raise TableTooSmall(f"{blocks} blocks need {table_bytes(blocks)} bytes, and there are {_WORD * len(words)}")
        self._words = words
        self.blocks = blocks
        self._seed = b""

    # -- the header ------------------------------------------------------------------------------------------------

    @property
    def exists(self) -> bool:
        """There is a whole header here."""
        return self._words[_SUM] != 0 and self._words[_SUM] == self._header_sum()

    @property
    def torn(self) -> bool:
        """There is something here, and it is no whole header."""
        return not self.exists and any(self._words[at] for at in range(OWNER))

    def matches(self, digest: bytes) -> bool:
        """The table was made for the same cache. From here on its records can be read."""
        if not self.exists or self._words[_BLOCKS] != self.blocks or self._digest() != digest:
            return False
        self._seed = digest
        return True

    def format(self, digest: bytes) -> None:
        """Makes an empty table. A death in the middle leaves no table."""
        words = self._words
        words[_SUM] = 0
        for block in range(self.blocks):
            words[self._at(block)] = 0
        words[_KIND], words[_SIZES], words[_BLOCKS], words[_MARK] = _MAGIC, _SIZES_ARE, self.blocks, 0
        for place, word in enumerate(_DIGEST_WORDS.unpack(digest)):
            words[_DIGEST + place] = word
        self._seed = digest
        words[_SUM] = self._header_sum()

    # -- records ---------------------------------------------------------------------------------------------------

    def generation(self, block: int) -> int:
        """It changes whenever the block is handed out again."""
        return self._words[self._at(block) + _GENERATION]

    def invalidate(self, block: int) -> None:
        """Before the block may be written."""
        at = self._at(block)
        self._words[at] = 0
        self._words[at + _GENERATION] = (self._words[at + _GENERATION] + 1) & 0xFFFFFFFFFFFFFFFF

    def publish(self, block: int, generation: int, key: bytes, tokens: int = 0) -> bool:
        """The block holds this, and no request writes to it. False: it was handed out again since, so it may not."""
        at = self._at(block)
        words = self._words
        if words[at + _GENERATION] != generation:
            return False
        if len(key) > KEY_BYTES:
            raise KeyTooLong(f"a key of {len(key)} bytes; a record has room for {KEY_BYTES}")
        words[at] = 0
        words[at + _META] = tokens << 8 | len(key)
        for place, word in enumerate(_KEY_WORDS.unpack(key.ljust(KEY_BYTES, b"\0"))):
            words[at + _KEY + place] = word
        words[at] = _sum(self._covered(block), self._seed)
        return True

    def invalidate_all(self) -> None:
        """Those that are not published yet, too: a step that is under way has nothing more to say."""
        for block in range(self.blocks):
            self.invalidate(block)

    def found(self) -> tuple[list[Record], list[int]]:
        """The records that are true; and the blocks whose record is neither true nor empty: torn, or changed by
        another process.
        """
        true, broken = [], []
        table = struct.pack(f"<{len(self._words)}Q", *self._words)  # at once: a wake has thousands of them before it
        for block in range(self.blocks):
            at = _WORD * (_HEADER + _RECORD * block)
            said, _, meta, key = _COVERED.unpack_from(table, at)
            if not said:
                continue
            if said == _sum(_NUMBER.pack(block) + table[at + _WORD : at + _WORD * _RECORD], self._seed):
                true.append(Record(block, key[: meta & 0xFF], meta >> 8))
            else:
                broken.append(block)
        return true, broken

    @property
    def claimed(self) -> int:
        """Records that are there, true or not."""
        if self._words[_BLOCKS] != self.blocks:
            return 0
        return sum(self._words[self._at(block)] != 0 for block in range(self.blocks))

    # -- inside ----------------------------------------------------------------------------------------------------

    def _at(self, block: int) -> int:
        if not 0 <= block < self.blocks:
            raise IndexError(f"there is no block {block}: there are {self.blocks}")
        return _HEADER + _RECORD * block

    def _covered(self, block: int) -> bytes:
        """What a record's sum is about."""
        at, words = self._at(block), self._words
        return _FIXED.pack(block, *[words[at + place] for place in range(1, _RECORD)])

    def _header_sum(self) -> int:
        return _sum(_FIXED.pack(*(self._words[at] for at in range(_DIGEST + 4) if at != _SUM)), b"header")

    def _digest(self) -> bytes:
        return _DIGEST_WORDS.pack(*(self._words[_DIGEST + place] for place in range(4)))


def _sum(data: bytes, seed: bytes) -> int:
    """Odd: its first byte is never 0, which means that there is nothing."""
    return int.from_bytes(hashlib.blake2b(data, digest_size=8, key=seed).digest(), "little") | 1
