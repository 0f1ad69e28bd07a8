"""Protocol 1 as it was when nobody spoke another: a copy of `gms/messages.py` of 7b3c769, for tests of old programs.

Nothing in here is ever changed.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gms.layout import MAX_LAYOUT_BYTES, MAX_SLABS, Count
from sidecar.frames import Message

PROTOCOL = 1


class HistoryEvent(msgspec.Struct, frozen=True):
    at: str
    event: str
    detail: dict[str, str | int | float | bool] = {}


MAX_FRAME_BYTES = MAX_LAYOUT_BYTES + (1 << 20)

EngineId = Annotated[str, Meta(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}\Z")]
Hash = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
"""Of a layout document; empty: none."""
Generation = Annotated[int, Meta(ge=0, lt=1 << 62)]
"""Grows with every commit, across restarts; 0: none."""
Sentence = Annotated[str, Meta(max_length=2000)]
Document = Annotated[bytes, Meta(max_length=MAX_LAYOUT_BYTES)]
"""An encoded layout (`layout.py`). The server hands it on as it came."""
Mode = Literal["rw", "ro", "rw_or_ro"]
Reason = Literal["time_out", "no_memory", "too_large", "bad_layout", "stale", "disk", "not_now"]


# -- from a client -------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """A process that wants weights. Descriptor: its own pidfd, where the kernel has such a thing."""

    protocol: int
    engine_id: EngineId
    pid: int


class Observe(Message, frozen=True):
    """Somebody who only looks."""

    protocol: int


class Open(Message, frozen=True):
    """Wants to write, to read, or whichever is possible. Waits its turn; `Opened` or `Refused` is the answer.

    `rw` over a committed layout clears it, once nobody reads. With `replace` the old layout stays until the new one is
    committed; `bytes` is what the new one needs.
    """

    mode: Mode
    timeout_s: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    replace: bool = False
    bytes: Count = 0
    have: Generation = 0
    """Of the layout whose slabs the caller has kept: if it is still that one, they and the document aren't sent again.
    (Not the hash: a layout of the same structure may be other memory.)
    """
    expect: Hash = ""
    """The only layout that will do, because the caller's views are laid out by it; another is refused as stale."""


class Withdraw(Message, frozen=True):
    """Ends what the sender has: a place in the queue, a reader's or a writer's session. A writer that has not committed
    has written nothing. The connection goes on as a watch. Answered by `Withdrawn`; whatever answers come before that
    one were under way, and mean nothing any more.
    """

    keeps: Generation = 0
    """A reader that goes to sleep: it keeps the descriptors of this layout, and will be back."""


class Create(Message, frozen=True):
    """A writer wants one more slab. Answered by `Created` or `Refused`; waits while the device is full."""

    size: Annotated[int, Meta(gt=0, lt=1 << 62)]


class Commit(Message, frozen=True):
    """A writer is through. Answered by `Committed` (it is a reader from then on, with no gap between) or `Refused`."""

    layout: Document


class Checksums(Message, frozen=True):
    """Of each slab's content, computed behind the hot path."""

    generation: Generation
    sums: Annotated[list[str], Meta(max_length=MAX_SLABS)]


class Dropped(Message, frozen=True):
    """The answer to `Drop`: no descriptor and no mapping of that generation is left here."""

    generation: Generation


class HandBack(Message, frozen=True):
    """Who comes back says what it has kept. To a server that waits for that very layout it brings the slabs `first` and
    following as descriptors, in as many messages as it takes, and the document with the first; to any other server it
    brings none. Answered, once all have come, by `HandedBack` or `Refused`.
    """

    generation: Generation
    hash: Hash
    sizes: Annotated[list[Count], Meta(max_length=MAX_SLABS)]
    """Of all slabs."""
    first: Count = 0
    layout: Document = b""
    sums: Annotated[list[str], Meta(max_length=MAX_SLABS)] = []
    reading: bool = False
    """It was reading, and reads on."""


class AskStatus(Message, frozen=True):
    pass


class AskLayout(Message, frozen=True):
    """Answered by `LayoutIs`."""


class AskHistory(Message, frozen=True):
    pass


