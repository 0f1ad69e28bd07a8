"""A takeover that hangs: the holder isn't proven gone, or the next one doesn't answer, for longer than that takes. Then
an alarm says which process it is, and how it is.

Pure. The proof itself never hurries (`evidence/rules/proof.py`): a process that SIGKILL doesn't end (in a frozen
cgroup, in the kernel's hands, under a tracer that doesn't wait), or a stopped one that has the life lock, is awaited
for ever, and rightly. So is a waiter that is stopped, and alone. But a person has to hear of it. Once `--window-s` of
fencing is over the shell is asked for a look at what lives, and what it saw is said in one alarm, which is kept true
with another look every so often, and ends with the proof.
"""

import math

from evidence.rules.incarnation import Incarnation, Life
from evidence.rules.proof import what_is_missing
from lockserver.rules.context import Context
from lockserver.rules.events import Config, LookAt, LookedAt
from lockserver.rules.lock import Lock
from lockserver.rules.messages import ACTIVE
from lockserver.rules.plan import Awaited, Plan

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
        """The incarnation whose end, or whose answer, is awaited."""
        self._why = ""
        """What a waiter lacks; empty where an end is awaited."""
        self._since = math.inf
        self._asked_at = -math.inf
        self._answered = True

    def plan(self, plan: Plan, awaited: Awaited) -> None:
        """`awaited`: in this turn nothing proved that end, or granted that waiter."""
        who, why = awaited
        if who is not self._who or why != self._why:
            plan.do(self.follow, who, why)
            return
        patience_s = max(self.config.window_s, LEAST_S)
        if who is None or plan.wait_until(self._since + patience_s):
            return
        if self._answered:
            if not plan.wait_until(self._asked_at + patience_s):
                plan.do(self.ask, who)
        elif not plan.wait_until(self._asked_at + self.config.reader_s) and (text := self._text(who, None)):
            plan.say(self.context.alarm, self._alarm, text)  # the answer may not come: /proc can hang, too

    def follow(self, who: Incarnation | None, why: str) -> None:
        """Its end, or its answer, is awaited from now on. What was awaited before is proven gone, has come back or was
        granted; or another alarm says what is to be done.
        """
        if who is not self._who or bool(why) is not bool(self._why):
            self._since, self._asked_at, self._answered = self.context.now, -math.inf, True
            self.context.calm(self._alarm)
        self._who, self._why = who, why

    def ask(self, who: Incarnation) -> None:
        self._answered, self._asked_at = False, self.context.now
        self.context.out.append(LookAt(who.name, who.living, life=not who.living and who.life is Life.HELD))

    def looked_at(self, event: LookedAt) -> None:
        who = self._who
        if who is not None and who.name == event.incarnation:
            self._answered = True
            if text := self._text(who, event):
                self.context.alarm(self._alarm, text)

    def _text(self, who: Incarnation, seen: LookedAt | None) -> str:
        return self._not_granted(who, seen) if self._why else self._not_gone(who, seen)

    def _not_gone(self, holder: Incarnation, seen: LookedAt | None) -> str:
        """Empty where it ended as it was looked at."""
        missing = what_is_missing(holder, new_server=self.lock.doubt is not None, seen=seen)
        more = len(missing) - MOST_NAMED
        which = "; ".join(missing[:MOST_NAMED]) + (f"; and {more} more" if more > 0 else "")
        what = "no engine is granted" if self.lock.name == ACTIVE else f"no engine gets the permit {self.lock.name}"
        said = f"{holder.engine_id} is not proven gone after {self.config.window_s:g} s, and {what}: {which}"
        return said if missing else ""

    def _not_granted(self, waiter: Incarnation, seen: LookedAt | None) -> str:
        sights = dict(seen.processes) if seen is not None else {}
        sight = sights.get(waiter.main.process or 0, "") if waiter.main is not None else ""
        main = f"; its main process {waiter.pid} {sight}" if sight else ""
        return f"no engine holds the lock, and none was granted for {self.config.window_s:g} s: {self._why}{main}"
