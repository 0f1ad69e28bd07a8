"""A process's side of GMS: its one connection, what it asks for, and what it has kept.

Pure: an event and the time go in, effects come out; the shell is `client_shell.py`. The server's side is `machine.py`.

How it goes. The connection is made again whenever it ends. A process that has kept a layout says so each time, and
brings it back to a server that waits for it. One request is under way at a time; `Withdraw` alone overtakes an `Open`
or a `Create` that waits, and whatever is answered before `Withdrawn` means nothing.

 1. A reader reads on while the server is away: its memory is its own. When it is back it is a reader there again; or it
    is told that its layout is gone (`Stale`), and has to end.
 2. A writer whose connection ends has lost its work (`Lost`): its slabs are given back. Only if its commit was under
    way may it be that the file has it: then it comes back as any reader does, with its own number, which no other
    layout has.
 3. A sleeper that is told to drop a layout drops it. It may still wake on another of the same structure.
 4. Every request ends in time, with a server or without one.
 5. A server that can't talk to this process, or has no room for it, takes nothing away: a reader reads on, a sleeper
    keeps what it has, and the next attempt is a second later.
"""

import math
from collections.abc import Callable
from enum import Enum
from typing import Any, ClassVar

import msgspec

from gms.layout import structure_hash
from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.region_client import Link, RegionClient
from sidecar.wire.frames import MAX_DESCRIPTORS


class Doing(Enum):
    NOTHING = "nothing"
    """It may have kept a layout: then it is asleep."""
    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"


class Awaiting(Enum):
    """Which answer."""

    NONE = "none"
    RETURN = "return"
    OPEN = "open"
    SLABS = "slabs"
    CREATE = "create"
    COMMIT = "commit"
    WITHDRAWN = "withdrawn"


