"""What is said over `gms/<device>.sock`: every message, and the public status of one device's weights.

A caller introduces itself first: a process that wants weights (`Hello`), or one that only looks (`Observe`: `gmsctl`).
When a message is allowed stands in `machine.py` (server) and `client_machine.py` (client); this file holds only
shapes. `fds` (in the base class) says how many descriptors travel with a message: a process's own pidfd with `Hello`,
slabs with `Slabs`, `Created`, `PoolIs`, `PoolOwned` and `HandBack`.

A connection is about one region (`region.py`), which `Hello` names with its policy. Of weights ("shared"): while a
process reads or writes, the connection is its session; asleep, it is a watch: it holds nothing, and shows a new server
or a new layout at once. Of a pool ("exclusive"): it is there for as long as its process has to do with the pool.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from gms.layout import MAX_LAYOUT_BYTES, MAX_SLABS, Count
from gms.rules.region_key import WEIGHTS as WEIGHTS
from sidecar.machine.context import HistoryEvent as HistoryEvent
from sidecar.terminal.names import NAME
from sidecar.wire.frames import Message

OLDEST, PROTOCOL = 1, 1
"""The oldest and the newest version that is spoken here (`sidecar/wire/versions.py`)."""
MAX_FRAME_BYTES = MAX_LAYOUT_BYTES + (1 << 20)

EngineId = Annotated[str, Meta(pattern=rf"^{NAME}\Z")]
RegionKey = EngineId
"""Which of a device's regions (`region_key.py`)."""
Policy = Literal["shared", "exclusive"]
"""Shared after commit (weights), or exclusive by token (a pool)."""
Hash = Annotated[str, Meta(pattern=r"^([0-9a-f]{64})?\Z")]
"""A layout document's; empty: there is none."""
Name = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{0,128}\Z")]
"""A layout's hash, or a pool's digest."""
Generation = Annotated[int, Meta(ge=0, lt=1 << 62)]
"""Grows with every commit, across restarts; 0: none."""
Sentence = Annotated[str, Meta(max_length=2000)]
Document = Annotated[bytes, Meta(max_length=MAX_LAYOUT_BYTES)]
"""An encoded layout (`layout.py`). The server hands it on as it came."""
Sums = Annotated[list[Annotated[str, Meta(max_length=128)]], Meta(max_length=MAX_SLABS)]
"""One for each slab. They go with the layout in one message, which has to fit into a frame."""
Mode = Literal["rw", "ro", "rw_or_ro"]
Reason = Literal[
    "time_out",
    "no_memory",
    "too_large",
    "bad_layout",
    "stale",
    "disk",
    "not_now",
    "owned",
    "older",
    "differs",
    "off",
    "parked",
]
MOST_RANGES = 250
"""A pool has no more: their descriptors, and the table's, go with one message."""
LEAST_TABLE, MOST_TABLE = 4096, 256 << 20
Digest = Annotated[str, Meta(pattern=r"^[A-Za-z0-9._:-]{1,128}\Z")]
"""It stands for everything that has to agree before a pool's contents are of use to a successor. Only compared here."""
RangeSizes = Annotated[list[Annotated[int, Meta(gt=0, lt=1 << 62)]], Meta(min_length=1, max_length=MOST_RANGES)]
TableSize = Annotated[int, Meta(ge=LEAST_TABLE, le=MOST_TABLE)]
Token = Annotated[int, Meta(gt=0, lt=1 << 62)]
"""A fencing token of the lock's."""


class Shape(msgspec.Struct, frozen=True):
    """What never changes about a pool's memory while it lives."""

    digest: str
    """It stands for all that has to agree before contents are of use: 1 to 128 of letters, digits and `._:-`."""
    sizes: tuple[int, ...]
    """One for each range, in multiples of the device's granularity; at most 250 ranges."""
    table_size: int
    """Bytes; 4 KiB to 256 MiB."""

    @property
    def bytes(self) -> int:
        """What it takes of the device."""
        return sum(self.sizes)


# -- from a client -------------------------------------------------------------------------------------------------


class Hello(Message, frozen=True):
    """A process that has to do with a region. Descriptor: its own pidfd, where the kernel has such a thing."""

    protocol: int
    """The oldest that it speaks."""
    engine_id: EngineId
    pid: int
    newest: int = 0
    """The newest that it speaks; 0: it speaks only the one."""
    key: RegionKey = WEIGHTS
    policy: Policy = "shared"
    have: Generation = 0
    """A pool's: the memory whose descriptors it has already."""
    writes_end: bool = False
    """Whatever it writes ends with its process: it can't have io_uring (`sidecar/kernel/io_uring.py`)."""
    parks: bool = False
    """It understands `Parked`."""


class Observe(Message, frozen=True):
    """From an observer, which only looks."""

    protocol: int
    newest: int = 0


