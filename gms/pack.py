"""Where things go: many tensors into few slabs. Pure; knows no memory and no layout document.

A driver's allocation and its descriptor cost the same for a norm's 8 KiB as for a gigabyte, so tensors are packed. They
stay in the order in which they are given, one slab after the other: who publishes can fill a slab, let go of what it
was filled from, and go on to the next.
"""

import math
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from gms.layout import MAX_SLABS

ALIGNMENT = 256
"""What kernels ask of a tensor's address, with room to spare."""
SLAB_BYTES = 1 << 30
"""Large enough that there are few, small enough that one slab more than the weights is no burden while publishing."""


class Place(NamedTuple):
    slab: int
    offset: int


class Packing(NamedTuple):
    slabs: tuple[int, ...]
    """Their sizes. None is larger than what lies in it, but for the rounding."""
    places: tuple[Place, ...]
    """Where each thing goes, in the order in which they were given."""


def pack(
    sizes: Sequence[int],
    *,
    granularity: int,
    slab_bytes: int = SLAB_BYTES,
    alignment: int = ALIGNMENT,
    max_slabs: int = MAX_SLABS,
) -> Packing:
    """Places for things of these sizes. A slab is begun when the last one has no room; a thing that is larger than
    `slab_bytes` gets a slab of its own size. Where that would make too many slabs, they are larger.
    """
    step = math.lcm(granularity, alignment)
    total = sum(-(-size // alignment) * alignment for size in sizes)
    # Two neighbours together exceed a slab, else they would be one: so there are at most 2 * total / slab_bytes + 1.
    slab_bytes = max(slab_bytes, -(-2 * total // (max_slabs - 1)))
    slabs: list[int] = []
    places: list[Place] = []
    for size in sizes:
        offset = -(-slabs[-1] // alignment) * alignment if slabs else 0
        if not slabs or (offset + size > slab_bytes and offset > 0):
            slabs.append(0)
            offset = 0
        places.append(Place(len(slabs) - 1, offset))
        slabs[-1] = offset + size
    return Packing(tuple(max(-(-slab // step) * step, step) for slab in slabs), tuple(places))


class Span(NamedTuple):
    start: int
    end: int


def merge(spans: Iterable[Span]) -> list[Span]:
    """What is covered, as spans that don't overlap, in order. Tensors that share bytes must stay together."""
    merged: list[Span] = []
    for span in sorted(spans):
        if merged and span.start < merged[-1].end:
            merged[-1] = Span(merged[-1].start, max(merged[-1].end, span.end))
        else:
            merged.append(span)
    return merged
