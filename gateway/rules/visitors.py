"""The requests that are with an engine or wait for one, and the order in which those that wait are admitted. Pure.

Interrupted answers come first, oldest first; then new requests, in the order of arrival. Requests are numbered in that
order, so a number says which came first.
"""

from bisect import bisect_left, insort


class Visitor:
    __slots__ = ("again", "fingerprint", "preflight", "read_by", "since", "strikes", "tokens", "waits")

    def __init__(self, since: float, tokens: int, preflight: bool, fingerprint: int, strikes: int) -> None:
        self.since = since
        """When it came, or was interrupted for the first time."""
        self.preflight = preflight
        self.tokens = tokens
        """How many an engine has to read before it can answer."""
        self.read_by = 0
        """The token of the engine that gave it something last: that one has computed all of its context."""
        self.waits = False
        self.again = False
        """An engine that had it was lost."""
        self.strikes = strikes
        """How many engines died while they had it and had given it nothing."""
        self.fingerprint = fingerprint
        """Requests that ask the same have the same one; 0: this one can't be told from others."""


class Visitors(dict[int, Visitor]):
    """By number."""

    def __init__(self) -> None:
        super().__init__()
        self.new: list[int] = []
        """Those that wait and are new, in order."""
        self.interrupted: list[int] = []
        """Those that wait and were interrupted, in order."""
        self.longest: list[tuple[float, int]] = []
        """The same, by when they were interrupted."""
        self._preflights: set[int] = set()
        """Those of the new ones that may need no key."""

    @property
    def waiting(self) -> int:
        return len(self.new) + len(self.interrupted)

    def count_new(self, *, preflights: bool) -> int:
        """How many wait and are new: preflights, or all others."""
        apart = len(self._preflights)
        return apart if preflights else len(self.new) - apart

    def wait(self, request: int) -> None:
        visitor = self[request]
        visitor.waits = True
        if visitor.again:
            insort(self.interrupted, request)
            insort(self.longest, (visitor.since, request))
        else:
            insort(self.new, request)
            if visitor.preflight:
                self._preflights.add(request)

    def stop_waiting(self, request: int) -> None:
        visitor = self[request]
        if visitor.waits and visitor.again:
            del self.interrupted[bisect_left(self.interrupted, request)]
            del self.longest[bisect_left(self.longest, (visitor.since, request))]
        elif visitor.waits:
            del self.new[bisect_left(self.new, request)]
            self._preflights.discard(request)
        visitor.waits = False

    def leave(self, request: int) -> None:
        if request in self:
            self.stop_waiting(request)
            del self[request]
