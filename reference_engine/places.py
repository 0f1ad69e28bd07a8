"""Which positions of which requests a step computes, and where they lie in the KV cache.

A step works on *spans*: some positions of one request each, a piece of a prompt or a single new token. What doesn't
look at other positions is computed for all of a step's positions at once. Attention is computed in *groups*: each piece
of a prompt alone; single tokens together with those of about the same length, filled up to the longest of them. What is
filled up, and what comes later in a prompt, is hidden by adding minus infinity, which takes an exact zero of it. Pure.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Indices = NDArray[np.intp]

BLOCK = 16
"""Positions in a block."""


class Span(NamedTuple):
    start: int
    size: int
    blocks: tuple[int, ...]
    """The whole request's: they may be more than are used yet."""


class Group(NamedTuple):
    rows: Indices
    """Which of the step's positions, request by request."""
    table: Indices
    """(request, block): where their keys and values are."""
    hidden: Floats
    """(request, 1, query, key): 0 for a key that is seen, minus infinity for one that isn't."""


class Places:
    def __init__(self, spans: Sequence[Span]) -> None:
        self.spans = spans
        self.positions: Indices = np.concatenate([np.arange(span.start, span.start + span.size) for span in spans])
        self.blocks: Indices = np.concatenate([_blocks(span) for span in spans])
        self.offsets: Indices = self.positions % BLOCK
        self.groups = _groups(spans)


def _blocks(span: Span) -> Indices:
    """For each of its positions the block where it lies."""
    return np.asarray(span.blocks, np.intp)[np.arange(span.start, span.start + span.size) // BLOCK]


def _groups(spans: Sequence[Span]) -> list[Group]:
    alike: dict[tuple[int, int], list[tuple[int, Span]]] = {}
    row = 0
    for span in spans:
        length = -1 - row if span.size > 1 else (_used(span) - 1).bit_length()
        alike.setdefault((span.size, length), []).append((row, span))
        row += span.size
    return [_group(some) for some in alike.values()]


def _group(some: list[tuple[int, Span]]) -> Group:
    size = some[0][1].size
    most = max(_used(span) for _, span in some)
    table = np.zeros((len(some), most), np.intp)
    for place, (_, span) in enumerate(some):
        table[place, : _used(span)] = span.blocks[: _used(span)]
    rows = np.concatenate([np.arange(row, row + size) for row, _ in some])
    queries = np.asarray([span.start for _, span in some])[:, None] + np.arange(size)
    seen = np.arange(most * BLOCK) <= queries[:, :, None]
    return Group(rows, table, np.where(seen, np.float32(0), np.float32(-np.inf))[:, None])


def _used(span: Span) -> int:
    return -(-(span.start + span.size) // BLOCK)
