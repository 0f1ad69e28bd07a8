"""A server's loop: descriptors and who sees to each, and signals. One thread, no lock.

Everything that it calls must return soon: while one descriptor is seen to, all others wait.

What this file may not do: know what a descriptor is for. Connections: `connections.py`, processes: `processes.py`, what
turns round and round: `shell.py`.
"""

import os
import select
import signal
from collections.abc import Callable

_READ_WRITE = select.EPOLLIN | select.EPOLLOUT


class Loop:
    def __init__(self) -> None:
        self.stopping = ""
        """Why; empty while it goes on."""
        self.handlers: dict[int, Callable[[int], None]] = {}
        epoll = select.epoll()
        self.poll = epoll.poll
        """Sleeps in the kernel until something happens, or a time is over: (descriptor, what) of each."""
        self._epoll = epoll

    def add(self, fd: int, handler: Callable[[int], None], events: int = select.EPOLLIN) -> None:
        """From now on the handler is called, with what has happened, when this descriptor is ready. Raises OSError
        where the kernel has no memory for that (a cgroup at its limit).
        """
        self._epoll.register(fd, events)
        self.handlers[fd] = handler

    def remove(self, fd: int) -> None:
        """Before the descriptor is closed. Nothing happens for one that isn't here."""
        if self.handlers.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def also_when_writable(self, fd: int, wanted: bool) -> None:
        self._epoll.modify(fd, _READ_WRITE if wanted else select.EPOLLIN)

    def only_when_writable(self, fd: int) -> None:
        """Whatever comes stays unread for the moment."""
        self._epoll.modify(fd, select.EPOLLOUT)

    def stop_on_signals(self) -> None:
        """SIGTERM and SIGINT set `stopping`, between two calls of handlers and never inside one."""
        reading, writing = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(writing, warn_on_full_buffer=False)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda *_: None)

        def told(_: int) -> None:
            self.stopping = signal.Signals(os.read(reading, 64)[0]).name

        self.add(reading, told)
