"""A requester's machine: whether it is ready, and where its ports lead. Pure.

1. It is unready until the controller says where its instance is (`bound`) and that instance has answered.
2. Bound, it asks the instance: quickly at first, then seldom; where the instance can be watched, a change is told.
3. It is unready at once when the binding ends. When the instance says no, or doesn't answer, or its watch ends, it is
   unless the instance says yes again within `PAUSE_S`: so long its pool's door keeps requests while a standby wakes.
   Unready, its ports lead there as before, and nowhere once they are said to be another instance's.
4. A binding without an address is FMA's: the controller itself says ready and unready. For FMA's requester ours says
   unready while its instance isn't awake, too; one that asks its instance by itself goes on (`stays`), unless that is
   at another address by now: an engine of another model may have the old one.
5. What an older controller says is refused: its token is less than one that was heard.
6. Once its pod ends, by SIGTERM or as the controller says, it is unready whatever comes. Its binding is what the
   controller says, as before.
"""

import math
from dataclasses import dataclass, field, replace

QUICK_S, SLOW_S, MOST_QUICK_S = 0.02, 1.0, 0.5
PAUSE_S = 1.0


@dataclass(frozen=True)
class Target:
    """Where the controller says that the instance is. All of it is missing where FMA's says it."""

    url: str = ""
    """Answers 200 once the instance is ready. Empty: the controller's word is enough."""
    watch: str = ""
    host: str = ""
    port: int = 0
    """Where the ports lead; 0: to the same port there."""
    token: int = field(default=0, compare=False)
    pod: str = field(default="", compare=False)
    """The uid of the requester that is meant: an address may be another pod's by now. Empty: not said."""
    ends: bool = field(default=False, compare=False)
    """Its pod is being deleted; kubelet may say so later."""
    stays: bool = False
    """It is unready as its instance isn't awake, and stays bound to it at this host."""


@dataclass(frozen=True)
class Standing:
    target: Target | None = None
    ready: bool = False
    token: int = 0
    why: str = "it isn't bound to an instance yet"
    pause_s: float = QUICK_S
    ask_at: float = math.inf
    doubted_at: float = math.inf
    """Since when it is ready only if the instance says so again soon."""
    ending: bool = False
    elsewhere: bool = False
    """What answers where its ports lead says that this isn't its instance's port (any more)."""

    def bound(self, target: Target, now: float) -> "Standing | None":
        """None: refused, by rule 5."""
        if target.token and target.token < self.token:
            return None
        token = max(target.token, self.token)
        if self.ending or target == self.target:
            return replace(self, token=token)
        if not target.url:
            return Standing(target, True, token, "the controller says that it is ready")
        return Standing(target, False, token, "its instance hasn't answered yet", ask_at=now)

    def unbound(self, said: Target) -> "Standing | None":
        if said.token and said.token < self.token:
            return None
        token, bound = max(said.token, self.token), self.target
        if said.stays and bound is not None and bound.url and said.host in ("", bound.host):
            return replace(self, token=token)
        why = "its instance is elsewhere, and isn't awake" if said.stays else "it isn't bound to an instance any more"
        return Standing(token=token, why=why, ending=self.ending or said.ends)

    def ends(self) -> "Standing":
        return replace(self, ready=False, why="its pod ends", ask_at=math.inf, ending=True)

    def answered(self, target: Target, why: str, now: float, status: int = 0) -> "Standing":
        """It was asked. `why`: why it isn't ready; empty if it is. `status`: 404 is a pool's word of another's port.
        0 is none, and changes nothing of that.
        """
        if not self._follows(target):
            return self
        its = replace(self, elsewhere=bool(target.port) and status == 404) if status else self
        if not why:
            return replace(its, ready=True, why="", pause_s=QUICK_S, ask_at=now + SLOW_S, doubted_at=math.inf)
        pause_s = min(self.pause_s * 1.5, MOST_QUICK_S)
        return replace(its._doubted(why, now), pause_s=pause_s, ask_at=now + self.pause_s)

    def _doubted(self, why: str, now: float) -> "Standing":
        since = min(self.doubted_at, now)
        return replace(self, ready=self.ready and now < since + PAUSE_S, why=why, doubted_at=since)

    def told(self, target: Target, now: float) -> "Standing":
        """The watch has said something: the instance is asked at once."""
        return replace(self, ask_at=now) if self._follows(target) else self

    def cut(self, target: Target, now: float) -> "Standing":
        if not self._follows(target):
            return self
        return replace(self._doubted("its server pod has ended the watch", now), ask_at=now)

    def _follows(self, target: Target) -> bool:
        return target == self.target and not self.ending
