"""Memory of GMS's for a rank's KV cache: it stays when this engine ends, for the one that takes over.

Where GMS has no pools it is the engine's own memory, as in `kv.py`.
"""

import numpy as np
from numpy.typing import NDArray

from engine_shim.kept_cache import Claimed, KeptCache
from gms.memory import Memory
from reference_engine.kv import DevicePages


class KeptPages(DevicePages):
    def __init__(self, memory: Memory, size: int, kept: KeptCache) -> None:
        super().__init__(memory, size)
        self._kept = kept

    @property
    def needs(self) -> int:
        """A pool that is there has its memory already. The least is asked for then, so that the lock server looks."""
        return self._memory.granularity if self._kept.there else self.size

    @property
    def table(self) -> memoryview | None:
        mapping = self._kept.mapping
        return None if mapping is None else mapping.table

    def claim(self, token: int, proven: bool, timeout_s: float) -> Claimed | None:
        """Before `allocate`."""
        return self._kept.claim(token, proven, timeout_s)

    def allocate(self) -> NDArray[np.uint8]:
        mapping = self._kept.mapping
        return super().allocate() if mapping is None else self.map(mapping.handles[0])

    def free(self) -> None:
        if self._kept.mapping is None:
            super().free()
        else:
            self.unmap()
            self._kept.release()
