"""One request: which phase it is in, and what follows from what its engine says and from what becomes of that engine.

The client has the bytes that were passed on, and nothing takes them back. Everything else follows from that:

1. A client that has nothing of an answer may get any whole answer. One that has some gets the rest of *that* answer, or
   an error that says that there is none: never an answer that is cut and looks complete.
2. An answer is complete when each of its choices has a reason to end. `[DONE]` without that, a body that ends early, an
   error of the engine's: all of these are doubts, and the lock is asked. If the engine has lost it, another goes on. If
   it still holds it, the failure is the engine's own word, and is passed on. A 503 is its word when it is said again:
   an engine that stops to serve says it too, and the lock may not have heard yet.
3. What is no answer at all (HTTP or JSON that is none) isn't put down to a death: it is the end, and is reported. A
   body in one piece that is none is reported, and is a doubt all the same: an engine that dies may leave half of it.
4. Nothing is passed on of an engine that the door has taken away.
5. A stream whose engine says nothing for long ends with an error: comments keep its client's own time-out from passing.
6. Where the engine can't begin in the middle of an answer, no text is guessed: the answer is compared, or ends.
7. An error, of the door's or an engine's, isn't told to a client that has nothing of an answer while another model of
   its ladder may answer: that one is asked. What may change something isn't asked twice.
8. Nothing of another model's is put behind the beginning of an answer, whatever its name: where the pool says that the
   weights are others since, an answer that has begun ends with an error.
9. A stream that waits for its model's turn is told what it waits for, in comments. The head is then out, and an error
   is an event.
10. Where the engine can't begin in the middle of an answer, a pause costs all of it, and else the reading of what there
   is. So the pool is told how long the next turn has to be for it to come further. One that begins anew, and comes no
   further in the longest turn that there is, or in shorter ones that together take as long as requests wait at most,
   ends with an error.

Its parts: `legs.py` has the table of phases, and the exchanges with the engine; `clients_part.py`, `continuing.py` and
`comparing.py` each make an answer for the client of what comes; `delivery.py` has what was said to the client,
`own_turns.py` how long engines had it. How an answer can go on is said in `continuing.py`. Pure.
"""

import math
from collections.abc import Callable

import msgspec

from gateway.rules import answers, errors, sse
from gateway.rules import events as e
from gateway.rules.answers import Account
from gateway.rules.clients_part import UNFINISHED, ClientsPart, End, Undisturbed
from gateway.rules.comparing import Comparison
from gateway.rules.continuing import Continuing, obstacle, recovery_of, tokens_to_read
from gateway.rules.delivery import Delivery
from gateway.rules.kinds import Api, Kind, Recovery
from gateway.rules.legs import MAY_FOLLOW, WITH_AN_ENGINE, BrokenRule, Leg, Legs, Phase
from gateway.rules.own_turns import OwnTurns


class Failure(msgspec.Struct, frozen=True):
    """What an engine said, or didn't, when it failed."""

    why: str
    leg: Leg | None = None
    """It failed with a whole answer that says so."""
    event: bytes = b""
    """Or with an event of its stream."""


