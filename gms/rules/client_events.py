"""The words between a client's machine and its shell: what happens (events), and what to do about it (effects).

What the shell does:

* It feeds one event at a time and carries out its effects in order before the next. `Tick` at `deadline`, and once at
  the beginning.
* `Connect`: tries to connect, and feeds `Connected` or `Disconnected`. When the connection ends: `Disconnected`.
* `Say`: sends the message; with `Hello` its own pidfd, if there is such a thing; with `HandBack` the descriptors of its
  kept slabs `first` to `first + count`.
* `Heard`: every message of the server. The descriptors that came with it are closed, unless a `Keep` came back.
* `Keep`: those descriptors are slabs `first` and following of layout `generation`. They belong to the shell until
  `LetGo(generation)`.
* `LetGo`: closes whatever it has of that layout, and feeds `Dropped` when that is done. It never comes for a layout
  that this process reads.
* What the program wants is the message that asks for it (`Open`, `Create`, `ClaimPool`, `Checksums`), and is fed as an
  event; a wake has to have an end. What it has, and how much time is left, the machine adds.
* `Got`: what was wanted is granted. A writer may `Create` and then `Publish`. A reader has the layout and all slabs
  (`kept`), from now on or still: it maps them, or maps them again.
* `Created`, `Committed`, `No`: the answers to `Create`, `Publish`, and to any of the three; the first two are messages,
  as is `Welcome`, and `Changed`: which layout, or memory of a pool, the server has now. `RegionDropped` is the answer
  to the `Publish` of a writer that parks: whether the device's slabs are gone.
* `Stale`: what this process has kept is no longer the layout. A reader has to end, or to unmap and `Release`; a sleeper
  need do nothing.
* `Problem`: the server there won't have this process, or can't be understood. What it has it keeps.
* `Sleep` and `Release` (the program's words) only after everything is unmapped: then this process reads no longer.

Of a pool, whose slabs are its ranges, and its table last:

* `Owned`: what was claimed is granted. `Disowned`: a server has it as this process's no more; its program may go on.
* `PoolReleased`: the server has it on record, or had nothing to release.
"""

from typing import Literal

import msgspec

from gms.rules import messages as m
from sidecar.machine import context
from sidecar.machine.context import Heard as Heard
from sidecar.machine.context import Tick as Tick

Event = context.Event | m.ClientMessage
Effect = context.Effect | m.ServerMessage


class Kept(msgspec.Struct, frozen=True):
    """Memory of which a process has the descriptors, as it hands it back."""

    generation: int
    hash: str
    """The layout's, or the digest of a pool's shape."""
    sizes: list[int]
    """All slabs'."""
    layout: bytes = b""
    sums: list[str] = []
    table: bool = False
    """The last of them is a table; or it is parked: all is in one piece in host memory."""
    contents: int = 0
    """The generation whose contents these are, if they were moved. 0: its own."""


class There(msgspec.Struct, frozen=True):
    """A pool, as far as this process was told."""

    generation: int
    shape: m.Shape
    owner: str = ""
    """In words; empty: no process may write."""


# -- events: from the connection, and from the program -------------------------------------------------------------


class Connected(context.Event, frozen=True):
    has: tuple[int, ...] = ()
    """Generations of which the shell really has descriptors."""


class Disconnected(context.Event, frozen=True):
    why: str = ""
    """What came over it was no message."""


class Publish(context.Event, frozen=True):
    document: bytes
    sizes: tuple[int, ...]
    """All slabs' that were made."""


class Sleep(context.Event, frozen=True):
    """Everything is unmapped, and the descriptors are kept. Or a wake, or a move, is not wanted any more."""


class Release(context.Event, frozen=True):
    """The program gives up whatever it has or waits for, and keeps nothing (but descriptors of a pool)."""


# -- effects -------------------------------------------------------------------------------------------------------


class Connect(context.Effect, frozen=True):
    pass


class Say(context.Effect, frozen=True):
    message: m.ClientMessage
    generation: int = 0
    first: int = 0
    count: int = 0
    """Descriptors of the kept slabs `first` to `first + count` of that layout go with it."""


class Keep(context.Effect, frozen=True):
    generation: int
    first: int


class LetGo(context.Effect, frozen=True):
    generation: int


class Got(context.Effect, frozen=True):
    mode: Literal["rw", "ro"]
    generation: int
    hash: str = ""


class Owned(context.Effect, frozen=True):
    generation: int
    shape: m.Shape
    adopted: bool
    why_empty: str


class Disowned(context.Effect, frozen=True):
    why: str


class No(context.Effect, frozen=True):
    why: str
    reason: m.Reason | Literal["problem", "protocol"]


class Lost(context.Effect, frozen=True):
    """A writer's work is gone: it has to begin anew, with `Open`."""

    why: str


class Stale(context.Effect, frozen=True):
    generation: int
    why: str
