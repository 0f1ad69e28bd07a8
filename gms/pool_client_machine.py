"""A process's side of one pool: its connection, the memory of which it has descriptors, and what it wants.

Pure: an event and the time go in, effects come out; the shell is `pool_client.py`. The server's side is
`exclusive.py`.

 1. Whoever has descriptors keeps them while the server is away, and brings them to the next one that waits for them.
 2. An owner goes on whatever the server says: its memory is mapped. If a server won't have it as the owner any more it
    is told so (`Disowned`), and only its successor loses by it.
 3. Who isn't the owner lets go of what the server has given up.
 4. A claim, and a release, are said again on the next connection if this one ends before the answer. Every claim ends
    in time.
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, Literal

import msgspec

from gms import messages as m
from gms.client_machine import GRACE_S, RETRY_MOST_S, TURNED_AWAY_S
from sidecar.reconnect import Reconnect

RELEASE_AGAIN_S = 0.5


class Shape(msgspec.Struct, frozen=True):
    """What never changes about a pool's memory."""

    digest: str
    """It stands for all that has to agree before contents are of use: 1 to 128 of letters, digits and `._:-`."""
    sizes: tuple[int, ...]
    """One for each range, in multiples of the device's granularity; at most 250 ranges."""
    table_size: int
    """Bytes; 4 KiB to 256 MiB."""


class There(msgspec.Struct, frozen=True):
    """A pool, as far as this process was told."""

    generation: int
    shape: Shape
    owner: str = ""
    """In words; empty: nobody may write."""


# -- events --------------------------------------------------------------------------------------------------------


class Connected(msgspec.Struct, frozen=True):
    has: tuple[int, ...] = ()
    """Generations of which the shell really has the descriptors."""


class Disconnected(msgspec.Struct, frozen=True):
    why: str = ""
    """What came over it was no message."""


class Heard(msgspec.Struct, frozen=True):
    message: m.ServerMessage


class Want(msgspec.Struct, frozen=True):
    shape: Shape
    token: int
    proven: bool
    replace: bool
    timeout_s: float


class Release(msgspec.Struct, frozen=True):
    """The owner has unmapped it; or a claim isn't wanted any more."""


class Tick(msgspec.Struct, frozen=True):
    pass


Event = Connected | Disconnected | Heard | Want | Release | Tick


# -- effects -------------------------------------------------------------------------------------------------------


class Connect(msgspec.Struct, frozen=True):
    pass


class Say(msgspec.Struct, frozen=True):
    message: m.ClientMessage
    brings: bool = False
    """The descriptors of the memory that it has go with it."""


class Keep(msgspec.Struct, frozen=True):
    """The descriptors that came are that memory's."""

    generation: int


class LetGo(msgspec.Struct, frozen=True):
    """Close the descriptors of that memory."""

    generation: int


class Got(msgspec.Struct, frozen=True):
    generation: int
    shape: Shape
    adopted: bool
    why_empty: str


class No(msgspec.Struct, frozen=True):
    why: str
    reason: m.Reason | Literal["problem", "protocol"]


class Released(msgspec.Struct, frozen=True):
    pass


class Disowned(msgspec.Struct, frozen=True):
    why: str


class Unwelcome(msgspec.Struct, frozen=True):
    why: str
    about: Literal["", "protocol", "place"] = ""


class Welcome(msgspec.Struct, frozen=True):
    incarnation: str


class Changed(msgspec.Struct, frozen=True):
    """What there is, as far as it is known."""


Effect = Connect | Say | Keep | LetGo | Got | No | Released | Disowned | Unwelcome | Welcome | Changed


class Link(Enum):
    AWAY = "away"
    KNOCKING = "knocking"
    IN = "in"


class Awaiting(Enum):
    """Which answer."""

    NONE = "none"
    BACK = "back"
    CLAIM = "claim"
    RELEASE = "release"


