"""The vocabulary between the server's machine and its shell: what happens (events), and what to do about it (effects).

The shell feeds events one at a time and carries the effects of each out in order before the next. Four effects are
questions; their answers come back as events: `ProbeLife` and `ProbeStrangers` (`LifeProbed`, `StrangersProbed`),
`ReadMemory` (`MemoryRead`), `Persist` (`Persisted`, `PersistFailed`).

Processes are named by handles: small numbers that the shell gives to pidfds. A handle that the machine is given is
the machine's to `Forget`.
"""

import msgspec

from lockserver.messages import ClientMessage, ServerMessage
from lockserver.record import Record
from sidecar.context import (
    Close as Close,
)
from sidecar.context import (
    Closed as Closed,
)
from sidecar.context import (
    Died as Died,
)
from sidecar.context import (
    DirectoryReplaced as DirectoryReplaced,
)
from sidecar.context import (
    Note as Note,
)
from sidecar.context import (
    Persisted as Persisted,
)
from sidecar.context import (
    PersistFailed as PersistFailed,
)
from sidecar.context import (
    Publish as Publish,
)
from sidecar.context import (
    Stop as Stop,
)
from sidecar.context import (
    Tick as Tick,
)
from sidecar.context import (
    Time as Time,
)
from sidecar.context import (
    WatchDeath as WatchDeath,
)


class Peer(msgspec.Struct, frozen=True):
    """A process, as the kernel shows it."""

    process: int | None
    """The handle of its pidfd; None where there is none to be had."""
    identity: str
    """`pidfs:<inode>`, the same for every pidfd of one process in one boot; empty on older kernels."""
    pid: int


class Config(msgspec.Struct, frozen=True):
    server_incarnation: str
    server_pid: int = 0
    boot_id: str = ""
    evidence: str = "peer pidfd"
    window_s: float = 10.0
    settle_s: float = 2.0
    memory_bound_s: float = 30.0
    prepare_timeout_s: float = 1.0
    exit_timeout_s: float = 10.0
    presume_dead: bool = False
    """The specification's letter: after the window a silent holder counts as dead, whatever its life lock says."""
    grant_unproven: bool = False
    """After the window a free life lock is enough, though neither pidfds nor memory prove it."""
    reads_memory: bool = False
    keepers: int = 4
    """How many waiters keep copies of the holder's pidfds."""
    history_size: int = 1000


# -- events --------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    record: Record | None
    unreadable: str = ""
    """Why the file that is there can't be read; empty when it can, or when there is none."""
    token_floor: int = 0
    """Tokens begin above it: the machine's uptime, so that they grow even where the file was lost."""


class Received(msgspec.Struct, frozen=True):
    conn: int
    message: ClientMessage
    peers: tuple[Peer, ...] = ()
    """`Register`, `Join`: the sender itself. `Adopt`, `HandBack`: whom the descriptors name."""
    life_held: bool = False
    """`Register`, `Join`: the named life file is in its place, is the sender's, and is locked."""
    secret: str = ""
    """`Register`: a fresh one, to be given if the sender is new."""


class OutOfReach(msgspec.Struct, frozen=True):
    """`Kill` was refused by the kernel: a sibling PID namespace."""

    process: int


class LifeProbed(msgspec.Struct, frozen=True):
    tree: str
    held: bool | None
    """None: the file is gone, and no descriptor of it is left."""


class StrangersProbed(msgspec.Struct, frozen=True):
    held: tuple[str, ...]
    free: tuple[str, ...]


class MemoryRead(msgspec.Struct, frozen=True):
    devices: dict[str, tuple[int, int]]
    """Device -> (bytes free, bytes in all)."""
    problem: str = ""


Event = (
    Started
    | Received
    | Closed
    | Died
    | OutOfReach
    | LifeProbed
    | StrangersProbed
    | MemoryRead
    | Persisted
    | PersistFailed
    | DirectoryReplaced
    | Tick
)


# -- effects -------------------------------------------------------------------------------------------------------


class Send(msgspec.Struct, frozen=True):
    conn: int
    message: ServerMessage
    processes: tuple[int, ...] = ()


class Forget(msgspec.Struct, frozen=True):
    process: int


class Kill(msgspec.Struct, frozen=True):
    process: int


class ProbeLife(msgspec.Struct, frozen=True):
    tree: str


class ProbeStrangers(msgspec.Struct, frozen=True):
    """Every life file but these."""

    known: tuple[str, ...]


class Unlink(msgspec.Struct, frozen=True):
    tree: str


class ReadMemory(msgspec.Struct, frozen=True):
    pass


class Persist(msgspec.Struct, frozen=True):
    seq: int
    record: Record


Effect = (
    Send
    | Close
    | WatchDeath
    | Forget
    | Kill
    | ProbeLife
    | ProbeStrangers
    | Unlink
    | ReadMemory
    | Persist
    | Publish
    | Note
    | Stop
)
