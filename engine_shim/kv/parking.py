"""How much of its KV cache an engine keeps in host memory while it sleeps beside other models.

It does that itself: its process lives on, and so does its knowledge of which block holds what. So the blocks come back
to their places with the next wake, unless the weights are others by then. What dies asleep loses them. Pure.
"""


def most_blocks(most: int, left: int | None, size: int, blocks: int) -> int:
    """How many of so many blocks, which take `size` bytes in all, may be parked: as many as `most` bytes have room for,
    and no more than half of what the machine has left.
    """
    allowed = most if left is None else min(most, left // 2)
    return min(blocks, blocks * allowed // size) if size else 0
