"""What becomes of a pair when something of it is killed or stopped: real processes, real signals, with the engine that
has most (`kinds.py`). After each: exactly one Active, the other ready, and the endpoint answers.
"""

import os
import signal

import pytest

from tests.engine import census, kinds
from tests.engine.kinds import Kind
from tests.engine.shims import House, Shim
from tests.support.processes import Process
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
TURNS = 10
KIND = kinds.there()[-1]


def settled(house: House, kind: Kind, active: Shim, standby: Shim) -> None:
    house.until_announced(active)
    standby.until("Standby", ready=True)
    assert house.holder() == active.engine_id
    assert house.endpoints(standby.engine_id) == []
    house.answers_as_ever(kind)


def all_dead(processes: list[Process]) -> None:
    for process in processes:
        process.wait()


def test_a_worker_of_the_active_is_killed_all_of_it_goes_the_other_serves_and_it_comes_back(house: House) -> None:
    a, b = house.pair(KIND)
    before = a.tree()
    a.workers()[0].kill()
    all_dead(before)
    settled(house, KIND, b, a)
    assert (a.state()["deaths"], b.state()["deaths"], b.state()["failovers"]) == (1, 0, 1)


def test_the_shim_of_the_active_is_killed_its_whole_tree_goes_with_it(house: House) -> None:
    a, b = house.pair(KIND)
    before = a.tree()
    assert len(before) >= 2
    a.kill()
    all_dead(before)
    b.until("Active", ready=True)
    settled(house, KIND, b, house.shim(KIND, "a"))


def test_a_standby_that_is_killed_as_the_active_is_does_not_win(house: House) -> None:
    a, b = house.pair(KIND)
    old = {shim.state()["incarnation"] for shim in (a, b)}
    for shim in (b, a):
        os.killpg(shim.main().pid, signal.SIGKILL)
    settled(house, KIND, *served_by_a_new_start(house, a, b, old))
    assert not old & {shim.state()["incarnation"] for shim in (a, b)}
    assert a.state()["starts"] == b.state()["starts"] == 2


def served_by_a_new_start(house: House, a: Shim, b: Shim, old: set[str]) -> tuple[Shim, Shim]:
    """The one that serves, and the other."""

    def holder() -> str:
        status = house.status()
        if status is None or status.holder is None or not status.holder.endpoint:
            return ""
        return status.holder.engine_id if f"{status.holder.engine_id}.{status.holder.incarnation}" not in old else ""

    return (a, b) if until(holder, "a new start of one of them serves") == "a" else (b, a)


def test_one_that_is_stopped_is_not_ready_and_is_ended_within_its_bound(house: House) -> None:
    a, b = house.pair(KIND, "--stall-s", "4")
    b.main().signal(signal.SIGSTOP)
    b.until("Standby", ready=False)
    b.until("Standby", ready=True, starts=2)
    settled(house, KIND, a, b)
    a.main().signal(signal.SIGSTOP)
    settled(house, KIND, b, a)
    assert "silent for 4 s" in a.said()


def test_sigterm_drains_the_active_and_the_other_takes_over(house: House) -> None:
    a, b = house.pair(KIND)
    before = a.tree()
    a.signal(signal.SIGTERM)
    assert a.code() == 0
    all_dead(before)
    b.until("Active", ready=True)
    assert "state=Draining" in a.said()
    settled(house, KIND, b, house.shim(KIND, "a"))


def test_a_sleeping_engine_is_never_discoverable(house: House) -> None:
    """The sequencing bug of the specification's Decision 2: the sleeper was announced, and got requests that it could
    not serve.
    """
    house.start_lock(*KIND.lock)
    house.start_gms(KIND)
    urls: set[str] = set()
    a = house.shim(KIND, "a")
    a.until("Active")
    b = house.shim(KIND, "b")
    while b.state()["state"] != "Standby":
        urls.add(house.endpoint())
        assert house.endpoints("b") == [] and not b.state()["url"]
    for _ in range(50):
        urls.add(house.endpoint())
        assert house.endpoints("b") == [] and not b.state()["url"]
    assert urls == {a.state()["url"]}


@pytest.mark.slow
def test_ten_times_round_nothing_grows(house: House) -> None:
    pair = house.pair(KIND)
    assert house.lock is not None

    def ours() -> set[str]:
        """Names in /dev/shm that processes of this house have mapped."""
        found = set()
        for shim in pair:
            for process in shim.tree():
                with open(f"/proc/{process.pid}/maps") as maps:
                    found |= {line.rpartition("/")[2].strip() for line in maps if "/dev/shm/psm_" in line}
        return found

    def seen() -> dict[str, int]:
        return {**census.count(house, pair), "shm": len(named & set(os.listdir("/dev/shm")))}

    def resident() -> int:
        return sum(census.resident(house, pair).values())

    named: set[str] = ours()
    first: dict[str, int] = {}
    first_bytes = 0
    for turn in range(TURNS):
        active, standby = pair if turn % 2 == 0 else pair[::-1]
        active.main().kill()
        settled(house, KIND, standby, active)
        named |= ours()
        if turn == 1:
            first, first_bytes = seen(), resident()
    until(lambda: not census.grown(seen(), first, TURNS - 2), f"as after the second turn: {first}; now {seen()}")
    assert resident() < first_bytes + census.MOST_MORE
