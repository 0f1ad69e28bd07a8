"""The state file of a device: what waits for it. What a record is: `record.py`.

Pure. How it is written, and when again: `disk_file.py`. `machine.py` does what was owed to the disk.
"""

from typing import NamedTuple

from gms import events as e
from gms.context import Context
from gms.disk_file import DiskFile
from gms.record import Record
from gms.weights import Layout


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


class StateFile(DiskFile[Record, Owed]):
    def __init__(self, context: Context) -> None:
        super().__init__(context, e.Persist, "disk", "the state file", "nobody may write or commit")
