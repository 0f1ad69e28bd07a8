"""Reads that arrive after their process's end: no process gets memory into which they may still go.

With root, and a disk that can be slowed down, they really arrive; without, it is seen that none is given such memory.
"""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gms.memory.host import HostMemory
from gms.rules import messages as m
from gms.shell.rundir import connect
from sidecar.kernel import host_usage, io_uring
from sidecar.wire.frames import Channel
from tests.gms.live import MIB, Failed, House, Program, houses
from tests.support import late_reads
from tests.support.root import needs_root
from tests.support.waiting import until

A: list[Any] = ["sha256:a", [4 * MIB], 8192]
SIZE = 4 * MIB
SLOW = MIB // 2
"""Bytes a second: the owner is long dead when the last ones come."""

may_have_io_uring = pytest.mark.skipif(bool(io_uring.why_impossible()), reason="there is no io_uring here anyway")


@pytest.fixture
def house() -> Iterator[House]:
    yield from houses(capacity=32 * MIB)


@pytest.fixture
def witness() -> Iterator[Path]:
    """Where the last of all reads goes."""
    with tempfile.TemporaryDirectory(dir="/dev/shm") as directory:
        path = Path(directory, "witness")
        path.write_bytes(bytes(late_reads.PIECE))
        yield path


def all_arrived(witness: Path) -> bool:
    return 0 not in witness.read_bytes()


def still_under_way(witness: Path) -> None:
    if all_arrived(witness):
        pytest.skip("all had arrived before the successor had the memory: this machine is too busy for this test")


@pytest.fixture
def slow_file() -> Iterator[str]:
    if not (late_reads.THROTTLE / "blkio.throttle.read_bps_device").exists():
        pytest.skip("no cgroup here slows a disk down")
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:
        path = Path(directory, "slow")
        with open(path, "wb") as file:
            file.write(b"\xee" * SIZE)
            os.fsync(file.fileno())
        yield str(path)


def engine(house: House, name: str, *unfiltered: str) -> Program:
    return house.program(name, "host:0", "tests.gms.pool_program", *unfiltered)


@may_have_io_uring
def test_contents_of_an_owner_that_could_have_io_uring_are_not_handed_on(house: House) -> None:
    a, b = engine(house, "engine-a", "unfiltered"), engine(house, "engine-b")
    generation = a.do("claim", A, 10)[0]
    until(lambda: b.do("sees")[0] == generation, "the standby has it")
    a.kill()
    new, adopted, why = b.do("claim", A, 11)
    assert (adopted, why) == (False, "unproven") and new > generation


@may_have_io_uring
def test_who_says_that_it_cant_have_io_uring_and_has_no_filter_is_not_believed(house: House) -> None:
    channel = Channel(connect(house.run_dir, "host:0"), m.from_server, max_frame_bytes=m.MAX_FRAME_BYTES)
    hello = m.Hello(
        policy="exclusive", protocol=m.PROTOCOL, engine_id="liar", pid=os.getpid(), key="kv-0", writes_end=True
    )
    channel.send(hello)
    channel.send(m.ClaimPool(digest=A[0], sizes=A[1], table_size=A[2], token=10, proven=True, timeout_s=9.0))
    channel.send(m.ReleasePool())
    heard: list[Any] = []

    def released() -> bool:
        heard.extend(each.message for each in channel.receive() or ())
        return any(isinstance(message, m.PoolReleased) for message in heard)

    until(released, "it is released")
    (pool,) = (region for region in house.status().regions if region.policy == "exclusive")
    assert "io_uring" in pool.doubt
    channel.close()


@pytest.mark.slow
@needs_root
@may_have_io_uring
def test_what_io_uring_reads_for_a_dead_owner_does_not_arrive_at_its_successor(
    house: House, slow_file: str, witness: Path
) -> None:
    a, b = engine(house, "engine-a", "unfiltered"), engine(house, "engine-b")
    a.do("claim", A, 10)
    group = late_reads.slow_down(a.pid, slow_file, SLOW)
    a.do("reads_late", "io_uring", slow_file, str(witness))
    a.kill()
    b.do("claim", A, 11)
    b.do("fill", 7)
    still_under_way(witness)
    until(lambda: all_arrived(witness), "all was read")
    until(lambda: not group_is_busy(group), "its last process is gone")
    assert b.do("look")[0] == [[7]]


def group_is_busy(group: Path) -> bool:
    try:
        group.rmdir()
    except OSError:
        return True
    return False


def test_a_filtered_process_can_have_no_such_reads(house: House) -> None:
    a = engine(house, "engine-a")
    a.do("claim", A, 10)
    with pytest.raises(Failed, match="Impossible"):
        a.do("reads_late", "io_uring", "/dev/null", "/dev/null")


@needs_root
def test_what_aio_reads_has_arrived_when_the_end_is_seen(house: House, slow_file: str) -> None:
    """The kernel waits for it before the process is gone (`exit_aio`): no filter is needed against that."""
    a, b = engine(house, "engine-a"), engine(house, "engine-b")
    generation = a.do("claim", A, 10)[0]
    group = late_reads.slow_down(a.pid, slow_file, 4 * SLOW)
    a.do("reads_late", "aio", slow_file)
    a.kill()
    assert b.do("claim", A, 11) == [generation, True, ""]
    assert b.do("look")[0] == [[0xEE]]
    until(lambda: not group_is_busy(group), "its last process is gone")


@pytest.mark.slow
@needs_root
@may_have_io_uring
@pytest.mark.parametrize("collapsed", [False, True])
def test_what_io_uring_reads_for_a_dead_writer_does_not_arrive_in_the_next_ones_slab(
    house: House, slow_file: str, witness: Path, collapsed: bool
) -> None:
    """The pages under a range are taken away before the range is given away: what is pinned belongs to no process."""
    a, b = (house.program(name, "host:0", "tests.gms.program") for name in ("engine-a", "engine-b"))
    a.do("write")
    a.do("create", SIZE, 1)
    if collapsed:
        a.do("collapse")
    group = late_reads.slow_down(a.pid, slow_file, SLOW)
    a.do("reads_late", slow_file, str(witness))
    identity = held(house)
    a.kill()
    b.do("write", 20)
    b.do("create", SIZE, 7)
    assert held(house) == identity, "the very same range"
    still_under_way(witness)
    until(lambda: all_arrived(witness), "all was read")
    until(lambda: not group_is_busy(group), "its last process is gone")
    assert b.do("looks") == [7]


def held(house: House) -> list[tuple[int, int]]:
    memory: HostMemory = house.memory()
    try:
        return host_usage.locks(memory._probe, 0, memory.capacity())
    finally:
        memory.close()
