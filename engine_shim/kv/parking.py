"""How much of its KV cache an engine keeps in host memory while it sleeps beside other models.

It does that itself: its process lives on, and so does its knowledge of which block holds what. So the blocks come back
to their places with the next wake, unless the weights are others by then. What dies asleep loses them. Pure.
"""

from collections.abc import Callable, Iterator, Sequence

PARK_S = 3.0
"""A sleep has no time for more: another model waits for its memory, and the lock server, after ten seconds, ends it."""
PIECE_BYTES = 64 << 20
"""So much is copied at a time, at least one block."""


def most_blocks(most: int, left: int | None, size: int, blocks: int) -> int:
    """How many of `blocks`, which take `size` bytes in all, may be parked: as many as `most` bytes have room for, and
    half of what the machine has left.
    """
    allowed = most if left is None else min(most, left // 2)
    return min(blocks, blocks * allowed // size) if size else 0


def in_time(blocks: Sequence[int], size: int, now: Callable[[], float]) -> Iterator[Sequence[int]]:
    """The blocks, each of which takes `size` bytes, in pieces: the last ones, which are of most use, first, and as many
    as there is time for.
    """
    end, most = now() + PARK_S, max(1, PIECE_BYTES // max(1, size))
    for stop in range(len(blocks), 0, -most):
        yield blocks[max(0, stop - most) : stop]
        if now() >= end:
            return
