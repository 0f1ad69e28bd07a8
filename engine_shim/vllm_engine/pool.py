"""The memory of a rank's KV cache: addresses that stay, and device memory behind them for as long as the engine is
awake.

While the engine initialises, the other one may have the whole device. So every address is backed by one small piece of
memory, mapped over and over (*scratch*): what is written there means nothing, and is only written by warm-ups and by
the capture of CUDA graphs. Asleep there is nothing; awake it is memory of its own, which reads as zeros, as vLLM
expects.

What this file may not do: know vLLM or torch (`kv.py` makes tensors of the addresses).
"""

from gms.memory import Handle, Memory

PIECES = 256
"""So many mappings of the scratch make up a range, at most: the kernel's mappings are counted, and a driver's take
time. More of them make the scratch smaller."""


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

    def __init__(self, memory: Memory, pieces: int = PIECES) -> None:
        self.memory = memory
        self._pieces = pieces
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
    def scratch(self) -> int:
        """What it has of the device until it sleeps for the first time."""
        return sum(self._scratch)

    @property
    def addresses(self) -> list[int]:
        return [each.address for each in self._ranges]

    def holds(self, address: int) -> bool:
        return any(each.address <= address < each.address + each.size for each in self._ranges)

    def allocate(self, wanted: int) -> int:
        """The address of so many bytes, in scratch. Raises OutOfMemory if there isn't even that much."""
        memory = self.memory
        size = _rounded(wanted, memory.granularity)
        piece = _rounded(-(-size // self._pieces), memory.granularity)
        if piece not in self._scratch:
            self._scratch[piece] = memory.create(piece)
        # To the end of the last piece: whether a part of a handle can be mapped is the driver's secret.
        end = _rounded(size, piece)
        where = _Range(memory.reserve(end), size, wanted)
        for at in range(where.address, where.address + end, piece):
            memory.map(at, self._scratch[piece], size=piece, writable=True)
            self._scratched.append((at, piece))
        self._ranges.append(where)
        return where.address

    def sleep(self) -> None:
        """Gives back whatever is there."""
        memory = self.memory
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
        """All of it, or OutOfMemory; the engine ends then, and the kernel or the driver takes back what there was."""
        for each in self._ranges:
            each.handle = self.memory.create(each.size)
            self.memory.map(each.address, each.handle, size=each.size, writable=True)


def _rounded(size: int, unit: int) -> int:
    return -(-size // unit) * unit
