"""Which incarnations are due to be looked at: those of which something new is known, and those whose time has come.

Pure. With hundreds of incarnations under way an event costs a look at those that it concerns, and not at all of them.
Its owner says what is new (`touch`) and when the next look is due (`looked`); in between it may be asked as often as
one likes.
"""

import math
from bisect import bisect_left, insort


class Looks:
    def __init__(self) -> None:
        self._new: dict[str, None] = {}
        self._timed: list[tuple[float, str]] = []
        """In order."""
        self._at: dict[str, float] = {}
        self._resting: dict[str, float] = {}
        """Those that no timer runs for: when they may be looked at, the earliest first, if something happens then."""

    def touch(self, name: str) -> None:
        self._new[name] = None

    def due(self, now: float) -> list[str]:
        found = dict(self._new)
        for at, name in self._timed:
            if at > now:
                break
            found[name] = None
        for name, at in self._resting.items():
            if at > now:
                break
            found[name] = None
        return list(found)

    @property
    def again(self) -> float:
        """When the next one is due."""
        return -math.inf if self._new else self._timed[0][0] if self._timed else math.inf

    def looked(self, name: str, again: float, rests_until: float = math.inf) -> None:
        self.forget(name)
        if again < math.inf:
            self._at[name] = again
            insort(self._timed, (again, name))
        if rests_until < math.inf:
            self._resting[name] = rests_until

    def forget(self, name: str) -> None:
        self._new.pop(name, None)
        self._resting.pop(name, None)
        at = self._at.pop(name, None)
        if at is not None:
            del self._timed[bisect_left(self._timed, (at, name))]