class Watch(Message, frozen=True):
    """From now on, every change of the status (for people: `gmsctl`)."""


class Ping(Message, frozen=True):
    pass


# -- from the server -----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    server_incarnation: str
    device: str
    granularity: Count
    generation: Generation
    """Of the committed layout, or of the one that is to be handed back; 0: none."""
    hash: Hash
    recovering: bool
    """It waits for that layout: whoever has it is to hand it back."""


class Changed(Message, frozen=True):
    """To every process: which layout is there now. It tells sleepers that theirs is stale, or that there is one."""

    generation: Generation
    hash: Hash


class Opened(Message, frozen=True):
    """Writer: create, commit. Reader: the layout, and its slabs in the `Slabs` that follow; neither when the caller has
    them (`have`: the generation is the one that it named).
    """

    mode: Literal["rw", "ro"]
    generation: Generation
    """A writer's: the number that its layout will have, if it commits. No other writer ever gets the same."""
    hash: Hash = ""
    sizes: list[Count] = []
    layout: bytes = b""
    sums: list[str] = []
    """Of the slabs' contents, where they are known."""


class Slabs(Message, frozen=True):
    """Descriptors of the slabs `first` and following."""

    generation: Generation
    first: Count


class Created(Message, frozen=True):
    """Descriptor: the slab."""

    slab: Count
    size: Count


class Committed(Message, frozen=True):
    generation: Generation
    hash: Hash


class Withdrawn(Message, frozen=True):
    """The answer to `Withdraw`: the next answers belong to what is asked from now on."""


class Drop(Message, frozen=True):
    """That layout was replaced or cleared: let go of its slabs, and say so."""

    generation: Generation


class HandedBack(Message, frozen=True):
    """The layout stands again, as if nothing had happened."""

    generation: Generation
    reading: bool


class Refused(Message, frozen=True):
    """The answer to what was asked last. The connection goes on."""

    why: Sentence
    reason: Reason


class Problem(Message, frozen=True):
    """The connection ends after this."""

    why: Sentence


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """One process, for people."""

    engine_id: str
    pid: int
    doing: Literal["writing", "reading", "asleep", "waiting", "watching"]
    since: str
    """RFC 3339."""
    wants: str = ""
    """While it waits: the mode."""
    holds: list[Generation] = []
    """Layouts of which it has descriptors: it pins their memory."""


class Status(Message, frozen=True):
    state: Literal["EMPTY", "RW", "COMMITTED", "RO", "RECOVERING"]
    device: str
    clients: list[Client] = []
    generation: Generation = 0
    hash: Hash = ""
    bytes: Count = 0
    """In slabs of this server."""
    slabs: Count = 0
    tensors: Count = 0
    free: Count = 0
    capacity: Count = 0
    waiting_for: list[Sentence] = []
    """Why whoever waits is waiting."""
    pins: list[Sentence] = []
    """Who still holds memory of a layout that is no more, and was asked to drop it."""
    alarms: list[Sentence] = []
    events: dict[str, int] = {}
    """How often each thing has happened since this server started: `committed`, `handed_back`, ..."""
    server_incarnation: str = ""
    server_pid: int = 0
    since: str = ""


class LayoutIs(Message, frozen=True):
    generation: Generation
    hash: Hash
    layout: bytes = b""
    sums: list[str] = []


class History(Message, frozen=True):
    events: list[HistoryEvent]


class Pong(Message, frozen=True):
    server_incarnation: str


ClientMessage = (
    Hello
    | Observe
    | Open
    | Withdraw
    | Create
    | Commit
    | Checksums
    | Dropped
    | HandBack
    | AskStatus
    | AskLayout
    | AskHistory
    | Watch
    | Ping
)
ServerMessage = (
    Welcome
    | Changed
    | Opened
    | Slabs
    | Created
    | Committed
    | Withdrawn
    | Drop
    | HandedBack
    | Refused
    | Problem
    | Status
    | LayoutIs
    | History
    | Pong
)

from_client: "msgspec.msgpack.Decoder[ClientMessage]" = msgspec.msgpack.Decoder(ClientMessage)
from_server: "msgspec.msgpack.Decoder[ServerMessage]" = msgspec.msgpack.Decoder(ServerMessage)
