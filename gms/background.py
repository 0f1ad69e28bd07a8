"""What is done behind a commit, in a thread of low priority: huge pages, and the sums of the slabs' contents.

The sums are CRC-32: they are to show bytes that changed by accident, in memory or on the way, and nothing here defends
against somebody who means to deceive. It runs at 2 GiB/s where BLAKE2 runs at 0.8 (docs/measurements.md).

What this file may not do: touch a mapping that a program uses. It has mappings of its own, so that a reader may go to
sleep at any moment; and it holds on to its layout only until the next 16 MiB are done.
"""

import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from gms.layout_slabs import Held, Shelf
from gms.mapping import buffer
from gms.memory import DeviceError, Memory

CHECKSUM = "crc32:"
PIECE_BYTES = 16 << 20
_LOWEST_PRIORITY = 19


class Checksum:
    """Of a slab's contents, as they come."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: memoryview) -> None:
        self._value = zlib.crc32(data, self._value)

    @property
    def text(self) -> str:
        return f"{CHECKSUM}{self._value:08x}"


class Behind:
    def __init__(
        self, shelf: Shelf, *, huge_pages: bool, checksums: bool, summed: Callable[[int, tuple[str, ...]], None]
    ) -> None:
        self._shelf = shelf
        self._huge_pages = huge_pages
        self._checksums = checksums
        self._summed = summed
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self, held: Held, sizes: Sequence[int]) -> None:
        """By who uses that layout at the moment."""
        memory = self._shelf.memory
        if memory is None or not memory.device.startswith("host:") or not (self._huge_pages or self._checksums):
            return
        self._shelf.use_too(held)
        self._thread = threading.Thread(
            target=self._work, args=(memory, held, list(sizes)), name="gms-behind", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        end = None if timeout_s is None else time.monotonic() + timeout_s
        thread = self._thread
        if thread is not None:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        self._closed = True
        self.wait(None)

    def _work(self, memory: Memory, held: Held, sizes: Sequence[int]) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        sums: list[str] = []
        try:
            for number, size in enumerate(sizes):
                if self._stopped(held):
                    return
                sums.append(self._slab(memory, held, number, size))
        except DeviceError:
            return  # no addresses left, say: there are no sums then, and nobody is worse off
        finally:
            self._shelf.put_back(held)
        if self._checksums and all(sums):
            self._summed(held.generation, tuple(sums))

    def _slab(self, memory: Memory, held: Held, number: int, size: int) -> str:
        address = memory.reserve(size)
        try:
            memory.map(address, held.handles[number], size=size, writable=False)
            try:
                collapse = getattr(memory, "collapse", None)
                if self._huge_pages and collapse is not None:
                    for at in range(0, size, PIECE_BYTES):
                        if self._stopped(held):
                            return ""
                        collapse(address + at, min(PIECE_BYTES, size - at))
                return self._sum(held, buffer(address, size)) if self._checksums else ""
            finally:
                memory.unmap(address, size)
        finally:
            memory.free_address(address, size)

    def _sum(self, held: Held, data: memoryview) -> str:
        total = Checksum()
        for at in range(0, len(data), PIECE_BYTES):
            if self._stopped(held):
                return ""
            total.add(data[at : at + PIECE_BYTES])
        return total.text

    def _stopped(self, held: Held) -> bool:
        return self._closed or held.unwanted
