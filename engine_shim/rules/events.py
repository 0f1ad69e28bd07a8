"""The events that the shim's machine (`lifecycle.py`) is given, and the effects that it asks for. Data only.

What an engine's process says is an event as it stands (`messages.py`), but for a step and a beat.
"""

from enum import Enum

import msgspec

from engine_shim.rules.messages import Adopted as Adopted
from engine_shim.rules.messages import Failing as Failing
from engine_shim.rules.messages import Named as Named
from engine_shim.rules.messages import Phase as Phase
from engine_shim.rules.messages import Takes as Takes
from sidecar.machine.context import Died as Died
from sidecar.machine.context import Note as Note
from sidecar.machine.context import Tick as Tick
from sidecar.machine.context import Time as Time


class State(Enum):
    INIT = "Init"
    STANDBY = "Standby"
    WAKING = "Waking"
    ACTIVE = "Active"
    DRAINING = "Draining"
    SLEEPING = "Sleeping"
    DEAD = "Dead"


class Restart(Enum):
    IN_PLACE = "in-place"
    EXIT = "exit"


class Config(msgspec.Struct, frozen=True):
    engine_id: str
    role: str = "primary"
    restart: Restart = Restart.IN_PLACE
    init_timeout_s: float = 7200.0
    waking_timeout_s: float = 60.0
    stall_s: float = 60.0
    busy_stall_s: float = 300.0
    drain_s: float = 20.0
    room_timeout_s: float = 120.0

    @property
    def beat_s(self) -> float:
        """How often the engine's main process reports how it is."""
        return min(1.0, self.stall_s / 4)


# -- events --------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    """The shim itself has started."""


class Registered(msgspec.Struct, frozen=True):
    """A process says that it belongs to this start of the engine. `process` is the shell's number for its pidfd."""

    conn: int
    process: int
    start: int
    main: bool


class Reported(msgspec.Struct, frozen=True):
    to: State
    token: int = 0
    url: str = ""


class Beat(msgspec.Struct, frozen=True):
    well: bool
    why: str = ""
    queued: int = 0
    steps: int = 0
    unreachable: str = ""
    """Why no client could connect to its address."""
    used_s: float | None = None
    """The processor time of the tree so far, as the shim sees it. None: it hasn't looked, or a process of the tree is
    stopped, and what the others use is waiting."""


class OthersTake(msgspec.Struct, frozen=True):
    """What the shims of other engines say of theirs. Of those that serve or would take over, and answer."""

    engines: dict[str, dict[str, str]]


class Ended(msgspec.Struct, frozen=True):
    """The main process has ended and was collected. The code is negative for a signal."""

    code: int


class NotStarted(msgspec.Struct, frozen=True):
    """The engine could not be started at all."""

    why: str


class Looked(msgspec.Struct, frozen=True):
    """What is left: at least so many processes of the tree, and whether a process holds a life lock of this engine."""

    left: int
    held: bool
    """Also when that can't be known."""
    why: str = ""
    """Why it counts as held."""


class Terminate(msgspec.Struct, frozen=True):
    """The shim was told to end, by SIGTERM or Ctrl-C."""

    signal: str = "SIGTERM"


class LockSeen(msgspec.Struct, frozen=True):
    """The lock's public state has changed."""

    holder: str
    """The incarnation that holds it; empty: none."""
    fencing: bool = False
    serves: bool = False
    """The holder has announced its endpoint."""
    redundant: bool = False
    """An engine serves, and another one is ready to."""
    counterparts: tuple[str, ...] = ()
    """The engines with which this one is a pair: for a waiter the holder, for the holder those that could take over."""


class LockAway(msgspec.Struct, frozen=True):
    """The lock can't be seen: there is no server, or it refuses. Its holder serves on; no engine can take over."""


Event = (
    Started
    | Registered
    | Named
    | Reported
    | Beat
    | Takes
    | OthersTake
    | Phase
    | Adopted
    | Failing
    | Died
    | Ended
    | NotStarted
    | Looked
    | Terminate
    | LockSeen
    | LockAway
    | Tick
)

# -- effects -------------------------------------------------------------------------------------------------------


class Start(msgspec.Struct, frozen=True):
    """Start the engine's main process. `NotStarted` is the answer when that can't be done."""

    number: int


class KillTree(msgspec.Struct, frozen=True):
    """SIGKILL to every process of the tree that can be found, now."""


class Look(msgspec.Struct, frozen=True):
    """Collect the dead and see what is left. `Looked` is the answer."""


class CleanUp(msgspec.Struct, frozen=True):
    """Remove the files that the tree has left behind."""


class Forward(msgspec.Struct, frozen=True):
    """Send SIGTERM to the main process."""


class Admit(msgspec.Struct, frozen=True):
    conn: int


class TurnAway(msgspec.Struct, frozen=True):
    conn: int
    why: str


class Forget(msgspec.Struct, frozen=True):
    """These processes are of no interest any more."""

    processes: list[int]


class Exit(msgspec.Struct, frozen=True):
    code: int
    why: str


Effect = Start | KillTree | Look | CleanUp | Forward | Admit | TurnAway | Forget | Exit | Note
