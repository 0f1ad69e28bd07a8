"""A new server and the layout of the one before (rules 9 and 10 of `machine.py`).

Pure, a part of the machine. The weights outlive the server, because its readers keep their descriptors. The file tells
which layout that is; its readers hand it back, in as many messages as it takes. Here is what a new server knows of
that: how long it keeps writers out, what has come of the layout so far, and when to ask whether anybody still has its
memory.

What this file may not do: know who is connected. It returns what follows for them; `machine.py` does it.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gms import events as e
from gms import layout as lay
from gms import messages as m
from gms.context import Context
from gms.record import Record
from gms.weights import Layout, Phase, Slab, Weights
from sidecar.disk_writes import RETRY_S

CHECK_EVERY_S = 0.25
MOST_HAND_BACKS = 8
"""How many processes may be in the middle of handing back, each with descriptors of its own."""


class Step(Enum):
    """What is to be done now."""

    NOTHING = "nothing"
    CHECK_MEMORY = "ask whether anybody has that memory"
    GIVE_UP = "write into the file that there is no layout: nobody has its memory"


class Verdict(Enum):
    """On what a process hands back."""

    MORE = "the rest is still to come"
    HAS_IT = "it has the layout that is committed"
    STALE = "that layout is gone"
    COME_AGAIN = "too many hand back at once"
    MISTAKE = "it may not be said like this"


class HandedBack(NamedTuple):
    verdict: Verdict
    why: str = ""
    stands_again: Layout | None = None
    """By this very message."""


@dataclass
class _Coming:
    """What one process has handed back so far; it isn't the layout before it is whole."""

    document: bytes
    count: int = 0
    """How many slabs have come."""
    slabs: list[Slab] = field(default_factory=list)
    """Those of them that were kept."""
    why_not: str = ""
    """It won't do; said once all of it has come."""


