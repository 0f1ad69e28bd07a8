"""The words between a client's machine and its shell, beside those in `evidence/rules/client_events.py`."""

import msgspec

from evidence.rules.client_events import ChildEnded as ChildEnded
from evidence.rules.client_events import Connected as Connected
from evidence.rules.client_events import Disconnected as Disconnected
from evidence.rules.client_events import Heard as Heard
from evidence.rules.client_events import Hopeless as Hopeless
from evidence.rules.client_events import PathSeen as PathSeen
from evidence.rules.client_events import Tick as Tick
from evidence.rules.client_events import VouchFor as VouchFor
from vram.rules.messages import Bytes

# -- events: from the program --------------------------------------------------------------------------------------


class Want(msgspec.Struct, frozen=True):
    """A new lease."""

    number: int
    """This wish's, as the answer to it says."""
    name: str
    needs: Bytes
    priority: int = 0
    evictable: bool = True
    outlives: bool = False
    found: Bytes = {}


class Change(msgspec.Struct, frozen=True):
    """This lease is to have so much."""

    number: int
    lease: int
    bytes: Bytes


class GiveUp(msgspec.Struct, frozen=True):
    number: int
    gone: bool = False
    """No caller takes the answer any more."""


class SetLease(msgspec.Struct, frozen=True):
    lease: int
    priority: int | None = None
    evictable: bool | None = None
    used: bool = False


class BeHeir(msgspec.Struct, frozen=True):
    name: str


# -- effects -------------------------------------------------------------------------------------------------------


class Got(msgspec.Struct, frozen=True):
    number: int
    lease: int
    bytes: Bytes


class Denied(msgspec.Struct, frozen=True):
    number: int
    why: str


class Without(msgspec.Struct, frozen=True):
    """That wish was given up."""

    number: int


class IsHeir(msgspec.Struct, frozen=True):
    name: str


class AskedBack(msgspec.Struct, frozen=True):
    lease: int
    name: str
    bytes: Bytes
    timeout_s: float
    why: str
