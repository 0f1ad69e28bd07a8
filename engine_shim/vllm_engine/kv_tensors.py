"""A rank's KV cache as vLLM's tensors, on addresses of ours (`kv_pool.py`).

vLLM allocates the cache once, with torch.zeros, in a context that a worker class may choose. Here that allocation
returns a tensor on the pool's addresses.

What this file may not do: know vLLM.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from engine_shim.kv.parking import in_time
from engine_shim.vllm_engine.kv_pool import KvPool
from gms.torch_views import raw_bytes, torch_device


class Parked:
    """Copies of some blocks, in host memory."""

    def __init__(self, parts: Sequence[torch.Tensor], blocks: Sequence[int]) -> None:
        """`parts`: of the cache, with blocks as their first dimension. `blocks`: without the first ones, if there is
        no time for all.
        """
        self._parts = parts
        size = sum(part[0].nbytes for part in parts)
        self._held = [
            (list(piece), [part[list(piece)].cpu() for part in parts])
            for piece in in_time(blocks, size, time.monotonic)
        ]

    @property
    def count(self) -> int:
        return sum(len(blocks) for blocks, _ in self._held)

    def put_back(self) -> None:
        for blocks, held in self._held:
            for part, its in zip(self._parts, held, strict=True):
                part[blocks] = its.to(part.device)


class Allocating(TorchFunctionMode):
    """While it is active, vLLM's allocation of a KV cache comes from the pool. Everything else is as always."""

    def __init__(self, pool: KvPool) -> None:
        super().__init__()
        self._pool = pool

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = dict(kwargs or {})
        if func is torch.zeros and kwargs.get("dtype") is torch.int8 and len(args) == 1 and isinstance(args[0], int):
            return self._allocate(args[0])
        return func(*args, **kwargs)

    def _allocate(self, wanted: int) -> torch.Tensor:
        pool = self._pool
        return raw_bytes(pool.allocate(wanted), wanted, torch_device(pool.memory.device)).view(torch.int8)
