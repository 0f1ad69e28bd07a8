"""The few system calls of host memory that Python's own modules don't have: maps at an address that the caller
chooses, holes in files, huge pages.

What this file may not do: know what an allocation is. Every failure is an OSError with the kernel's reason. A call
that would take long is cut into pieces: a process that is being killed isn't gone before its system call is over, and
the next engine waits for it.
"""

import ctypes
import errno
import os
from collections.abc import Iterator

_PROT_NONE, _PROT_READ, _PROT_WRITE = 0, 1, 2
_MAP_SHARED, _MAP_PRIVATE, _MAP_FIXED, _MAP_ANONYMOUS, _MAP_NORESERVE = 0x1, 0x2, 0x10, 0x20, 0x4000
_MADV_DONTFORK, _MADV_COLLAPSE = 10, 25
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PIECE_BYTES = 64 << 20  # about 15 ms of any of these calls
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = (
    ctypes.c_void_p,
    ctypes.c_size_t,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int,
    ctypes.c_int64,
)
_libc.munmap.argtypes = (ctypes.c_void_p, ctypes.c_size_t)
_libc.madvise.argtypes = (ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int)
_libc.fallocate.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)


def reserve_addresses(size: int, alignment: int) -> int:
    """Addresses that nothing else will get, at a multiple of the alignment. Access to them faults."""
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE
    got = _mmap(None, size + alignment, _PROT_NONE, flags, -1, 0)
    address = -(-got // alignment) * alignment
    for start, stop in ((got, address), (address + size, got + size + alignment)):
        if start < stop:
            free_addresses(start, stop - start)
    return address


def map_file(address: int, size: int, fd: int, offset: int, *, writable: bool) -> None:
    """Over reserved addresses. A forked child doesn't get the mapping: it would keep the memory after its parent."""
    prot = _PROT_READ | _PROT_WRITE if writable else _PROT_READ
    _mmap(address, size, prot, _MAP_SHARED | _MAP_FIXED, fd, offset)
    _checked(_libc.madvise(address, size, _MADV_DONTFORK))


def unmap_file(address: int, size: int) -> None:
    """The addresses are only reserved again, in one step: nothing else can slip in."""
    flags = _MAP_PRIVATE | _MAP_ANONYMOUS | _MAP_NORESERVE | _MAP_FIXED
    _mmap(address, size, _PROT_NONE, flags, -1, 0)


def free_addresses(address: int, size: int) -> None:
    _checked(_libc.munmap(address, size))


def punch(fd: int, start: int, size: int) -> None:
    """Gives the pages of a range back; it reads as zeros then."""
    for at, length in _pieces(start, size):
        _fallocate(fd, _PUNCH_HOLE | _KEEP_SIZE, at, length)


def allocate(fd: int, start: int, size: int) -> None:
    """Makes sure of the pages of a range now: without a page, touching the mapping later would be a SIGBUS. On an error
    part of them is there."""
    for at, length in _pieces(start, size):
        _fallocate(fd, _KEEP_SIZE, at, length)


def collapse(address: int, size: int) -> None:
    """Makes huge pages of what is mapped there; the contents stay, and others may read and write meanwhile."""
    for at, length in _pieces(address, size):
        _checked(_libc.madvise(at, length, _MADV_COLLAPSE))


def _pieces(start: int, size: int) -> Iterator[tuple[int, int]]:
    for at in range(start, start + size, _PIECE_BYTES):
        yield at, min(_PIECE_BYTES, start + size - at)


def _mmap(address: int | None, size: int, prot: int, flags: int, fd: int, offset: int) -> int:
    got: int | None = _libc.mmap(address, size, prot, flags, fd, offset)
    if got is None or got == _FAILED:
        raise _error()
    return got


def _fallocate(fd: int, mode: int, start: int, size: int) -> None:
    while _libc.fallocate(fd, mode, start, size) != 0:
        if ctypes.get_errno() != errno.EINTR:  # a signal; what was done of this piece is undone
            raise _error()


def _checked(result: int) -> None:
    if result != 0:
        raise _error()


def _error() -> OSError:
    code = ctypes.get_errno()
    return OSError(code, os.strerror(code))
