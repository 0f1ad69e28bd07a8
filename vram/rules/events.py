"""The vocabulary between the ledger's machine and its shell, beside that of evidence (`evidence/rules/events.py`)."""

import msgspec

from evidence.rules import events as evidence
from vram.rules.messages import Bytes
from vram.rules.record import Record


class Config(evidence.Config, frozen=True, kw_only=True):
    window_s: float = 10.0
    """How long a new server waits for the trees that it finds in the file; and how long an end may take to be proven
    before a person hears of it.
    """
    age_s: float = 10.0
    """So much longer a waiter has waited that goes before one whose priority is more urgent by one."""
    ask_s: float = 30.0
    """How long a holder may take to give back what it was asked for."""
    ask_again_s: float = 60.0
    """One that didn't is left alone for so long."""
    least_held_s: float = 10.0
    """A lease that hasn't been used since it was granted isn't asked for before."""
    patience_s: float = 5.0
    """What was said to be given back, and isn't seen to be free after so long, is an alarm. And so long an estate waits
    for an heir to ask for it.
    """
    foreign_s: float = 60.0
    """So long what others had is taken off, though it isn't seen to be in use beyond all leases."""
    keep_free: int = 0
    """Bytes of each device that are never leased."""
    totals: Bytes = {}
    """Devices that no reader shows. Of one that is read no more than this is leased."""
    history_size: int = 1000


class Started(msgspec.Struct, frozen=True):
    record: Record | None
    unreadable: str = ""
    """Why the file that is there can't be read; empty when it can, or when there is none."""
    number_floor: int = 0
    """Leases' numbers begin above it. It is drawn by lot, so that no two servers ever give the same."""
