"""A new server and a region of the one before (rules 9 and 10 of `machine.py`): how long it waits, for what, and what
is handed back to it.

Pure. Memory outlives the server, because processes keep its descriptors. The file tells which memory that is; those who
have it hand it back, in as many messages as it takes. The first whole hand-back makes the memory stand again; a later
one has the same memory, or is stale. This file says how long writers are kept out, and when the kernel is asked whether
a process still has the memory. The region does what follows.

What this file may not do: know who is connected, or what a region does with its memory.
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from gms.rules import messages as m
from gms.rules.context import Context
from gms.rules.events import MemoryChecked
from gms.rules.record import Region as Recorded
from gms.rules.weights import Slab
from sidecar.machine.disk_writes import RETRY_S
from sidecar.machine.plan import Plan

CHECK_EVERY_S = 0.25
MOST_HAND_BACKS = 8
"""How many processes may be in the middle of it, each with descriptors of its own."""


class Step(Enum):
    """What is to be done now."""

    NOTHING = "nothing"
    CHECK_MEMORY = "ask whether any process has that memory"
    GIVE_UP = "write into the file that there is no memory: no process has it"


class Window:
    """In it a client that isn't connected yet may come back with memory. Time in which this server itself was stopped
    doesn't count.
    """

    def __init__(self, context: Context, until: float = -math.inf) -> None:
        self._context = context
        self.until = until
        self._awake_at = context.now
        """When this server last did anything."""

    def begin(self, length_s: float) -> None:
        self.until, self._awake_at = self._context.now + length_s, self._context.now

    def end(self) -> None:
        """No process is on its way back."""
        self.until = -math.inf

    @property
    def is_over(self) -> bool:
        return self._context.reached(self.until)

    def notice(self) -> None:
        """This server does something now."""
        now = self._context.now
        asleep_s = now - self._awake_at - CHECK_EVERY_S
        if asleep_s > CHECK_EVERY_S and self._awake_at < self.until:
            self.until += asleep_s
        self._awake_at = now

    def lasts(self, plan: Plan) -> bool:
        """And if so, this server is to do something now and then."""
        return plan.wait_until(self.until) and plan.wait_until(self._awake_at + CHECK_EVERY_S)


class Recovery:
    def __init__(self, context: Context, window_until: float) -> None:
        self._context = context
        self.window = Window(context, window_until)
        self._check_at = math.inf
        self._has_left = False
        """A client, since the kernel was asked."""
        self._checking = False
        self._gone_at = math.inf
        """When it is to be written into the file that no process has it."""

    def begin(self, window_s: float, *, asks_at_once: bool) -> None:
        """There was memory. `asks_at_once`: whether a process has it still; else that is asked when a client leaves."""
        self.window.begin(window_s)
        self._check_at = self._context.now if asks_at_once else math.inf

    # -- does any process have it? ---------------------------------------------------------------------------------

    def due(self, plan: Plan, *, awaited: bool) -> Step:
        is_new = self.window.lasts(plan)
        if not awaited:
            return Step.NOTHING
        if not plan.wait_until(self._gone_at):
            return Step.GIVE_UP
        wants = self._has_left or (is_new and not plan.wait_until(self._check_at))
        return Step.CHECK_MEMORY if wants and not self._checking else Step.NOTHING

    def note_departure(self) -> None:
        """A client left: it may have been the last that had the memory."""
        self._has_left = True

    def note_asked(self) -> None:
        self._checking, self._has_left, self._check_at = True, False, self._context.now + CHECK_EVERY_S

    def checked(self, answer: MemoryChecked) -> None:
        self._checking = False
        if answer.held is False:
            self._gone_at = self._context.now

    def note_giving_up(self) -> None:
        """That no process has the memory is being written."""
        self._gone_at = math.inf

    def could_not_give_up(self) -> None:
        """The file can't be written."""
        self._gone_at = self._context.now + RETRY_S

    def end(self) -> None:
        """Nothing is awaited any more."""
        self._gone_at, self._has_left = math.inf, False


class HandBackVerdict(Enum):
    """On what a process hands back."""

    MORE = "the rest is still to come"
    STANDS_AGAIN = "by this very message"
    HAS_IT = "it has the memory that is there"
    STALE = "that memory is gone"
    COME_AGAIN = "too many hand back at once"
    MISTAKE = "it may not be said like this"


class HandedBack(NamedTuple):
    verdict: HandBackVerdict
    why: str = ""
    document: bytes = b""
    """`STANDS_AGAIN`: this, and these, are all that the process has handed back."""
    slabs: tuple[Slab, ...] = ()
    sums: tuple[str, ...] = ()


