"""First on disk, then told: which writes are under way, what waits for them, and when a failed one is tried again.

Pure; the machines of both servers own one each. A machine asks for a write (`ask` numbers it) of everything that is so
at that moment, and hears `Persisted` or `PersistFailed` with that number. What may only be told once it is on disk is
owed (`owe`) to the newest write that contains it; `persisted` returns what has become due.

What this file may not do: know what is written, or who is told.
"""

import math
from collections.abc import Callable
from typing import Generic, TypeVar

RETRY_S = 0.5
"""What the disk has refused is written again after that."""

Owed = TypeVar("Owed")


class DiskWrites(Generic[Owed]):
    def __init__(self) -> None:
        self.asked = 0
        """The newest write that was asked for."""
        self.done = 0
        """The newest write that is known to be on disk. What was so when it was asked for survives a crash."""
        self.failing = ""
        """Why the newest write failed; empty while the disk works."""
        self.due_at = math.inf
        """When to write (again) though nothing new has to be said."""
        self._owed: list[tuple[int, Owed]] = []
        self._next: list[Owed] = []
        """Owed to the next write."""

    @property
    def under_way(self) -> bool:
        """A write was asked for, and it isn't known yet how it went."""
        return self.asked > self.done and not self.failing

    @property
    def owed(self) -> list[Owed]:
        """What is still to be told, the oldest first."""
        return [*(what for _, what in self._owed), *self._next]

    def ask(self) -> int:
        """A write begins, of everything that is so now. Returns its number."""
        self.asked += 1
        self.failing, self.due_at = "", math.inf
        self._owed += [(self.asked, what) for what in self._next]
        self._next.clear()
        return self.asked

    def now(self) -> None:
        """The newest write doesn't say how things stand: the next one is due."""
        self.due_at = -math.inf

    def owe_next(self, what: Owed) -> None:
        """To be told once it is on disk by the next write, which is due."""
        self._next.append(what)
        self.now()

    def soon(self, at: float) -> None:
        """What has changed is not urgent: it is written by then, unless a write comes before."""
        self.due_at = min(self.due_at, at)

    def owe(self, what: Owed, to: int | None = None) -> None:
        """To be told once that write is on disk (the newest, if none is named)."""
        self._owed.append((self.asked if to is None else to, what))

    def take_back(self, which: Callable[[Owed], bool]) -> None:
        """No client is to be told of these any more."""
        self._owed = [(to, what) for to, what in self._owed if not which(what)]
        self._next = [what for what in self._next if not which(what)]

    def persisted(self, number: int) -> list[Owed]:
        """A write is on disk. Returns what may be told now, in order."""
        self.done = max(self.done, number)
        if number == self.asked:
            self.failing = ""
        due = [what for to, what in self._owed if to <= self.done]
        if due:
            self._owed = [(to, what) for to, what in self._owed if to > self.done]
        return due

    def failed(self, number: int, why: str, now: float) -> bool:
        """Whether that decides anything: not while a newer write is under way, which contains what this one did. If it
        does, what is owed stays owed, and the write is due again: everything that is so then.
        """
        if number != self.asked:
            return False
        self.failing, self.due_at = why or "for no known reason", now + RETRY_S
        return True
