"""Processes that want the same range of a host device at once, or die on the way to it."""

import contextlib
import ctypes
import os
import random
from collections.abc import Callable
from pathlib import Path

import pytest

from gms.memory import DeviceError, OutOfMemory
from gms.memory import host as host_module
from gms.memory.host import HostMemory, _Allocation
from gms.memory.host_device import GRANULARITY, create_device, remove_device, try_lock
from tests.gms.memory.host_stage import CAPACITY, UNITS, crowd
from tests.support.children import stay
from tests.support.waiting import until


def test_of_two_processes_that_race_for_the_last_range_one_gets_it(devices: Path, host: HostMemory) -> None:
    host.create(CAPACITY - GRANULARITY)
    for _ in range(20):
        assert sorted(_race(devices, host, processes=2, allocations=1)) == [0, 1]
        until(lambda: host.free() == GRANULARITY, "the memory is free again")


def test_who_loses_a_range_gets_another_while_there_is_one(devices: Path, host: HostMemory) -> None:
    for _ in range(5):
        assert _race(devices, host, processes=4, allocations=UNITS // 4) == [UNITS // 4] * 4
        until(lambda: host.free() == CAPACITY, "the memory is free again")


def _race(devices: Path, host: HostMemory, *, processes: int, allocations: int) -> list[int]:
    """How many each of them got, when all wanted the last ones at once."""
    go, start = os.pipe()

    def run(say: Callable[[str], None]) -> None:
        memory = HostMemory("0", devices)
        say("ready")
        os.read(go, 1)
        got = 0
        for _ in range(allocations):
            with contextlib.suppress(OutOfMemory):
                memory.create(GRANULARITY)
                got += 1
        say(str(got))
        stay()

    try:
        with crowd(*[run] * processes) as children:
            assert [child.line() for child in children] == ["ready"] * processes
            os.write(start, b"g" * processes)
            got = [int(child.line()) for child in children]
            assert host.free() == 0
            return got
    finally:
        os.close(go)
        os.close(start)


def _just_before_the_lock(monkeypatch: pytest.MonkeyPatch, what: Callable[[], object]) -> None:
    """Does it between the look for a free range and the lock on it, once."""

    def lock(fd: int, start: int, length: int) -> bool:
        monkeypatch.undo()
        what()
        return try_lock(fd, start, length)

    monkeypatch.setattr(host_module, "try_lock", lock)


def test_a_range_that_was_taken_just_before_is_left_to_who_has_it(
    devices: Path, host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = HostMemory("0", devices)
    _just_before_the_lock(monkeypatch, lambda: faster.create(GRANULARITY))
    host.create(CAPACITY - GRANULARITY)
    assert host.free() == 0
    faster.close()


def test_of_pieces_the_one_that_was_taken_just_before_is_left_to_who_has_it(
    devices: Path, host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    between = [host.create(GRANULARITY) for _ in range(UNITS)]
    for handle in between[::2]:
        host.release(handle)
    faster = HostMemory("0", devices)
    _just_before_the_lock(monkeypatch, lambda: faster.create(GRANULARITY))
    host.create(CAPACITY // 2 - GRANULARITY)
    assert host.free() == 0
    faster.close()


def test_a_device_that_was_removed_just_before_gives_nothing(
    devices: Path, host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _just_before_the_lock(monkeypatch, lambda: remove_device("0", devices))
    with pytest.raises(DeviceError, match="removed or made anew"):
        host.create(GRANULARITY)


def test_a_device_that_was_made_smaller_just_before_gives_what_it_has(
    devices: Path, host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    _just_before_the_lock(monkeypatch, lambda: create_device("0", GRANULARITY, devices))
    with pytest.raises(OutOfMemory) as error:
        host.create(CAPACITY)
    assert (error.value.needed, error.value.free) == (CAPACITY, GRANULARITY)
    host.create(GRANULARITY)


def test_who_takes_the_last_place_just_before_has_it_alone(
    devices: Path, host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    faster = HostMemory("0", devices)
    for _ in range(2):
        host.create(GRANULARITY)

    def take_the_third() -> None:
        monkeypatch.setattr(host_module, "MAX_RANGES", 3)
        _take_elsewhere(faster)

    _just_before_the_lock(monkeypatch, take_the_third)
    with pytest.raises(DeviceError, match="3 is all that it may have"):
        host.create(GRANULARITY)
    assert host.free() == CAPACITY - 3 * GRANULARITY
    faster.close()


def _take_elsewhere(memory: HostMemory) -> None:
    """At the end of the device, where the other doesn't look first."""
    fd = memory._open()
    assert try_lock(fd, CAPACITY - GRANULARITY, GRANULARITY)
    memory._add(_Allocation(fd, [(CAPACITY - GRANULARITY, CAPACITY)], GRANULARITY))


def test_no_process_dies_of_a_device_that_others_make_smaller_and_larger(devices: Path) -> None:
    def use(say: Callable[[str], None]) -> None:
        memory = HostMemory("0", devices)
        for _ in range(150):
            with contextlib.suppress(OutOfMemory):
                handle = memory.create(GRANULARITY)
                address = memory.reserve(GRANULARITY)
                memory.map(address, handle, size=GRANULARITY, writable=True)
                ctypes.memset(address, 1, GRANULARITY)
                memory.unmap(address, GRANULARITY)
                memory.free_address(address, GRANULARITY)
                memory.release(handle)
        say("alive")

    def resize(say: Callable[[str], None]) -> None:
        for turn in range(2000):
            with contextlib.suppress(DeviceError):
                create_device("0", (1 + turn % 2) * GRANULARITY, devices)
        say("alive")

    with crowd(use, use, resize) as children:
        assert [child.line() for child in children] == ["alive"] * 3


def test_killed_while_it_creates_a_process_leaves_nothing(devices: Path, host: HostMemory) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)

    def create_for_ever(say: Callable[[str], None]) -> None:
        memory = HostMemory("0", devices)
        say("begun")
        while True:
            memory.release(memory.create(CAPACITY))

    for _ in range(10):
        with crowd(create_for_ever) as [child]:
            assert child.line() == "begun"
            for _ in range(chance.randrange(2000)):  # some way into it
                host.free()
        until(lambda: host.free() == CAPACITY, "the memory is free again")
