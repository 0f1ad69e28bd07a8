"""A request's exchanges with its engine: one for its answer as a rule, one for each choice that is continued, and short
ones that ask what some tokens are in text. Each is a *leg*, known by a number. Pure.
"""

from collections.abc import Iterator

from gateway import events as e
from gateway import sse
from gateway.kinds import Kind


class Leg:
    __slots__ = ("body", "choice", "headers", "passes", "reader", "size", "status", "text", "whole")

    def __init__(self, *, choice: int | None = None, text: bool = False) -> None:
        self.choice = choice
        """Which choice of a continued answer."""
        self.text = text
        """It asks for some tokens' text, and not for an answer."""
        self.status = 0
        self.headers: e.Headers = ()
        self.reader: sse.Reader | None = None
        """It streams."""
        self.body: list[bytes] = []
        self.size = 0
        self.passes = False
        """It goes to the client as it comes, and nobody here knows what it says."""
        self.whole = False
        """It has said all that is wanted; what still comes is its end."""

    @property
    def form(self) -> bytes:
        """What its answer is, as its head says."""
        return next((value for name, value in self.headers if name == b"content-type"), b"").lower()


class Legs:
    __slots__ = ("_kind", "_last", "_number", "_open")

    def __init__(self, number: int, kind: Kind) -> None:
        self._number = number
        self._kind = kind
        self._open: dict[int, Leg] = {}
        self._last = 0

    def __len__(self) -> int:
        return len(self._open)

    def __iter__(self) -> Iterator[Leg]:
        return iter(self._open.values())

    def get(self, number: int) -> Leg | None:
        return self._open.get(number)

    def pop(self, number: int) -> Leg | None:
        """It has ended by itself."""
        return self._open.pop(number, None)

    def ask_all(self, token: int, url: str) -> e.Ask:
        """The request as it came."""
        kind = self._kind
        method = "GET" if kind.method == "HEAD" else kind.method
        number = self._add(Leg())
        return e.Ask(self._number, number, token, url, method, kind.target, kind.headers, kind.body, kind.repeatable)

    def ask(self, leg: Leg, token: int, url: str, target: bytes, body: bytes, suffix: str = "") -> e.Ask:
        """Something else, in its name."""
        kind = self._kind
        headers = [header for header in kind.headers if header[0] not in (b"x-request-id", b"content-type")]
        headers.append((b"content-type", b"application/json"))
        if kind.request_id:
            headers.append((b"x-request-id", f"{kind.request_id}{suffix}".encode()))
        return e.Ask(self._number, self._add(leg), token, url, "POST", target, headers, body, True)

    def drop_finished(self, choice: int, *, ending: bool) -> list[e.Effect]:
        """Those of a choice that needs no more."""
        numbers = [number for number, leg in self._open.items() if leg.choice == choice and not leg.text]
        return [self._drop(number, ending) for number in numbers]

    def drop_all(self, done: int = 0) -> list[e.Effect]:
        """`done`: the one on which the answer was completed."""
        numbers = list(self._open)
        return [self._drop(number, number == done or self._open[number].whole) for number in numbers]

    def _drop(self, number: int, ending: bool) -> e.Effect:
        del self._open[number]
        return e.Drop(self._number, number, ending)

    def _add(self, leg: Leg) -> int:
        self._last += 1
        self._open[self._last] = leg
        return self._last
