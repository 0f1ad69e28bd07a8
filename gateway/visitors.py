"""Everybody who is with an engine or waits for one, and the order in which those who wait are admitted. Pure.

Interrupted answers come first, oldest first; then whoever is new, in the order of arrival. Requests are numbered in
that order, so a number says who came first.
"""

from bisect import bisect_left, insort
from collections.abc import Sequence
from heapq import heappop, heappush


class Visitor:
    __slots__ = ("again", "fingerprint", "preflight", "read_by", "since", "strikes", "tokens")

    def __init__(self, since: float, tokens: int, preflight: bool) -> None:
        self.since = since
        """When it came, or was interrupted for the first time."""
        self.preflight = preflight
        self.tokens = tokens
        """So many an engine has to read before it can answer."""
        self.read_by = 0
        """The token of the engine that gave it something last: that one has computed all of its context."""
        self.again = False
        """An engine that had it was lost."""
        self.strikes = 0
        """So many engines died while they had it and had given it nothing."""
        self.fingerprint = 0
        """Requests that ask the same have the same one; 0: this one can't be told from others."""


class Visitors:
    def __init__(self) -> None:
        self._known: dict[int, Visitor] = {}
        self._interrupted: list[int] = []
        """Those of them who wait, in order."""
        self._patience: list[tuple[float, int]] = []
        """A heap: the same, and who has left since, by when they were interrupted."""
        self._fresh: list[int] = []
        """A heap of those who are new."""
        self._gone: set[int] = set()
        """Those in that heap who don't wait any more."""
        self.waiting = 0
        self._preflights: set[int] = set()
        """Those in that heap who wait and may need no key."""

    def __getitem__(self, request: int) -> Visitor:
        return self._known[request]

    def fresh(self, *, preflights: bool) -> int:
        """Those who are new: preflights, or all others."""
        apart = len(self._preflights)
        return apart if preflights else len(self._fresh) - len(self._gone) - apart

    @property
    def interrupted(self) -> Sequence[int]:
        return self._interrupted

    @property
    def everybody(self) -> list[int]:
        return list(self._known)

    def knows(self, request: int) -> bool:
        return request in self._known

    def wait(self, request: int, again: bool, tokens: int, now: float, preflight: bool = False) -> Visitor:
        visitor = self._known.get(request)
        if visitor is None:
            visitor = self._known[request] = Visitor(now, tokens, preflight)
        visitor.tokens = tokens
        self.waiting += 1
        if again and not visitor.again:
            visitor.again, visitor.since = True, now
        if visitor.again:
            insort(self._interrupted, request)
            heappush(self._patience, (visitor.since, request))
        else:
            heappush(self._fresh, request)
            if visitor.preflight:
                self._preflights.add(request)
        return visitor

    def stop_waiting(self, request: int) -> None:
        fresh = self._fresh
        if request in self._gone:
            return
        self._preflights.discard(request)
        if fresh and fresh[0] == request:
            heappop(fresh)
        elif self._interrupted and (at := self._place(request)) is not None:
            del self._interrupted[at]
        elif request in fresh:
            self._gone.add(request)
        else:
            return
        self.waiting -= 1

    def leave(self, request: int) -> None:
        if self._known.pop(request, None) is not None:
            self.stop_waiting(request)

    def first_fresh(self) -> int | None:
        while self._fresh:
            if self._fresh[0] not in self._gone:
                return self._fresh[0]
            self._gone.discard(heappop(self._fresh))
        return None

    def longest_interrupted(self) -> int | None:
        while self._patience:
            request = self._patience[0][1]
            if self._place(request) is not None:
                return request
            heappop(self._patience)
        return None

    def _place(self, request: int) -> int | None:
        """Among the interrupted."""
        at = bisect_left(self._interrupted, request)
        return at if at < len(self._interrupted) and self._interrupted[at] == request else None
