"""Between files and device memory that is mapped in this process.

On host memory the kernel reads straight into the mapping, and files are written straight from it. A GPU's memory goes
through buffers and the driver's copies (`CudaMemory.copy_in`, `copy_out`). Whole shards go past the page cache, where
the filesystem can do that, and through two buffers: while the disk has one, the other is summed up, and copied.

What this file may not do: know layouts, or the server. Used by `transfer.py`, `snapshot.py`, `parking.py`.
"""

import contextlib
import ctypes
import errno
import itertools
import mmap
import os
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

from gms.memory import DeviceError, Memory, libc
from gms.memory.cuda import CudaMemory
from gms.shell.background import Checksum
from gms.shell.slabs import buffer
from sidecar.kernel import durable, host_usage

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


# -- parked weights ----------------------------------------------------------------------------------------------------


@contextlib.contextmanager
def host_memory(memory: Memory, descriptor: int, size: int) -> Iterator[memoryview]:
    """What is behind the descriptor, mapped; pinned, where the driver can, for the copies of a GPU."""
    pinned = memory.pinned if isinstance(memory, CudaMemory) else contextlib.nullcontext
    try:
        mapped = mmap.mmap(descriptor, size)
    except OSError as error:  # no descriptors or addresses left, say
        raise DeviceError(f"{size} bytes of host memory can't be mapped: {error.strerror}") from None
    with mapped as whole, pinned(whole), memoryview(whole) as view:
        yield view


def make_pages(descriptor: int, size: int) -> None:
    """Raises DeviceError where the host is short of memory: without that, touching a page would end this process, or
    the kernel would kill one. The other devices' weights are parked at the same time: so each piece asks again.
    """
    try:
        for at in range(0, size, 4 * PIECE_BYTES):
            left = host_usage.memory_left("MemAvailable")
            if left is not None and left < size - at:
                raise DeviceError(f"{size} bytes of host memory can't be had: the machine itself has {left} bytes left")
            libc.allocate(descriptor, at, min(4 * PIECE_BYTES, size - at))
    except OSError as error:
        raise DeviceError(f"{size} bytes of host memory can't be had: {error.strerror}") from None


def copy_out(memory: Memory, address: int, target: memoryview) -> None:
    """Mapped memory of the device, to the host's."""
    if not isinstance(memory, CudaMemory):
        _copy(ctypes.addressof(ctypes.c_char.from_buffer(target)), address, len(target))
        return
    for at in range(0, len(target), PIECE_BYTES):
        with target[at : at + PIECE_BYTES] as piece:
            memory.copy_out(piece, address + at)


def copy_in(memory: Memory, address: int, source: memoryview) -> None:
    if not isinstance(memory, CudaMemory):
        _copy(address, ctypes.addressof(ctypes.c_char.from_buffer(source)), len(source))
        return
    for at in range(0, len(source), PIECE_BYTES):
        with source[at : at + PIECE_BYTES] as piece:
            memory.copy_in(address + at, piece)


def _copy(target: int, source: int, size: int) -> None:
    """By all processors: most of it is what the kernel does for each new page."""

    def piece(at: int) -> None:
        ctypes.memmove(target + at, source + at, min(PIECE_BYTES, size - at))

    with ThreadPoolExecutor(os.cpu_count()) as threads:
        list(threads.map(piece, range(0, size, PIECE_BYTES)))


# -- whole shards ------------------------------------------------------------------------------------------------------


def open_direct(path: Path, flags: int) -> int:
    """Past the page cache; as any other file where the filesystem can't do that (tmpfs). A regular file, or OSError."""
    try:
        return durable.regular(path, flags | os.O_DIRECT | os.O_NOFOLLOW)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        with contextlib.suppress(FileNotFoundError):
            if flags & os.O_EXCL:
                os.unlink(path)  # it was made before it was refused
        return durable.regular(path, flags | os.O_NOFOLLOW)


def load(memory: Memory, address: int, size: int, descriptor: int, copied: Callable[[int], None]) -> str:
    """Fills mapped memory from the beginning of a file. Returns the sum of its contents. Raises CutShort, OSError."""
    total, coming = Checksum(), deque[tuple[int, memoryview, Future[None]]]()

    def take() -> None:
        at, piece, read = coming.popleft()
        read.result()
        total.add(piece)
        if isinstance(memory, CudaMemory):
            memory.copy_in(address + at, piece)
        copied(len(piece))

    # Two threads: the kernel's own work for a piece (its pages) is done while the disk has the other one.
    with ThreadPoolExecutor(2) as disk, _two_buffers(memory, address, size) as buffers:
        for at, piece in buffers:
            coming.append((at, piece, disk.submit(_read, piece, descriptor, at, lambda _: None)))
            if len(coming) == 2:
                take()
        while coming:
            take()
    return total.text


def store(memory: Memory, address: int, size: int, descriptor: int, copied: Callable[[int], None]) -> str:
    """Writes mapped memory to the beginning of a file. Returns the sum of its contents. Raises OSError."""
    total, going = Checksum(), deque[Future[None]]()
    with ThreadPoolExecutor(1) as disk, _two_buffers(memory, address, size) as buffers:
        for at, piece in buffers:
            if isinstance(memory, CudaMemory):
                memory.copy_out(piece, address + at)
            while going:
                going.popleft().result()
            going.append(disk.submit(_write, piece, descriptor, at))
            total.add(piece)
            copied(len(piece))
        while going:
            going.popleft().result()
    return total.text


@contextlib.contextmanager
def _two_buffers(memory: Memory, address: int, size: int) -> Iterator[Iterator[tuple[int, memoryview]]]:
    """Offsets, and where the bytes of each are: in the mapping itself; of a GPU in one of two pinned buffers."""
    offsets = range(0, size, PIECE_BYTES)
    if not isinstance(memory, CudaMemory):
        whole = buffer(address, size)
        yield ((at, whole[at : at + PIECE_BYTES]) for at in offsets)
        return
    both = mmap.mmap(-1, 2 * PIECE_BYTES)
    with memory.pinned(both):
        places = itertools.cycle((memoryview(both)[:PIECE_BYTES], memoryview(both)[PIECE_BYTES:]))
        yield ((at, place[: min(PIECE_BYTES, size - at)]) for at, place in zip(offsets, places, strict=False))


def _write(source: memoryview, descriptor: int, position: int) -> None:
    done = 0
    while done < len(source):
        done += os.pwritev(descriptor, [source[done:]], position + done)
