"""The time of one event, and when the machine wants to be called again. Pure."""

import math


class Moment:
    __slots__ = ("next", "now")

    def __init__(self, now: float) -> None:
        self.now = now
        self.next = math.inf
        """The earliest time that was asked about and is still to come."""

    def reached(self, at: float) -> bool:
        if self.now >= at:
            return True
        self.next = min(self.next, at)
        return False
