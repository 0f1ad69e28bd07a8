"""When a start that failed in Init isn't tried again: another start would end in the same way. Pure.

1. A process of the engine says so itself (`CannotRun`), or the main process ends with 64 or 65.
2. Init has failed with the same words `MOST_ALIKE` times in a row, and what failed isn't what waiting mends: weights,
   memory, a permit, another of its own processes. A process that was killed says nothing, so it doesn't count either.
"""

MOST_ALIKE = 3


class InitFailures:
    def __init__(self) -> None:
        self._words = ""
        self._times = 0

    def failed(self, said: str, *, transient: bool) -> bool:
        """Init has failed, and these were the last words of its processes. True: no further start."""
        if not said or transient:
            self._words, self._times = "", 0
            return False
        self._times = self._times + 1 if said == self._words else 1
        self._words = said
        return self._times >= MOST_ALIKE

    def succeeded(self) -> None:
        self._words, self._times = "", 0
