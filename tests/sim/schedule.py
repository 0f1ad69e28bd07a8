"""What every simulated world is: one schedule of one seed. A server and its clients start, faults come, the faults end,
and then it is seen whether all that must hold has held.

What runs in it, what goes wrong and what must hold is the worlds' business (`world.py` for the lock, `gms_world.py` for
GMS). Everything random comes from `rng`, so that a seed replays exactly: one number drawn more, or earlier, is another
schedule.
"""

import random
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Generic, NoReturn, TypeVar

from tests.sim.kernel import Kernel
from tests.sim.process import Process
from tests.sim.shell import ServerShell

FAULTS_END_S = 4.0


class Violation(Exception):
    """Something that must hold did not."""


def kind_of(fault: str) -> str:
    """Without the names: `kill engine-a[3]` and `kill engine-b/worker[7]` are one kind."""
    return " ".join(word for word in fault.split() if not any(mark in word for mark in "[."))


S = TypeVar("S", bound=ServerShell[Any, Any])


class Schedule(ABC, Generic[S]):
    calm_s: float
    """After the faults: every wait of the server fits in it several times."""
    most_events: int
    """More is a circle without an end."""
    kernel: Kernel
    shim: Process
    """It starts the servers, sees them end, and never dies."""
    crash_rate: float
    """So often the server is killed between two effects."""

    def __init__(self, seed: int, *, trace: bool) -> None:
        self.seed = seed
        self.trace: list[str] | None = [] if trace else None
        self.rng = random.Random(seed)
        self.server: S | None = None
        self.calm = False
        """The faults have ended."""
        self.faults: Counter[str] = Counter()
        self.grants = 0

    # -- what each world is made of --------------------------------------------------------------------------------

    @abstractmethod
    def _new_server(self) -> S | None:
        """None where none can be started now; then it has seen to it that it is tried again."""

    @abstractmethod
    def _clients(self) -> Iterable[Callable[[], None]]:
        """What starts each of them."""

    @abstractmethod
    def _any_fault(self) -> None: ...

    @abstractmethod
    def _calm(self) -> None:
        """No more faults: what was broken is mended, and what is stopped goes on."""

    @abstractmethod
    def _check_the_end(self) -> None: ...

    def _is_settled(self) -> bool:
        """Nothing more is to be expected."""
        return False

    @property
    def events(self) -> int:
        return self.kernel.events

    @property
    def undecided(self) -> bool:
        """The server says that it can't prove what it would have to, and waits."""
        return False

    # -- what is told ----------------------------------------------------------------------------------------------

    def fail(self, what: str) -> NoReturn:
        raise Violation(f"seed {self.seed}, at {self.kernel.now:.4f} s: {what}")

    def note_fault(self, what: str) -> None:
        self.faults[kind_of(what)] += 1
        self.say(f"fault: {what}")

    def say(self, what: str) -> None:
        if self.trace is not None:
            self.trace.append(f"{self.kernel.now:9.5f} {what}")

    # -- the server's container ------------------------------------------------------------------------------------

    def start_server(self) -> None:
        if self.server is not None and self.server.process.alive:
            return
        server = self._new_server()
        if server is None:
            return
        self.server = server
        pidfd = self.shim.pidfd_open(server.process.pid)

        def ended(fd: int) -> None:
            self.shim.close(fd)
            self.kernel.after(0.05 if self.calm else self.rng.random() ** 3 * 1.5, self.start_server)

        self.shim.on_death(pidfd, ended)
        server.process.after(0.002, server.start_or_end)

    def effect_boundary(self, server: Process) -> None:
        if self.crash_rate and self.rng.random() < self.crash_rate and self.kernel.now < FAULTS_END_S:
            self.note_fault("the server is killed between two effects")
            self.kernel.kill(server)
            server.must_live()

    # -- from the beginning to the end -----------------------------------------------------------------------------

    def run(self) -> None:
        kernel, rng = self.kernel, self.rng
        kernel.after(0.0, self.start_server)
        for start in self._clients():
            kernel.after(rng.random() * 0.5, start)
        for _ in range(rng.choice((1, 2, 4, 8))):
            kernel.after(0.3 + rng.random() * (FAULTS_END_S - 0.5), self._any_fault)
        kernel.run(FAULTS_END_S, self.most_events)
        self.say("the faults end")
        self.calm = True
        self._calm()
        while kernel.now < FAULTS_END_S + self.calm_s and not self._is_settled():
            kernel.run(kernel.now + 1.0, self.most_events)
        self._check_the_end()
