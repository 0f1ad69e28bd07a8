"""A loop: descriptors, and what is called when one is ready. One thread, no lock.

Everything that it calls must return soon: while one descriptor is seen to, all others wait.

A loop may be one of another's descriptors (`fileno`), ready when one of its own is.

What this file may not do: know what a descriptor is for. Connections: `connections.py`, processes: `processes.py`,
what turns round and round: `shell.py`, and `client_loop.py` for a client.
"""

import math
import os
import select
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import Generic, TypeVar

T = TypeVar("T")
_READ_WRITE = select.EPOLLIN | select.EPOLLOUT


class Loop:
    def __init__(self) -> None:
        self.stopping = ""
        """Why; empty while it goes on."""
        self.handlers: dict[int, Callable[[int], object]] = {}
        epoll = select.epoll()
        self.poll = epoll.poll
        """Sleeps in the kernel until something happens, or a time is over: (descriptor, what) of each."""
        self._epoll = epoll
        self.fileno = epoll.fileno

    def close(self) -> None:
        self._epoll.close()

    def add(self, fd: int, handler: Callable[[int], object], events: int = select.EPOLLIN) -> None:
        """From now on the handler is called, with what has happened, when this descriptor is ready. Raises OSError
        where the kernel has no memory for that (a cgroup at its limit).
        """
        self._epoll.register(fd, events)
        self.handlers[fd] = handler

    def remove(self, fd: int) -> None:
        """Before the descriptor is closed. Nothing happens for one that isn't here."""
        if self.handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def turn(self, timeout_s: float | None) -> bool:
        """Waits so long for something to happen, and sees to it. False: nothing has."""
        ready, handlers = self.poll(timeout_s), self.handlers
        for fd, what in ready:
            handler = handlers.get(fd)
            if handler is not None:  # else one before it has removed it
                handler(what)
        return bool(ready)

    def turn_until(self, at: float) -> bool:
        """The same until a time on the monotonic clock; one that has passed, or is infinite, is as good as any."""
        return self.turn(None if at == math.inf else max(at - time.monotonic(), 0.0))

    def also_when_writable(self, fd: int, wanted: bool) -> None:
        self._epoll.modify(fd, _READ_WRITE if wanted else select.EPOLLIN)

    def deliver(self, numbers: Iterable[signal.Signals], handler: Callable[[signal.Signals], None]) -> None:
        """From now on these signals are given to the handler, each as often as it came, between two calls of handlers
        and never inside one. To be called from the main thread, once in a process.
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

        self.add(reading, came)

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT end it, between two calls of handlers and never inside one."""

        def told(number: signal.Signals) -> None:
            self.stopping = number.name

        self.deliver((signal.SIGTERM, signal.SIGINT), told)


class Inbox(Generic[T]):
    """What other threads have for a loop. It is handled in the loop's own thread, in order."""

    def __init__(self, loop: Loop, handle: Callable[[T], object]) -> None:
        self._loop, self._handle = loop, handle
        self._given: deque[T] = deque()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        loop.add(self._bell, self._on_bell)

    def give(self, what: T) -> None:
        """From any thread."""
        self._given.append(what)
        os.eventfd_write(self._bell, 1)

    def close(self) -> None:
        """The loop hears nothing more. The bell stays open: another thread may ring it."""
        self._loop.remove(self._bell)

    def silence(self) -> None:
        """Closes the bell: no thread rings it any more."""
        os.close(self._bell)

    def _on_bell(self, _: int) -> None:
        os.eventfd_read(self._bell)
        while self._given:
            self._handle(self._given.popleft())


class Aside:
    """Work that may hang (a driver, /proc of a process that hangs itself), in a thread of its own, one piece after the
    other; what comes of it is heard in the loop.
    """

    def __init__(self, loop: Loop, name: str) -> None:
        self._work: SimpleQueue[Callable[[], Callable[[], None]] | None] = SimpleQueue()
        self._loop = loop
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._done: Inbox[Callable[[], None]]

    def do(self, work: Callable[[], T], came: Callable[[T], None]) -> None:
        """`work` is done in the thread, and must not raise; `came` is called in the loop with what it returned."""
        if self._thread.ident is None:
            self._done = Inbox(self._loop, lambda done: done())
            self._thread.start()

        def done() -> Callable[[], None]:
            result = work()
            return lambda: came(result)

        self._work.put(done)

    def end(self) -> None:
        """For a loop that ends before its process: once the work is done that is under way."""
        if self._thread.ident is not None:
            self._done.close()
            self._work.put(None)

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            self._done.give(work())
        self._done.silence()
