"""Our rules beside others', on each kind of traffic: what a person who compares them would look at."""

import os
import random

import pytest

from bench.traffic import kinds
from pool.rules import view
from tests.pool import schedules
from tests.pool.__main__ import measured, worlds

SECONDS = 600.0
SWAP_S = 0.9
EVENTS = int(os.environ.get("FAILOVER_POOL_EVENTS", "30000"))
"""`make night` has more of them."""
THEIRS = ("llama-swap's rule, our engines", "Ollama's rule, our engines")


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds(random.Random(0)))
def test_no_stream_is_cut_or_refused_and_a_pause_is_no_longer_than_the_quantum_and_two_swaps(kind: str) -> None:
    names, _ = kinds(random.Random(1))[kind]
    world, quantum = worlds(names, 1)["ours"], 0.0
    world.play(kinds(random.Random(1))[kind][1])
    for at in range(0, int(SECONDS), 5):
        world.run(float(at))
        quantum = max(quantum, view.quantum(world.machine.picture))  # type: ignore[attr-defined]
    found = world.figures()
    assert (found.cut, found.refused) == (0, 0)
    assert found.whole >= found.requests - sum(not one.over for one in world.streams)
    assert found.pause_p99_s <= quantum + 2 * SWAP_S


@pytest.mark.slow
def test_swaps_in_the_middle_of_answers_take_no_more_than_their_share() -> None:
    for kind in ("an agent for each model", "chat beside a batch", "8 models, 64 streams"):
        assert measured(kind, SECONDS, 1, "ours")["ours"].share <= 0.12, kind


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds(random.Random(0)))
def test_no_request_waits_longer_than_under_others_rules_and_as_many_are_answered(kind: str) -> None:
    found = measured(kind, SECONDS, 2)
    ours = found["ours"]
    for theirs in (found[name] for name in THEIRS):
        assert ours.longest_s <= theirs.longest_s * 1.1 + 2 * SWAP_S
        assert ours.whole >= 0.95 * theirs.whole
    for theirs in (found[name] for name in ("llama-swap", "Ollama", "drain for 30 s, then cut")):
        assert ours.longest_s < theirs.longest_s and ours.whole > theirs.whole


def test_steady_traffic_starves_the_rare_one_under_llama_swaps_rule_and_not_under_ours() -> None:
    found = measured("chat beside a batch", SECONDS, 1)
    assert found["llama-swap's rule, our engines"].longest_s > 400
    assert found["ours"].longest_s < 15


@pytest.mark.slow
def test_claims_hold_over_the_many_events_of_one_long_run() -> None:
    schedules.Schedule(1, events=EVENTS).run()
