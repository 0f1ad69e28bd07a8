"""Who runs a client's machine: a thread of its own, or a caller that waits.

A client has to see what comes over its connection while its program does something else: a thread does that. But a
caller that waits for an answer should not have to wait for another thread to be woken, too: it runs the loop itself,
in its own thread, and the client's thread sleeps meanwhile. Only one of them runs it at a time (it "has the turn"), so
the machine and the connection need no lock.

Nothing may leave a client deaf. Python runs signal handlers in the main thread, between any two instructions, and what
a handler raises can end a caller's turn anywhere, even between two lines of a `finally`. So:

* A turn that was cut short is noticed by the next one who takes it (`_whole`): `torn` is called first, which makes
  the connection anew.
* A turn that was never given back is noticed, too: nobody whose stack contains `wait` of this loop has it any more.
* What a handler raises in the client's own thread is told in a line on stderr, and counts as a turn cut short.
* Where the program has closed the loop's own descriptors, nothing can be heard any more: `broken` is called.

What this file may not do: know what the machine is, or what is on the connection. Who uses it:
`lockserver/session.py`, `gms/client_shell.py`, `gms/pool_client.py`.
"""

import contextlib
import os
import select
import sys
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable
from types import FrameType
from typing import Generic, TypeVar

from sidecar.logs import complain

EventT = TypeVar("EventT")
_NEVER = float("inf")
_LATE_S = 0.0005
"""epoll counts whole milliseconds: better a little late than twice."""
_PAUSE_S = 0.01
LOOK_S = 1.0
"""How often the thread looks whether a caller that has the turn is still there."""


class CannotWait(RuntimeError):
    """Here nobody can wait: in a forked child, or in a callback or signal handler of a thread that waits already."""


