"""What becomes of bytes that an engine has sent: what of them the client gets, and whether the answer ends there. Pure.

`undisturbed.py`, `continuing.py` and `comparing.py` each make one of these of everything that comes.
"""

import enum
from collections.abc import Callable

import msgspec

from gateway.rules import sse
from gateway.rules.answers import BrokenOff, Malformed


class End(enum.Enum):
    __hash__ = object.__hash__

    COMPLETE = "complete"
    """The answer is whole, and the client has all of it."""
    BROKEN = "broken"
    """The engine stops before the answer's end, or says that it failed."""
    MALFORMED = "malformed"
    """What it says is no answer."""
    DIFFERS = "differs"
    """What it says isn't the answer that the client has the beginning of."""
    TORN = "torn"
    """The texts on both sides of the break don't fit together."""


class ClientsPart(msgspec.Struct, frozen=True, gc=False):
    data: bytes
    """For the client."""
    end: End | None = None
    why: str = ""
    event: bytes = b""
    """In which the engine itself says that it failed."""


class Differs(Exception):
    """The answer is another one this time."""


class Torn(Exception):
    """The engine doesn't say that its text begins where the client's ends."""


UNFINISHED = "its stream ended before the answer did"


def take_each(found: sse.Events, take: Callable[[bytes], bytes], done: Callable[[], ClientsPart]) -> ClientsPart:
    """Takes events one by one; what came before one that can't be taken is the client's all the same. `done` says what
    `[DONE]` means.
    """
    said = b""
    for _, data in found:
        if data is None:
            continue
        if data == sse.DONE:
            last = done()
            return ClientsPart(said + last.data, last.end, last.why)
        try:
            said += take(data)
        except BrokenOff as error:
            return ClientsPart(said, End.BROKEN, str(error), sse.event(data))
        except Malformed as error:
            return ClientsPart(said, End.MALFORMED, str(error))
        except Differs as error:
            return ClientsPart(said, End.DIFFERS, str(error))
        except Torn as error:
            return ClientsPart(said, End.TORN, str(error))
    return ClientsPart(said)
