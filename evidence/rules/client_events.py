"""The words between the machine of a process and its shell, as far as every server that binds trees needs them: what
happens (events), and what to do about it (effects). A client's own machine includes these words in its own.

`Connect` and `LookAtPath` are questions; their answers come back as events.
"""

import enum
from typing import Any

import msgspec

from sidecar.machine.context import Heard as Heard
from sidecar.machine.context import Tick as Tick


class There(enum.Enum):
    """Which server may be at the end of the path, as seen by a client that isn't connected."""

    SAME = "the server of the directory that is ours"
    NO_SERVER = "none"
    ANOTHER = "another directory's server, or it can't be told"


# -- events ------------------------------------------------------------------------------------------------------------


class Connected(msgspec.Struct, frozen=True):
    life: tuple[int, int]
    mapped: bool = True
    """This process can't let go of its life lock while it lives."""
    there: There = There.SAME


class Disconnected(msgspec.Struct, frozen=True):
    """The connection ended, or could not be made."""

    there: There = There.SAME
    why: str = ""
    """What a person has to put right first, where it is that."""


class PathSeen(msgspec.Struct, frozen=True):
    """Where the path of the run directory leads, while there is a connection."""

    elsewhere: bool


class Hopeless(msgspec.Struct, frozen=True):
    """There is nothing to come back to."""

    why: str


class VouchFor(msgspec.Struct, frozen=True):
    child: int
    pid: int


class ChildEnded(msgspec.Struct, frozen=True):
    """A child that counts. No server needs to hear of it again."""

    child: int


Event = Connected | Disconnected | PathSeen | Hopeless | Heard | VouchFor | ChildEnded | Tick


# -- effects -----------------------------------------------------------------------------------------------------------


class Connect(msgspec.Struct, frozen=True):
    """Answered by `Connected` or `Disconnected`."""


class Say(msgspec.Struct, frozen=True):
    """The shell adds the descriptors that belong to the message."""

    message: Any


class HangUp(msgspec.Struct, frozen=True):
    """The connection is of no use any more."""


class LookAtPath(msgspec.Struct, frozen=True):
    """Answered by `PathSeen`."""


class Warn(msgspec.Struct, frozen=True):
    """A person should know, and nothing ends."""

    text: str


class ShowOldLives(msgspec.Struct, frozen=True):
    """The server that has this process back knows only the life file that has the name now."""


class Joined(msgspec.Struct, frozen=True):
    """This process counts: it may touch a device."""


class WatchChild(msgspec.Struct, frozen=True):
    child: int


class ChildCounts(msgspec.Struct, frozen=True):
    child: int


class No(msgspec.Struct, frozen=True):
    """The wish (or this process, which holds nothing yet) was refused."""

    why: str


class Lost(msgspec.Struct, frozen=True):
    """What was held is held no more, or may soon be another's: end the process."""

    why: str


class KeepCopies(msgspec.Struct, frozen=True):
    """The descriptors that came with this message are kept, of these members: instead of those that were kept of this
    tree before, or in addition to them.
    """

    tree: str
    numbers: list[int]
    more: bool = False


class DropCopies(msgspec.Struct, frozen=True):
    tree: str
    numbers: list[int] | None = None
    """The members whose copies aren't needed any more; None: all of this tree."""


Effect = (
    Connect
    | Say
    | HangUp
    | LookAtPath
    | Warn
    | ShowOldLives
    | Joined
    | WatchChild
    | ChildCounts
    | No
    | Lost
    | KeepCopies
    | DropCopies
)
