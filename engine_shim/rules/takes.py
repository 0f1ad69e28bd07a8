"""What decides which requests an engine takes, and in what two engines differ. Pure.

A standby is redundancy only if it takes every request that the engine that serves takes. Each engine says what decides
that as a list of readable values by name (`engine.SaysWhatItTakes`); the digest is for people who compare two of them.
"""

import hashlib
import json
from collections.abc import Mapping

Takes = Mapping[str, str]
MOST_ENTRIES = 64
MOST_TEXT = 200
NOT_SET = "not set"


def bounded(takes: Takes) -> dict[str, str]:
    """As it is sent: a value that is too long is told apart by its digest."""
    return {name[:MOST_TEXT]: _short(value) for name, value in sorted(takes.items())[:MOST_ENTRIES]}


def digest(takes: Takes) -> str:
    """Empty for an engine that says nothing of it."""
    return _hash(json.dumps(dict(sorted(takes.items())))) if takes else ""


def differences(ours: Takes, theirs: Takes, other: str) -> list[str]:
    """In words, one for each name; none where one of them says nothing."""
    if not ours or not theirs:
        return []
    return [
        f"{name}: {ours.get(name, NOT_SET)} here, {theirs.get(name, NOT_SET)} in {other}"
        for name in sorted({*ours, *theirs})
        if ours.get(name) != theirs.get(name)
    ]


def _short(value: str) -> str:
    return (
        value if len(value) <= MOST_TEXT else f"{value[: MOST_TEXT // 2]}... ({len(value)} characters, {_hash(value)})"
    )


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode(errors="replace")).hexdigest()[:12]
