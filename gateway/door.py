"""Who may be with which engine: admission, a switchover's drain, doubts about an engine, and who is to blame.

1. Requests are admitted to the newest grant, while it is open. Whoever is admitted holds a lease on that grant from
   that moment on, and gives it back however it ends.
2. A newer token is the end of every older grant: all leases on those are taken away before anything else happens.
3. In a switchover nobody new is admitted, so that nobody can starve it; whoever is there may finish within a bound, and
   is then taken away, to be continued by the successor.
4. Interrupted answers come first, oldest first, and only so many tokens of theirs are computed again at a time. Then
   whoever is new, in the order of arrival. Both wait for a bounded time, and only so many new ones wait at all;
   preflights, which need no key, are counted apart. Where the successor has the whole KV cache of the engine that was
   lost, a context that was read there is kept but for its last block, as long as all of these together fit in that
   cache: so none of them had to make room for another.
5. An engine's death counts against whoever was sent to it and had got nothing from it, and never against who waited, in
   the queue or for a connection. Who has two of these is a suspect: it is admitted alone, that is when nobody else is
   with the engine who has got nothing yet, and nobody is admitted until it has got something. Whoever's engine dies a
   third time, alone, is refused. Deaths are remembered by what was asked: the same request, sent again by any
   client, begins where the last one had come to.
6. When an engine fails, the lock is asked whether it still holds. While the lock doesn't know, nobody guesses; when it
   has said for a while that it does, and somebody listens there, it does. Whoever's engine fails while it drains, or
   has withdrawn, waits for the next one at once.
7. When the engine that served has left in order and there is no other, a new request is refused at once.
8. Where nobody listens, one request at a time is admitted to see whether somebody does. As soon as somebody is known to
   listen, all are; when that request has gone and nothing is known, the next one is tried.

Its parts: `grants.py` has the lock's grants and their leases, `visitors.py` has everybody who is here, and who comes
first, `deaths.py` what engines have died of. What this file may not do: know what a request says. Pure.
"""

import math
from collections.abc import Callable
from typing import Any

from gateway import events as e
from gateway.deaths import Deaths
from gateway.grants import Grant, Grants, Phase
from gateway.visitors import Visitor, Visitors

UNREACHABLE_S = 0.05
"""Where nobody listens, it is tried again after so long."""
POISON = (
    "three engines have died while they had only this request and had given nothing of its answer: it isn't tried again"
)
CLOSING = "the door is closing: ask again"
ENDED = "the engine that served was told to end, and there is no other: ask again"


