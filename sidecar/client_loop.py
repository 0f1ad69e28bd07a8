"""Who turns a client's machine: a thread of its own, or a caller that waits.

A client has to see what comes over its connection while its program does something else: a thread does that. But a
caller that waits for an answer should not have to wait for another thread to be woken, too: it turns the loop itself,
in its own thread, and the thread doesn't hear of anything meanwhile. Only one of them turns at a time, so the machine
and the connection need no lock.

What this file may not do: know what the machine is, or what is on the connection. Who uses it: `lockserver/client.py`,
`gms/client.py`.
"""

import asyncio
import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

EventT = TypeVar("EventT")
_NEVER = float("inf")
_LATE_S = 0.0005
"""epoll counts whole milliseconds: better a little late than twice."""


class ClientLoop(Generic[EventT]):
    def __init__(self, name: str, feed: Callable[[EventT], None], deadline: Callable[[], float], tick: EventT) -> None:
        """`feed` takes one event, and `tick` when the time `deadline()` has come."""
        self._name = name
        self._feed = feed
        self._deadline = deadline
        self._tick = tick
        self._told: deque[EventT] = deque()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Wakes the thread though nothing has come: it is to look again until when it may sleep."""
        self._sleep = select.epoll()
        """What the thread sleeps in: deaf to `_epoll` while a caller turns the loop."""
        self._sleep.register(self._epoll.fileno(), select.EPOLLIN)
        self._sleep.register(self._nudge, select.EPOLLIN)
        self._sleeps_until = 0.0
        self._turn = threading.Condition()
        self._turning = False
        self._waiting = 0
        self._thread: threading.Thread | None = None
        self.closed = False
        self._listeners: set[Callable[[], None]] = set()

    # -- what it turns ---------------------------------------------------------------------------------------------

    def add(self, fd: int, handler: Callable[[int], None]) -> None:
        """`handler` is called with what epoll says of it. This and the next two: only by who turns the loop."""
        self._handlers[fd] = handler
        self._epoll.register(fd, select.EPOLLIN)

    def mind_writing(self, fd: int, writing: bool) -> None:
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if writing else select.EPOLLIN)

    def remove(self, fd: int) -> None:
        del self._handlers[fd]
        self._epoll.unregister(fd)

    # -- from any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run, name=self._name, daemon=True)
        self._thread.start()

    def tell(self, event: EventT) -> None:
        if not self.closed:
            self._told.append(event)
            os.eventfd_write(self._bell, 1)

    def wait(self, done: Callable[[], bool], timeout_s: float | None, first: EventT | None = None) -> bool:
        """Until something is so. `first` is told before. False if the time is over before it is so."""
        end = _NEVER if timeout_s is None else time.monotonic() + timeout_s
        with self._turn:
            if first is not None:
                self._told.append(first)
                os.eventfd_write(self._bell, 1)
            self._waiting += 1
            while self._turning and not done() and time.monotonic() < end:
                self._turn.wait(None if end == _NEVER else end - time.monotonic())
            self._waiting -= 1
            if self._turning:
                return done()
            self._turning = True
            self._sleep.modify(self._epoll.fileno(), 0)
        try:
            while not done():
                if time.monotonic() >= end:
                    return False
                self._step(end)
            return True
        finally:
            with self._turn:
                self._turning = False
                self._turn.notify_all()
                self._sleep.modify(self._epoll.fileno(), select.EPOLLIN)
                if self._deadline() < self._sleeps_until:
                    os.eventfd_write(self._nudge, 1)

    async def until(self, done: Callable[[], bool], look: Callable[[], object]) -> None:
        """The same for asyncio. `look` is called before each wait, and may raise."""
        loop, happened = asyncio.get_running_loop(), asyncio.Event()

        def listener() -> None:
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
                loop.call_soon_threadsafe(happened.set)

        self._listeners.add(listener)
        try:
            while not done():
                look()
                happened.clear()
                if not done():
                    await happened.wait()
        finally:
            self._listeners.discard(listener)

    def announce(self) -> None:
        """Something has happened that a caller may wait for. Said by who turns the loop."""
        for listener in tuple(self._listeners):
            listener()
        if self._waiting:
            with self._turn:
                self._turn.notify_all()

    def stop(self) -> bool:
        """Nobody turns it any more. False if somebody has stopped it before."""
        if self.closed:
            return False
        self.closed = True
        os.eventfd_write(self._nudge, 1)
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        return True

    def close(self) -> None:
        """After `stop`, and after everything that was added is removed."""
        self._sleep.close()
        self._epoll.close()
        os.close(self._bell)
        os.close(self._nudge)

    # -- turning ---------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        while not self.closed:
            with self._turn:
                while self._turning:
                    self._turn.wait()
                self._sleeps_until = until = self._deadline()
            for fd, _ in self._sleep.poll(None if until == _NEVER else max(until - time.monotonic(), 0.0) + _LATE_S):
                if fd == self._nudge:
                    os.eventfd_read(self._nudge)
            with self._turn:
                if self._turning:
                    continue
                self._turning = True
            try:
                self._step(0.0)
            finally:
                with self._turn:
                    self._turning = False
                    self._turn.notify_all()

    def _step(self, end: float) -> None:
        """Waits for something to happen, at most until `end`, and handles it."""
        until = min(self._deadline(), end)
        timeout_s = None if until == _NEVER else max(until - time.monotonic() + _LATE_S, 0.0)
        for fd, what in self._epoll.poll(0.0 if self._told else timeout_s):
            if fd == self._bell:
                os.eventfd_read(fd)
            else:
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler(what)
        while self._told:
            self._feed(self._told.popleft())
        if time.monotonic() >= self._deadline():
            self._feed(self._tick)
