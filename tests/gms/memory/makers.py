"""The makers that the conformance suite runs against. THE place to add one: a `Maker`, and its name in `MAKERS`.

Every test gets an empty directory of its own and works on one device with processes of its own (`remote.py`): the
test's process never opens a device itself. So a maker may need variables that have to be there when a process starts.
"""

import ctypes
import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gms.memory import Memory
from gms.memory.cuda import CudaMemory, devices
from gms.memory.host import HostMemory
from gms.memory.host_device import GRANULARITY, create_device
from tests import emulated_driver
from tools.vmm_refcount.contents import Contents, contents


def _peek(address: int, size: int) -> bytes:
    return ctypes.string_at(address, size)


def _poke(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))


@dataclass(frozen=True)
class Maker:
    """How a test comes to a device."""

    prepare: Callable[[Path], Mapping[str, str]]
    """Makes a device whose files are in this directory of the test's (on tmpfs, removed afterwards); gives the
    environment variables with which a process finds it. At least 8 units of the granularity large."""
    open: Callable[[], Memory]
    """The device, in a process that was started with those variables."""
    missing: Callable[[], str | None] = lambda: None
    """Why it can't run on this machine, if so; the tests are skipped with that."""
    peek: Callable[[int, int], bytes] = _peek
    """Reads mapped memory: address, size."""
    poke: Callable[[int, bytes], None] = _poke
    """Writes mapped memory: address, content."""
    tells_memory_apart: bool = True
    """No two pieces of memory have the same identity."""


def _prepare_host(directory: Path) -> Mapping[str, str]:
    devices = directory / "devices"
    create_device("0", 16 * GRANULARITY, devices)
    return {"FAILOVER_HOST_DEVICES": str(devices)}


def _prepare_emulated(directory: Path) -> Mapping[str, str]:
    return emulated_driver.environment(directory, capacity=16 * GRANULARITY)


@functools.cache
def _cuda_contents() -> Contents:
    return contents(devices()[0])


_CUDA = Maker(
    prepare=_prepare_emulated,
    open=lambda: CudaMemory(devices()[0]),
    missing=emulated_driver.why_not,
    peek=lambda address, size: _cuda_contents().peek(address, size),
    poke=lambda address, content: _cuda_contents().poke(address, content),
    tells_memory_apart=False,
)

MAKERS = {
    "host": Maker(prepare=_prepare_host, open=lambda: HostMemory("0")),
    "cuda on the emulated driver": _CUDA,
}
