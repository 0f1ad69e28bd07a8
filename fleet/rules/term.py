"""What a client does about one lease, from its wish to its end: asks, waits, renews, steps down, gives it back.

1. Time is counted on this machine's own clock, which nothing sets and no suspend stops, from the moment before a
   question. Of the database's times only differences are used.
2. A lease is relied on until a third of a term before it ends: two thirds of a term after the last renewal began, or
   earlier where a wish lets it be renewed no further. What runs under it is stopped then, and that is final: a late
   answer revives nothing.
3. It is renewed every third of a term, and more often while no answer comes: a failure is followed by a pause, which
   doubles with the next one, up to a tenth of a term. So a crowd lets a database that is behind catch up.
4. One question is under way at a time. It has a bound, and what comes after that isn't listened to.
5. A waiter looks every second; it asks for its grant when nothing is in its way, and often enough to keep its place. It
   waits for a bounded time.
6. A database that doesn't answer the first question ends a wish; one that goes away while it waits doesn't.
7. The holder of a shared lease that looks hears of a wish for the host within a second.

What this file may not do: decide which waiter is granted (`statements.py`). Pure.
"""

import enum
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from fleet.rules.leases import Mode, Wish, in_the_way, no_such_host, seen, waits_for

POLL_S = 1.0
MOST_PATIENCE_S, FIRST_PATIENCE_S = 5.0, 10.0
"""With a question; with the first one a connection is made."""
MARGIN = 1 / 3
"""As much of a term is left for stopping what runs, when it isn't relied on any more."""
RENEWED = 1 / 3
"""A lease is, after so much of a term."""
_RELEASES = 3
"""A lease that can't be given back lapses."""


class Phase(enum.Enum):
    WAITS = "waits"
    HELD = "held"
    ENDED = "ended"
    """It isn't relied on any more, and what ran under it is being stopped."""
    RELEASES = "releases"
    OVER = "over"


class End(enum.Enum):
    LOST = "lost"
    NOT_IN_TIME = "not in time"
    REFUSED = "refused"
    RELEASED = "released"


# -- events --------------------------------------------------------------------------------------------------------


class Answered(msgspec.Struct, frozen=True):
    question: int
    rows: Sequence[Mapping[str, Any]]


class Failed(msgspec.Struct, frozen=True):
    question: int
    why: str
    final: bool = False
    """It will fail in the same way until a person changes something."""


class GiveBack(msgspec.Struct, frozen=True):
    """What ran under it has stopped, or is to wait no longer."""


class Tick(msgspec.Struct, frozen=True):
    pass


# -- effects -------------------------------------------------------------------------------------------------------


class Ask(msgspec.Struct, frozen=True):
    """One of `statements.STATEMENTS`."""

    question: int
    name: str
    values: Mapping[str, object]


class Cut(msgspec.Struct, frozen=True):
    """The question that is under way has taken too long."""


class Granted(msgspec.Struct, frozen=True):
    token: int
    until: float
    """As long it may be relied on, on this machine's clock."""


class Extended(msgspec.Struct, frozen=True):
    until: float


class Wanted(msgspec.Struct, frozen=True):
    """An exclusive lease waits for this shared one."""


class Waits(msgspec.Struct, frozen=True):
    why: str


class Ended(msgspec.Struct, frozen=True):
    end: End
    why: str = ""


class Over(msgspec.Struct, frozen=True):
    """Nothing more is to be asked."""


Effect = Ask | Cut | Granted | Extended | Wanted | Waits | Ended | Over


