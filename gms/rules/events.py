"""The vocabulary between the server's machine and its shell: what happens (events), and what to do about it (effects).

The shell feeds events one at a time and carries the effects of each out in order before the next. Some effects are
questions; their answers come back as events, in the order of the questions and before anything else is looked at:
`Allocate` (`Allocated`, `NotAllocated`), `Persist` (`Persisted`, `PersistFailed`), `CheckMemory` (`MemoryChecked`),
`CheckPeer` (`PeerChecked`). Every question is answered.

Slabs are named by handles: small numbers that the shell gives to descriptors. A handle that the machine is given is
the machine's to `Forget`.
"""

import msgspec

from gms.rules.messages import ClientMessage, ServerMessage
from gms.rules.record import Record
from gms.rules.weights import Slab as Slab
from sidecar.machine.context import Close as Close
from sidecar.machine.context import Closed as Closed
from sidecar.machine.context import Died as Died
from sidecar.machine.context import DirectoryReplaced as DirectoryReplaced
from sidecar.machine.context import Effect as Effect
from sidecar.machine.context import Event as Event
from sidecar.machine.context import ForgetProcess as ForgetProcess
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
from sidecar.wire.frames import MAX_DESCRIPTORS


class Config(msgspec.Struct, frozen=True):
    device: str
    server_incarnation: str
    server_pid: int = 0
    boot_id: str = ""
    granularity: int = 1
    capacity: int = 0
    window_s: float = 10.0
    """How long a new server keeps writers out, so that a process that had its layout can come back."""
    memory_wait_s: float = 30.0
    """How long a writer waits for memory on a full device."""
    history_size: int = 1000
    batch: int = MAX_DESCRIPTORS
    """How many descriptors go with one message."""
    pid_namespace: str = ""
    """Where the numbers of processes mean what they mean here; empty: that can't be told."""
    time_namespace: str = ""
    """Where the clock that never jumps says what it says here; empty: everywhere."""
    leases: bool = False
    """The device's memory is leased in a ledger before it is made."""
    host_memory: int = 0
    """Bytes of it that parked weights may take."""
    pools_off: str = ""
    """Why no process may have a pool; empty: each may."""


# -- events --------------------------------------------------------------------------------------------------------


class Started(Event, frozen=True):
    record: Record | None
    unreadable: str = ""
    """What is in the file is no record; or such a file was kept aside, and nothing was written since. A second crash
    must not make a server that knows of nothing.
    """
    generation_floor: int = 0
    """Generations begin above it (`numbers_begin`), so that none comes again even where the file was lost."""
    owners: tuple["FoundOwner", ...] = ()
    """What has become of the owners of pools, by the file."""


class FoundOwner(msgspec.Struct, frozen=True):
    key: str
    process: int | None = None
    """It lives: the handle of its pidfd."""
    gone: bool = False
    """It doesn't. (Neither: that can't be told.)"""


class Received(Event, frozen=True):
    conn: int
    message: ClientMessage
    slabs: tuple[Slab, ...] = ()
    """`HandBack`: what its descriptors are."""
    process: int | None = None
    """`Hello`: the handle of the sender's pidfd; None where there is none to be had."""
    identity: str = ""
    """`Hello`: the kernel's name for the sender; empty on older kernels."""
    local_pid: int = 0
    """`Hello`: its number in the server's own PID namespace; 0 where it has none."""
    writes_end: bool = False
    """`Hello`: it says that what it writes ends with its process, and nothing that is seen of it denies that."""


class Allocated(Event, frozen=True):
    conn: int
    slabs: tuple[Slab, ...]
    """In the order of the sizes; the table is the last."""


class NotAllocated(Event, frozen=True):
    conn: int
    needed: int
    free: int
    why: str = ""
    """Not for lack of the device's memory: something else is wrong."""
    is_full: bool = False
    """It is a full device all the same: the lease can't grow."""


class MemoryChecked(Event, frozen=True):
    free: int
    held: bool | None = None
    """Does a process still have the memory that was asked about? None: that can't be told."""
    blocks: dict[int, tuple[int, int]] = {}
    """Handle of a table -> how many of its records are true, and how many there are."""


class Leased(Event, frozen=True):
    """The answer to a `Lease` that grows, in time, and not before others are looked at."""

    wish: int
    why: str = ""
    """Why it didn't grow; empty: it did."""


class FileGone(Event, frozen=True):
    """The state file was deleted."""


class PeerChecked(Event, frozen=True):
    conn: int
    there: bool


# -- effects -------------------------------------------------------------------------------------------------------


class Send(Effect, frozen=True):
    conn: int
    message: ServerMessage
    slabs: tuple[int, ...] = ()
    """Handles whose descriptors go with it."""


class Allocate(Effect, frozen=True):
    """All of it or nothing: slabs on the device, and a table beside them, in the host's memory, if it has a size.
    Without slabs it is for parked weights, whose writer makes its pages.
    """

    conn: int
    sizes: tuple[int, ...]
    table_size: int = 0


class Lease(Effect, frozen=True):
    """The region's lease in the ledger is to have so many bytes."""

    key: str
    bytes: int
    wish: int = 0
    """It grows, and this is the wish's number; `Leased` is the answer. 0: it shrinks, which has none."""
    timeout_s: float = 0.0
    found: int = 0
    """If there is none yet: so much of it is in use already."""


class CallOff(Effect, frozen=True):
    """This wish for a lease isn't wanted any more: `Leased` comes as soon as the ledger has heard of that."""

    wish: int


class Forget(Effect, frozen=True):
    """Close the descriptors of these slabs."""

    slabs: tuple[int, ...]


class CheckMemory(Effect, frozen=True):
    identities: tuple[str, ...] = ()
    tables: tuple[int, ...] = ()
    """Handles of pools' tables, whose records are to be counted."""


class CheckPeer(Effect, frozen=True):
    """Is it still there, at this moment? Not if its pidfd is readable, or its end of the connection is closed (though
    messages of it may be unread), whether or not that was noticed before.
    """

    conn: int


class Persist(Effect, frozen=True):
    seq: int
    record: Record
