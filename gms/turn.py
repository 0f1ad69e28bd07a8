"""One turn of the server's machine: the time, the effects so far, and when it wants to be called again.

Shared by the parts of the machine, so that effects stand in the order in which the rules asked for them.
"""

import math
from collections import deque
from datetime import UTC, datetime

from gms.events import Effect, Note, Send, Time
from gms.messages import HistoryEvent, ServerMessage


def rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class Turn:
    def __init__(self, history_size: int) -> None:
        self.out: list[Effect] = []
        self.deadline = math.inf
        self.changed = False
        """The public picture may have changed."""
        self.history: deque[HistoryEvent] = deque(maxlen=history_size)
        self.counts: dict[str, int] = {}
        """How often each event has happened, also those that the history has forgotten."""
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

    def reached(self, at: float) -> bool:
        """Is it that late? If not, the machine is called again when it is."""
        if self._time.mono >= at:
            return True
        self.deadline = min(self.deadline, at)
        return False

    def send(self, conn: int, message: ServerMessage, slabs: tuple[int, ...] = ()) -> None:
        self.out.append(Send(conn, message, slabs))

    def note(self, event: str, **detail: str | int | float | bool) -> None:
        self.history.append(HistoryEvent(rfc3339(self.wall), event, detail))
        self.counts[event] = self.counts.get(event, 0) + 1
        self.out.append(Note(event, detail))
        self.changed = True

    def alarm(self, key: str, text: str) -> None:
        """An alarm that lasts until `calm`."""
        if self.alarms.get(key) != text:
            self.alarms[key] = text
            self.history.append(HistoryEvent(rfc3339(self.wall), "alarm", {"text": text}))
            self.out.append(Note("alarm", {"text": text}, alarm=True))
            self.changed = True

    def calm(self, *keys: str) -> None:
        for key in keys:
            if self.alarms.pop(key, None) is not None:
                self.changed = True
