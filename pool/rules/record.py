"""What a pool leaves to the next one: what it has measured, flags, and what was launched, pinned or put to sleep by
command.

All of it may be lost without harm: it is measured, and set, again.
"""

import msgspec

from pool.entries import Entry, Flags
from pool.rules.events import Learned


class Record(msgspec.Struct, frozen=True, omit_defaults=True):
    learned: dict[str, Learned] = {}
    pins: dict[str, bool] = {}
    names: tuple[str, ...] = ()
    """All models that it had: of one that isn't in models.yaml any more something may be left."""
    kept_asleep: tuple[str, ...] = ()
    """A person has put them to sleep: a pin doesn't wake them."""
    others: dict[str, int] = {}
    """What of each device was in use without a lease, and is no `command`'s: of one that is awake it can't be told."""
    launched: dict[str, Entry] = {}
    flags: Flags | None = None
    """As a person has set them; None: as models.yaml says."""


def encode(record: Record) -> bytes:
    return msgspec.json.encode(record)


def decode(data: bytes) -> Record:
    """Raises ValueError for what can't be read."""
    try:
        return msgspec.json.decode(data, type=Record)
    except msgspec.MsgspecError as error:
        raise ValueError(str(error)) from None
