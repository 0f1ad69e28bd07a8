"""Between files and device memory that is mapped in this process.

On host memory the kernel reads straight into the mapping, and files are written straight from it. A GPU's memory goes
through a buffer and the driver's copies (`CudaMemory.copy_in`, `copy_out`).

What this file may not do: know layouts, or the server. Who needs it: `transfer.py`.
"""

import os
from collections.abc import Callable, Iterator

from gms.memory import Memory
from gms.memory.cuda import CudaMemory
from gms.shell.mapping import buffer

PIECE_BYTES = 16 << 20


class CutShort(Exception):
    """The file ends before it should."""


def fill(
    memory: Memory, address: int, size: int, descriptor: int, position: int, copied: Callable[[int], None]
) -> None:
    """From a file. Says how much was copied each time some was. Raises CutShort and OSError."""
    if not isinstance(memory, CudaMemory):
        _read(buffer(address, size), descriptor, position, copied)
        return
    for at, piece in _bounces(size):
        _read(piece, descriptor, position + at, lambda _: None)
        memory.copy_in(address + at, piece)
        copied(len(piece))


def pieces(memory: Memory, address: int, size: int) -> Iterator[memoryview]:
    """The contents, from the first byte on. A piece is good until the next one is asked for."""
    if not isinstance(memory, CudaMemory):
        for at in range(0, size, PIECE_BYTES):
            yield buffer(address + at, min(PIECE_BYTES, size - at)).toreadonly()
        return
    for at, piece in _bounces(size):
        memory.copy_out(piece, address + at)
        yield piece.toreadonly()


def _bounces(size: int) -> Iterator[tuple[int, memoryview]]:
    """The same buffer again and again, as much of it as is left from each offset on."""
    bounce = memoryview(bytearray(min(PIECE_BYTES, size)))
    for at in range(0, size, PIECE_BYTES):
        yield at, bounce[: min(PIECE_BYTES, size - at)]


def _read(target: memoryview, descriptor: int, position: int, copied: Callable[[int], None]) -> None:
    done = 0
    while done < len(target):
        got = os.preadv(descriptor, [target[done : done + PIECE_BYTES]], position + done)
        if got == 0:
            raise CutShort(f"it ends at byte {position + done}, where there was more a moment ago")
        done += got
        copied(got)
