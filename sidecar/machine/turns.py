"""How every shell feeds its machine: one event at a time, its effects carried out in order, and what these bring back
(an answer, a reading, a write) before anything else is looked at.
"""

from collections import deque
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Protocol


class Machine(Protocol):
    @property
    def deadline(self) -> float:
        """When a tick is due; infinite while there is nothing to wait for."""

    def handle(self, event: Any, time: Any) -> Iterable[object]: ...


class Turns:
    """What a shell is, as far as it is fed."""

    machine: Machine

    def __init__(self, effects: Mapping[type, Callable[[Any, Any], None]], clock: Callable[[], Any]) -> None:
        """`effects`: what carries each effect out, given this shell and the effect."""
        self._effects = effects
        self._clock = clock
        self._pending: deque[object] = deque()
        self.now: Any = None
        """When the event came whose effects are carried out."""

    def feed(self, event: object) -> None:
        """One event, and everything that its effects bring back."""
        pending = self._pending
        pending.append(event)
        if len(pending) > 1:
            return  # an effect of the event before brought this one; the loop below comes to it
        effects = self._effects
        while pending:
            self.now = now = self._clock()
            for effect in self.machine.handle(pending[0], now):
                effects[type(effect)](self, effect)
            pending.popleft()

    def answer(self, event: object) -> None:
        """What an effect brought back: the machine gets it next."""
        self._pending.append(event)
