"""One request: what its client has, what its engine says, and what is owed.

The client has the bytes that were passed on, and nothing takes them back. Everything else follows from that:

1. A client that has nothing of an answer may get any whole answer. One that has some gets the rest of *that* answer, or
   an error that says that there is none: never an answer that is cut and looks complete.
2. An answer is complete when each of its choices has a reason to end. `[DONE]` without that, a body that ends early, an
   error of the engine's: all of these are doubts, and the lock is asked. If the engine has lost it, another goes on. If
   it still holds it, the failure is the engine's own word, and is passed on.
3. What is no answer at all (HTTP or JSON that is none) isn't put down to a death: it is the end, and is reported.
4. Nothing is passed on of an engine that the door has taken away.

How it goes on: `kinds.py` says which way is open, `continuing.py` (the rest, token by token) and `comparing.py` (the
whole once more) walk it. Pure.
"""

import enum
from collections.abc import Callable

import msgspec

from gateway import answers, errors, sse
from gateway import events as e
from gateway.answers import Account, BrokenOff, Malformed, without_ids
from gateway.comparing import Comparison, Differs
from gateway.continuing import Continuing
from gateway.kinds import Api, Kind, Way
from gateway.seam import Torn


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


FOLLOWS: dict[Phase, frozenset[Phase]] = {
    Phase.WAITING: frozenset({Phase.ASKED, Phase.CONTINUING, Phase.REPEATING, Phase.OVER}),
    Phase.ASKED: frozenset({Phase.STREAMING, Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.STREAMING: frozenset({Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.CONTINUING: frozenset({Phase.REPEATING, Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.REPEATING: frozenset({Phase.DOUBTFUL, Phase.WAITING, Phase.OVER}),
    Phase.DOUBTFUL: frozenset({Phase.WAITING, Phase.OVER}),
    Phase.OVER: frozenset(),
}
WITH_AN_ENGINE = frozenset({Phase.ASKED, Phase.STREAMING, Phase.CONTINUING, Phase.REPEATING, Phase.DOUBTFUL})


class BrokenRule(Exception):
    """The machine itself is wrong."""


class Leg:
    """One exchange with an engine."""

    __slots__ = ("body", "choice", "headers", "passes", "reader", "size", "status", "text", "whole")

    def __init__(self, *, choice: int | None = None, text: bool = False) -> None:
        self.choice = choice
        """Of a continued answer: which of its choices."""
        self.text = text
        """What some tokens are in text, and no answer."""
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


class Failure(msgspec.Struct, frozen=True):
    """What an engine said, or didn't, when it failed."""

    why: str
    status: int = 0
    """Of a whole answer that says so; 0 for none."""
    headers: e.Headers = ()
    body: bytes = b""
    event: bytes = b""
    """Of a stream that says so."""


class Request:
    __slots__ = (
        "_bounds", "_comparison", "_continuing", "_failure", "_head_open", "_last_leg", "_lost_at", "_out", "_restarts",
        "_spoken_at", "_talked_at", "account", "kind", "legs", "max_len", "number", "phase", "silent", "token", "url",
        "ways",
    )  # fmt: skip

    def __init__(self, number: int, kind: Kind, bounds: e.Bounds) -> None:
        self.number = number
        self.kind = kind
        self.phase = Phase.WAITING
        self.token = 0
        """Of the engine that has it."""
        self.url = ""
        self.legs: dict[int, Leg] = {}
        self.account: Account | None = None
        """What the client has, where that is known."""
        self.ways: list[Way] = []
        """How it has gone on so far."""
        self.silent = False
        """It was said that nothing comes."""
        self.max_len: int | None = None
        """Of the model: prompt and answer together."""
        self._bounds = bounds
        self._head_open = False
        self._comparison: Comparison | None = None
        self._continuing: Continuing | None = None
        self._failure: Failure | None = None
        self._last_leg = 0
        self._lost_at: float | None = None
        """When the client last got something of an engine that was lost since; None when it has got something since."""
        self._spoken_at = 0.0
        """When the client last got anything of an answer."""
        self._talked_at = 0.0
        """Or a comment."""
        self._restarts = 0
        self._out: list[e.Effect] = []

    # -- from outside ----------------------------------------------------------------------------------------------

    def begin(self, now: float) -> list[e.Effect]:
        self._spoken_at = self._talked_at = now
        return [e.Wait(self.number, False)]

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        self._out = []
        if self.phase is not Phase.OVER:
            _HANDLERS[type(event)](self, event, now)
        return self._out

    def check(self) -> str:
        """What is wrong with it, if anything is."""
        if (self.phase in WITH_AN_ENGINE) is not bool(self.token):
            return f"request {self.number} is {self.phase.value} with token {self.token}"
        if self.legs and self.phase not in WITH_AN_ENGINE:
            return f"request {self.number} is {self.phase.value} and speaks with an engine"
        return ""

    def _move(self, to: Phase) -> None:
        if to not in FOLLOWS[self.phase]:
            raise BrokenRule(f"request {self.number} can't go from {self.phase.value} to {to.value}")
        self.phase = to

    # -- with an engine --------------------------------------------------------------------------------------------

    def _admitted(self, event: e.Admit, now: float) -> None:
        self.token, self.url = event.token, event.url
        way = self._way()
        if way is None:
            self._move(Phase.ASKED)
            self.account = None
            self._ask_all()
            return
        self.ways.append(way)
        if way is Way.CONTINUED:
            self._continue(now)
        else:
            self._repeat()

    def _way(self) -> Way | None:
        """How to go on with what the client has; None while that is nothing."""
        account = self.account
        if not self._head_open or account is None:
            return Way.ENDED if self._head_open else None
        if not account.id:
            return None  # it has comments only
        if account.empty:
            return Way.COMPARED  # a role; there is nothing that could differ
        if self.kind.way is Way.CONTINUED and Continuing.can(self.kind, account, self.max_len):
            return Way.CONTINUED
        return Way.COMPARED if self.kind.same_again else Way.ENDED

    def _continue(self, now: float) -> None:
        assert self.account is not None
        self._move(Phase.CONTINUING)
        self._continuing = Continuing(self.kind, self.account, self.max_len)
        said, asked = self._continuing.begin()
        for choice, body in asked:
            self._ask(Leg(choice=choice), b"/v1/completions", body, f"-{choice}")
        self._say(said, now, None)
        self._mind_continued(now)

    def _repeat(self) -> None:
        assert self.account is not None
        self._move(Phase.REPEATING)
        self._continuing = None
        self._comparison = Comparison(self.kind, self.account)
        self._ask_all()

    def _ask_all(self) -> None:
        kind = self.kind
        leg = self._add(Leg())
        method = "GET" if kind.method == "HEAD" else kind.method
        self._out.append(
            e.Ask(self.number, leg, self.token, self.url, method, kind.target, kind.headers, kind.body, kind.repeatable)
        )

    def _ask(self, leg: Leg, target: bytes, body: bytes, suffix: str = "") -> None:
        kind = self.kind
        headers = [header for header in kind.headers if header[0] not in (b"x-request-id", b"content-type")]
        headers.append((b"content-type", b"application/json"))
        if kind.request_id:
            headers.append((b"x-request-id", f"{kind.request_id}{suffix}".encode()))
        number = self._add(leg)
        self._out.append(e.Ask(self.number, number, self.token, self.url, "POST", target, headers, body, True))

    def _add(self, leg: Leg) -> int:
        self._last_leg += 1
        self.legs[self._last_leg] = leg
        return self._last_leg

    def _mind_seams(self) -> None:
        """Asks for the text that the seams want."""
        assert self._continuing is not None
        for choice, body in self._continuing.questions():
            self._ask(Leg(choice=choice, text=True), b"/detokenize", body)

    # -- what an engine says ---------------------------------------------------------------------------------------

    def _headed(self, event: e.Headed, now: float) -> None:
        leg = self.legs.get(event.leg)
        if leg is None:
            return
        leg.status, leg.headers = event.status, event.headers
        kind = next((value for name, value in event.headers if name == b"content-type"), b"")
        streams = event.status < 300 and kind.lower().startswith(b"text/event-stream")
        if streams:
            leg.reader = sse.Reader(self._bounds.event_bytes)
            known = self.kind.api is not Api.OTHER and self.kind.streams
            if known and self.phase is Phase.ASKED:
                self.account = Account(self.kind)
            leg.passes = not known
        elif (event.length or 0) > self._bounds.answer_bytes and event.status < 300:
            leg.passes = True

    def _answered(self, event: e.Answered, now: float) -> None:
        self._headed(e.Headed(event.request, event.leg, event.status, event.headers, len(event.body)), now)
        self._came(e.Came(event.request, event.leg, event.body), now)
        if self.phase is not Phase.OVER:
            self._finished(e.Finished(event.request, event.leg), now)

    def _came(self, event: e.Came, now: float) -> None:
        leg = self.legs.get(event.leg)
        if leg is None or leg.whole:
            return
        if leg.reader is None:
            self._gather(leg, event.data, now)
            return
        try:
            if self.phase is Phase.CONTINUING:
                self._take_rest(event.leg, leg, event.data, now)
            elif self.phase is Phase.REPEATING:
                self._take_again(event.leg, leg, event.data, now)
            else:
                self._pass_on(event.leg, leg, event.data, now)
        except (Malformed, sse.TooLarge) as error:
            self._malformed(str(error), now)
        except Differs as error:
            self._end_badly(
                "the answer could not be continued: made once more, it is another one", now, detail=str(error)
            )

    def _gather(self, leg: Leg, data: bytes, now: float) -> None:
        """Of an answer in one piece."""
        if leg.passes:
            self._say(data, now, leg)
            return
        leg.body.append(data)
        leg.size += len(data)
        if leg.size > self._bounds.answer_bytes and leg.status < 300:
            if self.phase is not Phase.ASKED or leg.text:
                self._malformed("an answer of its is too large", now)
                return
            leg.passes = True
            body, leg.body = b"".join(leg.body), []
            self._say(body, now, leg)

    def _pass_on(self, number: int, leg: Leg, data: bytes, now: float) -> None:
        """The first, undisturbed answer: event by event, in the engine's own bytes."""
        assert leg.reader is not None
        account = self.account
        buffer, found = leg.reader.feed(data)
        start = end = 0
        failure: Failure | None = None
        problem: Malformed | None = None
        for ends, said in found:
            if said is None or account is None:
                end = ends
                if account is not None and not account.id:
                    start = ends  # a comment is no beginning of an answer
            elif said == sse.DONE:
                if account.complete:
                    leg.whole, end = True, ends
                else:
                    failure = Failure("its stream ended before the answer did")
                break
            else:
                try:
                    account.take(said)
                except BrokenOff as error:
                    failure = Failure(str(error), event=buffer[end:ends])
                    break
                except Malformed as error:
                    problem = error
                    break
                end = ends
        if end > start:
            data = buffer[start:end]
            self._say(data if account is None or self.kind.wants_ids else without_ids(data), now, leg)
        if problem is not None:
            raise problem
        if failure is not None:
            self._doubt(failure)
        elif leg.whole:
            self._complete(number)

    def _take_rest(self, number: int, leg: Leg, data: bytes, now: float) -> None:
        assert leg.reader is not None and leg.choice is not None and self._continuing is not None
        for _, said in leg.reader.feed(data)[1]:
            if said is None:
                continue
            if said == sse.DONE:
                leg.whole = True
                if not self._continuing.ended(leg.choice):
                    self._doubt(Failure("its stream ended before the answer did"))
                    return
                break
            try:
                self._say(self._continuing.take(leg.choice, said), now, None)
            except BrokenOff as error:
                self._doubt(Failure(str(error), event=sse.event(said)))
                return
        self._mind_continued(now)

    def _mind_continued(self, now: float) -> None:
        account, continuing = self.account, self._continuing
        assert account is not None and continuing is not None
        if account.complete:
            self._close_stream(now)
            return
        for number, leg in list(self.legs.items()):
            if leg.choice is not None and not leg.text and account.choice(leg.choice).finish is not None:
                del self.legs[number]
                self._out.append(e.Drop(self.number, number, continuing.ended(leg.choice)))
        self._mind_seams()

    def _take_again(self, number: int, leg: Leg, data: bytes, now: float) -> None:
        assert leg.reader is not None and self._comparison is not None and self.account is not None
        for _, said in leg.reader.feed(data)[1]:
            if said is None:
                continue
            if said == sse.DONE:
                if not self.account.complete:
                    self._doubt(Failure("its stream ended before the answer did"))
                    return
                leg.whole = True
                self._say(sse.event(said), now, None)
                self._complete(number)
                return
            try:
                self._say(self._comparison.take(said), now, None)
            except BrokenOff as error:
                self._doubt(Failure(str(error), event=sse.event(said)))
                return

    def _finished(self, event: e.Finished, now: float) -> None:
        leg = self.legs.pop(event.leg, None)
        if leg is None or leg.whole:
            return
        if leg.text:
            self._hear_text(leg, now)
            return
        if leg.passes:
            self._out.append(e.End(self.number))
            self._over(e.Outcome.ANSWERED)
            return
        body = b"".join(leg.body)
        if leg.reader is not None:
            self._stream_finished(leg, now)
        elif leg.status >= 500:
            self._doubt(Failure(f"it answered {leg.status}", leg.status, leg.headers, body))
        elif self.phase is Phase.ASKED and not self._head_open:
            self._out.append(e.Whole(self.number, leg.status, leg.headers, body))
            self._over(e.Outcome.ANSWERED)
        elif leg.status < 300:
            self._malformed("it answers a stream's request without a stream", now)
        else:
            self._end_badly(f"another engine would not go on with it: it answered {leg.status}", now, body=body)

    def _stream_finished(self, leg: Leg, now: float) -> None:
        """Without `[DONE]`, or it would be whole already."""
        account = self.account
        if self.phase is Phase.CONTINUING:
            assert self._continuing is not None and leg.choice is not None
            if not self._continuing.ended(leg.choice):
                self._doubt(Failure("its stream ended before the answer did"))
        elif account is not None and account.complete:
            self._close_stream(now)
        else:
            self._doubt(Failure("its stream ended before the answer did"))

    def _close_stream(self, now: float) -> None:
        """Every choice is finished, and only what closes a stream is missing."""
        assert self.account is not None
        if self.kind.usage and not self.account.usage:
            self._say(answers.closing_usage(self.kind, self.account), now, None)
        self._say(sse.event(sse.DONE), now, None)
        self._complete(0)

    def _hear_text(self, leg: Leg, now: float) -> None:
        assert leg.choice is not None and self._continuing is not None
        try:
            if leg.status != 200:
                raise Torn(f"it answered {leg.status} where it was asked for some tokens' text")
            self._say(self._continuing.heard(leg.choice, b"".join(leg.body)), now, None)
        except Torn as error:
            self._drop_all()
            if self.kind.same_again:
                self.ways[-1] = Way.COMPARED
                self._repeat()
            else:
                self._end_badly("the answer could not be continued without a seam", now, detail=str(error))
            return
        self._mind_continued(now)

    # -- when it fails ---------------------------------------------------------------------------------------------

    def _broke(self, event: e.Broke, now: float) -> None:
        leg = self.legs.pop(event.leg, None)
        if leg is None or leg.whole:
            return
        if event.malformed:
            self._malformed(event.why, now)
        elif leg.status >= 500:
            self._doubt(Failure(f"it answered {leg.status}", leg.status, leg.headers, b"".join(leg.body)))
        else:
            self._doubt(Failure(event.why))

    def _not_sent(self, event: e.NotSent, now: float) -> None:
        """It waits on, as if it had not been admitted."""
        if self.legs.pop(event.leg, None) is None:
            return
        self._drop_all()
        if self.phase is not Phase.ASKED:
            self.ways.pop()
        self._leave_engine()
        self._out.append(e.Wait(self.number, self._lost_at is not None))

    def _doubt(self, failure: Failure) -> None:
        self._drop_all()
        self._failure = failure
        self._move(Phase.DOUBTFUL)
        self._out.append(e.Doubt(self.number))

    def _verdict(self, event: e.Verdict, now: float) -> None:
        failure = self._failure
        if self.phase is not Phase.DOUBTFUL or failure is None:
            return
        self._failure = None
        if event.lost or (failure.status == 503 and not event.admits and not self._head_open):
            self._go_on(now)
        elif failure.status and not self._head_open:
            self._out.append(e.Whole(self.number, failure.status, failure.headers, failure.body))
            self._over(e.Outcome.ANSWERED, failure.why)
        elif failure.event:
            self._say(failure.event, now, None)
            self._out.append(e.Cut(self.number))
            self._over(e.Outcome.ENDED, failure.why)
        else:
            self._end_badly(f"the engine failed, and still holds the lock: {failure.why}", now)

    def _taken_away(self, event: e.TakeAway, now: float) -> None:
        if self.phase in WITH_AN_ENGINE:
            self._drop_all()
            self._go_on(now)

    def _go_on(self, now: float) -> None:
        """Its engine is lost, or wants it no more."""
        self._drop_all()
        self._leave_engine()
        if self._lost_at is None:
            self._lost_at = self._spoken_at
        account = self.account
        way = self._way()
        if way is None and not self.kind.repeatable:
            self._end_badly("the engine was lost, and nobody knows whether it has done what was asked", now)
            return
        if way is not None and account is not None and account.complete:
            self._close_stream(now)
        elif way is Way.ENDED:
            self._end_badly(f"the engine was lost, and this answer can't be continued ({self._obstacle()})", now)
        else:
            if way is None:
                self._restarts += 1
            self._out.append(e.Wait(self.number, True))

    def _leave_engine(self) -> None:
        self._out.append(e.Free(self.number))
        self.token, self._comparison, self._continuing = 0, None, None
        self._move(Phase.WAITING)

    def _obstacle(self) -> str:
        if self.kind.api is Api.OTHER:
            return "its form is not known here"
        return self.kind.why or "the engine tells no token ids"

    def _refused(self, event: e.Refuse, now: float) -> None:
        if self._head_open or self._restarts or self._lost_at is not None:
            self._end_badly(event.why, now, retry_after_s=event.retry_after_s)
            return
        headers = errors.JSON
        if event.retry_after_s:
            headers = [*headers, (b"retry-after", b"%d" % event.retry_after_s)]
        self._out.append(e.Whole(self.number, event.status, headers, errors.body(event.status, event.why)))
        self._over(e.Outcome.REFUSED, event.why)

    def _left(self, event: e.Left, now: float) -> None:
        self._drop_all()
        self._over(e.Outcome.LEFT)

    def _malformed(self, why: str, now: float) -> None:
        self._out.append(e.Note("engine_malformed", {"request": self.number, "token": self.token, "why": why}, True))
        self._end_badly(f"what the engine said can't be read: {why}", now)

    # -- to the client ---------------------------------------------------------------------------------------------

    def _say(self, data: bytes, now: float, leg: Leg | None) -> None:
        """Of an answer."""
        if not data:
            return
        if not self._head_open:
            assert leg is not None
            self._head_open = True
            self._out.append(e.Open(self.number, leg.status, leg.headers))
        if self.phase is Phase.ASKED:
            self._move(Phase.STREAMING)
            self._out.append(e.Proved(self.number))
        elif self._lost_at is not None and self.token:
            self._out += [e.Proved(self.number), e.Resumed(self.number, now - self._lost_at)]
        if self.token:
            self._lost_at = None
        self._out.append(e.Send(self.number, data))
        self._spoken_at = self._talked_at = now
        self.silent = False

    def mind_time(self, now: float) -> list[e.Effect]:
        """Looked at about every second: a client to whom nothing is said gets a comment, so that nobody between it and
        the door takes the connection for dead.
        """
        self._out = []
        if self.phase is Phase.STREAMING and not self.silent and now >= self._spoken_at + self._bounds.stall_s:
            self.silent = True
            self._out.append(e.Note("engine_silent", {"request": self.number, "token": self.token}))
        if now < self._talked_at + self._bounds.comment_s:
            return self._out
        leg = next((leg for leg in self.legs.values() if leg.reader is not None), None)
        if not self._head_open and self.phase is Phase.ASKED and leg is not None:
            self._head_open = True
            self._out.append(e.Open(self.number, leg.status, leg.headers))
        if self._head_open and (self.account is not None):
            self._talked_at = now
            self._out.append(e.Send(self.number, sse.comment(f"waiting ({self.phase.value})")))
        return self._out

    def _complete(self, leg: int) -> None:
        self._out.append(e.End(self.number))
        self._over(e.Outcome.ANSWERED, done=leg)

    def _end_badly(self, why: str, now: float, *, detail: str = "", body: bytes = b"", retry_after_s: int = 0) -> None:
        """An error that says so."""
        self._drop_all()
        tokens = self.account.tokens if self.account is not None else 0
        safe = self.kind.repeatable
        said = errors.lost(why, detail=detail or body[:500].decode("utf-8", "replace"), tokens=tokens, retry_safe=safe)
        if not self._head_open:
            headers = [*errors.JSON, *([(b"retry-after", b"%d" % retry_after_s)] if retry_after_s else [])]
            self._out.append(e.Whole(self.number, 502, headers, said))
        else:
            if self.account is not None:
                self._out.append(e.Send(self.number, sse.event(said)))
            self._out.append(e.Cut(self.number))
        self._over(e.Outcome.ENDED, why + (f" ({detail})" if detail else ""))

    def _over(self, outcome: e.Outcome, why: str = "", *, done: int = 0) -> None:
        for number in self.legs:
            self._out.append(e.Drop(self.number, number, number == done or self.legs[number].whole))
        self.legs.clear()
        how = "passed"
        if self._restarts:
            how = Way.RESTARTED.value
        if self.ways:
            how = self.ways[-1].value
        tokens = self.account.tokens if self.account is not None else 0
        self._out.append(e.Over(self.number, outcome, how, tokens, why))
        self.token = 0
        self._move(Phase.OVER)

    def _drop_all(self) -> None:
        self._out += [e.Drop(self.number, number, leg.whole) for number, leg in self.legs.items()]
        self.legs.clear()


_HANDLERS: dict[type, Callable[..., None]] = {
    e.Admit: Request._admitted,
    e.Headed: Request._headed,
    e.Answered: Request._answered,
    e.Came: Request._came,
    e.Finished: Request._finished,
    e.Broke: Request._broke,
    e.NotSent: Request._not_sent,
    e.Verdict: Request._verdict,
    e.TakeAway: Request._taken_away,
    e.Refuse: Request._refused,
    e.Left: Request._left,
}
