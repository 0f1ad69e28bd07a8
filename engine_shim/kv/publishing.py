"""When a record is cleared, and when it is written.

A block's record goes before the block is handed out, because the request that gets it may write to it at once. It comes
when the step that filled the block has finished on every rank. Between the two the block may have been handed out
again: a scheduler that plans ahead does that. Then the older step has nothing more to say about it, which the block's
generation shows.

What this file may not do: know when a step has finished. Its caller does.
"""

from dataclasses import dataclass, field

from engine_shim.kv.table import Table


@dataclass
class Step:
    """What one step fills, until it has finished."""

    filled: list[tuple[int, int, bytes, int]] = field(default_factory=list)
    """Block, generation, key, tokens."""


class Publisher:
    def __init__(self, table: Table) -> None:
        self._table = table

    def hand_out(self, block: int) -> None:
        """Before a request may write to it."""
        self._table.invalidate(block)

    def fills(self, step: Step, block: int, key: bytes, tokens: int = 0) -> None:
        """The step writes the last of this block, or has it written by a step before it."""
        step.filled.append((block, self._table.generation(block), key, tokens))

    def finished(self, step: Step) -> None:
        """On every rank. A block that was handed out again meanwhile isn't published."""
        for block, generation, key, tokens in step.filled:
            self._table.publish(block, generation, key, tokens)
        step.filled.clear()

    def forget_all(self) -> None:
        """The cache is to be forgotten."""
        self._table.invalidate_all()