@dataclass
class _Coming:
    """What one process has handed back so far; it isn't the memory before it is whole."""

    document: bytes
    count: int = 0
    """How many slabs have come."""
    slabs: list[Slab] = field(default_factory=list)
    """Those of them that were kept."""
    why_not: str = ""
    """It won't do; said once all of it has come."""


class HandBacks:
    def __init__(self, context: Context, why_not: Callable[[bytes], str]) -> None:
        """`why_not`: what is wrong with a document, as the policy sees it; empty: nothing."""
        self._context = context
        self._why_not = why_not
        self._coming: dict[int, _Coming] = {}
        """By connection."""

    @property
    def kept(self) -> list[Slab]:
        """Slabs of what has not come whole."""
        return [slab for coming in self._coming.values() for slab in coming.slabs]

    def comes_from(self, conn: int) -> bool:
        """It is in the middle of it."""
        return conn in self._coming

    def left(self, conn: int) -> None:
        coming = self._coming.pop(conn, None)
        if coming is not None:
            self._put_down(coming)

    def end(self) -> None:
        """Nothing is awaited any more. What others have handed back in part is of no use."""
        for coming in self._coming.values():
            self._put_down(coming)

    def take(
        self,
        conn: int,
        message: m.HandBack,
        came: Sequence[Slab],
        awaited: Recorded | None,
        there: tuple[int, str],
        *,
        idle: bool,
    ) -> HandedBack:
        """`there`: generation and hash of the memory that stands. `idle`: this process neither reads nor writes nor
        waits.
        """
        coming, refused = self._begin_or_go_on(conn, message, came, awaited, idle=idle)
        if coming is None or refused is not None:
            self._context.forget(came)
            return refused or HandedBack(HandBackVerdict.MISTAKE)
        self._look_through(coming, message, came, awaited)
        coming.count += len(came)
        if came and coming.count < len(message.sizes):
            return HandedBack(HandBackVerdict.MORE)
        del self._coming[conn]
        if awaited is not None and _is_about(message, awaited) and not coming.why_not:
            one_each = len(message.sums) == len(coming.slabs) or awaited.parked  # that is one piece, of all slabs
            sums = tuple(message.sums) if one_each else ()
            return HandedBack(HandBackVerdict.STANDS_AGAIN, "", coming.document, tuple(coming.slabs), sums)
        if there[0] and (message.generation, message.hash) == there and not coming.why_not:
            return HandedBack(HandBackVerdict.HAS_IT)
        now = f"there is {there[0]} now" if there[0] else "there is none now"
        return HandedBack(HandBackVerdict.STALE, coming.why_not or f"memory {message.generation} is gone; {now}")

    def _begin_or_go_on(
        self, conn: int, message: m.HandBack, came: Sequence[Slab], awaited: Recorded | None, *, idle: bool
    ) -> tuple[_Coming | None, HandedBack | None]:
        if message.first == 0:
            if not idle or conn in self._coming:
                why = "this process does something else, or hands back already"
                return None, HandedBack(HandBackVerdict.MISTAKE, why)
            if not came and awaited is not None and _is_about(message, awaited):
                return None, HandedBack(HandBackVerdict.MISTAKE, "the slabs are awaited, and none came with it")
            if came and len(self._coming) >= MOST_HAND_BACKS:
                return None, HandedBack(HandBackVerdict.COME_AGAIN)
            self._coming[conn] = _Coming(message.layout)
        coming = self._coming.get(conn)
        if coming is None or message.first != coming.count or (message.first > 0 and not came):
            why = "the slabs are to be handed back one after the other, each once"
            return None, HandedBack(HandBackVerdict.MISTAKE, why)
        return coming, None

    def _look_through(
        self, coming: _Coming, message: m.HandBack, came: Sequence[Slab], awaited: Recorded | None
    ) -> None:
        """Keeps what came if it is awaited. Whether it is the right thing is said once everything is there."""
        if awaited is None or coming.why_not or not _is_about(message, awaited):
            self._context.forget(came)
            return
        expected = awaited.slabs[coming.count : coming.count + len(came)]
        if tuple(message.sizes) != tuple(slab.size for slab in awaited.slabs):
            coming.why_not = "its slabs are of other sizes than those in the file"
        elif [slab.identity for slab in came] != [slab.identity for slab in expected]:
            coming.why_not = "its memory is not that in the file"
        elif message.first == 0:
            coming.why_not = self._why_not(coming.document)
        if coming.why_not:
            self._context.forget(came)
            self._put_down(coming)
        else:
            coming.slabs += [slab._replace(size=known.size) for slab, known in zip(came, expected, strict=True)]

    def _put_down(self, coming: _Coming) -> None:
        self._context.forget(coming.slabs)
        coming.slabs = []


def _is_about(message: m.HandBack, recorded: Recorded) -> bool:
    return (message.generation, message.hash) == (recorded.generation, recorded.hash)
