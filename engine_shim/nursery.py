"""Child programs that are kept running: started, their words passed on with their name in front, started again when
they end, told to end in order. For `failover up` (`up.py`), which says which they are.

What this file may not do: know any of them.
"""

import os
import signal
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from engine_shim import tree
from sidecar.loop import Loop

STEADY_S = 30.0
PAUSES_S = (0.0, 0.5, 1.0, 2.0, 5.0)
"""After the first failure, the second, and so on; the last for all that follow."""
FIRST_WORDS_S = 3.0
"""Who ends by itself, with an error, so soon after its first start will do so again."""
MOST_LINE_BYTES = 64 << 10
_NEVER = float("inf")


@dataclass
class Child:
    name: str
    command: tuple[str, ...]
    """A module of ours, and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """Beside what it gets from here."""
    pid: int = 0
    started_at: float = 0.0
    start_at: float = 0.0
    """When it is to be started; infinite while it runs, or isn't to."""
    failures: int = 0
    starts: int = 0
    code: int | None = None
    """How it ended last."""
    rest: dict[int, bytes] = field(default_factory=dict)
    """Of each pipe that is read: the line that isn't complete yet."""


class Nursery:
    def __init__(self, children: Iterable[Child], say: Callable[[str, str], None]) -> None:
        """`say(name, line)` is called with each line that a child says."""
        self.children = list(children)
        self.loop = Loop()
        self.hopeless: Child | None = None
        """One that ended in a way that starting it again won't mend."""
        self._say = say
        self._stopping = False

    @property
    def living(self) -> list[Child]:
        return [child for child in self.children if child.pid]

    @property
    def deadline(self) -> float:
        return min((child.start_at for child in self.children), default=_NEVER)

    def turn(self, until: float) -> None:
        """Waits for something to happen, at most until then, and sees to it."""
        now, until = time.monotonic(), min(until, self.deadline)
        for fd, what in self.loop.poll(None if until == _NEVER else max(until - now, 0.0) + 0.001):
            handler = self.loop.handlers.get(fd)
            if handler is not None:
                handler(what)
        now = time.monotonic()
        for child in self.children:
            if now >= child.start_at and not self._stopping:
                self._start(child)

    def tell(self, children: Iterable[Child], number: int) -> None:
        """A signal. Nobody is started again from now on."""
        self._stopping = True
        for child in self.children:
            child.start_at = _NEVER
        for child in children:
            if child.pid:
                os.kill(child.pid, number)

    def collect(self) -> None:
        """After SIGCHLD. As PID 1 of a container this process gets orphans, too: they are taken away and forgotten."""
        ended, _ = tree.collect()
        for child in self.children:
            if child.pid in ended:
                self._ended(child, ended[child.pid])

    def _start(self, child: Child) -> None:
        reading, writing = os.pipe2(os.O_CLOEXEC)
        os.set_blocking(reading, False)
        command = (sys.executable, "-m", "engine_shim.armed", str(os.getpid()), *child.command)
        try:
            child.pid = tree.start(command, {**os.environ, **child.environment}, output=writing)
        finally:
            os.close(writing)
        child.starts += 1
        child.started_at, child.start_at = time.monotonic(), _NEVER
        child.rest[reading] = b""
        self.loop.add(reading, lambda _: self._read(child, reading))

    def _ended(self, child: Child, code: int) -> None:
        now = time.monotonic()
        child.pid, child.code = 0, code
        for fd in list(child.rest):  # what it said last comes before what is said about it
            self._read(child, fd)
        if self._stopping:
            return
        soon = child.starts == 1 and now < child.started_at + FIRST_WORDS_S
        if code == 64 or (soon and code > 0):
            self.hopeless = child
            return
        child.failures = 1 if now >= child.started_at + STEADY_S else child.failures + 1
        pause_s = PAUSES_S[min(child.failures, len(PAUSES_S)) - 1]
        child.start_at = now + pause_s
        how = f"exit code {code}" if code >= 0 else signal.Signals(-code).name
        self._say("up", f"{child.name} ended ({how}); it is started again" + (f" in {pause_s:g} s" if pause_s else ""))

    def _read(self, child: Child, fd: int) -> None:
        """Grandchildren have the pipe, too: its end is not the child's."""
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        *lines, rest = (child.rest[fd] + data).split(b"\n")
        if not data or len(rest) > MOST_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        child.rest[fd] = rest
        if not data:
            del child.rest[fd]
            self.loop.remove(fd)
            os.close(fd)
            lines = [line for line in lines if line]
        for line in lines:
            self._say(child.name, line.decode(errors="replace"))
