"""The KV cache's memory, without vLLM: torch on host memory."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch isn't installed in this Python")

from engine_shim.vllm_engine.kv_pool import KvPool  # noqa: E402
from engine_shim.vllm_engine.kv_tensors import Allocating  # noqa: E402
from gms.memory import OutOfMemory  # noqa: E402
from gms.memory.host import HostMemory  # noqa: E402
from gms.memory.host_device import create_device  # noqa: E402

MIB = 1 << 20


@pytest.fixture
def memory(tmp_path: Path) -> Iterator[HostMemory]:
    tmp_path.chmod(0o700)
    create_device("0", 64 * MIB, tmp_path)
    memory = HostMemory("0", tmp_path)
    yield memory
    memory.close()


def allocated(pool: KvPool, size: int) -> Any:
    with Allocating(pool):
        return torch.zeros(size, dtype=torch.int8, device="cpu")


def test_until_the_first_sleep_a_cache_larger_than_the_device_takes_one_small_piece(memory: HostMemory) -> None:
    pool = KvPool(memory)
    before = memory.free()
    cache = allocated(pool, 200 * MIB)
    cache[-1] = 7
    assert before - memory.free() == 2 * MIB and pool.size == 200 * MIB
    pool.sleep()
    assert memory.free() == before


def test_awake_it_is_memory_of_its_own_at_the_same_address_and_reads_as_zeros(memory: HostMemory) -> None:
    pool = KvPool(memory)
    before = memory.free()
    one, two = allocated(pool, 5 * MIB + 1), allocated(pool, 3 * MIB)
    assert pool.size == 10 * MIB
    for _ in range(3):
        addresses = one.data_ptr(), two.data_ptr()
        assert [pool.holds(address) for address in addresses] == [True, True]
        pool.sleep()
        assert memory.free() == before
        pool.wake()
        assert (one.data_ptr(), two.data_ptr()) == addresses and before - memory.free() == pool.size
        assert not one.any() and not two.any()
        one[:] = 1
        assert not two.any()


def test_two_caches_that_dont_fit_arent_awake_together(memory: HostMemory) -> None:
    pools = [KvPool(memory), KvPool(memory)]
    for pool in pools:
        allocated(pool, 40 * MIB)
        pool.sleep()
    pools[0].wake()
    with pytest.raises(OutOfMemory):
        pools[1].wake()
    pools[0].sleep()
    pools[1].sleep()
    pools[1].wake()


def test_what_isnt_the_cache_is_allocated_as_ever(memory: HostMemory) -> None:
    pool = KvPool(memory)
    with Allocating(pool):
        others = [torch.zeros(4, dtype=torch.float32), torch.zeros((2, 2), dtype=torch.int8), torch.ones(4)]
    assert not pool.size and not any(pool.holds(other.data_ptr()) for other in others)
