"""What a process does towards a server that binds trees, whatever it wants of it. Pure; `shell/session.py` has the
socket and the thread.

A client's machine has one of these, gives it what it hears, and is asked for its own in turn: what its main process
says of itself when it registers (`ClientMachine._on_connected`), and what follows from a welcome, in between `welcomed`
and `begin_to_count`.

The rules:
C1. No process counts before its server's welcome.
C2. A connection that ends is made again, with everything that was said: the children vouched for. The rest is the
    client's.
C3. What was granted is held for as long as the path of the run directory leads to the directory in which it was
    granted, or to no server at all. If it leads to another server that doesn't take this process back, that server may
    grant as soon as it has settled: this process ends before (`must_end_at`).
C4. A main process looks where its path leads, when the kernel says that it may have changed and every second besides.
    If it leads elsewhere, the server there has to hear of this process at once: the connection is made there.
C5. A process that is refused when it comes, or comes back, ends at once. A wish that is refused, once its server has
    welcomed the process, is answered so, and ends nothing.
C6. What the server gives to keep is kept, and handed to the next server before anything is asked of it.
C7. A server that can't talk with us, or has no room, ends nothing: it is asked again later.
"""

import math
from enum import Enum
from typing import Any

import msgspec

from evidence.rules import client_events as c
from evidence.rules import messages as m
from sidecar.machine.reconnect import Reconnect
from sidecar.terminal.names import incarnation_name
from sidecar.wire.versions import Spoken

RETRY_MOST_S = 0.1
LOOK_S = 1.0
"""How often a main process looks where its path leads; more often where a server settles sooner."""
LATER_S = 2.0
"""For a server that can't have us now; sooner where a server settles sooner."""


class Me(msgspec.Struct, frozen=True):
    engine_id: str
    incarnation: str
    pid: int
    main: bool


class Link(Enum):
    AWAY = "away"
    KNOCKING = "knocking"
    IN = "in"


