"""The vocabulary of evidence: what happens to processes (events), and what is asked about them (effects).

A server that has processes to prove gone includes these words in its own machine's. `ProbeLife`, `ProbeStrangers` and
`LookUp` are questions: `LifeProbed`, `StrangersProbed` and `LookedUp` come back before anything else is looked at.
`LookAt` (`LookedAt`) and `ReadMemory` (`MemoryRead`) are answered later, or never: /proc may hang, and a driver.

Processes are named by handles: small numbers that the shell gives to pidfds. A handle that the machine is given is the
machine's to give back (`ForgetProcess`).
"""

from typing import Any

import msgspec

from sidecar.machine.context import Died as Died
from sidecar.machine.context import ForgetProcess as ForgetProcess
from sidecar.machine.context import WatchDeath as WatchDeath


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
    """Its pidfd is readable already. Only looked at where a process brings the pidfds of others."""


class Config(msgspec.Struct, frozen=True, kw_only=True):
    server_incarnation: str = ""
    server_pid: int = 0
    evidence: str = "peer pidfd"
    """How ends are seen, in words."""
    boot_id: str = ""
    pid_namespace: str = ""
    """In which the numbers of processes in the file are to be read."""
    settle_s: float = 2.0
    """How long a process that has let go of its life lock may be dying."""
    copies_under_way: int = 32
    """How many may be with one client that hasn't said yet that it has taken them: a stopped one gets no more."""
    most_copies_under_way: int = 256
    """With all of them together. The kernel lets a user have as many descriptors sent and unread as a process may have
    files open, 1024 as a rule; and refuses all of it then.
    """
    reader_s: float = 2.0
    """A reading of memory that takes longer counts for nothing."""
    reads_memory: bool = False
    memory_why: str = ""
    """Why it reads none."""


# -- events --------------------------------------------------------------------------------------------------------


class Received(msgspec.Struct, frozen=True):
    conn: int
    message: Any
    peers: tuple[Peer, ...] = ()
    """`Register`, `Join`: the sender itself. `Vouch`, `HandBack`: whom the descriptors name."""
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
    """Why their directory couldn't be read: then it isn't known which there are."""

    @property
    def any(self) -> bool:
        """There is one that is held, or may be."""
        return bool(self.held or self.unreadable)


class LookedUp(msgspec.Struct, frozen=True):
    """What became of processes that only the file tells of. Of those in neither list nothing can be said."""

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


class MemoryRead(msgspec.Struct, frozen=True):
    devices: dict[str, tuple[int, int]]
    """Device -> (bytes free, bytes in all)."""
    problem: str = ""


Event = Received | Died | OutOfReach | LifeProbed | StrangersProbed | LookedUp


# -- effects -------------------------------------------------------------------------------------------------------


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
    """Why do these processes live, and which have the life lock?"""

    incarnation: str
    processes: tuple[int, ...]
    life: bool


class Unlink(msgspec.Struct, frozen=True):
    incarnation: str


class ReadMemory(msgspec.Struct, frozen=True):
    """A new reading: one that began after this."""


class Send(msgspec.Struct, frozen=True):
    conn: int
    message: Any
    processes: tuple[int, ...] = ()
    """With copies of their pidfds."""


class Persist(msgspec.Struct, frozen=True):
    """A record of its user's. Answered by `Persisted` or `PersistFailed`."""

    seq: int
    record: Any


Effect = WatchDeath | ForgetProcess | Kill | ProbeLife | ProbeStrangers | LookUp | LookAt | Unlink
