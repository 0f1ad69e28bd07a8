"""How a request stands with its engine: the phases, and which may follow which; and its exchanges with that engine, one
for its answer as a rule, one for each choice that is continued. Each is a *leg*, known by a number. Pure.
"""

import enum

from gateway.rules import events as e
from gateway.rules import sse
from gateway.rules.kinds import Kind


class BrokenRule(Exception):
    """The machine itself is wrong."""


class Phase(enum.Enum):
    __hash__ = object.__hash__  # an Enum's own is made of Python, and asked for very often

    WAITING = "waiting"
    """No engine has it; it stands in the door's queue."""
    ASKED = "asked"
    """An engine has it; the client has nothing of an answer."""
    STREAMING = "streaming"
    """The answer is passed on as it comes."""
    CONTINUING = "continuing"
    """Another engine goes on from the client's last token."""
    REPEATING = "repeating"
    """Another engine says it all again, and what is new is passed on."""
    DOUBTFUL = "doubtful"
    """The answer broke, or the engine said that it failed; the lock is asked."""
    OVER = "over"


MAY_FOLLOW: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.ASKED, Phase.CONTINUING, Phase.REPEATING, Phase.OVER}),
    Phase.ASKED: frozenset({Phase.STREAMING, Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.STREAMING: frozenset({Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.CONTINUING: frozenset({Phase.REPEATING, Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.REPEATING: frozenset({Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.DOUBTFUL: frozenset({Phase.WAITING, Phase.OVER}),
    Phase.OVER: frozenset(),
}
WITH_AN_ENGINE = frozenset({Phase.ASKED, Phase.STREAMING, Phase.CONTINUING, Phase.REPEATING, Phase.DOUBTFUL})


class Leg:
    __slots__ = ("body", "choice", "headers", "passes", "reader", "size", "status", "whole")

    def __init__(self, *, choice: int | None = None) -> None:
        self.choice = choice
        """Which choice of a continued answer."""
        self.status = 0
        self.headers: e.Headers = ()
        self.reader: sse.Reader | None = None
        """It streams."""
        self.body: list[bytes] = []
        self.size = 0
        self.passes = False
        """It goes to the client as it comes, and what it says isn't known here."""
        self.whole = False
        """It has said all that is wanted; what still comes is its end."""

    @property
    def form(self) -> bytes:
        """What its answer is, as its head says."""
        for name, value in self.headers:
            if name == b"content-type":
                return value.lower()
        return b""


class Legs(dict[int, Leg]):
    """Those that are open."""

    __slots__ = ("_kind", "_last", "_number")

    def __init__(self, number: int, kind: Kind) -> None:
        super().__init__()
        self._number = number
        self._kind = kind
        self._last = 0

    def ask_all(self, token: int, url: str) -> e.Ask:
        """The request as it came."""
        kind = self._kind
        method = "GET" if kind.method == "HEAD" else kind.method
        number = self._add(Leg())
        return e.Ask(self._number, number, token, url, method, kind.target, kind.headers, kind.body, kind.repeatable)

    def ask_rest(self, choice: int, token: int, url: str, body: bytes) -> e.Ask:
        """The rest of one choice, in the request's name."""
        kind = self._kind
        headers = [header for header in kind.headers if header[0] not in (b"x-request-id", b"content-type")]
        headers.append((b"content-type", b"application/json"))
        if kind.request_id:
            headers.append((b"x-request-id", f"{kind.request_id}-{choice}".encode()))
        number = self._add(Leg(choice=choice))
        return e.Ask(self._number, number, token, url, "POST", b"/v1/completions", headers, body, True)

    def drop_finished(self, choice: int) -> list[e.Effect]:
        """Those of a choice that needs no more."""
        numbers = [number for number, leg in self.items() if leg.choice == choice]
        return [self._drop(number, ending=True) for number in numbers]

    def drop_all(self, done: int = 0) -> list[e.Effect]:
        """`done`: the one on which the answer was completed."""
        return [self._drop(number, number == done or self[number].whole) for number in list(self)]

    def _drop(self, number: int, ending: bool) -> e.Effect:
        del self[number]
        return e.Drop(self._number, number, ending)

    def _add(self, leg: Leg) -> int:
        self._last += 1
        self[self._last] = leg
        return self._last
