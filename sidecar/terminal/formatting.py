"""Words for what commands and logs show: tones, times, sizes, fields. Pure; `terminal.py` has the standard output."""

import enum
import json
import re
from collections.abc import Mapping
from datetime import UTC, datetime

_PLAIN = re.compile(r"[^\s\"'=\\\x00-\x1f\x7f]+")


class Tone(enum.Enum):
    """How a word looks, by what it says."""

    GOOD = "1;32"
    CARE = "1;33"
    BAD = "1;31"
    QUIET = "2"
    STRONG = "1"


class Paint:
    """Puts tones on words, or leaves them plain."""

    def __init__(self, colours: bool) -> None:
        self.colours = colours

    def __call__(self, text: str, tone: Tone) -> str:
        return f"\x1b[{tone.value}m{text}\x1b[0m" if self.colours and text else text


PLAIN = Paint(False)


def printable(text: str, instead: str = "?") -> str:
    """What a program or a person elsewhere said, in one line and without commands for the terminal."""
    return "".join(letter if letter.isprintable() else instead for letter in text)


def ago(stamp: str, now: datetime) -> str:
    """An RFC 3339 time as `3m12s ago`."""
    try:
        then = datetime.fromisoformat(stamp)
    except ValueError:
        return stamp or "an unknown time"
    if then.tzinfo is None:
        then = then.replace(tzinfo=UTC)
    left = int((now - then).total_seconds())
    return length(left) + " ago" if left >= 0 else f"{stamp} (in the future: a clock is wrong)"


def length(seconds: float) -> str:
    """As `3m12s`."""
    left, parts = max(0, int(seconds)), []
    for letter, unit in (("d", 86400), ("h", 3600), ("m", 60), ("s", 1)):
        count, left = divmod(left, unit)
        parts += [f"{count}{letter}"] if count else []
    return "".join(parts[:2]) or "0s"


def size(count: int) -> str:
    """Bytes as a person writes them, if that loses nothing much."""
    for unit, least in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if count >= least:
            return f"{count // least} {unit}" if count % least == 0 else f"{count / least:.1f} {unit}"
    return f"{count} bytes"


def sizes(of: Mapping[str, int]) -> str:
    """As `12 GiB of GPU-0, 4 GiB of GPU-1`."""
    return ", ".join(f"{size(count)} of {device}" for device, count in sorted(of.items()))


def key_values(detail: Mapping[str, object]) -> str:
    """As `key=value key=value`. It stays one line, whatever is in it."""
    return " ".join(f"{key}={_field(value)}" for key, value in detail.items())


def unquoted(text: str) -> str:
    """The value of `key_values` with which this begins, as it was before it was written; other text without quotes."""
    try:
        return str(json.JSONDecoder().raw_decode(text)[0]) if text.startswith('"') else text.strip("\"'")
    except ValueError:  # it was cut off
        return text.strip("\"'")


def plain(value: object) -> object:
    """What an enum stands for; anything else as it is."""
    return value.value if isinstance(value, enum.Enum) else value


def _field(value: object) -> str:
    if type(value) in (str, int, float):
        text = str(value)
        return text if _PLAIN.fullmatch(text) else json.dumps(text)
    value = plain(value)
    if isinstance(value, bool) or value is None:
        return json.dumps(value)
    if isinstance(value, (list, tuple, set, frozenset)):
        value = ",".join(str(plain(item)) for item in value)
    text = str(value)
    return text if _PLAIN.fullmatch(text) else json.dumps(text)
