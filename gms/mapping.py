"""What a program has of the weights: a `Writer` that fills new slabs, a `Reader` that reads a layout's.

Addresses belong to these two, descriptors to the connection's shelf (`held.py`). A reader's addresses stay while it
sleeps, and so do views and whatever was built on them; touching one meanwhile ends the process with SIGSEGV.

What this file may not do: speak to the server. It asks the client (`client.py`).
"""

import ctypes
from collections.abc import Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from gms import layout as lay
from gms.errors import Asleep, Lost
from gms.layout_slabs import Held
from gms.memory import Memory

if TYPE_CHECKING:
    from gms.client import GmsClient

_NUMPY_TYPES = {
    "bfloat16": "uint16",
    "float8_e4m3fn": "uint8",
    "float8_e5m2": "uint8",
    "float8_e4m3fnuz": "uint8",
    "float8_e5m2fnuz": "uint8",
    "float8_e8m0fnu": "uint8",
}
"""Types that numpy hasn't: their bits."""


class Addresses:
    """Where the slabs are in this process, mapped or not."""

    def __init__(self, memory: Memory) -> None:
        self.memory = memory
        self.slabs: list[tuple[int, int]] = []
        """Address and size of each."""
        self._mapped = 0
        """How many of them, from the first on."""

    def reserve(self, size: int) -> None:
        self.slabs.append((self.memory.reserve(size), size))

    def map(self, held: Held, *, writable: bool) -> None:
        """Every slab that isn't mapped yet."""
        handles, place = held.handles, self.memory.map
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
            self.memory.free_address(*self.slabs.pop())


def buffer(address: int, size: int) -> memoryview:
    """Memory that the processor can touch, as bytes."""
    return memoryview((ctypes.c_ubyte * size).from_address(address)).cast("B")


class Writer:
    """New slabs, until `commit`. Left without one, it has written nothing."""

    def __init__(self, client: "GmsClient", memory: Memory, held: Held) -> None:
        self.device = memory.device
        self.granularity = memory.granularity
        self.generation = held.generation
        """The number that the layout will have."""
        self.lost = ""
        """Why its work is gone, once it is."""
        self._client = client
        self._held = held
        self._addresses = Addresses(memory)
        self._keeps_mapped = False
        self._open = True

    @property
    def sizes(self) -> list[int]:
        """Of the slabs so far. They are multiples of the granularity."""
        return [size for _, size in self._addresses.slabs]

    def create(self, size: int) -> int:
        """One more slab, mapped writable; it reads as zeros. Its number. Waits, for a bounded time, while the device is
        full.
        """
        self._must_not_be_lost()
        made = self._client.make(size)
        self._addresses.reserve(made.size)
        self._held.import_all(self._addresses.memory, self.sizes)
        self._addresses.map(self._held, writable=True)
        return made.slab

    def address(self, slab: int) -> int:
        return self._addresses.slabs[slab][0]

    def memory(self, slab: int) -> memoryview:
        """A slab's bytes, on host memory."""
        return buffer(*self._addresses.slabs[slab])

    def keep_mapped(self) -> None:
        """If this fails from here on, what is written stays mapped until the process ends: somebody has views of it
        who can't be told.
        """
        self._keeps_mapped = True

    def commit(self, layout: lay.Layout, timeout_s: float | None = None) -> "Reader":
        """The layout is there for everybody, for as long as anybody wants it; and this process reads it from now on, at
        the same addresses. If it is refused, this is still a writer.
        """
        self._must_not_be_lost()
        document = lay.encode(layout)
        done = self._client.publish(document, tuple(self.sizes), timeout_s)
        self._open = False
        reader = Reader(self._client, done.generation, done.hash, document, self._addresses)
        self._client.reads_now(reader)
        self._addresses.unmap()
        reader.take(self._held, ())
        self._client.behind(self._held, self.sizes)
        return reader

    def _must_not_be_lost(self) -> None:
        if self.lost:
            raise Lost(self.lost)

    def abort(self) -> None:
        if self._open:
            self._open = False
            if not self._keeps_mapped:
                self._addresses.free()
            self._client.release(self, None if self._keeps_mapped else self._held)

    def __enter__(self) -> "Writer":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.abort()


