"""One incarnation: one start of one engine, with its processes: which belong to it, and what is known of their ends.

Pure data with the questions one may ask of it. What counts as a proof of its end stands in `proof.py`.
"""

import enum
import math
from dataclasses import dataclass, field

from evidence.rules.events import Peer
from sidecar.terminal.names import incarnation_name

PROBE_FIRST_S = 0.001
PROBE_GROWS = 1.25
PROBE_MOST_S = 0.1
"""The kernel doesn't tell when a life lock becomes free: it is looked at, and a look costs microseconds. So its end is
known after at most a quarter more than the time that it took.
"""
PROBE_ALIVE_MOST_S = 2.0
"""While its main process lives, and its end isn't awaited. From then on no timer runs for it."""
MAIN = 1
"""The main process is always the first member."""


class Stage(enum.Enum):
    AWAITED = "awaited"
    """Known from the file, or through a member; its main process has not come to this server yet."""
    PRESENT = "present"
    """Its main process is connected, and not known to be dead."""
    LOST = "lost"
    """The connection ended; the process isn't proven dead, and may come back."""
    DOOMED = "doomed"
    """The main process is dead, or was told to end: it doesn't come back."""


class Life(enum.Enum):
    """What the server knows of its life lock."""

    UNKNOWN = "unknown"
    HELD = "held"
    FREE = "free"
    MISSING = "missing"


@dataclass(slots=True)
class Member:
    """One process."""

    number: int
    identity: str
    pid: int
    local_pid: int = 0
    """Its number in the server's own PID namespace; 0 where it has none."""
    process: int | None = None
    """The handle of its pidfd."""
    conns: set[int] = field(default_factory=set)
    was_alive: bool = False
    """This server has had a pidfd of it while it lived."""
    dead: bool = False
    mapped: bool = False
    """While it lives it can't let go of its life lock."""
    out_of_reach: str = ""
    """Why this server can't kill it; empty if it can, as far as is known."""
    killed: bool = False

    @property
    def seen_alive(self) -> bool:
        """A pidfd that isn't readable vouches for its life, or an open connection."""
        return not self.dead and (self.process is not None or bool(self.conns))


@dataclass(slots=True)
class Incarnation:
    engine_id: str
    random: str
    """What tells this start from every other one of the same engine."""
    stage: Stage
    elsewhere_since: float = math.inf
    """Since when its main process is known to be here under another name."""
    secret: str = ""
    members: dict[int, Member] = field(default_factory=dict)
    numbered: int = MAIN
    """The highest number given to a member; the first is the main process's."""
    conn: int | None = None
    """The main process's connection."""
    came: bool = False
    """Its main process has come to this server, and said what it holds."""
    life: Life = Life.UNKNOWN
    probing: bool = False
    probe_at: float = -math.inf
    probe_wait_s: float = PROBE_FIRST_S
    cannot_talk: str = ""
    """Why its main process and this server can't talk, though it lives: their versions. Empty if they can."""
    bound: bool = False
    """Its server has granted it something: its end has to be proven, and be on disk before its life file goes."""
    older: bool = False
    """It is older than this server, which may not know all its members: a file can be an older copy of itself."""
    outlived_at: float = -math.inf
    """When this server last saw the life lock held though every known member had ended; only of an `older` one."""

    name: str = field(init=False)
    """Also the name of its life file."""

    def __post_init__(self) -> None:
        self.name = incarnation_name(self.engine_id, self.random)

    @property
    def main(self) -> Member | None:
        return self.members.get(MAIN)

    @property
    def pid(self) -> int:
        return self.members[MAIN].pid if MAIN in self.members else 0

    @property
    def members_gone(self) -> bool:
        return all(member.dead for member in self.members.values())

    @property
    def may_have_left(self) -> bool:
        """The main process lives without a connection, and no other member is left. A free life lock says that it
        closed its client; a held one, that it may come back.
        """
        main = self.main
        if self.stage is not Stage.LOST or main is None or main.conns or not self.came or self.cannot_talk:
            return False
        return not main.dead and all(member.dead for member in self.members.values() if member is not main)

    @property
    def unaccounted(self) -> bool:
        """There is a member of which only the file tells."""
        return any(not member.dead and not member.seen_alive for member in self.members.values())

    @property
    def seen_alive(self) -> bool:
        return any(member.seen_alive for member in self.members.values())

    @property
    def was_alive(self) -> bool:
        """This server has seen its main process alive."""
        return self.main is not None and self.main.was_alive

    @property
    def ends(self) -> bool:
        """Nothing is left of it that the server has to wait for, if nothing was granted to it: every process has ended,
        or its client was closed; and its life lock is free.
        """
        if self.members_gone and self.life in (Life.FREE, Life.MISSING):
            return True
        return self.may_have_left and self.life is Life.FREE

    @property
    def living(self) -> tuple[int, ...]:
        """Handles of the members that haven't ended, as far as there are pidfds."""
        return tuple(m.process for m in self.members.values() if not m.dead and m.process is not None)

    @property
    def to_kill(self) -> tuple[Member, ...]:
        """Living members that this server can kill and hasn't killed yet, the main process among them."""
        return tuple(
            member
            for member in self.members.values()
            if not member.dead and member.process is not None and not member.out_of_reach and not member.killed
        )

    def add(self, identity: str, pid: int, number: int = 0) -> Member:
        number = number or self.numbered + 1
        self.numbered = max(self.numbered, number)
        member = self.members[number] = Member(number, identity, pid)
        return member

    @property
    def fenced(self) -> bool:
        """Its end is to be proven. A main process that lives and can't talk isn't on its way out."""
        return self.stage is Stage.DOOMED or (self.stage is Stage.LOST and not self.cannot_talk)

    def find(self, peer: Peer, number: int) -> Member | None:
        """The member that this process already is: by its inode. On older kernels by its pid, if that can't have become
        another's: while the member is seen alive under it, or where the process also knows the number that the
        member was given.
        """
        for member in self.members.values():
            if peer.identity or member.identity:
                if peer.identity == member.identity:
                    return member
            elif (
                not member.dead
                and peer.pid > 0
                and member.pid == peer.pid
                and (member.process is not None or member.number == number)
            ):
                return member
        return None

    def probed(self, held: bool | None, now: float) -> None:
        """The life lock was looked at. None: its file is gone, and no process has a descriptor of it."""
        self.life = Life.MISSING if held is None else Life.HELD if held else Life.FREE
        if held and self.older and self.members_gone:
            self.outlived_at = now
        self.probe_at = now + self.probe_wait_s
        most = PROBE_ALIVE_MOST_S if self.seen_alive else PROBE_MOST_S
        self.probe_wait_s = min(self.probe_wait_s * PROBE_GROWS, most)
