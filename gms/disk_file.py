"""One of a server's files, as the server sees it: what is being written, what it says, and what waits for that.

Pure. A write is of a whole record. What may only be done or told once it is on disk is plain data (`Owed`); it comes
back when the disk has answered, and the machine does it. One write is under way at a time, and nothing else is decided
meanwhile. Numbers and retries: `sidecar/disk_writes.py`. There are two: `state_file.py` and `pool_file.py`.
"""

from collections.abc import Callable
from typing import Generic, TypeVar

from gms.context import Context
from gms.events import Effect
from sidecar.disk_writes import DiskWrites

Record = TypeVar("Record")
Owed = TypeVar("Owed")


class DiskFile(Generic[Record, Owed]):
    def __init__(
        self, context: Context, persist: Callable[[int, Record], Effect], alarm: str, name: str, harm: str
    ) -> None:
        """`alarm` is the key of the one that is raised when the disk refuses; `harm`: what nobody may do then."""
        self._context = context
        self._persist = persist
        self._alarm, self._name, self._harm = alarm, name, harm
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
    def is_due(self) -> bool:
        """What is so has to be written (again)."""
        return self._context.reached(self._writes.due_at)

    def write(self, record: Record, owed: Owed | None = None) -> None:
        number = self._writes.ask()
        if owed is not None:
            self._writes.owe(owed)
        self._being_written = (number, record)
        self._context.out.append(self._persist(number, record))

    def write_again(self) -> None:
        """What it says is not so; or somebody has deleted it."""
        self._writes.soon(self._context.now)

    def persisted(self, seq: int) -> list[Owed]:
        """Returns what is to be done now."""
        if self._being_written is not None and self._being_written[0] == seq:
            self.says, self._being_written = self._being_written[1], None
        self._context.calm(self._alarm)
        return self._writes.persisted(seq)

    def failed(self, seq: int, why: str) -> list[Owed]:
        """Returns what is not to be done. What is so is written again, until that works."""
        if not self._writes.failed(seq, why, self._context.now):
            return []
        owed = self._writes.owed
        self._writes.take_back(lambda _: True)
        self._being_written = None
        self._context.alarm(self._alarm, f"{self._name} can't be written ({why}): {self._harm}")
        return owed
