"""A program that uses the weights, for tests: a line of JSON on standard input is an order, a line is the answer."""

import ctypes
import json
import sys
import time
from typing import Any

from gms.client import GmsClient, Reader, Writer
from gms.memory import libc
from tests.gms.live import plain_layout
from tests.support import late_reads


class Engine:
    def __init__(self, run_dir: str, device: str, engine: str) -> None:
        self.losses: list[str] = []
        self.client = GmsClient(
            run_dir,
            device,
            engine,
            on_lost=self.losses.append,
            huge_pages=False,
            checksums=False,
        )
        self.writer: Writer | None = None
        self.reader: Reader | None = None

    def write(self, timeout_s: float | None = None) -> int:
        self.writer = self.client.write(timeout_s)
        return self.writer.generation

    def replace(self, size: int, timeout_s: float | None = None) -> int:
        self.writer = self.client.replace(size, timeout_s)
        return self.writer.generation

    def write_or_read(self, timeout_s: float | None = None) -> str:
        got = self.client.write_or_read(timeout_s)
        if isinstance(got, Writer):
            self.writer = got
            return "writes"
        self.reader = got
        return "reads"

    def create(self, size: int, fill: int = 0) -> int:
        writer = self._writing()
        slab = writer.create(size)
        if fill:
            writer.memory(slab)[:] = bytes([fill]) * writer.sizes[slab]
        return slab

    def reads_late(self, path: str, witness: str) -> None:
        """Has reads of the file into the first slab under way, by io_uring."""
        writer = self._writing()
        address = ctypes.addressof(ctypes.c_char.from_buffer(writer.memory(0)))
        late_reads.io_uring(path, address, writer.sizes[0], witness)

    def collapse(self) -> None:
        writer = self._writing()
        libc.collapse(ctypes.addressof(ctypes.c_char.from_buffer(writer.memory(0))), writer.sizes[0])

    def looks(self) -> list[int]:
        """Which bytes are in the first slab."""
        return sorted(set(bytes(self._writing().memory(0))))

    def commit(self, name: str = "w") -> list[Any]:
        writer = self._writing()
        self.reader = writer.commit(plain_layout(tuple(writer.sizes), name))
        self.writer = None
        return [self.reader.generation, self.reader.hash]

    def read(self, timeout_s: float | None = None) -> list[Any]:
        self.reader = self.client.read(timeout_s)
        return [self.reader.generation, self.reader.hash]

    def sleep(self) -> None:
        self._reading().sleep()

    def wake(self, timeout_s: float = 20) -> list[Any]:
        reader = self._reading()
        reader.wake(timeout_s)
        return [reader.generation, reader.hash]

    def close(self) -> None:
        self._reading().close()

    def byte(self, slab: int, offset: int) -> int:
        return self._reading().memory(slab)[offset]

    def poke(self) -> None:
        """A write through a reader's mapping."""
        ctypes.c_ubyte.from_address(self._reading().address(0)).value = 1

    def lost(self) -> list[str]:
        return self.losses

    def sessions(self, count: int) -> None:
        for _ in range(count):
            with self.client.read(20):
                pass

    def naps(self, count: int) -> float:
        reader, began = self._reading(), time.monotonic()
        for _ in range(count):
            reader.sleep()
            reader.wake(20)
        return time.monotonic() - began

    def _writing(self) -> Writer:
        assert self.writer is not None
        return self.writer

    def _reading(self) -> Reader:
        assert self.reader is not None
        return self.reader


def main(engine: object) -> None:
    """Does what each line of the input says: a method of `engine`, and its arguments."""
    for line in sys.stdin:
        verb, *arguments = json.loads(line)
        try:
            said = {"said": getattr(engine, verb)(*arguments)}
        except Exception as error:  # the test judges it
            said = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps(said), flush=True)


if __name__ == "__main__":
    main(Engine(*sys.argv[1:]))