class Open(Message, frozen=True):
    """Wants to write, to read, or whichever is possible. Waits its turn; `Opened` or `Refused` is the answer.

    `rw` over a committed layout clears it, once none reads. With `replace` the old layout stays until the new one is
    committed. `bytes` is what the new one needs, if that is known: what there is no room for is refused at once.
    """

    mode: Mode
    timeout_s: Annotated[float, Meta(ge=0, le=1e6)] | None = None
    replace: bool = False
    bytes: Count = 0
    have: Generation = 0
    """The layout whose slabs the caller has kept: if it is still that one, they and the document aren't sent again.
    (Not the hash: a layout of the same structure may be other memory.)
    """
    expect: Hash = ""
    """The only layout that will do, because the caller's views are laid out by it; another is refused as stale."""
    parks: Generation = 0
    """`rw`: that layout goes to host memory, in one piece, for which the writer asks with `Create`. Nothing of it
    changes but where it is, and its number: another memory has another.
    """
    unparks: Generation = 0
    """`rw`: that layout, which lies in host memory, goes back to the device."""

    @property
    def moves(self) -> Generation:
        """The layout that is to be somewhere else; 0: none is."""
        return self.parks or self.unparks


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
    """One for each slab's contents. They are made after the commit."""

    generation: Generation
    sums: Sums


class Dropped(Message, frozen=True):
    """The answer to `Drop`: no descriptor and no mapping of that generation is left here."""

    generation: Generation


class HandBack(Message, frozen=True):
    """A process that comes back says what it has kept. To a server that waits for that very memory it brings the slabs
    `first` and following as descriptors, in as many messages as it takes, and the document with the first; to any other
    server it brings none. Answered, once all have come, by `HandedBack` or `Refused`.
    """

    generation: Generation
    hash: Name
    """The layout's, or the digest of a pool's shape."""
    sizes: Annotated[list[Count], Meta(max_length=MAX_SLABS)]
    """All slabs'; of a pool the ranges', and the table's last."""
    first: Count = 0
    layout: Document = b""
    sums: Sums = []
    reading: bool = False
    """It was reading, and reads on."""
    table: bool = False
    """The last of them is a table."""
    token: Annotated[int, Meta(ge=0, lt=1 << 62)] = 0
    """It owned the pool by that, and goes on; 0: it only has descriptors."""


class AskStatus(Message, frozen=True):
    pass


class AskLayout(Message, frozen=True):
    """Answered by `LayoutIs`."""

    key: RegionKey = WEIGHTS


class AskHistory(Message, frozen=True):
    pass


class Watch(Message, frozen=True):
    """From now on, every change of the status (for people: `gmsctl`)."""


class Ping(Message, frozen=True):
    pass


class ClaimPool(Message, frozen=True):
    """Wants to be the owner, alone. Answered by `PoolOwned` or `Refused`. Waits for the end of the owner before, and
    for memory.
    """

    digest: Digest
    sizes: RangeSizes
    table_size: TableSize
    token: Token
    proven: bool
    """The lock's grant was founded on all that has to be known of the predecessor (docs/inside/gms.md, "KV pools")."""
    timeout_s: Annotated[float, Meta(ge=0, le=1e6)]
    replace: bool = False
    """What is there in another shape may go."""


class ReleasePool(Message, frozen=True):
    """The owner has unmapped it, and writes no more. Answered by `PoolReleased`; or withdraws a claim that waits."""


class DropRegion(Message, frozen=True):
    """From an observer: that region's memory is not wanted any more. Answered by `RegionDropped` or `Refused`."""

    key: RegionKey
    timeout_s: Annotated[float, Meta(ge=0, le=1e6)] = 3.0
    """How long it may take until a new server's window is over, and every process that had its memory has let go."""


# -- from the server -----------------------------------------------------------------------------------------------


class Welcome(Message, frozen=True):
    server_incarnation: str
    device: str
    granularity: Count
    generation: Generation
    """The committed layout's or the pool's memory, or what is to be handed back; 0: there is none."""
    hash: Name
    recovering: bool
    """The server waits for that memory: a process that has it is to hand it back."""
    protocol: int = 0
    """What is spoken from now on: the newest that both sides speak."""


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
    """The slabs' contents, where their sums are known."""
    contents: Generation = 0
    """The generation whose contents these are, where they were moved since."""


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


class Parked(Message, frozen=True):
    """The layout lies in host memory. Descriptor: of that, in one piece, slab after slab. To each process that is
    asleep, which keeps it in place of the slabs that it had, and hands it back like them; and before a process that
    wants to read is refused with the reason `parked`: it can bring it back (`Open.unparks`).
    """

    generation: Generation
    hash: Hash
    size: Count
    layout: bytes
    sums: list[str] = []
    contents: Generation = 0


class Drop(Message, frozen=True):
    """That memory is the region's no longer: let go of it, and say so."""

    generation: Generation


class HandedBack(Message, frozen=True):
    """All is as it was."""

    generation: Generation
    reading: bool = False


class Refused(Message, frozen=True):
    """The answer to what was asked last. The connection goes on."""

    why: Sentence
    reason: Reason


