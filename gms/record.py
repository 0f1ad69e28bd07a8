"""The one file of a device that outlives its server: which layout is committed. Pure; who writes it:
`state_file.py`.
"""

from typing import Annotated

import msgspec

from gms import record_format
from gms.layout import Count
from gms.messages import Generation, Hash


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
    format: int = record_format.FORMAT
    check: str = ""
    """A sum of all the rest, in the file only."""


_DECODER = msgspec.json.Decoder(Record)


def decode(data: bytes) -> Record:
    """Raises UnreadableRecord."""
    return record_format.decode(data, _DECODER, "a layout")
