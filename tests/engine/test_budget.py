"""What of a GPU is whose (`engine_shim/vllm_engine/budget.py`): reckoned from totals, refused with figures."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_shim.vllm_engine import budget
from engine_shim.vllm_engine.budget import GIB, MIB, Device, DoesNotFit
from sidecar.terminal.settings import size_bytes

H200 = Device("GPU-h200", 140 * GIB, 0.92)
sizes = st.integers(0, 300 * GIB)
shares = st.floats(0.01, 1.0)


@pytest.mark.parametrize(("weights", "left"), [(8, 112.8), (32, 88.8), (64, 56.8)])
def test_the_cache_is_what_weights_and_two_reserves_leave_of_the_share(weights: int, left: float) -> None:
    found = budget.cache_bytes(H200, weights * GIB, 4 * GIB, None)
    assert found / GIB == pytest.approx(left)


@given(sizes, shares, sizes, sizes)
def test_weights_both_engines_and_one_cache_are_never_more_than_the_share(
    total: int, share: float, weights: int, reserve: int
) -> None:
    try:
        cache = budget.cache_bytes(Device("GPU-x", total, share), weights, reserve, None)
    except DoesNotFit:
        assert weights + 2 * reserve >= int(total * share)
    else:
        assert cache > 0 and weights + 2 * reserve + cache <= total * share


@given(sizes, sizes, sizes, st.integers(1, 300 * GIB))
def test_a_given_cache_is_as_large_as_it_was_given_or_refused(
    total: int, weights: int, reserve: int, size: int
) -> None:
    fits = weights + 2 * reserve + size <= total
    try:
        assert budget.cache_bytes(Device("GPU-x", total, 0.1), weights, reserve, size) == size and fits
    except DoesNotFit:
        assert not fits


@given(st.integers(0, 64 * GIB), st.booleans())
def test_a_measured_reserve_has_room_for_what_was_measured_and_for_what_comes_later(height: int, graphs: bool) -> None:
    reserve = budget.reserve(height, graphs)
    assert reserve % budget.STEP == 0
    later = height + (budget.GRAPHS if graphs else 0)
    budget.keep_to(reserve, later, "GPU-x")
    assert reserve - later - budget.OUTSIDE < budget.STEP


@given(st.integers(0, 64 * GIB), st.integers(1, 64 * GIB))
def test_an_engine_that_takes_more_than_its_reserve_says_what_would_do(height: int, reserve: int) -> None:
    try:
        budget.keep_to(reserve, height, "GPU-x")
    except DoesNotFit as error:
        said = re.search(rf"{budget.RESERVE_VARIABLE}=(\S+)", str(error))
        assert said is not None
        budget.keep_to(budget.reserve(0, True, size_bytes(said[1])), height, "GPU-x")


def test_small_differences_between_two_starts_make_no_other_cache() -> None:
    one, two = (budget.reserve(height, True) for height in (2000 * MIB, 2030 * MIB))
    assert one == two


def test_what_doesnt_fit_is_refused_with_the_figures_and_a_way_out() -> None:
    with pytest.raises(DoesNotFit, match=r"140\.00 GiB.*0\.92.*128\.00 GiB of weights and 4\.00 GiB for each of 2"):
        budget.cache_bytes(H200, 128 * GIB, 4 * GIB, None)
    with pytest.raises(DoesNotFit, match=r"20\.00 GiB \(--kv-cache-memory-bytes\) is too much.*at most 12\.00 GiB"):
        budget.cache_bytes(H200, 120 * GIB, 4 * GIB, 20 * GIB)
