"""Readers of device memory: the ledger of host devices against real OFD locks in real files, and NVML against a
stand-in.

The module `pynvml` of these tests is a fake: no machine without NVIDIA's driver can have NVML, and what is tested
here is only what `evidence/shell/memory.py` makes of its answers. The real one is asked by the tests that need a GPU.
"""

import fcntl
import os
import random
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from evidence.shell import memory
from evidence.shell.memory import NoReader, reader
from sidecar.kernel import host_usage
from sidecar.terminal.extras import how_to_get

CAPACITY = 1 << 30
PAGE = 4096


@pytest.fixture
def devices(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """On tmpfs, as host devices are; else wherever temporary files are."""
    shm = Path("/dev/shm")
    path = shm / f"test-ledger-{os.getpid()}" if os.access(shm, os.W_OK) else tmp_path_factory.mktemp("devices")
    path.mkdir(exist_ok=True)
    yield path
    for left in path.iterdir():
        left.unlink()
    path.rmdir()


class Device:
    """A host device, and allocations in it that hold their ranges as `gms` will: one open file description and one
    lock each."""

    def __init__(self, directory: Path, name: str = "card0", capacity: int = CAPACITY) -> None:
        self.path = directory / name
        self.capacity = capacity
        self._allocations: dict[int, tuple[int, int]] = {}
        with open(self.path, "wb") as file:
            file.truncate(capacity)

    def allocate(self, start: int, length: int, *, kind: int = fcntl.F_WRLCK) -> int:
        fd = os.open(self.path, os.O_RDWR | os.O_CLOEXEC)
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, struct.pack("hhqqi4x", kind, os.SEEK_SET, start, length, 0))
        self._allocations[fd] = (start, length)
        return fd

    def free(self, fd: int) -> None:
        del self._allocations[fd]
        os.close(fd)

    @property
    def used(self) -> int:
        free, in_all = host_usage.read_device(self.path)
        assert in_all == self.capacity
        return in_all - free


@pytest.fixture
def device(devices: Path) -> Iterator[Device]:
    device = Device(devices)
    yield device
    for fd in list(device._allocations):
        device.free(fd)


# -- the ledger ----------------------------------------------------------------------------------------------------


def test_a_device_that_no_process_uses_is_free(device: Device) -> None:
    assert host_usage.read_device(device.path) == (CAPACITY, CAPACITY)


def test_an_allocation_is_in_use_until_its_last_descriptor_is_closed(device: Device) -> None:
    fd = device.allocate(0, 64 * PAGE)
    copy = os.dup(fd)
    assert device.used == 64 * PAGE
    device.free(fd)
    assert device.used == 64 * PAGE
    os.close(copy)
    assert device.used == 0


@pytest.mark.parametrize(
    ("ranges", "pages"),
    [
        ([(CAPACITY - 5 * PAGE, 0), (0, PAGE)], 6),  # 0: to the end of the file
        ([(CAPACITY, 10 * PAGE), (CAPACITY - 2 * PAGE, 2 * PAGE)], 2),
        ([(CAPACITY - PAGE, 10 * PAGE)], 1),
    ],
)
def test_a_lock_to_the_end_and_beyond_it_counts_up_to_the_capacity(
    device: Device, ranges: list[tuple[int, int]], pages: int
) -> None:
    for start, length in ranges:
        device.allocate(start, length)
    assert device.used == pages * PAGE


def test_ranges_that_read_locks_share_are_counted_once(device: Device) -> None:
    """No allocation overlaps another; but a look with read locks must not make the figures wrong."""
    device.allocate(0, 10 * PAGE, kind=fcntl.F_RDLCK)
    device.allocate(5 * PAGE, 10 * PAGE, kind=fcntl.F_RDLCK)
    device.allocate(5 * PAGE, 2 * PAGE, kind=fcntl.F_RDLCK)
    assert device.used == 15 * PAGE


def test_a_thousand_allocations_in_any_order_are_all_counted(device: Device) -> None:
    rng = random.Random(4)
    places = list(range(2000))
    rng.shuffle(places)
    fds = [device.allocate(place * 7 * PAGE, PAGE) for place in places[:1000]]
    assert device.used == 1000 * PAGE
    for fd in rng.sample(fds, 400):
        device.free(fd)
    assert device.used == 600 * PAGE


def test_random_allocations_agree_with_a_count_of_bytes(devices: Path) -> None:
    rng = random.Random(11)
    for round in range(60):
        device = Device(devices, f"r{round}", capacity=64)
        taken = [False] * 64
        for _ in range(rng.randint(0, 12)):
            start = rng.randrange(64)
            length = rng.randint(1, 12)
            if not any(taken[start : start + length]):
                device.allocate(start, length)
                taken[start : start + length] = [True] * len(taken[start : start + length])
        assert device.used == sum(taken)
        for fd, (start, length) in rng.sample(list(device._allocations.items()), len(device._allocations)):
            device.free(fd)
            taken[start : start + length] = [False] * len(taken[start : start + length])
            assert device.used == sum(taken)


def test_reading_takes_no_lock_and_leaks_no_descriptor(device: Device) -> None:
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(50):
        host_usage.read_device(device.path)
    assert len(os.listdir("/proc/self/fd")) == before
    device.allocate(0, 0)  # the whole of it can still be had
    assert host_usage.read_device(device.path) == (0, CAPACITY)


def test_every_device_of_the_directory_is_read_by_its_name(devices: Path, device: Device) -> None:
    other = Device(devices, "card1", capacity=10 * PAGE)
    fd = other.allocate(0, 4 * PAGE)
    Device(devices, ".half-made")
    (devices / "sub").mkdir()
    assert host_usage.read_devices(devices) == {"host:card0": (CAPACITY, CAPACITY), "host:card1": (6 * PAGE, 10 * PAGE)}
    other.free(fd)
    (devices / "sub").rmdir()


