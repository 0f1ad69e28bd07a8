"""vLLM's worker for the CPU, as one of a pair (`napping.py`).

What this file may not do: know a GPU (`cuda_worker.py`).
"""

from vllm.v1.worker.cpu_worker import CPUWorker

from engine_shim.vllm_engine.napping import Napping, UnknownCache, step

_RESERVE_BYTES = 16 << 20
_RESERVE_PART = 32
"""What of a device is left to the other engine's scratch, and to rounding: a thirty-second, but 16 MiB at least."""


class HostWorker(Napping, CPUWorker):
    @step
    def determine_available_memory(self) -> int:
        """Unless it is given, the KV cache's size comes from totals: what happens to be free at the moment depends on
        whether the other engine is awake.
        """
        if self.vllm_config.cache_config.kv_cache_memory_bytes is not None:
            return int(super().determine_available_memory())
        weights = self._weights
        capacity = weights.memory.capacity()
        left = capacity - sum(weights.reader.sizes) - max(_RESERVE_BYTES, capacity // _RESERVE_PART)
        if left <= 0:
            raise UnknownCache(
                f"{weights.device} has {capacity} bytes, of which the weights leave nothing for a KV cache; give it "
                "more (gms --capacity)"
            )
        return left
