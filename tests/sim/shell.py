"""What every simulated shell does: it gives its machine one event after the other, and carries out what the machine
asks for.

`Shell` is a machine in a simulated process; `ServerShell` is one that others connect to, and that may be killed between
any two effects. The lock's shells are in `actors.py`, the ledger's in `vram_actors.py`, those of
GMS in `gms_actors.py`.
"""

import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tests.sim.events import Event
from tests.sim.process import Process

if TYPE_CHECKING:
    from tests.sim.schedule import Schedule

INF = float("inf")
MOST_TURNS = 200
"""Answers to one's own questions that may follow from one event."""

E = TypeVar("E")
F = TypeVar("F")


class Shell(ABC, Generic[E, F]):
    """`E` is what the machine is told, and `F` is what it asks for."""

    tick: E
    """The event that says that the machine's deadline has come."""

    def __init__(self, world: "Schedule[Any]", process: Process, speaker: object) -> None:
        self._schedule = world
        self.process = process
        self._speaker = speaker
        """What the trace calls it."""
        self.pending: deque[E] = deque()
        self.timer: Event | None = None
        self.stopped = False

    @abstractmethod
    def _handle(self, event: E) -> Iterable[F]:
        """What the machine makes of it."""

    @abstractmethod
    def _do(self, effect: F) -> None:
        """An answer to the machine's question goes into `pending`."""

    def _is_left_undone(self, effect: F) -> bool:
        """Something unexpected is raised instead. The effects that follow are carried out."""
        return False

    @abstractmethod
    def _due(self) -> float:
        """When it looks again though nothing happens: its machine's deadline."""

    def _at_rest(self) -> None:
        """Nothing is pending any more."""
        self._set_timer()

    def feed(self, event: E) -> None:
        """One event, and the answers to every question that follows from it."""
        if self.stopped:
            return
        self.pending.append(event)
        if len(self.pending) > 1:
            return  # its turn comes when the one that is under way has ended
        world = self._schedule
        turns = 0
        while self.pending and not self.stopped:
            turns += 1
            if turns > MOST_TURNS:
                world.fail(f"{self._speaker} asks the same for ever")
            if world.trace is not None:
                world.say(f"{self._speaker} < {self.pending[0]}")
            for effect in self._handle(self.pending[0]):
                if self._is_left_undone(effect):
                    continue
                if world.trace is not None:
                    world.say(f"{self._speaker} > {effect}")
                self._do(effect)
                if self.stopped:
                    return
                self.process.must_live()
            self.pending.popleft()
        self._at_rest()

    def _set_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None
        due = self._due()
        if due < INF and not self.stopped:
            self.timer = self.process.after(max(0.0, due - self._schedule.kernel.now), self._on_timer)

    def _on_timer(self) -> None:
        self.timer = None
        self.feed(self.tick)


class ServerShell(Shell[E, F]):
    def __init__(self, world: "Schedule[Any]", process: Process, speaker: str) -> None:
        super().__init__(world, process, speaker)
        self.kernel = world.kernel
        self.number = 0
        """The last connection, process or piece of memory has this one."""
        self.conns: dict[int, int] = {}
        self.by_fd: dict[int, int] = {}

    @abstractmethod
    def start(self) -> None:
        """Raises OSError where it can't serve."""

    @abstractmethod
    def _on_message(self, conn: int, fd: int, message: Any, descriptors: tuple[int, ...]) -> None: ...

    @abstractmethod
    def _closed(self, conn: int) -> E:
        """The event that says that this connection has ended."""

    def start_or_end(self) -> None:
        try:
            self.start()
        except OSError:
            self.process.exit()

    def _is_left_undone(self, effect: F) -> bool:
        self._schedule.effect_boundary(self.process)
        return False

    def _on_connect(self, listener: int) -> None:
        while (fd := self.process.accept(listener)) is not None:
            self.number += 1
            self.conns[self.number] = fd
            self.by_fd[fd] = self.number
            self.process.on_readable(fd, self._on_ready)

    def _on_ready(self, fd: int) -> None:
        conn = self.by_fd.get(fd)
        if conn is None:
            return
        received, ended = self.process.receive(fd)
        for message, descriptors in received:
            if conn in self.conns:
                self._on_message(conn, fd, message, descriptors)
            else:
                for passed in descriptors:
                    self.process.close(passed)
        if ended and conn in self.conns:
            self._drop(conn)
            self.feed(self._closed(conn))

    def _send(self, conn: int, message: Any, passed: list[int]) -> None:
        fd = self.conns.get(conn)
        if fd is not None:
            with contextlib.suppress(BrokenPipeError):  # its end of file is under way
                self.process.send(fd, message, passed)

    def _drop(self, conn: int) -> None:
        fd = self.conns.pop(conn, None)
        if fd is not None:
            del self.by_fd[fd]
            self.process.close(fd)

    def _stop(self) -> None:
        self.stopped = True
        self.process.exit()
