"""vLLM's worker for the CPU, as one of a pair (`pair_worker.py`).

What this file may not do: know a GPU (`cuda_worker.py`).
"""

from vllm.v1.worker.cpu_worker import CPUWorker

from engine_shim import kv_room
from engine_shim.vllm_engine import versions
from engine_shim.vllm_engine.pair_worker import PairWorker, UnknownCache, step

_RESERVE_BYTES = 16 << 20
_RESERVE_PART = 32
"""The part of a device that is left for the other engine's scratch and for rounding: a thirty-second, at least 16
MiB."""


class HostWorker(PairWorker, CPUWorker):
    @step
    def determine_available_memory(self) -> int:
        """Unless it is given, the size of the KV cache comes from totals. What happens to be free at the moment depends
        on whether the other engine is awake.
        """
        given = self.vllm_config.cache_config.kv_cache_memory_bytes
        weights = self._weights
        capacity = weights.memory.capacity()
        needed, tokens = versions.longest_request(self)
        if given is not None:
            kv_room.check(weights.device, capacity, sum(weights.reader.sizes), given, "--kv-cache-memory-bytes")
            kv_room.check_request(given, needed, tokens, f"give --kv-cache-memory-bytes {needed} at least")
            return int(super().determine_available_memory())
        versions.compile_model(self)  # vLLM's CPU worker does that in the method that isn't called here
        left = capacity - sum(weights.reader.sizes) - max(_RESERVE_BYTES, capacity // _RESERVE_PART)
        if left <= 0:
            raise UnknownCache(
                f"{weights.device} has {capacity} bytes, of which the weights leave nothing for a KV cache; give it "
                "more (gms --capacity)"
            )
        kv_room.check_request(left, needed, tokens, "make the device larger (--capacity of gms or failover up)")
        return left
