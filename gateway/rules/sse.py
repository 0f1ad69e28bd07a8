"""A stream of server-sent events, cut into events as it comes. Pure.

What is passed on is whole events, in the bytes in which they came: an event whose end never comes is as if it had not
begun.
"""

import re

DONE = b"[DONE]"
_EMPTY_LINE = re.compile(rb"\r?\n\r?\n")

Events = list[tuple[int, bytes | None]]
"""Where each event ends, and its data; None for a comment."""


class TooLarge(Exception):
    """An event without end."""


class Reader:
    __slots__ = ("_most", "_rest")

    def __init__(self, most: int) -> None:
        self._most = most
        self._rest = bytearray()
        """What is here of an event whose end hasn't come. A large one comes in many pieces; each is looked at once."""

    def feed(self, data: bytes) -> tuple[bytes, Events]:
        """Bytes, and the events that are whole in them. Raises TooLarge."""
        rest = self._rest
        if rest:
            across = rest[-3:] + data
            rest += data
            if b"\n" not in data or _EMPTY_LINE.search(across) is None:
                self._measure()
                return b"", []
            data = bytes(rest)
        elif (
            data.startswith(b"data: ")
            and data.find(b"\n") == len(data) - 2
            and data.endswith(b"\n\n")
            and not data.endswith(b"\r\n\n")
        ):
            return data, [(len(data), data[6:-2])]  # nearly always it is one whole event
        found, end = _any_lines(data) if b"\r" in data else _plain_lines(data)
        self._rest = bytearray(data[end:])
        self._measure()
        return data, found

    def _measure(self) -> None:
        if len(self._rest) > self._most:
            raise TooLarge(f"an event of its stream has more than {self._most} bytes")


def _plain_lines(data: bytes) -> tuple[Events, int]:
    found: Events = []
    parts = data.split(b"\n\n")
    parts.pop()
    end = 0
    for part in parts:
        end += len(part) + 2
        found.append((end, part[6:] if part.startswith(b"data: ") and b"\n" not in part else data_of(part)))
    return found, end


def _any_lines(data: bytes) -> tuple[Events, int]:
    found: Events = []
    end = 0
    while (ends := _EMPTY_LINE.search(data, end)) is not None:
        found.append((ends.end(), data_of(data[end : ends.start()])))
        end = ends.end()
    return found, end


def data_of(text: bytes) -> bytes | None:
    """What one event says; None for a comment."""
    text = text.removeprefix(b"\xef\xbb\xbf")  # a stream may begin so
    lines = [line[5:].removeprefix(b" ") for line in text.splitlines() if line.startswith(b"data:")]
    return b"\n".join(lines) if lines else None


def event(data: bytes) -> bytes:
    return b"data: " + data + b"\n\n"


def comment(text: str) -> bytes:
    return b": " + text.encode() + b"\n\n"
