"""What engines have died of: how many deaths each thing that was asked is blamed for. Pure.

Requests come and go, and a client asks again: so deaths are kept under the fingerprint of what was asked, for a while,
and only of so many. What this file may not do: say which requests are to blame (`admission.py`).
"""

from gateway.rules.visitors import Visitor


class Deaths:
    __slots__ = ("_by_fingerprint", "_left", "_most", "_while_s")

    def __init__(self, while_s: float, most: int) -> None:
        self._while_s = while_s
        self._most = most
        self._by_fingerprint: dict[int, tuple[int, float]] = {}
        """How many deaths, and when the last one was; in that order."""
        self._left: dict[int, tuple[Visitor, float]] = {}
        """Requests that their clients have left, and until when a death of that engine counts against each."""

    def __len__(self) -> int:
        return len(self._by_fingerprint)

    def of(self, fingerprint: int, now: float) -> int:
        deaths, at = self._by_fingerprint.get(fingerprint, (0, 0.0))
        return deaths if now < at + self._while_s else 0

    def blame(self, visitor: Visitor, now: float) -> None:
        visitor.strikes += 1
        name, known = visitor.fingerprint, self._by_fingerprint
        if name:
            deaths = max(visitor.strikes, self.of(name, now))  # one death counts once, however many had asked the same
            known.pop(name, None)
            known[name] = (deaths, now)
            if len(known) > self._most:
                del known[next(iter(known))]

    def acquit(self, visitor: Visitor) -> None:
        """An engine has answered it."""
        visitor.strikes = 0
        self._by_fingerprint.pop(visitor.fingerprint, None)

    def leave(self, request: int, visitor: Visitor, until: float) -> None:
        """Its client left before an engine had given it anything: a client that sends poison may not wait."""
        self._left[request] = (visitor, until)
        if len(self._left) > self._most:
            del self._left[next(iter(self._left))]

    def engine_lost(self, died: bool, now: float) -> None:
        for visitor, until in self._left.values():
            if died and now < until:
                self.blame(visitor, now)
        self._left.clear()
