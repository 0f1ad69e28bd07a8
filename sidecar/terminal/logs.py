"""One line an event: for a person by default, as JSON for a collector.

    2026-11-20T10:00:00.123Z info lockserver granted engine=a token=7

Levels: `info` is what happened, `warning` what a person should look at, `alarm` what a person should be woken for.

A log that is not read must not stop the program that writes it: a line that can't be written at once is dropped and
counted, and the count is told as soon as there is room again.

What this file may not do: raise (a closed or full stderr must never stop a lock server), wait, filter, or log per
frame.
"""

import contextlib
import copy
import json
import os
import select
import stat
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Literal, TextIO

from sidecar.terminal import formatting

FORMATS = ("text", "json")
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
        self.program = program
        self._as_json = json
        self._stream = stream
        self._stderr = Output("stderr") if stream is None else None
        self._dropped = 0
        self._clock = clock
        self._fields = dict(fields or {})
        self._second, self._day_and_time = -1, ""

    def with_fields(self, **fields: object) -> "Log":
        """The same with more fields in every line, for a part of this process."""
        part = copy.copy(self)
        part._fields = {**self._fields, **fields}
        return part

    def info(self, event: str, /, **fields: object) -> None:
        """Something happened."""
        self._write("info", event, fields)

    def infos(self, event: str, several: Sequence[Mapping[str, object]]) -> None:
        """The same happened several times: a line each, in one write."""
        self._write("info", event, *several)

    def warning(self, event: str, /, **fields: object) -> None:
        """A person should look at this in the morning."""
        self._write("warning", event, fields)

    def alarm(self, event: str, /, **fields: object) -> None:
        """A person should be woken for this."""
        self._write("alarm", event, fields)

    def _write(self, level: str, event: str, *several: Mapping[str, object]) -> None:
        lines = "".join([self._line(level, event, {**self._fields, **fields}) + "\n" for fields in several])
        if self._stderr is None:
            _write_to(self._stream, lines)
            return
        if self._dropped:
            told = self._line("warning", "log_lines_dropped", {**self._fields, "count": self._dropped}) + "\n"
            if not self._stderr.write(told):
                self._dropped += len(several)
                return
            self._dropped = 0
        if not self._stderr.write(lines):
            self._dropped += len(several)

    def _line(self, level: str, event: str, fields: Mapping[str, object]) -> str:
        form = _json_line if self._as_json else _text_line
        timestamp = self._timestamp()
        try:
            return form(timestamp, level, self.program, event, fields)
        except Exception:  # a value whose own __str__ raises, a list that contains itself: the event is still said
            safe = {key: _printed(value) for key, value in fields.items()}
            return form(timestamp, level, self.program, event, safe)

    def _timestamp(self) -> str:
        now = self._clock()
        if int(now) != self._second:
            self._second = int(now)
            self._day_and_time = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        return f"{self._day_and_time}.{int(now % 1 * 1000):03d}Z"


def complain(text: str) -> None:
    """A sentence on stderr, from a process that may be about to end. Never waits, never raises."""
    Output("stderr").write(text.rstrip("\n") + "\n")


def _write_to(stream: TextIO | None, line: str) -> None:
    try:
        try:
            if stream is not None:
                stream.write(line)
        except UnicodeEncodeError:
            if stream is not None:
                stream.write(line.encode("ascii", "backslashreplace").decode("ascii"))
        if stream is not None:
            stream.flush()
    except (OSError, ValueError):
        return  # a closed file, a full disk: there is no reader left to tell


class Output:
    """The standard error or output, written to without ever waiting for its reader.

    A pipe or a terminal is opened once more, so that "don't wait" is set for this process alone: the flag belongs to
    what is open, and others have it open too. Where it can't be opened (a pipe of another user's), the kernel is asked
    whether there is room for a page, and no more than that is written at a time.
    """

    _PAGE = 4096  # what a pipe that says it is writable takes without waiting

    def __init__(self, name: Literal["stderr", "stdout"]) -> None:
        self._name = name
        self._fd = -1
        self._mine = -1
        """A descriptor of our own that never waits."""
        self._asks = False
        self._identity: tuple[int, int] | None = None
        self._rest = b""
        """What is left of a line that was written in part."""

    def __del__(self) -> None:
        self._let_go()

    def write(self, line: str) -> bool:
        """False: there is no room, and nothing of the line was written."""
        stream = getattr(sys, self._name)
        try:
            fd = stream.fileno()
        except (OSError, ValueError, AttributeError):  # closed, or no file: a test's, say
            _write_to(stream, line)
            return True
        try:
            self._open(fd)
            if self._rest and not self._put(self._rest):
                return False
            data = line.encode("utf-8", "backslashreplace")
            written = self._some(data)
            self._rest = data[written:] if written else b""
            return written > 0
        except OSError:
            return True  # a closed pipe, a full disk: there is no reader left to tell

    def _put(self, data: bytes) -> bool:
        self._rest = data[self._some(data) :]
        return not self._rest

    def _some(self, data: bytes) -> int:
        fd = self._mine if self._mine >= 0 else self._fd
        done = 0
        while done < len(data):
            if self._asks and not self._has_room():
                break
            try:
                done += os.write(fd, data[done : done + self._PAGE] if self._asks else data[done:])
            except BlockingIOError:
                break
        return done

    def _has_room(self) -> bool:
        poll = select.poll()
        poll.register(self._fd, select.POLLOUT)
        return bool(poll.poll(0))

    def _open(self, fd: int) -> None:
        """Looked at each time: a program may put another file in its place."""
        status = os.fstat(fd)
        identity = (status.st_dev, status.st_ino)
        if fd == self._fd and identity == self._identity:
            return
        self._let_go()
        self._fd, self._identity, self._rest = fd, identity, b""
        if stat.S_ISREG(status.st_mode):
            self._asks = False
            return
        self._asks = True
        if stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode):
            with contextlib.suppress(OSError):
                flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                self._mine = os.open(f"/proc/self/fd/{fd}", flags)
                self._asks = False

    def _let_go(self) -> None:
        mine, self._mine = self._mine, -1
        if mine >= 0:
            with contextlib.suppress(OSError):
                os.close(mine)


def _text_line(timestamp: str, level: str, program: str, event: str, fields: Mapping[str, object]) -> str:
    return f"{timestamp} {level} {program} {event} {formatting.key_values(fields)}".rstrip()


def _json_line(timestamp: str, level: str, program: str, event: str, fields: Mapping[str, object]) -> str:
    line: dict[str, object] = {"time": timestamp, "level": level, "program": program, "event": event}
    for key, value in fields.items():
        line[key + "_" if key in _RESERVED else key] = formatting.plain(value)
    return json.dumps(line, default=str)


def _printed(value: object) -> str:
    try:
        return str(value)
    except Exception as error:
        return f"<{type(value).__name__}: can't be printed, {type(error).__name__}>"