class PoolClientMachine:
    def __init__(self, engine_id: str, pid: int, key: str, *, writes_end: bool) -> None:
        """`writes_end`: what this process writes ends with it."""
        self.engine_id = engine_id
        self.writes_end = writes_end
        self.pid = pid
        self.key = key
        self.deadline = 0.0
        self.link = Link.AWAY
        self.kept: There | None = None
        """The memory of which the shell has the descriptors."""
        self.there: There | None = None
        self.token = 0
        """The owner's; 0: this process isn't the owner."""
        self._awaiting = Awaiting.NONE
        self._want: Want | None = None
        self._want_until = math.inf
        self._said: Want | None = None
        """What was claimed last: its answer may come when nobody wants it any more."""
        self._releasing = False
        self._release_at = 0.0
        """Not before that: the server's disk failed."""
        self._back = False
        """This server doesn't know yet what we have."""
        self._brings = False
        """And waits for it."""
        self._reconnect = Reconnect(RETRY_MOST_S)
        self._connecting = False
        self._turned_away = False
        self._out: list[Effect] = []
        self._now = 0.0

    def handle(self, event: Event, now: float) -> list[Effect]:
        self._now, self._out = now, []
        _HANDLERS[type(event)](self, event)
        self._step()
        return self._out

    # -- what follows ----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.deadline = math.inf
        if self._want is not None:
            until = self._want_until + (GRACE_S if self.link is Link.IN else 0.0)
            if self._now >= until:
                why = "the server is away" if self.link is not Link.IN else "the server does not answer"
                self._give_up_claim(No(f"waited {self._want.timeout_s:g} s in vain: {why}", "time_out"))
            else:
                self.deadline = until
        if self.link is Link.AWAY and not self._connecting:
            if self._now >= self._reconnect.at:
                self._connecting = True
                self._out.append(Connect())
            else:
                self.deadline = min(self.deadline, self._reconnect.at)
        elif self.link is Link.IN and self._awaiting is Awaiting.NONE:
            self._ask_next()

    def _ask_next(self) -> None:
        if self._back and self.kept is not None:
            self._back, self._awaiting, shape = False, Awaiting.BACK, self.kept.shape
            message = m.HandBack(
                generation=self.kept.generation,
                hash=shape.digest,
                sizes=[*shape.sizes, shape.table_size],
                table=True,
                token=self.token,
            )
            self._out.append(Say(message, brings=self._brings))
        elif self._releasing:
            if self._now < self._release_at:
                self.deadline = min(self.deadline, self._release_at)
                return
            self._awaiting = Awaiting.RELEASE
            self._out.append(Say(m.ReleasePool()))
        elif self._want is not None:
            self._awaiting, want = Awaiting.CLAIM, self._want
            self._said = want
            message_ = m.ClaimPool(
                digest=want.shape.digest,
                sizes=list(want.shape.sizes),
                table_size=want.shape.table_size,
                token=want.token,
                proven=want.proven,
                replace=want.replace,
                timeout_s=max(0.0, self._want_until - self._now),
            )
            self._out.append(Say(message_))

    def _give_up_claim(self, no: No) -> None:
        """The server may have let us in meanwhile, on this connection or on one that ended: that is taken back."""
        want, self._want = self._want, None
        self._out.append(no)
        if self._said is want:
            self._releasing = True
        if self._awaiting is Awaiting.CLAIM:
            self._awaiting = Awaiting.NONE

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_connected(self, event: Connected) -> None:
        self._connecting = self._turned_away = False
        self.link = Link.KNOCKING
        if self.kept is not None and self.kept.generation not in event.has:
            self.kept = None  # they were just arriving when a turn was cut short
        have = self.kept.generation if self.kept is not None else 0
        hello = m.Hello(
            protocol=m.OLDEST,
            newest=m.PROTOCOL,
            engine_id=self.engine_id,
            pid=self.pid,
            key=self.key,
            policy="exclusive",
            have=have,
            writes_end=self.writes_end,
        )
        self._out.append(Say(hello))

    def _on_disconnected(self, event: Disconnected) -> None:
        self._reconnect.ended(self._now)
        if event.why and not self._turned_away:
            self._turn_away(event.why, "protocol")
        if self._turned_away:
            self._reconnect.later(self._now, TURNED_AWAY_S)
        self.link, self._connecting, self._awaiting = Link.AWAY, False, Awaiting.NONE

    def _turn_away(self, why: str, about: Literal["", "protocol", "place"]) -> None:
        """This server won't have us, or speaks what can't be understood."""
        self._turned_away = True
        self._out.append(Unwelcome(why, about))

    # -- what the server says --------------------------------------------------------------------------------------

    def _on_heard(self, event: Heard) -> None:
        message = event.message
        if isinstance(message, m.Welcome):
            self._welcomed(message)
        elif isinstance(message, m.Problem):
            self._problem(message)
        elif isinstance(message, m.PoolIs):
            self._is(message)
        elif isinstance(message, m.Drop):
            self._gone(message.generation)
        elif isinstance(message, m.HandedBack) and self._awaiting is Awaiting.BACK:
            self._awaiting = Awaiting.NONE
        elif isinstance(message, m.PoolOwned) and self._said is not None:
            self._owned(message, self._said)
        elif isinstance(message, m.PoolReleased) and self._awaiting is Awaiting.RELEASE:
            self._awaiting, self._releasing, self.token = Awaiting.NONE, False, 0
            self._out.append(Released())
        elif isinstance(message, m.Refused):
            self._refused(message)

    def _welcomed(self, message: m.Welcome) -> None:
        self.link = Link.IN
        self._reconnect.welcomed(self._now)
        self._back = self.kept is not None
        self._brings = message.recovering and self.kept is not None and self.kept.generation == message.generation
        if not message.generation:
            self.there = None
        self._out += [Welcome(message.server_incarnation), Changed()]

    def _problem(self, message: m.Problem) -> None:
        """The connection ends after this."""
        self._turn_away(message.why, message.about)
        if self._want is not None:
            self._give_up_claim(No(message.why, "protocol" if message.about == "protocol" else "problem"))

    def _is(self, message: m.PoolIs) -> None:
        if not message.generation:
            self.there = None
        else:
            shape = Shape(message.digest, tuple(message.sizes), message.table_size)
            self.there = There(message.generation, shape, message.owner)
            if message.fds:
                self._keep(self.there)
        self._out.append(Changed())

    def _keep(self, there: There) -> None:
        old, self.kept = self.kept, there
        if old is not None and old.generation != there.generation:
            self._let_go(old.generation)
        self._out.append(Keep(there.generation))

    def _let_go(self, generation: int) -> None:
        self._out += [LetGo(generation), Say(m.Dropped(generation=generation))]

    def _gone(self, generation: int) -> None:
        """Given up. An owner's isn't, but for what it had before."""
        if self.kept is not None and self.kept.generation == generation and not self.token:
            self.kept = None
            self._let_go(generation)
        elif self.kept is None or self.kept.generation != generation:
            self._out.append(Say(m.Dropped(generation=generation)))

    def _owned(self, message: m.PoolOwned, said: Want) -> None:
        """What came with it is kept, whether or not anybody still wants to own it."""
        self.there = There(message.generation, said.shape, f"{self.engine_id} (pid {self.pid})")
        if message.fds:
            self._keep(self.there)
        if self._awaiting is Awaiting.CLAIM and self._want is said:
            self._want, self._awaiting, self.token = None, Awaiting.NONE, said.token
            self._out.append(Got(message.generation, said.shape, message.adopted, message.why_empty))
        self._out.append(Changed())

    def _refused(self, message: m.Refused) -> None:
        asked = self._awaiting
        if asked is Awaiting.RELEASE and message.reason != "disk":
            return  # the answer to a claim that nobody wants any more
        self._awaiting = Awaiting.NONE
        if asked is Awaiting.CLAIM:
            self._want = None
            self._out.append(No(message.why, message.reason))
        elif asked is Awaiting.RELEASE:
            self._release_at = self._now + RELEASE_AGAIN_S
        elif asked is Awaiting.BACK and self.token:
            self.token = 0
            self._out.append(Disowned(message.why))
        elif asked is Awaiting.BACK and self.kept is not None:
            generation, self.kept = self.kept.generation, None
            self._let_go(generation)

    # -- what the program wants ------------------------------------------------------------------------------------

    def _on_want(self, event: Want) -> None:
        if self._want != event:
            self._want, self._want_until = event, self._now + event.timeout_s

    def _on_release(self, event: Release) -> None:
        self._want = None
        if self._awaiting is Awaiting.CLAIM:
            self._awaiting = Awaiting.NONE
        self._releasing = True

    def _on_tick(self, event: Tick) -> None:
        """Time has passed; `_step` looks what follows."""


_HANDLERS: dict[type, Callable[[PoolClientMachine, Any], None]] = {
    Connected: PoolClientMachine._on_connected,
    Disconnected: PoolClientMachine._on_disconnected,
    Heard: PoolClientMachine._on_heard,
    Want: PoolClientMachine._on_want,
    Release: PoolClientMachine._on_release,
    Tick: PoolClientMachine._on_tick,
}
