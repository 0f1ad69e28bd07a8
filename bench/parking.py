"""Weights parked in host memory and brought back, beside a plain copy of as many bytes into fresh memory of the host.

The floor is a `memmove` into a new memfd whose pages are made first, as those of a host device and of parked weights
are: on a host device both sides of the way are such memory. In turns, in one process. What a park does besides: it sums
up the contents. Both do all that a `gmsctl park` and an engine's wake do with the server, and wait until the memory
that was left is seen to be free.
"""

import ctypes
import mmap
import os
import time
from collections.abc import Iterator
from pathlib import Path

from bench.figures import Comparison, Result
from bench.stage import DEADLINE_S, directory
from bench.weights import Stage
from gms.client import Layout, Tensor
from gms.memory import libc
from gms.memory.host_device import GRANULARITY
from gms.shell import tables
from gms.shell.slabs import buffer

SHARE = 0.8
"""Of the speed of the copy, at least."""


def measure(tmpfs: Path, size: int, rounds: int) -> Iterator[Result]:
    parks = Comparison(f"park {size >> 20} MiB", "memmove")
    unparks = Comparison(f"bring back {size >> 20} MiB at a wake", "memmove", 1 / SHARE)
    with directory(tmpfs) as path:
        stage = Stage(path, size + 64 * GRANULARITY)
        try:
            stage.ready()
            engine, parker = stage.client("engine"), stage.client("parker")
            with engine.write(DEADLINE_S) as writer:
                writer.memory(writer.create(size))[:] = os.urandom(1 << 20) * (size >> 20)
                reader = writer.commit(Layout((size,), (Tensor("w", 0, 0, (size,), (1,), "uint8"),)))

            def park() -> int:
                reader.sleep()
                began = time.perf_counter_ns()
                parker.park(DEADLINE_S)
                return time.perf_counter_ns() - began

            def wake() -> int:
                began = time.perf_counter_ns()
                reader.wake(DEADLINE_S)
                return time.perf_counter_ns() - began

            for number in range(rounds + 1):
                copied = _copy(reader.address(0), size)
                parks.add(copied, park(), keep=number > 0)
                unparks.add(copied, wake(), keep=number > 0)
            yield parks
            yield unparks
        finally:
            stage.close()


def _copy(address: int, size: int) -> int:
    """To a new memfd. Nanoseconds."""
    descriptor = tables.create(size, filled=False)
    began = time.perf_counter_ns()
    libc.allocate(descriptor, 0, size)
    with mmap.mmap(descriptor, size) as whole:
        target = ctypes.addressof(ctypes.c_char.from_buffer(whole))
        ctypes.memmove(target, ctypes.addressof(ctypes.c_char.from_buffer(buffer(address, size))), size)
        took = time.perf_counter_ns() - began
    os.close(descriptor)
    return took
