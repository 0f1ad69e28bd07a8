"""The state file of a device, as its server sees it: what is being written, what it says, and what waits for that.

Pure. A write is of the whole record (`record.py`): of every region what is so, and of one what is to become so. What
may only be done or told once it is on disk is plain data; it comes back when the disk has answered, and its region does
it. One write is under way at a time, and nothing else is decided meanwhile. Numbers and retries:
`sidecar/machine/disk_writes.py`.
"""

from typing import Any, NamedTuple

from gms.rules.context import Context
from gms.rules.events import Persist
from gms.rules.record import Record
from gms.rules.weights import BrokenRule
from sidecar.machine.disk_writes import DiskWrites


class Owed(NamedTuple):
    key: str
    """The region's."""
    what: Any
    """For the region to do. Plain data."""


class StateFile:
    def __init__(self, context: Context) -> None:
        self._context = context
        self._writes: DiskWrites[Owed] = DiskWrites()
        self._being_written: tuple[int, Record] | None = None
        self.says: Record | None = None
        """As far as this server has read or written it."""

    @property
    def busy(self) -> bool:
        return self._writes.under_way

    @property
    def owed(self) -> list[Owed]:
        return self._writes.owed

    @property
    def due_at(self) -> float:
        """When what is so has to be written (again)."""
        return self._writes.due_at

    def write(self, record: Record, owed: Owed | None = None) -> None:
        if self.busy:
            raise BrokenRule("a write is begun while another is under way, and knows nothing of it")
        number = self._writes.ask()
        if owed is not None:
            self._writes.owe(owed)
        self._being_written = (number, record)
        self._context.out.append(Persist(number, record))

    def write_again(self) -> None:
        """What it says is not so; or it was deleted."""
        self._writes.soon(self._context.now)

    def persisted(self, seq: int) -> list[Owed]:
        """Returns what is to be done now."""
        if self._being_written is not None and self._being_written[0] == seq:
            self.says, self._being_written = self._being_written[1], None
        self._context.calm("disk", "record")  # what a region has lost with the old one is an alarm of its own
        return self._writes.persisted(seq)

    def failed(self, seq: int, why: str) -> list[Owed]:
        """Returns what is not to be done. What is so is written again, until that works."""
        if not self._writes.failed(seq, why, self._context.now):
            return []
        owed = self._writes.owed
        self._writes.take_back(lambda _: True)
        self._being_written = None
        self._context.alarm(
            "disk", f"the state file can't be written ({why}): no writer, no commit and no owner of a pool is let in"
        )
        return owed
