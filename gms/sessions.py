"""What the machine knows of its clients and of the layouts: plain data, and nothing that decides."""

from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gms import messages as m


class Doing(Enum):
    WATCHING = "watching"
    ASLEEP = "asleep"
    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"


class HeldSlab(NamedTuple):
    """A slab of which this server has the descriptor."""

    handle: int
    identity: str
    size: int


@dataclass
class Wish:
    """An `Open` that waits."""

    open: m.Open
    number: int
    """Its place in the queue."""
    until: float


@dataclass
class Returning:
    """What a client has handed back so far; it isn't the layout before it is whole."""

    count: int = 0
    """How many slabs have come."""
    slabs: list[HeldSlab] = field(default_factory=list)
    """Those of them that were kept."""
    document: bytes = b""
    why_not: str = ""
    """It won't do; said once all of it has come."""


@dataclass
class Client:
    conn: int
    engine_id: str
    pid: int
    process: int | None
    since: float
    doing: Doing = Doing.WATCHING
    wish: Wish | None = None
    returning: Returning | None = None
    holds: set[int] = field(default_factory=set)
    """Layouts of which it has descriptors."""
    asked: dict[int, float] = field(default_factory=dict)
    """Of these it was asked to drop them, and when."""

    def __str__(self) -> str:
        return f"{self.engine_id} (pid {self.pid})"


@dataclass
class Committed:
    generation: int
    hash: str
    document: bytes
    tensors: int
    slabs: list[HeldSlab]
    sums: list[str] = field(default_factory=list)

    @property
    def size(self) -> int:
        return sum(slab.size for slab in self.slabs)


@dataclass
class Draft:
    """What a writer has made so far."""

    writer: Client
    generation: int
    slabs: list[HeldSlab] = field(default_factory=list)
    create: "Wanted | None" = None

    @property
    def size(self) -> int:
        return sum(slab.size for slab in self.slabs)


@dataclass
class Wanted:
    """A slab for which there is no memory yet."""

    size: int
    until: float
    retry_at: float
    free: int = 0
