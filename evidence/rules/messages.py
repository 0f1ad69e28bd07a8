"""What is said over a socket about processes, whatever their server decides beside that: who belongs to which
incarnation, and the copies of pidfds that clients keep. Shapes only. A server's own protocol includes them.
"""

from typing import Annotated

from msgspec import Meta, field

from sidecar.terminal.names import NAME
from sidecar.wire.frames import Message

EngineId = Annotated[str, Meta(pattern=rf"^{NAME}\Z")]
"""It becomes part of a file's name, with a dot behind it."""
Incarnation = Annotated[str, Meta(pattern=r"^[0-9a-f]{8,32}\Z")]
IncarnationName = Annotated[str, Meta(pattern=rf"^{NAME}\.[0-9a-f]{{8,32}}\Z")]
"""One start of one engine, and its life file: `<engine_id>.<incarnation>`."""
Number = Annotated[int, Meta(ge=0, le=1_000_000)]


class Introduction(Message, frozen=True):
    """What a process of an incarnation says first. A main process's has `newest`, `mapped` and a `secret`, too
    (`admission.py` reads them), and goes on as its server needs it. Descriptor: its own pidfd.
    """

    protocol: int
    engine_id: EngineId
    incarnation: Incarnation
    life: tuple[int, int]
    """(st_dev, st_ino) of the life file on which the sender has its lock."""
    pid: int


class Join(Introduction, frozen=True):
    """Another process of an incarnation, before it touches a device."""

    number: Number = 0
    """Its number from an earlier `Welcome`; 0 the first time."""
    newest: int = 0
    mapped: bool = False


class Observe(Message, frozen=True):
    """An observer: it only looks, or asks for something for others."""

    protocol: int
    newest: int = 0


class Vouch(Message, frozen=True):
    """The main process vouches for a child that can't join by itself. Descriptor: the child's pidfd."""

    child: int
    pid: int


class Vouched(Message, frozen=True):
    child: int


class Keep(Message, frozen=True):
    """Copies of pidfds for the next server. `tree` says of which incarnation. One descriptor for each number."""

    mark: int = field(name="token")
    """A number of the server's, which comes back with them."""
    tree: IncarnationName
    numbers: list[int]
    more: bool = False
    """In addition to those that were given of this incarnation before, and not instead of them."""
    gone: list[int] = []
    """Members of which no copy is needed any more."""
    answer: bool = False
    """`Kept` is awaited."""


class Kept(Message, frozen=True):
    """The descriptors of a `Keep` have been taken: the next ones may come."""

    copies: Number


class HandBack(Message, frozen=True):
    """A main process returns what the last server gave it to keep. One descriptor for each number."""

    mark: Annotated[int, Meta(ge=0, lt=1 << 62)] = field(name="token")
    tree: IncarnationName
    numbers: list[int]


class OldLives(Message, frozen=True):
    """Life files of this incarnation that have lost their name, because they were removed: its children may hold
    locks on these alone. Descriptors: the files.
    """

    incarnation: IncarnationName
    left_out: Number = 0
    """Older ones, of which there are too many to show."""


class Refused(Message, frozen=True):
    """This process (or this wish) is not to go on. Final."""

    why: str


class Incompatible(Message, frozen=True):
    """There is no version that both speak. Not final: what is held stays held, and the sender asks again later."""

    oldest: int
    newest: int
    why: str


class Busy(Message, frozen=True):
    """There is no room now. Not final: ask again later."""

    why: str


class Problem(Message, frozen=True):
    """What the sender did wrong. The connection ends with it."""

    why: str
