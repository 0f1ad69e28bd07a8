"""Packing: everything has a place, nothing overlaps, nothing is wasted but the rounding."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from gms.pack import ALIGNMENT, Span, merge, pack

SIZES = st.lists(st.integers(0, 5000), max_size=60)


@given(SIZES, st.sampled_from([1, 512, 4096, 2 << 20]), st.integers(1, 8192), st.integers(2, 20))
def test_every_thing_lies_in_its_slab_and_overlaps_no_other(
    sizes: list[int], granularity: int, slab_bytes: int, max_slabs: int
) -> None:
    packed = pack(sizes, granularity=granularity, slab_bytes=slab_bytes, max_slabs=max_slabs)
    assert len(packed.slabs) <= max_slabs
    reached = dict.fromkeys(range(len(packed.slabs)), 0)
    last = 0
    for size, place in zip(sizes, packed.places, strict=True):
        assert place.slab >= last, "in order: who publishes goes on from slab to slab"
        last = place.slab
        assert place.offset % ALIGNMENT == 0
        assert place.offset >= reached[place.slab]
        reached[place.slab] = place.offset + size
        assert place.offset + size <= packed.slabs[place.slab]
    for slab, size in enumerate(packed.slabs):
        assert size > 0
        assert size % granularity == 0
        assert size - reached[slab] < max(granularity, ALIGNMENT) + granularity


def test_a_large_thing_gets_a_slab_of_its_size_and_small_ones_share() -> None:
    packed = pack([100, 100, 10_000, 100], granularity=512, slab_bytes=1024)
    assert packed.slabs == (512, 10_240, 512)
    assert [place.slab for place in packed.places] == [0, 0, 1, 2]


def test_things_without_bytes_have_a_place_too() -> None:
    packed = pack([0, 0], granularity=4096)
    assert packed.slabs == (4096,)
    assert pack([], granularity=4096).slabs == ()


@given(st.lists(st.tuples(st.integers(0, 100), st.integers(0, 20)).map(lambda s: Span(s[0], s[0] + s[1]))))
def test_merged_spans_cover_the_same_bytes_and_do_not_overlap(spans: list[Span]) -> None:
    merged = merge(spans)
    assert {b for s in spans for b in range(s.start, s.end)} == {b for s in merged for b in range(s.start, s.end)}
    for one, other in pairwise(merged):
        assert one.end <= other.start


def test_spans_that_only_touch_stay_apart() -> None:
    assert merge([Span(4, 8), Span(0, 4)]) == [Span(0, 4), Span(4, 8)]
