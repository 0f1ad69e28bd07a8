"""A process that has to do with a pool, for tests: a line of JSON on standard input is an order, one is the answer."""

import itertools
import os
import select
import sys
import threading
from typing import Any

from gms.client import GmsClient, PoolMapping, PoolShape, table_header
from sidecar.kernel import io_uring
from tests.gms.program import main
from tests.support import late_reads

KEY = "kv-0"
RECORD_BYTES, HEADER_BYTES = 64, 64


class Engine:
    def __init__(self, run_dir: str, device: str, engine: str, unfiltered: str = "") -> None:
        if not unfiltered:
            io_uring.forbid()
        self.client = GmsClient(run_dir, device, engine, huge_pages=False, checksums=False)
        self.pool = self.client.pool(KEY)
        self.mapping: PoolMapping | None = None

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
        self.mapping.map()
        return [self.mapping.generation, self.mapping.adopted, self.mapping.why_empty]

    def fill(self, byte: int, records: int = 4) -> None:
        """Every range with a byte, and a table in which so many of eight records are true."""
        for number in range(len(self._mapped.shape.sizes)):
            memory = self._mapped.memory(number)
            memory[:] = bytes([byte]) * len(memory)
        table = self._mapped.table
        table[:32] = table_header(HEADER_BYTES, RECORD_BYTES, 8, 3)
        for record in range(8):
            table[HEADER_BYTES + record * RECORD_BYTES + 3] = 7 if record < records else 0

    def look(self) -> list[Any]:
        """Which bytes are in each range, and the table's first."""
        ranges = [sorted(set(bytes(self._mapped.memory(n)))) for n in range(len(self._mapped.shape.sizes))]
        return [ranges, bytes(self._mapped.table[:8]).decode("latin-1")]

    def scribble(self) -> None:
        """Writes for ever, in a thread: the first eight bytes of the first range count up."""
        memory = self._mapped.memory(0)

        def forever() -> None:
            for number in itertools.count(1):
                memory[:8] = number.to_bytes(8, "little")

        threading.Thread(target=forever, daemon=True).start()

    def reads_late(self, how: str, *paths: str) -> None:
        """Has reads of the file into the first range under way."""
        size = self._mapped.shape.sizes[0]
        getattr(late_reads, how)(paths[0], self._mapped.addresses[0], size, *paths[1:])

    def counter(self) -> int:
        return int.from_bytes(self._mapped.memory(0)[:8], "little")

    def disowned(self) -> str:
        return self._mapped.disowned

    def release(self) -> bool:
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
