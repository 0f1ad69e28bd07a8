"""What is done after a commit, in a thread of the lowest priority: huge pages, and the sums of the slabs' contents.

The sums are CRC-32: they are to show bytes that changed by accident, in memory or on the way, and nothing here defends
against a program that means to deceive. It runs at 2 GiB/s where BLAKE2 runs at 0.8.

What this file may not do: touch a mapping that a program uses. It has mappings of its own, so that a reader may go to
sleep at any moment; and it holds on to its layout only until the next 16 MiB are done.
"""

import os
import threading
import time
import zlib
from collections.abc import Callable, Sequence

from gms.memory import DeviceError, Memory
from gms.shell.slabs import LayoutSlabs, SlabStore, buffer

CHECKSUM = "crc32:"
PIECE_BYTES = 16 << 20
_LOWEST_PRIORITY = 19


class Checksum:
    """The sum of a slab's contents, as they come."""

    def __init__(self) -> None:
        self._value = 0

    def add(self, data: memoryview) -> None:
        self._value = zlib.crc32(data, self._value)

    @property
    def text(self) -> str:
        return f"{CHECKSUM}{self._value:08x}"


class Background:
    def __init__(
        self, store: SlabStore, *, huge_pages: bool, checksums: bool, summed: Callable[[int, tuple[str, ...]], None]
    ) -> None:
        """`summed` is told, in that thread, the sums of a layout's slabs."""
        self._store = store
        self._huge_pages = huge_pages
        self._checksums = checksums
        self._summed = summed
        self._closed = False
        self._thread: threading.Thread | None = None

    def begin(self, slabs: LayoutSlabs, sizes: Sequence[int]) -> None:
        """Called by what uses that layout at the moment."""
        memory = self._store.memory
        if memory is None or not memory.device.startswith("host:") or not (self._huge_pages or self._checksums):
            return
        self._store.use_too(slabs)
        self._thread = threading.Thread(
            target=self._work, args=(memory, slabs, list(sizes)), name="gms-background", daemon=True
        )
        self._thread.start()

    def wait(self, timeout_s: float | None) -> bool:
        """Until it is through. False if that takes longer."""
        end = None if timeout_s is None else time.monotonic() + timeout_s
        thread = self._thread
        if thread is not None:
            thread.join(None if end is None else max(0.0, end - time.monotonic()))
        return thread is None or not thread.is_alive()

    def close(self) -> None:
        self._closed = True
        self.wait(None)

    def _work(self, memory: Memory, slabs: LayoutSlabs, sizes: Sequence[int]) -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        sums: list[str] = []
        try:
            for number, size in enumerate(sizes):
                if self._stopped(slabs):
                    return
                sums.append(self._slab(memory, slabs, number, size))
        except DeviceError:
            return  # no addresses left, say: there are no sums then, and no process is worse off
        finally:
            self._store.put_back(slabs)
        if self._checksums and all(sums):
            self._summed(slabs.generation, tuple(sums))

    def _slab(self, memory: Memory, slabs: LayoutSlabs, number: int, size: int) -> str:
        address = memory.reserve(size)
        try:
            memory.map(address, slabs.handles[number], size=size, writable=False)
            try:
                collapse = getattr(memory, "collapse", None)
                if self._huge_pages and collapse is not None:
                    for at in range(0, size, PIECE_BYTES):
                        if self._stopped(slabs):
                            return ""
                        collapse(address + at, min(PIECE_BYTES, size - at))
                return self._sum(slabs, buffer(address, size)) if self._checksums else ""
            finally:
                memory.unmap(address, size)
        finally:
            memory.free_address(address, size)

    def _sum(self, slabs: LayoutSlabs, data: memoryview) -> str:
        total = Checksum()
        for at in range(0, len(data), PIECE_BYTES):
            if self._stopped(slabs):
                return ""
            total.add(data[at : at + PIECE_BYTES])
        return total.text

    def _stopped(self, slabs: LayoutSlabs) -> bool:
        return self._closed or slabs.unwanted
