"""Memory of a host device, as the demo's contenders take it: a sparse file on tmpfs stands in for a GPU's memory.

An allocation is an open file description of its own with a write lock on its range. The kernel gives the range back
when the last descriptor and the last mapping are gone, however the process ended; `sidecar.host_usage` reads what is in
use from the locks. What this file may not do: give memory back by hand. Nothing in the demo does: processes end.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from pathlib import Path

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux
_KEEP_SIZE, _PUNCH_HOLE = 1, 2
_PAGE = 4096


class OutOfMemory(Exception):
    """The device has no range of this size free."""


class Allocation:
    """So many bytes of a device, really there: locked, mapped and touched. Held until the process ends."""

    def __init__(self, device: Path, size: int) -> None:
        self._fd = os.open(device, os.O_RDWR | os.O_CLOEXEC)
        self.start = _lock_a_range(self._fd, os.fstat(self._fd).st_size, size)
        _punch(self._fd, self.start, size)  # else it would begin with what its last owner left there
        os.posix_fallocate(self._fd, self.start, size)  # a full tmpfs is an error here, and a SIGBUS later
        self._memory = mmap.mmap(self._fd, size, offset=self.start)
        for page in range(0, size, _PAGE):
            self._memory[page] = 1


def _lock_a_range(fd: int, capacity: int, size: int) -> int:
    for start in range(0, capacity - size + 1, size):
        try:
            fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, size, 0))
        except OSError as error:
            if error.errno not in (errno.EAGAIN, errno.EACCES):
                raise
        else:
            return start
    raise OutOfMemory(f"{size} bytes are not free in one piece")


def _punch(fd: int, start: int, size: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
    if libc.fallocate(fd, _KEEP_SIZE | _PUNCH_HOLE, start, size) != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"fallocate: {os.strerror(code)}")
