"""What no other process may have while this server grants: the name of its path, and those of the devices.

Pure. A directory can be moved away under a server, and another server be started where its path leads now. Both live
in one network namespace, and there each name exists once (`sidecar/kernel/exclusive_names.py`). A server takes the name
before its first grant, and the holder gets a copy with the grant. While one of them lives or is stopped the name is
taken. A dying process loses its names before its memory: so when a name becomes free the server waits for the settling
time, unless it has seen the holder end.
"""

import math

from lockserver.rules.context import Context
from lockserver.rules.events import Config, NamesTaken, TakeNames
from lockserver.rules.plan import Plan

RETRY_S = 0.1


class Exclusion:
    def __init__(self, config: Config, context: Context) -> None:
        self.config = config
        self.context = context
        self.missing: tuple[tuple[str, str], ...] = ()
        """What other processes have, and which."""
        self._has: set[str] | None = None
        """Devices whose names this server has beside its path's; None: not even that."""
        self._asked: tuple[str, ...] | None = None
        self._quietly = False
        self._retry_at = 0.0
        self._others_had_them = False
        """At the last try another process had a name. When it is free, that one may be dying."""
        self._settled_at = -math.inf

    # -- questions -------------------------------------------------------------------------------------------------

    def has(self, now: float, devices: tuple[str, ...] = ()) -> bool:
        """It has the name of its path, and those of these devices, and no process can have lost them a moment ago and
        still be dying.
        """
        return self._has_names(devices) and not self.settles(now)

    def settles(self, now: float) -> bool:
        """The process that had the names may be dying yet."""
        return now < self._settled_at

    def _has_names(self, devices: tuple[str, ...]) -> bool:
        return self._has is not None and self._has.issuperset(devices)

    def plan(self, plan: Plan, devices: tuple[str, ...] = ()) -> bool:
        """What it hasn't is asked for. Returns whether it has all."""
        if self._has_names(devices):
            plan.wait_until(self._settled_at)
        elif self._asked is None and not plan.wait_until(self._retry_at):
            plan.do(self.ask, devices)
        return self.has(plan.now, devices)

    # -- what is done ----------------------------------------------------------------------------------------------

    def begin(self) -> None:
        """A new server takes the name of its path, if that is free: another for the same path sees it then."""
        self._quietly = True
        self.ask(())

    def ask(self, devices: tuple[str, ...]) -> None:
        self._asked = devices
        self.context.out.append(TakeNames(devices))

    def holder_ended(self) -> None:
        """It had them, this server has seen it alive, and nothing is left of it."""
        self._others_had_them = False

    def taken(self, event: NamesTaken) -> None:
        asked, self._asked = self._asked or (), None
        quietly, self._quietly = self._quietly, False
        self.missing = event.missing
        if not event.missing:
            self._has = (self._has or set()) | set(asked)
            if self._others_had_them:
                self._others_had_them = False
                self._settled_at = self.context.now + self.config.settle_s
            self.context.calm("names")
            return
        self._others_had_them |= event.others
        if quietly:
            return
        self._retry_at = self.context.now + RETRY_S
        self.context.alarm(
            "names", f"no engine is granted: {'; '.join(f'{who} has {what}' for what, who in event.missing)}"
        )
