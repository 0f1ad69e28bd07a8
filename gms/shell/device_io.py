"""Between files and device memory that is mapped in this process.

On host memory the kernel reads straight into the mapping, and files are written straight from it. A GPU's memory goes
through a buffer and the driver's copies.

What this file may not do: know layouts, or the server. Who needs it: `transfer.py`.
"""

import os
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from gms.shell.mapping import buffer

PIECE_BYTES = 16 << 20


class CutShort(Exception):
    """The file ends before it should."""


class DeviceIO(Protocol):
    def fill(self, address: int, size: int, descriptor: int, position: int, copied: Callable[[int], None]) -> None:
        """From a file. Says how much was copied each time some was. Raises CutShort and OSError."""
        ...

    def pieces(self, address: int, size: int) -> Iterator[memoryview]:
        """The contents, from the first byte on. A piece is good until the next one is asked for."""
        ...

    def close(self) -> None: ...


def device_io(device: str) -> DeviceIO:
    return HostIO() if device.startswith("host:") else CudaIO(device)


class HostIO:
    def fill(self, address: int, size: int, descriptor: int, position: int, copied: Callable[[int], None]) -> None:
        _read(buffer(address, size), descriptor, position, copied)

    def pieces(self, address: int, size: int) -> Iterator[memoryview]:
        for at in range(0, size, PIECE_BYTES):
            yield buffer(address + at, min(PIECE_BYTES, size - at)).toreadonly()

    def close(self) -> None:
        pass


class CudaIO:
    """The primary context of the GPU, which torch uses too, is current only during a copy."""

    def __init__(self, device: str) -> None:
        from gms.memory.cuda import Driver

        self._driver, self._device = Driver(), device
        self._ordinal = self._driver.ordinal(device)
        self._context = self._call("cuDevicePrimaryCtxRetain", self._ordinal)
        self._bounce = bytearray(PIECE_BYTES)

    def fill(self, address: int, size: int, descriptor: int, position: int, copied: Callable[[int], None]) -> None:
        for at in range(0, size, PIECE_BYTES):
            piece = memoryview(self._bounce)[: min(PIECE_BYTES, size - at)]
            _read(piece, descriptor, position + at, lambda _: None)
            self._copy("cuMemcpyHtoD", address + at, piece, len(piece))
            copied(len(piece))

    def pieces(self, address: int, size: int) -> Iterator[memoryview]:
        for at in range(0, size, PIECE_BYTES):
            piece = memoryview(self._bounce)[: min(PIECE_BYTES, size - at)]
            self._copy("cuMemcpyDtoH", piece, address + at, len(piece))
            yield piece.toreadonly()

    def close(self) -> None:
        self._call("cuDevicePrimaryCtxRelease", self._ordinal)

    def _copy(self, name: str, *arguments: object) -> None:
        self._call("cuCtxPushCurrent", self._context)
        try:
            self._call(name, *arguments)
        finally:
            self._call("cuCtxPopCurrent")

    def _call(self, name: str, *arguments: object) -> Any:
        return self._driver.call(name, *arguments, about=f"{self._device}: its memory can't be copied")


def _read(target: memoryview, descriptor: int, position: int, copied: Callable[[int], None]) -> None:
    done = 0
    while done < len(target):
        got = os.preadv(descriptor, [target[done : done + PIECE_BYTES]], position + done)
        if got == 0:
            raise CutShort(f"it ends at byte {position + done}, where there was more a moment ago")
        done += got
        copied(got)
