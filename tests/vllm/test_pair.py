"""What becomes of a pair of vLLM engines when a part of one is killed: real processes, real signals, real vLLM."""

import signal

import pytest

from tests.engine.house import Shim
from tests.vllm.pair import Pair, ask, victim


@pytest.mark.parametrize("which", ["main", "core", "worker"])
def test_a_part_of_the_active_is_killed_the_other_answers_the_same_and_the_killed_one_comes_back(
    pair: Pair, which: str
) -> None:
    active, standby = pair.whole()
    before, tree = pair.tokens(), active.tree()
    deaths = active.state()["deaths"]
    old = pair.house.endpoint()
    victim(active, which).kill()
    url = pair.successor(old)
    after = ask(url, len(before)).tokens()
    for process in tree:
        assert process.dead, "the other serves, and a process of the killed engine lives"
    assert after == before
    assert pair.house.holder() == standby.engine_id
    assert pair.whole() == (standby, active)
    assert active.state()["deaths"] == deaths + 1
    assert pair.tokens() == before


def test_a_part_of_the_standby_is_killed_the_active_serves_on(pair: Pair) -> None:
    active, standby = pair.whole()
    before, url = pair.tokens(), pair.house.endpoint()
    victim(standby, "core").kill()
    standby.until("Init")
    assert pair.tokens() == before
    assert pair.whole() == (active, standby) and pair.house.endpoint() == url


def test_both_engines_map_the_same_pages_and_write_to_none(pair: Pair) -> None:
    """Asleep nothing is mapped; so the pages are seen through two engines one after the other."""
    active, standby = pair.whole()
    for rank in range(pair.ranks):
        assert not _mapped(standby, rank, pair)
    first = [_weights(active, rank, pair) for rank in range(pair.ranks)]
    active.main().kill()
    assert pair.whole() == (standby, active)
    assert [_weights(standby, rank, pair) for rank in range(pair.ranks)] == first
    for rank in range(pair.ranks):
        assert not _mapped(active, rank, pair)


def test_an_engine_told_to_end_finishes_its_answers_and_the_other_takes_over(pair: Pair) -> None:
    """The last: a new shim takes the old one's place."""
    active, standby = pair.whole()
    whole = pair.tokens(400)
    answer = ask(pair.house.endpoint(), 400)
    active.signal(signal.SIGTERM)
    assert answer.tokens() == whole
    assert active.code() == 0
    standby.until("Active", ready=True)
    assert pair.tokens(400) == whole


def _mapped(shim: Shim, rank: int, pair: Pair) -> list[str]:
    """Mappings of the rank's device, in all of the engine's processes."""
    found = []
    for process in shim.tree():
        with open(f"/proc/{process.pid}/maps") as maps:
            found += [line for line in maps if line.rstrip().endswith(f"{pair.house.devices}/{rank}")]
    return found


def _weights(shim: Shim, rank: int, pair: Pair) -> list[tuple[str, ...]]:
    """Where in the device's file the mappings are that can't be written."""
    lines = [line.split() for line in _mapped(shim, rank, pair)]
    found = [(offset, inode) for _, mode, offset, _, inode, _ in lines if "w" not in mode]
    assert found and all("w" in mode or mode == "r--s" for _, mode, *_ in lines)
    return sorted(found)
