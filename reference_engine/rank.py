"""One process's part of the engine: its weights, its share of the KV cache, its share of the arithmetic.

The main process is rank 0 and has no other way to any of this than a worker has. What this file may not do: know that
there are other processes (`crew.py`).
"""

import time
from collections.abc import Sequence
from pathlib import Path

import msgspec

from engine_shim import kv_room
from engine_shim.kept_cache import Claimed, KeptCache, shape_of
from engine_shim.kv.parking import in_time
from engine_shim.kv.table import table_bytes
from gms.memory import Memory
from gms.memory.host import HostMemory
from reference_engine.kv import DevicePages, KvCache, Pages, block_bytes
from reference_engine.kv_pages import KeptPages
from reference_engine.model import Part, share
from reference_engine.options import Options
from reference_engine.places import Floats
from reference_engine.store import GmsStore, Store, described


class Home(msgspec.Struct, frozen=True):
    """Where an engine that is one of a pair has its weights from."""

    run_dir: str
    """That of GMS."""
    engine_id: str
    writes: bool
    """If no engine has written them."""
    model: str = ""
    """Which of the host's; empty where there is one."""
    region: str = ""
    """What its weights are called in GMS, likewise."""
    keeps: bool = False
    """Its KV cache outlives it."""
    snapshot: str = ""
    """Where they are on disk, if they are."""


class Rank:
    def __init__(self, options: Options, home: Home | None, rank: int) -> None:
        """Blocks until the weights are there. Without a home they are its own."""
        shape = options.shape
        self._timeout_s = options.wake_timeout_s
        heads = len(share(shape.heads, rank, options.ranks))
        blocks = options.kv_bytes // block_bytes(shape, shape.heads)
        self._block_bytes = block_bytes(shape, heads)
        size = blocks * self._block_bytes
        self._memory: Memory | None = None
        self._device_pages: DevicePages | None = None
        if home is None:
            self._store = Store(shape)
            pages = Pages(size)
        else:
            device = device_of(options, rank)
            memory = self._memory = HostMemory(device.removeprefix("host:"))
            self._store = GmsStore(
                Path(home.run_dir),
                device,
                home.engine_id,
                shape,
                memory=memory,
                writes=home.writes,
                model=home.model,
                region=home.region,
                snapshot=Path(home.snapshot) if home.snapshot else None,
                timeout_s=options.weights_timeout_s,
            )
            pages = self._device_pages = DevicePages(memory, size)
            if home.keeps:
                pages = self._device_pages = self._kept_pages(memory, size, blocks, options, rank)
            kv_room.check(device, memory.capacity(), self._store.size, self._device_pages.size, "--kv-bytes")
        self._parked: tuple[list[tuple[Sequence[int], Floats]], str] | None = None
        """Blocks of the cache and what they hold, and which weights that was computed with."""
        self.unparked = False
        """The cache holds what it did before it slept, in the blocks that were parked."""
        self.weights = self._store.arrays
        self._cache = KvCache(shape, heads, blocks, pages)
        self.part = Part(shape, self.weights, self._cache, rank, options.ranks)

    def _kept_pages(self, memory: Memory, size: int, blocks: int, options: Options, rank: int) -> KeptPages:
        assert isinstance(self._store, GmsStore)
        said = {"engine": "reference", "model": described(options.shape), "rank": f"{rank} of {options.ranks}"}
        whole = -(-size // memory.granularity) * memory.granularity
        cache = shape_of(said, (whole,), 0 if rank else table_bytes(blocks))
        return KeptPages(memory, size, KeptCache(self._store.client, "kv", cache, rank))

    @property
    def needs(self) -> int:
        """Bytes of the device that must be free for `wake`."""
        return 0 if self._device_pages is None else self._device_pages.needs

    @property
    def weights_are(self) -> str:
        """Which weights these are: whatever the blocks hold was computed with them."""
        return self._store.name

    @property
    def table(self) -> memoryview | None:
        """The table of the cache that outlives the engine, once it is claimed."""
        return self._device_pages.table if isinstance(self._device_pages, KeptPages) else None

    @property
    def well(self) -> bool:
        return self._store.well

    def claim(self, token: int, proven: bool) -> Claimed | None:
        """The cache that the predecessor left, before `wake`. None: it is the engine's own."""
        if not isinstance(self._device_pages, KeptPages):
            return None
        return self._device_pages.claim(token, proven, self._timeout_s)

    def sleep(self, parks: Sequence[int] = ()) -> int:
        """With what these blocks hold in host memory. For how many of them, the last ones, there was time."""
        held: list[tuple[Sequence[int], Floats]] = []
        if parks and self._cache.there:
            held = [(piece, self._cache.copy(piece)) for piece in in_time(parks, self._block_bytes, time.monotonic)]
            self._parked = held, self.weights_are
        self._cache.free()
        self._store.sleep()
        return sum(len(piece) for piece, _ in held)

    def wake(self) -> dict[str, float]:
        """How long its parts took. Raises OutOfMemory, StaleLayout, NotInTime."""
        began = time.monotonic()
        self._store.wake(self._timeout_s)
        mapped = time.monotonic()
        self._cache.allocate()
        parked, self._parked = self._parked, None
        self.unparked = parked is not None and parked[1] == self.weights_are
        for blocks, held in parked[0] if parked is not None and self.unparked else ():
            self._cache.put(blocks, held)
        return {"remap": mapped - began, "kv": time.monotonic() - mapped}

    def close(self) -> None:
        self._cache.free()
        self._store.close()
        if self._memory is not None:
            self._memory.close()


def device_of(options: Options, rank: int) -> str:
    """Ranks take turns."""
    return options.devices[rank % len(options.devices)]
