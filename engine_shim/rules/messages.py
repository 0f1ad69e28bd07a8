"""What the processes of an engine and their shim say to each other, over `DIR/engine/<engine_id>.shim.sock`.

A process says `Hello` first and touches no device before the `Welcome`. The main process then reports each step when
it has taken it, and beats. A program that only looks says `AskState`. Frames and descriptors are in
`sidecar/wire/frames.py`; what follows from a message is in `lifecycle.py`.
"""

from typing import Annotated, Any

import msgspec

from sidecar.wire.frames import Message

PROTOCOL = 1

TEXT_MOST = 2000
Text = Annotated[str, msgspec.Meta(max_length=TEXT_MOST)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Count = Annotated[int, msgspec.Meta(ge=0)]


class Hello(Message, frozen=True):
    """From a process of the tree. It brings a pidfd of itself, for kernels that don't name their peers."""

    protocol: int
    start: Count
    """Which start of the engine it belongs to, as its environment says."""
    pid: Count
    main: bool = False


class Named(Message, frozen=True):
    """From the main process: the name under which the lock server knows this start."""

    incarnation: Annotated[str, msgspec.Meta(pattern=r"^[A-Za-z0-9._-]{1,128}$")]


class Step(Message, frozen=True):
    """From the main process: it has got this far."""

    to: Annotated[str, msgspec.Meta(pattern="^(standby|waking|active|draining|sleeping)$")]
    token: Count = 0
    url: Annotated[str, msgspec.Meta(max_length=1000)] = ""


class Beat(Message, frozen=True):
    """From the main process, a few times a second at most: how the engine is."""

    well: bool
    why: Text = ""
    queued: Count = 0
    steps: Count = 0
    unreachable: Text = ""
    """Why no client could connect to its address; empty if clients can, or could once it serves."""


class Takes(Message, frozen=True):
    """From the main process: what decides which requests it takes, by name."""

    takes: Annotated[dict[str, str], msgspec.Meta(max_length=64)]


class Phase(Message, frozen=True):
    """How long a part of a step took."""

    name: Annotated[str, msgspec.Meta(pattern="^[a-z_]{1,32}$")]
    seconds: Seconds


class Adopted(Message, frozen=True):
    """From whichever process of the tree keeps the books: what has come of the predecessor's KV cache, in blocks."""

    adopted: Count
    dropped: Count
    why: Annotated[str, msgspec.Meta(pattern="^[a-z_]{1,32}$")]
    """Why not all of it was adopted; `none`: all of it was."""


class Failing(Message, frozen=True):
    """From any process of the tree, in its last moment: why it ends."""

    why: Text
    exit_code: Annotated[int, msgspec.Meta(ge=0, le=255)] = 0
    """Another start would end in the same way: the shim ends with this. 0: it may help."""
    transient: bool = False
    """Waiting may mend it: weights that are not there yet, memory, a permit, another process that has ended."""


class AskState(Message, frozen=True):
    """From any program: what does `/state` say?"""


class Welcome(Message, frozen=True):
    beat_s: float
    """How often the main process is to beat."""


class StateIs(Message, frozen=True):
    state: dict[str, Any]


class Problem(Message, frozen=True):
    """What was wrong. The connection ends with it."""

    why: str


ToShim = Hello | Named | Step | Beat | Takes | Phase | Adopted | Failing | AskState
FromShim = Welcome | StateIs | Problem

to_shim: msgspec.msgpack.Decoder[ToShim] = msgspec.msgpack.Decoder(ToShim)
from_shim: msgspec.msgpack.Decoder[FromShim] = msgspec.msgpack.Decoder(FromShim)
