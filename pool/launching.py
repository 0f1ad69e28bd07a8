"""What the pool and the launcher say to each other over `launcher.sock`: which models' processes are to run.

The launcher (`failover models up`) is the parent of all of a host's processes. It starts and ends what the pool says,
and says what runs; it survives the pool, so a new pool hears first what there is. Shapes only. Pure.
"""

from typing import Annotated

import msgspec
from msgspec import Meta

from pool.entries import MOST_MODELS, Bytes, Count, Entry, Name, Sentence
from sidecar.wire.frames import Message

SOCKET = "launcher.sock"
LOCKS = "lock"
"""Below it in the host's directory each model has its run directory."""
OLDEST, PROTOCOL = 1, 1
MAX_FRAME_BYTES = 1 << 20


class Hello(Message, frozen=True):
    """From the pool. Answered by `Children`, now and at every change."""

    protocol: int
    newest: int = 0


class Start(Message, frozen=True):
    """This model's processes are to run; where they do already, as they are."""

    entry: Entry
    devices: Annotated[list[str], Meta(max_length=64)] = []
    runs_as: Annotated[str, Meta(max_length=64)] = ""
    """The pool's words for what of the entry they are started with; `Children` has them from then on."""


class End(Message, frozen=True):
    """This model's processes are to end: drained where an engine serves."""

    name: Name
    forget: bool = False
    """It is a model no more: its lock's directory goes, too."""


class ChildState(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    running: bool = False
    ends: Count = 0
    why: Sentence = ""
    """Why they can't be started, in their last words; a `Start` tries again. While they run: why an engine of them has
    ended last.
    """
    exit_code: Annotated[int, Meta(ge=0, le=255)] = 0
    """Why they can't be started, as a number: 64 or 65 by their engine's word (`sidecar/terminal/exit_codes.py`)."""
    host_bytes: Bytes = 0
    """What they have of the host's memory, without what is shared."""
    runs_as: Annotated[str, Meta(max_length=64)] = ""


class Children(Message, frozen=True):
    children: Annotated[dict[Name, ChildState], Meta(max_length=MOST_MODELS)] = {}


class Problem(Message, frozen=True):
    """What the sender did wrong. The connection ends with it."""

    why: str


FromPool = Hello | Start | End
FromLauncher = Children | Problem

from_pool: msgspec.msgpack.Decoder[FromPool] = msgspec.msgpack.Decoder(FromPool)
from_launcher: msgspec.msgpack.Decoder[FromLauncher] = msgspec.msgpack.Decoder(FromLauncher)
