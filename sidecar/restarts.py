"""When a program that has ended is started again. Pure: `supervisor.py` has the processes.

1. At once after the first failure, then after longer and longer pauses.
2. A program that ran for a while before it failed begins again with the first pause.
3. Exit code 64 says that its arguments are wrong: it is never started again.
4. Neither is a program that ends by itself, with an error, right after its very first start. It has said what a person
   has to put right, and would say so again and again.
"""

from dataclasses import dataclass

EX_USAGE = 64
STEADY_S = 30.0
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""After the first failure, the second, and so on; the last for all that follow."""
RIGHT_AFTER_S = 3.0


@dataclass
class Restarts:
    """The restarts of one program."""

    starts: int = 0
    failures: int = 0
    started_at: float = 0.0

    def started(self, now: float) -> None:
        self.starts += 1
        self.started_at = now

    def ended(self, code: int, now: float) -> float | None:
        """How long until it is to be started again, in seconds; None if another start would change nothing. The code
        is negative for a signal.
        """
        right_after_the_first = self.starts == 1 and now < self.started_at + RIGHT_AFTER_S
        if code == EX_USAGE or (right_after_the_first and code > 0):
            return None
        self.failures = 1 if now >= self.started_at + STEADY_S else self.failures + 1
        return PAUSES_S[min(self.failures, len(PAUSES_S)) - 1]
