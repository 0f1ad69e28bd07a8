"""What only host memory has: locks for books, descriptors of a file, pages that can be looked at, forks, huge pages.

The promises of all device memory are in `test_memory.py`; races for a range in `test_host_races.py`; how devices are
made, and filesystems that are full, in `test_host_device.py`.
"""

import contextlib
import ctypes
import faulthandler
import fcntl
import os
import random
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from gms.memory import DeviceError, Handle, OutOfMemory, Spans, libc
from gms.memory import host as host_module
from gms.memory.host import HostMemory
from gms.memory.host_device import GRANULARITY, create_device
from sidecar.kernel import host_usage
from tests.gms.memory.host_stage import CAPACITY, UNITS, crowd, process
from tests.support.children import stay
from tests.support.descriptors import no_descriptor_leaks
from tests.support.interruptions import Interrupted, each_close_interrupted
from tests.support.processes import ROOT
from tests.support.waiting import until


def range_lock(fd: int, kind: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))


def range_locks(fd: int, *starts: int) -> None:
    for start in starts:
        range_lock(fd, fcntl.F_WRLCK, start, 2 * GRANULARITY)


def smaps(pid: int, address: int) -> dict[str, int]:
    """Bytes by kind, of the mapping that begins there."""
    figures: dict[str, int] = {}
    here = False
    for line in Path(f"/proc/{pid}/smaps").read_text().splitlines():
        if re.match(r"[0-9a-f]+-[0-9a-f]+ ", line):
            here = line.startswith(f"{address:x}-")
        elif here and line.endswith(" kB"):
            name, kilobytes, _ = line.split()
            figures[name.rstrip(":")] = int(kilobytes) << 10
    return figures


# --- the books


def test_the_ledger_of_the_lock_server_shows_what_is_allocated(devices: Path, host: HostMemory) -> None:
    assert host_usage.read_devices(devices) == {"host:0": (CAPACITY, CAPACITY)}
    handle = host.create(3 * GRANULARITY)
    with process(devices) as other:
        other.create(2 * GRANULARITY)
        assert host_usage.read_devices(devices) == {"host:0": (CAPACITY - 5 * GRANULARITY, CAPACITY)}
    until(
        lambda: host_usage.read_devices(devices) == {"host:0": (CAPACITY - 3 * GRANULARITY, CAPACITY)},
        "the memory is free again",
    )
    host.release(handle)
    assert host_usage.read_devices(devices) == {"host:0": (CAPACITY, CAPACITY)}


