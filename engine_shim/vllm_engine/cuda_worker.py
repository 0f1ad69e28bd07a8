"""vLLM's worker for GPUs, as one of a pair (`pair_worker.py`).

What differs from the CPU's: the size of the KV cache is reckoned from totals (`budget.py`), after vLLM has run the
model once at its largest; what a kernel still does is waited for before memory is unmapped under it; and what torch
keeps for later is given back when the engine sleeps. NOT YET RUN ON A GPU.

Overridden of vLLM's: init_device, determine_available_memory, compile_or_warm_up_model, sleep (here), and what
`pair_worker.py` names. Nothing of theirs is replaced by a copy: each calls vLLM's own.

What this file may not do: decide how much (`budget.py`).
"""

from typing import Any

import torch
from vllm.v1.worker.gpu_worker import Worker

from engine_shim.engine import CannotRun
from engine_shim.vllm_engine import budget
from engine_shim.vllm_engine.pair_worker import PairWorker, step
from gms.torch_views import torch_device
from sidecar.terminal.logs import Log

_ANY = 1 << 44
"""The size of KV cache that vLLM is told where none was chosen. If it is told one, it doesn't look at what is free."""


class OtherDevice(CannotRun):
    """vLLM gave this rank another GPU than the one that its weights are to be on."""


class CudaWorker(PairWorker, Worker):
    _pieces = 1024
    """With so many a cache of 80 GiB takes 80 MiB of scratch while its engine starts."""
    _reserve = 0
    _height = 0
    _kept = 0

    @step
    def init_device(self) -> None:
        super().init_device()
        wanted = self._settings.devices[self.vllm_config.parallel_config.rank]
        if torch_device(wanted) != self.device:
            raise OtherDevice(
                f"rank {self.vllm_config.parallel_config.rank} runs on {self.device}, and its weights are to be on "
                f"{wanted}, which is {torch_device(wanted)}: name the devices in the order of CUDA_VISIBLE_DEVICES"
            )

    @step
    def determine_available_memory(self) -> int:
        """The bytes that the KV cache may have. Raises DoesNotFit."""
        cache, settings, weights = self.vllm_config.cache_config, self._settings, self._weights
        given = cache.kv_cache_memory_bytes
        self._begin_counting()
        cache.kv_cache_memory_bytes = given or _ANY
        try:
            allowed = int(super().determine_available_memory())
        finally:
            cache.kv_cache_memory_bytes = given
        for_other_things = (given or _ANY) - allowed  # decoders of pictures and videos, if there are any
        device = budget.Device(weights.device, weights.memory.capacity(), settings.share)
        height = torch.cuda.max_memory_reserved(self.device)
        graphs = not self.vllm_config.model_config.enforce_eager
        self._reserve = budget.reserve(height, graphs, settings.reserve)
        size = budget.cache_bytes(device, sum(weights.reader.sizes), self._reserve, given)
        return size - for_other_things

    @step
    def compile_or_warm_up_model(self) -> Any:
        """Compiles and captures graphs. The KV cache is in scratch meanwhile, because the other engine may have the
        device.
        """
        done = super().compile_or_warm_up_model()
        self._height = torch.cuda.max_memory_reserved(self.device)
        budget.keep_to(self._reserve, self._height, self._weights.device)
        torch.cuda.empty_cache()
        self._kept = torch.cuda.memory_reserved(self.device)
        Log("vllm-worker").info("memory", **self.failover_memory())
        return done

    def sleep(self, level: int = 1) -> None:
        torch.cuda.synchronize(self.device)
        super().sleep(level)
        torch.cuda.empty_cache()

    def failover_needs(self) -> tuple[str, int]:
        """The KV cache, and the memory of its own that this engine gave back and will want again."""
        device, size = super().failover_needs()
        return device, size + self._height - self._kept

    def failover_memory(self) -> dict[str, int]:
        """In bytes: what was planned for this rank, and what torch has had of it."""
        return {
            "reserve": self._reserve,
            "torch_height": self._height,
            "torch_kept": self._kept,
            "kv_cache": self._kv.size,
            "kv_scratch": self._kv.scratch,
            "weights": sum(self._weights.reader.sizes),
        }

    def _begin_counting(self) -> None:
        """Forgets what loading took: running takes something else."""
        torch.cuda.synchronize(self.device)
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(self.device)
