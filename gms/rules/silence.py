"""Whether a device's server still turns, by what its supervisor hears of it. Pure; `supervisor.py` asks and kills.

The supervisor asks each server every `ASK_S`, and the server's own loop answers.

 1. A server that has been silent for `silent_s` and used no processor meanwhile hangs: it is stopped, or the driver has
    it. It is killed, and starts again as after any end.
 2. One that uses the processor may be at something long (clearing memory) or have too little of it: it has `PATIENCE`
    times as long. So has one that has not answered yet, because a driver takes its time.
 3. Time in which the supervisor itself didn't look doesn't count.
 4. What SIGKILL doesn't end is named, and left: the other devices are served on.
"""

from enum import Enum

ASK_S = 1.0
PATIENCE = 6
NOT_WELL_S = 5.0
"""So long silent, without using the processor: `/live` says so."""
_IDLE_CPU_S = 0.001


class Do(Enum):
    NOTHING = "nothing"
    KILL = "kill"
    NAME = "say that it can't be killed"


class Silence:
    """What is known of one server's."""

    def __init__(self, silent_s: float, now: float) -> None:
        self.silent_s = 0.0
        """For how long it has been, at the last look."""
        self.idle_s = 0.0
        """For how long of that it has used no processor."""
        self._most_s = silent_s
        self._looked = now
        self._cpu_s = 0.0
        self._has_answered = False
        self._killed_at = 0.0
        """In seconds of silence; 0: it wasn't."""
        self._named = False

    @property
    def hangs(self) -> bool:
        return self._has_answered and self.idle_s >= NOT_WELL_S

    def answered(self) -> None:
        self.silent_s = self.idle_s = self._killed_at = 0.0
        self._has_answered, self._named = True, False

    def look(self, now: float, cpu_s: float) -> Do:
        """`cpu_s`: all that it has used since its start."""
        passed_s, self._looked = min(now - self._looked, 2 * ASK_S), now
        used_s, self._cpu_s = cpu_s - self._cpu_s, cpu_s
        self.silent_s += passed_s
        self.idle_s = self.idle_s + passed_s if used_s < _IDLE_CPU_S else 0.0
        if self._killed_at:
            if self._named or self.silent_s < self._killed_at + NOT_WELL_S:
                return Do.NOTHING
            self._named = True
            return Do.NAME
        idle = self._has_answered and self.idle_s >= self._most_s
        if not idle and self.silent_s < self._most_s * PATIENCE:
            return Do.NOTHING
        self._killed_at = self.silent_s
        return Do.KILL
