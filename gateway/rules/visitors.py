"""The requests that are with an engine or wait for one, and the order in which those that wait are admitted (rule 4 of
`admission.py`). Pure. Requests are numbered in the order of arrival, so a number says which came first.
"""

from bisect import bisect_left, insort

from gateway.rules import events as e


class Visitor:
    __slots__ = (
        "again", "fingerprint", "lease", "preflight", "priority", "read_by", "since", "strikes", "tokens", "uncovered",
        "until", "waits",
    )  # fmt: skip

    def __init__(self, wait: e.Wait, since: float, until: float, strikes: int) -> None:
        self.since = since
        """When it came, or was interrupted and has had nothing since."""
        self.preflight = wait.preflight
        self.priority = wait.priority
        """The lowest is the most urgent."""
        self.until = until
        """While it is new it waits until then."""
        self.tokens = wait.tokens
        """How many an engine has to read before it can answer."""
        self.read_by = 0
        """The token of the engine that gave it something last: that one has computed all of its context."""
        self.waits = False
        self.again = False
        """An engine that had it was lost, and none has given it something since."""
        self.strikes = strikes
        """How many engines died while they had it and had given it nothing."""
        self.lease = wait.lease
        """The token that it carries."""
        self.uncovered = False
        """It was with an engine when no lease covered it, and is counted."""
        self.fingerprint = wait.fingerprint
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
        self.tokened: set[int] = set()
        """Those that carry a token, waiting or not."""
        self._first_end: tuple[float, int] | None = None
        """Looked for when it is asked for, and not with each request that comes and goes at once."""
        self._preflights: set[int] = set()
        """Those of the new ones that may need no key."""

    @property
    def waiting(self) -> int:
        return len(self.new) + len(self.interrupted)

    def count_new(self, *, preflights: bool) -> int:
        """How many wait and are new: preflights, or all others."""
        apart = len(self._preflights)
        return apart if preflights else len(self.new) - apart

    @property
    def first_end(self) -> tuple[float, int]:
        """Which of the new ones has waited for long enough first, and when."""
        if self._first_end is None:
            self._first_end = min((self[request].until, request) for request in self.new)
        return self._first_end

    def _place(self, request: int) -> tuple[int, int]:
        return self[request].priority, request

    def wait(self, request: int) -> None:
        visitor = self[request]
        visitor.waits = True
        if visitor.again:
            insort(self.interrupted, request)
            insort(self.longest, (visitor.since, request))
        else:
            self._first_end = None
            if self.new:
                insort(self.new, request, key=self._place)
            else:  # as nearly always
                self.new.append(request)
            if visitor.preflight:
                self._preflights.add(request)

    def stop_waiting(self, request: int) -> None:
        visitor = self[request]
        if visitor.waits and visitor.again:
            del self.interrupted[bisect_left(self.interrupted, request)]
            del self.longest[bisect_left(self.longest, (visitor.since, request))]
        elif visitor.waits:
            new, self._first_end = self.new, None
            del new[0 if new[0] == request else bisect_left(new, self._place(request), key=self._place)]
            self._preflights.discard(request)
        visitor.waits = False

    def leave(self, request: int) -> None:
        if request in self:
            self.stop_waiting(request)
            self.tokened.discard(request)
            del self[request]
