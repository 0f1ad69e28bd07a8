"""A holder that was lost and isn't proven gone, for longer than a death takes: an alarm that says who lives and why.

Pure. The proof itself never hurries (`proof.py`): a process that SIGKILL doesn't end (in a frozen cgroup, in the
kernel's hands, under a tracer that doesn't wait), or a stopped one that has the life lock, is awaited for ever, and
rightly. But a person has to hear of it. Once `--window-s` of fencing is over the shell is asked for a look at what
lives, and what it saw is said in one alarm, which is kept true with another look every so often, and ends with the
proof.
"""

import math

from lockserver.context import Context
from lockserver.events import Config, LookAt, LookedAt
from lockserver.incarnation import Incarnation, Life
from lockserver.lock import Lock, Phase
from lockserver.proof import what_is_missing

LEAST_S = 1.0
"""A death may take so long, whatever the window is; and so often a look is worth its while."""
MOST_NAMED = 5


class Overdue:
    def __init__(self, config: Config, context: Context, lock: Lock) -> None:
        self.config = config
        self.context = context
        self.lock = lock
        self._alarm = "overdue" if lock.name == "active" else f"overdue {lock.name}"
        self._holder: Incarnation | None = None
        """Whose end is awaited."""
        self._since = math.inf
        self._asked_at = -math.inf
        self._answered = True
        self._not_gone_now = False
        """In this turn nothing proved it."""

    def not_gone(self, holder: Incarnation) -> None:
        """Nothing proves its end at this moment, and no other alarm says why."""
        self._not_gone_now = True
        if holder is not self._holder:
            self._settled()
            self._holder = holder
        if holder.cannot_talk:  # it serves on, which another alarm says
            return
        doubt = self.lock.doubt
        if self.lock.phase is Phase.IN_DOUBT and doubt is not None and not self.context.reached(doubt.until):
            return  # it has the time to come back
        self._since = min(self._since, self.context.now)
        patience_s = max(self.config.window_s, LEAST_S)
        if not self.context.reached(self._since + patience_s):
            return
        if not self._answered:
            if self.context.reached(self._asked_at + self.config.reader_s):
                self._say(holder, None)
        elif self.context.reached(self._asked_at + patience_s):
            self._ask(holder)

    def looked_at(self, event: LookedAt) -> None:
        holder = self._holder
        if holder is not None and holder.name == event.incarnation:
            self._answered = True
            self._say(holder, event)

    def turn_ends(self) -> None:
        if not self._not_gone_now and self._holder is not None:
            self._settled()
        self._not_gone_now = False

    def _settled(self) -> None:
        """It is proven gone, or has come back; or another alarm says what is to be done."""
        self._holder, self._since, self._asked_at, self._answered = None, math.inf, -math.inf, True
        self.context.calm(self._alarm)

    def _ask(self, holder: Incarnation) -> None:
        processes = tuple(
            member.process for member in holder.members.values() if not member.dead and member.process is not None
        )
        life = not processes and holder.life is Life.HELD
        self._answered, self._asked_at = False, self.context.now
        self.context.reached(self._asked_at + self.config.reader_s)  # the answer may not come: /proc can hang, too
        self.context.out.append(LookAt(holder.name, processes, life))

    def _say(self, holder: Incarnation, seen: LookedAt | None) -> None:
        missing = what_is_missing(holder, new_server=self.lock.doubt is not None, seen=seen)
        if not missing:
            return  # it ended as it was looked at
        more = len(missing) - MOST_NAMED
        which = "; ".join(missing[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        what = "nobody is granted" if self.lock.name == "active" else f"nobody gets the permit {self.lock.name}"
        self.context.alarm(
            self._alarm, f"{holder.engine_id} is not proven gone after {self.config.window_s:g} s, and {what}: {which}"
        )
