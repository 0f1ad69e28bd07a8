"""The processes of a benchmark: real ones, forked from this warm one, so that they are all alike.

A player does one thing, tells the time at which it was done through a socket pair, and then waits to be killed. The
child keeps only what it needs: descriptors inherited from the benchmark would make its end take longer, and would keep
other processes' sockets open.
"""

import os
import signal
import socket
import struct
import sys
import time
import traceback
from collections.abc import Callable
from typing import NoReturn

from bench.stage import DEADLINE_S, Broken

_TIME = struct.Struct("=q")


class Line:
    """The player's end of the socket pair."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock

    def say(self, *times_ns: int) -> None:
        """Times in nanoseconds, or a 0 for "so far"."""
        self._sock.sendall(b"".join(_TIME.pack(time_ns) for time_ns in times_ns))

    def wait(self) -> None:
        """For the word to go on; without the benchmark there is nothing to do."""
        if not self._sock.recv(1):
            os._exit(0)


class Player:
    """The benchmark's end: a child that runs `part` and then waits to be killed."""

    def __init__(self, part: Callable[[Line], None]) -> None:
        ours, theirs = socket.socketpair()
        sys.stdout.flush()
        self.pid = os.fork()
        if self.pid == 0:
            _play(part, theirs)
        theirs.close()
        self._sock = ours
        self._sock.settimeout(DEADLINE_S)

    def hear(self, count: int = 1) -> list[int]:
        """What it says. Blocks in the kernel, so that nothing here takes time from what is measured."""
        wanted, data = count * _TIME.size, b""
        while len(data) < wanted:
            try:
                more = self._sock.recv(wanted - len(data))
            except TimeoutError:
                raise Broken(f"process {self.pid} said nothing for {DEADLINE_S:g} s") from None
            if not more:
                raise Broken(f"process {self.pid} ended early; what it said about that stands above")
            data += more
        return [time_ns for (time_ns,) in _TIME.iter_unpack(data)]

    def go_on(self) -> None:
        self._sock.send(b"g")

    def kill(self) -> int:
        """Returns the time just before."""
        before = time.monotonic_ns()
        os.kill(self.pid, signal.SIGKILL)
        return before

    def collect(self) -> None:
        os.waitpid(self.pid, 0)
        self._sock.close()

    def end(self) -> None:
        self.kill()
        self.collect()


def _play(part: Callable[[Line], None], sock: socket.socket) -> NoReturn:
    """In the child. It must never return into the benchmark's own code."""
    try:
        keep = sock.fileno()
        os.closerange(3, keep)
        os.closerange(keep + 1, keep + 4096)
        part(Line(sock))
        while True:
            signal.pause()
    except BaseException:  # printed, and the benchmark sees the end of file
        traceback.print_exc()
    finally:
        os._exit(1)
