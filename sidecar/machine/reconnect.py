"""When a client connects again. Pure; every client's machine asks it.

A connection that lasted is made again at once: its server has just died, and the next one is there within
milliseconds. One that didn't last is waited for longer and longer, up to a bound: no client should keep a server busy
with turning it away.
"""

import math

FIRST_S = 0.005
STEADY_S = 1.0


class Reconnect:
    def __init__(self, most_s: float) -> None:
        self._most_s = most_s
        self._wait_s = FIRST_S
        self._steady_at = math.inf
        """From when on this connection counts as one that lasted."""
        self._not_before = -math.inf
        self.at = 0.0
        """When to connect."""

    def welcomed(self, now: float) -> None:
        self._steady_at, self._not_before = now + STEADY_S, -math.inf

    def ended(self, now: float) -> None:
        """The connection ended, or could not be made."""
        if now >= self._steady_at:
            self._wait_s, self.at = FIRST_S, now
        else:
            self.at = now + self._wait_s
            self._wait_s = min(self._wait_s * 2, self._most_s)
        self.at = max(self.at, self._not_before)
        self._steady_at = math.inf

    def later(self, now: float, seconds: float) -> None:
        """Not before that: the server at the other end can't have this client now."""
        self._not_before = now + seconds
        self.at = max(self.at, self._not_before)
