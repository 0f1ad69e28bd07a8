"""Schedules of the controller's machine: a few with each run, more of them where time is (`make rest`)."""

import os

import pytest

from tests.dual_pods import sim

SCHEDULES = int(os.environ.get("FAILOVER_DUAL_SCHEDULES", "300"))
"""`make night` has more of them."""


@pytest.mark.parametrize("seed", range(40))
def test_a_schedule_breaks_no_claim(seed: int) -> None:
    sim.schedule(seed)


@pytest.mark.slow
def test_more_schedules_break_no_claim() -> None:
    for seed in range(1000, 1000 + SCHEDULES):
        try:
            sim.schedule(seed)
        except Exception as error:
            raise AssertionError(f"seed {seed}: {error}") from error


@pytest.mark.slow
def test_two_hundred_requesters_on_fifty_nodes_break_no_claim() -> None:
    it = sim.day(1, 50_000)
    assert it.machine.counts["launches"]
