"""How much of a host device is in use: read from its locks, so that the kernel keeps the books. And what the machine
has left.

A host device stands in for a GPU's memory where there is none: one sparse file of the device's capacity on tmpfs. An
allocation is an open file description that holds an OFD write lock on its range; when the last descriptor and the
last mapping of it are gone, in whatever process and however they ended, the range is free. So the sum of the locked
ranges is what is in use.

What this file may not do: take a lock, create a device, or know what allocates. `host:NAME` is the file NAME in the
devices' directory.
"""

import fcntl
import os
import re
import struct
from pathlib import Path

from sidecar.kernel.durable import closing

ENVIRONMENT = "FAILOVER_HOST_DEVICES"
_FLOCK = struct.Struct("hhqqi4x")
_MEMINFO = re.compile(r"^(\w+): +(\d+) kB$", re.MULTILINE)


def devices_directory() -> Path:
    """Where the host devices of this user are; not in the run directory, which may go while memory is in use."""
    return Path(os.environ.get(ENVIRONMENT) or f"/dev/shm/gpu-failover-{os.getuid()}")


def memory_left(*kinds: str) -> int | None:
    """Bytes of those kinds, as /proc/meminfo names them (`MemAvailable`). None: the kernel doesn't say."""
    try:
        figures = dict(_MEMINFO.findall(Path("/proc/meminfo").read_text(encoding="ascii")))
    except FileNotFoundError:
        return None
    return sum(int(figures.get(kind, 0)) << 10 for kind in kinds) if "MemAvailable" in figures else None


def read_device(path: Path) -> tuple[int, int]:
    """Bytes free, and bytes in all."""
    with closing(os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as fd:
        in_all = os.fstat(fd).st_size
        return in_all - sum(stop - start for start, stop in locks(fd, 0, in_all)), in_all


def locks(fd: int, at: int, end: int) -> list[tuple[int, int]]:
    """The ranges between the two that other descriptions than this one have locked: (start, stop), in order. The
    kernel names any one lock in a range, so both its sides are asked again.
    """
    spans, found = [(at, end)], []
    while spans:
        at, end = spans.pop()
        ask = _FLOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, at, end - at, 0)
        kind, _, start, length, _ = _FLOCK.unpack(fcntl.fcntl(fd, fcntl.F_OFD_GETLK, ask))
        if kind == fcntl.F_UNLCK:
            continue
        start, stop = max(start, at), min(start + length, end) if length else end
        found.append((start, stop))
        spans += [span for span in ((at, start), (stop, end)) if span[0] < span[1]]
    return sorted(found)


def read_devices(directory: Path) -> dict[str, tuple[int, int]]:
    """Every host device: name -> (bytes free, bytes in all)."""
    try:
        names = sorted(
            entry.name for entry in os.scandir(directory) if entry.is_file() and not entry.name.startswith(".")
        )
    except FileNotFoundError:
        return {}
    devices = {}
    for name in names:
        try:
            devices[f"host:{name}"] = read_device(directory / name)
        except FileNotFoundError:
            continue  # removed since the listing
    return devices
