"""Device memory where there is no GPU: ranges of a file on tmpfs, with the kernel's locks for the books.

An allocation is an open file description of its own that holds an OFD write lock on its range of the device's file, or
on several where no free one is large enough: then they are mapped one behind the other, in the file's order. Handles
are descriptors of it, exporting is passing one on, and a mapping holds the description too. When the last of all these
is gone, in whatever process and however it ended, the kernel drops the lock, and the range is free. So nothing is
counted here, and nothing has to be cleaned up after a process.

The rules, each of which something was lost without:

* First the lock, then look whether it was worth anything (the file may have been removed or made smaller), then punch,
  then fallocate. A freed range keeps its last owner's bytes; a range without pages is a SIGBUS when tmpfs is full.
* Free is what isn't locked. How many pages the file has says nothing: freed ranges keep them.
* A descriptor from elsewhere is what the kernel says of it (/proc/self/fdinfo lists the locks of that very
  description), never what its sender says.
* At most 1,000 ranges: the kernel walks all of a file's locks for each question.

What is not guarded against: a process of the same user that means harm. It can open the device's file itself. So a
mapping that isn't writable is a guard against mistakes: its owner could make it writable with mprotect, because the
description has to be open for writing to hold a write lock.

Making and removing devices: `host_device.py`. The system calls: `libc.py`. Who reads the locks:
`sidecar/kernel/host_usage.py`.
"""

import contextlib
import errno
import fcntl
import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from gms.memory import DeviceError, Handle, Memory, OutOfMemory, Unusable, libc
from gms.memory.host_device import GRANULARITY, device_path, open_device, reason, same_file, try_lock, unlock
from sidecar.kernel import host_usage

MAX_RANGES = 1000
_LOCK_LINE = re.compile(r"^lock:\s+\d+: OFDLCK +\S+ +(\S+) +\S+ +\S+ +(\d+) +(\d+|EOF)$", re.MULTILINE)
_IDENTITY = re.compile(r"host:(\d+):(\d+):(\d+:\d+(?:,\d+:\d+)*)")
_FULL = (errno.ENOSPC, errno.ENOMEM, errno.EDQUOT)
_NO_SUCH_CALL = (errno.EOPNOTSUPP, errno.ENOSYS, errno.ENOLCK, errno.EINVAL)
_FIRST_DESCRIPTOR = 3  # never take the place of a closed stdin or stdout


_Ranges = list[tuple[int, int]]
"""Each from its start to its stop, in order."""


class _Allocation(NamedTuple):
    fd: int
    ranges: _Ranges
    size: int


