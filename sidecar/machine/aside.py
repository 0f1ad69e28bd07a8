"""Work that may hang (a driver, /proc of a process that hangs itself), in a thread of its own, one piece after the
other; what comes of it is heard in the loop.

What this file may not do: know what the work is, or for how long its answer is worth something.
"""

import threading
from collections.abc import Callable
from queue import SimpleQueue
from typing import TypeVar

from sidecar.machine.loop import Inbox, Loop

T = TypeVar("T")


class Aside:
    def __init__(self, loop: Loop, name: str) -> None:
        self._work: SimpleQueue[Callable[[], Callable[[], None]]] = SimpleQueue()
        self._done: Inbox[Callable[[], None]] = Inbox(loop, lambda done: done())
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)

    def do(self, work: Callable[[], T], came: Callable[[T], None]) -> None:
        """`work` is done in the thread, and must not raise; `came` is called in the loop with what it returned."""
        if self._thread.ident is None:
            self._thread.start()

        def done() -> Callable[[], None]:
            result = work()
            return lambda: came(result)

        self._work.put(done)

    def _run(self) -> None:
        while True:
            self._done.give(self._work.get()())
