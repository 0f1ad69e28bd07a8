"""The thread that owns a client: it alone runs the client's machine and touches what the client has.

A client has to see what comes over its connection while its program does something else, so it has a thread. What a
caller wants is posted to that thread, and the caller sleeps until the thread says that something has happened. So the
machine and the connection need no lock, and no caller can leave them half done.

Nothing may leave a client deaf:

* Python runs signal handlers in the main thread, between any two instructions, and what a handler raises ends a
  caller's wait anywhere. A waiting caller sleeps on a lock of its own, so nothing that the thread needs stays locked.
* What a handler raises in the thread itself is told in a line on stderr, and `unexpected` is called: something was
  left undone. What goes wrong each time pauses longer and longer, and fills neither a processor nor a log.
* Where the program has closed the loop's own descriptors, nothing can be heard any more: `deaf` is called.

What this file may not do: know what the machine is, or what is on the connection. Used by `client_shell.py`.
"""

import contextlib
import os
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable

from sidecar.machine.loop import Loop
from sidecar.terminal.logs import complain

_NEVER = float("inf")
_PAUSE_S = 0.01
MOST_PAUSE_S = 1.0
CLOSE_S = 5.0
"""How long `close` waits for the thread. A callback of the program that hangs may keep it for longer."""


class ClientLoop(Loop):
    def __init__(
        self,
        name: str,
        error: type[Exception],
        *,
        deadline: Callable[[], float] = lambda: _NEVER,
        due: Callable[[], None] = lambda: None,
        unexpected: Callable[[], None] = lambda: None,
        deaf: Callable[[], None] = lambda: None,
        let_go: Callable[[], None] = lambda: None,
    ) -> None:
        """`error` is raised where a caller can't wait. All others are called in the thread: `due` when the time
        `deadline()` has come; `unexpected` after something was left undone; `deaf` when nothing can be heard any more;
        `let_go` when it ends, once.
        """
        super().__init__()
        self._name = name
        self._error = error
        self._deadline, self._due = deadline, due
        self._unexpected, self._deaf, self._let_go = unexpected, deaf, let_go
        self._pid = os.getpid()
        self._posted: deque[Callable[[], object]] = deque()
        self._bell: _Bell | None = _Bell()
        bell = self._bell.fd
        self.add(bell, lambda _: os.eventfd_read(bell))
        self._waiting: deque[_Waiter] = deque()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._undone = False
        """Something has raised what was not expected."""
        self.closed = False

    @property
    def forked(self) -> bool:
        """This is a child of the process that the loop belongs to: it shares descriptors with it, and must not touch
        what they stand for.
        """
        return os.getpid() != self._pid

    # -- what it watches is changed by the thread, or before it has started ----------------------------------------

    def remove(self, fd: int) -> None:
        """A forked child shares the parent's epoll, and leaves it alone."""
        if self.forked:
            self.handlers.pop(fd, None)
            return
        with contextlib.suppress(OSError):  # the program may have closed it
            super().remove(fd)

    def announce(self) -> None:
        """Something has happened that a caller may wait for."""
        while self._waiting:
            self._waiting.popleft().wake()

    # -- from any thread -------------------------------------------------------------------------------------------

    def start(self) -> None:
        if self._thread.ident is None:
            self._thread.start()

    def post(self, work: Callable[[], object]) -> None:
        """The thread does it next."""
        if not self.closed and not self.forked:
            self._posted.append(work)
            self._ring()

    def check_caller(self) -> None:
        """Raises the error if this process or thread can't wait."""
        if self.forked:
            raise self._error("this process was forked from the client's: it has to make a client of its own")
        if threading.current_thread() is self._thread:
            raise self._error("a callback of a client can't wait for that client")

    def wait(self, done: Callable[[], bool], timeout_s: float | None = None) -> bool:
        """Until something is so. False if the time is over before it is so."""
        self.check_caller()
        end = _NEVER if timeout_s is None else time.monotonic() + timeout_s
        while True:
            mine = _Waiter()
            self._waiting.append(mine)
            if done():
                return True
            if self.closed:
                raise self._error("this client is closed")
            left = end - time.monotonic()
            if left > 0:
                mine.sleep(left)
            with contextlib.suppress(ValueError):  # it was woken
                self._waiting.remove(mine)
            if left <= 0:
                return done()

    def close(self) -> None:
        """Ends the thread, and with it every wait."""
        first, self.closed = not self.closed, True
        if self.forked or self._thread.ident is None:
            if first:
                self._end()
        elif threading.current_thread() is not self._thread:
            if first:
                self._ring()
            self._thread.join(CLOSE_S)

    def _ring(self) -> None:
        """The thread may have seen by itself that it is closed, and be gone."""
        bell = self._bell
        if bell is not None:
            bell.ring()

    # -- the thread ------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        pause_s = 0.0
        while not self.closed:
            try:
                ready = self.poll(self._patience())
            except OSError as error:
                complain(f"{self._name}: its descriptors were closed, and it hears nothing any more: {error}")
                self.closed = True  # and nothing is closed: other files of the program may have those numbers by now
                _deaf_ones.append(self)
                self.guarded(self._deaf)
                self.announce()
                return
            self._turn(ready)
            pause_s = min(max(_PAUSE_S, 2 * pause_s), MOST_PAUSE_S) if self._undone else 0.0
            if self._undone:
                time.sleep(pause_s)
                self._undone = False
                self.guarded(self._unexpected)
            self.announce()
        self._end()

    def _patience(self) -> float | None:
        if self._posted or self._undone:
            return 0.0
        until = self._deadline()
        return None if until == _NEVER else max(until - time.monotonic(), 0.0)

    def _turn(self, ready: list[tuple[int, int]]) -> None:
        for fd, what in ready:
            if (handler := self.handlers.get(fd)) is not None:
                self.guarded(handler, what)
        while self._posted:
            self.guarded(self._posted.popleft())
        if time.monotonic() >= self._deadline():
            self.guarded(self._due)

    def guarded(self, call: Callable[..., object], *arguments: object) -> object:
        """What it raises leaves that one undone, and nothing else."""
        try:
            return call(*arguments)
        except BaseException:  # `sys.exit()` in a callback, too, would end nothing but this thread
            self._undone = True
            complain(f"{self._name}: unexpected, and the connection is made anew:\n{traceback.format_exc()}")
            return None

    def _end(self) -> None:
        self.guarded(self._let_go)
        self.handlers.clear()
        self._epoll.close()
        self._bell = None
        self.announce()


_deaf_ones: list[ClientLoop] = []
"""What nothing has any more, Python closes: these are had for ever."""


class _Bell:
    """It is closed once nothing has it any more, a thread that is about to ring it included: what is written to a
    number that was closed goes into whatever file has it by then.
    """

    fd = -1

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._status = os.fstat(self.fd)

    def ring(self) -> None:
        """Not where the program has closed it, and has a file there."""
        with contextlib.suppress(OSError):
            if os.path.samestat(os.fstat(self.fd), self._status):
                os.eventfd_write(self.fd, 1)

    def __del__(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)


class _Waiter:
    """A caller that sleeps until something is announced."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._lock.acquire()

    def sleep(self, timeout_s: float) -> None:
        self._lock.acquire(timeout=min(timeout_s, threading.TIMEOUT_MAX))

    def wake(self) -> None:
        with contextlib.suppress(RuntimeError):  # it is awake
            self._lock.release()
