"""Pools' machines under chance (`pool_world.py`)."""

import pytest

from tests.gms.pool_world import World

BATCHES, EACH, STEPS = 6, 60, 400


@pytest.mark.parametrize("batch", range(BATCHES))
def test_nobody_is_given_what_another_may_write(batch: int) -> None:
    adoptions = 0
    for seed in range(batch * EACH, (batch + 1) * EACH):
        world = World(seed)
        world.run(STEPS)
        adoptions += world.adoptions
    assert adoptions > EACH // 5, "hardly anything was handed on"
