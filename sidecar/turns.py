"""How every shell feeds its machine: one event at a time, its effects carried out in order, and what these bring back
(an answer, a reading, a write) before anything else is looked at.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any


class Turns:
    def __init__(
        self,
        shell: object,
        handle: Callable[[Any], Iterable[object]],
        effects: Mapping[type, Callable[[Any, Any], None]],
    ) -> None:
        """`effects`: what carries each effect out, given the shell and the effect."""
        self._shell = shell
        self._handle = handle
        self._effects = effects
        self._pending: deque[object] = deque()

    def feed(self, event: object) -> None:
        pending = self._pending
        pending.append(event)
        if len(pending) > 1:
            return  # an effect of the event before brought this one; the loop below comes to it
        shell, effects = self._shell, self._effects
        while pending:
            for effect in self._handle(pending[0]):
                effects[type(effect)](shell, effect)
            pending.popleft()

    def next(self, event: object) -> None:
        """What an effect brought back: the machine gets it next."""
        self._pending.append(event)
