"""Device memory: one small interface, two makers.

host   a device is a sparse file on tmpfs; the kernel's locks keep the books (`host.py`)
cuda   a GPU, through the driver's virtual memory management (`cuda.py`)

The life of a piece of memory is the same in both, and is the kernel's or the driver's business alone: it exists for as
long as any process has a handle, a descriptor or a mapping of it. A process's end gives back all three.

    server:   create -> export (a descriptor to keep and to hand on) -> release
    client:   import_ -> reserve an address -> map -> ... -> unmap -> free; the descriptor may be kept meanwhile

A wrong argument (a size that is no multiple of the granularity, a handle that was released, a mapping over another) is
a DeviceError in both, and changes nothing. Makers know nothing of GMS. Both pass the same tests (`tests/gms/memory/`).

What a process has of a device, and what is refused in which words, is kept in `Memory`. A maker derives from it, and
says with the methods at its end how each thing is done; they raise DeviceError.
"""

import bisect
import itertools
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Any, NewType

Handle = NewType("Handle", int)
"""Names a piece of memory in this process."""


class DeviceError(Exception):
    """The driver, or the kernel, said no; the text says to what and why."""


class OutOfMemory(DeviceError):
    """The device has less than that free at the moment."""

    def __init__(self, device: str, needed: int, free: int) -> None:
        super().__init__(f"{needed} bytes of {device} are needed, and {free} are free")
        self.needed = needed
        self.free = free


class Unusable(DeviceError):
    """The maker can't work here at all; the text says what is missing and how to get it."""


class Spans:
    """Spans of addresses that don't overlap. A wake maps hundreds of slabs in a millisecond: no search may be long."""

    def __init__(self) -> None:
        self._starts: list[int] = []
        self._sizes: dict[int, int] = {}

    def add(self, start: int, size: int) -> None:
        self._sizes[start] = size
        bisect.insort(self._starts, start)

    def remove(self, start: int) -> None:
        self._starts.remove(start)
        del self._sizes[start]

    def has(self, start: int, size: int) -> bool:
        return self._sizes.get(start) == size

    def covers(self, start: int, size: int) -> bool:
        at = bisect.bisect_right(self._starts, start) - 1
        return at >= 0 and start + size <= self._starts[at] + self._sizes[self._starts[at]]

    def touches(self, start: int, size: int) -> bool:
        at = bisect.bisect_left(self._starts, start + size) - 1
        return at >= 0 and self._starts[at] + self._sizes[self._starts[at]] > start

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return iter([(start, self._sizes[start]) for start in self._starts])


