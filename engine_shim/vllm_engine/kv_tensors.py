"""A rank's KV cache as vLLM's tensors, on addresses of ours (`kv_pool.py`).

vLLM allocates the cache once, with torch.zeros, in a context that a worker class may choose. Here that allocation
returns a tensor on the pool's addresses.

What this file may not do: know vLLM.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from engine_shim.vllm_engine.kv_pool import KvPool
from gms.torch_views import raw_bytes, torch_device


class Parked:
    """Copies of some blocks, in host memory."""

    def __init__(self, parts: Sequence[torch.Tensor], blocks: Sequence[int]) -> None:
        """`parts`: of the cache, with blocks as their first dimension."""
        self._parts, self._blocks = parts, list(blocks)
        self._held = [part[self._blocks].cpu() for part in parts]

    def put_back(self) -> None:
        for part, held in zip(self._parts, self._held, strict=True):
            part[self._blocks] = held.to(part.device)


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