def test_the_first_range_that_is_large_enough_is_taken(host: HostMemory) -> None:
    unit = GRANULARITY

    def start(handle: int) -> int:
        ((start, _),) = host._allocation(Handle(handle)).ranges
        return int(start // unit)

    first, second, third = (host.create(units * unit) for units in (1, 3, 2))
    assert [start(handle) for handle in (first, second, third)] == [0, 1, 4]
    host.release(second)
    assert start(host.create(4 * unit)) == 6
    assert start(host.create(2 * unit)) == 1


def test_free_memory_in_pieces_is_had_as_one(host: HostMemory, devices: Path) -> None:
    """Every second piece is another's. A process that imports it maps the same, from any offset on."""
    handles = [host.create(GRANULARITY) for _ in range(UNITS)]
    for handle in handles[::2]:
        host.release(handle)
    size = CAPACITY // 2
    with pytest.raises(OutOfMemory, match=f"{size} are free"):
        host.create(size + GRANULARITY)
    handle = host.create(size)
    assert host.free() == 0
    fd = host.export(handle)
    identity, other = host.identity(fd), HostMemory("0", devices)
    with contextlib.closing(other):
        imported = other.import_(fd, size)
        assert other.identity(fd) == identity and host.held(identity) is True
        address, behind = host.reserve(size), other.reserve(size)
        host.map(address, handle, size=size, writable=True)
        for unit in range(size // GRANULARITY):
            ctypes.memset(address + unit * GRANULARITY, unit + 1, 1)
        rest = size - GRANULARITY
        other.map(behind, imported, size=rest, offset=GRANULARITY, writable=False)
        read = [ctypes.string_at(behind + at, 1)[0] for at in range(0, rest, GRANULARITY)]
        assert read == list(range(2, size // GRANULARITY + 1))
        host.unmap(address, size)
        host.release(handle)
        assert host.free() == 0, "the other process has it"
    os.close(fd)
    assert host.free() == size and host.held(identity) is False


def test_pieces_read_as_zeros_whatever_was_there(host: HostMemory) -> None:
    address = host.reserve(CAPACITY)
    whole = host.create(CAPACITY)
    host.map(address, whole, size=CAPACITY, writable=True)
    ctypes.memset(address, 255, CAPACITY)
    host.unmap(address, CAPACITY)
    host.release(whole)
    handles = [host.create(GRANULARITY) for _ in range(UNITS)]
    for handle in handles[::2]:
        host.release(handle)
    handle = host.create(CAPACITY // 2)
    host.map(address, handle, size=CAPACITY // 2, writable=True)
    assert not any(ctypes.string_at(address, CAPACITY // 2))


def test_ranges_begin_at_huge_pages_whatever_others_have_locked(devices: Path, host: HostMemory) -> None:
    with (devices / "0").open("r+b") as stranger:
        range_lock(stranger.fileno(), fcntl.F_WRLCK, 0, 4096)
        handle = host.create(CAPACITY - GRANULARITY)
        assert host._allocation(handle).ranges == [(GRANULARITY, CAPACITY)]
        with pytest.raises(OutOfMemory):
            host.create(GRANULARITY)


def test_so_many_allocations_and_not_one_more(tmpfs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(host_module, "MAX_RANGES", 40)  # a look at each is taken for each
    create_device("many", 42 * GRANULARITY, tmpfs / "devices")
    memory = HostMemory("many", tmpfs / "devices")
    with contextlib.closing(memory):
        handles = [memory.create(GRANULARITY) for _ in range(40)]
        with pytest.raises(DeviceError, match="40 is all that it may have"):
            memory.create(GRANULARITY)
        assert memory.free() == 2 * GRANULARITY
        memory.release(handles[20])
        memory.create(GRANULARITY)


def test_out_of_descriptors_is_said_and_leaves_nothing(devices: Path, host: HostMemory) -> None:
    """In a process of its own: a thread that another test has left here may open a file at any moment."""
    program = f"""
import pathlib
from gms.memory import DeviceError
from gms.memory.host import HostMemory
from tests.support.descriptors import descriptors_left

host = HostMemory("0", pathlib.Path({str(devices)!r}))
with descriptors_left(3):  # looking how much memory the machine has takes one, for a moment
    kept = [host.create({GRANULARITY}) for _ in range(2)]
    try:
        said = host.create({GRANULARITY})
    except DeviceError as error:
        said = error
print(host.free(), said)
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    free, _, said = done.stdout.partition(" ")
    assert int(free) == CAPACITY - 2 * GRANULARITY and "ulimit -n" in said


# --- descriptors


def test_descriptors_of_the_device_that_are_no_allocation_are_refused(devices: Path, host: HostMemory) -> None:
    unit = GRANULARITY
    handle = host.create(2 * unit)
    path = devices / "0"
    create_device("1", CAPACITY, devices)
    elsewhere = HostMemory("1", devices)
    cases: dict[str, Callable[[int], None]] = {
        "no lock": lambda fd: None,
        "another range": lambda fd: range_lock(fd, fcntl.F_WRLCK, 4 * unit, unit),
        "two ranges": lambda fd: range_locks(fd, 4 * unit, 8 * unit),
        "a read lock": lambda fd: range_lock(fd, fcntl.F_RDLCK, 4 * unit, 2 * unit),
        "to the end": lambda fd: range_lock(fd, fcntl.F_WRLCK, 4 * unit, 0),
        "beyond the end": lambda fd: range_lock(fd, fcntl.F_WRLCK, CAPACITY - unit, 2 * unit),
        "only beyond it": lambda fd: range_lock(fd, fcntl.F_WRLCK, CAPACITY, 2 * unit),
        "a flock": lambda fd: fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB),
        "a lock of the process": lambda fd: fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 2 * unit, 4 * unit),
        "off the granularity": lambda fd: range_lock(fd, fcntl.F_WRLCK, 4 * unit + 4096, 2 * unit),
    }
    with no_descriptor_leaks():
        for case, spoil in cases.items():
            fd = os.open(path, os.O_RDWR)
            spoil(fd)
            with pytest.raises(DeviceError):
                host.import_(fd, 2 * unit)
                pytest.fail(f"taken for memory: {case}")
            os.close(fd)
        fd = elsewhere.export(elsewhere.create(2 * unit))
        with pytest.raises(DeviceError, match="another file"):
            host.import_(fd, 2 * unit)
        os.close(fd)
        for allocated in list(elsewhere._allocations):
            elsewhere.release(allocated)
    elsewhere.close()
    assert host.free() == CAPACITY - 2 * unit
    host.release(handle)


def test_an_identity_says_where_the_memory_is(devices: Path, host: HostMemory) -> None:
    host.create(GRANULARITY)
    handle = host.create(2 * GRANULARITY)
    fd = host.export(handle)
    status = (devices / "0").stat()
    assert host.identity(fd) == f"host:{status.st_dev}:{status.st_ino}:{GRANULARITY}:{2 * GRANULARITY}"
    os.close(fd)


def test_other_memory_that_only_overlaps_is_not_the_one_that_was(host: HostMemory) -> None:
    handle = host.create(2 * GRANULARITY)
    fd = host.export(handle)
    identity = host.identity(fd)
    os.close(fd)
    assert host.held(identity) is True
    host.release(handle)
    assert host.held(identity) is False
    for units in (1, 3):
        handle = host.create(units * GRANULARITY)
        assert host.held(identity) is False
        host.release(handle)


def test_of_a_device_that_was_made_anew_it_cant_be_told_who_holds_it(devices: Path, host: HostMemory) -> None:
    fd = host.export(host.create(GRANULARITY))
    identity = host.identity(fd)
    (devices / "0").unlink()
    create_device("0", CAPACITY, devices)
    anew = HostMemory("0", devices)
    assert anew.held(identity) is None
    with pytest.raises(DeviceError):
        anew.import_(fd, GRANULARITY)
    anew.close()
    os.close(fd)
    with pytest.raises(DeviceError, match="removed or made anew"):
        host.create(GRANULARITY)


# --- pages


def test_two_readers_of_one_allocation_share_its_pages(devices: Path, host: HostMemory) -> None:
    size = 4 * GRANULARITY
    fd = host.export(host.create(size))
    with process(devices) as one, process(devices) as two:
        readers = []
        for reader in (one, two):
            address = reader.mapped(reader.import_(fd, size), size, writable=False)
            assert reader.all_zero(address, size)  # touches every page
            readers.append((reader.process.pid, address))
        for pid, address in readers:
            figures = smaps(pid, address)
            assert figures["Rss"] == size
            assert figures["Pss"] == size // 2
            assert figures["Shared_Clean"] + figures["Shared_Dirty"] == size
            assert figures["Private_Clean"] + figures["Private_Dirty"] == 0
    os.close(fd)


def test_an_address_that_is_given_on_in_the_moment_in_which_it_is_freed_is_its_next_ones(
    host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its next one's mapping failed: the books had forgotten its reservation with the one before."""
    address = host.reserve(GRANULARITY)

    def freed(at: int, size: int) -> None:
        """Another thread is quick, and the kernel gives it the same."""
        monkeypatch.setattr(host, "_reserve", lambda _: at)
        assert host.reserve(size) == at

    monkeypatch.setattr(host, "_free_address", freed)
    host.free_address(address, GRANULARITY)
    monkeypatch.undo()
    host.map(address, host.create(GRANULARITY), size=GRANULARITY, writable=True)
    host.unmap(address, GRANULARITY)
    host.free_address(address, GRANULARITY)


def test_an_address_that_cant_be_freed_is_its_reservations_still(
    host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = host.reserve(GRANULARITY)

    def fails(*_: int) -> None:
        raise DeviceError("no")

    monkeypatch.setattr(host, "_free_address", fails)
    with pytest.raises(DeviceError, match="no"):
        host.free_address(address, GRANULARITY)
    monkeypatch.undo()
    host.free_address(address, GRANULARITY)


def test_addresses_begin_at_huge_pages_whatever_the_kernel_offers(
    host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = libc._mmap

    def odd(address: int | None, size: int, *rest: int) -> int:
        return real(address, size + 4096, *rest) + 4096

    monkeypatch.setattr(libc, "_mmap", odd)
    address = host.reserve(GRANULARITY)
    monkeypatch.undo()
    assert address % GRANULARITY == 0
    host.map(address, host.create(GRANULARITY), size=GRANULARITY, writable=False)


def test_huge_pages_keep_the_contents_and_stay_shared(devices: Path, host: HostMemory) -> None:
    size = 4 * GRANULARITY
    handle = host.create(size)
    address = host.reserve(size)
    host.map(address, handle, size=size, writable=True)
    content = bytes(range(256)) * (size // 256)
    ctypes.memmove(address, content, size)
    fd = host.export(handle)
    with process(devices) as reader:
        theirs = reader.mapped(reader.import_(fd, size), size, writable=False)
        assert reader.peek(theirs, 256) == content[:256]
        worked = host.collapse(address, size)
        assert ctypes.string_at(address, size) == content
        assert reader.peek(theirs + 3 * GRANULARITY, 256) == content[:256]
        ctypes.memset(address, 7, 1)
        assert reader.peek(theirs, 1) == b"\7"
        figures = smaps(os.getpid(), address)
    os.close(fd)
    if not worked:
        pytest.skip("this kernel made no huge pages, which is allowed; the contents stayed")
    assert figures["ShmemPmdMapped"] + figures["FilePmdMapped"] == size


def test_collapse_of_what_is_not_mapped_says_no_and_does_no_harm(host: HostMemory) -> None:
    address = host.reserve(GRANULARITY)
    assert not host.collapse(address, GRANULARITY)
    handle = host.create(GRANULARITY)
    host.map(address, handle, size=GRANULARITY, writable=True)
    assert ctypes.string_at(address, 1) == b"\0"
    host.unmap(address, GRANULARITY)
    host.free_address(address, GRANULARITY)
    assert not host.collapse(address, GRANULARITY)


def test_a_forked_child_has_no_mapping_and_the_parent_keeps_its_own(host: HostMemory) -> None:
    address = host.reserve(GRANULARITY)
    handle = host.create(GRANULARITY)
    host.map(address, handle, size=GRANULARITY, writable=True)
    ctypes.memset(address, 7, 1)
    host.release(handle)  # only the mapping is left

    with crowd(_read_at(address)) as [child]:
        assert child.line() == "alive"
        assert os.waitstatus_to_exitcode(child.wait()) == -signal.SIGSEGV

    with crowd(_sleep) as [child]:
        assert child.line() == "alive"
        assert ctypes.string_at(address, 1) == b"\7"
        host.unmap(address, GRANULARITY)
        assert host.free() == CAPACITY


def test_a_forked_childs_descriptors_hold_the_memory_as_the_parents_do(host: HostMemory) -> None:
    handle = host.create(GRANULARITY)
    with crowd(_sleep) as [child]:
        assert child.line() == "alive"
        host.release(handle)
        assert host.free() == CAPACITY - GRANULARITY
    until(lambda: host.free() == CAPACITY, "the memory is free again")


def test_what_interrupts_a_release_or_a_closing_lets_nothing_be_closed_again(
    host: HostMemory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By then the number may be another file's."""

    handle = host.create(GRANULARITY)
    with each_close_interrupted(monkeypatch) as closed:
        with contextlib.suppress(Interrupted):
            host.release(handle)
        for _ in range(3):
            with contextlib.suppress(Interrupted):
                host.close()
    assert len(closed) == 2 == len(set(closed))


def _read_at(address: int) -> Callable[[Callable[[str], None]], None]:
    def read(say: Callable[[str], None]) -> None:
        faulthandler.disable()  # a fault is what we want to see, not its story
        say("alive")
        ctypes.string_at(address, 1)
        say("read it")

    return read


def _sleep(say: Callable[[str], None]) -> None:
    say("alive")
    stay()


def test_spans_agree_with_a_plain_list_of_them() -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    spans, plain = Spans(), dict[int, int]()
    for _ in range(3000):
        start, size = chance.randrange(60), chance.randrange(1, 9)
        overlap = any(at < start + size and start < at + length for at, length in plain.items())
        assert spans.touches(start, size) == overlap
        assert spans.covers(start, size) == any(at <= start and start + size <= at + n for at, n in plain.items())
        assert spans.has(start, size) == (plain.get(start) == size)
        if not overlap:
            spans.add(start, size)
            plain[start] = size
        elif chance.random() < 0.5:
            gone = chance.choice(sorted(plain))
            spans.remove(gone)
            del plain[gone]
    assert list(spans) == sorted(plain.items())