class Door:
    def __init__(self, bounds: e.Bounds) -> None:
        self.bounds = bounds
        self.grants = Grants(bounds.drain_timeout_s)
        self.visitors = Visitors()
        self.last_served = -math.inf
        """When somebody was last known to serve."""
        self._served_last = 0
        """The token of the newest of the lost grants that were ever open: a KV cache that is kept is that engine's."""
        self.severed = 0
        self.deadline = math.inf
        self._served = False
        self._doubts: dict[int, float] = {}
        """Who asks whether the newest grant is lost, and since when; in the order of asking."""
        self._looking = False
        """It is being looked whether anybody listens where the newest grant's engine is."""
        self._look_at = -math.inf
        """Nobody did: not before that it is looked again."""
        self._there_at = -math.inf
        """When somebody was last known to listen there."""
        self._moved_at = -math.inf
        """When somebody was last sent to an engine, whichever it was."""
        self._returning: set[int] = set()
        """Who was just told that its engine is lost: it comes back to wait, or is over, before anybody is admitted."""
        self._trial: int | None = None
        """The suspect who is alone with the engine."""
        self._try_at: float | None = None
        """Nobody listened: one is admitted then, to see whether somebody does. None: somebody is known to listen."""
        self._scout: int | None = None
        """Whoever was admitted for that. Nobody else is, until it is known, or until it is there no more."""
        self._deaths = Deaths(bounds.strikes_s, bounds.strikes_most)
        self._alone_since: float | None = None
        """The engine that served has left in order, and there is no other."""
        self._stop_at: float | None = None
        """Whoever is still here then is refused."""
        self._out: list[e.Effect] = []
        self._now = 0.0

    # -- from outside ----------------------------------------------------------------------------------------------

    def handle(self, event: Any, now: float) -> list[e.Effect]:
        self._out, self._now = [], now
        if type(event) is e.Connected and self._try_at is self._scout is None and not self._doubts:
            self._connected(event)  # as nearly always: nothing follows from it
            return self._out
        self.deadline = math.inf
        _HANDLERS[type(event)](self, event)
        self._conclude()
        return self._out

    @property
    def stopping(self) -> bool:
        return self._stop_at is not None

    @property
    def interrupted(self) -> int:
        return len(self.visitors.interrupted) + len(self._doubts)

    def ready(self, now: float) -> bool:
        """Somebody serves, or can be expected to within the bound."""
        if self.stopping or (self._alone_since is not None and now >= self._alone_since + self.bounds.hold_s):
            return False
        return self._served or now < self.last_served + self.bounds.failover_timeout_s

    @property
    def ended(self) -> bool:
        """Its engines have ended in order, and none is there that could follow."""
        return self.grants.ended

    def acquit(self, request: int) -> None:
        """An engine has given it something, and lives. For a request that ends with it nothing else follows."""
        self._deaths.acquit(self.visitors[request])

    def check(self, request: int | None) -> str:
        """What is wrong with it, if anything is: after an event of this request's, or of everybody's."""
        grant = self.grants.current
        if self._scout is not None and (grant is None or self._scout not in grant.leases):
            return f"request {self._scout} is to see whether somebody listens, and is with no engine"
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
            self._try_at = self._scout = None

    def _lock_away(self, event: e.LockAway) -> None:
        self.grants.away = True

    def _lose(self, grant: Grant) -> None:
        if grant.phase is Phase.LOST:
            return
        died = not grant.planned
        self._note("lost", token=grant.token, engine=grant.engine_id, in_flight=len(grant.leases), died=died)
        if grant.url:
            self._served_last = grant.token
        alone = self._trial
        for request in sorted(grant.leases):
            visitor = self.visitors[request]
            if died and self._to_blame(grant, request):
                self._deaths.blame(visitor, self._now)
            if request == alone and visitor.strikes > self.bounds.strikes:
                self._doubts.pop(request, None)
                self._out.append(e.Refuse(request, 502, POISON, for_good=True))
            elif request not in self._doubts:
                self._take_away(request)
        self._deaths.engine_lost(died, self._now)
        for request in self._doubts:
            self._out.append(e.Verdict(request, True))
        self._returning |= self._doubts.keys()
        self._doubts.clear()
        self._trial = self._scout = None
        self._looking, self._there_at = False, -math.inf
        grant.lose()
        self._out.append(e.Forget(grant.token))

    def _to_blame(self, grant: Grant, request: int) -> bool:
        """It was sent there, and had got nothing: a request that only waited for its connection killed nobody."""
        return (
            request in grant.unproven
            and request in grant.sent
            and self._now < grant.leases[request] + self.bounds.acquit_s
        )

    # -- the requests ----------------------------------------------------------------------------------------------

    def _wait(self, event: e.Wait) -> None:
        request = event.request
        if self._stop_at is not None and not event.again:
            self._out.append(e.Refuse(request, 503, CLOSING, 1))
            return
        new = not event.again and not self.visitors.knows(request)
        if new and self.visitors.fresh(preflights=event.preflight) >= self.bounds.queue:
            why = f"{self.bounds.queue} requests are waiting for an engine already"
            self._out.append(e.Refuse(request, 503, why, 1))
            return
        strikes = self._deaths.of(event.fingerprint, self._now) if new else 0
        if strikes > self.bounds.strikes:
            self._out.append(e.Refuse(request, 502, POISON, for_good=True))
            return
        self._returning.discard(request)
        visitor = self.visitors.wait(request, event.again, event.tokens, self._now, event.preflight)
        if new:
            visitor.strikes, visitor.fingerprint = strikes, event.fingerprint

    def _proved(self, event: e.Proved) -> None:
        grant = self.grants.current
        if grant is not None and event.request in grant.leases:
            grant.prove(event.request)
            self.acquit(event.request)
            self.visitors[event.request].read_by = grant.token
            self._end_trial(event.request)

    def _free(self, event: e.Free | e.Over) -> None:
        """It gives its lease back."""
        self._doubts.pop(event.request, None)
        if self.grants.current is not None:
            self.grants.current.release(event.request)
        if self._trial == event.request:
            self._trial = None
        if self._scout == event.request:  # it was refused, or its client left before anybody could know
            self._scout, self._try_at = None, self._now + UNREACHABLE_S

    def _over(self, event: e.Over) -> None:
        grant = self.grants.current
        if event.outcome is e.Outcome.LEFT and grant is not None and self._to_blame(grant, event.request):
            until = grant.leases[event.request] + self.bounds.acquit_s
            self._deaths.leave(event.request, self.visitors[event.request], until)
        self._free(event)
        self._returning.discard(event.request)
        self.visitors.leave(event.request)

    def _end_trial(self, request: int) -> None:
        if self._trial == request:
            self._trial = None

    def _doubt(self, event: e.Doubt) -> None:
        grant = self.grants.current
        if grant is None or event.request not in grant.leases:
            self._out.append(e.Verdict(event.request, True))
            return
        self._doubts[event.request] = self._now

    def _not_reached(self, event: e.NotSent) -> None:
        """Nobody listens there. The lock will say what that means."""
        self._try_at = self._now + UNREACHABLE_S

    def _connected(self, event: e.Connected) -> None:
        grant = self.grants.current
        if grant is not None and event.token == grant.token:
            self._try_at = self._scout = None
            self._looking, self._there_at = False, self._now
            if event.request in grant.leases:
                grant.sent.add(event.request)
                self._moved_at = self._now

    def _nobody_there(self, event: e.Unreachable) -> None:
        grant = self.grants.current
        if grant is not None and event.token == grant.token:
            self._looking, self._look_at = False, self._now + UNREACHABLE_S

    def _stop(self, event: e.Stop) -> None:
        self._stop_at = self._now + event.within_s
        while (request := self.visitors.first_fresh()) is not None:
            self._refuse(request, 503, CLOSING, 1)

    def _tick(self, event: e.Tick) -> None:
        """Time has passed."""

    # -- conclusions -----------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Draws every conclusion that is due."""
        grant = self.grants.current
        serves = grant is not None and (grant.phase is Phase.OPEN or grant.phase is Phase.DRAINING)
        if self._served and not serves:
            self.last_served = self._now
        self._served = serves
        if self._stop_at is not None and self._reached(self._stop_at):
            self._stop_at = math.inf
            for request in self.visitors.everybody:
                self._refuse(request, 503, CLOSING, 1)
        if self._doubts:
            self._judge()
        if grant is not None and grant.phase is Phase.DRAINING and grant.leases and self._reached(grant.sever_at):
            self._sever(grant)
        if self._alone_since is not None or (grant is not None and grant.planned):
            self._mind_the_end()
        visitors = self.visitors
        if visitors.waiting and grant is not None and grant.phase is Phase.OPEN and not self._returning:
            self._admit(grant)
        if visitors.waiting:
            self._give_up()

    def _reached(self, at: float) -> bool:
        """Else it wants to be called again by then."""
        if self._now >= at:
            return True
        if at < self.deadline:
            self.deadline = at
        return False

    def _judge(self) -> None:
        """Those who ask whether their engine still holds: all of them ask about the newest grant. One that drains or
        has withdrawn is as good as lost to them: another will take over, and goes on with what this one leaves.
        """
        grants = self.grants
        token = grants.current.token if grants.current is not None else 0
        holds = grants.lock_knows and grants.lock.token == token and grants.open is not None
        at_once = grants.lock_knows and not holds
        patience_s = self.bounds.hold_s if holds else self.bounds.failover_timeout_s
        for request, since in list(self._doubts.items()):
            if not at_once and not self._reached(since + patience_s):
                return  # who asks later waits longer
            if (
                holds
                and self._there_at < since + patience_s
                and not self._reached(since + self.bounds.failover_timeout_s)
            ):
                self._look(grants.open)
                return
            self._decide(request, lost=not holds or self._there_at < since + patience_s)

    def _look(self, grant: Grant | None) -> None:
        """An engine that has only failed still listens. One that is dead doesn't, whatever the lock says by now."""
        if grant is not None and not self._looking and self._reached(self._look_at):
            self._looking = True
            self._out.append(e.Look(grant.token, grant.url))

    def _decide(self, request: int, *, lost: bool) -> None:
        del self._doubts[request]
        grant, visitor = self.grants.current, self.visitors[request]
        if lost and grant is not None and self._to_blame(grant, request) and not grant.planned:
            self._deaths.blame(visitor, self._now)
        if request == self._trial and visitor.strikes > self.bounds.strikes:
            self._out.append(e.Refuse(request, 502, POISON, for_good=True))
        else:
            self._out.append(e.Verdict(request, lost))

    def _sever(self, grant: Grant) -> None:
        """The drain has taken as long as it may. Whoever is left is continued by the successor."""
        self.severed += len(grant.leases)
        self._note("severed", token=grant.token, requests=len(grant.leases))
        for request in list(grant.leases):
            if request not in self._doubts:
                self._take_away(request)
        grant.sever_at = math.inf

    def _take_away(self, request: int) -> None:
        self._returning.add(request)
        self._out.append(e.TakeAway(request))

    def _mind_the_end(self) -> None:
        """When a pod ends its engines are told before its door is, and Services may still send requests here. One that
        waited would wait in vain. A moment is left to an engine that only binds its socket again.
        """
        if not self.grants.ended:
            self._alone_since = None
            return
        if self._alone_since is None:
            self._alone_since = self._now
        if self._reached(self._alone_since + self.bounds.hold_s):
            while (request := self.visitors.first_fresh()) is not None:
                self._refuse(request, 503, ENDED, 1)

    def _give_up(self) -> None:
        """Who has waited for too long. Whose engine was lost waits for another one, and then for its turn: as long as
        others have theirs, it isn't given up.
        """
        bounds, visitors = self.bounds, self.visitors
        while (longest := visitors.longest_interrupted()) is not None:
            if not self._reached(max(visitors[longest].since, self._moved_at) + bounds.failover_timeout_s):
                break
            why = f"the engine was lost, and no other took over within {bounds.failover_timeout_s:g} s"
            self._refuse(longest, 502, why, 1)
        while (first := visitors.first_fresh()) is not None:
            if not self._reached(visitors[first].since + bounds.queue_timeout_s):
                return
            self._refuse(first, 503, f"no engine was there to serve it within {bounds.queue_timeout_s:g} s", 1)

    def _refuse(self, request: int, status: int, why: str, retry_after_s: int) -> None:
        self.visitors.stop_waiting(request)
        self._out.append(e.Refuse(request, status, why, retry_after_s))

    # -- admission -------------------------------------------------------------------------------------------------

    def _admit(self, grant: Grant) -> None:
        if grant.unproven:
            self._acquit(grant)
        while self._trial is self._scout is None and self.visitors.waiting:
            if self._try_at is not None and not self._reached(self._try_at):
                return
            request = self._next(grant)
            if request is None:
                return
            visitor = self.visitors[request]
            self.visitors.stop_waiting(request)
            grant.lease(request, self._now, self._charge(grant, visitor) if visitor.again else None)
            if visitor.strikes >= self.bounds.strikes:
                self._trial = request
                self._note("suspect", request=request, token=grant.token, deaths=visitor.strikes)
            if self._try_at is not None:
                self._scout = request
            self._out.append(e.Admit(request, grant.token, grant.url, grant.open_since))

    def _next(self, grant: Grant) -> int | None:
        """Whose turn it is, if it is anybody's."""
        visitors, strikes = self.visitors, self.bounds.strikes
        suspect = None
        for request in visitors.interrupted:
            if visitors[request].strikes < strikes:
                room = self.bounds.reread_tokens - sum(grant.rereading.values())
                return request if self._to_compute(grant, visitors[request]) <= room or not grant.rereading else None
            suspect = request if suspect is None else suspect
        if suspect is None:
            first = visitors.first_fresh()
            if first is None or visitors[first].strikes < strikes:
                return first
            suspect = first
        return None if grant.unproven else suspect

    def _to_compute(self, grant: Grant, visitor: Visitor) -> int:
        kept = visitor.read_by == self._served_last and visitor.tokens <= grant.kept_tokens
        return min(visitor.tokens, grant.kept_block) if kept else visitor.tokens

    def _charge(self, grant: Grant, visitor: Visitor) -> int:
        tokens = self._to_compute(grant, visitor)
        if tokens < visitor.tokens:
            grant.kept_tokens -= visitor.tokens
        return tokens

    def _acquit(self, grant: Grant) -> None:
        """Who shows nothing until it has all, and has been there for long, is no longer waited for."""
        while grant.unproven:
            request = next(iter(grant.unproven))
            if not self._reached(grant.leases[request] + self.bounds.acquit_s):
                return
            grant.prove(request)
            self._end_trial(request)

    def _note(self, event: str, **detail: str | int | float | bool) -> None:
        self._out.append(e.Note(event, detail))


_HANDLERS: dict[type, Callable[[Door, Any], None]] = {
    e.LockSeen: Door._lock_seen,
    e.LockAway: Door._lock_away,
    e.Wait: Door._wait,
    e.Proved: Door._proved,
    e.Free: Door._free,
    e.Over: Door._over,
    e.Doubt: Door._doubt,
    e.NotSent: Door._not_reached,
    e.Connected: Door._connected,
    e.Unreachable: Door._nobody_there,
    e.Stop: Door._stop,
    e.Tick: Door._tick,
}
