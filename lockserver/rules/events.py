"""The vocabulary between the server's machine and its shell: what happens (events), and what to do about it (effects).

The shell feeds events one at a time and carries the effects of each out in order before the next. Some effects are
questions; their answers come back as events, before anything else is looked at: `TakeNames` (`NamesTaken`), `Persist`
(`Persisted`, `PersistFailed`), and those about processes and memory, which are in `evidence/rules/events.py`.
"""

import math

import msgspec

from evidence.rules import events as evidence
from evidence.rules.events import ForgetProcess as ForgetProcess
from evidence.rules.events import Kill as Kill
from evidence.rules.events import LifeProbed as LifeProbed
from evidence.rules.events import LookAt as LookAt
from evidence.rules.events import LookedAt as LookedAt
from evidence.rules.events import LookedUp as LookedUp
from evidence.rules.events import LookUp as LookUp
from evidence.rules.events import MemoryRead as MemoryRead
from evidence.rules.events import OutOfReach as OutOfReach
from evidence.rules.events import Peer as Peer
from evidence.rules.events import ProbeLife as ProbeLife
from evidence.rules.events import ProbeStrangers as ProbeStrangers
from evidence.rules.events import ReadMemory as ReadMemory
from evidence.rules.events import Received as Received
from evidence.rules.events import StrangersProbed as StrangersProbed
from evidence.rules.events import Unlink as Unlink
from lockserver.rules.messages import ServerMessage
from lockserver.rules.record import Record
from sidecar.machine.context import Close as Close
from sidecar.machine.context import Closed as Closed
from sidecar.machine.context import Died as Died
from sidecar.machine.context import DirectoryReplaced as DirectoryReplaced
from sidecar.machine.context import Hindered as Hindered
from sidecar.machine.context import Note as Note
from sidecar.machine.context import PathWatched as PathWatched
from sidecar.machine.context import Persisted as Persisted
from sidecar.machine.context import PersistFailed as PersistFailed
from sidecar.machine.context import Publish as Publish
from sidecar.machine.context import Stop as Stop
from sidecar.machine.context import Tick as Tick
from sidecar.machine.context import Time as Time
from sidecar.machine.context import WatchDeath as WatchDeath


class Config(evidence.Config, frozen=True, kw_only=True):
    window_s: float = 10.0
    memory_bound_s: float = math.inf
    """After so long a grant is made though the memory that it needs isn't free; by default never."""
    memory_patience_s: float = 30.0
    """After so long waiters that need less go first, and an alarm is raised."""
    prepare_timeout_s: float = 1.0
    exit_timeout_s: float = 10.0
    presume_dead: bool = False
    """The specification's letter: after the window a silent holder counts as dead, whatever its life lock says."""
    grant_unproven: bool = False
    """After the window a free life lock is enough, though nothing proves the end of every process."""
    at_rest: bool = False
    """A lock that has no file yet is at rest."""
    recipients: int = 4
    """How many waiters get copies of the holder's pidfds."""
    history_size: int = 1000


# -- events --------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    record: Record | None
    unreadable: str = ""
    """Why the file that is there can't be read; empty when it can, or when there is none."""
    token_floor: int = 0
    """Tokens begin above it: the time, so that they grow even where the file was lost, or an old one came back."""


class NamesTaken(msgspec.Struct, frozen=True):
    missing: tuple[tuple[str, str], ...]
    """What other processes have, and which, in words. Empty: this server (or its holder) has all of them."""
    others: bool = True
    """Others have them; or this server can't take them, for want of a descriptor say."""


Event = (
    Started
    | Closed
    | evidence.Event
    | LookedAt
    | NamesTaken
    | MemoryRead
    | Persisted
    | PersistFailed
    | DirectoryReplaced
    | PathWatched
    | Hindered
    | Tick
)


# -- effects -------------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    conn: int
    message: ServerMessage
    processes: tuple[int, ...] = ()
    names: bool = False
    """With copies of the names that this server has taken."""


class TakeNames(msgspec.Struct, frozen=True):
    """Its path's, and these devices'."""

    devices: tuple[str, ...]


class Persist(msgspec.Struct, frozen=True):
    seq: int
    record: Record


Effect = Send | Close | evidence.Effect | TakeNames | ReadMemory | Persist | Publish | Note | Stop
