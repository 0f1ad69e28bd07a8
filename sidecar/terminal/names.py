"""What an engine, one start of it and a device are called, and what this version of the software is called. Pure.

A name becomes part of file names and of sentences, and travels over the wire: there is one pattern, for flags and
messages alike.
"""

import re
from collections.abc import Iterable
from difflib import get_close_matches

VERSION = "0.2.0"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
DEVICE = re.compile(r"host:[A-Za-z0-9_][A-Za-z0-9._-]{0,63}|(GPU|MIG)-[A-Za-z0-9][A-Za-z0-9-]{0,63}", re.ASCII)
NAME_IN_WORDS = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or a digit"


class BadValue(ValueError):
    """A setting's value, and what is allowed instead."""


def device_name(text: str) -> str:
    """Names come from outside and become parts of file names. Raises BadValue."""
    if not DEVICE.fullmatch(text):
        raise BadValue(
            f"{text!r} is not a device; allowed: host:NAME (letters, digits, dots, dashes) or a GPU's UUID (GPU-...)"
        )
    return text


def is_meant(called: str, names: Iterable[str]) -> str:
    """What is said behind a name that isn't known, where others are nearly so: `; is chat meant?`"""
    lower = {name.lower(): name for name in names}
    found = [lower[name] for name in get_close_matches(called.lower()[:200], lower, 3)]
    return f"; is {' or '.join(found)} meant?" if found else ""


def incarnation_name(engine_id: str, random: str) -> str:
    """One start of an engine, told from its others by something random. Its life file is called the same."""
    return f"{engine_id}.{random}"
