"""Signals as events of a loop: they come between two calls of its handlers, and never inside one.

What this file may not do: know what a signal means to the program.
"""

import os
import signal
from collections.abc import Callable, Iterable

from sidecar.machine.loop import Loop


def deliver(loop: Loop, numbers: Iterable[signal.Signals], handler: Callable[[signal.Signals], None]) -> None:
    """From now on these signals are given to the handler, each as often as it came. To be called from the main thread,
    once in a process.
    """
    reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
    signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
    wanted = set(numbers)
    for number in wanted:
        signal.signal(number, lambda *_: None)

    def came(_: int) -> None:
        for number in os.read(reading, 512):
            if number in wanted:
                handler(signal.Signals(number))

    loop.add(reading, came)