class Recovery:
    def __init__(self, context: Context, weights: Weights, config: e.Config) -> None:
        self._context = context
        self._weights = weights
        self._config = config
        self._window_until = -math.inf
        """Until then other readers than those who are here may be on their way back."""
        self._awake_at = math.inf
        """When this server last did anything."""
        self._check_at = math.inf
        self._checking = False
        self._nobody_has_it_at = math.inf
        """When that is to be written into the file."""
        self._coming: dict[int, _Coming] = {}
        """By connection."""

    def starts(self, event: e.Started) -> None:
        context, weights, record = self._context, self._weights, event.record
        if record is None or not record.hash:
            weights.starts(max(event.generation_floor, record.given if record is not None else 0), None)
            if event.unreadable:
                self._window_until = context.now + self._config.window_s
                context.alarm(
                    "record",
                    f"the state file can't be read ({event.unreadable}): whatever was committed is lost to this "
                    "server, and whoever reads it must end",
                )
            context.note("started", found=event.unreadable or ("no file" if record is None else "no layout"))
            return
        weights.starts(max(event.generation_floor, record.given, record.generation), record)
        context.note("started", found="a layout", generation=record.generation, hash=record.hash)
        if record.boot_id != self._config.boot_id:
            self._nobody_has_it_at = context.now  # no memory outlives a boot
        else:
            self._window_until = context.now + self._config.window_s
            self._check_at = context.now

    # -- the window ------------------------------------------------------------------------------------------------

    @property
    def _window_is_over(self) -> bool:
        return self._context.reached(self._window_until)

    @property
    def hopes(self) -> bool:
        """The awaited layout may well come back: who can read or write waits to read it."""
        return self._weights.phase is Phase.RECOVERING and not self._window_is_over

    @property
    def why_no_reader(self) -> str:
        awaited = self._weights.awaited
        return f"layout {awaited.generation} is to be handed back by whoever has kept it" if awaited is not None else ""

    @property
    def why_no_writer(self) -> str:
        if self._window_is_over:
            return ""
        if self._weights.awaited is not None:
            return f"this server is new, and layout {self._weights.awaited.generation} may still be handed back"
        return "this server is new, and others who read may still be on their way back"

    def notice(self) -> None:
        """The window is time in which somebody could come back: not that in which this server itself was stopped."""
        now = self._context.now
        asleep_s = now - self._awake_at - CHECK_EVERY_S
        if asleep_s > CHECK_EVERY_S and self._awake_at < self._window_until:
            self._window_until += asleep_s
        self._awake_at = now

    # -- does anybody have it? -------------------------------------------------------------------------------------

    def step(self) -> Step:
        context, awaited = self._context, self._weights.awaited
        if not self._window_is_over:
            context.reached(self._awake_at + CHECK_EVERY_S)
        if awaited is None:
            return Step.NOTHING
        if context.reached(self._nobody_has_it_at):
            self._nobody_has_it_at = math.inf
            return Step.GIVE_UP
        if self._window_is_over:
            why = f"layout {awaited.generation} was not handed back within {self._config.window_s:g} s"
            context.alarm("window", f"{why}; the next writer will begin anew")
        elif not self._checking and context.reached(self._check_at):
            return self._check()
        return Step.NOTHING

    def somebody_left(self) -> Step:
        """It may have been the last one who had that memory."""
        if self._weights.awaited is not None and not self._checking:
            return self._check()
        return Step.NOTHING

    def _check(self) -> Step:
        self._checking, self._check_at = True, self._context.now + CHECK_EVERY_S
        return Step.CHECK_MEMORY

    def checked(self, held: bool | None) -> None:
        """None: that can't be told."""
        self._checking = False
        if self._weights.awaited is not None and held is False:
            self._nobody_has_it_at = self._context.now

    def could_not_give_up(self) -> None:
        """The file can't be written."""
        self._nobody_has_it_at = self._context.now + RETRY_S

    def gave_up(self) -> None:
        """So the file says: it is given up, and nobody is on the way."""
        self._window_until = -math.inf

    def end(self) -> None:
        """Nothing is awaited any more. What others have handed back in part is of no use."""
        self._nobody_has_it_at = math.inf
        self._context.calm("window")
        for coming in self._coming.values():
            self._put_down(coming)

    # -- handing back ----------------------------------------------------------------------------------------------

    @property
    def kept(self) -> list[Slab]:
        """Slabs of what has not come whole."""
        return [slab for coming in self._coming.values() for slab in coming.slabs]

    def comes_from(self, conn: int) -> bool:
        """It is in the middle of handing back."""
        return conn in self._coming

    def left(self, conn: int) -> None:
        coming = self._coming.pop(conn, None)
        if coming is not None:
            self._put_down(coming)

    def _put_down(self, coming: _Coming) -> None:
        self._context.forget(coming.slabs)
        coming.slabs = []

    def hand_back(self, conn: int, message: m.HandBack, slabs: Sequence[e.Slab], *, idle: bool) -> HandedBack:
        """`idle`: this process neither reads nor writes nor waits."""
        came = [Slab(slab.handle, slab.identity, 0) for slab in slabs]
        coming, refused = self._begin_or_go_on(conn, message, came, idle=idle)
        if coming is None or refused is not None:
            self._context.forget(came)
            return refused or HandedBack(Verdict.MISTAKE)
        self._look_through(coming, message, came)
        coming.count += len(came)
        if came and coming.count < len(message.sizes):
            return HandedBack(Verdict.MORE)
        del self._coming[conn]
        return self._judge(coming, message)

    def _begin_or_go_on(
        self, conn: int, message: m.HandBack, came: list[Slab], *, idle: bool
    ) -> tuple[_Coming | None, HandedBack | None]:
        awaited = self._weights.awaited
        if message.first == 0:
            if not idle or conn in self._coming:
                return None, HandedBack(Verdict.MISTAKE, "this process does something else, or hands back already")
            if not came and awaited is not None and _is_about(message, awaited):
                return None, HandedBack(Verdict.MISTAKE, "the slabs are awaited, and none came with it")
            if came and len(self._coming) >= MOST_HAND_BACKS:
                return None, HandedBack(Verdict.COME_AGAIN)
            self._coming[conn] = _Coming(message.layout)
        coming = self._coming.get(conn)
        if coming is None or message.first != coming.count or (message.first > 0 and not came):
            why = "the slabs are to be handed back one after the other, each once"
            return None, HandedBack(Verdict.MISTAKE, why)
        return coming, None

    def _look_through(self, coming: _Coming, message: m.HandBack, came: list[Slab]) -> None:
        """Keeps what came if it is awaited. Whether it is the right thing is said once everything is there."""
        awaited = self._weights.awaited
        if awaited is None or coming.why_not or not _is_about(message, awaited):
            self._context.forget(came)
            return
        expected = awaited.slabs[coming.count : coming.count + len(came)]
        if tuple(message.sizes) != tuple(slab.size for slab in awaited.slabs):
            coming.why_not = "its slabs are of other sizes than those of the layout in the file"
        elif [slab.identity for slab in came] != [slab.identity for slab in expected]:
            coming.why_not = "its memory is not that of the layout in the file"
        elif message.first == 0 and lay.structure_hash(coming.document) != awaited.hash:
            coming.why_not = "its document is not that of the layout in the file"
        if coming.why_not:
            self._context.forget(came)
            self._put_down(coming)
        else:
            coming.slabs += [slab._replace(size=known.size) for slab, known in zip(came, expected, strict=True)]

    def _judge(self, coming: _Coming, message: m.HandBack) -> HandedBack:
        """All of it has come."""
        awaited, again = self._weights.awaited, None
        if awaited is not None and _is_about(message, awaited) and not coming.why_not:
            again = self._stands_again(coming, message)
        layout = self._weights.committed
        if layout is not None and _is_about(message, layout) and not coming.why_not:
            return HandedBack(Verdict.HAS_IT, stands_again=again)
        there = f"there is {layout.generation} now" if layout is not None else "there is none now"
        return HandedBack(Verdict.STALE, coming.why_not or f"layout {message.generation} is gone; {there}")

    def _stands_again(self, coming: _Coming, message: m.HandBack) -> Layout | None:
        try:
            tensors = lay.count_tensors(coming.document)
        except lay.BadLayout as error:  # the file was written by hand
            coming.why_not = str(error)
            self._put_down(coming)
            return None
        sums = tuple(message.sums) if len(message.sums) == len(coming.slabs) else ()
        layout = self._weights.hand_back(coming.document, tensors, tuple(coming.slabs), sums)
        self.end()
        return layout


def _is_about(message: m.HandBack, layout: Record | Layout) -> bool:
    return (message.generation, message.hash) == (layout.generation, layout.hash)
