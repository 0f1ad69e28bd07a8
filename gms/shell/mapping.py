"""Where slabs are in this process: addresses that stay, and what is mapped at them.

A reader's addresses stay while it sleeps, and so do views and whatever was built on them; touching one meanwhile ends
the process with SIGSEGV.

What this file may not do: know layouts, or the server. Who uses it: `reader.py`, `writer.py`, `background.py`.
"""

import ctypes

from gms.memory import Memory
from gms.shell.layout_slabs import LayoutSlabs


class Addresses:
    """Where a layout's slabs are, mapped or not."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.slabs: list[tuple[int, int]] = []
        """Address and size of each."""
        self._mapped = 0
        """How many of them, from the first on."""

    def reserve(self, size: int) -> None:
        self.slabs.append((self.memory.reserve(size), size))

    def map(self, slabs: LayoutSlabs, *, writable: bool) -> None:
        """Every slab that isn't mapped yet."""
        handles, place = slabs.handles, self.memory.map
        while self._mapped < len(self.slabs):
            address, size = self.slabs[self._mapped]
            place(address, handles[self._mapped], size=size, writable=writable)
            self._mapped += 1

    def unmap(self) -> None:
        while self._mapped:
            self.memory.unmap(*self.slabs[self._mapped - 1])
            self._mapped -= 1

    def free(self) -> None:
        self.unmap()
        while self.slabs:
            self.memory.free_address(*self.slabs[-1])
            self.slabs.pop()


def buffer(address: int, size: int) -> memoryview:
    """Memory that the processor can touch, as bytes."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")
