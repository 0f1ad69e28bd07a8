"""The file of the pools, as its server sees it: what is being written, what it says, and what waits for that.

Pure. What may only be done or told once it is on disk is data here (`Owed`), and comes back when the disk has
answered. One write is under way at a time. The same for the weights: `state_file.py`.
"""

from typing import NamedTuple

from gms import events as e
from gms.context import Context
from gms.pool_record import Record
from gms.pools import Owner, Shape
from gms.weights import Slab
from sidecar.disk_writes import DiskWrites


class Made(NamedTuple):
    """New memory is to be given to its first owner."""

    conn: int
    claim: int
    generation: int
    shape: Shape
    slabs: tuple[Slab, ...]
    owner: Owner
    why_empty: str
    key: str


class Adopted(NamedTuple):
    """Contents are to be handed on; or the owner claims anew what it has."""

    conn: int
    claim: int
    generation: int
    owner: Owner


class Released(NamedTuple):
    """The owner's word that it writes no more is to be answered."""

    conn: int
    key: str


class GivenUp(NamedTuple):
    """Memory is not wanted any more. (A claim that waits for that is looked at again.)"""

    key: str
    generation: int
    why: str
    by: int
    """The connection of somebody who asked for just that; 0: nobody did."""


Owed = Made | Adopted | Released | GivenUp


class PoolFile:
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
    def is_due(self) -> bool:
        """What is so has to be written (again)."""
        return self._context.reached(self._writes.due_at)

    def write(self, record: Record, owed: Owed | None = None) -> None:
        number = self._writes.ask()
        if owed is not None:
            self._writes.owe(owed)
        self._being_written = (number, record)
        self._context.out.append(e.PersistPools(number, record))

    def is_wrong(self) -> None:
        """It says what would have been so."""
        self._writes.soon(self._context.now)

    def persisted(self, seq: int) -> list[Owed]:
        """Returns what is to be done now."""
        if self._being_written is not None and self._being_written[0] == seq:
            self.says, self._being_written = self._being_written[1], None
        self._context.calm("pools_disk")
        return self._writes.persisted(seq)

    def failed(self, seq: int, why: str) -> list[Owed]:
        """Returns what is not to be done."""
        if not self._writes.failed(seq, why, self._context.now):
            return []
        owed = self._writes.owed
        self._writes.take_back(lambda _: True)
        self._being_written = None
        self._context.alarm("pools_disk", f"the pools' file can't be written ({why}): no pool gets an owner")
        return owed
