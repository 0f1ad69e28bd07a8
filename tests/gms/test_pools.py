"""Pools, with a real server and real processes: memory and table outlive their owner and the server, and none gets
them whose predecessor may still write.
"""

import json
import os
import random
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from gms.client import PoolOwned, PoolShape
from tests.gms.live import MIB, Failed, House, Program, houses
from tests.gms.pool_program import mapped, unmap
from tests.support.interruptions import Interrupted, alarm_raises
from tests.support.waiting import until

A: list[Any] = ["sha256:a", [4 * MIB, 2 * MIB], 8192]
B: list[Any] = ["sha256:b", [4 * MIB, 2 * MIB], 8192]
SIZE = 6 * MIB


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses(capacity=32 * MIB)


def engine(house: House, name: str = "engine-a") -> Program:
    return house.program(name, module="tests.gms.pool_program")


def pool(house: House) -> Any:
    (only,) = (region for region in house.status().regions if region.policy == "exclusive")
    return only


def keeper(house: House, name: str = "engine-b") -> Program:
    """A standby: it has the descriptors."""
    standby = engine(house, name)
    until(lambda: standby.do("sees")[0], f"{name} has the pool")
    return standby


def refused(what: str, program: Program, *claim: Any) -> str:
    with pytest.raises(Failed) as error:
        program.do("claim", *claim)
    assert error.value.error == what, error.value
    return str(error.value)


def test_a_successor_finds_memory_and_table_as_the_dead_owner_left_them(house: House) -> None:
    """Its child lives on with its descriptors and its connection: its own process is what counts."""
    a = engine(house)
    generation, adopted, why = a.do("claim", A, 10)
    assert (adopted, why) == (False, "new")
    assert a.do("look") == [[[0], [0]], "\0" * 8]
    a.do("fill", 7)
    b = keeper(house)
    a.do("fork")
    os.kill(a.pid, signal.SIGKILL)
    assert "10" in refused("PoolStale", b, A, 9)
    assert b.do("claim", A, 11) == [generation, True, ""]
    assert b.do("look") == [[[7], [7]], "GFTABLE1"]
    assert house.used() == SIZE
    seen = pool(house)
    assert (seen.state, seen.token, seen.generation, seen.bytes) == ("OWNED", 11, generation, SIZE)
    assert (seen.blocks, seen.blocks_total, seen.adoptions) == (4, 8, 1)
    assert seen.owner.startswith("engine-b (pid ")


def test_while_the_owner_lives_no_other_becomes_it(house: House) -> None:
    a = engine(house)
    a.do("claim", A, 10)
    b = keeper(house)
    assert "engine-a" in refused("PoolOwned", b, A, 11, True, False, 0.2)
    assert "engine-a" in refused("PoolOwned", b, B, 11, True, True, 0.2)
    a.stop()
    assert "engine-a" in refused("PoolOwned", b, A, 11, True, False, 0.2)
    a.process.send_signal(signal.SIGCONT)
    assert a.do("look")[0] == [[0], [0]]
    assert pool(house).token == 10


def test_another_shape_is_refused_and_replaced_only_when_that_is_said(house: House) -> None:
    a = engine(house)
    generation = a.do("claim", A, 10)[0]
    a.do("fill", 7)
    b = keeper(house)
    a.kill()
    assert "digest" in refused("PoolDiffers", b, B, 11)
    assert "table" in refused("PoolDiffers", b, [A[0], A[1], 4096], 11)
    assert "ranges" in refused("PoolDiffers", b, [A[0], [6 * MIB], A[2]], 11)
    assert pool(house).generation == generation
    new, adopted, why = b.do("claim", B, 11, True, True)
    assert (adopted, why) == (False, "replaced")
    assert b.do("look")[0] == [[0], [0]]
    assert new > generation
    until(lambda: house.used() == SIZE, "the old memory is free")


def test_a_crash_of_the_server_is_nothing_to_the_owner_and_loses_nothing(house: House) -> None:
    a = engine(house)
    generation = a.do("claim", A, 10)[0]
    a.do("fill", 7)
    seen = {a.do("incarnation")}
    for _ in range(2):
        house.kill()
        house.start()
        until(lambda: a.do("incarnation") not in seen, "it is connected anew")
        seen.add(a.do("incarnation"))
        until(lambda: pool(house).state == "OWNED", "it owns it again")
    b = keeper(house)
    assert "engine-a" in refused("PoolOwned", b, A, 11, True, False, 0.2)
    a.kill()
    assert b.do("claim", A, 11) == [generation, True, ""]
    assert b.do("look")[0] == [[7], [7]]


