"""What becomes of a pair of vLLM engines when a part of one is killed: real processes, real signals, real vLLM."""

import signal
from pathlib import Path

import pytest

from engine_shim.vllm_engine import scratch
from tests.engine.house import Shim
from tests.vllm.pair import Pair, ask, command_of, victim


@pytest.mark.parametrize("which", ["main", "core", "worker"])
def test_a_part_of_the_active_is_killed_the_other_answers_the_same_from_the_same_pages_and_the_killed_one_comes_back(
    pair: Pair, which: str
) -> None:
    active, standby = pair.whole()
    before, pages, old = pair.tokens(), weights(active, pair), pair.house.endpoint()
    members = [process for process in active.tree() if b"resource_tracker" not in command_of(process)]
    rest = active.tree()
    deaths, (litter, elsewhere) = active.state()["deaths"], left_lying(active, pair)
    assert not mapped(standby, pair), "asleep nothing of a device is mapped"
    victim(active, which).kill()
    url = pair.successor(old)
    assert all(process.dead for process in members), "the other serves, and a process of the killed engine lives"
    assert ask(url, len(before)).tokens() == before
    assert weights(standby, pair) == pages
    for process in rest:
        process.wait()
    assert pair.house.holder() == standby.engine_id
    assert pair.whole() == (standby, active)
    assert active.state()["deaths"] == deaths + 1
    assert not mapped(active, pair)
    assert pair.tokens() == before
    now, _ = left_lying(active, pair)
    assert len(now) == len(litter) and not now & litter and not any(path.exists() for path in elsewhere)


def test_a_part_of_the_standby_is_killed_the_active_serves_on(pair: Pair) -> None:
    active, standby = pair.whole()
    before, url = pair.tokens(), pair.house.endpoint()
    victim(standby, "core").kill()
    standby.until("Init")
    assert pair.tokens() == before
    assert pair.whole() == (active, standby) and pair.house.endpoint() == url


def test_gms_is_killed_and_comes_back_both_engines_live_on_and_can_still_change_places(pair: Pair) -> None:
    if pair.ranks > 1:
        pytest.skip("once is enough: it takes a minute")
    active, standby = pair.whole()
    before, deaths = pair.tokens(), [shim.state()["deaths"] for shim in pair.shims]
    pair.gms().kill()
    pair.house.start_gms(pair.kind)
    assert pair.tokens() == before
    assert pair.whole() == (active, standby)
    assert [shim.state()["deaths"] for shim in pair.shims] == deaths
    old = pair.house.endpoint()
    active.main().kill()
    pair.successor(old)
    assert pair.whole() == (standby, active)
    assert pair.tokens() == before


def test_an_engine_told_to_end_finishes_its_answers_and_the_other_takes_over(pair: Pair) -> None:
    """The last one here: the pair isn't whole afterwards."""
    active, standby = pair.whole()
    whole = pair.tokens(400)
    answer = ask(pair.house.endpoint(), 400)
    active.signal(signal.SIGTERM)
    assert answer.tokens() == whole
    assert active.code() == 0
    standby.until("Active", ready=True)
    assert pair.tokens(400) == whole


def mapped(shim: Shim, pair: Pair) -> list[list[str]]:
    """Mappings of the pair's devices, in all of the engine's processes: their modes, offsets and files."""
    found = []
    for process in shim.tree():
        with open(f"/proc/{process.pid}/maps") as maps:
            found += [line.split()[1:] for line in maps if f" {pair.house.devices}/" in line]
    return found


def weights(shim: Shim, pair: Pair) -> list[tuple[str, str]]:
    """Where in the devices' files the mappings are that can't be written: a page of a file is there once."""
    found = sorted({(path, offset) for mode, offset, _, _, path in mapped(shim, pair) if "w" not in mode})
    assert len({path for path, _ in found}) == pair.ranks
    return found


def left_lying(shim: Shim, pair: Pair) -> tuple[set[str], list[Path]]:
    """What a killed vLLM would leave: sockets in its scratch directory, and files that are named there."""
    here = scratch.directory(pair.house.run_dir, shim.engine_id)
    elsewhere = [Path(line) for line in (here / "elsewhere").read_text().splitlines()]
    sockets = {path.name for path in here.iterdir()} - {"elsewhere"}
    assert sockets and elsewhere and all(path.exists() for path in elsewhere)
    return sockets, elsewhere
