"""The file of the pools: what waits for it. What a record is: `pool_record.py`.

Pure. How it is written, and when again: `disk_file.py`. `pool_machine.py` does what was owed to the disk.
"""

from typing import NamedTuple

from gms import events as e
from gms.context import Context
from gms.disk_file import DiskFile
from gms.pool_record import Record
from gms.pools import Owner, Shape
from gms.weights import Slab


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


class PoolFile(DiskFile[Record, Owed]):
    def __init__(self, context: Context) -> None:
        super().__init__(context, e.PersistPools, "pools_disk", "the pools' file", "no pool gets an owner")
