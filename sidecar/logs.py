"""One line an event: for a person by default, as JSON for a collector.

    2026-11-20T10:00:00.123Z info lockserver granted engine=a token=7

Levels: `info` is what happened, `warning` what somebody should look at, `alarm` what somebody should be woken for.

What this file may not do: raise (a closed or full stderr must never stop a lock server), filter, or log per frame.
"""

import enum
import json
import re
import sys
import time
from collections.abc import Callable, Mapping
from typing import TextIO

_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f]+")
_RESERVED = ("time", "level", "program", "event")


class Log:
    """Where a program says what happens to it."""

    def __init__(
        self,
        program: str,
        *,
        json: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.time,
        fields: Mapping[str, object] | None = None,
    ) -> None:
        """`fields` are said in every line, first: what tells this process from its likes."""
        self._program = program
        self._as_json = json
        self._stream = stream
        self._clock = clock
        self._fields = dict(fields or {})

    def info(self, event: str, /, **fields: object) -> None:
        """Something happened."""
        self._write("info", event, fields)

    def warning(self, event: str, /, **fields: object) -> None:
        """Somebody should look at this in the morning."""
        self._write("warning", event, fields)

    def alarm(self, event: str, /, **fields: object) -> None:
        """Somebody should be woken for this."""
        self._write("alarm", event, fields)

    def _write(self, level: str, event: str, fields: Mapping[str, object]) -> None:
        stream = sys.stderr if self._stream is None else self._stream
        line = self._line(level, event, {**self._fields, **fields}) + "\n"
        try:
            try:
                stream.write(line)
            except UnicodeEncodeError:
                stream.write(line.encode("ascii", "backslashreplace").decode("ascii"))
            stream.flush()
        except (OSError, ValueError, AttributeError):
            # A closed pipe, a full disk, a closed file, no stderr at all. There is nobody left to tell, and
            # whoever holds a lock must go on.
            return

    def _line(self, level: str, event: str, fields: Mapping[str, object]) -> str:
        form = _json_line if self._as_json else _text_line
        timestamp = self._timestamp()
        try:
            return form(timestamp, level, self._program, event, fields)
        except Exception:  # a value whose own __str__ raises, a list that contains itself: the event is still said
            safe = {key: _printed(value) for key, value in fields.items()}
            return form(timestamp, level, self._program, event, safe)

    def _timestamp(self) -> str:
        now = self._clock()
        return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now)) + f".{int(now % 1 * 1000):03d}Z"


def _text_line(timestamp: str, level: str, program: str, event: str, fields: Mapping[str, object]) -> str:
    said = "".join(f" {key}={_text(value)}" for key, value in fields.items())
    return f"{timestamp} {level} {program} {event}{said}"


def _json_line(timestamp: str, level: str, program: str, event: str, fields: Mapping[str, object]) -> str:
    line: dict[str, object] = {"time": timestamp, "level": level, "program": program, "event": event}
    for key, value in fields.items():
        line[key + "_" if key in _RESERVED else key] = _plain(value)
    return json.dumps(line, default=str)


def _text(value: object) -> str:
    value = _plain(value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        value = ",".join(str(_plain(item)) for item in value)
    text = str(value)
    # One event stays one line, whatever is in it.
    return text if _PLAIN.fullmatch(text) else json.dumps(text)


def _plain(value: object) -> object:
    return value.value if isinstance(value, enum.Enum) else value


def _printed(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: can't be printed, {type(error).__name__}>"
