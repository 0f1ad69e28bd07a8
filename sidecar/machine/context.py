"""One turn of a server's machine: the time, the effects so far, and when it wants to be called again; its history and
its alarms. And the words that every server's machine and shell have in common: what happens to a server whatever it
serves (events), and what it does about it (effects).

Pure. Shared by the parts of a machine, so that effects stand in the order in which the rules asked for them.
"""

import math
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any, Generic, NamedTuple, TypeVar

import msgspec

HISTORY_BYTES = 800_000

Effects = TypeVar("Effects")
Item = TypeVar("Item")
Detail = dict[str, str | int | float | bool]


class Time(NamedTuple):
    mono: float
    """Seconds of a clock that never jumps: every wait is measured on it."""
    wall: float
    """Seconds since 1970: only for people to read."""


# -- events --------------------------------------------------------------------------------------------------------


class Event(msgspec.Struct, frozen=True):
    """What has happened."""


class Closed(Event, frozen=True):
    conn: int


class Died(Event, frozen=True):
    process: int


class Persisted(Event, frozen=True):
    seq: int


class PersistFailed(Event, frozen=True):
    seq: int
    why: str


class DirectoryReplaced(Event, frozen=True):
    why: str
    removed: bool = False
    """None is in its place."""


class PathWatched(Event, frozen=True):
    """Whether the kernel says when the server's path may lead elsewhere."""

    why_not: str = ""
    """It doesn't; so the server looks every second."""


class Hindered(Event, frozen=True):
    """Whether callers can come in, and hear what they are sent."""

    why: str = ""
    """They can't; empty once they can again."""


class Heard(Event, frozen=True):
    """What a client's server says."""

    message: Any


class Tick(Event, frozen=True):
    pass


# -- effects -------------------------------------------------------------------------------------------------------


class Effect(msgspec.Struct, frozen=True):
    """What is to be done."""


class Close(Effect, frozen=True):
    conn: int


class WatchDeath(Effect, frozen=True):
    process: int


class ForgetProcess(Effect, frozen=True):
    """Its pidfd isn't needed any more."""

    process: int


class Publish(Effect, frozen=True):
    """The public status has changed: its watchers get a new one."""


class Note(Effect, frozen=True):
    """A line for the log."""

    event: str
    detail: Detail
    alarm: bool = False


class Stop(Effect, frozen=True):
    why: str
    meant: bool = False
    """It has nothing left to do: no alarm."""


# ------------------------------------------------------------------------------------------------------------------


class HistoryEvent(msgspec.Struct, frozen=True):
    at: str
    event: str
    detail: Detail = {}


def rfc3339(wall: float) -> str:
    return datetime.fromtimestamp(wall, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def fitting(items: Iterable[Item], most_bytes: int) -> list[Item]:
    """The first of them, as many as take no more on the wire."""
    found: list[Item] = []
    for item in items:
        most_bytes -= len(msgspec.msgpack.encode(item))
        if most_bytes < 0:
            break
        found.append(item)
    return found


class Context(Generic[Effects]):
    def __init__(self, history_size: int) -> None:
        self.out: list[Effects | Note] = []
        self.deadline = math.inf
        self.changed = False
        """The public status may have changed."""
        self.alarms: dict[str, str] = {}
        """What is wrong at the moment, for as long as it is."""
        self._history: deque[HistoryEvent] = deque(maxlen=history_size)
        self._unwritten: deque[tuple[float, str, Detail]] = deque(maxlen=history_size)
        """The newest events of the history; their times are put into words when asked for, not in a handoff."""
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

    def recent(self) -> tuple[list[HistoryEvent], int]:
        """The newest events, as many as go into one frame; and how many older ones don't."""
        events = self.history
        newest = fitting(reversed(events), HISTORY_BYTES)
        return newest[::-1], len(events) - len(newest)

    def wake(self, at: float) -> None:
        if at < self.deadline:
            self.deadline = at

    def reached(self, at: float) -> bool:
        return self._time.mono >= at

    def wait_until(self, at: float) -> bool:
        """True: it isn't that late yet, and the machine is called again when it is."""
        if self._time.mono >= at:
            return False
        self.wake(at)
        return True

    def note(self, event: str, **detail: str | int | float | bool) -> None:
        self._unwritten.append((self._time.wall, event, detail))
        self.out.append(Note(event, detail))

    def shout(self, text: str) -> None:
        """An alarm that is over as soon as it is said."""
        self._unwritten.append((self._time.wall, "alarm", {"text": text}))
        self.out.append(Note("alarm", {"text": text}, alarm=True))

    def alarm(self, key: str, text: str) -> None:
        """An alarm that lasts until `calm`."""
        if self.alarms.get(key) != text:
            self.alarms[key] = text
            self.changed = True
            self.shout(text)

    def path_watched(self, event: PathWatched) -> None:
        if event.why_not:
            self.alarm("watch", event.why_not)
        else:
            self.calm("watch")

    def hindered(self, event: Hindered) -> None:
        if event.why:
            self.alarm("connections", event.why)
        else:
            self.calm("connections")

    def calm(self, *keys: str) -> None:
        for key in keys:
            if self.alarms.pop(key, None) is not None:
                self.changed = True
