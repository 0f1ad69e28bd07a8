"""Which request may be with which engine: admission, a switchover's drain, doubts about an engine, and deaths.

1. Requests are admitted to the newest grant, while it is open. An admitted request is with that grant from then on,
   until it says that it needs no engine any more.
2. A newer token is the end of every older grant: its requests are taken away from it before anything else happens.
3. In a switchover no new request is admitted, so that none can starve it; those that are with the engine may finish
   within a bound, and are then taken away, to be continued by the successor.
4. Interrupted answers come first, oldest first, and only so many tokens of theirs are computed again at a time. Then
   new requests, the most urgent first, and of these in the order of arrival. Both wait for a bounded time, and only so
   many new ones wait at all; preflights, which need no key, are counted apart. Where the successor has the whole KV
   cache of the engine that was lost, a context that was read there is kept but for its last block, as long as all of
   these together fit in that cache: so none of them had to make room for another.
5. An engine's death counts against each request that was sent to it and had got nothing from it, and never against one
   that waited, in the queue or for a connection. A request with two such deaths is a suspect: it is admitted alone,
   when no other request is with the engine that has got nothing yet, and none is admitted until the suspect has got
   something. A suspect whose engine dies while it is alone is refused. Deaths are remembered by what was asked: the
   same request, sent again by any client, begins where the last one had come to.
6. When an engine fails, the lock is asked whether it still holds. While the lock doesn't know, the request waits; when
   the lock has said for a while that it does, and the engine listens, it does. A request whose engine fails while it
   drains, or has withdrawn, waits for the next one at once.
7. When the engine that served has left in order and there is no other, a new request is refused at once: not where a
   pool says whose turn it is. There the lock may be at rest: its engine is asleep, so what is still with it is taken
   away, and goes on with the next grant. A model of which the pool says that it can't be awake takes no new request;
   one that was interrupted waits on, unless the pool knows the model no more.
8. While another program has the host alone (`lease.py`), only requests that carry its token are admitted; the others
   wait, or are refused. Those that are with an engine may finish within a bound, and go on afterwards. A token that has
   ended is refused.
9. Where no engine listens, one request at a time is admitted to see whether it does. As soon as it is known to listen,
   all are; when that request has gone and nothing is known, the next one is tried.

Here is what changes: what an event means, and what each step does. Which step is due, and when to look again, are
questions of `due.py`. `grants.py` has the lock's grants and their requests, `visitors.py` the requests and their order,
`deaths.py` what engines have died of. What this file may not do: know what a request says. Pure.
"""

import math
from collections.abc import Callable
from typing import Any

from gateway.rules import due
from gateway.rules import events as e
from gateway.rules.deaths import Deaths
from gateway.rules.grants import SERVES, Grant, Phase
from gateway.rules.visitors import Visitor

UNREACHABLE_S = 0.05
"""Where no engine listens, it is tried again after so long."""
POISON = (
    "three engines have died while they had this request, the last one with it alone, and had given nothing of its "
    "answer: it isn't tried again"
)
CLOSING = "the door is closing: ask again"


