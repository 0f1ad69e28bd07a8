"""What else a descriptor of the simulated kernel can name: a connection, a listener, a pidfd, a piece of device memory.

Each says when it is readable and what is released with its last reference; the counting is in files.py (`OpenFile`).
No process is started or killed here and no time passes: that is kernel.py.
"""

from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from tests.sim.files import OpenFile

if TYPE_CHECKING:
    from tests.sim.process import Process


class Received(NamedTuple):
    message: Any
    descriptors: tuple[int, ...]


class InFlight(NamedTuple):
    message: Any
    passed: tuple[OpenFile, ...]


class Connection(OpenFile):
    """One end of a Unix stream. The other end reads what was sent before it reads the end of file."""

    __slots__ = ("ended", "maker", "peer", "queue")

    def __init__(self, maker: "Process") -> None:
        super().__init__()
        self.maker = maker  # who connected, or who listened: what SO_PEERPIDFD on the other end names, for ever
        self.peer: Connection = self
        self.queue: deque[InFlight] = deque()
        self.ended = False  # the last descriptor of the other end is gone

    def readable(self) -> bool:
        return self.ended or bool(self.queue)

    def release(self) -> None:
        while self.queue:
            for passed in self.queue.popleft().passed:
                passed.drop()
        self.peer.ended = True
        self.peer.wake()


class Listener(OpenFile):
    """A socket that listens: under a path, or under an abstract name, which is free again when it is released."""

    __slots__ = ("backlog", "forget", "maker")

    def __init__(self, maker: "Process", forget: Callable[[], None]) -> None:
        super().__init__()
        self.maker = maker
        self.forget = forget
        self.backlog: deque[Connection] = deque()

    def readable(self) -> bool:
        return bool(self.backlog)

    def release(self) -> None:
        """A connection that was not accepted yet reads end of file. A path stays, and refuses."""
        self.forget()
        while self.backlog:
            self.backlog.popleft().drop()


class Pidfd(OpenFile):
    """Readable only when the whole process is gone: every thread, its files and its address space."""

    __slots__ = ("process",)

    def __init__(self, process: "Process") -> None:
        super().__init__()
        self.process = process
        process.pidfds.append(self)

    def readable(self) -> bool:
        return self.process.gone

    def release(self) -> None:
        self.process.pidfds.remove(self)


class Device:
    """Memory of one device, and what another process holds of it."""

    __slots__ = ("allocations", "capacity", "foreign_bytes", "name", "reader_works", "used_bytes")

    def __init__(self, name: str, capacity: int) -> None:
        self.name = name
        self.capacity = capacity
        self.used_bytes = 0
        self.foreign_bytes = 0
        self.reader_works = True
        self.allocations: dict[Allocation, None] = {}

    @property
    def free_bytes(self) -> int:
        """The truth, for invariants. What a process may ask is Kernel.read_free_bytes."""
        return max(0, self.capacity - self.used_bytes - self.foreign_bytes)


class Allocation(OpenFile):
    """Device memory, free again when the last descriptor and the last mapping of it are gone, in whatever process."""

    __slots__ = ("device", "maker", "size")

    def __init__(self, device: Device, size: int, maker: "Process") -> None:
        super().__init__()
        self.device = device
        self.size = size
        self.maker = maker
        device.used_bytes += size
        device.allocations[self] = None

    def release(self) -> None:
        del self.device.allocations[self]
        self.device.used_bytes -= self.size


class Mapping(NamedTuple):
    file: OpenFile
    dont_fork: bool


class AddressSpace:
    """What is mapped, shared by every process that was cloned with CLONE_VM."""

    __slots__ = ("last_mapping", "mappings", "users")

    def __init__(self) -> None:
        self.users = 1
        self.last_mapping = 0
        self.mappings: dict[int, Mapping] = {}

    def map(self, file: OpenFile, *, dont_fork: bool) -> int:
        file.hold()
        self.last_mapping += 1
        self.mappings[self.last_mapping] = Mapping(file, dont_fork)
        return self.last_mapping

    def unmap(self, mapping: int) -> None:
        self.mappings.pop(mapping).file.drop()

    def forked(self) -> "AddressSpace":
        """The child's mappings keep the parent's numbers, as addresses do."""
        copy = AddressSpace()
        copy.last_mapping = self.last_mapping
        for number, mapping in self.mappings.items():
            if not mapping.dont_fork:
                mapping.file.hold()
                copy.mappings[number] = mapping
        return copy

    def leave(self) -> None:
        self.users -= 1
        if self.users == 0:
            while self.mappings:
                self.mappings.popitem()[1].file.drop()
