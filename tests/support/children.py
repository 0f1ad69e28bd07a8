"""Forked children of a test that run one function."""

import contextlib
import os
import signal
import sys
import traceback
from collections.abc import Callable

from tests.support.waiting import DEADLINE_S, readable


class Child:
    """A forked process that runs one function. Its words come through a pipe; it is killed and collected at the end."""

    def __init__(self, function: Callable[[Callable[[str], None]], None]) -> None:
        self._read, write = os.pipe()
        self._heard = b""
        self.pid = os.fork()
        if self.pid == 0:
            self._run(function, write)
        os.close(write)
        self.pidfd = os.pidfd_open(self.pid)
        self.status: int | None = None

    def _run(self, function: Callable[[Callable[[str], None]], None], write: int) -> None:
        os.close(self._read)
        os.setsid()
        try:
            function(lambda line: (os.write(write, line.encode() + b"\n"), None)[1])
            os._exit(0)
        except BaseException:
            traceback.print_exc(file=sys.stderr)
        finally:
            os._exit(1)

    def line(self) -> str:
        """The next line that the child (or a child of it) says; empty when all that could say one are gone."""
        while b"\n" not in self._heard:
            assert readable(self._read), "the child says nothing"
            more = os.read(self._read, 4096)
            if not more:
                return ""
            self._heard += more
        line, _, self._heard = self._heard.partition(b"\n")
        return line.decode()

    def wait(self) -> int:
        """Collects it; returns the wait status."""
        if self.status is None:
            wait_until_dead(self.pidfd)
            _, self.status = os.waitpid(self.pid, 0)
        return self.status

    def kill(self) -> None:
        """SIGKILL, and dead when this returns, but not collected."""
        os.kill(self.pid, signal.SIGKILL)
        wait_until_dead(self.pidfd)

    def close(self) -> None:
        """And everything that the child has started."""
        if self.status is None:
            self.kill()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.pid, signal.SIGKILL)
        self.wait()
        os.close(self.pidfd)
        os.close(self._read)

    def __enter__(self) -> "Child":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def wait_until_dead(pidfd: int) -> None:
    assert readable(pidfd), "the process doesn't die"


def wait_until_readable(fd: int) -> None:
    assert readable(fd), "nothing comes"


def stay() -> None:
    """Waits to be killed; not for ever, in case the test was killed itself."""
    signal.alarm(int(4 * DEADLINE_S))
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        signal.pause()
