"""What the simulated kernel's processes and its clock share: events, watches, who sees whom, and the end of a process.

Nothing here decides when anything happens: kernel.py does.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING

from tests.sim.files import OpenFile

if TYPE_CHECKING:
    from tests.sim.process import Process


class Killed(Exception):
    """This process runs no more code. Only the event loop catches it."""

    def __init__(self, process: "Process") -> None:
        super().__init__(f"{process} is dead")
        self.process = process


class Event:
    """Something that will happen. `process`: whose code it is; the dead get none, the stopped get it when continued,
    and what belongs to a program goes with it when its process executes another.
    """

    __slots__ = ("call", "cancelled", "process", "program")

    def __init__(self, call: Callable[[], None], process: "Process | None") -> None:
        self.call = call
        self.process = process
        self.program = process.program if process is not None else 0
        self.cancelled = False

    def cancel(self) -> None:
        self.cancelled = True


class Namespace:
    """A PID namespace: its members see each other and those below, none beside or above."""

    __slots__ = ("init", "init_waits", "members", "parent")

    def __init__(self, parent: "Namespace | None") -> None:
        self.parent = parent
        self.init: Process | None = None
        self.init_waits = False
        self.members: dict[Process, None] = {}

    def sees(self, other: "Namespace | None") -> bool:
        while other is not None:
            if other is self:
                return True
            other = other.parent
        return False


class Watch:
    """Wakes a process about a descriptor: once for all that came meanwhile, so its code reads until nothing is left."""

    __slots__ = ("call", "fd", "file", "pending", "process")

    def __init__(self, process: "Process", fd: int, file: OpenFile, call: Callable[[int], None]) -> None:
        self.process = process
        self.fd = fd
        self.file = file
        self.call = call
        self.pending = False

    def wake(self) -> None:
        if not self.pending and self.process.alive:
            self.pending = True
            self.process.kernel.wake(self)

    def deliver(self) -> None:
        self.pending = False
        if self.process.watches.get(self.fd) is self and self.file.readable():
            self.call(self.fd)
