"""Reads the devices' memory in a thread of its own: a driver may hang, and the lock server must not.

What this file may not do: decide what a late reading is worth (`free_memory.py`).
"""

import os
import threading
from collections import deque
from collections.abc import Callable

from lockserver.events import MemoryRead
from lockserver.memory import Reader
from sidecar.loop import Loop


class ReaderThread:
    def __init__(self, reader: Reader, loop: Loop, came: Callable[[MemoryRead], None]) -> None:
        """`came` is called in the loop, once for each `ask`, when the driver has answered."""
        self._reader = reader
        self._came = came
        self._asked = threading.Semaphore(0)
        self._answers: deque[MemoryRead] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.add(self._bell, self._on_bell)
        threading.Thread(target=self._run, name="memory-reader", daemon=True).start()

    def ask(self) -> None:
        self._asked.release()

    def _run(self) -> None:
        while True:
            self._asked.acquire()
            try:
                answer = MemoryRead(self._reader())
            except Exception as error:  # a driver's reader may raise anything; that it can't be read is the answer
                answer = MemoryRead({}, problem=f"{type(error).__name__}: {error}"[:500])
            self._answers.append(answer)
            os.eventfd_write(self._bell, 1)

    def _on_bell(self, _: int) -> None:
        os.eventfd_read(self._bell)
        while self._answers:
            self._came(self._answers.popleft())