class ClientLoop(Generic[EventT]):
    def __init__(
        self,
        name: str,
        feed: Callable[[EventT], None],
        deadline: Callable[[], float],
        tick: EventT,
        torn: Callable[[], None] = lambda: None,
        broken: Callable[[], None] = lambda: None,
    ) -> None:
        """`feed` takes one event, and `tick` when the time `deadline()` has come. `torn`: a turn was cut short, and
        whatever it was doing may be half done. `broken`: the client's thread can't go on.
        """
        self._name = name
        self._feed = feed
        self._deadline = deadline
        self._tick = tick
        self._torn = torn
        self._broken = broken
        self._pid = os.getpid()
        self._told: deque[EventT] = deque()
        self._handlers: dict[int, Callable[[int], None]] = {}
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._epoll = select.epoll()
        self._epoll.register(self._bell, select.EPOLLIN)
        self._nudge = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        """Wakes the thread though nothing has come: it is to look again until when it may sleep."""
        self._sleep = select.epoll()
        """What the thread sleeps in: deaf to `_epoll` while a caller has the turn."""
        self._sleep.register(self._epoll.fileno(), select.EPOLLIN)
        self._sleep.register(self._nudge, select.EPOLLIN)
        self._sleeps_until = 0.0
        self._turn = threading.Lock()
        self._whole = True
        """The last turn came to its end."""
        self._waiting: deque[_Waiter] = deque()
        """Callers that sleep while somebody else has the turn."""
        self._thread: threading.Thread | None = None
        self.closed = False

    @property
    def forked(self) -> bool:
        """This is a child of the process that the loop belongs to: it shares descriptors with it, and must not touch
        what they stand for.
        """
        return os.getpid() != self._pid

    # -- what it watches -------------------------------------------------------------------------------------------

    def add(self, fd: int, handler: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        """`handler` is called with what epoll says of it. This and the next two: only by who has the turn."""
        self._handlers[fd] = handler
        self._epoll.register(fd, events)

    def mind_writing(self, fd: int, writing: bool) -> None:
        self._epoll.modify(fd, select.EPOLLIN | select.EPOLLOUT if writing else select.EPOLLIN)

    def remove(self, fd: int) -> None:
        """Before it is closed. A forked child shares the parent's epoll, and leaves it alone."""
        if self._handlers.pop(fd, None) is not None and not self.forked:
            with contextlib.suppress(OSError):  # a torn turn may have closed it before
                self._epoll.unregister(fd)

    # -- from any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        self._thread = threading.Thread(target=self._run_while_it_can, name=self._name, daemon=True)
        self._thread.start()

    def tell(self, event: EventT) -> None:
        if not self.closed and not self.forked:
            self._told.append(event)
            os.eventfd_write(self._bell, 1)

    def wait(self, done: Callable[[], bool], timeout_s: float | None, first: EventT | None = None) -> bool:
        """Until something is so. `first` is told before. False if the time is over before it is so."""
        end = _NEVER if timeout_s is None else time.monotonic() + timeout_s
        if self.forked:
            raise CannotWait("this process was forked from the client's: it has to make a client of its own")
        caller = sys._getframe().f_back
        if _is_in(caller, ClientLoop.wait, self) or _is_in(caller, ClientLoop._step, self):
            raise CannotWait("this thread waits already: a callback or a signal handler of it can't")
        if first is not None:
            self.tell(first)
        while not done():
            mine = _Waiter()
            self._waiting.append(mine)
            left = end - time.monotonic()
            if left <= 0 or self.closed:
                return done()
            if self._turn.acquire(blocking=False):
                return self._have_turn(done, end)
            if not self._turn_is_lost() and not done():
                mine.sleep(min(left, LOOK_S))
        return True

    def announce(self) -> None:
        """Something has happened that a caller may wait for. Said by who has the turn."""
        while self._waiting:
            self._waiting.popleft().wake()

    def stop(self) -> bool:
        """Nobody runs it any more. False if somebody has stopped it before."""
        if self.closed:
            return False
        self.closed = True
        if not self.forked:
            os.eventfd_write(self._nudge, 1)
            os.eventfd_write(self._bell, 1)
            if self._thread is not None and self._thread is not threading.current_thread():
                self._thread.join()
        return True

    def close(self) -> None:
        """After `stop`, and after everything that was added is removed."""
        self._sleep.close()
        self._epoll.close()
        os.close(self._bell)
        os.close(self._nudge)

    # -- turns -----------------------------------------------------------------------------------------------------

    def _have_turn(self, done: Callable[[], bool], end: float) -> bool:
        """A caller's turn: until what it waits for is so."""
        try:
            self._sleep.modify(self._epoll.fileno(), 0)
            while not done() and not self.closed:
                if time.monotonic() >= end:
                    return False
                self._step(end)
            return done()
        finally:
            self._end_turn()

    def _end_turn(self) -> None:
        self._sleep.modify(self._epoll.fileno(), select.EPOLLIN)
        self._turn.release()
        if not self._whole or self._deadline() < self._sleeps_until:
            os.eventfd_write(self._nudge, 1)
        self.announce()

    def _run_while_it_can(self) -> None:
        """The client's own thread."""
        try:
            self._run()
        except OSError as error:  # not of a handler: what this thread sleeps in isn't there any more
            if not self.closed:
                complain(f"{self._name}: its descriptors were closed, and it hears nothing any more: {error}")
                self._broken()

    def _run(self) -> None:
        pause_s = 0.0
        while not self.closed:
            self._doze()
            if not self._turn.acquire(blocking=False):
                self._turn_is_lost()
                continue
            try:
                self._step(0.0)
                pause_s = 0.0
            except Exception:  # whatever a handler of ours or of the program raised: this thread goes on
                pause_s = min(max(_PAUSE_S, 2 * pause_s), LOOK_S)
                self._say_unexpected()
                if self._told:
                    self._told.popleft()  # if this is what it can't bear, it must not come again for ever
            finally:
                self._end_turn()
            if pause_s:  # what goes wrong each time fills neither a processor nor a log
                time.sleep(pause_s)

    def _doze(self) -> None:
        """Until something happens, or is due. While a caller has the turn: until it is time to look after it."""
        if self._turn.locked():
            self._sleeps_until, timeout_s = _NEVER, LOOK_S
        else:
            self._sleeps_until = until = self._deadline() if self._whole else 0.0
            timeout_s = max(until - time.monotonic(), 0.0) + _LATE_S
        for fd, _ in self._sleep.poll(None if timeout_s == _NEVER else timeout_s):
            if fd == self._nudge:
                os.eventfd_read(self._nudge)

    def _step(self, end: float) -> None:
        """Waits for something to happen, at most until `end`, and handles it."""
        if not self._whole:
            self._torn()
            self._whole = True
        until = min(self._deadline(), end)
        timeout_s = None if until == _NEVER else max(until - time.monotonic() + _LATE_S, 0.0)
        ready = self._epoll.poll(0.0 if self._told else timeout_s)
        self._whole = False
        for fd, what in ready:
            if fd == self._bell:
                os.eventfd_read(fd)
            else:
                handler = self._handlers.get(fd)
                if handler is not None:
                    handler(what)
        while self._told:
            self._feed(self._told[0])  # taken away after that: a turn that is cut short loses nothing that was told
            self._told.popleft()
        if time.monotonic() >= self._deadline():
            self._feed(self._tick)
        self._whole = True

    def _say_unexpected(self) -> None:
        complain(f"{self._name}: unexpected, and the connection is made anew:\n{traceback.format_exc()}")

    # -- a turn that was lost --------------------------------------------------------------------------------------

    def _turn_is_lost(self) -> bool:
        """Somebody took the turn, and an exception ended it before it was given back. It is given back then."""
        if not self._turn.locked():
            return False
        here, own = threading.get_ident(), self._thread.ident if self._thread is not None else None
        for ident, frame in sys._current_frames().items():
            if ident == here:
                continue
            if ident == own and not _is_in(frame, ClientLoop._doze, self):
                return False
            if _is_in(frame, ClientLoop.wait, self) and not _is_in(frame, _Waiter.sleep):
                return False
        self._whole = False
        with contextlib.suppress(RuntimeError):  # it was given back at this very moment
            self._turn.release()
        return True


def _is_in(frame: FrameType | None, function: Callable[..., object], of: object = None) -> bool:
    """This stack is in a call of the function (of that object)."""
    code = function.__code__
    while frame is not None:
        if frame.f_code is code and (of is None or frame.f_locals.get("self") is of):
            return True
        frame = frame.f_back
    return False


class _Waiter:
    """A caller that sleeps until somebody announces something."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=timeout_s)

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake
            self._lock.release()