class Request:
    __slots__ = (
        "_asked_again", "_asked_at", "_bounds", "_delivery", "_failure", "_heard_at", "_legs", "_mode", "_of", "_out",
        "_proven_at", "_restarts", "_turns", "_untold", "account", "kind", "loaded", "max_len", "number",
        "phase", "recoveries", "silent", "token", "url",
    )  # fmt: skip

    def __init__(self, number: int, kind: Kind, bounds: e.Bounds, now: float, greeted: bool = False) -> None:
        self.number = number
        self.kind = kind
        self.phase = Phase.WAITING
        self.token = 0
        """The token of the engine that has it."""
        self.url = ""
        self.account: Account | None = None
        """What the client has, where that is known."""
        self.recoveries: list[Recovery] = []
        """How it has gone on so far."""
        self.silent = False
        """It was said that nothing comes."""
        self.max_len: int | None = None
        """The model's bound on prompt and answer together."""
        self.loaded = self._of = ""
        """By what its model's weights are told from others', now and when its answer began; empty: not known."""
        self._bounds = bounds
        self._legs = Legs(number, kind)
        self._delivery = Delivery(number, now, greeted)
        self._mode: Undisturbed | Continuing | Comparison | None = None
        self._proven_at = math.inf
        """When its engine had given some of the answer."""
        self._untold = False
        """And that wasn't said yet."""
        self._failure: Failure | None = None
        self._asked_at = self._heard_at = now
        """When its engine was asked, and when it last said anything."""
        self._asked_again = 0
        """The token of an engine that has said 503, and is asked once more."""
        self._restarts = 0
        self._turns = OwnTurns(bounds)
        self._out: list[e.Effect] = []

    # -- from outside ----------------------------------------------------------------------------------------------

    def begin(self) -> list[e.Effect]:
        kind, tokens = self.kind, tokens_to_read(self.kind, self.account)
        may_be_preflight = kind.method == "OPTIONS"
        said = kind.fingerprint, may_be_preflight, kind.priority, kind.until, kind.lease
        return [e.Wait(self.number, False, tokens, *said)]

    def handle(self, event: e.Event, now: float) -> list[e.Effect]:
        """Raises BrokenRule, or whatever else a mistake in here brings."""
        self._out = []
        if self.phase is not Phase.OVER:
            _HANDLERS[type(event)](self, event, now)
        if self._untold:
            self._untold = False
            self._out.insert(0, e.Proved(self.number))  # before all that follows from the same event
        if (self.phase in WITH_AN_ENGINE) is not bool(self.token) or (not self.token and self._legs):
            legs = len(self._legs)
            raise BrokenRule(
                f"it is {self.phase.value} with token {self.token}, and speaks with an engine on {legs} legs"
            )
        return self._out

    def mind_time(self, now: float, moved_at: float, outlook: str = "") -> list[e.Effect]:
        """Looked at about every second. `moved_at`: when an engine last said something, to whichever request.
        `outlook`: what a request that waits for this model waits for, where a pool says so.
        """
        self._out = []
        if not self.silent and self._is_silent(now, moved_at):
            self.silent = True
            self._note("engine_silent", phase=self.phase.value)
        if self.phase in WITH_AN_ENGINE and self._mind_silence(now):
            return self._out
        if self._delivery.quiet_for(now) < self._bounds.comment_s:
            return self._out
        streaming = next((leg for leg in self._legs.values() if leg.reader is not None), None)
        waits = outlook if self.phase is Phase.WAITING else ""
        known = self.account is not None and (self._delivery.opened or streaming is not None)
        if known or (waits and self.kind.streams and self.kind.api is not Api.OTHER):
            self._out += self._delivery.comment(waits or f"waiting ({self.phase.value})", now, streaming)
        return self._out

    @property
    def turn_s(self) -> float:
        """How long its next engine has to have it, so that it comes further than with the last one. 0: it has come
        further, and can go on where it is.
        """
        if not self._delivery.paused and self._turns.short_s and self._recovery() is Recovery.CONTINUED:
            return 0.0
        return self._turns.next_s

    def _mind_silence(self, now: float) -> bool:
        """Comments keep the client's own time-out from ever passing; and what is elsewhere may have a next one."""
        bounds, account = self._bounds, self.account
        if account is None and not self.kind.afar:
            return False
        if account is not None and account.complete and now >= self._heard_at + bounds.stall_s:
            self._close_stream(now)
        elif now >= self._heard_at + bounds.silence_s:
            self._end_badly(f"the engine has said nothing for {bounds.silence_s:g} s")
        return self.phase is Phase.OVER

    def give_up(self) -> list[e.Effect]:
        """Its rules are broken: what its client should have isn't known any more."""
        return [*self._legs.drop_all(), e.Cut(self.number)]

    def _move(self, to: Phase) -> None:
        if to not in MAY_FOLLOW[self.phase]:
            raise BrokenRule(f"it can't go from {self.phase.value} to {to.value}")
        self.phase = to

    def _is_silent(self, now: float, moved_at: float) -> bool:
        """No byte for long, of a stream that has begun or while others get theirs."""
        stall_s = self._bounds.stall_s
        if self.phase is Phase.STREAMING:
            return now >= self._heard_at + stall_s
        return self.phase is Phase.ASKED and self._proven_at == math.inf and moved_at > self._asked_at and (
            now >= self._asked_at + stall_s
        )  # fmt: skip

    # -- with an engine --------------------------------------------------------------------------------------------

    def _admitted(self, event: e.Admit, now: float) -> None:
        self.token, self.url = event.token, event.url
        self._proven_at, self._asked_at, self._heard_at = math.inf, now, now
        self._delivery.note_admitted(now, event.since)
        recovery = self._recovery() if self._delivery.opened else None
        if recovery is None:
            self._move(Phase.ASKED)
            self.account, self._mode, self._of = None, None, self.loaded
            self._out.append(self._legs.ask_all(self.token, self.url))
            return
        if self._of and self._of != self.loaded:
            self._end_badly("its model has other weights since the answer began")
            return
        self.recoveries.append(recovery)
        if recovery is Recovery.CONTINUED:
            self._continue(now)
        else:
            self._repeat()

    def _recovery(self) -> Recovery | None:
        """How it goes on from what the client has; None while that is nothing."""
        return recovery_of(self.kind, self.account, self.max_len) if self._delivery.opened else None

    def _continue(self, now: float) -> None:
        assert self.account is not None
        self._move(Phase.CONTINUING)
        self._mode = mode = Continuing(self.kind, self.account, self.max_len)
        said, asked = mode.begin()
        for choice, body in asked:
            self._out.append(self._legs.ask_rest(choice, self.token, self.url, body))
        self._say(said, now)
        self._mind_continued(mode, now)

    def _repeat(self) -> None:
        assert self.account is not None
        self._move(Phase.REPEATING)
        self._mode = Comparison(self.kind, self.account)
        self._out.append(self._legs.ask_all(self.token, self.url))

    def _mind_continued(self, mode: Continuing, now: float) -> None:
        """What is to be done about choices that are finished."""
        account = self.account
        assert account is not None
        if account.complete:
            self._close_stream(now)
            return
        for choice in mode.choices:
            if account.had(choice).finish is not None:
                self._out += self._legs.drop_finished(choice)

    # -- what an engine says ---------------------------------------------------------------------------------------

    def _heard(self, event: e.Heard, now: float) -> None:
        leg = self._legs.get(event.leg)
        if leg is None:
            return
        if self.kind.afar:
            self._heard_at = now
        if event.head is not None:
            self._begins(leg, event.head)
        if event.data and not leg.whole:
            if leg.reader is None:
                self._gather(leg, event.data, now)
            else:
                self._read(leg, event, now)
        if event.ended:
            self._finished(event, now)

    def _begins(self, leg: Leg, head: e.Head) -> None:
        leg.status, leg.headers = head.status, head.headers
        if head.status < 300 and leg.form.startswith(b"text/event-stream"):
            leg.reader = sse.Reader(self._bounds.event_bytes)
            known = self.kind.api is not Api.OTHER and self.kind.streams
            if self.phase is Phase.ASKED:
                self.account = Account(self.kind) if known else None
                self._mode = Undisturbed(self.kind, self.account)
            leg.passes = not known
        elif (head.length or 0) > self._bounds.answer_bytes and head.status < 300:
            leg.passes = True

    def _read(self, leg: Leg, event: e.Heard, now: float) -> None:
        """Some of a stream."""
        if b"data:" in event.data:  # comments alone are nothing
            self._heard_at = now
        mode = self._mode
        assert mode is not None
        try:
            part = mode.take(leg, event.data)
        except sse.TooLarge as error:
            part = ClientsPart(b"", End.MALFORMED, str(error))
        if mode.proven:
            self._prove(now)
        if part.data:
            self._say(part.data, now, leg)
        if part.end is not None:
            self._ends(part, event.leg, now)
        elif type(mode) is Continuing:
            self._mind_continued(mode, now)

    def _gather(self, leg: Leg, data: bytes, now: float) -> None:
        """A part of an answer that is passed on in one piece."""
        if leg.status < 300:
            self._prove(now)
        if leg.passes:
            self._say(data, now, leg)
            return
        leg.body.append(data)
        leg.size += len(data)
        if leg.size > self._bounds.answer_bytes and leg.status < 300:
            if self.phase is not Phase.ASKED:
                self._malformed("an answer of its is too large", now)
                return
            leg.passes = True
            body, leg.body = b"".join(leg.body), []
            self._say(body, now, leg)

    def _ends(self, part: ClientsPart, number: int, now: float) -> None:
        if part.end is End.COMPLETE:
            self._complete(number)
        elif part.end is not End.DIFFERS and self.account is not None and self.account.complete:
            self._close_stream(now)  # whatever it says behind the answer
        elif part.end is End.BROKEN:
            self._doubt(Failure(part.why, event=part.event))
        elif part.end is End.MALFORMED:
            self._malformed(part.why, now)
        elif part.end is End.TORN:
            self._torn(part.why)
        else:
            self._end_badly("the answer could not be continued: made once more, it is another one", part.why)

    def _finished(self, event: e.Heard, now: float) -> None:
        leg = self._legs.pop(event.leg, None)
        if leg is None or leg.whole:
            return
        if leg.passes and self._delivery.opened:
            self._out.append(e.End(self.number))
            self._over(e.Outcome.ANSWERED)
        elif leg.passes:
            self._doubt(Failure("its stream ended before it said anything"))
        elif leg.reader is not None:
            self._stream_finished(leg, now)
        elif leg.status >= 500:
            self._doubt(Failure(f"it answered {leg.status}", leg))
        elif self.phase is Phase.ASKED and not self._delivery.opened:
            self._in_one_piece(leg, b"".join(leg.body))
        elif leg.status < 300:
            self._malformed("it answers a stream's request without a stream", now)
        else:
            why = f"another engine would not go on with it: it answered {leg.status}"
            self._end_badly(why, b"".join(leg.body)[:500].decode("utf-8", "replace"))

    def _in_one_piece(self, leg: Leg, body: bytes) -> None:
        known = self.kind.api is not Api.OTHER
        if leg.status < 300:
            failure = self._judge_and_note(leg, body, known) if known or self._should_be_json(leg, body) else None
            if failure is not None:
                self._doubt(failure)
                return
        if leg.status != 429 or not self._hand_on(""):
            self._out += self._delivery.say_whole(leg.status, leg.headers, body)
            self._over(e.Outcome.ANSWERED)

    def _judge_and_note(self, leg: Leg, body: bytes, known: bool) -> Failure | None:
        malformed = answers.why_no_answer(body, choices=known)
        broken_off = answers.broken_off(body) if known else ""
        if malformed:
            self._note("engine_malformed", alarm=True, why=broken_off or malformed)
            return Failure(broken_off or malformed)
        return Failure(broken_off, leg) if broken_off else None

    def _should_be_json(self, leg: Leg, body: bytes) -> bool:
        """Its form isn't known here: an answer in sound, say, is no JSON and need not be."""
        if self.kind.streams and (not body or leg.form.startswith(b"text/html")):
            return True
        return leg.status != 204 and leg.form.startswith(b"application/json")

    def _stream_finished(self, leg: Leg, now: float) -> None:
        """Without `[DONE]`, or it would be whole already."""
        mode, account = self._mode, self.account
        if isinstance(mode, Continuing):
            assert leg.choice is not None
            if account is None or account.had(leg.choice).finish is None:
                self._doubt(Failure(UNFINISHED))
        elif account is not None and account.complete:
            self._close_stream(now)
        else:
            self._doubt(Failure(UNFINISHED))

    def _torn(self, why: str) -> None:
        """No text is guessed: the answer is made again and compared, where it is the same every time, or ends."""
        self._out += self._legs.drop_all()
        if self.kind.same_again:
            self.recoveries[-1] = Recovery.COMPARED
            self._repeat()
        else:
            self._end_badly("the answer could not be continued from where the client stands", why)

    def _prove(self, now: float) -> None:
        if self._proven_at < math.inf:
            return
        self._proven_at, self._untold = now, True
        self._delivery.note_first_token(now)

    # -- when it fails ---------------------------------------------------------------------------------------------

    def _broke(self, event: e.Broke, now: float) -> None:
        leg = self._legs.pop(event.leg, None)
        if leg is None or leg.whole:
            return
        account = self.account
        if leg.reader is not None and account is not None and account.complete:
            self._close_stream(now)  # only the answer's end is missing, and that is known
        elif event.malformed:
            self._malformed(event.why, now)
        elif leg.status >= 500:
            self._doubt(Failure(f"it answered {leg.status}", leg))
        else:
            self._doubt(Failure(event.why))

    def _not_sent(self, event: e.NotSent, now: float) -> None:
        """It waits on, as if it had not been admitted."""
        if self._legs.pop(event.leg, None) is None:
            return
        if self.phase is not Phase.ASKED:
            self.recoveries.pop()
            self._delivery.note_lost(now, False)  # another of its choices may have gone on already
        self._wait_on()

    def _wait_on(self) -> None:
        self._leave_engine()
        self._out.append(e.Wait(self.number, self._delivery.paused, tokens_to_read(self.kind, self.account)))

    def _doubt(self, failure: Failure) -> None:
        self._out += self._legs.drop_all()
        self._failure = failure
        self._move(Phase.DOUBTFUL)
        self._out.append(e.Doubt(self.number))

    def _verdict(self, event: e.Verdict, now: float) -> None:
        failure = self._failure
        if self.phase is not Phase.DOUBTFUL or failure is None:
            return
        self._failure = None
        leg = None if self._delivery.opened else failure.leg
        if event.lost:
            self._go_on(now)
        elif self._may_ask_again(failure.leg):
            self._asked_again = self.token
            if self._delivery.opened:
                self._go_on(now)
            else:
                self._wait_on()
        elif leg is not None:
            self._say_whole(leg.status, leg.headers, b"".join(leg.body), why=failure.why)
        elif failure.event and not self._delivery.opened:
            status, body = answers.error_of(failure.event)
            self._say_whole(status, errors.JSON, body, why=failure.why)
        elif failure.event:
            self._say(failure.event, now)
            self._out.append(e.Cut(self.number))
            self._over(e.Outcome.ENDED, failure.why)
        else:
            self._end_badly(f"the engine failed, and still holds the lock: {failure.why}")

    def _may_ask_again(self, leg: Leg | None) -> bool:
        if leg is None or leg.status != 503 or self._asked_again == self.token:
            return False
        recovery = self._recovery()
        return self.kind.repeatable if recovery is None else recovery is not Recovery.ENDED

    def _taken_away(self, event: e.TakeAway, now: float) -> None:
        if self.phase in WITH_AN_ENGINE:
            self._go_on(now, event.leased, paused=not (event.leased or event.died))

    def _go_on(self, now: float, leased: bool = False, *, paused: bool = False) -> None:
        """Its engine is lost, or is to have it no more."""
        self._leave_engine()
        had_s, read_s = now - self._asked_at, min(now, self._proven_at) - self._asked_at
        further = not self._delivery.paused
        self._delivery.note_lost(now, leased)
        account = self.account
        recovery = self._recovery()
        goes_on = recovery is Recovery.CONTINUED
        self._turns.ended(had_s, read_s, goes_on=goes_on, paused=paused, further=further)
        if recovery is None and not self.kind.repeatable:
            self._end_badly("the engine was lost, and it isn't known whether it has done what was asked")
        elif recovery is not None and account is not None and account.complete:
            self._close_stream(now)
        elif recovery is Recovery.ENDED:
            self._end_badly(f"the engine was lost, and this answer can't be continued ({obstacle(self.kind)})")
        elif paused and not (goes_on or further) and (turns := self._turns.too_short(had_s)):
            self._end_badly(f"it begins anew after each pause, and came no further in {turns}")
        else:
            if recovery is None:
                self._restarts += 1
            self._out.append(e.Wait(self.number, True, tokens_to_read(self.kind, self.account)))

    def _leave_engine(self) -> None:
        self._out += [*self._legs.drop_all(), e.DoneWithEngine(self.number)]
        self.token, self._mode = 0, None
        self._move(Phase.WAITING)

    def _refused(self, event: e.Refuse, now: float) -> None:
        if self._delivery.opened or self._restarts or self._delivery.paused or event.for_good:
            self._end_badly(event.why, retry_after_s=event.retry_after_s, for_good=event.for_good)
            return
        headers = errors.JSON
        if event.retry_after_s:
            headers = [*headers, (b"retry-after", b"%d" % event.retry_after_s)]
        self._say_whole(event.status, headers, errors.body(event.status, event.why), e.Outcome.REFUSED, event.why)

    def _left(self, event: e.Left, now: float) -> None:
        self._over(e.Outcome.LEFT)

    def _malformed(self, why: str, now: float) -> None:
        self._note("engine_malformed", alarm=True, why=why)
        self._end_badly(f"what the engine said can't be read: {why}")

    # -- to the client ---------------------------------------------------------------------------------------------

    def _say(self, data: bytes, now: float, leg: Leg | None = None) -> None:
        """Some of the answer."""
        if not data:
            return
        if self.phase is Phase.ASKED:
            self._move(Phase.STREAMING)
        self.silent = False
        self._out += self._delivery.say(data, now, leg, bool(self.token))

    def _say_whole(
        self, status: int, headers: e.Headers, body: bytes, outcome: e.Outcome = e.Outcome.ANSWERED, why: str = ""
    ) -> None:
        """All that its client gets; unless another model of its ladder can do better."""
        if status < 500 or not self._hand_on(why):
            self._out += self._delivery.say_whole(status, headers, body)
            self._over(outcome, why)

    def _hand_on(self, why: str) -> bool:
        if not self.kind.ladder or not self.kind.repeatable or self._delivery.opened:
            return False
        self._out.append(e.HandOn(self.number, self._delivery.greeted))
        self._over(e.Outcome.HANDED_ON, why)
        return True

    def _close_stream(self, now: float) -> None:
        """Every choice is finished, and only what closes a stream is missing."""
        assert self.account is not None
        if self.kind.usage and not self.account.usage and self.account.tokens:  # an echo's aren't known
            self._say(answers.closing_usage(self.kind, self.account), now)
        self._say(sse.event(sse.DONE), now)
        self._complete(0)

    def _complete(self, leg: int) -> None:
        self._out.append(e.End(self.number))
        self._over(e.Outcome.ANSWERED, leg=leg)

    def _end_badly(self, why: str, detail: str = "", *, retry_after_s: int = 0, for_good: bool = False) -> None:
        """An error that says so. `for_good`: the same request will be refused again."""
        if not for_good and self._hand_on(why):
            return
        account = self.account
        begun = self._delivery.opened and (account is None or not account.empty)
        tokens = (account.tokens if account is not None else 0) or (None if begun else 0)
        safe = self.kind.repeatable and not for_good
        said = errors.lost(why, detail=detail, tokens=tokens, retry_safe=safe, for_good=for_good)
        named = self.kind.api is Api.OTHER
        again = errors.again(safe, retry_after_s)
        self._out += self._delivery.fail(said, named=named, headers=[*errors.JSON, *again])
        self._over(e.Outcome.ENDED, why + (f" ({detail})" if detail else ""))

    def _over(self, outcome: e.Outcome, why: str = "", *, leg: int = 0) -> None:
        self._out += self._legs.drop_all(leg)
        how = "passed"
        if self._restarts:
            how = Recovery.RESTARTED.value
        if self.recoveries:
            how = self.recoveries[-1].value
        tokens = self.account.tokens if self.account is not None else 0
        self._out.append(e.Over(self.number, outcome, how, tokens, why, self._untold))
        self._untold = False
        self.token = 0
        self._move(Phase.OVER)

    def _note(self, event: str, *, alarm: bool = False, **detail: str) -> None:
        self._out.append(e.Note(event, {"request": self.number, "token": self.token, **detail}, alarm))


_HANDLERS: dict[type, Callable[..., None]] = {
    e.Admit: Request._admitted,
    e.Heard: Request._heard,
    e.Broke: Request._broke,
    e.NotSent: Request._not_sent,
    e.Verdict: Request._verdict,
    e.TakeAway: Request._taken_away,
    e.Refuse: Request._refused,
    e.Left: Request._left,
}
