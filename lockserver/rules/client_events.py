"""The words between a client's machine and its shell: what happens (events), and what to do about it (effects).

The shell feeds events one at a time and carries the effects of each out in order before the next. `Connect`, `Check`
and `LookAtPath` are questions; their answers come back as events.
"""

import enum

import msgspec

from lockserver.rules import messages as m
from sidecar.machine.context import Heard as Heard
from sidecar.machine.context import Tick as Tick


class There(enum.Enum):
    """Which server may be at the end of the path, as seen by a client that isn't connected."""

    SAME = "the server of the directory that is ours"
    NOBODY = "none"
    ANOTHER = "another directory's server, or it can't be told"


# -- events: from the connection, and from the program -------------------------------------------------------------


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


class Want(msgspec.Struct, frozen=True):
    lock: m.LockName
    needs: dict[str, int] = {}


class Withdraw(msgspec.Struct, frozen=True):
    """The program no longer waits for this lock."""

    lock: m.LockName


class SetReady(msgspec.Struct, frozen=True):
    ready: bool
    needs: dict[str, int] | None = None


class SetServing(msgspec.Struct, frozen=True):
    url: str
    kept: m.KeptRoom | None = None


class Checked(msgspec.Struct, frozen=True):
    round: int
    ok: bool
    why: str = ""


class DrainEnded(msgspec.Struct, frozen=True):
    round: int
    ok: bool
    why: str = ""


class VouchFor(msgspec.Struct, frozen=True):
    child: int
    pid: int


class ChildEnded(msgspec.Struct, frozen=True):
    """A child that counts. No server needs to hear of it again."""

    child: int


# -- effects -------------------------------------------------------------------------------------------------------


class Connect(msgspec.Struct, frozen=True):
    """Answered by `Connected` or `Disconnected`."""


class Say(msgspec.Struct, frozen=True):
    """The shell adds the descriptors that belong to the message."""

    message: m.ClientMessage


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


class Got(msgspec.Struct, frozen=True):
    lock: str
    token: int
    proven: bool = False


class Without(msgspec.Struct, frozen=True):
    """Neither holds this lock nor waits for it any more: that was withdrawn."""

    lock: str


class WatchChild(msgspec.Struct, frozen=True):
    child: int


class ChildCounts(msgspec.Struct, frozen=True):
    child: int


class No(msgspec.Struct, frozen=True):
    """The wish (or this process, which holds nothing yet) was refused."""

    why: str


class Lost(msgspec.Struct, frozen=True):
    """What was held is held no more, or may soon be another engine's: end the process."""

    why: str


class Check(msgspec.Struct, frozen=True):
    round: int


class BeginDrain(msgspec.Struct, frozen=True):
    round: int
    timeout_s: float


class ServeOn(msgspec.Struct, frozen=True):
    why: str


class End(msgspec.Struct, frozen=True):
    """Drained, and the successor is ready: exit."""


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


class KeepNames(msgspec.Struct, frozen=True):
    """The descriptors that came with this message are kept open until the process ends."""


Effect = (
    Connect
    | Say
    | ShowOldLives
    | Joined
    | Got
    | Without
    | WatchChild
    | ChildCounts
    | No
    | Lost
    | Check
    | BeginDrain
    | ServeOn
    | End
    | KeepCopies
    | DropCopies
    | KeepNames
    | HangUp
    | LookAtPath
    | Warn
)
Event = (
    Connected
    | Disconnected
    | Hopeless
    | Heard
    | Want
    | Withdraw
    | SetReady
    | SetServing
    | Checked
    | DrainEnded
    | VouchFor
    | ChildEnded
    | PathSeen
    | Tick
)
