"""When a program that has ended is started again. Pure: `supervisor.py` has the processes.

1. At once after the first failure, then after longer and longer pauses.
2. A program that ran for a while before it failed begins again with the first pause.
3. Exit code 64 says that its arguments are wrong, 65 that there are other weights than its own, 78 that it has tried
   again itself: it is never started again.
4. A program of which no start has worked, and which ends soon by itself with an error for the second time, isn't
   either: it has said what a person has to put right. (Once may have been an accident.)
"""

from dataclasses import dataclass

from sidecar.terminal.exit_codes import EX_FAILS_ALIKE, EX_OTHER_WEIGHTS, EX_USAGE

STEADY_S = 30.0
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""After the first failure, the second, and so on; the last for all that follow."""
SOON_S = 10.0


@dataclass
class Restarts:
    """The restarts of one program."""

    starts: int = 0
    failures: int = 0
    started_at: float = 0.0
    worked: bool = False
    """One of its starts ran for a while, or ended in another way than by itself with an error."""

    def started(self, now: float) -> None:
        self.starts += 1
        self.started_at = now

    def ended(self, code: int, now: float) -> float | None:
        """How long until it is to be started again, in seconds; None if another start would change nothing. The code
        is negative for a signal.
        """
        ran_s = now - self.started_at
        self.worked = self.worked or code <= 0 or ran_s >= STEADY_S
        again = self.starts > 1 and ran_s < SOON_S and not self.worked
        if code in (EX_USAGE, EX_OTHER_WEIGHTS, EX_FAILS_ALIKE) or again:
            return None
        self.failures = 1 if ran_s >= STEADY_S else self.failures + 1
        return PAUSES_S[min(self.failures, len(PAUSES_S)) - 1]
