"""What a shim sees of the others: which holds the lock, which are ready, and which requests they take.

Pure, a part of the lifecycle (`lifecycle.py`, rule 9). In what two engines differ: `takes.py`.
"""

from engine_shim.rules import events as e
from engine_shim.rules import takes


class Counterparts:
    def __init__(self) -> None:
        self.takes: dict[str, str] = {}
        """What decides which requests this engine takes, as this start has said it."""
        self.differences: tuple[str, ...] = ()
        """In what its counterpart takes other requests."""
        self.lock: e.LockSeen | None = None
        """As last seen. What is seen while this engine initialises counts once it waits."""
        self._lock_away = False
        self._others_take: dict[str, dict[str, str]] = {}

    @property
    def redundant(self) -> bool:
        """An engine serves, and another one could take over every request."""
        if self.lock is None or self._lock_away:
            return False
        return self.lock.redundant and not self.differences

    def sees(self, lock: e.LockSeen) -> tuple[str, ...]:
        """This and what follows return the differences, if they are news and an alarm."""
        self.lock, self._lock_away = lock, False
        return self._compare()

    def lock_is_away(self) -> None:
        self._lock_away = True

    def says(self, ours: dict[str, str]) -> tuple[str, ...]:
        self.takes = ours
        return self._compare()

    def others_say(self, theirs: dict[str, dict[str, str]]) -> tuple[str, ...]:
        self._others_take = theirs
        return self._compare()

    def _compare(self) -> tuple[str, ...]:
        """Where there are several, one that takes the same is enough."""
        others = self.lock.counterparts if self.lock is not None else ()
        found = [takes.differences(self.takes, self._others_take.get(other, {}), other) for other in others]
        worst = tuple(sorted(found, key=len)[0]) if found else ()
        news = worst if worst != self.differences else ()
        self.differences = worst
        return news
