"""What an engine and one start of it are called, and what this version of the software is called. Pure.

A name becomes part of file names and of sentences, and travels over the wire: there is one pattern, for flags and
messages alike.
"""

VERSION = "0.2.0"
NAME = r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}"
NAME_IN_WORDS = "1 to 64 letters, digits, dots, dashes and underscores, the first a letter or a digit"


class BadValue(ValueError):
    """A setting's value, and what is allowed instead."""


def incarnation_name(engine_id: str, random: str) -> str:
    """One start of an engine, told from its others by something random. Its life file is called the same."""
    return f"{engine_id}.{random}"
