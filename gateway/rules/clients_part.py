"""What becomes of bytes that an engine has sent: what of them the client gets, and whether the answer ends there. Pure.

The first, undisturbed answer (here), one that is continued (`continuing.py`) and one that is compared (`comparing.py`)
each make one of these of everything that comes.
"""

import enum
from collections.abc import Callable

import msgspec

from gateway.rules import sse
from gateway.rules.answers import Account, BrokenOff, Malformed, may_say_nothing, says_nothing, without_ids
from gateway.rules.kinds import Kind
from gateway.rules.legs import Leg


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


class Undisturbed:
    """It goes to the client event by event, in the engine's own bytes, and what the client has is written down."""

    __slots__ = ("_account", "_hides_ids", "proven")

    def __init__(self, kind: Kind, account: Account | None) -> None:
        self._account = account
        """What the answer says isn't known here, if there is none."""
        self._hides_ids = not kind.wants_ids
        self.proven = False
        """The engine has given some of the answer."""

    def take(self, leg: Leg, data: bytes) -> ClientsPart:
        """Raises sse.TooLarge."""
        assert leg.reader is not None
        account = self._account
        buffer, found = leg.reader.feed(data)
        if account is None:
            self.proven = self.proven or bool(found)
            return ClientsPart(buffer[: found[-1][0]] if found else b"")
        start = end = 0
        silent: list[tuple[int, int]] = []
        """Chunks that say nothing, where they begin and end."""
        last = ClientsPart(b"")
        for ends, said in found:
            if said is None:
                end = ends
                if not account.id:
                    start = ends  # a comment is no beginning of an answer
            elif said == sse.DONE:
                last = ClientsPart(b"", End.COMPLETE) if account.complete else ClientsPart(b"", End.BROKEN, UNFINISHED)
                end = ends if account.complete else end
                break
            else:
                try:
                    chunk = account.take(said)
                except BrokenOff as error:
                    last = ClientsPart(b"", End.BROKEN, str(error), buffer[end:ends])
                    break
                except Malformed as error:
                    last = ClientsPart(b"", End.MALFORMED, str(error))
                    break
                if self._hides_ids and may_say_nothing(chunk) and says_nothing(msgspec.json.decode(said)["choices"]):
                    silent.append((end, ends))
                end = ends
        if not self.proven:
            self.proven = not account.empty
        passed = buffer[start:end] if start or end < len(buffer) else buffer
        if silent:
            cuts = [start, *(at for some in silent for at in some), end]
            passed = b"".join(buffer[at:to] for at, to in zip(cuts[::2], cuts[1::2], strict=True))
        if self._hides_ids:
            passed = without_ids(passed)
        return ClientsPart(passed, last.end, last.why, last.event)
