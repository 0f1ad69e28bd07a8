"""The KV cache: blocks of positions in device memory.

The memory is the engine's own (the specification's Decision 7, Option B): created on the device when the engine wakes,
given back when it sleeps. If another engine still has its own, there is none to be had, and the wake fails with
OutOfMemory.

What this file may not do: know who has which block (`kv_prefix.py`), or requests (`scheduler.py`).
"""

import ctypes
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from gms.memory import Handle, Memory
from reference_engine.model import Shape
from reference_engine.places import BLOCK, Floats, Indices, Places


def block_bytes(shape: Shape, heads: int) -> int:
    """Keys and values of a block's positions, in all layers, of so many heads."""
    return shape.layers * 2 * BLOCK * heads * shape.head_width * np.dtype(np.float32).itemsize


class Pages:
    """Where the cache lies: here in the process's own memory, for an engine without devices."""

    def __init__(self, size: int) -> None:
        self._wanted = size

    def allocate(self) -> NDArray[np.uint8]:
        return np.zeros(self._wanted, np.uint8)

    def free(self) -> None: ...


class DevicePages(Pages):
    """Device memory, always at the same address."""

    def __init__(self, memory: Memory, size: int) -> None:
        super().__init__(size)
        self._memory = memory
        self._size = -(-size // memory.granularity) * memory.granularity
        self._address = memory.reserve(self._size)
        self._handle: Handle | None = None
        self._mapped = False

    @property
    def size(self) -> int:
        return self._size

    @property
    def needs(self) -> int:
        """Bytes of the device that must be free for `allocate`."""
        return self._size

    def allocate(self) -> NDArray[np.uint8]:
        """Raises OutOfMemory."""
        handle = self._memory.create(self._size)
        try:
            pages = self.map(handle)
        except BaseException:
            self._memory.release(handle)
            raise
        self._handle = handle
        return pages

    def map(self, handle: Handle) -> NDArray[np.uint8]:
        self._memory.map(self._address, handle, size=self._size, writable=True)
        self._mapped = True
        memory = (ctypes.c_uint8 * self._wanted).from_address(self._address)
        return np.ndarray((self._wanted,), np.uint8, memoryview(memory).cast("B"))

    def free(self) -> None:
        handle, self._handle = self._handle, None
        self.unmap()
        if handle is not None:
            self._memory.release(handle)

    def unmap(self) -> None:
        if self._mapped:
            self._mapped = False
            self._memory.unmap(self._address, self._size)


class NoCache(Exception):
    """The engine is asleep: it has no cache."""


class KvCache:
    """Keys and values of some of the heads."""

    def __init__(self, shape: Shape, heads: int, blocks: int, pages: Pages) -> None:
        self._pages = pages
        # All of a block lies together: the first request after a wake touches few pages for the first time.
        self._form = (blocks, shape.layers, 2, BLOCK, heads * shape.head_width)
        self._pool: Floats | None = None

    @property
    def there(self) -> bool:
        return self._pool is not None

    def allocate(self) -> None:
        """Raises OutOfMemory."""
        if self._pool is None:
            self._pool = self._pages.allocate().view(np.float32).reshape(self._form)

    def free(self) -> None:
        self._pool = None  # nothing else points there: what `read` gives are copies
        self._pages.free()

    def write(self, layer: int, places: Places, keys: Floats, values: Floats) -> None:
        """As (position, head, width)."""
        pool = self._there()
        pool[places.blocks, layer, 0, places.offsets] = keys.reshape(len(keys), -1)
        pool[places.blocks, layer, 1, places.offsets] = values.reshape(len(values), -1)

    def read(self, layer: int, table: Indices) -> tuple[Floats, Floats]:
        """Keys and values of these blocks, as (request, block, position, head and width)."""
        pool = self._there()
        return pool[table, layer, 0], pool[table, layer, 1]

    def copy(self, blocks: Sequence[int]) -> Floats:
        """All that these blocks hold."""
        return self._there()[list(blocks)]

    def put(self, blocks: Sequence[int], held: Floats) -> None:
        self._there()[list(blocks)] = held

    def _there(self) -> Floats:
        if self._pool is None:
            raise NoCache("the engine is asleep: it has no KV cache")
        return self._pool
