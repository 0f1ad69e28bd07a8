"""The table beside a pool: shared memory of the host, whatever device the pool is on. Parked weights lie in the same
kind of memory.

A table is a memfd: it lives as long as a process has a descriptor or a mapping of it, and needs no clearing up. Its
size is sealed, and all its pages are there from the beginning, so no process that maps it meets a SIGBUS.

To GMS its contents are bytes, but for a small header and one byte of each record, by which those are counted that a
successor would find (little endian):

     0   8 bytes   b"GFTABLE1"
     8   u32       header_bytes    where the first record begins
    12   u32       record_bytes    at most 4096
    16   u64       records
    24   u32       mark_offset     within a record: the byte there is not 0 while the record is true
    28   u32       0

What this file may not do: write into a table that was handed out, or believe a header.
"""

import fcntl
import os
import struct

from gms.memory import DeviceError

MAGIC = b"GFTABLE1"
HEADER = struct.Struct("<8sIIQII")
MOST_RECORD_BYTES = 4096
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW
_PIECE_BYTES = 4 << 20


def header(header_bytes: int, record_bytes: int, records: int, mark_offset: int) -> bytes:
    """What the owner of a new table writes at its beginning."""
    return HEADER.pack(MAGIC, header_bytes, record_bytes, records, mark_offset, 0)


def create(size: int, *, filled: bool = True) -> int:
    """A descriptor of a new table, which reads as zeros. Raises OSError. `filled`: all its pages are there. (Those of
    parked weights are made as they are written: that takes 0.15 s a GiB.)
    """
    fd = os.memfd_create("gpu-failover-table", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(fd, size)
        if filled:
            os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS | fcntl.F_SEAL_SEAL)
    except BaseException:
        os.close(fd)
        raise
    return fd


def check(descriptor: int, size: int) -> None:
    """What came back from elsewhere is a table of that size. Raises DeviceError."""
    try:
        seals, status = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS), os.fstat(descriptor)
    except OSError as error:
        raise DeviceError(f"the descriptor is no table: {error.strerror}") from None
    if seals & _SEALS != _SEALS or status.st_size != size:
        raise DeviceError(f"the descriptor is no table of {size} bytes, or its size isn't sealed")


def identity(descriptor: int) -> str:
    """The same in every process, for as long as the table lives."""
    status = os.fstat(descriptor)
    return f"table:{status.st_dev}:{status.st_ino}"


def count(descriptor: int) -> tuple[int, int] | None:
    """How many records are true, and how many there are. None: the header says nothing that can be so."""
    found = os.pread(descriptor, HEADER.size, 0)
    if len(found) < HEADER.size:
        return None
    magic, begin, size, records, mark, _ = HEADER.unpack(found)
    if magic != MAGIC or not HEADER.size <= begin or not 0 < size <= MOST_RECORD_BYTES or mark >= size or not records:
        return None
    if begin + size * records > os.fstat(descriptor).st_size:
        return None
    true, at_once = 0, _PIECE_BYTES // size
    for first in range(0, records, at_once):
        number = min(at_once, records - first)
        marks = os.pread(descriptor, number * size, begin + first * size)[mark::size]
        true += len(marks) - marks.count(0)
    return true, records
