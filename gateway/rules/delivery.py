"""What was said to a request's client, and when: the head, pieces of an answer, comments while it waits, the end. And
the pause that it sees when its engine is lost: how long it is, and where the time goes. Pure.

Nothing that was said can be taken back.
"""

from gateway.rules import errors, sse
from gateway.rules import events as e
from gateway.rules.legs import Leg


class Delivery:
    __slots__ = ("_events", "_number", "_pause", "_talked_at", "greeted", "opened", "spoken_at")

    def __init__(self, number: int, now: float, greeted: bool) -> None:
        self._number = number
        self.greeted = greeted
        """The head of a stream is out, and comments: nothing of an answer."""
        self.opened = False
        """The head is out, and what follows is the body of that answer."""
        self._events = False
        """It is a stream of events."""
        self.spoken_at = now
        """When the client last got some of an answer; before that, when it came."""
        self._talked_at = now
        """When it last got anything at all."""
        self._pause: _Pause | None = None

    def say(self, data: bytes, now: float, leg: Leg | None, engine: bool) -> list[e.Effect]:
        """Some of the answer. `leg`: whose head it has, if it is the first. `engine`: one has just said it."""
        out: list[e.Effect] = []
        if not self.opened:
            assert leg is not None
            out += self._open(leg)
        if engine and self._pause is not None:
            if not self._pause.leased:
                out.append(e.Resumed(self._number, self._pause.over(self.spoken_at, now)))
            self._pause = None
        out.append(e.Send(self._number, data))
        self.spoken_at = self._talked_at = now
        return out

    def comment(self, text: str, now: float, leg: Leg | None) -> list[e.Effect]:
        """So that no proxy between client and door takes the connection for dead, and a person knows what for."""
        out: list[e.Effect] = []
        if not self.opened and leg is not None:
            out = self._open(leg)
        elif not self.opened and not self.greeted:
            self.greeted = True
            out.append(e.Open(self._number, 200, errors.EVENTS))
        self._talked_at = now
        return [*out, e.Send(self._number, sse.comment(text))]

    def _open(self, leg: Leg) -> list[e.Effect]:
        self.opened, self._events = True, leg.reader is not None
        return [] if self.greeted else [e.Open(self._number, leg.status, leg.headers)]

    def quiet_for(self, now: float) -> float:
        return now - self._talked_at

    def say_whole(self, status: int, headers: e.Headers, body: bytes) -> list[e.Effect]:
        """An answer in one piece, to a client that has nothing; in a stream it is an error."""
        self.opened = True
        if self.greeted:
            return [e.Send(self._number, sse.event(b"".join(body.splitlines()))), e.Cut(self._number)]
        return [e.Whole(self._number, status, headers, body)]

    def fail(self, error: bytes, *, named: bool, headers: e.Headers) -> list[e.Effect]:
        """The answer ends with an error. `named`: where it is a stream, its events have names. `headers`: where nothing
        of an answer is out.
        """
        if not self.opened:
            return self.say_whole(502, headers, error)
        said: list[e.Effect] = []
        if self._events:
            said.append(e.Send(self._number, b"event: error\n" * named + sse.event(error)))
        return [*said, e.Cut(self._number)]

    # -- the pause -------------------------------------------------------------------------------------------------

    @property
    def paused(self) -> bool:
        """Its engine was lost, and it has had nothing of another one."""
        return self._pause is not None

    def note_lost(self, now: float, leased: bool) -> None:
        """`leased`: no engine was lost, it had to give way."""
        if self._pause is None:
            self._pause = _Pause(now, leased)

    def note_admitted(self, now: float, open_since: float) -> None:
        if self._pause is not None:
            self._pause.note_admitted(now, open_since)

    def note_first_token(self, now: float) -> None:
        """The engine that has it now has given its first token."""
        if self._pause is not None and self._pause.read_at is None:
            self._pause.read_at = now


class _Pause:
    __slots__ = ("admitted_at", "leased", "noticed_at", "open_since", "read_at")

    def __init__(self, now: float, leased: bool) -> None:
        self.leased = leased
        self.noticed_at = self.admitted_at = self.open_since = now
        self.read_at: float | None = None

    def note_admitted(self, now: float, open_since: float) -> None:
        self.admitted_at, self.read_at = now, None
        self.open_since = max(open_since, self.noticed_at)

    def over(self, spoken_at: float, now: float) -> e.Gap:
        read_at = now if self.read_at is None else self.read_at
        return e.Gap(
            total_s=now - spoken_at,
            noticed_s=self.noticed_at - spoken_at,
            engine_s=self.open_since - self.noticed_at,
            turn_s=self.admitted_at - self.open_since,
            reading_s=read_at - self.admitted_at,
            repeating_s=now - read_at,
        )
