"""The vocabulary between the server's machine and its shell: what happens (events), and what to do about it (effects).

The shell feeds events one at a time and carries the effects of each out in order before the next. Some effects are
questions; their answers come back as events, before anything else is looked at: `ProbeLife` and `ProbeStrangers`
(`LifeProbed`, `StrangersProbed`), `LookUp` (`LookedUp`), `TakeNames` (`NamesTaken`), `Persist` (`Persisted`,
`PersistFailed`). Only `ReadMemory` (`MemoryRead`) and `LookAt` (`LookedAt`) are answered later, or never: a driver may
hang.

Processes are named by handles: small numbers that the shell gives to pidfds. A handle that the machine is given is
the machine's to `Forget`.
"""

import math

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
    Hindered as Hindered,
)
from sidecar.context import (
    Note as Note,
)
from sidecar.context import (
    PathWatched as PathWatched,
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
    """Its number as it says itself, where the server has none for it. For people; on kernels that give pidfds no inode
    it also tells who a process is.
    """
    local_pid: int = 0
    """Its number in the server's own PID namespace; 0 where it has none."""
    dead: bool = False
    """Its pidfd is readable already. Only looked at where somebody brings the pidfds of others."""


class Config(msgspec.Struct, frozen=True):
    server_incarnation: str
    server_pid: int = 0
    boot_id: str = ""
    pid_namespace: str = ""
    """In which the numbers of processes in the file are to be read."""
    evidence: str = "peer pidfd"
    window_s: float = 10.0
    settle_s: float = 2.0
    memory_bound_s: float = math.inf
    """After so long a grant is made though the memory that it needs isn't free; by default never."""
    memory_patience_s: float = 30.0
    """After so long others who need less go first, and somebody is woken."""
    reader_s: float = 2.0
    """A reading that takes longer counts for nothing."""
    prepare_timeout_s: float = 1.0
    exit_timeout_s: float = 10.0
    presume_dead: bool = False
    """The specification's letter: after the window a silent holder counts as dead, whatever its life lock says."""
    grant_unproven: bool = False
    """After the window a free life lock is enough, though nothing proves the end of every process."""
    reads_memory: bool = False
    memory_why: str = ""
    """Why nobody does."""
    keepers: int = 4
    """How many waiters keep copies of the holder's pidfds."""
    copies_under_way: int = 32
    """So many may be with one of them that hasn't said yet that it has taken them: a stopped one gets no more."""
    most_copies_under_way: int = 256
    """With all of them together. The kernel lets a user have as many descriptors sent and unread as a process may have
    files open, 1024 as a rule; and refuses everybody's then.
    """
    history_size: int = 1000


# -- events --------------------------------------------------------------------------------------------------------


class Started(msgspec.Struct, frozen=True):
    record: Record | None
    unreadable: str = ""
    """Why the file that is there can't be read; empty when it can, or when there is none."""
    token_floor: int = 0
    """Tokens begin above it: the time, so that they grow even where the file was lost, or an old one came back."""


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
    """`Kill` was refused by the kernel: a sibling PID namespace, or a seccomp profile."""

    process: int
    why: str = "another PID namespace"


class LifeProbed(msgspec.Struct, frozen=True):
    incarnation: str
    held: bool | None
    """None: the file is gone, and no descriptor of it is left."""


class StrangersProbed(msgspec.Struct, frozen=True):
    held: tuple[str, ...]
    free: tuple[str, ...]
    unreadable: str = ""
    """Why their directory couldn't be read: then nobody knows who there is."""

    @property
    def somebody(self) -> bool:
        """There is somebody, or may be."""
        return bool(self.held or self.unreadable)


class LookedUp(msgspec.Struct, frozen=True):
    """What became of processes that only the file tells of. Who is in neither list: nobody can say."""

    incarnation: str
    gone: tuple[int, ...]
    """Numbers of members: no such process, or another one has its number by now."""
    alive: tuple[tuple[int, Peer], ...]


class LookedAt(msgspec.Struct, frozen=True):
    """What processes were seen to be, in words that say what to do."""

    incarnation: str
    processes: tuple[tuple[int, str], ...] = ()
    """Handle, and how it is: "is stopped (T): ..."."""
    life: tuple[str, ...] = ()
    """The processes that have the life lock."""


class NamesTaken(msgspec.Struct, frozen=True):
    missing: tuple[tuple[str, str], ...]
    """What somebody else has, in words, and who that is. Empty: this server (or its holder) has all of them."""
    others: bool = True
    """Others have them; or this server can't take them, for want of a descriptor say."""


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
    | LookedUp
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


class Forget(msgspec.Struct, frozen=True):
    process: int


class Kill(msgspec.Struct, frozen=True):
    process: int


class ProbeLife(msgspec.Struct, frozen=True):
    incarnation: str


class ProbeStrangers(msgspec.Struct, frozen=True):
    """Every life file but these."""

    known: tuple[str, ...]


class LookUp(msgspec.Struct, frozen=True):
    incarnation: str
    members: tuple[tuple[int, int, str], ...]
    """Number as a member, number as a process, identity."""


class LookAt(msgspec.Struct, frozen=True):
    """Why do these processes live, and who has the life lock? Answered later, or never: /proc may hang as they do."""

    incarnation: str
    processes: tuple[int, ...]
    life: bool


class TakeNames(msgspec.Struct, frozen=True):
    """Its path's, and these devices'."""

    devices: tuple[str, ...]


class Unlink(msgspec.Struct, frozen=True):
    incarnation: str


class ReadMemory(msgspec.Struct, frozen=True):
    """A new reading: one that began after this."""


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
    | LookUp
    | LookAt
    | TakeNames
    | Unlink
    | ReadMemory
    | Persist
    | Publish
    | Note
    | Stop
)
