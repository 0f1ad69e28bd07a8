"""What only an engine with weights and a KV cache can show: the same answer from the other engine, crashes of GMS in
every state, memory that isn't free, the other one's start or wake in the middle of it.
"""

import json
import os
import signal
from functools import partial

import pytest

from gms.memory.host import HostMemory
from lockserver.rules.messages import KeptRoom
from reference_engine.places import BLOCK
from tests.engine import census
from tests.engine.kinds import PROMPT, REFERENCE, there
from tests.engine.shims import House, Shim
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.skipif(REFERENCE not in there(), reason="there is no reference engine")]
TURNS = int(os.environ.get("FAILOVER_KV_TURNS", "2"))


def tokens(house: House) -> list[int]:
    choice = json.loads(house.ask("/v1/completions", PROMPT))["choices"][0]
    found: list[int] = choice["token_ids"]
    assert len(found) == PROMPT["max_tokens"]
    return found


def test_a_restart_in_place_a_switchover_and_an_end_in_order_keep_the_kv_cache_and_the_tokens(house: House) -> None:
    """None of the ends in order is a death, though each comes soon after an adoption."""
    a = house.one(REFERENCE)
    before = tokens(house)
    assert kept(house) is None
    a.main().kill()
    a.until("Active", ready=True, starts=2)
    house.until_announced(a)
    assert adopted(a, wakes=1) and tokens(house) == before
    room = kept(house)
    assert room is not None and room.block == BLOCK and room.tokens % BLOCK == 0 < room.tokens
    b = house.shim(REFERENCE, "b")
    b.until("Standby", ready=True)
    house.switchover()
    house.until_announced(b)
    assert adopted(b, wakes=1) and tokens(house) == before
    a.until("Standby", ready=True)
    assert "unwell" not in a.said(), "an engine that leaves in order is no alarm"
    b.main().signal(signal.SIGTERM)
    house.until_announced(a)
    assert adopted(a, wakes=2) and tokens(house) == before


def kept(house: House) -> KeptRoom | None:
    status = house.status()
    assert status is not None and status.holder is not None
    return status.holder.kept


def adopted(shim: Shim, *, wakes: int) -> bool:
    """Every wake but the first of all took over all that there was."""
    page = shim.get("/metrics")[1]
    there = f'failover_engine_kv_wakes_total{{why="none"}} {wakes}.0' in page and 'why="second_death"' not in page
    return there and "failover_engine_kv_blocks_adopted_total 0.0" not in page


def test_turns_with_a_cache_that_is_adopted_each_time_leave_nothing_behind(house: House) -> None:
    a, b = house.pair(REFERENCE)
    before = tokens(house)
    count = partial(census.count, house, (a, b))
    wakes = {"a": 0, "b": 0}
    first: dict[str, int] = {}
    resident = 0
    for turn in range(1 + TURNS):
        active, standby = house.in_turn(a, b)
        house.switchover()
        house.until_announced(standby)
        wakes[standby.engine_id] += 1
        assert adopted(standby, wakes=wakes[standby.engine_id]) and tokens(house) == before
        active.until("Standby", ready=True)
        if turn == 0:
            assert a.get("/live")[0] == b.get("/live")[0] == 200  # a port's thread begins with its first client
            until(lambda: count() == count(), "all connections of the last change are made, or closed")
            first, resident = count(), sum(census.resident(house, (a, b)).values())
    until(lambda: not census.grown(count(), first, TURNS), f"no more than after one turn: {first}")
    more = sum(census.resident(house, (a, b)).values()) - resident
    print(f"{TURNS} more turns: {count()}, before them {first}; servers and shims have {more >> 10} KiB more")
    assert more < census.MOST_MORE


def test_memory_that_is_not_free_on_the_wake_is_the_end_of_that_engine_and_it_tries_again(house: House) -> None:
    """With no memory reader: otherwise it would not even have been granted."""
    house.start_lock("--memory", "none")
    house.start_gms(REFERENCE)
    b = house.shim(REFERENCE, "b")  # a shadow: waits for weights
    until(lambda: b.state()["processes"] >= 1, "it waits")
    device = house.devices / "0"
    until(device.exists, "GMS has made the device")
    memory = HostMemory("0", house.devices)
    hog = memory.create(14 << 20)
    a = house.shim(REFERENCE, "a", arguments=("--wake-timeout-s", "3"))
    until(lambda: a.state()["deaths"] >= 1, "there is no room for its KV cache")
    assert "failed in waking" in a.state()["last_end"]
    memory.release(hog)
    house.in_turn(a, b)
    assert tokens(house)


def test_the_active_is_killed_while_the_other_initialises(house: House) -> None:
    a = house.one(REFERENCE)
    before = tokens(house)
    b = house.shim(REFERENCE, "b", arguments=("--init-delay-s", "2"))
    until(lambda: (s := house.status()) is not None and s.permits["init"].holder == "b", "b initialises")
    a.main().kill()
    house.in_turn(a, b)
    assert tokens(house) == before


def test_a_standby_is_started_anew_during_the_others_wake(house: House) -> None:
    house.start_lock(*REFERENCE.lock)
    house.start_gms(REFERENCE)
    slow = ("--wake-delay-s", "2")
    a, b = (house.shim(REFERENCE, engine_id, arguments=slow) for engine_id in ("a", "b"))
    active, standby = house.in_turn(a, b)
    before = tokens(house)
    active.main().kill()
    standby.until("Waking")
    active.until("Init")
    active.main().kill()
    standby.until("Active", ready=True)
    active.until("Standby", ready=True)
    assert tokens(house) == before and standby.state()["deaths"] == 0
