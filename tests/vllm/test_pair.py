"""What becomes of a pair of vLLM engines when something of it is killed, stopped, slow or wrong: real processes, real
signals, real vLLM, with one rank and with two. After each: exactly one Active and the other ready, or the failure that
the specification wants; and the same prompt has the same tokens as ever.

A start of vLLM takes a quarter of a minute, so all of them go through one pair after the other, in this order; each
leaves the pair whole, and can be run alone. From `test_sigterm...` on what there is is counted, until
`test_nothing_has_grown`.
"""

import os
import signal
from pathlib import Path

import pytest

from engine_shim.shell import scratch
from gms.rules.exclusive import SECOND_DEATH_S
from lockserver.observer import Observer
from tests.engine import census
from tests.engine.shims import Program, Shim
from tests.support.processes import Process, cmdline
from tests.support.slow_exits import dies_slowly, hangs_in_exit
from tests.support.waiting import NEVER_S, until
from tests.vllm.pair import BLOCK, WAKING_TIMEOUT_S, Pair, ask, asked, kept, victim

TURNS = 10
LONG = 120
"""Tokens of an answer that fills a few blocks."""
SLEPT_S = 8


def device_process(pair: Pair) -> str:
    """Who has the device: with one rank EngineCore."""
    return "worker" if pair.ranks > 1 else "core"


def test_servers_crash_while_weights_are_written_and_in_init_and_the_active_is_killed_while_the_other_initialises(
    unborn: Pair,
) -> None:
    """Comes first: this is how the pair is started. And one side starts slowly."""
    if unborn.shims:
        pytest.skip("the pair runs already")
    house = unborn.house
    unborn.servers()
    until(lambda: unborn.weights() is not None, "GMS is there")
    memory = unborn.memory()
    hog = memory.create(memory.free())
    held = unborn.hold("a", "start")
    a, b = unborn.shim("a"), unborn.shim("b")
    unborn.shims = (a, b)
    until(unborn.an_engine_waits_for_room_to_write, "the primary is in the middle of writing")
    house.restart("gms", unborn.kind)
    memory.release(hog)
    memory.close()
    a.until("Init", starts=2)
    unborn.reaches(a, "start")
    house.restart("lock", unborn.kind)
    house.restart("gms", unborn.kind)
    held_too = unborn.hold("b", "start")
    held.unlink()
    a.until("Active", ready=True, starts=2)
    unborn.answers_as_ever()
    unborn.reaches(b, "start")
    assert b.state()["state"] == "Init" and not b.state()["ready"] and not house.endpoints("b")
    a.main().kill()
    held_too.unlink()
    b.until("Active", ready=True, starts=1)
    unborn.settles(b, a)
    assert (a.state()["deaths"], b.state()["deaths"]) == (2, 0)


def test_the_lock_server_is_killed_unnoticed(pair: Pair) -> None:
    active, standby = pair.whole()
    before = deaths(pair), active.state()["token"]
    pair.house.restart("lock", pair.kind)
    until(lambda: (s := pair.house.status()) is not None and s.state == "HELD" and s.waiters, "both are back")
    pair.settles(active, standby)
    assert (deaths(pair), active.state()["token"]) == before


def test_gms_is_killed_and_comes_back_both_engines_live_on_and_can_still_change_places(pair: Pair) -> None:
    active, standby = pair.whole()
    before = deaths(pair)
    pair.house.restart("gms", pair.kind)
    pair.settles(active, standby)
    assert deaths(pair) == before
    lose(pair, active, "main")
    pair.settles(standby, active)
    assert standby.state()["deaths"] == before[standby.engine_id]


def test_both_servers_crash_and_the_other_engine_dies_again_in_the_middle_of_a_wake(pair: Pair) -> None:
    active, standby = pair.whole()
    deaths_active, deaths_standby = (shim.state()["deaths"] for shim in (active, standby))
    held = pair.hold(standby.engine_id, "wake")
    active.main().kill()
    pair.reaches(standby, "wake")
    assert not standby.state()["ready"] and not pair.house.endpoint(), "no engine is to be found"
    pair.house.restart("lock", pair.kind)
    until(lambda: pair.house.holder() == standby.engine_id, "it still holds the lock")
    pair.house.restart("gms", pair.kind)
    active.until("Init", processes=1)
    active.main().kill()
    held.unlink()
    standby.until("Active", ready=True)
    pair.answers_as_ever()
    pair.settles(standby, active)
    assert active.state()["deaths"] == deaths_active + 2 and standby.state()["deaths"] == deaths_standby


