"""Writing and reading device memory through a mapping: plainly on the host, by the driver's copies on a GPU.

What this file may not do: map, or know what is written. The makers themselves never touch contents; a writer's own
framework does (torch), and here there is none.
"""

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple

from gms.memory import DeviceError


class Contents(NamedTuple):
    peek: Callable[[int, int], bytes]
    """Reads: address, size."""
    poke: Callable[[int, bytes], None]
    """Writes: address, content. On the host a write through a read-only mapping is a SIGSEGV; on a GPU an error."""


def contents(device: str) -> Contents:
    """For a device that this process has mapped something of."""
    return Contents(ctypes.string_at, _host_poke) if device.startswith("host:") else _gpu(device)


def _host_poke(address: int, content: bytes) -> None:
    ctypes.memmove(address, content, len(content))


def _gpu(device: str) -> Contents:
    from cuda.bindings import driver

    from gms.memory.cuda import devices

    def call(name: str, *arguments: object) -> Any:
        result, *given = getattr(driver, name)(*arguments)
        if result != driver.CUresult.CUDA_SUCCESS:
            raise DeviceError(f"{device}: {name} says {result.name}")
        return given[0] if given else None

    context = call("cuDevicePrimaryCtxRetain", devices().index(device))

    def peek(address: int, size: int) -> bytes:
        call("cuCtxSetCurrent", context)
        into = bytearray(size)
        call("cuMemcpyDtoH", into, address, size)
        return bytes(into)

    def poke(address: int, content: bytes) -> None:
        call("cuCtxSetCurrent", context)
        call("cuMemcpyHtoD", address, content, len(content))
        call("cuCtxSynchronize")

    return Contents(peek, poke)
