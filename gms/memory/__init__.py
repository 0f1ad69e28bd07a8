"""Device memory: one small interface, two makers.

host   a device is a sparse file on tmpfs; the kernel's locks keep the books (`host.py`)
cuda   a GPU, through the driver's virtual memory management (`cuda.py`)

The life of a piece of memory is the same in both, and is the kernel's or the driver's business alone: it exists for as
long as anybody, in any process, has a handle, a descriptor or a mapping of it. A process's end gives back all three.

    server:   create -> export (a descriptor to keep and to hand on) -> release
    client:   import_ -> reserve an address -> map -> ... -> unmap -> free; the descriptor may be kept meanwhile

A wrong argument (a size that is no multiple of the granularity, a handle that was released, a mapping over another) is
a DeviceError in both, and changes nothing. Makers know nothing of GMS. Both pass the same tests (`tests/gms/memory/`).
"""

from typing import NewType, Protocol

Handle = NewType("Handle", int)
"""Names a piece of memory in this process."""


class DeviceError(Exception):
    """The driver, or the kernel, said no; the text says to what and why."""


class OutOfMemory(DeviceError):
    """The device has less than that free at the moment, or not in one piece where that matters (`largest`)."""

    def __init__(self, device: str, needed: int, free: int, *, largest: int | None = None) -> None:
        in_one_piece = "" if largest is None or free < needed else f", of which {largest} in one piece"
        super().__init__(f"{needed} bytes of {device} are needed, and {free} are free{in_one_piece}")
        self.needed = needed
        self.free = free


class Unusable(DeviceError):
    """The maker can't work here at all; the text says what is missing and how to get it."""


class Memory(Protocol):
    """One device, as one process sees it."""

    @property
    def device(self) -> str:
        """`host:NAME`, or a GPU's UUID."""
        ...

    @property
    def granularity(self) -> int:
        """Sizes, addresses and offsets are multiples of it."""
        ...

    def capacity(self) -> int: ...

    def free(self) -> int:
        """Bytes that nobody has, in whatever process."""
        ...

    def create(self, size: int) -> Handle:
        """New memory; it reads as zeros. Raises OutOfMemory."""
        ...

    def export(self, handle: Handle) -> int:
        """A descriptor of it, close-on-exec, for another process or to be kept. The caller closes it."""
        ...

    def import_(self, descriptor: int, size: int) -> Handle:
        """The memory behind a descriptor that came from elsewhere, which stays the caller's. Raises DeviceError if it
        is no such memory, or not of that size."""
        ...

    def release(self, handle: Handle) -> None:
        """This process's handle; mappings and descriptors live on."""
        ...

    def reserve(self, size: int) -> int:
        """An address at which nothing else will be mapped. Access faults until something is."""
        ...

    def map(self, address: int, handle: Handle, *, size: int, offset: int = 0, writable: bool) -> None:
        """At a reserved address, where nothing is mapped yet. Through a mapping that isn't writable, a write faults."""
        ...

    def unmap(self, address: int, size: int) -> None:
        """Exactly what one `map` put there, as the driver has it. The address stays reserved."""
        ...

    def free_address(self, address: int, size: int) -> None:
        """Exactly what one `reserve` gave, with nothing mapped in it."""
        ...

    def identity(self, descriptor: int) -> str:
        """What can be told of the memory behind a descriptor without mapping it; the same in every process, for as
        long as it lives. Compared when a descriptor comes back after a crash of GMS."""
        ...

    def held(self, identity: str) -> bool | None:
        """Does anybody, in any process, still have that memory? None: that can't be told here. False is certain; True
        may also be later memory in the same place."""
        ...

    def close(self) -> None:
        """Gives back all that this process has of the device through this object: mappings, addresses and handles, not
        the descriptors that it exported. May be called again; nothing else may be."""
        ...
