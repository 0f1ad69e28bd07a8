"""Host devices as files: where they are, how one is made, and how it goes.

A host device `host:NAME` is the sparse file NAME in the devices' directory, as large as the device's capacity. Making
and removing one changes nothing that a process has: both first lock the whole file, which can't be had while a byte of
it is allocated.

What this file may not do: allocate. That is `host.py`; who has how much is `sidecar/kernel/host_usage.py`.
"""

import contextlib
import errno
import fcntl
import os
import secrets
import stat
import struct
from collections.abc import Callable
from pathlib import Path

from gms.memory import DeviceError
from sidecar.kernel import host_usage
from sidecar.kernel.durable import closing
from sidecar.kernel.path_watch import make_private_directory
from sidecar.terminal.settings import BadValue, size_bytes

GRANULARITY = 2 << 20
"""A huge page. Ranges, addresses and offsets are multiples of it, so that huge pages can be had."""

_FLOCK = struct.Struct("hhqqi4x")  # struct flock of 64-bit Linux; l_pid must be 0 for OFD locks
_TO_THE_END = 0
_UNITS = (("GiB", 1 << 30), ("MiB", 1 << 20))


def device_size(text: str) -> int:
    """A setting: how large a host device is. Raises BadValue."""
    size = size_bytes(text)
    if size <= 0 or size % GRANULARITY:
        near = size // GRANULARITY * GRANULARITY
        hint = f" (the next smaller one is {in_a_setting(near)})" if near else ""
        raise BadValue(f"{text!r} is no host device's size; allowed: multiples of 2MiB such as 512MiB or 4GiB{hint}")
    return size


def in_a_setting(size: int) -> str:
    """Exactly so much, as it may be given back."""
    return next((f"{size // unit}{name}" for name, unit in _UNITS if size % unit == 0), str(size))


def device_path(name: str, directory: Path | None = None) -> Path:
    """Names come from outside: they may name a file in the directory and nothing else."""
    if not name or name.startswith(".") or "/" in name or "\0" in name:
        raise DeviceError(f"{name!r} can't be the name of a host device: it is a file's name, without / or a dot first")
    return (directory or host_usage.devices_directory()) / name


def create_device(name: str, capacity: int, directory: Path | None = None) -> Path:
    """Makes the device, or finds it made. One that no process uses gets the new capacity."""
    path = device_path(name, directory)
    if capacity <= 0 or capacity % GRANULARITY:
        raise DeviceError(f"host:{name} can't have {capacity} bytes: it has to be a multiple of {GRANULARITY} (2 MiB)")
    _make_directory(path.parent)
    _check_room(path, capacity)
    while not _make_file(path, capacity):
        with contextlib.suppress(FileNotFoundError):  # removed since: then it is made after all
            _agree(path, capacity)
            break
    return path


def remove_device(
    name: str, directory: Path | None = None, just_before: Callable[[os.stat_result], None] = lambda _: None
) -> None:
    """Removes it with all its pages. Refused while a process has memory of it; one that isn't there is removed.
    `just_before`: what is to be done once all of it is locked, and no process can have memory of it any more. It comes
    first because a caller that is killed in between finds the device here, and can do all of it again.
    """
    path = device_path(name, directory)
    with contextlib.suppress(FileNotFoundError), closing(open_device(path)) as fd:
        if not try_lock(fd, 0, _TO_THE_END):
            raise DeviceError(f"host:{name} can't be removed: {_in_use(fd)} bytes of it are in use")
        if same_file(fd, path):
            just_before(os.fstat(fd))
            path.unlink()


