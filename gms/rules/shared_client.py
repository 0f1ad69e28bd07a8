"""A process's side of weights: it writes, reads, sleeps and wakes.

Pure. What it has in common with a process's side of a pool: `client_machine.py`. The server's side: `shared.py`.
`Withdraw` alone overtakes an `Open` or a `Create` that waits, and whatever is answered before `Withdrawn` means
nothing.

 1. A reader reads on while the server is away: its memory is its own. When it is back it is a reader there again; or it
    is told that its layout is gone (`Stale`), and has to end.
 2. A writer whose connection ends has lost its work (`Lost`): its slabs are given back. Only if its commit was under
    way may it be that the file has it: then it comes back as any reader does, with its own number, which no other
    layout has.
 3. A sleeper that is told to drop a layout drops it. It may still wake on another of the same structure. When its
    layout is parked it keeps the parked memory in place of the slabs. To read it, it has to bring it back first.
 4. A writer that parks has kept the layout, and reads nothing afterwards; one that brings it back reads it. If it can't
    do that, it keeps what it had, and is asleep.
"""

import math
from enum import Enum

import msgspec

from gms.layout import structure_hash
from gms.rules import client_events as c
from gms.rules import messages as m
from gms.rules.client_machine import Awaiting, ClientMachine, Handlers, Link
from sidecar.wire.frames import MAX_DESCRIPTORS


class Doing(Enum):
    NOTHING = "nothing"
    """It may have kept a layout: then it is asleep."""
    WAITING = "waiting"
    READING = "reading"
    WRITING = "writing"


