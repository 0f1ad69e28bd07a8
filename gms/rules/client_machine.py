"""A process's side of one region, whatever its policy: its connection, what it waits for, and what it has kept.

Pure: an event and the time go in, effects come out (`client_events.py`); the shell is `region_shell.py`. The server's
side is `machine.py`. What differs stands with the policy: `shared_client.py` (weights), `exclusive_client.py` (pools).

How it goes. The connection is made again whenever it ends. A process that has kept memory says so each time, and brings
it back to a server that waits for it. One request is under way at a time.

 1. What this process has is its own: a server that is away takes nothing from it, and one that can't talk to it, or has
    no room for it, takes nothing either: the next attempt is a second later.
 2. What it has it says to each new server, before it asks for anything; it lets go of what the region has no more.
 3. Every wait ends in time, with a server or without one.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, Literal

from gms.rules import client_events as c
from gms.rules import messages as m
from sidecar.machine.reconnect import Reconnect

RETRY_MOST_S = 0.01
"""What stood stands again once those who have it are back: a new server should not wait. It is a cheap call."""
TURNED_AWAY_S = 1.0
"""A server that has said why it won't have us is left alone for so long."""
GRACE_S = 5.0
"""The server says by itself when a wait has been in vain, and knows why; on a busy machine it may be so late."""

Handlers = Mapping[type, Callable[[Any, Any], None]]
"""What is done about what the program wants, by event."""


class Link(Enum):
    AWAY = "away"
    KNOCKING = "knocking"
    """It connects, or waits for the welcome."""
    IN = "in"


class Awaiting(Enum):
    """Which answer."""

    NONE = "none"
    RETURN = "return"
    OPEN = "open"
    SLABS = "slabs"
    CREATE = "create"
    COMMIT = "commit"
    WITHDRAWN = "withdrawn"
    CLAIM = "claim"
    RELEASE = "release"