def open_device(path: Path) -> int:
    """A description of the device's file that has no lock yet. Raises FileNotFoundError, or DeviceError if that is no
    host device."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise DeviceError(f"the host device {path} can't be opened: {reason(error)}") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise DeviceError(f"{path} is not a host device: it isn't a regular file")
    return fd


def try_lock(fd: int, start: int, length: int) -> bool:
    """A write lock on a range for this description. False: another description has part of it."""
    try:
        fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, start, length, 0))
    except (BlockingIOError, PermissionError):
        return False
    return True


def unlock(fd: int, start: int, length: int) -> None:
    fcntl.fcntl(fd, fcntl.F_OFD_SETLK, _FLOCK.pack(fcntl.F_UNLCK, os.SEEK_SET, start, length, 0))


def reason(error: OSError) -> str:
    """The kernel's, and what can be done where it's no secret."""
    if error.errno == errno.EMFILE:
        return "this process has as many descriptors as it may, and every handle is one (`ulimit -n`)"
    return error.strerror or str(error)


def same_file(fd: int, path: Path) -> bool:
    """The path still names this file. Asked after locking: a lock on a file that was removed is worth nothing."""
    try:
        named = os.stat(path, follow_symlinks=False)
    except (FileNotFoundError, NotADirectoryError):
        return False
    status = os.fstat(fd)
    return (named.st_dev, named.st_ino) == (status.st_dev, status.st_ino)


def _make_directory(directory: Path) -> None:
    """Only this user may make and remove files in it. /dev/shm is every user's: another may have been first."""
    try:
        make_private_directory(directory)
        status = directory.lstat()
    except FileExistsError:
        raise DeviceError(f"{directory} is to be the directory of the host devices and is none; remove it") from None
    except OSError as error:
        raise DeviceError(f"the directory of the host devices, {directory}, can't be made: {error.strerror}") from error
    if not stat.S_ISDIR(status.st_mode):
        raise DeviceError(f"{directory} is to be the directory of the host devices and is none; remove it")
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        advice = f"set {host_usage.ENVIRONMENT} to another"
        if directory.is_mount():  # a volume's mode and owner are its giver's: in Kubernetes 2777 and root's
            advice = f"it is a mount point: use a directory below it, such as {directory / 'host'}"
        raise DeviceError(
            f"the directory of the host devices, {directory}, has to be yours alone (mode 0700, uid {os.geteuid()}); it"
            f" has mode {stat.S_IMODE(status.st_mode):04o} and uid {status.st_uid}: {advice}"
        )


def _check_room(path: Path, capacity: int) -> None:
    """All devices together have to fit, even when they are full. What else lies there is found out when it counts."""
    room = os.statvfs(path.parent)
    in_all = room.f_blocks * room.f_frsize  # 0: a tmpfs without a limit
    others = sum(
        size for name, (_, size) in host_usage.read_devices(path.parent).items() if name != f"host:{path.name}"
    )
    if in_all and capacity + others > in_all:
        needed = capacity + others
        raise DeviceError(
            f"the host devices in {path.parent} would have {needed} bytes together, and the filesystem there has"
            f" {in_all}. Smaller devices, or enlarge it: `mount -o remount,size={needed} /dev/shm`, Docker's"
            f" --shm-size, in Kubernetes the sizeLimit of an emptyDir in memory"
        )


def _make_file(path: Path, capacity: int) -> bool:
    """False if there is such a file. It has its size before it has its name."""
    early = path.with_name(f".{path.name}.{os.getpid()}.{secrets.token_hex(4)}")
    try:
        fd = os.open(early, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            os.ftruncate(fd, capacity)
            os.link(early, path)
        finally:
            os.close(fd)
            early.unlink()
    except FileExistsError:
        return False
    except OSError as error:
        raise DeviceError(f"the host device {path} can't be made: {error.strerror}") from error
    return True


def _agree(path: Path, capacity: int) -> None:
    with closing(open_device(path)) as fd:
        has = os.fstat(fd).st_size
        if has == capacity:
            return
        if not try_lock(fd, 0, _TO_THE_END):
            raise DeviceError(
                f"host:{path.name} is {in_a_setting(has)} large, and {_in_use(fd)} bytes of it are in use: it can't"
                f" become {in_a_setting(capacity)} before no process has memory of it any more. Where that is another"
                f" pair's, give this pair a device of its own (--devices host:NAME); else take --capacity"
                f" {in_a_setting(has)}, or end the processes that have the memory (fuser -v {path})"
            )
        if not same_file(fd, path):
            raise FileNotFoundError(path)
        os.ftruncate(fd, capacity)


def _in_use(fd: int) -> int:
    return sum(stop - start for start, stop in host_usage.locks(fd, 0, os.fstat(fd).st_size))