class Reader:
    """A committed layout, mapped read-only."""

    def __init__(
        self,
        client: "GmsClient",
        generation: int,
        hash: str,
        document: bytes,
        addresses: Addresses,
    ) -> None:
        self.device = addresses.memory.device
        self.generation = generation
        self.hash = hash
        self.document = document
        self.sums: list[str] = []
        """Of the slabs' contents, as far as they were known when it was mapped."""
        self.lost = ""
        """Why this layout is no more, once it isn't. It can still be read until it is given up."""
        self._client = client
        self._held: Held | None = None
        """None: asleep."""
        self._addresses = addresses
        self._layout: lay.Layout | None = None
        self._views: dict[str, tuple[Any, ...]] = {}
        self._array: Any = None
        self._closed = False

    @property
    def awake(self) -> bool:
        return self._held is not None

    @property
    def fits(self) -> bool:
        """Is what the server has now, as far as is known, laid out in the same way? Then it can wake."""
        return self._client.hash == self.hash

    @property
    def layout(self) -> lay.Layout:
        """What lies where. Read from its document when it is first asked for."""
        if self._layout is None:
            self._layout = lay.decode(self.document)
        return self._layout

    @property
    def sizes(self) -> list[int]:
        return [size for _, size in self._addresses.slabs]

    def address(self, slab: int) -> int:
        """The same for as long as this reader is not closed, asleep or awake."""
        return self._addresses.slabs[slab][0]

    def memory(self, slab: int) -> memoryview:
        """A slab's bytes, on host memory."""
        self._must_be_awake()
        return buffer(*self._addresses.slabs[slab]).toreadonly()

    def view(self, name: str) -> Any:
        """A tensor as a numpy array that can't be written, on host memory. Types that numpy hasn't (bfloat16, the
        eight-bit floats) come as their bits, in uint16 and uint8.
        """
        if self._held is None or self._array is None:
            self._must_be_awake()
            self._prepare_views()
        return self._array(*self._views[name])

    def sleep(self) -> None:
        """Unmaps everything; addresses and descriptors stay. From now on this process is no reader."""
        held, self._held = self._held, None
        if held is not None:
            self._addresses.unmap()
            self._client.slept(held)

    def wake(self, timeout_s: float) -> None:
        """Maps everything at the same addresses. Raises StaleLayout when the weights are laid out in another way by
        now, and NotInTime; asleep it stays then.
        """
        if self._closed:
            raise Asleep("this reader is closed; read() gives a new one")
        if self._held is None:
            granted = self._client.wake(self, timeout_s)
            self.take(granted.held, granted.kept.sums if granted.kept is not None else ())

    def close(self) -> None:
        """Gives everything up: addresses, and the descriptors if this was the last that this process did with them."""
        if not self._closed:
            self._closed = True
            self._views, self._array = {}, None
            held, self._held = self._held, None
            self._addresses.free()
            self._client.release(self, held)

    def __enter__(self) -> "Reader":
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def take(self, held: Held, sums: Sequence[str]) -> None:
        """Maps what was granted: imports all before it maps any. Asleep it stays if that fails."""
        try:
            held.import_all(self._addresses.memory, self.sizes)
            self._addresses.map(held, writable=False)
        except BaseException:
            self._addresses.unmap()
            self._client.slept(held)
            raise
        self._held, self.generation, self.sums = held, held.generation, list(sums)

    def _must_be_awake(self) -> None:
        if self._held is None:
            raise Asleep("nothing is mapped: wake() first" if not self._closed else "this reader is closed")

    def _prepare_views(self) -> None:
        """What numpy has to be told of each tensor, so that a view takes no more than a microsecond."""
        import numpy

        slabs = [buffer(*slab).toreadonly() for slab in self._addresses.slabs]
        for tensor in self.layout.tensors:
            dtype = numpy.dtype(_NUMPY_TYPES.get(tensor.dtype, tensor.dtype))
            strides = tuple(step * dtype.itemsize for step in tensor.stride)
            offset = 0 if 0 in tensor.shape else tensor.offset
            self._views[tensor.name] = (tensor.shape, dtype, slabs[tensor.slab], offset, strides)
        self._array = numpy.ndarray
