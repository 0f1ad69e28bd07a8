"""The first, undisturbed answer: it goes to the client event by event, in the engine's own bytes, and what the client
has is written down. Pure.
"""

import msgspec

from gateway.rules import sse
from gateway.rules.answers import Account, BrokenOff, Malformed, may_say_nothing, says_nothing, without_ids
from gateway.rules.clients_part import UNFINISHED, ClientsPart, End
from gateway.rules.kinds import Kind
from gateway.rules.legs import Leg


class Undisturbed:
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