class HostMemory(Memory):
    """One host device. A forked child has the handles and none of the mappings."""

    granularity = GRANULARITY

    def __init__(self, name: str, directory: Path | None = None) -> None:
        super().__init__()
        self.device = f"host:{name}"
        self._path = device_path(name, directory)
        try:
            self._probe = open_device(self._path)  # never takes a lock: it is what asks for the others'
        except FileNotFoundError:
            raise DeviceError(f"{self.device} isn't there: {self._path} has to be made first, as `gms` does") from None
        status = os.fstat(self._probe)
        self._inode = (status.st_dev, status.st_ino)
        self._pid = os.getpid()

    @property
    def _forked(self) -> bool:
        """This is a child of the process whose addresses these are: at them the child has nothing, or its own."""
        return os.getpid() != self._pid

    def capacity(self) -> int:
        return os.fstat(self._probe).st_size

    def free(self) -> int:
        """By the locks, whatever the path names by now."""
        capacity = self.capacity()
        return capacity - sum(stop - start for start, stop in host_usage.locks(self._probe, 0, capacity))

    def create(self, size: int) -> Handle:
        self._check_multiple("the size", size)
        fd = self._open()
        try:
            ranges = self._take_ranges(fd, size)
            self._fill(fd, ranges, size)
            return self._add(_Allocation(fd, ranges, size))
        except BaseException:
            os.close(fd)
            raise

    def export(self, handle: Handle) -> int:
        return self._copy(self._allocation(handle).fd)

    def import_(self, descriptor: int, size: int) -> Handle:
        fd = self._copy(descriptor)
        try:
            ranges = self._ranges_of(fd)
            if (length := _size(ranges)) != size:
                raise DeviceError(f"the descriptor is {length} bytes of {self.device}, and {size} were announced")
            return self._add(_Allocation(fd, ranges, size))
        except BaseException:
            os.close(fd)
            raise

    def _release(self, allocation: _Allocation) -> None:
        os.close(allocation.fd)

    def _reserve(self, size: int) -> int:
        """At a multiple of the granularity, which huge pages need."""
        with _as_device_error(f"{size} bytes of addresses can't be reserved"):
            return libc.reserve_addresses(size, GRANULARITY)

    def _map(self, address: int, allocation: _Allocation, size: int, offset: int, *, writable: bool) -> None:
        """No page is touched: pages come at the first access."""
        with _as_device_error(f"{size} bytes of {self.device} can't be mapped at {address:#x}"):
            try:
                at = address
                for start, stop in _from(allocation.ranges, offset, size):
                    libc.map_file(at, stop - start, allocation.fd, start, writable=writable)
                    at += stop - start
            except OSError:
                libc.unmap_file(address, size)  # the kernel may have taken the reservation away before it failed
                raise

    def _unmap(self, address: int, size: int) -> None:
        if self._forked:
            return
        with _as_device_error(f"{size} bytes at {address:#x} can't be unmapped"):
            libc.unmap_file(address, size)

    def _free_address(self, address: int, size: int) -> None:
        if self._forked:
            return
        with _as_device_error(f"{size} bytes of addresses at {address:#x} can't be given back"):
            libc.free_addresses(address, size)

    def identity(self, descriptor: int) -> str:
        """`host:DEVICE:INODE:START:LENGTH`, with `,START:LENGTH` for each further range. Unique among what is alive on
        this boot; later memory may get it again.
        """
        ranges = ",".join(f"{start}:{stop - start}" for start, stop in self._ranges_of(descriptor))
        return "host:{}:{}:{}".format(*self._inode, ranges)

    def held(self, identity: str) -> bool | None:
        """A process has exactly those ranges locked. None: it was memory of a file that this device isn't any more."""
        parsed = _IDENTITY.fullmatch(identity)
        if parsed is None:
            raise DeviceError(f"{identity!r} is no identity of memory of a host device")
        device, inode, ranges = parsed.groups()
        if (int(device), int(inode)) != self._inode:
            return None
        locked = set(host_usage.locks(self._probe, 0, self.capacity()))
        parts = [[int(number) for number in each.split(":")] for each in ranges.split(",")]
        return locked.issuperset((start, start + length) for start, length in parts)

    def collapse(self, address: int, size: int) -> bool:
        """Makes huge pages of what is mapped there, as far as the kernel can; touching it for the first time is many
        times faster then. Takes from a quarter of a second to seconds a GiB and lets other threads run, so it is for a
        thread of its own. It does no harm if that place is unmapped meanwhile."""
        try:
            libc.collapse(address, size)
        except OSError:
            return False  # an old kernel, no memory in one piece, or not mapped any more: all is as before
        return True

    def close(self) -> None:
        super().close()
        probe, self._probe = self._probe, -1
        if probe >= 0:
            os.close(probe)

    def _take_ranges(self, fd: int, size: int) -> _Ranges:
        """The first free range that is large enough; else the first ones that are together. A process that finds
        another faster looks again, and keeps what it has: the other has succeeded.
        """
        own: _Ranges = []
        while size > _size(own):
            capacity = os.fstat(fd).st_size
            with _as_device_error(f"{self._path} can't be locked", unusable="OFD locks, which local filesystems have"):
                taken = sorted([*self._others(fd, capacity, len(own) + 1), *own])
                for start, stop in self._fit(taken, capacity, size - _size(own)):
                    if not try_lock(fd, start, stop - start):
                        break
                    own.append((start, stop))
            if not own:
                continue
            if not same_file(fd, self._path):
                raise self._gone()
            if os.fstat(fd).st_size != capacity:  # from here on our locks keep it as it is
                unlock(fd, 0, capacity)
                own.clear()
                continue
            self._others(fd, capacity, len(own))  # those who raced for the last places are all refused
        return own if len(own) == 1 else self._ranges_of(fd)

    def _others(self, fd: int, capacity: int, places: int) -> _Ranges:
        """`places`: so many are to be had beside theirs."""
        others = host_usage.locks(fd, 0, capacity)
        if len(others) + places > MAX_RANGES:
            raise DeviceError(
                f"{self.device} has {len(others)} ranges that are allocated, and {MAX_RANGES} is all that it may have,"
                f" because every one makes each question to the kernel slower; use fewer and larger ones"
            )
        return others

    def _fit(self, taken: _Ranges, capacity: int, size: int) -> _Ranges:
        end, free, gaps = 0, 0, _Ranges()
        for start, stop in [*taken, (capacity, capacity)]:
            at = -(-end // GRANULARITY) * GRANULARITY  # locks that aren't ours may begin and end anywhere
            until = start // GRANULARITY * GRANULARITY
            if until - at >= size:
                return [(at, at + size)]
            if until > at:
                gaps.append((at, until))
            free, end = free + start - end, stop
        if _size(gaps) < size:
            raise OutOfMemory(self.device, size, free)
        return _from(gaps, 0, size)

    def _fill(self, fd: int, ranges: _Ranges, size: int) -> None:
        """They are ours: makes zeros of what their last owners left, and sees that there are pages for all of it."""
        needs = "a filesystem that has holes in files and keeps pages ready, as tmpfs does"
        with _as_device_error(f"{size} bytes of {self._path} can't be cleared", unusable=needs):
            _punch(fd, ranges)
        try:
            with _as_device_error(f"{size} bytes of {self._path} can't be had", unusable=needs, full=self._path):
                _check_room(fd, size)
                for start, stop in ranges:
                    libc.allocate(fd, start, stop - start)
        except DeviceError:
            with contextlib.suppress(OSError):
                _punch(fd, ranges)  # a full filesystem needs those pages that it did give
            raise

    def _open(self) -> int:
        try:
            with _as_device_error(f"{self._path} can't be opened"):
                fd = open_device(self._path)
        except FileNotFoundError:
            raise self._gone() from None
        status = os.fstat(fd)
        if (status.st_dev, status.st_ino) != self._inode:
            os.close(fd)
            raise self._gone()
        return fd

    def _gone(self) -> DeviceError:
        return DeviceError(f"{self.device} was removed or made anew; processes that use it have to start again")

    def _copy(self, descriptor: int) -> int:
        if descriptor < 0:  # fcntl would call that a ValueError
            raise DeviceError(f"{descriptor} is no descriptor")
        with _as_device_error(f"descriptor {descriptor} can't be copied"):
            return fcntl.fcntl(descriptor, fcntl.F_DUPFD_CLOEXEC, _FIRST_DESCRIPTOR)

    def _ranges_of(self, descriptor: int) -> _Ranges:
        """What the kernel says of a descriptor: which file it is, and which ranges its own description has locked."""
        with _as_device_error(f"descriptor {descriptor} can't be looked at"):
            status = os.fstat(descriptor)
            if (status.st_dev, status.st_ino) != self._inode:
                raise DeviceError(f"the descriptor is no memory of {self.device}: it is {_kind(status.st_mode)}")
            info = _fdinfo(descriptor)
        locks = _LOCK_LINE.findall(info)
        if not locks:
            raise DeviceError(f"the descriptor is no memory of {self.device}: it holds no lock")
        return sorted(self._range(*lock) for lock in locks)

    def _range(self, kind: str, first: str, last: str) -> tuple[int, int]:
        start, stop = int(first), self.capacity() + 1 if last == "EOF" else int(last) + 1
        if kind != "WRITE" or stop > self.capacity() or start % GRANULARITY or stop % GRANULARITY:
            raise DeviceError(
                f"the descriptor is no memory of {self.device}: its lock is {kind} {first} to {last}, and memory has"
                f" write locks on multiples of {GRANULARITY} within {self.capacity()} bytes"
            )
        return start, stop


def _size(ranges: _Ranges) -> int:
    return sum(stop - start for start, stop in ranges)


def _from(ranges: _Ranges, offset: int, size: int) -> _Ranges:
    """So many bytes of them, from there on."""
    found = _Ranges()
    for start, stop in ranges:
        skipped = min(offset, stop - start)
        taken = min(size, stop - start - skipped)
        offset, size = offset - skipped, size - taken
        if taken:
            found.append((start + skipped, start + skipped + taken))
    return found


def _punch(fd: int, ranges: _Ranges) -> None:
    for start, stop in ranges:
        libc.punch(fd, start, stop - start)


def _check_room(fd: int, size: int) -> None:
    """Says at once what fallocate would say when it has taken all that was left, from all processes. A tmpfs may be as
    large as the machine's memory or larger: then fallocate says nothing, and the kernel kills whom it likes.
    """
    room = os.fstatvfs(fd)
    if room.f_blocks and room.f_bavail * room.f_frsize < size:  # no blocks: a tmpfs without a limit
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    left = host_usage.memory_left("MemAvailable", "SwapFree")
    if left is not None and left < size:
        raise DeviceError(
            f"{size} bytes of host memory can't be had: the machine itself has {left} bytes of memory left. Use"
            f" smaller devices, or end something"
        )


def _fdinfo(descriptor: int) -> str:
    try:
        return Path(f"/proc/self/fdinfo/{descriptor}").read_text(encoding="ascii")
    except FileNotFoundError:
        raise Unusable("/proc isn't mounted here, and only there the kernel says what a descriptor is") from None


def _kind(mode: int) -> str:
    kinds = {
        stat.S_IFREG: "another file",
        stat.S_IFIFO: "a pipe",
        stat.S_IFSOCK: "a socket",
        stat.S_IFDIR: "a directory",
    }
    return kinds.get(stat.S_IFMT(mode), "something else")


@contextlib.contextmanager
def _as_device_error(what: str, *, unusable: str | None = None, full: Path | None = None) -> Iterator[None]:
    """The kernel's no, with what it was said to, and what can be done."""
    try:
        yield
    except FileNotFoundError:
        raise
    except OSError as error:
        if full is not None and error.errno in _FULL:
            room = os.statvfs(full.parent)
            left, in_all = room.f_bavail * room.f_frsize, room.f_blocks * room.f_frsize
            raise DeviceError(
                f"{what}: the filesystem of {full.parent} is full, although the device isn't. {left} of {in_all} bytes"
                f" are left; see what else lies there, or enlarge it"
            ) from error
        if unusable is not None and error.errno in _NO_SUCH_CALL:
            raise Unusable(f"{what} ({error.strerror}): host memory needs {unusable}") from error
        raise DeviceError(f"{what}: {reason(error)}") from error
