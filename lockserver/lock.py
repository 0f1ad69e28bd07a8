"""What is known of one lock, and of the connections: the values on which `machine.py` and its parts work."""

from dataclasses import dataclass
from enum import Enum

from lockserver import messages as m
from lockserver.queue import Waiter
from lockserver.tree import Stage, Tree


class State(Enum):
    FREE = "FREE"
    HELD = "HELD"
    FENCING = "FENCING"
    RECOVERING = "RECOVERING"


class Found(Enum):
    """What a new server found that keeps it from granting."""

    HOLDER = "a holder"
    UNREADABLE = "a holder file that can't be read"
    NOTHING = "no holder file"


@dataclass(slots=True)
class Recovery:
    found: Found
    since: float
    until: float


@dataclass(slots=True)
class Caller:
    """One connection, by what it introduced itself as."""

    conn: int
    tree: Tree | None = None
    main: bool = False
    watching: bool = False


@dataclass(slots=True)
class Lock:
    name: m.LockName
    holder: Tree | None = None
    """Who holds it, or who must be proven gone before anybody else does."""
    told: bool = False
    """The grant is on disk, so the holder has been told, or may be."""
    token: int = 0
    granted_at: str = ""
    endpoint: str | None = None
    verified: bool = False
    """Its memory was seen to be free at the grant."""
    fencing_since: float = 0.0
    """On the clock on the wall; 0 while it isn't fencing."""
    recovery: Recovery | None = None
    written_by: int = 0
    waiter: Waiter | None = None
    """What the holder was, until it is told: its place, should the grant come to nothing."""

    @property
    def held(self) -> bool:
        return self.holder is not None and self.told and self.holder.stage is Stage.PRESENT

    @property
    def in_doubt(self) -> bool:
        """Somebody whom no file names may hold it."""
        return self.recovery is not None and self.recovery.found is not Found.HOLDER
