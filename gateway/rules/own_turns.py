"""How long engines had one request, and how long the next one has to have it, so that it comes further: rule 10 of
`request.py`. Pure.
"""

import math

from gateway.rules import events as e

PART_FOR_ONE = 4
"""A turn of one that begins anew takes at most the time for which requests wait for their turn, divided by this."""


def longest_turn_s(bounds: e.Bounds) -> float:
    return (bounds.turn_s or 0.0) / PART_FOR_ONE


class OwnTurns:
    def __init__(self, bounds: e.Bounds) -> None:
        self._bounds = bounds
        self.short_s = 0.0
        """The longest that an engine had it, where it then had to begin anew; else how long it took to come further,
        if ever a turn was too short for that.
        """
        self._vain_s = 0.0
        """How long engines had it, in the turns since the last in which it came further."""

    @property
    def next_s(self) -> float:
        """No longer than others can be kept waiting for one request."""
        return min(2 * self.short_s, longest_turn_s(self._bounds))

    def ended(self, had_s: float, read_s: float, *, goes_on: bool, paused: bool, further: bool) -> None:
        """An engine has it no more. `read_s`: what was over before it came further, or before the end. `goes_on`: the
        next engine begins where it is, and not anew.
        """
        if paused:
            self._vain_s = 0.0 if further else self._vain_s + had_s
        if not goes_on:
            self.short_s = max(self.short_s, had_s)
        else:
            self.short_s = read_s if self.short_s or read_s >= had_s else 0.0

    def too_short(self, had_s: float) -> str:
        """In which turns it came no further, if that is enough of them."""
        most_s = self._bounds.turn_s or math.inf
        if had_s >= most_s / PART_FOR_ONE:
            return f"a turn of {had_s:.0f} s"
        return f"turns of {self._vain_s:.0f} s together" if self._vain_s >= most_s else ""
