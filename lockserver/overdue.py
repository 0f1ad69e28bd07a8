"""A takeover that hangs: the holder isn't proven gone, or the next one doesn't answer, for longer than that takes. Then
an alarm says which process it is, and how it is.

Pure. The proof itself never hurries (`proof.py`): a process that SIGKILL doesn't end (in a frozen cgroup, in the
kernel's hands, under a tracer that doesn't wait), or a stopped one that has the life lock, is awaited for ever, and
rightly. So is a waiter that is stopped, and alone. But a person has to hear of it. Once `--window-s` of fencing is over
the shell is asked for a look at what lives, and what it saw is said in one alarm, which is kept true with another look
every so often, and ends with the proof.
"""

import math

from lockserver.context import Context
from lockserver.events import Config, LookAt, LookedAt
from lockserver.incarnation import Incarnation, Life
from lockserver.lock import Lock, Phase
from lockserver.messages import ACTIVE
from lockserver.proof import what_is_missing

LEAST_S = 1.0
"""A death may take so long, whatever the window is; and so often a look is worth its while."""
MOST_NAMED = 5


class Overdue:
    def __init__(self, config: Config, context: Context, lock: Lock) -> None:
        self.config = config
        self.context = context
        self.lock = lock
        self._alarm = "overdue" if lock.name == ACTIVE else f"overdue {lock.name}"
        self._who: Incarnation | None = None
        """Whose end, or whose answer, is awaited."""
        self._why = ""
        """What a waiter lacks; empty where an end is awaited."""
        self._since = math.inf
        self._asked_at = -math.inf
        self._answered = True
        self._awaited_now = False
        """In this turn nothing proved it."""

    def not_gone(self, holder: Incarnation) -> None:
        """Nothing proves its end at this moment, and no other alarm says why."""
        doubt = self.lock.doubt
        new = self.lock.phase is Phase.IN_DOUBT and doubt is not None and not self.context.reached(doubt.until)
        if not new and not holder.cannot_talk:  # it has the time to come back; or serves on, which another alarm says
            self._await(holder, "")

    def not_granted(self, waiter: Incarnation, why: str) -> None:
        """The lock is free, and the first in the queue can't be granted."""
        self._await(waiter, why)

    def _await(self, who: Incarnation, why: str) -> None:
        self._awaited_now = True
        if who is not self._who or bool(why) is not bool(self._why):
            self._settled()
            self._who = who
        self._why = why
        self._since = min(self._since, self.context.now)
        patience_s = max(self.config.window_s, LEAST_S)
        if not self.context.reached(self._since + patience_s):
            return
        if not self._answered:
            if self.context.reached(self._asked_at + self.config.reader_s):
                self._say(who, None)
        elif self.context.reached(self._asked_at + patience_s):
            self._ask(who)

    def looked_at(self, event: LookedAt) -> None:
        who = self._who
        if who is not None and who.name == event.incarnation:
            self._answered = True
            self._say(who, event)

    def turn_ends(self) -> None:
        if not self._awaited_now and self._who is not None:
            self._settled()
        self._awaited_now = False

    def _settled(self) -> None:
        """It is proven gone, has come back or was granted; or another alarm says what is to be done."""
        self._who, self._since, self._asked_at, self._answered = None, math.inf, -math.inf, True
        self.context.calm(self._alarm)

    def _ask(self, who: Incarnation) -> None:
        processes = tuple(
            member.process for member in who.members.values() if not member.dead and member.process is not None
        )
        self._answered, self._asked_at = False, self.context.now
        self.context.reached(self._asked_at + self.config.reader_s)  # the answer may not come: /proc can hang, too
        self.context.out.append(LookAt(who.name, processes, life=not processes and who.life is Life.HELD))

    def _say(self, who: Incarnation, seen: LookedAt | None) -> None:
        text = self._not_granted(who, seen) if self._why else self._not_gone(who, seen)
        if text:
            self.context.alarm(self._alarm, text)

    def _not_gone(self, holder: Incarnation, seen: LookedAt | None) -> str:
        """Empty where it ended as it was looked at."""
        missing = what_is_missing(holder, new_server=self.lock.doubt is not None, seen=seen)
        more = len(missing) - MOST_NAMED
        which = "; ".join(missing[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        what = "nobody is granted" if self.lock.name == ACTIVE else f"nobody gets the permit {self.lock.name}"
        said = f"{holder.engine_id} is not proven gone after {self.config.window_s:g} s, and {what}: {which}"
        return said if missing else ""

    def _not_granted(self, waiter: Incarnation, seen: LookedAt | None) -> str:
        sights = dict(seen.processes) if seen is not None else {}
        sight = sights.get(waiter.main.process or 0, "") if waiter.main is not None else ""
        main = f"; its main process {waiter.pid} {sight}" if sight else ""
        return f"nobody holds the lock, and nobody was granted for {self.config.window_s:g} s: {self._why}{main}"
