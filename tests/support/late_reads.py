"""Reads that arrive after their process's end: O_DIRECT reads, by io_uring or by AIO, from a disk that is slow.

By hand, because no library is there in CI. A slow disk is this one, as a cgroup (v1, as root) slows it for a process.
"""

import ctypes
import errno
import mmap
import os
import struct
from pathlib import Path

THROTTLE = Path("/sys/fs/cgroup/blkio")
_SETUP, _ENTER = 425, 426
_IO_SETUP, _IO_SUBMIT = 206, 209  # x86-64
_READ = 22
PIECE = 16384
_mapped: list[mmap.mmap] = []
"""So that it stays mapped."""
_LIBC = ctypes.CDLL(None, use_errno=True)
_SQ_RING, _SQES = 0, 0x10000000


class Impossible(OSError):
    """The kernel refuses it."""


def io_uring(path: str, address: int, size: int, witness: str) -> None:
    """Reads the file into that memory, in pieces that are all under way when this returns; and then a piece of it into
    the file `witness`, on tmpfs: when that has arrived, so have the others.
    """
    entries = size // PIECE + 1
    params = (ctypes.c_uint32 * 30)()
    ring = _call(_SETUP, entries, params)
    sq_tail, sq_array = params[11], params[16]  # of io_uring_params: sq_entries first, sq_off from the tenth word on
    rings = mmap.mmap(ring, sq_array + 4 * params[0], offset=_SQ_RING)
    sqes = mmap.mmap(ring, 64 * params[0], offset=_SQES)
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    places = [(at, address + at) for at in range(0, size, PIECE)] + [(0, _address_of(witness))]
    for number, (at, to) in enumerate(places):
        struct.pack_into("=BBHiQQI", sqes, 64 * number, _READ, 0, 0, fd, at, to, PIECE)
        struct.pack_into("=I", rings, sq_array + 4 * number, number)
    struct.pack_into("=I", rings, sq_tail, entries)
    assert _call(_ENTER, ring, entries, 0, 0, None, 0) == entries


def _address_of(path: str) -> int:
    with open(path, "r+b") as file:
        _mapped.append(mmap.mmap(file.fileno(), PIECE))
    return ctypes.addressof(ctypes.c_char.from_buffer(_mapped[-1]))


def aio(path: str, address: int, size: int) -> None:
    entries = size // PIECE
    context = ctypes.c_ulong(0)
    _call(_IO_SETUP, entries, ctypes.byref(context))
    fd = os.open(path, os.O_RDONLY | os.O_DIRECT)
    blocks = ctypes.create_string_buffer(64 * entries)
    pointers = (ctypes.c_void_p * entries)(*(ctypes.addressof(blocks) + 64 * n for n in range(entries)))
    for number in range(entries):
        at = PIECE * number
        struct.pack_into("=QIIHhIQQqQII", blocks, 64 * number, 0, 0, 0, 0, 0, fd, address + at, PIECE, at, 0, 0, 0)
    assert _call(_IO_SUBMIT, context, entries, pointers) == entries


def slow_down(pid: int, path: str, bytes_a_second: int) -> Path:
    """What that process reads of the disk that the file is on. Returns the group, to be removed when it is empty."""
    number = os.stat(path).st_dev
    group = THROTTLE / f"gpu-failover-{pid}"
    group.mkdir()
    (group / "blkio.throttle.read_bps_device").write_text(f"{os.major(number)}:{os.minor(number)} {bytes_a_second}")
    (group / "cgroup.procs").write_text(str(pid))
    return group


def _call(number: int, *arguments: object) -> int:
    done = _LIBC.syscall(ctypes.c_long(number), *(ctypes.c_long(a) if isinstance(a, int) else a for a in arguments))
    if done < 0:
        code = ctypes.get_errno()
        raise Impossible(code, f"{errno.errorcode[code]}: call {number}")
    return int(done)
