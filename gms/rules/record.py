"""The one file of a device that outlives its server: which regions it has, what memory each has, and whose it is.

JSON that a person can read, with a sum over all the rest of it, so that one wrong bit doesn't make another record.
Pure; when it is written: `state_file.py`.
"""

import hashlib
from typing import Annotated

import msgspec

from gms.layout import MAX_SLABS, Count
from gms.rules.messages import Generation, Name, Policy, RegionKey

FORMAT = 3
"""The newest. A file of another format is kept aside, as one that can't be read."""


IN_HOST_MEMORY = "table:"
"""How the identities begin of what doesn't lie in the device (`tables.py`)."""


class UnreadableRecord(Exception):
    """What is in the file is not a record."""


class Slab(msgspec.Struct, frozen=True):
    size: Count
    identity: str
    """What can be told of its memory from outside (`Memory.identity`)."""


class Owner(msgspec.Struct, frozen=True):
    """The process that may write a pool."""

    name: str
    """In words."""
    pid: Count
    """In the PID namespace of the server that wrote this; 0: it has none there."""
    identity: str
    """The kernel's name for it; empty on older kernels."""
    since: float
    """On the clock that never jumps, of that boot and time namespace: the one on the wall may be set while it lives."""
    adopted: bool
    """It found contents."""
    writes_end: bool
    """What is written there ends with its process: it can't have io_uring, nor had one before it that left a doubt."""


class Region(msgspec.Struct, frozen=True):
    key: RegionKey
    policy: Policy
    generation: Generation = 0
    """Its memory's; 0: it has none."""
    hash: Name = ""
    """The layout's, or the digest of a pool's shape."""
    slabs: Annotated[tuple[Slab, ...], msgspec.Meta(max_length=MAX_SLABS)] = ()
    """A pool has its ranges, and the table last."""
    token: Count = 0
    """The newest with which an owner was let in: it outlives the memory."""
    owner: Owner | None = None
    doubt: str = ""
    doubt_kind: str = ""
    dropped: bool = False
    """A person gave its memory up."""
    contents: Generation | msgspec.UnsetType = msgspec.UNSET
    """Weights that were parked, or brought back: the generation whose contents they are. (Unset, the sum is as it was
    before there was such a thing.)
    """

    @property
    def parked(self) -> bool:
        """Weights in host memory: in place of slabs they have one piece, which is made as a table is."""
        return self.policy == "shared" and len(self.slabs) == 1 and self.slabs[0].identity.startswith(IN_HOST_MEMORY)


class Record(msgspec.Struct, frozen=True):
    given: Generation
    """The newest number that any memory of this device was given: they only grow, and no two share one."""
    regions: tuple[Region, ...] = ()
    boot_id: str = ""
    namespace: str = ""
    """The PID namespace in which the numbers of processes mean something."""
    time_namespace: str = ""
    """The one in which `since` means something."""
    unreadable: Annotated[str, msgspec.Meta(max_length=2000)] = ""
    """Why the file before this one couldn't be read, while processes of which it told may be on their way back."""
    format: int = FORMAT
    check: str = ""
    """A sum of all the rest, in the file only."""

    def region(self, key: str) -> Region | None:
        return next((region for region in self.regions if region.key == key), None)


_DECODER = msgspec.json.Decoder(Record)


class _Format(msgspec.Struct):
    format: int = 0


_FORMAT = msgspec.json.Decoder(_Format)


def encode(record: Record) -> bytes:
    checked = msgspec.structs.replace(record, check=_check(record))
    return msgspec.json.format(msgspec.json.encode(checked), indent=1) + b"\n"


def decode(data: bytes) -> Record:
    """Raises UnreadableRecord."""
    try:
        found = _FORMAT.decode(data).format
        if found != FORMAT:
            raise UnreadableRecord(f"it is of format {found}, and this is a program for format {FORMAT}")
        record = _DECODER.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise UnreadableRecord(f"it is not a record of a device: {error}") from None
    if record.check != _check(record):
        raise UnreadableRecord("its checksum is wrong: it isn't what was written")
    if len({each.key for each in record.regions}) < len(record.regions):
        raise UnreadableRecord("a region is in it twice")
    if any(each.policy == "exclusive" and each.generation and len(each.slabs) < 2 for each in record.regions):
        raise UnreadableRecord("there is a pool without a range and a table in it")
    return msgspec.structs.replace(record, check="")


def without_memory(record: Record, of: str) -> Record:
    """What it has to say once no process can have memory whose identity begins with `of`. Tokens outlive memory."""
    found = [_bare(region) if _is_all_of(region, of) else region for region in record.regions]
    return msgspec.structs.replace(record, regions=tuple(each for each in found if each.generation or each.token))


def _is_all_of(region: Region, of: str) -> bool:
    ranges = region.slabs[:-1] if region.policy == "exclusive" else region.slabs
    return region.parked or (bool(ranges) and all(slab.identity.startswith(of) for slab in ranges))


def _bare(region: Region) -> Region:
    return Region(region.key, region.policy, token=region.token, dropped=region.dropped)


def _check(record: Record) -> str:
    bare = msgspec.structs.replace(record, check="")
    return hashlib.sha256(msgspec.json.encode(bare)).hexdigest()[:16]
