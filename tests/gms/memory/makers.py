"""The makers that the conformance suite runs against. THE place to add one: a `Maker`, and its name in `MAKERS`.

Every test gets an empty directory of its own and works on one device with processes of its own (`remote.py`): the
test's process never opens a device itself. So a maker may need variables that have to be there when a process starts.
"""

import ctypes
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from gms.memory import Memory
from gms.memory.host import HostMemory
from gms.memory.host_device import GRANULARITY, create_device


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


def _prepare_host(directory: Path) -> Mapping[str, str]:
    devices = directory / "devices"
    create_device("0", 16 * GRANULARITY, devices)
    return {"FAILOVER_HOST_DEVICES": str(devices)}


MAKERS = {
    "host": Maker(prepare=_prepare_host, open=lambda: HostMemory("0")),
}
