"""The table's protocol, under schedules in which its writer dies between any two stores."""

import pytest

from tests.kv.world import Violation, World

SEEDS = 400


def test_no_death_at_any_store_leaves_a_record_that_is_not_true() -> None:
    adopted = 0
    for seed in range(SEEDS):
        world = World(seed)
        world.run()
        adopted += world.adopted
    assert adopted > SEEDS, "the schedules leave something to adopt, else they show nothing"


def test_a_predecessor_that_writes_late_is_caught_when_its_end_is_not_waited_for() -> None:
    with pytest.raises(Violation, match="seed"):
        for seed in range(SEEDS):
            World(seed, proof=False).run()
