"""What is said over `vram.sock`: every message, and the ledger's public status.

Callers introduce themselves as to every server that binds trees (`evidence/rules/messages.py`): a main process
(`Register`), another process of its tree (`Join`), or an observer (`Observe`). The rules for when a message is allowed
stand in `machine.py` (server) and `client_machine.py` (client); this file holds only shapes.
"""

from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, UnsetType

from evidence.rules import messages as evidence
from evidence.rules.messages import Introduction, Number
from sidecar.machine.context import HistoryEvent
from sidecar.wire.frames import Message

OLDEST, PROTOCOL = 1, 1
"""The oldest and the newest version that is spoken here."""
MOST_LEASES_OF_ONE = 1000
MOST_HEIRED = 100

Count = Annotated[int, Meta(ge=0, lt=1 << 62)]
Device = Annotated[str, Meta(min_length=1, max_length=128)]
Bytes = Annotated[dict[Device, Count], Meta(max_length=64)]
"""Device -> bytes."""
Name = Annotated[str, Meta(pattern=r"^[^\x00-\x1f\x7f]{1,200}\Z")]
"""What a lease is for: a model, a pair, a slab of weights."""
Priority = Annotated[int, Meta(ge=-1000, le=1000)]
"""The lowest number is the most urgent."""
Seconds = Annotated[float, Meta(ge=0, le=1e9)]
Secret = Annotated[str, Meta(max_length=64)]


# -- from a client -------------------------------------------------------------------------------------------------


class Claim(msgspec.Struct, frozen=True):
    """A lease that the sender was granted, as far as it has heard."""

    lease: Count
    name: Name
    bytes: Bytes
    priority: Priority = 0
    evictable: bool = True
    unused_s: Seconds = 0.0
    outlives: bool | UnsetType = UNSET


class Register(Introduction, frozen=True):
    """The main process of a tree."""

    claims: Annotated[list[Claim], Meta(max_length=MOST_LEASES_OF_ONE)] = []
    heirs: Annotated[list[Name], Meta(max_length=MOST_HEIRED)] = []
    """Names of which it is an heir."""
    secret: Secret = ""
    newest: int = 0
    mapped: bool = False


class Reserve(Message, frozen=True):
    """Answered by `Granted` or `Denied`."""

    number: Count
    """The sender's, for this wish: the answer says it again."""
    name: Name
    needs: Bytes
    priority: Priority = 0
    evictable: bool = True
    waited_s: Seconds = 0.0
    """On an earlier connection."""
    outlives: bool | UnsetType = UNSET
    """Other processes keep what it has: the end of its holder doesn't free it."""
    found: Bytes | UnsetType = UNSET
    """So much of it is in use already: made by an earlier holder of the name, it has come to the sender. As far as that
    is known to be in use, it needs no room.
    """


class Resize(Message, frozen=True):
    """The lease is to have so much. What is less is given back at once, none is the end of it; what is more waits like
    a new lease. Answered by `Granted` or `Denied`.
    """

    number: Count
    lease: Count
    bytes: Bytes
    unused: bool = False
    """The sender never used what it gives back: it has heard of the grant too late."""
    waited_s: Seconds = 0.0


class Withdraw(Message, frozen=True):
    """The sender doesn't wait for this any more. Answered by `Withdrawn`, or the grant came first."""

    number: Count


class Set(Message, frozen=True):
    """What is so of a lease from now on; None: as before."""

    lease: Count
    priority: Priority | None = None
    evictable: bool | None = None
    used: bool = False
    """It was used in this moment."""


class Heir(Message, frozen=True):
    """While the sender lives, the bytes of this name are kept for it when their holder dies. Answered by `Named`."""

    name: Name


class Watch(Message, frozen=True):
    """From now on, every change."""


class AskStatus(Message, frozen=True):
    pass


class AskHistory(Message, frozen=True):
    """What happened lately; as much of it as goes into one frame."""


ClientMessage = (
    Register
    | evidence.Join
    | evidence.Observe
    | evidence.Vouch
    | evidence.HandBack
    | evidence.Kept
    | evidence.OldLives
    | Reserve
    | Resize
    | Withdraw
    | Set
    | Heir
    | Watch
    | AskStatus
    | AskHistory
)


# -- from the server -----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    """Registered, or joined: from here on the process counts. Leases that it claimed are its own."""

    server_incarnation: str
    number: Number
    settle_s: float
    secret: str = ""
    protocol: int = 0
    """The version that both speak from here on."""


class Granted(Message, frozen=True):
    """The lease has these bytes from now on; none: it has ended."""

    number: Count
    lease: Count
    bytes: Bytes


class Denied(Message, frozen=True):
    """It can't be, now or ever, and why."""

    number: Count
    why: str


class Withdrawn(Message, frozen=True):
    number: Count


class Named(Message, frozen=True):
    name: Name


class Asked(Message, frozen=True):
    """Please give back so much of this lease. Nothing is done where that doesn't happen in time, but a person hears."""

    lease: Count
    bytes: Bytes
    timeout_s: float
    why: str


class DeviceState(msgspec.Struct, frozen=True):
    """All in bytes."""

    device: str
    total: int
    leased: int
    returning: int
    foreign: int
    """In use by what holds no lease, as far as that was measured."""
    keep_free: int
    available: int
    """What could be leased now."""
    free: int | None
    """As last read; None: no program can read it, so nothing of this device is verified."""


class LeaseState(msgspec.Struct, frozen=True):
    lease: int
    name: str
    holder: str
    """Empty: its holder is gone; `state` says the rest."""
    incarnation: str
    pid: int
    bytes: dict[str, int]
    returning: dict[str, int]
    """Said to be given back, and not seen to be free."""
    priority: int
    evictable: bool
    granted_at: str
    unused_s: float
    state: str
    """`held`, `asked` (to be given back), `ending` (its holder has to be proven gone), `kept` (for an heir, or for the
    next holder of its name).
    """


class WaiterState(msgspec.Struct, frozen=True):
    name: str
    holder: str
    pid: int
    needs: dict[str, int]
    """What it lacks, which may be less than it asked for."""
    priority: int
    since: str
    waits_for: str


class Status(Message, frozen=True):
    """Every field is always there, so that scripts can rely on them."""

    devices: list[DeviceState]
    leases: list[LeaseState]
    leases_total: int
    """All of them; `leases` has the first, as many as go into one frame. So it is with all that may be many."""
    waiters: list[WaiterState]
    """In order."""
    waiters_total: int
    settled: str
    """Why nothing is granted yet after a start, in words; empty once it is."""
    memory_why: str
    """Why memory isn't read. Empty where it is."""
    alarms: list[str]
    evidence: str
    server_incarnation: str
    server_pid: int


class History(Message, frozen=True):
    events: list[HistoryEvent]
    left_out: int = 0
    """How many older ones did not go into the frame."""


ServerMessage = (
    Welcome
    | evidence.Refused
    | evidence.Incompatible
    | evidence.Busy
    | evidence.Problem
    | evidence.Vouched
    | evidence.Keep
    | Granted
    | Denied
    | Withdrawn
    | Named
    | Asked
    | Status
    | History
)

from_client: msgspec.msgpack.Decoder[ClientMessage] = msgspec.msgpack.Decoder(ClientMessage)
from_server: msgspec.msgpack.Decoder[ServerMessage] = msgspec.msgpack.Decoder(ServerMessage)


def check(message: ClientMessage) -> None:
    """Raises ValueError for what no server takes: said to one, it would cost the connection, and every one after it."""
    try:
        from_client.decode(msgspec.msgpack.encode(message))
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"the ledger would not take this: {error}") from None