class ClientMachine(ABC):
    def __init__(
        self, policy: m.Policy, engine_id: str, pid: int, key: str, batch: int, *, writes_end: bool = False
    ) -> None:
        """`batch`: how many descriptors go with one message. `writes_end`: what this process writes ends with it."""
        self.policy = policy
        self.engine_id = engine_id
        self.pid = pid
        self.key = key
        self.batch = batch
        self.writes_end = writes_end
        self.deadline = 0.0
        self.link = Link.AWAY
        self.kept: c.Kept | None = None
        """Memory of which the shell has the descriptors."""
        self.token = 0
        """A pool's owner's; 0: this process owns none."""
        self._want: m.Open | m.ClaimPool | None = None
        self._want_until = math.inf
        self._awaiting = Awaiting.NONE
        self._returned = True
        """This server knows what we have kept."""
        self._recovering: tuple[int, str] | None = None
        """What this server waits for."""
        self._out: list[c.Effect] = []
        self._now = 0.0
        self.reconnect = Reconnect(RETRY_MOST_S)
        self._turned_away = False
        """By the server to which this connection leads."""

    def handle(self, event: c.Event, now: float) -> list[c.Effect]:
        self._now, self._out = now, []
        if isinstance(event, c.Heard):
            self._on_heard(event.message)
        elif isinstance(event, c.Connected):
            self._on_connected(event)
        elif isinstance(event, c.Disconnected):
            self._on_disconnected(event)
        elif isinstance(event, m.Dropped):
            self._say_if_in(event)
        elif not isinstance(event, c.Tick):
            self.handlers[type(event)](self, event)
        self._step()
        return self._out

    # -- what the policy says --------------------------------------------------------------------------------------

    @property
    @abstractmethod
    def handlers(self) -> Handlers: ...

    @abstractmethod
    def ask(self) -> None:
        """What it wants next, if anything. No answer is awaited."""

    @abstractmethod
    def in_vain(self, no: c.No) -> None:
        """The wait is over."""

    @abstractmethod
    def came_in(self, message: m.Welcome) -> None: ...

    @abstractmethod
    def heard(self, message: m.ServerMessage) -> None:
        """What is said of the region alone."""

    @abstractmethod
    def not_taken_back(self, why: str) -> None:
        """The server won't have what this process has kept."""

    @abstractmethod
    def not_welcome(self, message: m.Problem, asked: m.Open | m.ClaimPool | None) -> None:
        """The connection ends after this. `asked`: what this process waited for."""

    def taken_back(self) -> None:  # noqa: B027 - a pool's says nothing
        """The server has on record, or says now that it had, what this process has kept."""

    def ended(self, why: str) -> None:  # noqa: B027 - what is wanted of a pool is said again
        """The connection; `why` if what came over it was no message."""

    # -- what follows ----------------------------------------------------------------------------------------------

    def _step(self) -> None:
        self.deadline = math.inf
        if self._want is not None:
            until = self._want_until + (GRACE_S if self.link is Link.IN else 0.0)
            if self._now >= until:
                why = "the server is away" if self.link is not Link.IN else "the server does not answer"
                self.in_vain(c.No(f"waited {self._want.timeout_s:g} s in vain: {why}", "time_out"))
            else:
                self.deadline = until
        if self.link is Link.AWAY:
            if self._now >= self.reconnect.at:
                self.link = Link.KNOCKING
                self._out.append(c.Connect())
            else:
                self.deadline = min(self.deadline, self.reconnect.at)
        elif self.link is Link.IN:
            self.ask_next()

    def ask_next(self) -> None:
        """One request at a time."""
        if self._awaiting is Awaiting.NONE:
            if self._returned or self.kept is None:
                self.ask()
            else:
                self.hand_back(self.kept)

    def hand_back(self, kept: c.Kept, *, reading: bool = False) -> None:
        """All of it to a server that waits for it, and to any other only the word."""
        self._awaiting = Awaiting.RETURN
        brings = self._recovering == (kept.generation, kept.hash)
        for first in range(0, len(kept.sizes), self.batch) if brings else (0,):
            message = m.HandBack(
                generation=kept.generation,
                hash=kept.hash,
                sizes=kept.sizes,
                first=first,
                layout=kept.layout if brings and first == 0 else b"",
                sums=kept.sums,
                reading=reading,
                table=kept.table,
                token=self.token,
            )
            count = min(self.batch, len(kept.sizes) - first) if brings else 0
            self._out.append(c.Say(message, kept.generation, first, count))

    # -- the connection --------------------------------------------------------------------------------------------

    def _on_connected(self, event: c.Connected) -> None:
        self.link, self._turned_away = Link.KNOCKING, False
        hello = m.Hello(
            protocol=m.OLDEST,
            newest=m.PROTOCOL,
            engine_id=self.engine_id,
            pid=self.pid,
            key=self.key,
            policy=self.policy,
            have=self.kept.generation if self.kept is not None else 0,
            writes_end=self.writes_end,
            parks=self.policy == "shared",
        )
        self._say(hello)

    def _on_disconnected(self, event: c.Disconnected) -> None:
        self.reconnect.ended(self._now)
        if event.why and not self._turned_away:
            self._turn_away(event.why, "protocol")
        if self._turned_away:
            self.reconnect.later(self._now, TURNED_AWAY_S)
        self.link = Link.AWAY
        self.ended(event.why)
        self._awaiting = Awaiting.NONE

    def _turn_away(self, why: str, about: Literal["", "protocol", "place"]) -> None:
        """This server won't have us, or speaks what can't be understood."""
        self._turned_away = True
        self._out.append(m.Problem(why=why, about=about))

    def _on_heard(self, message: m.ServerMessage) -> None:
        if isinstance(message, m.Welcome):
            self.link = Link.IN
            self.reconnect.welcomed(self._now)
            self._recovering = (message.generation, message.hash) if message.recovering else None
            self._returned = self.kept is None
            self._out.append(message)
            self.came_in(message)
        elif isinstance(message, m.Problem):
            self._turn_away(message.why, message.about)
            self.not_welcome(message, self._want)
        elif self._awaiting is Awaiting.RETURN and isinstance(message, m.HandedBack | m.Refused):
            self._awaiting, self._returned = Awaiting.NONE, True
            if isinstance(message, m.HandedBack):
                self.taken_back()
            else:
                self.not_taken_back(message.why)
        else:
            self.heard(message)

    # -- what it has -----------------------------------------------------------------------------------------------

    def keep(self, kept: c.Kept) -> None:
        """In place of what it had."""
        old, self.kept = self.kept, kept
        if old is not None and old.generation != kept.generation:
            self._let_go(old.generation)

    def _let_go(self, generation: int) -> None:
        """The server hears of it once the shell has done it."""
        self._out.append(c.LetGo(generation))

    def _say_if_in(self, message: m.ClientMessage) -> None:
        if self.link is Link.IN:
            self._say(message)

    def _say(self, message: m.ClientMessage) -> None:
        self._out.append(c.Say(message))