class Admission:
    def __init__(self, bounds: e.Bounds) -> None:
        self.bounds = bounds
        self.state = due.State(bounds)
        self.grants, self.visitors = self.state.grants, self.state.visitors
        self.deaths = Deaths(bounds.strikes_s, bounds.strikes_most)
        self.last_served = -math.inf
        """When an engine was last known to serve."""
        self.severed = 0
        self.uncovered = 0
        """Requests that were with an engine while the lease of the host couldn't be relied on."""
        self.deadline = math.inf
        self._served = False
        self._out: list[e.Effect] = []
        self._now = 0.0

    @property
    def uncovered_now(self) -> int:
        """How many of these are with an engine now."""
        return sum(self.visitors[request].uncovered for request in self.state.untokened)

    # -- from outside ----------------------------------------------------------------------------------------------

    def handle(self, event: Any, now: float) -> list[e.Effect]:
        self._out, self._now = [], now
        kind = type(event)
        if kind is e.Connected and self.state.try_at is None and not self.state.doubts:
            self._connected(event)  # as nearly always: nothing follows from it
            return self._out
        _HANDLERS[kind](self, event)
        while isinstance(step := due.plan(self.state, now), due.Step):
            _STEPS[step.do](self, step)
        self.deadline = step
        wrong = self._wrong(getattr(event, "request", None))
        if wrong:
            self._out.append(e.Note("broken_rule", {"why": wrong}, True))
        return self._out

    @property
    def stopping(self) -> bool:
        return self.state.stop_at is not None

    @property
    def interrupted(self) -> int:
        return len(self.visitors.interrupted) + len(self.state.doubts)

    def ready(self, now: float) -> bool:
        """An engine serves, or can be expected to within the bound."""
        alone = self.state.alone_since
        if self.stopping or (alone is not None and now >= alone + self.bounds.hold_s):
            return False
        return self._served or now < self.last_served + self.bounds.failover_timeout_s

    @property
    def ended(self) -> bool:
        """Its engines have ended in order, and none is there that could follow."""
        return self.grants.ended

    def _wrong(self, request: int | None) -> str:
        """What is wrong, if anything is: after an event of this request's; None: of the lock's or the clock's."""
        grant, scout = self.grants.current, self.state.scout
        if scout is not None and (grant is None or scout not in grant.requests):
            return f"request {scout} is to see whether an engine listens, and is with none"
        if grant is None:
            return ""
        if grant.token > self.grants.newest:
            return f"token {grant.token} is used, and {self.grants.newest} is the newest"
        return grant.check(request)

    # -- the lock --------------------------------------------------------------------------------------------------

    def _lock_seen(self, seen: e.LockSeen) -> None:
        lost = self.grants.see(seen)
        if lost is not None:
            self._lose(lost)
        self._out += self.grants.follow(self._now)
        if self.grants.open is not None and self.grants.open.open_since == self._now:
            self.state.try_at = self.state.scout = None
        self._mind_serving()

    def _lock_away(self, event: e.LockAway) -> None:
        self.grants.away = True
        self._mind_serving()

    def _outlook(self, event: e.Outlook) -> None:
        self.state.failed, self.state.gone, self.state.outlook = event.failed, event.gone, event.says
        self.state.failed_for_s = event.retry_after_s

    def _mind_serving(self) -> None:
        grant = self.grants.current
        serves = grant is not None and grant.phase in SERVES
        if self._served and not serves:
            self.last_served = self._now
        self._served = serves
        if not self.grants.ended or self.bounds.turn_s is not None:
            self.state.alone_since = None
        elif self.state.alone_since is None:
            self.state.alone_since = self._now

    def _lose(self, grant: Grant) -> None:
        if grant.phase is Phase.LOST:
            return
        state, died = self.state, not grant.planned
        self._note("lost", token=grant.token, engine=grant.engine_id, in_flight=len(grant.requests), died=died)
        if grant.url:
            state.served_last = grant.token
        for request in sorted(grant.requests):
            visitor = self.visitors[request]
            if died and due.to_blame(state, request, self._now):
                self.deaths.blame(visitor, self._now)
            if self._is_poison(request, visitor):
                state.doubts.pop(request, None)
                self._out.append(e.Refuse(request, 502, POISON, for_good=True))
            elif request not in state.doubts:
                self._take_away(request, died=died)
        self.deaths.engine_lost(died, self._now)
        for request in state.doubts:
            self._out.append(e.Verdict(request, True))
        state.returning |= state.doubts.keys()
        state.doubts.clear()
        state.trial = state.scout = None
        state.looking, state.there_at = False, -math.inf
        grant.lose()
        self._out.append(e.Forget(grant.token))

    def _is_poison(self, request: int, visitor: Visitor) -> bool:
        return request == self.state.trial and visitor.strikes > self.bounds.strikes

    # -- the requests ----------------------------------------------------------------------------------------------

    def _wait(self, event: e.Wait) -> None:
        request, state, visitors = event.request, self.state, self.visitors
        if state.stop_at is not None and not event.again:
            self._out.append(e.Refuse(request, 503, CLOSING, 1))
            return
        if request in visitors:
            visitor = visitors[request]
            visitor.tokens = event.tokens
        else:
            refusal = None
            strikes = self.deaths.of(event.fingerprint, self._now)
            if visitors.count_new(preflights=event.preflight) >= self.bounds.queue:
                refusal = e.Refuse(request, 503, f"{self.bounds.queue} requests are waiting for an engine already", 1)
            elif strikes > self.bounds.strikes:
                refusal = e.Refuse(request, 502, POISON, for_good=True)
            elif event.lease and event.lease != state.gate.token and event.lease <= state.gate.newest:
                refusal = e.Refuse(request, 409, f"lease {event.lease} has ended{_is_leased(state.gate)}")
            elif not state.gate.open and state.gate.refuse and not event.lease:
                refusal = e.Refuse(request, 503, state.gate.why, state.gate.retry_after_s)
            if refusal is not None:
                self._out.append(refusal)
                return
            until = self._now + self.bounds.queue_timeout_s
            visitor = Visitor(event, self._now, event.until if event.until < until else until, strikes)
            visitors[request] = visitor
            if event.lease:
                visitors.tokened.add(request)
                if event.lease > state.gate.newest:
                    self._out.append(e.LookAtLease())
        if event.again and not visitor.again:
            visitor.again, visitor.since = True, self._now
        state.returning.discard(request)
        visitors.wait(request)

    def _proved(self, event: e.Proved) -> None:
        grant = self.grants.current
        if grant is not None and event.request in grant.requests:
            grant.prove(event.request)
            visitor = self.visitors[event.request]
            visitor.read_by = grant.token
            visitor.again = False  # its wait is over: the next one begins when that begins
            self.deaths.acquit(visitor)
            self._end_trial(event.request)

    def _done_with_engine(self, event: e.DoneWithEngine | e.Over) -> None:
        """It needs no engine any more."""
        state, request = self.state, event.request
        state.doubts.pop(request, None)
        if self.grants.current is not None:
            self.grants.current.release(request)
        if state.trial == request:
            state.trial = None
        if state.scout == request:  # it was refused, or its client left before it could be known
            state.scout, state.try_at = None, self._now + UNREACHABLE_S

    def _over(self, event: e.Over) -> None:
        request, grant = event.request, self.grants.current
        there = grant is not None and request in grant.requests and request in self.visitors
        if there:
            self._count_if_uncovered(request)
        if request in self.visitors:
            if event.proved:
                self.deaths.acquit(self.visitors[request])
            elif event.outcome is e.Outcome.LEFT and grant is not None and due.to_blame(self.state, request, self._now):
                until = grant.requests[request] + self.bounds.acquit_s
                self.deaths.leave(request, self.visitors[request], until)
        self._done_with_engine(event)
        self.state.returning.discard(request)
        self.visitors.leave(request)

    def _end_trial(self, request: int) -> None:
        if self.state.trial == request:
            self.state.trial = None

    def _doubt(self, event: e.Doubt) -> None:
        grant = self.grants.current
        if grant is None or event.request not in grant.requests:
            self._out.append(e.Verdict(event.request, True))
        else:
            self.state.doubts[event.request] = self._now

    def _not_reached(self, event: e.NotSent) -> None:
        """No engine listens there. The lock will say what that means."""
        self.state.try_at = self._now + UNREACHABLE_S

    def _connected(self, event: e.Connected) -> None:
        grant, state = self.grants.current, self.state
        if grant is not None and event.token == grant.token:
            state.try_at = state.scout = None
            state.looking, state.there_at = False, self._now
            if event.request in grant.requests:
                grant.sent.add(event.request)
                state.moved_at = self._now

    def _unreachable(self, event: e.Unreachable) -> None:
        grant = self.grants.current
        if grant is not None and event.token == grant.token:
            self.state.looking, self.state.look_at = False, self._now + UNREACHABLE_S

    def _stop(self, event: e.Stop) -> None:
        self.state.stop_at = self._now + event.within_s
        for request in list(self.visitors.new):
            self._turn_away(request, 503, CLOSING)

    # -- the lease of the host -------------------------------------------------------------------------------------

    def _lease_seen(self, event: e.LeaseSeen) -> None:
        state, visitors = self.state, self.visitors
        before, state.gate = state.gate, event
        if event.until == -math.inf < before.until:
            for request in state.untokened:
                self._count_uncovered(request)
        elif before.until == -math.inf < event.until:  # it is covered now: uncovered once more it counts anew
            for request in state.untokened:
                visitors[request].uncovered = False
        if event.open and not before.open:
            for request in list(visitors.interrupted):  # their wait for an engine begins now
                visitors.stop_waiting(request)
                visitors[request].since = self._now
                visitors.wait(request)
        for request in list(visitors.tokened):
            visitor = visitors[request]
            if visitor.lease != event.token and (visitor.lease <= event.newest or visitor.since < event.looked_at):
                current = self.grants.current
                self.uncovered += current is not None and request in current.requests  # beside a newer lease, maybe
                self._turn_away(request, 409, f"lease {visitor.lease} has ended, or never was{_is_leased(event)}")

    def _count_if_uncovered(self, request: int) -> None:
        """It may have been with an engine since before that was known."""
        if self._now >= self.state.gate.until:
            self._count_uncovered(request)

    def _count_uncovered(self, request: int) -> None:
        visitor = self.visitors[request]
        self.uncovered += not (visitor.lease or visitor.uncovered)
        visitor.uncovered = True

    # -- the steps that are due ------------------------------------------------------------------------------------

    def _close(self, step: due.Step) -> None:
        self.state.stop_at = math.inf
        for request in list(self.visitors):
            self._turn_away(request, 503, CLOSING)

    def _judge(self, step: due.Step) -> None:
        request, grant, visitor = step.request, self.grants.current, self.visitors[step.request]
        del self.state.doubts[request]
        planned = grant is not None and grant.planned
        if step.lost and not planned and due.to_blame(self.state, request, self._now):
            self.deaths.blame(visitor, self._now)
        if self._is_poison(request, visitor):
            self._out.append(e.Refuse(request, 502, POISON, for_good=True))
        else:
            self._out.append(e.Verdict(request, step.lost))

    def _look(self, step: due.Step) -> None:
        grant = self._grant()
        self.state.looking = True
        self._out.append(e.Look(grant.token, grant.url))

    def _sever(self, step: due.Step) -> None:
        grant = self._grant()
        self.severed += len(grant.requests)
        self._note("severed", token=grant.token, requests=len(grant.requests))
        for request in list(grant.requests):
            if request not in self.state.doubts:
                self._take_away(request)
        grant.sever_at = math.inf

    def _take_away(self, request: int, *, died: bool = False) -> None:
        self.state.returning.add(request)
        self._out.append(e.TakeAway(request, died=died))

    def _pause(self, step: due.Step) -> None:
        untokened = self.state.untokened
        self._note("paused", requests=len(untokened))
        for request in untokened:
            self._count_if_uncovered(request)
        self.state.returning.update(untokened)
        self._out += [e.TakeAway(request, leased=True) for request in untokened]

    def _refuse(self, step: due.Step) -> None:
        self._turn_away(step.request, step.status, step.why, step.retry_after_s)

    def _turn_away(self, request: int, status: int, why: str, retry_after_s: int = 1) -> None:
        self.visitors.stop_waiting(request)
        self._out.append(e.Refuse(request, status, why, retry_after_s))

    def _acquit(self, step: due.Step) -> None:
        self._grant().prove(step.request)
        self._end_trial(step.request)

    def _admit(self, step: due.Step) -> None:
        request, state, grant = step.request, self.state, self._grant()
        visitor = self.visitors[request]
        self.visitors.stop_waiting(request)
        reread = None
        if visitor.again:
            reread = due.to_compute(state, grant, visitor)
            if reread < visitor.tokens:
                grant.kept_tokens -= visitor.tokens
        grant.admit(request, self._now, reread)
        visitor.uncovered = False  # one that comes back counts again: another may have had the host in between
        self._count_if_uncovered(request)
        if visitor.strikes >= self.bounds.strikes:
            state.trial = request
            self._note("suspect", request=request, token=grant.token, deaths=visitor.strikes)
        if state.try_at is not None:
            state.scout = request
        self._out.append(e.Admit(request, grant.token, grant.url, grant.open_since))

    def _grant(self) -> Grant:
        grant = self.grants.current
        assert grant is not None
        return grant

    def _note(self, event: str, **detail: str | int | float | bool) -> None:
        self._out.append(e.Note(event, detail))


