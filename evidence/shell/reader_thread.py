"""Reads the devices' memory in a thread of its own: a driver may hang, and a server must not.

What this file may not do: decide what a late reading is worth (`evidence/rules/free_memory.py`).
"""

from collections.abc import Callable

from evidence.rules.events import MemoryRead
from evidence.shell.memory import Reader
from sidecar.machine.loop import Aside, Loop


class ReaderThread:
    def __init__(self, reader: Reader, loop: Loop, came: Callable[[MemoryRead], None]) -> None:
        """`came` is called in the loop, once for each `ask`, when the driver has answered."""
        self._reader = reader
        self._came = came
        self._aside = Aside(loop, "memory-reader")

    def ask(self) -> None:
        self._aside.do(self._read, self._came)

    def end(self) -> None:
        self._aside.end()

    def _read(self) -> MemoryRead:
        try:
            return MemoryRead(self._reader())
        except Exception as error:  # a driver's reader may raise anything; that it can't be read is the answer
            return MemoryRead({}, problem=f"{type(error).__name__}: {error}"[:500])
