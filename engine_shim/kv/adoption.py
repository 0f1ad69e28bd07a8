"""Whether an engine that wakes believes the table that it finds.

Everything has to agree, or the table is made anew and the blocks are computed again: nothing here is an error, and no
answer depends on it. The one thing that is refused is a table whose owner is as new as this engine or newer: then this
engine isn't the one that may write.

An engine that adopts is *on trial* until it has lasted a while, or has ended in order. A table whose owner died on
trial is dropped: its contents may be what kills.

What this file may not do: look for itself. It is told what there is.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum

from engine_shim.kv.table import Record, Table

TRIAL_S = 30.0
"""So long an engine has to serve after an adoption until its death is no longer laid to what it adopted."""


class Why(Enum):
    """Why nothing, or not everything, was adopted. The values are what metrics and logs say."""

    NONE = "none"
    """Nothing was there, or all of it was adopted."""
    TORN_HEADER = "torn_header"
    OTHER_DIGEST = "other_digest"
    """Another model, another version, other arguments, or a pool that is new."""
    DIED_ON_TRIAL = "died_on_trial"
    BROKEN_RECORD = "broken_record"
    """Some records were torn, or changed by somebody; the others were adopted."""
    NOT_KEPT = "not_kept"
    """This engine, or one of its ranks, keeps nothing."""


class NotNewest(Exception):
    """The table belongs to an engine with a newer token. This one may not write to the cache."""


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


def adopt(table: Table, digest: bytes, token: int) -> Adoption:
    """Makes the table this engine's. Raises NotNewest before it has written anything."""
    if table.exists and table.owner >= token:
        raise NotNewest(f"the KV cache belongs to an engine with token {table.owner}; this one has {token}")
    if table.torn:
        return _made_anew(table, digest, token, Why.TORN_HEADER)
    if not table.exists:
        return _made_anew(table, digest, token, Why.NONE)
    if not table.matches(digest):
        return _made_anew(table, digest, token, Why.OTHER_DIGEST)
    if table.on_trial:
        return _made_anew(table, digest, token, Why.DIED_ON_TRIAL)
    broken = table.broken()
    records = tuple(table.records())
    table.on_trial = bool(records)  # before anything else, so that a death from here on counts
    table.owner = token
    for block in broken:
        table.invalidate(block)
    return Adoption(records, len(broken), Why.BROKEN_RECORD if broken else Why.NONE)


def _made_anew(table: Table, digest: bytes, token: int, why: Why) -> Adoption:
    dropped = 0 if why is Why.NONE else table.claimed
    table.format(digest, token)
    return Adoption((), dropped, why)


def lasted(table: Table) -> None:
    """The engine has served for TRIAL_S since it adopted, or ends in order."""
    table.on_trial = False
