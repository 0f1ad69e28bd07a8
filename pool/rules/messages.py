"""What is said over `pool.sock`: every message. Two kinds of caller introduce themselves first: a door (`DoorHello`),
which says what it has for each model and hears what to expect, and an observer (`Observe`: `failover models`). Both may
ask for something (`Command`), and see all models as people see them (`AskModels`, `Watch`).

How two versions agree: `sidecar/wire/versions.py`. No descriptors travel. This file holds only shapes.
"""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from pool.entries import (
    MOST_MODELS,
    Called,
    Count,
    DeviceShown,
    Entry,
    Flags,
    ModelDemand,
    ModelOutlook,
    ModelShown,
    Name,
    Profile,
    Sentence,
)
from sidecar.wire.frames import Message

OLDEST, PROTOCOL = 1, 1
"""The oldest and the newest version that is spoken here."""
MAX_FRAME_BYTES = 16 << 20
"""Entries have templates."""

Verb = Literal["launch", "remove", "wake", "sleep", "stop", "pin", "unpin", "flags"]
Hex = Annotated[str, Meta(max_length=64)]


class DoorHello(Message, frozen=True):
    protocol: int
    newest: int = 0


class Observe(Message, frozen=True):
    protocol: int
    newest: int = 0


class Demand(Message, frozen=True):
    """All that a door has at the moment, and not what has changed. It ends with the door's connection."""

    models: Annotated[dict[Name, ModelDemand], Meta(max_length=MOST_MODELS)] = {}


class AskModels(Message, frozen=True):
    pass


class Watch(Message, frozen=True):
    """From now on a `Listing` at every change."""


class Command(Message, frozen=True):
    """`launch` needs `entry`, `flags` needs `flags`, all others the name of a model (or what it is called, too).

    sleep: it isn't waked again before a request comes for it. stop: its processes end. remove: it is forgotten.
    """

    number: Count
    """The caller's: the answer says it again."""
    verb: Verb
    name: Called | None = None
    entry: Entry | None = None
    flags: Flags | None = None


FromAny = DoorHello | Observe | Demand | AskModels | Watch | Command


class Welcome(Message, frozen=True):
    incarnation: Hex
    protocol: int = 0
    """The version that both speak from here on."""


class Models(Message, frozen=True):
    """To a door: what models there are. At first, and whenever the file has changed, or a flag."""

    entries: list[Entry] = []
    profiles: list[Profile] = []
    flags: Flags = Flags()
    default: str = ""
    """The model of requests that name none; empty: there is none."""


class Outlook(Message, frozen=True):
    """To a door: all models, whenever something of it has changed."""

    models: dict[str, ModelOutlook] = {}


class Listing(Message, frozen=True):
    """To an observer: all models as people see them."""

    models: list[ModelShown] = []
    devices: list[DeviceShown] = []
    token: Count = 0
    """Grows with every change: a watcher may ask for what is newer."""
    flags: Flags = Flags()
    swapping_share: float = 0.0
    """How much of the last ten minutes a device served no model because of a swap."""
    quantum_s: float = 0.0
    """How long others may be awake, at most, before it is a paused answer's turn again: its pause is no longer than
    this and two swaps."""
    waiting_for: Sentence = ""
    """What the pool itself lacks (the ledger, say): nothing swaps until it is there."""
    alarms: list[str] = []


class CommandDone(Message, frozen=True):
    """It was done, or is on its way (202), or wasn't done."""

    number: Count
    ok: bool
    status: int
    """As HTTP has it."""
    detail: Sentence = ""


class Incompatible(Message, frozen=True):
    oldest: int
    newest: int
    why: str


class Busy(Message, frozen=True):
    """There is no room now. Not final: ask again later."""

    why: str


class Problem(Message, frozen=True):
    """What the sender did wrong. The connection ends with it."""

    why: str


FromPool = Welcome | Models | Outlook | Listing | CommandDone | Incompatible | Busy | Problem

from_any: msgspec.msgpack.Decoder[FromAny] = msgspec.msgpack.Decoder(FromAny)
from_pool: msgspec.msgpack.Decoder[FromPool] = msgspec.msgpack.Decoder(FromPool)