class Term:
    def __init__(self, wish: Wish, name: str, now: float, *, looks: bool = False, asked: int = 0) -> None:
        """`name` was drawn by this client, and is never used again. `looks`: a shared one that will give way.
        `asked`: how many questions a term before this one has asked, whose answers may still come."""
        self.wish = wish
        self.phase = Phase.WAITS
        self.token = 0
        self.until = -math.inf
        """As long it may be relied on."""
        self.deadline = now
        """When a tick is due."""
        self._name, self._starts = name, 0
        self._looks = looks and wish.mode is Mode.SHARED
        self._began = now
        self._out: list[Effect] = []
        self.asked, self._first = asked, asked + 1
        self._under_way = ""
        """What was asked, while no answer has come."""
        self._asked_at = now
        self._kept_at = -math.inf
        """When the last question began that has kept the place, or the lease."""
        self._looked_at = -math.inf
        self._not_before, self._failures, self._releases = now, 0, 0
        """After failures, one behind the other."""
        self.answered = False
        """The database knows of this wish."""
        self._wanted = self._turn = False
        self._why = self._waits = ""

    @property
    def lease(self) -> str:
        return f"{self._name}.{self._starts}"

    @property
    def patience_s(self) -> float:
        return min(MOST_PATIENCE_S, self.wish.ttl_s / 6) if self.answered else FIRST_PATIENCE_S

    def look_now(self) -> None:
        """What was seen last isn't new enough; a tick comes next."""
        self._looked_at = -math.inf

    def holds(self, now: float) -> bool:
        return self.phase is Phase.HELD and now < self.until

    def handle(self, event: Answered | Failed | GiveBack | Tick, now: float) -> list[Effect]:
        self._out = []
        if self.phase is Phase.HELD and now >= self.until:
            self._step_down(now)  # before the event: it may be the answer to a renewal, and this process was stopped
        if isinstance(event, GiveBack):
            self._give_back()
        elif not isinstance(event, Tick) and event.question == self.asked and self._under_way:
            under_way, self._under_way = self._under_way, ""
            if isinstance(event, Failed):
                self._failed(event, now)
            else:
                self.answered, self._failures = True, 0
                _ANSWERS[under_way](self, event.rows, now)
        while callable(step := self._plan(now)):
            step(now)
        self.deadline = step
        return self._out

    # -- what is due -----------------------------------------------------------------------------------------------

    def _plan(self, now: float) -> Callable[[float], None] | float:
        """The first step that is due; else when to look again. A question: it changes nothing."""
        if self.phase in (Phase.OVER, Phase.ENDED) and not self._under_way:
            return math.inf
        at = math.inf
        if self.phase is Phase.HELD:
            if now >= self.until:
                return self._step_down
            at = self.until
        elif self.phase is Phase.WAITS:
            at = self._began + self.wish.wait_s
            if now >= at and self.asked >= self._first + bool(self._under_way):
                return self._not_in_time  # also a wish that doesn't wait at all is asked once
        if self._under_way:
            bound = self._asked_at + self.patience_s
            return self._cut if now >= bound else bound if at <= now else min(at, bound)
        due, ask = self._next()
        due = max(due, self._not_before)
        return ask if now >= due else min(at, due)

    def _next(self) -> tuple[float, Callable[[float], None]]:
        """The next question, and when it is due."""
        third = self.wish.ttl_s * RENEWED
        if self.phase is Phase.RELEASES:
            return -math.inf, self._ask_release
        if self.phase is Phase.WAITS and self.token:
            return -math.inf, self._ask_renew  # it was granted, and the answer came too late to rely on it
        keep_at, keep = self._kept_at + third, self._ask_renew if self.phase is Phase.HELD else self._ask_grant
        if self._turn:
            return -math.inf, keep
        if self.phase is Phase.HELD and not (self._looks and not self._wanted):
            return keep_at, keep
        look_at = self._looked_at + min(POLL_S, third / 2)
        return (keep_at, keep) if keep_at <= look_at else (look_at, self._ask_look)

    # -- questions -------------------------------------------------------------------------------------------------

    def _ask(self, name: str, now: float, **values: object) -> None:
        self.asked += 1
        self._under_way, self._asked_at = name, now
        self._out.append(Ask(self.asked, name, {"host": self.wish.host, **values}))

    def _ask_grant(self, now: float) -> None:
        wish, self._turn = self.wish, False
        mode, wait = wish.mode.value, max(0.0, self._began + wish.wait_s - now)
        self._ask(
            "ask", now, lease=self.lease, mode=mode, priority=wish.priority, holder=wish.holder, purpose=wish.purpose,
            ttl=wish.ttl_s, wait=wait, drain=wish.drain_s,
        )  # fmt: skip

    def _ask_renew(self, now: float) -> None:
        self._ask("renew", now, lease=self.lease, token=self.token)

    def _ask_look(self, now: float) -> None:
        self._looked_at = now
        self._ask("look", now)

    def _ask_release(self, now: float) -> None:
        self._releases += 1
        self._ask("release", now, lease=self.lease)

    def _cut(self, now: float) -> None:
        self._out.append(Cut())
        self._under_way = ""
        self._failed(Failed(self.asked, f"no answer within {self.patience_s:g} s"), now)

    # -- answers ---------------------------------------------------------------------------------------------------

    def _kept(self, rows: Sequence[Mapping[str, Any]], now: float) -> None:
        """The answer to `ask` or `renew`."""
        if not rows:
            self._end(End.REFUSED, no_such_host(self.wish.host, ()))
            return self._over()
        row = rows[0]
        if self.phase not in (Phase.WAITS, Phase.HELD):
            return
        if row["lease"] is None:
            if self.phase is Phase.HELD:
                self._end(End.LOST, "it wasn't renewed in time, and has lapsed in the database")
            else:  # this waiter was away for longer than a term: it begins anew
                self._starts += 1
                self.token, self._kept_at = 0, -math.inf
            return
        self._kept_at = self._asked_at
        if row["token"] is None:
            return
        self.token = row["token"]
        left_s = row["expires_at"] - row["now"]
        until = self._asked_at + left_s - self.wish.ttl_s * MARGIN
        if self.phase is Phase.HELD:
            if until > self.until:
                self.until = until
                self._out.append(Extended(until))
        elif until > now:
            self._kept_at += left_s - self.wish.ttl_s  # an earlier question was granted, whose answer was lost
            self.phase, self.until = Phase.HELD, until
            self._out.append(Granted(self.token, until))
        else:
            self._not_before = now + self._pause_s

    def _looked(self, rows: Sequence[Mapping[str, Any]], now: float) -> None:
        host = seen(rows)
        if host is None or self.phase not in (Phase.WAITS, Phase.HELD):
            return
        if self.phase is Phase.HELD:
            if host.intent is not None and not self._wanted:
                self._wanted = True
                self._out.append(Wanted())
            return
        blocking = in_the_way(host.rows, self.lease)
        self._turn = not blocking
        self._say_why(waits_for(blocking))

    def _failed(self, event: Failed, now: float) -> None:
        if self.phase is Phase.WAITS and (event.final or not self.answered):
            self._end(End.REFUSED, event.why)
            self.phase, self._releases = Phase.RELEASES, _RELEASES - 1
            if event.final:
                self._over()
        else:
            self._retry(event.why, now)

    def _retry(self, why: str, now: float) -> None:
        self._why = why
        self._not_before = now + min(self._pause_s * 2**self._failures, self.wish.ttl_s / 10)
        self._failures += 1
        if self._releases >= _RELEASES:
            self._over()
        elif self.phase is Phase.WAITS:
            self._say_why(why)

    @property
    def _pause_s(self) -> float:
        return min(POLL_S, self.wish.ttl_s / 30)

    def _say_why(self, why: str) -> None:
        if why != self._waits:
            self._waits = why
            self._out.append(Waits(why))

    # -- ends ------------------------------------------------------------------------------------------------------

    def _end(self, end: End, why: str) -> None:
        self.phase = Phase.ENDED
        self._out.append(Ended(end, why))

    def _step_down(self, now: float) -> None:
        why = f"the last renewal began {now - self._kept_at:.1f} s ago" + (f"; {self._why}" if self._why else "")
        if self.until < self._kept_at + self.wish.ttl_s / 2:  # it was renewed, and no further
            why = "a program waits to have the host alone, and the time for giving way is over"
        self._end(End.LOST, why)

    def _not_in_time(self, now: float) -> None:
        self._end(End.NOT_IN_TIME, f"not granted within {self.wish.wait_s:g} s" + (
            f": {self._waits}" if self._waits else ""))  # fmt: skip
        self._leave()

    def _give_back(self) -> None:
        if self.phase in (Phase.WAITS, Phase.HELD):
            self._end(End.RELEASED, "")
        if self.phase is Phase.ENDED:
            self._leave()

    def _over(self) -> None:
        self.phase = Phase.OVER
        self._out.append(Over())

    def _leave(self) -> None:
        """What is under way isn't waited for: it may never come back."""
        if self._under_way:
            self._out.append(Cut())
        self.phase, self._under_way, self._not_before = Phase.RELEASES, "", -math.inf


_ANSWERS: dict[str, Callable[[Term, Sequence[Mapping[str, Any]], float], None]] = {
    "ask": Term._kept,
    "renew": Term._kept,
    "look": Term._looked,
    "release": lambda term, rows, now: term._over(),
}
