"""What is said over a socket about processes, whatever their server decides beside that: who belongs to which
incarnation, and the copies of pidfds that clients keep. Shapes only. A server's own protocol includes them.
"""

from typing import Annotated

from msgspec import Meta

from sidecar.terminal.names import NAME
from sidecar.wire.frames import Message

EngineId = Annotated[str, Meta(pattern=rf"^{NAME}\Z")]
"""It becomes part of a file's name, with a dot behind it."""
Incarnation = Annotated[str, Meta(pattern=r"^[0-9a-f]{8,32}\Z")]
IncarnationName = Annotated[str, Meta(pattern=rf"^{NAME}\.[0-9a-f]{{8,32}}\Z")]
"""One start of one engine, and its life file: `<engine_id>.<incarnation>`."""
Number = Annotated[int, Meta(ge=0, le=1_000_000)]


class Join(Message, frozen=True):
    """Another process of an incarnation, before it touches a device. Descriptor: its own pidfd."""

    protocol: int
    engine_id: EngineId
    incarnation: Incarnation
    life: tuple[int, int]
    pid: int
    number: Number = 0
    """Its number from an earlier `Welcome`; 0 the first time."""
    newest: int = 0
    mapped: bool = False


class Vouch(Message, frozen=True):
    """The main process vouches for a child that can't join by itself. Descriptor: the child's pidfd."""

    child: int
    pid: int


class Vouched(Message, frozen=True):
    child: int


class Kept(Message, frozen=True):
    """The descriptors of a `Keep` have been taken: the next ones may come."""

    copies: Number


class OldLives(Message, frozen=True):
    """Life files of this incarnation that have lost their name, because they were removed: its children may hold
    locks on these alone. Descriptors: the files.
    """

    incarnation: IncarnationName
    left_out: Number = 0
    """Older ones, of which there are too many to show."""
