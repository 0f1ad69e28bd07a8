"""A device on a tmpfs that fills up, in a mount namespace of its own: run by test_host.py under `unshare`.

Argument: a directory to mount over. A creator has looked how much is left just before another took it, which is
played here by an answer from statvfs that is out of date.
"""

import os
import subprocess
import sys
from pathlib import Path

from gms.memory import DeviceError, OutOfMemory, libc
from gms.memory.host import HostMemory
from gms.memory.host_device import GRANULARITY, create_device


def main(directory: Path) -> None:
    mount = ["mount", "-t", "tmpfs", "-o", f"size={8 * GRANULARITY}", "none", str(directory)]
    if subprocess.run(mount).returncode:
        sys.exit(77)
    libc._PIECE_BYTES = GRANULARITY  # so that it fills up between two pieces: the kernel takes back only the last
    device = create_device("0", 8 * GRANULARITY, directory / "devices")
    memory = HostMemory("0", directory / "devices")
    other = directory / "other"
    with other.open("wb") as file:
        os.posix_fallocate(file.fileno(), 0, 4 * GRANULARITY)

    early = os.fstatvfs(memory._probe)
    for true_figures in (True, False):
        if not true_figures:
            os.fstatvfs = lambda _: os.statvfs_result(
                (*early[:2], early.f_blocks, early.f_blocks, early.f_blocks, *early[5:])
            )
        try:
            memory.create(6 * GRANULARITY)
        except OutOfMemory:
            sys.exit("the device has as much as that: waiting for others to give some back would be in vain")
        except DeviceError as error:
            if str(directory) not in str(error) or "full" not in str(error):
                raise
        else:
            sys.exit("more was given than there is")
        if memory.free() != 8 * GRANULARITY or device.stat().st_blocks:
            sys.exit(f"it kept something: {memory.free()} bytes are free, {device.stat().st_blocks} blocks are used")

    other.unlink()
    memory.create(8 * GRANULARITY)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
