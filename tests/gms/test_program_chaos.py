"""Programs that use the weights, each its own process, and what happens when one of them or the server is killed."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gms.live import MIB, Ended, Failed, House, Program, houses
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
SESSIONS = int(os.environ.get("FAILOVER_GMS_SESSIONS", "2000"))
"""`make night` has more of them."""


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses(devices=("host:0", "host:1"))


def commit(house: House, *fills: int, name: str = "w", device: str = "host:0") -> Program:
    program = house.program(f"writer-{name}", device)
    program.do("write", 20)
    for fill in fills:
        program.do("create", 2 * MIB, fill)
    program.do("commit", name)
    return program


# -- the writer ----------------------------------------------------------------------------------------------------


STEPS = ["connected", "writing", "a slab", "two slabs, one full", "creating", "committing", "committed"]


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("over", ["nothing", "a layout"])
def test_a_writer_killed_at_any_step_leaves_what_was_or_what_it_committed(house: House, step: str, over: str) -> None:
    if over == "a layout":
        first = commit(house, 1, name="first")
        first.do("close")
        before = house.status()
    writer = house.program("doomed")
    writer.do("changed")
    if step != "connected":
        if over == "a layout":
            writer.do("replace", 4 * MIB, 20)
        else:
            writer.do("write", 20)
    if step in STEPS[2:]:
        writer.do("create", 2 * MIB)
    if step in STEPS[3:]:
        writer.do("create", 2 * MIB, 7)
    if step == "creating":
        writer.tell("create", 2 * MIB)
    elif step == "committing":
        writer.tell("commit", "second")
    elif step == "committed":
        writer.do("commit", "second")
    writer.kill()
    until(lambda: house.status().state in ("EMPTY", "COMMITTED"), "no client writes")
    status = house.status()
    until(lambda: house.used() == status.bytes, "what is held is what is committed")
    if step not in ("committing", "committed"):
        assert status.state == ("COMMITTED" if over == "a layout" else "EMPTY")
        if over == "a layout":
            assert (status.generation, status.hash) == (before.generation, before.hash)
    if step == "committed" or status.state == "COMMITTED":
        reader = house.program("reader")
        reader.do("read", 20)
        assert reader.do("byte", 0, 0) in (0, 1)


def test_a_half_committed_pair_of_devices_is_finished_by_the_next_start_and_no_reader_restarts(house: House) -> None:
    """The story of the specification's Decision 5 of a partial commit."""
    house.start("host:1")
    b0, b1 = house.program("engine-b", "host:0"), house.program("engine-b", "host:1")
    a0, a1 = house.program("engine-a", "host:0"), house.program("engine-a", "host:1")
    assert (a0.do("write_or_read", 20), a1.do("write_or_read", 20)) == ("writes", "writes")
    b0.tell("read", 60)
    b1.tell("read", 60)
    a0.do("create", 2 * MIB, 1)
    a1.do("create", 2 * MIB, 1)
    a0.do("commit")
    a0.kill()
    a1.kill()
    b0.answer()
    until(lambda: house.status("host:1").state == "EMPTY", "what was written on device 1 is gone")
    assert house.status("host:0").state == "RO", "and what was committed on device 0 is not"
    a0, a1 = house.program("engine-a", "host:0"), house.program("engine-a", "host:1")
    assert (a0.do("write_or_read", 20), a1.do("write_or_read", 20)) == ("reads", "writes")
    a1.do("create", 2 * MIB, 1)
    a1.do("commit")
    b1.answer()
    assert b1.do("byte", 0, 5) == 1


@pytest.mark.parametrize(("b_mode", "deadlock"), [("write_or_read", True), ("read", False)])
def test_two_engines_on_two_devices_wait_for_ever_unless_one_of_them_only_reads(
    house: House, b_mode: str, deadlock: bool
) -> None:
    """The specification's Decision 5: an engine loads its weights only once all its workers have connected."""
    house.start("host:1")
    workers = {
        (engine, device): house.program(engine, device) for engine in ("a", "b") for device in ("host:0", "host:1")
    }
    wait_s = 2.0 if deadlock else 60.0
    for engine, device in (("a", "host:0"), ("b", "host:1"), ("a", "host:1"), ("b", "host:0")):
        workers[engine, device].tell("write_or_read" if engine == "a" else b_mode, wait_s)
        told = 1 if (engine, device) in (("a", "host:0"), ("b", "host:1")) else 2
        until(lambda: asked(house, device) == told, "it asks")  # noqa: B023
    if deadlock:
        assert workers["a", "host:0"].answer() == workers["b", "host:1"].answer() == "writes"
        for engine, device in (("a", "host:1"), ("b", "host:0")):
            with pytest.raises(Failed, match="NotInTime"):
                workers[engine, device].answer()
        return
    for device in ("host:0", "host:1"):
        assert workers["a", device].answer() == "writes"
    for device in ("host:0", "host:1"):
        workers["a", device].do("create", 2 * MIB, 3)
        workers["a", device].do("commit")
    for device in ("host:0", "host:1"):
        workers["b", device].answer()
        assert workers["b", device].do("byte", 0, 0) == 3


def asked(house: House, device: str) -> int:
    """How many have said what they want."""
    return len([client for client in house.status(device).clients if client.doing != "watching"])


