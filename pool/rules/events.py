"""What happens to the pool (events), and what it wishes (effects). Shapes only; `machine.py` has the rules."""

from typing import Any

from pool.entries import Entry, ModelDemand
from pool.rules.messages import Command
from sidecar.machine.context import Close as Close
from sidecar.machine.context import Closed as Closed
from sidecar.machine.context import Effect, Event
from sidecar.machine.context import Note as Note
from sidecar.machine.context import Publish as Publish
from sidecar.machine.context import Tick as Tick

HOST = "host"
"""Stands for the host's memory where bytes are counted by device."""


class HostRules(Event, frozen=True, kw_only=True):
    """What models.yaml says of all models together."""

    swap_share: float = 0.1
    drain_s: float = 1.0
    ageing_s: float = 60.0
    longest_wait_s: float | None = None
    default: str = ""
    default_after_s: float = 30.0
    asleep: dict[str, int] = {}
    """How much engines that are asleep may keep together: on each device, and of the host's memory. Not named: as much
    as there is."""


class ModelRules(Event, frozen=True, kw_only=True):
    """A model that runs here: its entry, and what follows from it on this host."""

    entry: Entry
    devices: tuple[str, ...]
    bytes: dict[str, int] = {}
    """By device, while it is awake: given in the file, or estimated. Empty: not known yet."""
    asleep: dict[str, int] = {}
    """While it is asleep, or starts: as estimated."""


# -- events --------------------------------------------------------------------------------------------------------


class Learned(Event, frozen=True):
    """What was measured of a model; it outlives the pool."""

    wake_s: float | None = None
    sleep_s: float | None = None
    load_s: float | None = None
    park_s: float | None = None
    wake_parked_s: float | None = None
    """A wake that brings its weights back from host memory."""
    bytes: dict[str, int] = {}
    asleep: dict[str, int] = {}
    weights: dict[str, int] = {}
    """What its weights take of each device once they are loaded."""


class Began(Event, frozen=True):
    """What an earlier pool has left."""

    learned: dict[str, Learned]
    pins: dict[str, bool] = {}
    names: tuple[str, ...] = ()
    """All models that it had, and those of which something may be left."""
    kept_asleep: tuple[str, ...] = ()
    others: dict[str, int] = {}
    """What of each device was in use without a lease, and is no `command`'s."""


class Configured(Event, frozen=True):
    host: HostRules
    models: dict[str, ModelRules]


class DemandSaid(Event, frozen=True):
    conn: int
    models: dict[str, ModelDemand]


class Asked(Event, frozen=True):
    """A person (or a program) wants something of one model: all verbs but launch, remove and flags."""

    conn: int
    command: Command


class LockView(Event, frozen=True):
    """What the pool makes of the status of a model's lock."""

    resting: bool
    why: str = ""
    """Why it rests."""
    held: bool = False
    serving: bool = False
    draining: bool = False
    """Its holder drains, or gives the lock back."""
    giving_back: bool = False
    ready: bool = False
    """An engine waits that could wake now."""
    token: int = 0
    port: int | None = None
    """Where its engine serves, if that is a port."""


class LockSeen(Event, frozen=True):
    model: str
    view: LockView | None
    """None: its lock server doesn't answer."""


class LockAnswered(Event, frozen=True):
    """The lock has taken the wish to wake; not `ok`: its engine isn't put to sleep, and this is why."""

    model: str
    ok: bool
    detail: str = ""


class LedgerSeen(Event, frozen=True):
    """None: the ledger doesn't answer."""

    room: dict[str, int] | None
    """Device -> what all models together may have, with their weights."""
    leases: dict[str, dict[str, int]] = {}
    """Model -> what its engines have leased, by device, without its weights."""
    lacking: dict[str, dict[str, int]] = {}
    """Model, or what weights are called -> how much more of each device would have to be free for what waits there."""
    foreign: dict[str, int] = {}
    """What of each device is in use without a lease."""


class WeightsSeen(Event, frozen=True):
    """GMS of one device. None: it doesn't answer, or has just begun and awaits what processes have of it: so nothing is
    parked or dropped now, and what it had is where it was.
    """

    device: str
    here: dict[str, int] | None
    """What weights are called -> what they take of the device."""
    parked: dict[str, int] = {}
    """The same -> what they take of the host's memory."""
    host_left: int = 0
    """How much more of it parked weights may take."""


class ParkEnded(Event, frozen=True):
    """A wish to park has been carried out; or hasn't, and this is why."""

    weights: str
    why: str = ""


class DropEnded(Event, frozen=True):
    """The same, of a wish to drop."""

    weights: str
    why: str = ""


class Child(Event, frozen=True):
    """What the launcher says of a model's processes."""

    running: bool
    ends: int = 0
    """How often they have ended."""
    why: str = ""
    """Why they can't be started, where another start won't mend it. While they run: why their last engine ended."""
    host_bytes: int = 0
    runs_as: str = ""
    """What of its entry they were started with last, in the words of the pool that did; empty: it isn't known."""
    exit_code: int = 0
    """Why they can't be started: 64, its arguments are wrong; 65, GMS has the weights of another model."""


class LauncherSeen(Event, frozen=True):
    """None: the launcher doesn't answer."""

    children: dict[str, Child] | None


# -- effects -------------------------------------------------------------------------------------------------------


class Sleep(Effect, frozen=True):
    model: str
    drain_s: float
    why: str


class Wake(Effect, frozen=True):
    model: str


class Start(Effect, frozen=True):
    model: str


class End(Effect, frozen=True):
    model: str


class Park(Effect, frozen=True):
    """These weights are to go from their devices to host memory."""

    weights: str
    most_s: float
    """After that it has failed."""


class Drop(Effect, frozen=True):
    """These weights are given up, in their devices and in host memory. No engine has them."""

    weights: str


class Answer(Effect, frozen=True):
    conn: int
    message: Any


class Save(Effect, frozen=True):
    """What was learned, pins, and what a person has put to sleep, are to be written down."""