def test_the_shim_of_the_active_is_killed_and_its_whole_tree_goes_with_it(pair: Pair) -> None:
    active, standby = pair.whole()
    tree, old = active.tree(), pair.house.endpoint()
    active.kill()
    pair.successor(old)
    for process in tree:
        process.wait()
    pair.settles(standby, pair.again(active))


def test_sigterm_an_engine_that_serves_finishes_its_answers_and_the_other_takes_over(pair: Pair) -> None:
    active, standby = pair.whole()
    whole = pair.tokens(400)
    answer = ask(pair.house.endpoint(), 400)
    active.signal(signal.SIGTERM)
    assert answer.tokens() == whole
    assert active.code() == 0
    standby.until("Active", ready=True)
    assert pair.tokens(400) == whole
    pair.settles(standby, pair.again(active))
    pair.begin_to_count()


def test_a_switchover_finishes_the_answers_first_and_the_one_that_served_comes_back_as_standby(pair: Pair) -> None:
    active, standby = pair.whole()
    before, (wakes, blocks) = deaths(pair), kept(standby)
    whole = pair.tokens(400)
    answer = ask(pair.house.endpoint(), 400)
    asked_for = Program(
        pair.house, "switchover", "lockserver.cli.lockctl", "--run-dir", str(pair.house.run_dir), "switchover"
    )
    pair.house.add(asked_for)
    assert answer.tokens() == whole
    assert asked_for.code() == 0, asked_for.said()
    standby.until("Active", ready=True)
    now = kept(standby)
    assert now[0] == wakes + 1 and now[1] >= blocks + 400 // BLOCK, "its cache came with it"
    pair.settles(standby, active)
    assert standby.state()["deaths"] == before[standby.engine_id]


def test_a_standby_that_is_stopped_is_not_ready_and_is_started_again(pair: Pair) -> None:
    active, standby = pair.whole()
    url, starts = pair.house.endpoint(), standby.state()["starts"]
    standby.main().signal(signal.SIGSTOP)
    standby.until("Standby", ready=False)
    standby.until("Init", starts=starts + 1)
    pair.settles(active, standby)
    assert pair.house.endpoint() == url


def test_an_engine_that_sleeps_leaves_the_processors_alone(pair: Pair) -> None:
    """vLLM's workers look out for the next question without a pause, for a second after the last: it isn't asked at
    every beat. At most once in this time: a second for each rank.
    """
    _, standby = pair.whole()
    since, used = standby.state()["for_s"], processor_s(standby)
    until(lambda: standby.state()["for_s"] > since + SLEPT_S, "it has slept for a while")
    assert processor_s(standby) - used < SLEPT_S / 2


@pytest.mark.parametrize("which", ["main", "core", "worker", "group"])
def test_a_part_of_the_active_is_killed_the_other_answers_the_same_from_the_same_pages_and_the_killed_one_comes_back(
    pair: Pair, which: str
) -> None:
    if which == "worker" and pair.ranks == 1:
        pytest.skip("with one rank EngineCore is the worker, as on a GPU")
    active, standby = pair.whole()
    pages, before = weights(active, pair), deaths(pair)
    members = [process for process in active.tree() if is_ours(process)]
    rest = active.tree()
    litter, elsewhere = left_lying(active, pair)
    assert not mapped(standby, pair), "asleep nothing of a device is mapped"
    lose(pair, active, which)
    assert all(process.dead for process in members), "the other serves, and a process of the killed engine lives"
    pair.answers_as_ever()
    assert weights(standby, pair) == pages
    for process in rest:
        process.wait()
    pair.settles(standby, active)
    assert deaths(pair) == {**before, active.engine_id: before[active.engine_id] + 1}
    assert not mapped(active, pair)
    now, _ = left_lying(active, pair)
    assert len(now) == len(litter) and not now & litter and not any(path.exists() for path in elsewhere)


@pytest.mark.parametrize("which", ["main", "device"])
def test_an_active_that_is_stopped_is_noticed_within_its_bound(pair: Pair, which: str) -> None:
    """The main process is silent; the one that has the device is noticed when it has work and no step is finished."""
    active, standby = pair.whole()
    old = pair.house.endpoint()
    if which == "main":
        active.main().signal(signal.SIGSTOP)
    else:
        victim(active, device_process(pair)).signal(signal.SIGSTOP)
        waits = asked(old, 4)
    pair.successor(old)
    pair.settles(standby, active)
    if which == "main":
        assert "silent for 10 s" in active.state()["last_end"]
    else:
        waits.close()
        assert "no step finished for 10 s" in active.state()["last_end"]