class Standing:
    now: float
    out: list[Any]
    """What the event in hand leads to; `begin` says its time."""
    _to_return: set[str]
    """Incarnations whose copies a new server may lack: they are handed back first (C6)."""

    def __init__(self, me: Me, spoken: Spoken, server: str) -> None:
        """`server`: what it is called in sentences."""
        self.me = me
        self.link = Link.AWAY
        self.server_incarnation = ""
        self.settle_s = math.inf
        """How long a new server waits for a process that it can't know of; none that joined is silent for so long."""
        self.secret = ""
        self.away_since = 0.0
        self.warned = ""
        self.last_word: c.Lost | c.No | None = None
        """It is over."""
        self._spoken = spoken
        self._server = server
        self._children: dict[int, int] = {}
        """Those that were vouched for and live."""
        self._number = 0
        self._kept: dict[str, tuple[str, m.Keep]] = {}
        """Incarnation -> which server gave the copies of its pidfds, and what it said with them."""
        self._reconnect = Reconnect(RETRY_MOST_S)
        self._connecting = False
        """From when a connection is asked for until it has ended, or could not be made."""
        self._look_at = math.inf
        self._unheard_since = math.inf
        """Since when a server may be at the end of the path that hasn't taken this process back."""

    def begin(self, now: float) -> list[Any]:
        """The next event. Returns where its effects will be."""
        self.now, self.out = now, []
        return self.out

    def step(self, end_at: float = math.inf, why: str = "") -> float:
        """After each event: what is due. Returns when to look again. `end_at`: until then it may go on without its
        server, and why no longer.
        """
        if self.last_word is not None:
            return math.inf
        if self.link is Link.IN:
            return self._keep_looking()
        if self.now >= end_at:
            self.lose(why)
            return math.inf
        # a server that is stopped takes a knock, and never answers
        return min(end_at, self._keep_looking() if self.link is Link.KNOCKING else self._connect())

    def _connect(self) -> float:
        if self._connecting:
            return math.inf
        if self.now < self._reconnect.at:
            return self._reconnect.at
        self._connecting = True
        self.out.append(c.Connect())
        return math.inf

    def _keep_looking(self) -> float:
        if not self.me.main:
            return math.inf
        if self.now >= self._look_at:
            self._look_at = self.now + min(LOOK_S, self.settle_s / 4)
            self.out.append(c.LookAtPath())
        return self._look_at

    def must_end_at(self) -> tuple[float, str]:
        """For one to which something was granted: until when it may go on without its server."""
        why = f"the run directory was replaced, and no {self._server} in it has us back in time"
        return self._unheard_since + self.settle_s, why

    # -- the connection --------------------------------------------------------------------------------------------

    def connected(self, event: c.Connected) -> dict[str, Any]:
        """Joins, if it is no main process. What a main process has to say of itself in its own words, it says now;
        returned is what all of them say.
        """
        self._see(event.there)
        self.link, self._to_return = Link.KNOCKING, set(self._kept)
        oldest, newest = self._spoken
        me = {"engine_id": self.me.engine_id, "incarnation": self.me.incarnation, "pid": self.me.pid}
        said: dict[str, Any] = {"protocol": oldest, "newest": newest, "life": event.life, "mapped": event.mapped, **me}
        if not self.me.main:
            self.say(m.Join(number=self._number, **said))
        return said

    def disconnected(self, event: c.Disconnected) -> None:
        self._away()
        self._see(event.there)
        if event.why:
            self._tell(event.why)

    def path_seen(self, event: c.PathSeen) -> bool:
        """While there is a connection. If it leads elsewhere, the server at the other end of the connection is not the
        server that others find. True: the connection has ended with it.
        """
        ends = event.elsewhere and self.link is not Link.AWAY
        if ends:
            self.out.append(c.HangUp())
            self._away()
            self._see(c.There.ANOTHER)
        return ends

    def _away(self) -> None:
        if self.link is Link.IN:
            self.away_since = self.now
        self._reconnect.ended(self.now)
        self.link, self._connecting = Link.AWAY, False

    def _see(self, there: c.There) -> None:
        another = there is c.There.ANOTHER
        self._unheard_since = min(self._unheard_since, self.now) if another else math.inf

    # -- what the server says --------------------------------------------------------------------------------------

    def welcomed(self, number: int, secret: str, settle_s: float) -> None:
        self.link, self._look_at = Link.IN, self.now + LOOK_S / 4
        self._reconnect.welcomed(self.now)
        self.settle_s, self._number = settle_s, number
        self._unheard_since = math.inf  # the directory of the server that has us back is ours from now on
        self.warned = ""
        self.secret = secret

    def begin_to_count(self, server_incarnation: str) -> None:
        """The welcome stands: copies are handed back, children are vouched for again, and the process may ask."""
        self._return_copies(server_incarnation)
        self.server_incarnation = server_incarnation
        self.out += [c.ShowOldLives(), c.Joined()]
        for child, pid in self._children.items():
            self.say(m.Vouch(child=child, pid=pid))

    def hear(self, message: Any) -> None:
        """What every such server says."""
        if isinstance(message, m.Keep):
            self._keep(message)
        elif isinstance(message, m.Vouched):
            self.out.append(c.ChildCounts(message.child))
        elif isinstance(message, m.Refused):
            self.refused(message.why)
        elif isinstance(message, m.Problem):
            self._problem(message.why)
        elif isinstance(message, m.Incompatible):
            self._warn(f"the {self._server} can't talk with this process: {message.why}")
        elif isinstance(message, m.Busy):
            self._warn(f"the {self._server} says that it isn't possible now: {message.why}")

    def _return_copies(self, server_incarnation: str = "") -> None:
        for tree, (given_by, keep) in self._kept.items():
            if tree in self._to_return and given_by != server_incarnation:
                self.say(m.HandBack(mark=keep.mark, tree=keep.tree, numbers=keep.numbers))
        self._to_return.clear()

    def _keep(self, message: m.Keep) -> None:
        """Only the copies of one's own incarnation and of the newest other one are kept. What a new server gives before
        its welcome may name fewer than what was kept from the last one: that goes back before it is replaced.
        """
        self._return_copies()
        own = incarnation_name(self.me.engine_id, self.me.incarnation)
        for tree in list(self._kept):
            if tree not in (own, message.tree) and message.tree != own:
                del self._kept[tree]
                self.out.append(c.DropCopies(tree))
        left: list[int] = []
        more = message.more and message.tree in self._kept
        if more:
            changed = [*message.gone, *message.numbers]
            left = [number for number in self._kept[message.tree][1].numbers if number not in changed]
            self.out.append(c.DropCopies(message.tree, changed))
        kept = msgspec.structs.replace(message, numbers=left + message.numbers)
        self._kept[message.tree] = (self.server_incarnation, kept)
        self.out.append(c.KeepCopies(message.tree, message.numbers, more))
        if message.answer:
            self.say(m.Kept(copies=len(message.numbers)))

    def refused(self, why: str) -> None:
        """A wish, while it is in; else this process."""
        if self.link is Link.IN:
            self.out.append(c.No(why))
        elif self.server_incarnation:
            self.lose(why)
        else:
            self._over(c.No(why))

    def _problem(self, why: str) -> None:
        """The server says that this process has made a mistake. Before the first welcome that is final; a process that
        was welcomed comes back, and a person should know.
        """
        if self.server_incarnation:
            self._warn(f"the {self._server} ended the connection: {why}")
        else:
            self._over(c.No(why))

    def _warn(self, text: str) -> None:
        """Nothing ends, and it is asked again later."""
        self._reconnect.later(self.now, min(LATER_S, self.settle_s / 2))
        self._tell(text)

    def _tell(self, text: str) -> None:
        """Once, and not at every try."""
        if text != self.warned:
            self.warned = text
            self.out.append(c.Warn(text))

    def lose(self, why: str) -> None:
        self._over(c.Lost(why))

    def _over(self, last_word: c.Lost | c.No) -> None:
        self.last_word = last_word
        self.out.append(last_word)

    # -- what the program wants ------------------------------------------------------------------------------------

    def vouch_for(self, event: c.VouchFor) -> None:
        self._children[event.child] = event.pid
        self.out.append(c.WatchChild(event.child))
        self.say_if_in(m.Vouch(child=event.child, pid=event.pid))

    def child_ended(self, event: c.ChildEnded) -> None:
        """It touches no device any more, whether or not the server has heard of it."""
        self._children.pop(event.child, None)
        self.out.append(c.ChildCounts(event.child))

    def say_if_in(self, message: Any) -> None:
        if self.link is Link.IN:
            self.say(message)

    def say(self, message: Any) -> None:
        self.out.append(c.Say(message))
