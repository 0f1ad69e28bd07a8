"""A process that has to do with a pool, for tests: a line of JSON on standard input is an order, one is the answer."""

import ctypes
import itertools
import os
import select
import sys
import threading
from typing import Any

from gms.client import GmsClient, Memory, PoolMapping, PoolShape, table_header
from gms.shell.slabs import buffer
from sidecar.kernel import io_uring
from tests.gms.program import main
from tests.support import late_reads

KEY = "kv-0"
RECORD_BYTES, HEADER_BYTES = 64, 64


def mapped(memory: Memory, mapping: PoolMapping) -> list[memoryview]:
    """All of it, writable, at addresses of its own choice: one for each size."""
    places = [(memory.reserve(size), size) for size in mapping.shape.sizes]
    for (address, size), handle in zip(places, mapping.handles, strict=True):
        memory.map(address, handle, size=size, writable=True)
    return [buffer(*place) for place in places]


def unmap(memory: Memory, ranges: list[memoryview]) -> None:
    for each in ranges:
        memory.unmap(address_of(each), len(each))


def address_of(memory: memoryview) -> int:
    return ctypes.addressof(ctypes.c_ubyte.from_buffer(memory))


class Engine:
    def __init__(self, run_dir: str, device: str, engine: str, unfiltered: str = "") -> None:
        if not unfiltered:
            io_uring.forbid()
        self.client = GmsClient(run_dir, device, engine, huge_pages=False, checksums=False)
        self.pool = self.client.pool(KEY)
        self.mapping: PoolMapping | None = None
        self.ranges: list[memoryview] = []

    def sees(self) -> list[Any]:
        """Generation, and owner."""
        assert self.pool.await_server(20)
        there = self.pool.there
        return [there.generation, there.owner] if there is not None else [0, ""]

    def claim(
        self, shape: list[Any], token: int, proven: bool = True, replace: bool = False, s: float = 10
    ) -> list[Any]:
        wanted = PoolShape(shape[0], tuple(shape[1]), shape[2])
        self.mapping = self.pool.claim(wanted, token=token, proven=proven, replace=replace, timeout_s=s)
        self.ranges = mapped(self.client.memory, self.mapping)
        return [self.mapping.generation, self.mapping.adopted, self.mapping.why_empty]

    def fill(self, byte: int, records: int = 4) -> None:
        """Every range with a byte, and a table in which so many of eight records are true."""
        for memory in self.ranges:
            memory[:] = bytes([byte]) * len(memory)
        table = self._mapped.table
        table[:32] = table_header(HEADER_BYTES, RECORD_BYTES, 8, 3)
        for record in range(8):
            table[HEADER_BYTES + record * RECORD_BYTES + 3] = 7 if record < records else 0

    def look(self) -> list[Any]:
        """Which bytes are in each range, and the table's first."""
        return [[sorted(set(bytes(memory))) for memory in self.ranges], bytes(self._mapped.table[:8]).decode("latin-1")]

    def scribble(self) -> None:
        """Writes for ever, in a thread: the first eight bytes of the first range count up."""
        memory = self.ranges[0]

        def forever() -> None:
            for number in itertools.count(1):
                memory[:8] = number.to_bytes(8, "little")

        threading.Thread(target=forever, daemon=True).start()

    def reads_late(self, how: str, *paths: str) -> None:
        """Has reads of the file into the first range under way."""
        getattr(late_reads, how)(paths[0], address_of(self.ranges[0]), len(self.ranges[0]), *paths[1:])

    def counter(self) -> int:
        return int.from_bytes(self.ranges[0][:8], "little")

    def release(self) -> bool:
        unmap(self.client.memory, self.ranges)
        released = self._mapped.release()
        self.mapping = None
        return released

    def incarnation(self) -> str:
        return self.pool.incarnation

    def fork(self) -> int:
        """A child that lives on, with everything that it inherits, until the test is over."""
        child = os.fork()
        if child == 0:
            over = select.poll()
            over.register(0, 0)  # only that no process can write there any more
            over.poll()
            os._exit(0)
        return child

    @property
    def _mapped(self) -> PoolMapping:
        assert self.mapping is not None
        return self.mapping


if __name__ == "__main__":
    main(Engine(*sys.argv[1:]))
