"""Programs that use the weights, each its own process, and what happens when one of them or the server is killed."""

import os
import random
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.gms.live import MIB, Ended, Failed, House, Program, houses
from tests.support.processes import resident
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
SESSIONS = int(os.environ.get("FAILOVER_GMS_SESSIONS", "500"))
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


@pytest.mark.parametrize("over", ["nothing", "a layout"])
def test_a_writer_killed_at_any_step_leaves_what_was_or_what_it_committed(house: House, over: str) -> None:
    if over == "a layout":
        commit(house, 1, name="first").do("close")
        until(lambda: house.status().state == "COMMITTED", "no client reads")
    before = house.status()
    for step in ("two slabs, one full", "creating", "committing", "committed"):
        writer = house.program("doomed")
        writer.do("replace", 4 * MIB, 20) if over == "a layout" else writer.do("write", 20)
        writer.do("create", 2 * MIB)
        writer.do("create", 2 * MIB, 7)
        if step == "creating":
            writer.tell("create", 2 * MIB)
        elif step == "committing":
            writer.tell("commit", "second")
        elif step == "committed":
            writer.do("commit", "second")
        writer.kill()
        until(lambda: house.status().state in ("EMPTY", "COMMITTED"), f"{step}: no client writes")
        status = house.status()
        until(lambda: house.used() == status.bytes, f"{step}: what is held is what is committed")  # noqa: B023
        if "commit" not in step:
            assert (status.state, status.generation) == (before.state, before.generation), step
    reader = house.program("reader")
    reader.do("read", 20)
    assert (reader.do("byte", 0, 0), reader.do("byte", 1, 0)) == (0, 7), "of two slabs, the second one full"


def test_a_half_committed_pair_of_devices_is_finished_by_the_next_start_and_no_reader_restarts(house: House) -> None:
    """The specification's Decision 5. The other engine only reads: else each might write where the other waits."""
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


# -- the server ----------------------------------------------------------------------------------------------------


def test_a_server_that_is_killed_again_and_again_costs_its_readers_nothing(house: House) -> None:
    """They race to hand back; those that sleep wait for it no longer than they want to."""
    commit(house, *range(1, 9))
    before = house.status()
    readers = [house.program(f"reader-{number}") for number in range(4)]
    for number, reader in enumerate(readers):
        reader.do("read", 20)
        if number % 2:
            reader.do("sleep")
    for _ in range(2):
        house.kill()
        assert readers[0].do("byte", 1, 1) == 2, "it reads on without a server"
        with pytest.raises(Failed, match="NotInTime"):
            readers[1].do("wake", 0.2)
        house.start()
        until(lambda: len(doing(house, "reading")) == 3 and len(doing(house, "asleep")) == 2, "all are back")
        after = house.status()
        assert (after.generation, after.hash, after.bytes) == (before.generation, before.hash, before.bytes)
    house.kill()
    readers[1].tell("wake", 60)
    house.start()
    assert readers[1].answer() == [before.generation, before.hash], "as soon as there is one"
    readers[3].do("wake")
    for reader in readers:
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
def test_hundreds_of_sessions_leak_no_descriptor_and_no_memory(house: House) -> None:
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