def _is_leased(gate: e.LeaseSeen) -> str:
    return f": {gate.why}" if gate.why else ""


_HANDLERS: dict[type, Callable[[Admission, Any], None]] = {
    e.LeaseSeen: Admission._lease_seen,
    e.LockSeen: Admission._lock_seen,
    e.LockAway: Admission._lock_away,
    e.Outlook: Admission._outlook,
    e.Wait: Admission._wait,
    e.Proved: Admission._proved,
    e.DoneWithEngine: Admission._done_with_engine,
    e.Over: Admission._over,
    e.Doubt: Admission._doubt,
    e.NotSent: Admission._not_reached,
    e.Connected: Admission._connected,
    e.Unreachable: Admission._unreachable,
    e.Stop: Admission._stop,
    e.Tick: lambda admission, event: None,  # time has passed; `due.plan` finds what follows
}
_STEPS: dict[due.Do, Callable[[Admission, due.Step], None]] = {
    due.Do.CLOSE: Admission._close,
    due.Do.JUDGE: Admission._judge,
    due.Do.LOOK: Admission._look,
    due.Do.SEVER: Admission._sever,
    due.Do.PAUSE: Admission._pause,
    due.Do.REFUSE: Admission._refuse,
    due.Do.ACQUIT: Admission._acquit,
    due.Do.ADMIT: Admission._admit,
}