@pytest.mark.parametrize("gives_up", [False, True])
def test_a_claim_that_is_on_disk_when_the_server_dies_and_was_never_answered_blocks_no_client(
    house: House, gives_up: bool
) -> None:
    """Its process lives, is the owner by the file, and has no memory that it could bring."""
    house.kill()
    doomed = house.start(module="tests.gms.dies_after_writing")
    a = engine(house)
    if gives_up:
        assert "away" in refused("NotInTime", a, A, 10, True, False, 0.5)
    else:
        a.tell("claim", A, 10, True, False, 60)
    doomed.wait()
    house.start()
    until(lambda: not any(seen.owner for seen in house.status().regions) or not gives_up, "it has given it back")
    got = engine(house, "engine-b").do("claim", A, 11, True, False, 60) if gives_up else a.answer()
    assert got[1:] == [False, "new"]
    assert house.used() == SIZE


def test_a_stopped_owner_is_found_by_a_new_server_though_it_says_nothing(house: House) -> None:
    a = engine(house)
    a.do("claim", A, 10)
    b = keeper(house)
    a.stop()
    house.kill()
    house.start()
    until(lambda: pool(house).state == "OWNED", "the standby has brought it, and its owner is known")
    assert "engine-a" in refused("PoolOwned", b, A, 11, True, False, 0.2)
    a.process.send_signal(signal.SIGCONT)
    until(lambda: pool(house).keepers == 2, "its owner is back")


def test_nothing_is_written_after_the_end_of_a_process_was_seen(house: House) -> None:
    """What the host's memory promises, and a GPU has still to show (tests/gpu)."""
    token = 10
    a = engine(house)
    a.do("claim", A, token)
    for name in ("engine-b", "engine-c"):
        a.do("scribble")
        b = keeper(house, name)
        os.kill(a.pid, signal.SIGKILL)
        token += 1
        b.do("claim", A, token)
        seen = b.do("counter")
        for _ in range(20):
            assert b.do("counter") == seen
        assert b.do("release") is True
        assert b.do("claim", A, token)[1] is True
        a = b


@pytest.mark.slow
def test_turns_leak_nothing(house: House) -> None:
    house.kill()
    house.start()
    server = house.servers["host:0"].pid
    holder = engine(house, "engine-0")
    holder.do("claim", A, 100)
    holder.do("fill", 1)

    first: list[int] = []

    def seen() -> list[int]:
        return [len(os.listdir(f"/proc/{server}/fd")), house.used(), holder.descriptors()]

    def no_more_than_at_first() -> bool:
        return all(now <= then for now, then in zip(seen(), first, strict=True))

    for turn in range(1, 5):
        standby = keeper(house, f"engine-{turn}")
        holder.do("release") if turn % 2 else holder.kill()
        assert standby.do("claim", A, 100 + turn)[1] is True or turn % 2 == 0
        standby.do("fill", turn)
        holder.kill()
        holder = standby
        until(lambda: pool(house).keepers == 1, "only the owner is left")
        first = first or seen()
        until(no_more_than_at_first, f"turn {turn} leaves no more than the first: {first}")


# -- many deaths -------------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kills_of_owner_and_server_in_any_order_lose_nothing_that_was_written(house: House, seed: int) -> None:
    """As long as a process has the descriptors. (An owner that lived for long enough: its death is no second one.)"""
    rng = random.Random(seed)
    holder, token = engine(house, "engine-0"), 10
    generation = holder.do("claim", A, token)[0]
    for turn in range(1, 6):
        holder.do("fill", turn)
        standby = keeper(house, f"engine-{turn}")
        clean = rng.random() < 0.5 or turn % 2 == 0  # a second death within 30 s would drop it
        deaths = ["server"] * rng.randrange(3) + ["owner"]
        rng.shuffle(deaths)
        for death in deaths:
            if death == "server":
                if "host:0" in house.servers:
                    house.kill()
                if rng.random() < 0.5:
                    house.start()
            elif clean:
                holder.do("release")
            else:
                holder.kill()
        if "host:0" not in house.servers:
            house.start()
        token += 1
        got, adopted, why = standby.do("claim", A, token)
        if adopted:
            assert (got, standby.do("look")) == (generation, [[[turn], [turn]], "GFTABLE1"]), (
                f"seed {seed}, turn {turn}"
            )
        else:
            assert why == "second_death", f"seed {seed}, turn {turn}: {why}"
            generation = got
        holder.kill()
        holder = standby
    assert house.used() == SIZE