class Memory(ABC):
    """One device, as one process sees it. Threads may use it together, as long as no two of them are busy with the same
    address or handle."""

    device: str
    """`host:NAME`, or a GPU's UUID."""
    granularity: int
    """Sizes, addresses and offsets are multiples of it."""

    def __init__(self) -> None:
        self._allocations: dict[Handle, Any] = {}
        """The maker's own; each has a `size`."""
        self._handles = itertools.count(1)
        self._reserved = Spans()
        self._mapped = Spans()

    def release(self, handle: Handle) -> None:
        """This process's handle; mappings and descriptors live on."""
        allocation = self._allocation(handle)
        del self._allocations[handle]  # what a signal handler raises here may lose it: nothing is closed twice
        try:
            self._release(allocation)
        except DeviceError:
            self._allocations[handle] = allocation
            raise

    def reserve(self, size: int) -> int:
        """An address at which nothing else will be mapped. Access faults until something is."""
        self._check_multiple("the size", size)
        address = self._reserve(size)
        self._reserved.add(address, size)
        return address

    def map(self, address: int, handle: Handle, *, size: int, offset: int = 0, writable: bool) -> None:
        """At a reserved address, where nothing is mapped yet. Through a mapping that isn't writable, a write faults."""
        allocation = self._allocation(handle)
        self._check_multiple("the size", size)
        self._check_multiple("the address", address)
        self._check_multiple("the offset", offset, least=0)
        if offset + size > allocation.size:
            raise DeviceError(
                f"{size} bytes from {offset} on can't be mapped: the memory has only {allocation.size} bytes"
            )
        if not self._reserved.covers(address, size):
            raise DeviceError(f"{size} bytes at {address:#x} aren't within one reservation of {self.device}")
        if self._mapped.touches(address, size):
            raise DeviceError(f"something is mapped already within the {size} bytes at {address:#x}")
        self._map(address, allocation, size, offset, writable=writable)
        self._mapped.add(address, size)

    def unmap(self, address: int, size: int) -> None:
        """Exactly what one `map` put there, as the driver has it. The address stays reserved."""
        if not self._mapped.has(address, size):
            raise DeviceError(f"there is no mapping of exactly {size} bytes at {address:#x}")
        self._unmap(address, size)
        self._mapped.remove(address)

    def free_address(self, address: int, size: int) -> None:
        """Exactly what one `reserve` gave, with nothing mapped in it."""
        if not self._reserved.has(address, size):
            raise DeviceError(f"there is no reservation of exactly {size} bytes at {address:#x}")
        if self._mapped.touches(address, size):
            raise DeviceError(f"something is still mapped within the {size} bytes at {address:#x}")
        self._reserved.remove(address)  # first: once it is free, another thread may be given it
        try:
            self._free_address(address, size)
        except DeviceError:
            self._reserved.add(address, size)
            raise

    def close(self) -> None:
        """Gives back all that this process has of the device through this object: mappings, addresses and handles, not
        the descriptors that it exported. May be called again; nothing else may be."""
        for address, size in self._mapped:
            self.unmap(address, size)
        for address, size in self._reserved:
            self.free_address(address, size)
        for handle in list(self._allocations):
            self.release(handle)

    def _add(self, allocation: Any) -> Handle:
        handle = Handle(next(self._handles))
        self._allocations[handle] = allocation
        return handle

    def _allocation(self, handle: Handle) -> Any:
        try:
            return self._allocations[handle]
        except KeyError:
            raise DeviceError(f"{self.device} has no handle {handle}; it may have been released") from None

    def _check_multiple(self, what: str, number: int, *, least: int | None = None) -> None:
        least = self.granularity if least is None else least
        if number < least or number % self.granularity:
            raise DeviceError(
                f"{what} has to be a multiple of {self.granularity} on {self.device}, at least {least}; it is {number}"
            )

    # -- how the maker does it -------------------------------------------------------------------------------------

    @abstractmethod
    def capacity(self) -> int: ...

    @abstractmethod
    def free(self) -> int:
        """Bytes that no process has."""

    @abstractmethod
    def create(self, size: int) -> Handle:
        """New memory; it reads as zeros. Raises OutOfMemory."""

    @abstractmethod
    def export(self, handle: Handle) -> int:
        """A descriptor of it, close-on-exec, for another process or to be kept. The caller closes it."""

    @abstractmethod
    def import_(self, descriptor: int, size: int) -> Handle:
        """The memory behind a descriptor that came from elsewhere, which stays the caller's. Raises DeviceError if it
        is no such memory, or not of that size."""

    @abstractmethod
    def identity(self, descriptor: int) -> str:
        """What can be told of the memory behind a descriptor without mapping it; the same in every process, for as
        long as it lives. Compared when a descriptor comes back after a crash of GMS."""

    @abstractmethod
    def held(self, identity: str) -> bool | None:
        """Does any process still have that memory? None: that can't be told here. False is certain; True may also be
        later memory in the same place."""

    @abstractmethod
    def _release(self, allocation: Any) -> None: ...

    @abstractmethod
    def _reserve(self, size: int) -> int: ...

    @abstractmethod
    def _map(self, address: int, allocation: Any, size: int, offset: int, *, writable: bool) -> None: ...

    @abstractmethod
    def _unmap(self, address: int, size: int) -> None: ...

    @abstractmethod
    def _free_address(self, address: int, size: int) -> None: ...