def test_no_engine_is_granted_while_a_process_lives_that_has_outlived_the_active_main_process(pair: Pair) -> None:
    """vLLM's own orphans, which its processes are without PDEATHSIG: it is taken from them. The one that has the device
    doesn't even end when it is killed.
    """
    active, standby = pair.whole()
    orphans = [process for process in active.tree() if is_ours(process)][1:]
    for process in orphans:
        pair.disarm(process)
    left = victim(active, device_process(pair))
    traced = Process(left.pid, os.dup(left.pidfd))
    old, starts = pair.house.endpoint(), active.state()["starts"]
    with dies_slowly(traced) as let_it_end:
        active.main().kill()
        hangs_in_exit(traced)
        with pytest.raises(AssertionError, match="not within"):
            until(lambda: pair.house.holder() == standby.engine_id, "the other is granted", deadline_s=NEVER_S)
        assert standby.state()["state"] == "Standby" and active.state()["starts"] == starts and not left.dead
        let_it_end()
        pair.successor(old)
    assert all(process.dead for process in orphans)
    pair.settles(standby, active)


def test_both_engines_are_killed_at_once_and_neither_of_the_killed_ones_wins(pair: Pair) -> None:
    active, standby = pair.whole()
    old = {shim.state()["incarnation"] for shim in pair.shims}
    for shim in (standby, active):
        os.killpg(shim.main().pid, signal.SIGKILL)
    pair.settles(*served_anew(pair, old))


def test_a_standby_that_is_killed_while_it_waits_does_not_win(pair: Pair) -> None:
    """First it alone, and the active serves on; then in the same moment as the active."""
    active, standby = pair.whole()
    if pair.ranks == 1:  # with two: in the same moment only, as its other half takes as long again
        url = pair.house.endpoint()
        victim(standby, "core").kill()
        standby.until("Init")
        pair.settles(active, standby)
        assert pair.house.endpoint() == url
    old = {shim.state()["incarnation"] for shim in pair.shims}
    victim(standby, "core").signal(signal.SIGKILL)
    active.main().signal(signal.SIGKILL)
    pair.settles(*served_anew(pair, old))


def test_a_wake_that_hangs_is_ended_at_its_bound_and_the_killed_one_serves_again(pair: Pair) -> None:
    active, standby = pair.whole()
    held = pair.hold(standby.engine_id, "wake")
    active.main().kill()
    pair.reaches(standby, "wake")
    until(lambda: "the wake took longer" in standby.state()["last_end"], "the wake is ended")
    held.unlink()
    assert f"longer than {WAKING_TIMEOUT_S} s" in standby.state()["last_end"]
    pair.settles(*served_anew(pair, set()))


def test_memory_that_is_not_free_on_the_wake_is_the_end_of_that_engine_and_the_pair_recovers(pair: Pair) -> None:
    """On one rank's device. The lock server has seen enough of it to be free before: another was quicker. What a
    predecessor left is there without room for anything more, so an operator has taken it away.
    """
    active, standby = pair.whole()
    before = deaths(pair)
    held = pair.hold(standby.engine_id, "wake")
    active.main().kill()
    pair.reaches(standby, "wake")
    rank = pair.ranks - 1
    words = ("drop", f"kv-{rank}", "--device", f"host:{rank}")
    dropped = Program(pair.house, "drop", "gms.cli.gmsctl", "--run-dir", str(pair.house.run_dir), *words)
    pair.house.add(dropped)
    assert dropped.code() == 0, dropped.said()
    memory = pair.memory()
    hog = memory.create(14 << 20)
    held.unlink()
    until(lambda: standby.state()["deaths"] > before[standby.engine_id], "there is no room for its KV cache")
    why = standby.state()["last_end"]
    memory.release(hog)
    memory.close()
    assert "failed in waking" in why and f"pool kv-{rank} needs" in why and "are free" in why
    pair.settles(*served_anew(pair, set()))