# -- people, and other programs ----------------------------------------------------------------------------------------


@pytest.mark.slow
def test_gmsctl_shows_a_pool_and_what_would_be_reused_and_drops_it_when_it_has_no_owner(house: House) -> None:
    a = engine(house)
    a.do("claim", A, 10)
    a.do("fill", 7, 5)
    shown = house.gmsctl("status").stdout
    assert "kv-0: owned by engine-a (pid " in shown
    assert "6 MiB, 5 of 8 blocks would be reused, newest token 10" in shown
    done = house.gmsctl("drop", "kv-0")
    assert (done.returncode, done.stdout) == (1, "") and "engine-a" in done.stderr
    a.kill()
    until(lambda: pool(house).state == "FREE", "its owner's end is seen")
    done = house.gmsctl("drop", "kv-0")
    said = "host:0: kv-0 is given up, 6 MiB: no process has its memory any more, as the device says\n"
    assert (done.returncode, done.stdout, done.stderr) == (0, said, "")
    done = house.gmsctl("drop", "kv-0", "--json")
    assert done.returncode == 0
    assert json.loads(done.stdout) == {"device": "host:0", "key": "kv-0", "bytes": 0, "seen": True, "still": []}
    done = house.gmsctl("drop", "weights")
    assert (done.returncode, done.stdout) == (0, "host:0: weights had no memory: there was nothing to give up\n")
    assert house.gmsctl("drop", "no-such").returncode == 1
    assert house.gmsctl("drop", "/").returncode == 64
    assert house.used() == 0


def test_two_models_on_one_device_have_each_a_pool_of_its_own(house: House) -> None:
    """Both engines ask for the KV cache of their rank 0, at the same time."""
    clients = {model: house.client("engine", region=model) for model in ("model-a", "model-b")}
    mappings, ranges = {}, {}
    for token, (model, client) in enumerate(clients.items(), 10):
        mapping = mappings[model] = client.pool("kv", 0).claim(
            PoolShape("sha256:a", (2 * MIB,), 8192), token=token, proven=True
        )
        assert mapping.adopted is False
        ranges[model] = mapped(client.memory, mapping)
        ranges[model][0][:8] = token.to_bytes(8, "little")
    assert [int.from_bytes(memory[:8], "little") for (memory,) in ranges.values()] == [10, 11]
    found = {
        region.key: (region.state, region.token) for region in house.status().regions if region.policy == "exclusive"
    }
    assert found == {"model-a.kv-0": ("OWNED", 10), "model-b.kv-0": ("OWNED", 11)}
    unmap(clients["model-a"].memory, ranges["model-a"])
    assert mappings["model-a"].release() is True
    assert house.gmsctl("drop", "model-a.kv-0").returncode == 0
    assert bytes(ranges["model-b"][0][:8]) == (11).to_bytes(8, "little"), "the other model notices nothing"


def test_a_claim_that_was_interrupted_can_be_made_again_and_blocks_no_client(house: House) -> None:
    a = engine(house)
    generation = a.do("claim", A, 10)[0]
    client = house.client("engine-b")
    mine = client.pool("kv-0")
    until(lambda: mine.there, "it has the pool")

    with alarm_raises():
        for delay in (0.001, 0.01, 0.1):
            signal.setitimer(signal.ITIMER_REAL, delay, 0.1)  # again and again: the first may be too early
            # One that strikes in a callback of the client is logged there, and the claim goes on.
            with pytest.raises((Interrupted, PoolOwned)):
                mine.claim(PoolShape(A[0], tuple(A[1]), A[2]), token=11, proven=True, timeout_s=3)
    until(lambda: not house.status().waiting_for, "the claim is withdrawn")
    a.kill()
    mapping = mine.claim(PoolShape(A[0], tuple(A[1]), A[2]), token=11, proven=True, timeout_s=20)
    assert (mapping.generation, mapping.adopted) == (generation, True)
    view = mapping.table[:8]
    with pytest.raises(Exception, match="views"):
        mapping.release()
    view.release()
    assert mapping.release() is True
    assert pool(house).state == "FREE"
