"""How long kubelet waits before it starts a container again. Pure.

kubelet's rule (client-go's flowcontrol.Backoff, and doBackOff in its runtime manager): the first restart comes at once
and opens an entry of 10 s. While less time than the entry has passed since the end that is looked at, the container
waits (CrashLoopBackOff). The next start doubles the entry, up to 300 s. An end that comes more than twice the maximum
(ten minutes) after the entry's last change opens a new one: the back-off is forgotten.

The end that is looked at is the newest that kubelet has *seen* when it decides: for a crash that crash; for a container
that it killed itself (a failed probe) the end before, because it starts the next one in the same breath.
"""

from dataclasses import dataclass

INITIAL_S = 10.0
MOST_S = 300.0


@dataclass
class Backoff:
    initial_s: float = INITIAL_S
    most_s: float = MOST_S
    delay_s: float = 0.0
    changed_at: float | None = None

    def until(self, end: float | None) -> float:
        """When a container may start whose last end is this; it may at once when that is past."""
        if end is None or self.changed_at is None or self._forgotten(end):
            return float("-inf")
        return end + self.delay_s

    def started(self, end: float | None, now: float) -> None:
        """It is started now. A container that never ended before opens no entry."""
        if end is None:
            return
        if self.changed_at is None or self._forgotten(end):
            self.delay_s = self.initial_s
        else:
            self.delay_s = min(self.delay_s * 2, self.most_s)
        self.changed_at = now

    def _forgotten(self, end: float) -> bool:
        return self.changed_at is not None and end - self.changed_at > 2 * self.most_s
