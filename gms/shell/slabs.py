"""The slabs of layouts, or of a pool, that this process has: their descriptors, what was imported from them, and where
they are mapped.

A layout is let go of when nothing here uses it any more: no reader has it mapped, no thread sums it up. Until then "let
go" is only remembered, because a reader would crash. Addresses stay while their reader sleeps, and so do views and
whatever was built on them; touching one meanwhile ends the process with SIGSEGV.

What this file may not do: know layouts or the server, or decide what is kept (`client_machine.py`).
"""

import ctypes
from collections.abc import Callable, Sequence

from gms.memory import DeviceError, Handle, Memory
from sidecar.wire.frames import close_all


class LayoutSlabs:
    """Those of one layout."""

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.descriptors: list[int] = []
        self.handles: list[Handle] = []
        """The first slabs', as many as were imported."""
        self.uses: list[int] = []
        """An entry for each."""
        self.unwanted = False

    def import_all(self, memory: Memory, sizes: Sequence[int]) -> None:
        """All of them or an error: no reader maps a layout of which a part can't be had. They stay imported, so that a
        wake need not do it again.
        """
        if len(self.descriptors) != len(sizes):
            raise DeviceError(f"layout {self.generation} has {len(sizes)} slabs, and {len(self.descriptors)} came")
        for number in range(len(self.handles), len(sizes)):
            self.handles.append(memory.import_(self.descriptors[number], sizes[number]))


class SlabStore:
    """All layouts of which this process has slabs: as a rule one, and another while one replaces the other.

    What is closed is closed in the client's thread, which is also the only one that says the descriptors' numbers. No
    lock: a signal handler, or a forked child, would wait for it in vain.
    """

    def __init__(self, unused: Callable[[LayoutSlabs], None]) -> None:
        """`unused` is called, in whatever thread, once nothing uses a layout that was let go of: it may be dropped."""
        self._unused = unused
        self._layouts: dict[int, LayoutSlabs] = {}
        self.memory: Memory | None = None

    def keep(self, generation: int, first: int, descriptors: Sequence[int]) -> None:
        """They belong to the store from now on."""
        slabs = self._layouts.setdefault(generation, LayoutSlabs(generation))
        if first == len(slabs.descriptors):
            slabs.descriptors += descriptors
        else:
            close_all(descriptors)

    def descriptors(self, generation: int, first: int, count: int) -> list[int]:
        slabs = self._layouts.get(generation)
        return slabs.descriptors[first : first + count] if slabs is not None else []

    @property
    def generations(self) -> tuple[int, ...]:
        """Those of which it has descriptors."""
        return tuple(generation for generation, slabs in list(self._layouts.items()) if slabs.descriptors)

    def use(self, generation: int) -> LayoutSlabs:
        """Nothing of it goes until it is put back."""
        slabs = self._layouts.setdefault(generation, LayoutSlabs(generation))
        slabs.uses.append(generation)
        return slabs

    def use_too(self, slabs: LayoutSlabs) -> None:
        """By one more, while it is used."""
        slabs.uses.append(slabs.generation)

    def put_back(self, slabs: LayoutSlabs) -> None:
        slabs.uses.pop()
        if slabs.unwanted and not slabs.uses:
            self._unused(slabs)

    def let_go(self, generation: int) -> bool:
        """False: it is still used, and is dropped later."""
        slabs = self._layouts.get(generation)
        if slabs is None:
            return True
        slabs.unwanted = True
        return self.drop(slabs)

    def drop(self, slabs: LayoutSlabs) -> bool:
        """False: it is used again, or was dropped before."""
        if slabs.uses or self._layouts.get(slabs.generation) is not slabs:
            return False
        self._drop(slabs)
        return True

    def close(self) -> None:
        for slabs in list(self._layouts.values()):
            self._drop(slabs)

    def _drop(self, slabs: LayoutSlabs) -> None:
        self._layouts.pop(slabs.generation, None)
        handles, slabs.handles = slabs.handles, []
        if self.memory is not None:
            for handle in handles:
                self.memory.release(handle)
        close_all(slabs.descriptors)


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