@pytest.mark.timeout(360 * TURNS)
def test_nothing_has_grown(pair: Pair) -> None:
    """In memory, descriptors, files in /dev/shm or processes, after the active was lost ten times and came back. With
    two ranks: as often as the tests before this one have it.
    """
    pair.begin_to_count()
    first, resident = pair.census, pair.counted_resident
    while pair.turns < TURNS and (pair.ranks == 1 or not pair.turns):
        lose_with_its_cache(pair)
        print(f"turn {pair.turns}: {pair.count()}, {pair.resident() - resident >> 10} KiB more of servers and shims")
    print(f"before: {first}")
    until(lambda: not census.grown(pair.count(), first, TURNS), f"as before {pair.turns} turns; now {pair.count()}")
    assert pair.resident() < resident + census.MOST_MORE
    assert not pair.lying_about()


def test_an_engine_of_another_model_ends_with_a_sentence_and_the_pair_serves_on(pair: Pair) -> None:
    if pair.ranks > 1:
        pytest.skip("with one rank only: each compares its own, and has it in test_weights.py")
    active, standby = pair.whole()
    before = deaths(pair)
    other = pair.shim("c", arguments=("--dtype", "bfloat16"))
    assert other.code() == 65
    assert "has the weights of another model" in other.said() and "failover down" in other.said()
    pair.settles(active, standby)
    assert deaths(pair) == before


def test_weights_that_were_replaced_in_the_moment_when_no_engine_reads_are_not_woken_on(pair: Pair) -> None:
    """The last one here: the pair has no weights of its own afterwards. Of two ranks it is one's."""
    active, standby = pair.whole()
    before = deaths(pair)
    house, others = pair.house, str(pair.model / "model.safetensors")
    words = ("put", "--device", f"host:{pair.ranks - 1}", "--replace", "--timeout-s", "600", others)
    put = Program(house, "put", "gms.cli.gmsctl", "--run-dir", str(house.run_dir), *words)
    house.add(put)
    until(pair.an_engine_waits_for_weights, "it waits until no engine reads")
    active.main().kill()
    assert put.code() == 0, put.said()
    until(lambda: standby.state()["deaths"] > before[standby.engine_id], "the sleeper ends")
    assert not pair.house.endpoint()
    if pair.ranks == 1:
        says = "has the weights of another model"
        until(lambda: all(says in shim.said() for shim in pair.shims), "they say what is the matter")
        assert not pair.house.endpoint()


def processor_s(shim: Shim) -> float:
    """What all processes of the engine have had of the processors."""
    ticks = 0
    for process in shim.tree():
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def vllm_version() -> str:
    from engine_shim.vllm_engine.versions import VERSION

    return VERSION


def deaths(pair: Pair) -> dict[str, int]:
    return {shim.engine_id: shim.state()["deaths"] for shim in pair.shims}


def lose(pair: Pair, active: Shim, which: str) -> None:
    """Until the other serves."""
    old = pair.house.endpoint()
    if which == "group":
        os.killpg(active.main().pid, signal.SIGKILL)
    else:
        victim(active, which).kill()
    pair.successor(old)


def lose_with_its_cache(pair: Pair) -> None:
    """The active, and nothing of what it has kept: its successor takes over all of it."""
    active, standby = pair.whole()
    until(lambda: active.state()["for_s"] > SECOND_DEATH_S, "its death won't count as one soon after an adoption")
    pair.tokens(LONG)
    wakes, blocks = kept(standby)
    lose(pair, active, "main")
    standby.until("Active", ready=True)
    now = kept(standby)
    assert now[0] == wakes + 1 and now[1] >= blocks + LONG // BLOCK, (wakes, blocks, now)
    pair.settles(standby, active)


def served_anew(pair: Pair, old: set[str]) -> tuple[Shim, Shim]:
    """The one that serves, once it is none of these trees; and the other."""
    with Observer(pair.house.run_dir) as observer:
        for status in observer.watch():
            holder = status.holder
            if holder is not None and holder.endpoint and f"{holder.engine_id}.{holder.incarnation}" not in old:
                break
    return pair.whole()


def is_ours(process: Process) -> bool:
    """One that is registered. The first of an engine's is the main one."""
    return b"resource_tracker" not in cmdline(process.pid)


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
    elsewhere = [Path(line) for line in pair.elsewhere(shim)]
    sockets = {path.name for path in here.iterdir()} - {"elsewhere"}
    assert sockets and all(path.exists() for path in elsewhere)
    assert elsewhere or vllm_version().startswith("0.26")
    return sockets, elsewhere
