"""The memory of a rank's KV cache: addresses that stay, and device memory behind them for as long as the engine is
awake.

While the engine initialises, the other one may have the whole device. So every address is then backed by one small
piece of memory, mapped over and over (*scratch*). Nothing that is written there matters: only warm-ups and the capture
of CUDA graphs write to it. A sleeping engine has no memory here. An engine that is awake has memory of its own, which
reads as zeros at first, as vLLM expects.

What this file may not do: know vLLM or torch (`kv_tensors.py` makes tensors of the addresses).
"""

from collections.abc import Sequence

from gms.memory import Handle, Memory

PIECES = 256
"""How many mappings of the scratch make up a range, at most: the kernel limits mappings, and a driver takes time for
each. With more of them the scratch is smaller."""


class _Range:
    """The addresses of one allocation."""

    def __init__(self, address: int, size: int) -> None:
        self.address = address
        self.size = size
        self.handle: Handle | None = None
        """While it is awake, and the memory is its own."""
        self.mapped = False


class KvPool:
    """It begins in scratch, and is then asleep and awake in turn."""

    def __init__(self, memory: Memory, pieces: int = PIECES) -> None:
        self.memory = memory
        self._pieces = pieces
        self._ranges: list[_Range] = []
        self._scratch: dict[int, Handle] = {}
        self._scratched: list[tuple[int, int]] = []

    @property
    def size(self) -> int:
        """Bytes of the device that it has when it is awake."""
        return sum(each.size for each in self._ranges)

    @property
    def scratch(self) -> int:
        """Bytes of the device that it has until it sleeps for the first time."""
        return sum(self._scratch)

    @property
    def sizes(self) -> list[int]:
        """One for each of its ranges. A range is an allocation."""
        return [each.size for each in self._ranges]

    @property
    def addresses(self) -> list[int]:
        return [each.address for each in self._ranges]

    def holds(self, address: int) -> bool:
        return any(each.address <= address < each.address + each.size for each in self._ranges)

    def allocate(self, wanted: int) -> int:
        """The address of so many bytes, in scratch. Raises OutOfMemory if there isn't even enough for that."""
        memory = self.memory
        size = _rounded(wanted, memory.granularity)
        piece = _rounded(-(-size // self._pieces), memory.granularity)
        if piece not in self._scratch:
            self._scratch[piece] = memory.create(piece)
        # The last piece is mapped whole: a driver doesn't promise that a part of a handle can be mapped.
        end = _rounded(size, piece)
        where = _Range(memory.reserve(end), size)
        for at in range(where.address, where.address + end, piece):
            memory.map(at, self._scratch[piece], size=piece, writable=True)
            self._scratched.append((at, piece))
        self._ranges.append(where)
        return where.address

    def sleep(self) -> None:
        """Gives back all memory."""
        memory = self.memory
        while self._scratched:
            memory.unmap(*self._scratched.pop())
        while self._scratch:
            memory.release(self._scratch.popitem()[1])
        for each in self._ranges:
            if each.mapped:
                memory.unmap(each.address, each.size)
                each.mapped = False
            if each.handle is not None:
                memory.release(each.handle)
                each.handle = None

    def wake(self, kept: Sequence[Handle] = ()) -> None:
        """Takes all of the memory, or raises OutOfMemory. The engine then ends, and the kernel or the driver takes back
        what it had got. With memory that is kept elsewhere, one handle for each range, it takes that.
        """
        for number, each in enumerate(self._ranges):
            if not kept:
                each.handle = self.memory.create(each.size)
            handle = kept[number] if kept else each.handle
            assert handle is not None
            self.memory.map(each.address, handle, size=each.size, writable=True)
            each.mapped = True


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