class SharedClient(ClientMachine):
    def __init__(self, engine_id: str, pid: int, key: str = m.WEIGHTS, batch: int = MAX_DESCRIPTORS) -> None:
        super().__init__("shared", engine_id, pid, key, batch)
        self.doing = Doing.NOTHING
        self._session = False
        """The server takes this process for a waiter, a reader or a writer."""
        self._condemned = 0
        """The layout of a reader that was told to end: let go of when its program has unmapped it."""
        self.draft = 0
        """A writer's number."""
        self._asks: m.Create | c.Publish | None = None
        """What a writer wants next."""
        self._sealed: c.Kept | None = None
        """A layout whose commit is under way: it may be in the file already."""
        self._moves = self._parks = False
        """This writer parks the layout that it has kept, or brings it back."""
        self._frees: m.Committed | None = None
        """It has parked that, and is still to hear whether the device's slabs are gone."""
        self._arriving: c.Kept | None = None
        self._arrived = 0

    @property
    def handlers(self) -> Handlers:
        return _HANDLERS

    @property
    def commits(self) -> bool:
        """A writer that has said its last word: what it made may be a layout by now."""
        return isinstance(self._asks, c.Publish) or self._sealed is not None

    # -- what follows ----------------------------------------------------------------------------------------------

    def in_vain(self, no: c.No) -> None:
        self._out.append(no)
        self._drop_want()

    def ask_next(self) -> None:
        """A session that the program doesn't want any more is withdrawn at once."""
        unwanted, layout = self._session and self.doing is Doing.NOTHING, self._sealed or self.kept
        # What is handed back is answered soon, and then it is known what there is to withdraw.
        if unwanted and self._awaiting not in (Awaiting.WITHDRAWN, Awaiting.RETURN):
            self._awaiting = Awaiting.WITHDRAWN
            self._end_arriving()
            self._say(m.Withdraw(keeps=self.kept.generation if self.kept is not None else 0))
        elif self._awaiting is Awaiting.NONE and not self._returned and layout is not None:
            self._session = self._sealed is not None or self.doing is Doing.READING
            self.hand_back(layout, reading=self._session and not layout.table)
        else:
            super().ask_next()

    def ask(self) -> None:
        if isinstance(self._want, m.Open) and not self._session:
            self._open(self._want)
        elif isinstance(self._asks, m.Create):
            self._awaiting = Awaiting.CREATE
            self._say(self._asks)
        elif self._asks is not None:
            self._awaiting = Awaiting.COMMIT
            self._sealed = self._seal(self._asks)
            self._say(m.Commit(layout=self._asks.document))

    def _seal(self, asks: c.Publish) -> c.Kept:
        sealed = c.Kept(self.draft, structure_hash(asks.document), list(asks.sizes), asks.document)
        old = self.kept if self._moves else None
        if old is None:
            return sealed
        contents = old.contents or old.generation
        return msgspec.structs.replace(sealed, sums=old.sums, table=self._parks, contents=contents)

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
        self._end_freeing()
        if self.doing is Doing.WRITING and self._sealed is None:
            self._lose(why or "the server is gone, and with it what was not committed")

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

    def _end_freeing(self, answer: m.RegionDropped | None = None) -> None:
        """The last word on what was parked."""
        frees, self._frees = self._frees, None
        if frees is not None:
            self._out.append(answer or frees)

    # -- what the server says --------------------------------------------------------------------------------------

    def heard(self, message: m.ServerMessage) -> None:
        if isinstance(message, m.Changed):
            self._out.append(message)
        elif isinstance(message, m.Drop):
            self._told_to_drop(message.generation)
        elif isinstance(message, m.Parked):
            self._on_parked(message)
        elif isinstance(message, m.RegionDropped):
            self._end_freeing(message)
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
        elif isinstance(message, m.Refused):
            self._refused(message)

    def came_in(self, message: m.Welcome) -> None:
        there = (message.generation, message.hash)
        if self._sealed is not None and there != (self._sealed.generation, self._sealed.hash):
            self._lose("the server went away before the commit was on disk")
        self._returned = self.kept is None and self._sealed is None
        ours = self.kept is not None and (self.kept.generation, self.kept.hash) == there
        # What a new server waits for, and is about to get from here, has not gone meanwhile.
        self._out.append(m.Changed(*(there if ours or not message.recovering else (0, ""))))

    def not_welcome(self, message: m.Problem, asked: m.Open | m.ClaimPool | None) -> None:
        if self._awaiting is Awaiting.RETURN and not message.about:
            self.not_taken_back(message.why)  # and never will be: the memory is of another device, say
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
            assert isinstance(self._want, m.Open)
            self._parks, self._moves = bool(self._want.parks), bool(self._want.moves)
            self._awaiting, self._want, self.doing = Awaiting.NONE, None, Doing.WRITING
            self.draft = message.generation
            self._out.append(c.Got("rw", message.generation))
        elif self.kept is not None and message.generation == self.kept.generation:
            self._awaiting, self._want, self.doing = Awaiting.NONE, None, Doing.READING
            self._out.append(c.Got("ro", message.generation, self.kept.hash))
        else:
            kept = c.Kept(
                message.generation,
                message.hash,
                message.sizes,
                message.layout,
                message.sums,
                contents=message.contents,
            )
            self._awaiting, self._arriving, self._arrived = Awaiting.SLABS, kept, 0

    def _slabs(self, message: m.Slabs) -> None:
        arriving = self._arriving
        if arriving is None or message.generation != arriving.generation or message.first != self._arrived:
            return
        self._arrived = message.first + message.fds
        self._out.append(c.Keep(message.generation, message.first))
        if self._arrived < len(arriving.sizes):
            return
        self._arriving, self._awaiting, self._want, self.doing = None, Awaiting.NONE, None, Doing.READING
        self.keep(arriving)
        self._out.append(c.Got("ro", arriving.generation, arriving.hash))

    def _committed(self) -> None:
        sealed = self._sealed
        if sealed is None:
            return
        self._awaiting, self._sealed, self._asks = Awaiting.NONE, None, None
        self.keep(sealed)
        committed = m.Committed(sealed.generation, sealed.hash)
        if sealed.table:
            self.doing, self._frees = Doing.NOTHING, committed
            self._out.append(m.Changed(sealed.generation, sealed.hash))
        else:
            self.doing = Doing.READING
            self._out.append(committed)

    def _refused(self, message: m.Refused) -> None:
        asked, self._awaiting = self._awaiting, Awaiting.NONE
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

    def _on_parked(self, message: m.Parked) -> None:
        """To be kept in place of the layout that this process has kept; or because it wants to read."""
        if self.doing is Doing.READING or (self.kept is None and self._awaiting is not Awaiting.OPEN):
            return
        kept = c.Kept(
            message.generation,
            message.hash,
            [message.size],
            message.layout,
            message.sums,
            table=True,
            contents=message.contents,
        )
        self._out.append(c.Keep(message.generation, 0))
        self.keep(kept)

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

    def taken_back(self) -> None:
        if self._sealed is not None:
            self._committed()
            self._end_freeing()
        if self.kept is not None:  # of a commit: the welcome of a server that waited for it said that there is none
            self._out.append(m.Changed(self.kept.generation, self.kept.hash))

    def not_taken_back(self, why: str) -> None:
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
        self._frees = None
        if self.doing is Doing.WAITING:
            self._drop_want()
        elif self.doing is Doing.READING:
            self.doing = Doing.NOTHING
        elif self.doing is Doing.WRITING and self._moves:
            self.doing, self._asks, self._sealed = Doing.NOTHING, None, None
            self._let_go(self.draft)
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


_HANDLERS: Handlers = {
    m.Open: SharedClient._on_want,
    m.Create: SharedClient._on_writers_wish,
    c.Publish: SharedClient._on_writers_wish,
    c.Sleep: SharedClient._on_sleep,
    c.Release: SharedClient._on_release,
    m.Checksums: SharedClient._on_sums,
}