# -- the server ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("who", ["asleep", "awake", "both", "none"])
def test_a_server_killed_twice_in_a_row_costs_its_readers_nothing(house: House, who: str) -> None:
    writer = commit(house, 1, 2)
    before = house.status()
    writer.do("close")
    readers = {}
    for name in {"both": ("asleep", "awake")}.get(who, (who,)):
        if name != "none":
            readers[name] = house.program(name)
            readers[name].do("read", 20)
            if name == "asleep":
                readers[name].do("sleep")
    writer.kill()
    for _ in range(2):
        house.kill()
        for reader in readers.values():
            if reader is not readers.get("asleep"):
                assert reader.do("byte", 1, 1) == 2, "it reads on without a server"
        house.start()
        if who == "none":
            until(lambda: house.status().state == "EMPTY", "no process has that memory any more: it can't come back")
            assert house.used() == 0
            continue
        until(lambda: house.status().state == ("COMMITTED" if who == "asleep" else "RO"), "it stands again")
        after = house.status()
        assert (after.generation, after.hash, after.bytes) == (before.generation, before.hash, before.bytes)
        if "asleep" in readers:
            assert readers["asleep"].do("wake") == [before.generation, before.hash]
            assert readers["asleep"].do("byte", 1, 1) == 2
            readers["asleep"].do("sleep")
        for reader in readers.values():
            assert reader.do("lost") == []
    if who == "none":
        commit(house, 3, name="again")


def test_a_wake_without_a_server_ends_in_time_and_the_next_one_works_as_soon_as_there_is_one(house: House) -> None:
    reader = commit(house, 4)
    reader.do("sleep")
    house.kill()
    with pytest.raises(Failed, match="NotInTime"):
        reader.do("wake", 0.2)
    reader.tell("wake", 60)
    house.start()
    reader.answer()
    assert reader.do("byte", 0, 0) == 4


def test_many_readers_race_to_hand_back_and_all_go_on(house: House) -> None:
    commit(house, *range(1, 9))
    before = house.status()
    readers = [house.program(f"reader-{number}") for number in range(5)]
    for number, reader in enumerate(readers):
        reader.do("read", 20)
        if number % 2:
            reader.do("sleep")
    for _ in range(3):
        house.kill()
        house.start()
        until(lambda: len(doing(house, "reading")) == 4 and len(doing(house, "asleep")) == 2, "all are back")
        assert house.status().hash == before.hash
    for number, reader in enumerate(readers):
        if number % 2:
            reader.do("wake")
        assert reader.do("byte", 7, 99) == 8
        assert reader.do("lost") == []


def doing(house: House, what: str) -> list[int]:
    return [client.pid for client in house.status().clients if client.doing == what]


def test_a_writer_cannot_slip_in_while_the_layout_is_on_its_way_back(house: House) -> None:
    reader = commit(house, 1)
    reader.do("sleep")
    before = house.status()
    reader.stop()
    house.kill()
    writer = house.program("writer")
    writer.tell("write_or_read", 60)
    house.start()
    until(lambda: doing(house, "waiting"), "it waits")
    assert house.status().state == "RECOVERING"
    os.kill(reader.pid, signal.SIGCONT)
    assert writer.answer() == "reads"
    assert house.status().hash == before.hash


def test_a_server_killed_under_a_writer_has_all_of_its_commit_or_nothing(house: House) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(4):
        writer = house.program("writer")
        writer.do("write", 20)
        writer.do("create", 2 * MIB, 9)
        writer.tell("commit", f"w{chance.random()}")
        for _ in range(chance.randrange(2000)):
            pass
        house.kill()
        house.start()
        try:
            generation, _ = writer.answer()
        except Failed as error:
            assert error.error == "Lost"
        else:
            until(lambda: house.status().state == "RO", "it stands")
            assert house.status().generation == generation
        writer.kill()
        until(lambda: house.status().state != "RO", "it is gone")


# -- sleepers and readers ------------------------------------------------------------------------------------------


def test_a_write_through_a_readers_mapping_ends_its_writer_and_no_other(house: House) -> None:
    one = commit(house, 5)
    other = house.program("other")
    other.do("read", 20)
    with pytest.raises(Ended) as ended:
        other.do("poke")
    assert ended.value.code in (-signal.SIGSEGV, -signal.SIGBUS)
    assert one.do("byte", 0, 0) == 5
    until(lambda: len(doing(house, "reading")) == 1, "the server saw its end")
    fresh = house.program("fresh")
    fresh.do("read", 20)
    assert fresh.do("byte", 0, 0) == 5


@pytest.mark.timeout(300)
def test_thousands_of_sessions_leak_no_descriptor_and_no_memory(house: House) -> None:
    commit(house, 1, 2)
    reader = house.program("reader")
    reader.do("sessions", 200)
    reader.do("read", 20)
    reader.do("naps", 200)
    server = house.servers["host:0"]
    before = (reader.descriptors(), descriptors(server), mappings(reader.pid), resident(server.pid))
    reader.do("close")
    reader.do("sessions", SESSIONS)
    reader.do("read", 20)
    reader.do("naps", SESSIONS)
    until(lambda: len(doing(house, "reading")) == 2, "the server has heard of it")
    after = (reader.descriptors(), 0, mappings(reader.pid), resident(server.pid))
    assert after[0] == before[0]
    until(lambda: descriptors(server) <= before[1], "the server has closed the observers' connections too")
    assert abs(after[2] - before[2]) <= 10  # allocators come and go
    assert after[3] - before[3] < 8 * MIB


def descriptors(process: subprocess.Popen[bytes]) -> int:
    return len(os.listdir(f"/proc/{process.pid}/fd"))


def mappings(pid: int) -> int:
    return len(Path(f"/proc/{pid}/maps").read_text().splitlines())


def resident(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
