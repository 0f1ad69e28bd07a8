"""A rank's KV cache: addresses that stay, and device memory behind them for as long as the engine is awake.

vLLM allocates it once, with torch.zeros, in a context that a worker class may choose; here that allocation gives a
tensor on addresses of ours. While the engine initialises, the other one may have the whole device. So every address is
backed by one small piece of memory, mapped over and over (*scratch*): what is written there means nothing, and is only
written by the warm-up. Asleep there is nothing; awake it is memory of its own, which reads as zeros, as vLLM expects.

What this file may not do: know vLLM.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from gms.client import Handle, Memory
from gms.torch_views import raw_bytes, torch_device

_PIECES = 256
"""So many mappings of the scratch make up a tensor, at most: the kernel's mappings are counted."""


class _Range:
    """Addresses of one allocation."""

    def __init__(self, address: int, size: int, wanted: int) -> None:
        self.address = address
        self.size = size
        self.wanted = wanted
        self.handle: Handle | None = None
        """While it is awake."""


class KvPool:
    """In scratch at first; then awake and asleep in turn."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self._ranges: list[_Range] = []
        self._scratch: dict[int, Handle] = {}
        self._scratched: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        """Of the device, when it is awake."""
        return sum(each.size for each in self._ranges)

    @property
    def wanted(self) -> int:
        """Of which vLLM asked for so many."""
        return sum(each.wanted for each in self._ranges)

    @property
    def addresses(self) -> list[int]:
        return [each.address for each in self._ranges]

    def holds(self, address: int) -> bool:
        return any(each.address <= address < each.address + each.size for each in self._ranges)

    def allocate(self, wanted: int) -> torch.Tensor:
        """Bytes, in scratch. Raises OutOfMemory if there isn't even that much."""
        memory = self._memory
        size = _rounded(wanted, memory.granularity)
        where = _Range(memory.reserve(size), size, wanted)
        piece = _rounded(-(-size // _PIECES), memory.granularity)
        if piece not in self._scratch:
            self._scratch[piece] = memory.create(piece)
        for at in range(where.address, where.address + size, piece):
            part = min(piece, where.address + size - at)
            memory.map(at, self._scratch[piece], size=part, writable=True)
            self._scratched.append((at, part))
        self._ranges.append(where)
        return raw_bytes(where.address, wanted, torch_device(memory.device)).view(torch.int8)

    def sleep(self) -> None:
        """Gives back whatever is there."""
        memory = self._memory
        while self._scratched:
            memory.unmap(*self._scratched.pop())
        while self._scratch:
            memory.release(self._scratch.popitem()[1])
        for each in self._ranges:
            if each.handle is not None:
                memory.unmap(each.address, each.size)
                memory.release(each.handle)
                each.handle = None

    def wake(self) -> None:
        """All of it, or OutOfMemory; the engine ends then, and the kernel takes back what there was."""
        for each in self._ranges:
            each.handle = self._memory.create(each.size)
            self._memory.map(each.address, each.handle, size=each.size, writable=True)


class Allocating(TorchFunctionMode):
    """Inside, vLLM's allocation of a KV cache is the pool's. Everything else is as ever."""

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
            return self._pool.allocate(args[0])
        return func(*args, **kwargs)


def _rounded(size: int, granularity: int) -> int:
    return -(-size // granularity) * granularity
