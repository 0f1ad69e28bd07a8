"""The one file of a device that outlives its server: which layout is committed. Pure; who writes it: `machine.py`."""

import hashlib
from typing import Annotated

import msgspec

from gms.layout import Count
from gms.messages import Generation, Hash

FORMAT = 1


class UnreadableRecord(Exception):
    """What is in the file is not a record."""


class Slab(msgspec.Struct, frozen=True):
    size: Count
    identity: str
    """What can be told of its memory from outside (`Memory.identity`)."""


class Record(msgspec.Struct, frozen=True):
    given: Generation
    """The newest number that any writer was ever let in with: they only grow, and no two writers share one."""
    generation: Generation = 0
    """The committed layout's; 0: there is none."""
    hash: Hash = ""
    slabs: Annotated[tuple[Slab, ...], msgspec.Meta(max_length=1000)] = ()
    boot_id: str = ""
    format: int = FORMAT
    check: str = ""
    """A sum of all the rest, in the file only: one wrong bit must not make another record of it."""


_DECODER = msgspec.json.Decoder(Record)


def encode(record: Record) -> bytes:
    checked = msgspec.structs.replace(record, check=_check(record))
    return msgspec.json.format(msgspec.json.encode(checked), indent=1) + b"\n"


def _check(record: Record) -> str:
    return hashlib.sha256(msgspec.json.encode(msgspec.structs.replace(record, check=""))).hexdigest()[:16]


def decode(data: bytes) -> Record:
    try:
        record = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(f"it is not a record of a layout: {error}") from None
    if record.format != FORMAT:
        raise UnreadableRecord(f"it is of format {record.format}, and this is a program for format {FORMAT}")
    if record.check != _check(record):
        raise UnreadableRecord("its checksum is wrong: it isn't what was written")
    return msgspec.structs.replace(record, check="")
