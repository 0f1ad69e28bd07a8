"""The one file of a device, as its server sees it: what is being written, what it says, and what waits for that.

Pure. A write is of a whole record. What may only be done or told once it is on disk is data here (`Owed`); it comes
back when the disk has answered, and `machine.py` does it. One write is under way at a time, and nothing else is decided
meanwhile. Numbers and retries: `sidecar/disk_writes.py`. What a record is: `record.py`.
"""

from typing import NamedTuple

from gms import events as e
from gms.context import Context
from gms.record import Record
from gms.weights import Layout
from sidecar.disk_writes import DiskWrites


class Admit(NamedTuple):
    """A writer is to be let in."""

    conn: int
    request: int
    generation: int
    replaces: bool


class Acknowledge(NamedTuple):
    """A commit is to be acknowledged."""

    layout: Layout


class GiveUp(NamedTuple):
    """An awaited layout is to be given up: nobody has it any more."""

    generation: int


Owed = Admit | Acknowledge | GiveUp


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
    def is_due(self) -> bool:
        """What is so has to be written (again)."""
        return self._context.reached(self._writes.due_at)

    def write(self, record: Record, owed: Owed | None = None) -> None:
        number = self._writes.ask()
        if owed is not None:
            self._writes.owe(owed)
        self._being_written = (number, record)
        self._context.out.append(e.Persist(number, record))

    def is_wrong(self) -> None:
        """It says what would have been so."""
        self._writes.soon(self._context.now)

    def persisted(self, event: e.Persisted) -> list[Owed]:
        """Returns what is to be done now."""
        if self._being_written is not None and self._being_written[0] == event.seq:
            self.says, self._being_written = self._being_written[1], None
        self._context.calm("disk")
        return self._writes.persisted(event.seq)

    def failed(self, event: e.PersistFailed) -> list[Owed]:
        """Returns what is not to be done. What is so is written again, until that works."""
        if not self._writes.failed(event.seq, event.why, self._context.now):
            return []
        owed = self._writes.owed
        self._writes.take_back(lambda _: True)
        self._being_written = None
        self._context.alarm("disk", f"the state file can't be written ({event.why}): nobody may write or commit")
        return owed
