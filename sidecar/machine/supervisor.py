"""Child programs that are kept running: started, started again when they end, told to end in an order that the caller
chooses. `failover up` keeps a whole pair so, and `keeper.py` one server.

When a program is started again is decided in `restarts.py`. What this file may not do: know any of the programs.
"""

import os
import signal
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from sidecar.kernel import child_program, process_tree
from sidecar.machine.loop import Loop
from sidecar.machine.restarts import Restarts

MOST_LINE_BYTES = 64 << 10
NEVER = float("inf")


@dataclass
class Child:
    name: str
    command: tuple[str, ...]
    """One of our modules, and its arguments."""
    environment: Mapping[str, str] = field(default_factory=dict)
    """What it gets beside the environment of this process."""
    without: frozenset[str] = frozenset()
    """What of that it doesn't get."""
    pid: int = 0
    """0 while it doesn't run."""
    start_at: float = 0.0
    """When it is to be started; infinite while it runs, and while it isn't to."""
    code: int | None = None
    """How it ended last; negative for a signal."""
    wanted: bool = True
    """It is started again when it ends."""
    hopeless: bool = False
    """It ended in a way that another start won't mend, and isn't started again by itself."""
    restarts: Restarts = field(default_factory=Restarts)
    unfinished: dict[int, bytes] = field(default_factory=dict)
    """For each pipe that is read: the line that isn't complete yet."""


class Supervisor:
    def __init__(
        self,
        children: Iterable[Child],
        *,
        ended: Callable[[Child, str, float], None],
        relay: Callable[[str, str], None] | None = None,
    ) -> None:
        """`ended(child, how, pause_s)` is called when a child has ended and will be started again after the pause.
        `relay(name, line)` is called with each line that a child prints; without it children print where we do.
        """
        self.children = list(children)
        self.loop = Loop()
        self._tell_ended = ended
        self._relay = relay
        self._stopping = False

    @property
    def hopeless(self) -> Child | None:
        return next((child for child in self.children if child.hopeless), None)

    @property
    def living(self) -> list[Child]:
        return [child for child in self.children if child.pid]

    @property
    def deadline(self) -> float:
        return min((child.start_at for child in self.children), default=NEVER)

    def turn(self, until: float) -> None:
        """Waits for something to happen, at most until then, and sees to it."""
        now, until = time.monotonic(), min(until, self.deadline)
        self.loop.turn(None if until == NEVER else max(until - now, 0.0) + 0.001)
        now = time.monotonic()
        for child in self.children:
            if now >= child.start_at and not self._stopping:
                self._start(child)

    def tell(self, children: Iterable[Child], number: int) -> None:
        """Sends a signal to those of them that live."""
        for child in children:
            if child.pid:
                os.kill(child.pid, number)

    def again(self, child: Child, pause_s: float) -> None:
        """Another try for a hopeless child: what was wrong may be put right by then."""
        child.hopeless, child.restarts = False, Restarts()
        child.start_at = NEVER if self._stopping else time.monotonic() + pause_s

    def stop_restarting(self) -> None:
        """From now on no child is started any more."""
        self._stopping = True
        for child in self.children:
            child.start_at = NEVER

    def collect(self) -> None:
        """To be called after SIGCHLD. A process that adopts orphans gets children that it doesn't know: they are
        collected and forgotten.
        """
        ended, _ = process_tree.collect()
        for child in self.children:
            if child.pid in ended:
                self._ended(child, ended[child.pid])

    def _start(self, child: Child) -> None:
        child.restarts.started(time.monotonic())
        child.start_at = NEVER
        try:
            self._spawn(child)
        except (OSError, ValueError) as error:  # no process may be had, or what it is to be given is no text
            if self._relay is not None:
                self._relay(child.name, f"it can't be started: {error}")
            self._ended(child, 1)

    def _spawn(self, child: Child) -> None:
        command = child_program.words(*child.command)
        inherited = {name: value for name, value in os.environ.items() if name not in child.without}
        environment = {**inherited, **child.environment}
        if self._relay is None:
            child.pid = process_tree.start(command, environment)
        else:
            reading, writing = os.pipe2(os.O_CLOEXEC)
            os.set_blocking(reading, False)
            try:
                child.pid = process_tree.start(command, environment, output=writing)
            except BaseException:
                os.close(reading)
                raise
            finally:
                os.close(writing)
            child.unfinished[reading] = b""
            self.loop.add(reading, lambda _: self._read(child, reading))

    def _ended(self, child: Child, code: int) -> None:
        now = time.monotonic()
        child.pid, child.code = 0, code
        for fd in list(child.unfinished):  # what it said last comes before what is said about it
            self._read(child, fd)
        if self._stopping or not child.wanted:
            return
        pause_s = child.restarts.ended(code, now)
        if pause_s is None:
            child.hopeless = True
            return
        child.start_at = now + pause_s
        self._tell_ended(child, how_it_ended(code), pause_s)

    def _read(self, child: Child, fd: int) -> None:
        """Grandchildren have the pipe, too: its end isn't the child's."""
        assert self._relay is not None
        try:
            data = os.read(fd, 65536)
        except BlockingIOError:
            return
        *lines, rest = (child.unfinished[fd] + data).split(b"\n")
        if not data or len(rest) > MOST_LINE_BYTES:
            lines, rest = [*lines, rest], b""
        child.unfinished[fd] = rest
        if not data:
            del child.unfinished[fd]
            self.loop.remove(fd)
            os.close(fd)
            lines = [line for line in lines if line]
        for line in lines:
            self._relay(child.name, line.decode(errors="replace"))


def how_it_ended(code: int) -> str:
    if code >= 0:
        return f"exit code {code}"
    try:
        return signal.Signals(-code).name
    except ValueError:  # a real-time signal has no name
        return f"signal {-code}"
