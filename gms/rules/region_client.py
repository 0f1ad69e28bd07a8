"""A process's side of one region, whatever its policy: its connection, what it waits for, and what it must let go of.

Pure: an event and the time go in, effects come out (`client_events.py`); the shell is `region_shell.py`. The server's
side is `region.py`. What differs stands with the policy: `client_machine.py` (weights), `pool_client_machine.py`.

The connection is made again whenever it ends. A server that can't talk to this process, or has no room for it, takes
nothing away: it keeps what it has, and the next attempt is a second later. Every wait ends in time, with a server or
without one.
"""

import math
from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any, ClassVar, Literal

from gms.rules import client_events as c
from gms.rules import messages as m
from sidecar.machine.reconnect import Reconnect

RETRY_MOST_S = 0.01
"""What stood stands again once those who have it are back: a new server should not wait. It is a cheap call."""
TURNED_AWAY_S = 1.0
"""A server that has said why it won't have us is left alone for so long."""
GRACE_S = 5.0
"""The server says by itself when a wait has been in vain, and knows why; on a busy machine it may be so late."""


class Link(Enum):
    AWAY = "away"
    KNOCKING = "knocking"
    """It connects, or waits for the welcome."""
    IN = "in"


class RegionClient:
    policy: ClassVar[m.Policy]
    handlers: ClassVar[Mapping[type, Callable[[Any, Any], None]]]
    """What is done about what the program wants, by event."""
    writes_end = False
    """What this process writes ends with it."""

    def __init__(self, engine_id: str, pid: int, key: str) -> None:
        self.engine_id = engine_id
        self.pid = pid
        self.key = key
        self.deadline = 0.0
        self.link = Link.AWAY
        self._want: m.Open | m.ClaimPool | None = None
        self._want_until = math.inf
        self._out: list[c.Effect] = []
        self._now = 0.0
        self._reconnect = Reconnect(RETRY_MOST_S)
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
    def has(self) -> int:
        """The memory whose descriptors this process has, and of which the server is to hear at once; 0: none."""
        return 0

    def ask_next(self) -> None:
        """One request at a time."""
        raise NotImplementedError

    def in_vain(self, no: c.No) -> None:
        """The wait is over."""
        raise NotImplementedError

    def came_in(self, message: m.Welcome) -> None:
        raise NotImplementedError

    def ended(self, why: str) -> None:
        """The connection; `why` if what came over it was no message."""
        raise NotImplementedError

    def heard(self, message: m.ServerMessage) -> None:
        """What is said of the region alone."""
        raise NotImplementedError

    def not_welcome(self, message: m.Problem, asked: m.Open | m.ClaimPool | None) -> None:
        """The connection ends after this. `asked`: what this process waited for."""
        raise NotImplementedError

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
            if self._now >= self._reconnect.at:
                self.link = Link.KNOCKING
                self._out.append(c.Connect())
            else:
                self.deadline = min(self.deadline, self._reconnect.at)
        elif self.link is Link.IN:
            self.ask_next()

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
            have=self.has,
            writes_end=self.writes_end,
        )
        self._say(hello)

    def _on_disconnected(self, event: c.Disconnected) -> None:
        self._reconnect.ended(self._now)
        if event.why and not self._turned_away:
            self._turn_away(event.why, "protocol")
        if self._turned_away:
            self._reconnect.later(self._now, TURNED_AWAY_S)
        self.link = Link.AWAY
        self.ended(event.why)

    def _turn_away(self, why: str, about: Literal["", "protocol", "place"]) -> None:
        """This server won't have us, or speaks what can't be understood."""
        self._turned_away = True
        self._out.append(m.Problem(why=why, about=about))

    def _on_heard(self, message: m.ServerMessage) -> None:
        if isinstance(message, m.Welcome):
            self.link = Link.IN
            self._reconnect.welcomed(self._now)
            self._out.append(message)
            self.came_in(message)
        elif isinstance(message, m.Problem):
            self._turn_away(message.why, message.about)
            self.not_welcome(message, self._want)
        else:
            self.heard(message)

    def _let_go(self, generation: int) -> None:
        """The server hears of it once the shell has done it."""
        self._out.append(c.LetGo(generation))

    def _say_if_in(self, message: m.ClientMessage) -> None:
        if self.link is Link.IN:
            self._say(message)

    def _say(self, message: m.ClientMessage) -> None:
        self._out.append(c.Say(message))