def test_a_directory_that_is_not_there_has_no_devices(tmp_path: Path) -> None:
    assert host_usage.read_devices(tmp_path / "none") == {}


def test_the_directory_of_devices_is_a_setting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(host_usage.ENVIRONMENT, "/somewhere/else")
    assert host_usage.devices_directory() == Path("/somewhere/else")
    monkeypatch.delenv(host_usage.ENVIRONMENT)
    assert str(os.getuid()) in host_usage.devices_directory().name


# -- readers -------------------------------------------------------------------------------------------------------


def test_host_reads_the_ledger_anew_each_time(device: Device) -> None:
    read, _ = reader("host", device.path.parent)
    assert read is not None and read() == {"host:card0": (CAPACITY, CAPACITY)}
    fd = device.allocate(0, PAGE)
    assert read() == {"host:card0": (CAPACITY - PAGE, CAPACITY)}
    device.free(fd)
    assert read() == {"host:card0": (CAPACITY, CAPACITY)}


class FakeNvmlError(Exception):
    pass


class FakeNvml(ModuleType):
    """A driver with some GPUs, of which each call may fail."""

    NVMLError = FakeNvmlError

    def __init__(self, gpus: dict[str, tuple[int, int]], *, fails: str = "") -> None:
        super().__init__("pynvml")
        self.gpus = gpus
        self.fails = fails
        self.calls: list[str] = []

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if self.fails == name:
            raise FakeNvmlError("Driver Not Loaded")

    def nvmlInit(self) -> None:
        self._call("nvmlInit")

    def nvmlDeviceGetCount(self) -> int:
        self._call("nvmlDeviceGetCount")
        return len(self.gpus)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        self._call("nvmlDeviceGetHandleByIndex")
        return list(self.gpus)[index]

    def nvmlDeviceGetUUID(self, handle: str) -> str:
        self._call("nvmlDeviceGetUUID")
        return handle

    def nvmlDeviceGetMemoryInfo(self, handle: str) -> SimpleNamespace:
        self._call("nvmlDeviceGetMemoryInfo")
        free, total = self.gpus[handle]
        return SimpleNamespace(free=free, total=total, used=total - free)


def with_nvml(monkeypatch: pytest.MonkeyPatch, module: ModuleType | None) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", module)  # None: as if it weren't installed


def test_nvml_reads_every_gpu_by_its_uuid_anew_each_time(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fake = FakeNvml({"GPU-aa": (70, 80), "GPU-bb": (10, 80)})
    with_nvml(monkeypatch, fake)
    read, _ = reader("nvml", tmp_path)
    assert read is not None and read() == {"GPU-aa": (70, 80), "GPU-bb": (10, 80)}
    fake.gpus["GPU-bb"] = (80, 80)
    assert read()["GPU-bb"] == (80, 80)
    assert fake.calls.count("nvmlInit") == 1


@pytest.mark.parametrize("lie", [(81, 80), (2**64 - 5, 80), (80, 0), (-1, 80)])
def test_figures_that_contradict_each_other_are_no_reading(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lie: tuple[int, int]
) -> None:
    with_nvml(monkeypatch, FakeNvml({"GPU-aa": lie}))
    read, _ = reader("nvml", tmp_path)
    with pytest.raises(ValueError, match=r"of the .* bytes of GPU-aa are free"):
        assert read is not None and read()


def test_without_the_package_nvml_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_nvml(monkeypatch, None)
    with pytest.raises(NoReader, match=re.escape(how_to_get("nvml")) + ".*--memory none"):
        reader("nvml", tmp_path)


@pytest.mark.parametrize("fails", ["nvmlInit", "nvmlDeviceGetCount", "nvmlDeviceGetHandleByIndex", "nvmlDeviceGetUUID"])
def test_a_driver_that_does_not_work_is_no_reader_and_the_way_out_is_named(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, fails: str
) -> None:
    with_nvml(monkeypatch, FakeNvml({"GPU-aa": (1, 2)}, fails=fails))
    with pytest.raises(NoReader, match=r"Driver Not Loaded.*mounted.*--memory none"):
        reader("nvml", tmp_path)


def test_auto_is_nvml_where_it_works_and_none_where_it_does_not(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with_nvml(monkeypatch, FakeNvml({"GPU-aa": (1, 2)}))
    read, _ = reader("auto", tmp_path)
    assert read is not None and read() == {"GPU-aa": (1, 2)}
    for module in (FakeNvml({"GPU-aa": (1, 2)}, fails="nvmlInit"), FakeNvml({}), None):
        with_nvml(monkeypatch, module)
        assert reader("auto", tmp_path)[0] is None


def test_a_gpu_that_fails_later_raises_to_the_server_which_makes_an_alarm_of_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    fake = FakeNvml({"GPU-aa": (1, 2)})
    with_nvml(monkeypatch, fake)
    read, _ = reader("nvml", tmp_path)
    fake.fails = "nvmlDeviceGetMemoryInfo"
    assert read is not None
    with pytest.raises(FakeNvmlError, match="Driver Not Loaded"):
        read()


def test_every_kind_that_the_command_offers_is_known(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    with_nvml(monkeypatch, FakeNvml({"GPU-aa": (1, 2)}))
    without = {kind for kind in memory.KINDS if reader(kind, tmp_path)[0] is None}
    assert without == {"none"}
    with pytest.raises(ValueError, match="there is no reader of the kind 'cuda'"):
        reader("cuda", tmp_path)
