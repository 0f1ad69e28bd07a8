"""The file of a device's pools, which outlives the server: which memory there is, whose it is, and the newest token of
each. Pure; who writes it: `pool_file.py`. It is apart from that of the weights, so that an older server, which knows
nothing of pools, still reads that one.
"""

from typing import Annotated

import msgspec

from gms import record_format
from gms.messages import MOST_RANGES, Generation

_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 62)]


class Part(msgspec.Struct, frozen=True):
    """A range, or the table."""

    size: _Count
    identity: str


class Owner(msgspec.Struct, frozen=True):
    name: str
    pid: _Count
    """In the PID namespace of the server that wrote this; 0: it has none there."""
    identity: str
    since: float
    """On the clock that never jumps, of that boot and time namespace."""
    adopted: bool
    writes_end: bool | msgspec.UnsetType = msgspec.UNSET
    """Unset instead of False, so that a record of an older program keeps its sum."""


class Pool(msgspec.Struct, frozen=True):
    key: str
    token: _Count
    generation: Generation = 0
    """The memory's; 0: there is none."""
    digest: str = ""
    parts: Annotated[tuple[Part, ...], msgspec.Meta(max_length=MOST_RANGES + 1)] = ()
    """The ranges, and the table last."""
    owner: Owner | None = None
    doubt: str = ""
    doubt_kind: str = ""
    dropped: bool | msgspec.UnsetType = msgspec.UNSET
    """A person gave the memory up; unset instead of False, as above."""


class Record(msgspec.Struct, frozen=True):
    given: Generation
    """The newest number that any memory was given."""
    pools: tuple[Pool, ...] = ()
    boot_id: str = ""
    namespace: str = ""
    """The PID namespace in which the numbers of processes mean something."""
    time_namespace: str | msgspec.UnsetType = msgspec.UNSET
    """The one in which `since` means something. Unset: an older program wrote this, whose `since` is the wall's."""
    format: int = record_format.FORMAT
    check: str = ""
    """A sum of all the rest, in the file only."""


_DECODER = msgspec.json.Decoder(Record)


def decode(data: bytes) -> Record:
    """Raises UnreadableRecord."""
    record = record_format.decode(data, _DECODER, "pools")
    if any(pool.generation and len(pool.parts) < 2 for pool in record.pools):
        raise record_format.UnreadableRecord("there is a pool without a range and a table in it")
    return record
