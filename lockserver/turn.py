"""One turn of the server's machine: the time, the effects so far, and when it wants to be called again.

Shared by the three parts of the machine (`forest.py`, `queue.py`, `machine.py`), so that effects stand in the order
in which the rules asked for them.
"""

import math
from collections import deque
from datetime import UTC, datetime

from lockserver.events import Effect, Note, Send, Time
from lockserver.messages import HistoryEvent, ServerMessage


def rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Turn:
    def __init__(self, history_size: int) -> None:
        self.out: list[Effect] = []
        self.deadline = math.inf
        self.changed = False
        """The public picture may have changed."""
        self._history: deque[HistoryEvent] = deque(maxlen=history_size)
        self._unwritten: list[tuple[float, str, dict[str, str | int | float | bool]]] = []
        """The newest events of the history; their times are put into words when somebody asks, not in a handoff."""
        self.alarms: dict[str, str] = {}
        """What is wrong at the moment, for as long as it is."""
        self._time = Time(0.0, 0.0)

    def begin(self, time: Time) -> None:
        self._time = time
        self.out = []
        self.deadline = math.inf

    @property
    def now(self) -> float:
        return self._time.mono

    @property
    def wall(self) -> float:
        return self._time.wall

    @property
    def history(self) -> list[HistoryEvent]:
        self._history.extend(HistoryEvent(rfc3339(wall), event, detail) for wall, event, detail in self._unwritten)
        self._unwritten.clear()
        return list(self._history)

    def wake(self, at: float) -> None:
        if at < self.deadline:
            self.deadline = at

    def reached(self, at: float) -> bool:
        """Is it that late? If not, the machine is called again when it is."""
        if self._time.mono >= at:
            return True
        self.wake(at)
        return False

    def send(self, conn: int, message: ServerMessage) -> None:
        self.out.append(Send(conn, message))

    def note(self, event: str, **detail: str | int | float | bool) -> None:
        self._remember(event, detail)
        self.out.append(Note(event, detail))

    def shout(self, text: str) -> None:
        """An alarm that is over as soon as it is said."""
        self._remember("alarm", {"text": text})
        self.out.append(Note("alarm", {"text": text}, alarm=True))

    def alarm(self, key: str, text: str) -> None:
        """An alarm that lasts until `calm`."""
        if self.alarms.get(key) != text:
            self.alarms[key] = text
            self.changed = True
            self.shout(text)

    def calm(self, *keys: str) -> None:
        for key in keys:
            if self.alarms.pop(key, None) is not None:
                self.changed = True

    def _remember(self, event: str, detail: dict[str, str | int | float | bool]) -> None:
        if len(self._unwritten) == self._history.maxlen:
            self._unwritten.pop(0)
        self._unwritten.append((self._time.wall, event, detail))
