"""The words between a client's machine and its shell: what happens (events), and what to do about it (effects).

The shell feeds events one at a time and carries the effects of each out in order before the next. `Check` is a question
beside those in `evidence/rules/client_events.py`; its answer comes back as an event.
"""

import msgspec

from evidence.rules import client_events as evidence
from evidence.rules.client_events import ChildCounts as ChildCounts
from evidence.rules.client_events import ChildEnded as ChildEnded
from evidence.rules.client_events import Connect as Connect
from evidence.rules.client_events import Connected as Connected
from evidence.rules.client_events import Disconnected as Disconnected
from evidence.rules.client_events import DropCopies as DropCopies
from evidence.rules.client_events import HangUp as HangUp
from evidence.rules.client_events import Heard as Heard
from evidence.rules.client_events import Hopeless as Hopeless
from evidence.rules.client_events import Joined as Joined
from evidence.rules.client_events import KeepCopies as KeepCopies
from evidence.rules.client_events import LookAtPath as LookAtPath
from evidence.rules.client_events import Lost as Lost
from evidence.rules.client_events import No as No
from evidence.rules.client_events import PathSeen as PathSeen
from evidence.rules.client_events import Say as Say
from evidence.rules.client_events import ShowOldLives as ShowOldLives
from evidence.rules.client_events import There as There
from evidence.rules.client_events import Tick as Tick
from evidence.rules.client_events import VouchFor as VouchFor
from evidence.rules.client_events import Warn as Warn
from evidence.rules.client_events import WatchChild as WatchChild
from lockserver.rules import messages as m

# -- events: from the program, beside those of the connection ------------------------------------------------------


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


class GaveBack(msgspec.Struct, frozen=True):
    """The engine is asleep, and nothing of it is on a device: the lock isn't held any more."""

    why: str = ""


class Checked(msgspec.Struct, frozen=True):
    round: int
    ok: bool
    why: str = ""


class DrainEnded(msgspec.Struct, frozen=True):
    round: int
    ok: bool
    why: str = ""


# -- effects -------------------------------------------------------------------------------------------------------


class Got(msgspec.Struct, frozen=True):
    lock: str
    token: int
    proven: bool = False


class Without(msgspec.Struct, frozen=True):
    """Neither holds this lock nor waits for it any more: that was withdrawn."""

    lock: str


class Check(msgspec.Struct, frozen=True):
    round: int


class BeginDrain(msgspec.Struct, frozen=True):
    round: int
    timeout_s: float


class ServeOn(msgspec.Struct, frozen=True):
    why: str


class End(msgspec.Struct, frozen=True):
    """Drained, and the successor is ready: exit."""


class GiveItBack(msgspec.Struct, frozen=True):
    """Drained: the engine is to be put to sleep, and the lock to be given back."""


class KeepNames(msgspec.Struct, frozen=True):
    """The descriptors that came with this message are kept open until the process ends."""


Effect = evidence.Effect | Got | Without | Check | BeginDrain | ServeOn | End | GiveItBack | KeepNames
Event = evidence.Event | Want | Withdraw | SetReady | SetServing | GaveBack | Checked | DrainEnded
