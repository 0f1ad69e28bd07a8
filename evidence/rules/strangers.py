"""Strangers: incarnations that have a life lock here and haven't registered with this server. A new server that can't
know whom the last one had granted something looks for them (rule E9 of the package).

Pure. A look tells of the moment in which it was taken: soon after it is too old, and `wants_look` says so.
"""

import math
from collections.abc import Iterable
from itertools import islice
from typing import Any

from evidence.rules.events import Config, ProbeStrangers, StrangersProbed
from evidence.rules.incarnation import Stage
from evidence.rules.incarnations import Incarnations
from sidecar.machine.context import Context

LOOK_EVERY_S = 0.1
MOST_NAMED = 32


class Strangers:
    def __init__(self, config: Config, context: Context[Any], incarnations: Incarnations) -> None:
        self.config = config
        self.context = context
        self.incarnations = incarnations
        self.seen: StrangersProbed | None = None
        """The last look at the life files."""
        self._asked = False
        self._asked_at = -math.inf
        self._held_at = -math.inf

    # -- questions -------------------------------------------------------------------------------------------------

    def look(self, now: float) -> StrangersProbed | None:
        """The last look. None: it is too old to prove that there are none, or the next one is under way."""
        seen = self.seen
        too_old = self._asked or self._stale(now)
        return seen if not too_old or (seen is not None and seen.any) else None

    def wants_look(self, now: float) -> bool:
        return self._stale(now) and not self._asked

    def stale_at(self) -> float:
        return self._asked_at + LOOK_EVERY_S

    def _stale(self, now: float) -> bool:
        return now >= self.stale_at()

    def settled_at(self) -> float:
        """From then on no stranger that was seen can be dying still."""
        return self._held_at + self.config.settle_s

    def unheard(self) -> tuple[str, ...]:
        """Those of which a process lives, and whose main process hasn't come and said what was granted to it."""
        awaited = islice(self.incarnations.living_unheard.values(), MOST_NAMED)
        return tuple(f"a process of {who.engine_id} is alive, and its main process isn't back" for who in awaited)

    def holding(self, look: StrangersProbed) -> Iterable[str]:
        """Life locks of those that this server hasn't heard of since, either."""
        here = self.incarnations
        held = (name for name in look.held if name not in here.known and not here.why_condemned(name))
        return islice(held, MOST_NAMED)

    # -- what is done ----------------------------------------------------------------------------------------------

    def ask(self) -> None:
        """Which have a life lock here, and have not registered with this server?"""
        self._asked, self._asked_at = True, self.context.now
        here = self.incarnations
        known = tuple(name for name, i in here.known.items() if i.stage is not Stage.AWAITED or name in here.bound)
        self.context.out.append(ProbeStrangers(known))

    def probed(self, event: StrangersProbed, *, keep: bool) -> None:
        """`keep`: what they left behind stays until it is settled that none of them is awaited."""
        before, self.seen, self._asked = self.seen, event, False
        if keep:
            if event.any or (before is not None and before.any):  # let go at any moment since the last look
                self._held_at = self.context.now
        else:
            for name in event.free:
                if name not in self.incarnations.known and name not in self.incarnations.pending_unlinks:
                    self.incarnations.unlink_at_once(name)

    def settle(self) -> None:
        """It is settled: what they left behind can go once that is on disk."""
        if self.seen is not None:
            self.incarnations.unlink_later(self.seen.free)
