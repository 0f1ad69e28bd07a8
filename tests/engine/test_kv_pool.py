"""The memory of a KV cache (`engine_shim/vllm_engine/pool.py`) in processes of its own: on host memory, and through the
real bindings of CUDA on the emulated driver.
"""

import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from engine_shim.vllm_engine.kv_pool import KvPool
from gms.memory import DeviceError, Memory, OutOfMemory
from tests.gms.memory.makers import MAKERS
from tests.gms.memory.remote import Died, Remote
from tests.support.waiting import until


class Stage:
    """A device of 16 units, processes that have a pool there, and one that only looks."""

    def __init__(self, maker: str, directory: Path) -> None:
        self._maker = maker
        self._environment = MAKERS[maker].prepare(directory)
        self._all: list[Remote] = []
        self.observer = self.process()
        self.unit = self.observer.granularity

    def process(self) -> Remote:
        self._all.append(Remote(self._maker, self._environment))
        return self._all[-1]

    def pool(self, units: int, pieces: int = 8) -> tuple[Remote, KvPool, int]:
        process = self.process()
        pool = KvPool(cast(Memory, process), pieces)
        return process, pool, pool.allocate(units * self.unit)

    @property
    def free(self) -> int:
        return self.observer.free() // self.unit

    def close(self) -> None:
        for process in self._all:
            process.kill()


@pytest.fixture(params=MAKERS)
def stage(request: pytest.FixtureRequest) -> Iterator[Stage]:
    missing = MAKERS[request.param].missing()
    if missing:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="gpu-failover-test-", dir="/dev/shm") as directory:
        stage = Stage(request.param, Path(directory))
        yield stage
        stage.close()


def test_a_standby_starts_while_the_other_has_the_device_and_takes_one_piece_of_it(stage: Stage) -> None:
    _, awake, _ = stage.pool(14)
    awake.sleep()
    awake.wake()
    assert stage.free == 2
    process, starting, address = stage.pool(14)
    assert (stage.free, starting.scratch) == (0, 2 * stage.unit)
    last = address + 14 * stage.unit - 4
    process.poke(last, b"warm")  # every address of it can be written to
    process.poke(address, b"warm")
    starting.sleep()
    assert (stage.free, starting.scratch) == (2, 0)


def test_a_wake_while_the_other_is_awake_is_out_of_memory_and_works_when_it_is_gone(stage: Stage) -> None:
    pools = [stage.pool(10) for _ in range(2)]
    for _, pool, _ in pools:
        pool.sleep()
    (holder, awake, _), (_, waiting, address) = pools
    awake.wake()
    with pytest.raises(OutOfMemory):
        waiting.wake()
    assert stage.free == 6
    holder.kill()
    until(lambda: stage.free == 16, "all pages are free")
    waiting.wake()
    assert (stage.free, waiting.addresses) == (6, [address])


def test_addresses_stay_and_every_wake_reads_as_zeros(stage: Stage) -> None:
    process, pool, address = stage.pool(5)
    size = 5 * stage.unit
    process.fill(address, size, 7)
    for _ in range(3):
        pool.sleep()
        assert stage.free == 16
        pool.wake()
        assert (pool.addresses, stage.free) == ([address], 11)
        assert process.all_zero(address, size)
        process.fill(address, size, 7)
    with_content: Any = process.peek(address, 4)
    assert with_content == b"\7" * 4


def test_several_caches_of_a_size_share_their_scratch(stage: Stage) -> None:
    process, pool, one = stage.pool(8)
    two = pool.allocate(8 * stage.unit - 1)
    assert (pool.scratch, stage.free, pool.size) == (stage.unit, 15, 16 * stage.unit)
    process.poke(two, b"seen")
    assert process.peek(one, 4) == b"seen", "it is the same memory"
    pool.sleep()
    pool.wake()
    process.poke(two, b"seen")
    assert process.peek(one, 4) == b"\0" * 4, "it is memory of its own"
    assert stage.free == 0


def test_asleep_its_addresses_are_no_memory(stage: Stage) -> None:
    process, pool, address = stage.pool(4)
    pool.sleep()
    with pytest.raises((Died, DeviceError)):
        process.peek(address, 4)
