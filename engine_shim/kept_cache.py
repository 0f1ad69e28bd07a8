"""One rank's part of a KV cache that outlives its engine: memory of GMS's, and for the first rank the table beside it.

    kept = KeptCache(client, "kv", shape_of(...), rank)     # at the start, on a standby too
    kept.there                                              # a wake needs no memory for it
    claimed = kept.claim(token, proven, timeout_s)          # at the wake; None: this GMS has no pools
    kept.mapping.handles, kept.mapping.table                # to be mapped, and to be adopted (`kv/adoption.py`)
    kept.release()                                          # a clean end, once nothing of it is mapped

What this file may not do: believe contents. Whether memory and table are the last owner's is GMS's word; what in them
is true is the table's.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from engine_shim.kv.table import OWNER
from gms.client import GmsClient, NoCommonProtocol, PoolDiffers, PoolMapping, PoolShape, PoolsOff
from sidecar.terminal.logs import Log

LEAST_TABLE = 4096
_SEEN_S = 2.0
"""How long a start waits to hear whether there is a pool: otherwise it would ask for memory that it won't need."""


@dataclass(frozen=True)
class Claimed:
    name: str
    """Which memory it is. New memory has another name."""
    why_empty: str
    """Why the contents aren't the last owner's; empty where they are."""
    before: int
    """The token of its last owner; 0 where it is new."""


def shape_of(said: Mapping[str, str], sizes: Sequence[int], table_bytes: int = 0) -> PoolShape:
    """Everything that is said here has to be the same in the next owner, or the pool is replaced."""
    digest = hashlib.sha256(json.dumps(dict(said), sort_keys=True).encode()).hexdigest()
    return PoolShape(digest=digest, sizes=tuple(sizes), table_size=max(table_bytes, LEAST_TABLE))


class KeptCache:
    def __init__(self, client: GmsClient, what: str, shape: PoolShape, rank: int | None = None) -> None:
        self.mapping: PoolMapping | None = None
        self._shape = shape
        self._log = Log("kv")
        self._pool = client.pool(what, rank)
        self.key = self._pool.key
        self._pool.await_server(_SEEN_S)

    @property
    def there(self) -> bool:
        """There is a pool of this very shape, so that a wake needs no memory for it."""
        there = self._pool.there
        return there is not None and there.shape == self._shape

    def claim(self, token: int, proven: bool, timeout_s: float) -> Claimed | None:
        """Makes it this process's. None: there are no pools here, and the log says why. Raises GmsError where another
        process may still write: then this engine may not wake.
        """
        try:
            mapping = self._claim(token, proven, timeout_s)
        except (PoolsOff, NoCommonProtocol) as error:
            self._log.warning("kv_not_kept", pool=self.key, why=str(error))
            return None
        self.mapping = mapping
        with mapping.table.cast("Q") as words:
            before, words[OWNER] = words[OWNER], token
        return Claimed(f"{self.key} {mapping.generation}", "" if mapping.adopted else mapping.why_empty, before)

    def _claim(self, token: int, proven: bool, timeout_s: float) -> PoolMapping:
        try:
            return self._pool.claim(self._shape, token=token, proven=proven, timeout_s=timeout_s)
        except PoolDiffers as error:
            self._log.warning("kv_replaced", pool=self.key, why=str(error))
            return self._pool.claim(self._shape, token=token, proven=proven, replace=True, timeout_s=timeout_s)

    def release(self) -> None:
        """May be called again."""
        mapping, self.mapping = self.mapping, None
        if mapping is not None:
            mapping.release()