class Problem(Message, frozen=True):
    """The connection ends after this."""

    why: Sentence
    about: Literal["", "protocol", "place"] = ""
    """`protocol`: there is none that both sides speak. `place`: there is no room for one more."""


class PoolIs(Message, frozen=True):
    """What there is, whenever that changes. Descriptors, for who hasn't got them: the ranges, and the table last."""

    generation: Generation
    """0: there is no memory."""
    digest: str = ""
    sizes: list[Count] = []
    table_size: Count = 0
    owner: str = ""
    """In words; empty: it has none."""


class PoolOwned(Message, frozen=True):
    """The caller may write, and no other process. Descriptors as with `PoolIs`, where the caller hasn't got them."""

    generation: Generation
    adopted: bool
    """Memory and table are as the last owner left them; else they read as zeros."""
    why_empty: Literal["", "new", "replaced", "unproven", "second_death"] = ""


class PoolReleased(Message, frozen=True):
    """The answer to `ReleasePool`: it is on disk."""


class RegionDropped(Message, frozen=True):
    """The answer to `DropRegion`: its memory is given up, which is on disk. And what a writer that has parked a layout
    is told after `Committed`: of the slabs in the device.
    """

    key: str
    bytes: Count
    seen: bool = False
    """The device itself says that no process has that memory any more. Else the processes that had it have said so."""
    still: list[Sentence] = []
    """Processes that have it still, and were asked to let go of it."""


class RegionStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One region, for people."""

    key: str
    policy: Policy
    state: Literal["EMPTY", "RW", "COMMITTED", "RO", "PARKED", "RECOVERING", "MAKING", "OWNED", "FREE", "AWAITED"]
    since: str = ""
    """RFC 3339: when its state became what it is."""
    generation: Generation = 0
    hash: Name = ""
    """The layout's, or the digest of a pool's shape."""
    bytes: Count = 0
    """What it takes of the device, in slabs of this server."""
    slabs: Count = 0
    keepers: Count = 0
    """Processes that have descriptors of it."""
    tensors: Count = 0
    """What a layout has."""
    owner: str = ""
    """A pool has one; what follows is said of pools, too."""
    token: Count = 0
    """The newest with which an owner was let in."""
    table_bytes: Count = 0
    blocks: Count = 0
    """Whose records in the table are true: a successor would find them."""
    blocks_total: Count = 0
    """0: the table can't tell."""
    doubt: Sentence = ""
    """Why its contents will be handed on to no process; of weights, why a new server awaits them no longer."""
    adoptions: Count = 0
    """By this server, since it started."""
    drops: dict[str, int] = {}
    """Why contents were given up, and how often, by this server."""


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """One process, for people."""

    engine_id: str
    pid: int
    region: str = WEIGHTS
    doing: Literal["writing", "reading", "asleep", "waiting", "watching"]
    since: str
    """RFC 3339."""
    wants: str = ""
    """While it waits: the mode."""
    holds: list[Generation] = []
    """Layouts of which it has descriptors: it keeps their memory in use."""


class Status(Message, frozen=True):
    state: Literal["EMPTY", "RW", "COMMITTED", "RO", "PARKED", "RECOVERING"]
    device: str
    clients: list[Client] = []
    """The first hundred; `clients_total` says how many there are."""
    clients_total: Count = 0
    generation: Generation = 0
    hash: Hash = ""
    bytes: Count = 0
    """In slabs of this server."""
    slabs: Count = 0
    tensors: Count = 0
    free: Count = 0
    capacity: Count = 0
    parked: dict[str, Count] = {}
    """Regions whose weights take host memory, and how many bytes of it."""
    host_memory: Count = 0
    """What they may take of it."""
    waiting_for: list[Sentence] = []
    """Why the waiters wait. Long lists of sentences are cut, and say so in their last one."""
    pending_drops: list[Sentence] = []
    """Processes that still have memory of a layout that is gone, and were asked to drop it."""
    alarms: list[Sentence] = []
    events: dict[str, int] = {}
    """How often each thing has happened since this server started: `committed`, `handed_back`, ..."""
    server_incarnation: str = ""
    server_pid: int = 0
    since: str = ""
    regions: list[RegionStatus] = []
    """All of them. What stands above of weights is said of the model that is furthest from being there."""


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
    | ClaimPool
    | ReleasePool
    | DropRegion
)
ServerMessage = (
    Welcome
    | Changed
    | Opened
    | Slabs
    | Created
    | Committed
    | Withdrawn
    | Parked
    | Drop
    | HandedBack
    | Refused
    | Problem
    | Status
    | LayoutIs
    | History
    | Pong
    | PoolIs
    | PoolOwned
    | PoolReleased
    | RegionDropped
)


def shape_of(message: ClaimPool | PoolIs) -> Shape:
    return Shape(message.digest, tuple(message.sizes), message.table_size)


from_client: "msgspec.msgpack.Decoder[ClientMessage]" = msgspec.msgpack.Decoder(ClientMessage)
from_server: "msgspec.msgpack.Decoder[ServerMessage]" = msgspec.msgpack.Decoder(ServerMessage)