class ClientMachine(RegionClient):
    policy = "shared"

    def __init__(self, engine_id: str, pid: int, batch: int = MAX_DESCRIPTORS, region: str = m.WEIGHTS) -> None:
        super().__init__(engine_id, pid, region)
        self.batch = batch
        """How many descriptors go with one message."""
        self.doing = Doing.NOTHING
        self.kept: m.Opened | None = None
        """A layout of which the shell has the descriptors."""
        self._awaiting = Awaiting.NONE
        self._session = False
        """The server takes this process for a waiter, a reader or a writer."""
        self._returned = True
        """This server knows what we have kept."""
        self._recovering: tuple[int, str] | None = None
        self._condemned = 0
        """The layout of a reader that was told to end: let go of when its program has unmapped it."""
        self.draft = 0
        """A writer's number."""
        self._asks: m.Create | c.Publish | None = None
        """What a writer wants next."""
        self._sealed: m.Opened | None = None
        """A layout whose commit is under way: it may be in the file already."""
        self._arriving: m.Opened | None = None
        self._arrived = 0

    @property
    def commits(self) -> bool:
        """A writer that has said its last word: what it made may be a layout by now."""
        return isinstance(self._asks, c.Publish) or self._sealed is not None

    # -- what follows ----------------------------------------------------------------------------------------------

    def in_vain(self, no: c.No) -> None:
        self._out.append(no)
        self._drop_want()

    def ask_next(self) -> None:
        """One request at a time; a session that the program doesn't want any more is withdrawn at once."""
        if self._session and self.doing is Doing.NOTHING and self._awaiting is not Awaiting.WITHDRAWN:
            if self._awaiting is Awaiting.RETURN:
                return  # it is answered soon, and by then it is known what there is to withdraw
            self._awaiting = Awaiting.WITHDRAWN
            self._end_arriving()
            self._say(m.Withdraw(keeps=self.kept.generation if self.kept is not None else 0))
        elif self._awaiting is not Awaiting.NONE:
            return
        elif not self._returned:
            self._hand_back()
        elif self._want is not None and not self._session:
            assert isinstance(self._want, m.Open)
            self._open(self._want)
        elif isinstance(self._asks, m.Create):
            self._awaiting = Awaiting.CREATE
            self._say(self._asks)
        elif self._asks is not None:
            self._awaiting = Awaiting.COMMIT
            document, sizes = self._asks.document, list(self._asks.sizes)
            self._sealed = m.Opened(
                mode="ro", generation=self.draft, hash=structure_hash(document), sizes=sizes, layout=document
            )
            self._say(m.Commit(layout=document))

    def _open(self, want: m.Open) -> None:
        self._awaiting, self._session = Awaiting.OPEN, True
        left = None if want.timeout_s is None else max(0.0, self._want_until - self._now)
        have = self.kept.generation if self.kept is not None else 0
        self._say(msgspec.structs.replace(want, timeout_s=left, have=have))

    def _drop_want(self) -> None:
        self._want = None
        self.doing = Doing.NOTHING

    # -- the connection --------------------------------------------------------------------------------------------

    def ended(self, why: str) -> None:
        self._session = False
        self._end_arriving()
        if self.doing is Doing.WRITING and self._sealed is None:
            self._lose(why or "the server is gone, and with it what was not committed")
        self._awaiting = Awaiting.NONE

    def _lose(self, why: str) -> None:
        """A writer's work."""
        self.doing, self._sealed, self._asks = Doing.NOTHING, None, None
        self._let_go(self.draft)
        self._out.append(c.Lost(why))

    def _end_arriving(self) -> None:
        """A layout of which not all slabs came."""
        opened, self._arriving = self._arriving, None
        if opened is not None:
            self._let_go(opened.generation)

    # -- what the server says --------------------------------------------------------------------------------------

    def heard(self, message: m.ServerMessage) -> None:
        if isinstance(message, m.Changed):
            self._out.append(message)
        elif isinstance(message, m.Drop):
            self._told_to_drop(message.generation)
        elif isinstance(message, m.Withdrawn):
            if self._awaiting is Awaiting.WITHDRAWN:
                self._awaiting, self._session = Awaiting.NONE, False
        elif self._awaiting is Awaiting.WITHDRAWN:
            return  # it was under way
        elif isinstance(message, m.Opened):
            self._opened(message)
        elif isinstance(message, m.Slabs):
            self._slabs(message)
        elif isinstance(message, m.Created) and self._awaiting is Awaiting.CREATE:
            self._awaiting, self._asks = Awaiting.NONE, None
            self._out += [c.Keep(self.draft, message.slab), message]
        elif isinstance(message, m.Committed) and self._awaiting is Awaiting.COMMIT:
            self._committed()
        elif isinstance(message, m.HandedBack) and self._awaiting is Awaiting.RETURN:
            self._handed_back()
        elif isinstance(message, m.Refused):
            self._refused(message)

    def came_in(self, message: m.Welcome) -> None:
        there = (message.generation, message.hash)
        self._recovering = there if message.recovering else None
        if self._sealed is not None and there != (self._sealed.generation, self._sealed.hash):
            self._lose("the server went away before the commit was on disk")
        self._returned = self.kept is None and self._sealed is None
        ours = self.kept is not None and (self.kept.generation, self.kept.hash) == there
        # What a new server waits for, and is about to get from here, has not gone meanwhile.
        self._out.append(m.Changed(*(there if ours or not message.recovering else (0, ""))))

    def not_welcome(self, message: m.Problem, asked: m.Open | m.ClaimPool | None) -> None:
        if self._awaiting is Awaiting.RETURN and not message.about:
            self._not_taken_back(message.why)  # and never will be: the memory is of another device, say
        wanted = asked is not None or self._asks is not None
        if asked is not None:
            self._drop_want()
        if self.link is Link.IN:  # we said something that this server won't have, and what it was about is over
            self._asks = self._sealed = None
        if wanted:
            self._out.append(c.No(message.why, "problem"))

    def _opened(self, message: m.Opened) -> None:
        if self._awaiting is not Awaiting.OPEN or self._want is None:
            return
        if message.mode == "rw":
            self._awaiting, self._want, self.doing = Awaiting.NONE, None, Doing.WRITING
            self.draft = message.generation
            self._out.append(c.Got(message))
        elif self.kept is not None and message.generation == self.kept.generation:
            self._awaiting, self._want, self.doing = Awaiting.NONE, None, Doing.READING
            self._out.append(c.Got(message, same=True))
        else:
            self._awaiting, self._arriving, self._arrived = Awaiting.SLABS, message, 0

    def _slabs(self, message: m.Slabs) -> None:
        opened = self._arriving
        if opened is None or message.generation != opened.generation or message.first != self._arrived:
            return
        self._arrived = message.first + message.fds
        self._out.append(c.Keep(message.generation, message.first))
        if self._arrived < len(opened.sizes):
            return
        self._arriving, self._awaiting, self._want, self.doing = None, Awaiting.NONE, None, Doing.READING
        old, self.kept = self.kept, opened
        if old is not None:
            self._let_go(old.generation)
        self._out.append(c.Got(opened))

    def _committed(self) -> None:
        sealed = self._sealed
        if sealed is None:
            return
        self._awaiting, self._sealed, self._asks = Awaiting.NONE, None, None
        old, self.kept, self.doing = self.kept, sealed, Doing.READING
        if old is not None:
            self._let_go(old.generation)
        self._out.append(m.Committed(sealed.generation, sealed.hash))

    def _refused(self, message: m.Refused) -> None:
        asked, self._awaiting = self._awaiting, Awaiting.NONE
        if asked is Awaiting.RETURN:
            self._returned = True
            self._not_taken_back(message.why)
            return
        if asked is Awaiting.OPEN:
            self._session = False
            self._drop_want()
        elif asked is Awaiting.CREATE:
            self._asks = None
        elif asked is Awaiting.COMMIT:
            self._asks = self._sealed = None
        self._out.append(c.No(message.why, message.reason))

    def _told_to_drop(self, generation: int) -> None:
        if self.kept is not None and self.kept.generation == generation:
            self._stale(f"layout {generation} was cleared or replaced")
        elif generation != self._condemned:
            self._let_go(generation)

    def _stale(self, why: str) -> None:
        kept, self.kept = self.kept, None
        if kept is None:
            return
        self._out.append(c.Stale(kept.generation, why))
        if self.doing is Doing.READING:
            self.doing, self._condemned = Doing.NOTHING, kept.generation
        else:
            self._let_go(kept.generation)

    # -- coming back -----------------------------------------------------------------------------------------------

    def _hand_back(self) -> None:
        """All of it to a server that waits for it, and to any other only the word."""
        layout = self._sealed or self.kept
        if layout is None:
            self._returned = True
            return
        self._awaiting = Awaiting.RETURN
        reading = self._sealed is not None or self.doing is Doing.READING
        self._session = reading
        brings = self._recovering == (layout.generation, layout.hash)
        for first in range(0, len(layout.sizes), self.batch) if brings else (0,):
            message = m.HandBack(
                generation=layout.generation,
                hash=layout.hash,
                sizes=layout.sizes,
                first=first,
                layout=layout.layout if brings and first == 0 else b"",
                sums=layout.sums,
                reading=reading,
            )
            count = min(self.batch, len(layout.sizes) - first) if brings else 0
            self._out.append(c.Say(message, layout.generation, first, count))

    def _handed_back(self) -> None:
        self._awaiting, self._returned = Awaiting.NONE, True
        if self._sealed is not None:
            self._committed()
        if self.kept is not None:  # of a commit: the welcome of a server that waited for it said that there is none
            self._out.append(m.Changed(self.kept.generation, self.kept.hash))

    def _not_taken_back(self, why: str) -> None:
        self._session = False
        if self._sealed is not None:
            self._lose(why)
            self._returned = self.kept is None
        else:
            self._stale(why)

    # -- what the program wants ------------------------------------------------------------------------------------

    def _on_want(self, event: m.Open) -> None:
        if self.doing is not Doing.NOTHING:
            self._out.append(c.No(f"this process is {self.doing.value} already", "not_now"))
            return
        if self._condemned:
            self._out.append(c.No(f"layout {self._condemned} is gone; it has to be unmapped and released", "stale"))
            return
        self._want, self.doing = event, Doing.WAITING
        self._want_until = math.inf if event.timeout_s is None else self._now + event.timeout_s

    def _on_writers_wish(self, event: m.Create | c.Publish) -> None:
        if self.doing is Doing.WRITING and self._asks is None:
            self._asks = event
        elif self._asks != event:  # asked again after an interruption: its answer is under way
            self._out.append(c.No("this process isn't writing, or its last request isn't answered", "not_now"))

    def _on_sleep(self, event: c.Sleep) -> None:
        if self.doing is Doing.WAITING:
            self._drop_want()
        elif self.doing is Doing.READING:
            self.doing = Doing.NOTHING
        self._let_go_of_condemned()

    def _let_go_of_condemned(self) -> None:
        condemned, self._condemned = self._condemned, 0
        if condemned:
            self._let_go(condemned)

    def _on_release(self, event: c.Release) -> None:
        drafted = self.draft if self.doing is Doing.WRITING else 0
        self._want, self.doing = None, Doing.NOTHING
        self._asks = self._sealed = None
        self._end_arriving()
        self._let_go_of_condemned()
        kept, self.kept = self.kept, None
        for generation in (drafted, kept.generation if kept is not None else 0):
            if generation:
                self._let_go(generation)

    def _on_sums(self, event: m.Checksums) -> None:
        if self.kept is not None and self.kept.generation == event.generation:
            self.kept = msgspec.structs.replace(self.kept, sums=event.sums)
            self._say_if_in(event)

    handlers: ClassVar[dict[type, Callable[[Any, Any], None]]] = {
        m.Open: _on_want,
        m.Create: _on_writers_wish,
        c.Publish: _on_writers_wish,
        c.Sleep: _on_sleep,
        c.Release: _on_release,
        m.Checksums: _on_sums,
    }
