"""Whether an engine that wakes believes the table that it finds.

Everything has to agree, or the table is made anew and the blocks are computed again: nothing here is an error, and no
answer depends on it. That no other engine writes, and that a table whose owner died soon after it had adopted comes
empty, is seen to by GMS, which hands the table out.

What this file may not do: look for itself. It is told what there is.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

from engine_shim.kv.table import Record, Table


class Why(Enum):
    """Why nothing, or not everything, was adopted. The values are what metrics and logs say. GMS says some of them
    itself (`why_empty`): REPLACED and SECOND_DEATH come by value only, and no code names them.
    """

    NONE = "none"
    """All of it was adopted."""
    NEW = "new"
    """There was nothing."""
    REPLACED = "replaced"
    """The pool was there in another shape: another model, version, size or argument."""
    UNPROVEN = "unproven"
    """It isn't proven that the predecessor writes no more."""
    SECOND_DEATH = "second_death"
    """The last engine that adopted it died soon afterwards."""
    TORN_HEADER = "torn_header"
    OTHER_DIGEST = "other_digest"
    """The table was made for other weights, or a rank's pool is new, or an engine had one of them alone."""
    BROKEN_RECORD = "broken_record"
    """Some records were torn, or were changed; the others were adopted."""
    NO_ROOM = "no_room"
    """It slept beside other models, and host memory had no room for all of it, or the sleep no time."""
    NO_POOL = "no_pool"
    """There is no pool to be had: this GMS has none, or is too old for them."""


@dataclass(frozen=True)
class Adoption:
    records: tuple[Record, ...] = ()
    dropped: int = 0
    """Records that were there and are not believed."""
    why: Why = Why.NONE


@dataclass(frozen=True)
class Facts:
    """What has to be the same in both engines so that one can go on with the other's blocks."""

    engine: str
    """Which engine, and its version."""
    model: Mapping[str, str]
    """Whatever says which numbers a prompt comes to: model, revision, types, layout and generation of the weights."""
    blocks: Mapping[str, str]
    """The geometry of a block, and how its key is made: hash function, seed."""
    pools: tuple[str, ...] = field(default=())
    """For each rank the name of its pool, which is another one when the pool is new."""

    def digest(self) -> bytes:
        said = json.dumps([self.engine, dict(self.model), dict(self.blocks), self.pools], sort_keys=True)
        return hashlib.sha256(said.encode()).digest()


def why_not_together(why_empty: Sequence[str], before: Sequence[int]) -> Why:
    """Why the table and the ranks' memory aren't what one engine left; NONE if they are. Of each part: what GMS says of
    its contents, and the token of its last owner. An engine that had the memory and not the table may have written
    to blocks of which the table says still what was there before.
    """
    for why in why_empty:
        if why:
            return Why(why)
    return Why.NONE if len(set(before)) == 1 else Why.OTHER_DIGEST


def adopt(table: Table, digest: bytes, why_empty: Why = Why.NONE) -> Adoption:
    """Makes the table this engine's, which alone writes to it. `why_empty`: why its parts aren't what one
    engine left (`why_not_together`).
    """
    if why_empty is not Why.NONE:
        return _made_anew(table, digest, why_empty)
    if not table.exists:
        return _made_anew(table, digest, Why.TORN_HEADER if table.torn else Why.NEW)
    if not table.matches(digest):
        return _made_anew(table, digest, Why.OTHER_DIGEST)
    records, broken = table.found()
    for block in broken:
        table.invalidate(block)
    return Adoption(tuple(records), len(broken), Why.BROKEN_RECORD if broken else Why.NONE)


def _made_anew(table: Table, digest: bytes, why: Why) -> Adoption:
    dropped = table.claimed
    table.format(digest)
    return Adoption((), dropped, why)
