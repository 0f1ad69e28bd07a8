"""How the records of a device stand in their files: JSON that a person can read, with a sum over all the rest of it, so
that one wrong bit doesn't make another record. Pure. What they say: `record.py` (weights), `pool_record.py`.
"""

import hashlib
from typing import Protocol, TypeVar

import msgspec

FORMAT = 1


class UnreadableRecord(Exception):
    """What is in the file is not a record."""


class _Record(Protocol):
    @property
    def format(self) -> int: ...
    @property
    def check(self) -> str:
        """In the file only."""


R = TypeVar("R", bound=_Record)


def encode(record: _Record) -> bytes:
    checked = msgspec.structs.replace(record, check=_check(record))  # type: ignore[type-var]
    return msgspec.json.format(msgspec.json.encode(checked), indent=1) + b"\n"


def decode(data: bytes, decoder: "msgspec.json.Decoder[R]", what: str) -> R:
    """`what` it is to be a record of. Raises UnreadableRecord."""
    try:
        record = decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(f"it is not a record of {what}: {error}") from None
    if record.format != FORMAT:
        raise UnreadableRecord(f"it is of format {record.format}, and this is a program for format {FORMAT}")
    if record.check != _check(record):
        raise UnreadableRecord("its checksum is wrong: it isn't what was written")
    return msgspec.structs.replace(record, check="")  # type: ignore[type-var]


def _check(record: _Record) -> str:
    bare = msgspec.structs.replace(record, check="")  # type: ignore[type-var]
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()[:16]
