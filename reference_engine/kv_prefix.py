"""Who has which block, and what the blocks hold.

A block whose positions are all computed is known by its *key*, a hash over all tokens up to its end. A request with
a prompt that begins in the same way shares it. A block that no request has keeps what it holds until it is needed for
something else: blocks without a key go first, then those that were given back longest ago, a request's last ones first.

Pure. What this file may not do: know requests, or the table that outlives the engine: its maker is told when a
block is handed out.
"""

import hashlib
import struct
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from reference_engine.places import BLOCK

Key = bytes
_TOKENS_BYTES = struct.calcsize(f"<{BLOCK}I")


def blocks_for(positions: int) -> int:
    return -(-positions // BLOCK)


class Chain:
    """The keys of one request's full blocks, as its tokens come in."""

    def __init__(self, tokens: Iterable[int] = ()) -> None:
        self._rest: list[int] = []
        self.keys: list[Key] = []
        self.extend(tokens)

    def extend(self, tokens: Iterable[int]) -> None:
        self._rest += tokens
        full = len(self._rest) // BLOCK * BLOCK
        text = struct.pack(f"<{full}I", *self._rest[:full])
        before = self.keys[-1] if self.keys else b""
        for at in range(0, len(text), _TOKENS_BYTES):
            before = hashlib.sha256(before + text[at : at + _TOKENS_BYTES]).digest()
            self.keys.append(before)
        del self._rest[:full]


@dataclass(frozen=True)
class Taken:
    blocks: tuple[int, ...]
    reused: int
    """So many of them, the first ones, hold what they are to hold."""


@dataclass
class Counts:
    """In positions."""

    asked: int = 0
    """Prompts' full blocks, which need not be computed if a request has them."""
    reused: int = 0


class Blocks:
    def __init__(self, count: int, hand_out: Callable[[int], None] = lambda block: None) -> None:
        self.count = count
        self.counts = Counts()
        self.hand_out = hand_out
        """Is told of a block before a request may write to it."""
        self._blank: list[int] = []
        self._idle: OrderedDict[int, Key] = OrderedDict()
        """Blocks with a key that no request has, oldest first."""
        self._users: Counter[int] = Counter()
        self._keys: dict[int, Key] = {}
        self._found: dict[Key, int] = {}
        self.clear()

    def clear(self) -> None:
        """What the blocks held is gone. No request has any."""
        self._blank = list(range(self.count - 1, -1, -1))
        self._idle.clear()
        self._users.clear()
        self._keys.clear()
        self._found.clear()

    def keep(self, most: int) -> tuple[list[int], int]:
        """Those of most use, which hold what they did, and how many hold nothing any more. No request has any."""
        before = len(self._idle)
        while len(self._idle) > most:
            block, key = self._idle.popitem(last=False)
            del self._found[key], self._keys[block]
            self._blank.append(block)
        return list(self._idle), before - len(self._idle)

    @property
    def free(self) -> int:
        return len(self._blank) + len(self._idle)

    def fits(self, positions: int, keys: Sequence[Key] = ()) -> bool:
        shared = sum(block not in self._idle for block in self._held(keys))
        return blocks_for(positions) - shared <= self.free

    def take(self, positions: int, keys: Sequence[Key] = ()) -> Taken:
        """Blocks for so many positions, for which there is room. The keys are those of the prompt's full blocks that
        need not be computed.
        """
        held = self._held(keys)
        for block in held:
            self._idle.pop(block, None)
        fresh = [self._hand_out() for _ in range(blocks_for(positions) - len(held))]
        blocks = (*held, *fresh)
        self.counts.asked += BLOCK * len(keys)
        self.counts.reused += BLOCK * len(held)
        self._users.update(blocks)
        return Taken(blocks, len(held))

    def give(self, blocks: Sequence[int]) -> None:
        for block in reversed(blocks):
            self._users[block] -= 1
            if self._users[block]:
                continue
            del self._users[block]
            if block in self._keys:
                self._idle[block] = self._keys[block]
            else:
                self._blank.append(block)

    def filled(self, block: int, key: Key) -> bool:
        """All of its positions are computed. False: another block holds the same, and this one stays unknown."""
        if key in self._found:
            return False
        self._found[key] = block
        self._keys[block] = key
        return True

    def adopt(self, found: Iterable[tuple[int, Key]]) -> int:
        """What blocks that no request has yet hold already, of least use first. How many of them are adopted."""
        before = len(self._idle)
        for block, key in found:
            if key not in self._found:
                self._idle[block] = key
                self._found[key], self._keys[block] = block, key
        self._blank = [block for block in self._blank if block not in self._idle]
        return len(self._idle) - before

    def _held(self, keys: Sequence[Key]) -> list[int]:
        """The blocks of the longest beginning that is there."""
        held = []
        for key in keys:
            if key not in self._found:
                break
            held.append(self._found[key])
        return held

    def _hand_out(self) -> int:
        if self._blank:
            block = self._blank.pop()
        else:
            block, key = self._idle.popitem(last=False)
            del self._found[key], self._keys[block]
        self.hand_out(block)
        return block
