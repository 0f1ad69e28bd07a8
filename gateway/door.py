"""Who may be with which engine: grants and their leases, the queue, a switchover's drain, and who is to blame.

A grant is a token of the lock and the engine that it was given to. The door sees grants through the lock's public state
and decides nothing about them.

1. Requests are admitted to the newest grant, while it is open. Whoever is admitted holds a lease on that grant from
   that moment on, and gives it back however it ends. A lease belongs to a token: who is still with an old grant can
   delay nothing that concerns a newer one.
2. A newer token is the end of every older grant: all leases on those are taken away before anything else happens.
3. In a switchover nobody new is admitted, so that nobody can starve it; whoever is there may finish within a bound, and
   is then taken away, to be continued by the successor.
4. Interrupted answers come first, oldest first, and only so many at a time read their contexts again. Then whoever is
   new, in the order of arrival. Both wait for a bounded time, and only so many new ones wait at all.
5. An engine's death counts against whoever was with it and had got nothing from it. Who has two of these is a suspect:
   it is admitted alone, that is when nobody else is with the engine who has got nothing yet, and nobody is admitted
   until it has got something. Whoever's engine dies a third time, alone, is refused.
6. When an engine fails, the lock is asked whether it still holds. While the lock doesn't know, nobody guesses; when it
   has said for a while that it does, it does.

Pure. What this file may not do: know what a request says.
"""

import enum
import math
from bisect import insort
from collections.abc import Callable
from heapq import heappop, heappush
from typing import Any

from gateway import events as e

UNREACHABLE_S = 0.05
"""Where nobody listens, it is tried again after so long."""
DRAIN_MARGIN_S = 0.25
"""Before the lock calls a switchover off because it took too long, the engine has to see that nobody is left."""


class Phase(enum.Enum):
    __hash__ = object.__hash__  # an Enum's own is made of Python, and asked for very often

    OPEN = "open"
    DRAINING = "draining"
    """A switchover is under way."""
    CLOSED = "closed"
    """Its endpoint was withdrawn, or the lock has doubts."""
    LOST = "lost"


FOLLOWS: dict[Phase, frozenset[Phase]] = {
    Phase.OPEN: frozenset({Phase.DRAINING, Phase.CLOSED, Phase.LOST}),
    Phase.DRAINING: frozenset({Phase.OPEN, Phase.CLOSED, Phase.LOST}),
    Phase.CLOSED: frozenset({Phase.OPEN, Phase.DRAINING, Phase.LOST}),
    Phase.LOST: frozenset(),
}


class BrokenRule(Exception):
    """The machine itself is wrong."""


class Grant:
    def __init__(self, token: int, engine_id: str) -> None:
        self.token = token
        self.engine_id = engine_id
        self.url = ""
        self.phase = Phase.CLOSED
        self.leases: dict[int, float] = {}
        """Who is with it, since when."""
        self.unproven: dict[int, None] = {}
        """Those who have got nothing from it yet, in the order of their admission."""
        self.rereading: set[int] = set()
        """Of these, interrupted answers."""
        self.sever_at = math.inf
        self.planned = False
        """It is to end, or has withdrawn: what becomes of it is nobody's fault."""

    def move(self, to: Phase) -> None:
        if to is self.phase:
            return
        if to not in FOLLOWS[self.phase]:
            raise BrokenRule(f"the grant with token {self.token} can't go from {self.phase.value} to {to.value}")
        self.phase = to


class Waiter:
    __slots__ = ("again", "since", "strikes")

    def __init__(self, since: float) -> None:
        self.since = since
        self.again = False
        self.strikes = 0


class Door:
    def __init__(self, bounds: e.Bounds) -> None:
        self.bounds = bounds
        self.newest = 0
        self.grant: Grant | None = None
        """The newest that is known."""
        self.lock = e.LockSeen(state="", newest=0)
        self.away = True
        self.stopping = False
        self.last_served = -math.inf
        """When somebody was last known to serve."""
        self.severed = 0
        self._serves = False
        self.deadline = math.inf
        self._people: dict[int, Waiter] = {}
        """Everybody who is with an engine, or waits for one."""
        self._again: list[int] = []
        """Interrupted answers that wait, oldest first."""
        self._fresh: list[int] = []
        """A heap: those that are new. Numbers are given in the order of arrival."""
        self._gone: set[int] = set()
        """Of these: who has left the queue since."""
        self._doubts: dict[int, tuple[int, float]] = {}
        """Who asks for a verdict: about which token, and since when."""
        self._trial: int | None = None
        """The suspect who is alone with the engine."""
        self._try_at: float | None = None
        """Nobody listened: one is admitted then, to see whether somebody does."""
        self._out: list[e.Effect] = []
        self._now = 0.0

    # -- from outside ----------------------------------------------------------------------------------------------

    def handle(self, event: Any, now: float) -> list[e.Effect]:
        self._out, self._now = [], now
        _HANDLERS[type(event)](self, event)
        self._conclude()
        return self._out

    @property
    def waiting(self) -> int:
        return len(self._again) + len(self._fresh) - len(self._gone)

    @property
    def interrupted(self) -> int:
        return len(self._again) + len(self._doubts)

    def ready(self, now: float) -> bool:
        """Somebody serves, or can be expected to within the bound."""
        return not self.stopping and (self._serves or now < self.last_served + self.bounds.failover_timeout_s)

    def check(self) -> str:
        """What is wrong with it, if anything is."""
        grant = self.grant
        if grant is not None:
            if grant.token > self.newest:
                return f"token {grant.token} is used, and {self.newest} is the newest"
            if grant.phase is Phase.LOST and grant.leases:
                return f"token {grant.token} is lost and has leases"
            if grant.phase is Phase.OPEN and not grant.url:
                return f"token {grant.token} is open, and nobody knows where"
            if not grant.rereading <= grant.unproven.keys() <= grant.leases.keys():
                return f"leases of token {grant.token} are not what they should be"
        return ""

    # -- the lock --------------------------------------------------------------------------------------------------

    def _lock_seen(self, seen: e.LockSeen) -> None:
        self.away = False
        self.lock = seen
        self.newest = max(self.newest, seen.newest, seen.token)
        if self.grant is not None and self.grant.token < self.newest:
            self._lose(self.grant)
        if not seen.token or seen.token < self.newest:
            if 0 < seen.token < self.newest:
                self._note("old_token", token=seen.token, newest=self.newest, engine=seen.engine_id)
            if self.grant is not None and self.grant.phase is not Phase.LOST:
                self.grant.move(Phase.CLOSED)
            return
        if self.grant is None or self.grant.token != seen.token:
            self.grant = Grant(seen.token, seen.engine_id)
        self._follow(self.grant, seen)

    def _follow(self, grant: Grant, seen: e.LockSeen) -> None:
        plan = seen.plan
        if plan is not None and plan.old_token == grant.token:
            if grant.phase is not Phase.DRAINING:
                bound = min(plan.drain_timeout_s, self.bounds.drain_timeout_s or math.inf)
                bound = 0.0 if self.bounds.drain_timeout_s == 0 else max(0.0, bound - DRAIN_MARGIN_S)
                grant.sever_at = self._now + bound
                grant.move(Phase.DRAINING)
                self._note("draining", token=grant.token, in_flight=len(grant.leases), bound_s=bound)
            if plan.exiting:
                grant.sever_at = self._now
            grant.planned = True
            return
        grant.sever_at = math.inf
        if seen.state == "FENCING" or not seen.url:
            grant.planned = grant.planned or (grant.phase is Phase.OPEN and seen.state != "FENCING")
            grant.move(Phase.CLOSED)
            return
        if grant.phase is not Phase.OPEN:
            self._note("open", token=grant.token, engine=grant.engine_id, url=seen.url)
            self._try_at = None
        grant.url, grant.planned = seen.url, False
        grant.move(Phase.OPEN)

    def _lock_away(self, event: e.LockAway) -> None:
        self.away = True

    def _lose(self, grant: Grant) -> None:
        if grant.phase is Phase.LOST:
            return
        died = not grant.planned
        self._note("lost", token=grant.token, engine=grant.engine_id, in_flight=len(grant.leases), died=died)
        alone = self._trial
        for request in sorted(grant.leases):
            waiter = self._people[request]
            if died and self._to_blame(grant, request):
                waiter.strikes += 1
            if request == alone and waiter.strikes > self.bounds.strikes:
                self._out.append(e.Refuse(request, 502, POISON))
            elif request not in self._doubts:
                self._out.append(e.TakeAway(request))
        for request, (token, _) in list(self._doubts.items()):
            if token == grant.token:
                del self._doubts[request]
                self._out.append(e.Verdict(request, True, False))
        grant.leases.clear()
        grant.unproven.clear()
        grant.rereading.clear()
        self._trial = None
        grant.move(Phase.LOST)
        self._out.append(e.Forget(grant.token))

    def _to_blame(self, grant: Grant, request: int) -> bool:
        return request in grant.unproven and self._now < grant.leases[request] + self.bounds.acquit_s

    # -- the requests ----------------------------------------------------------------------------------------------

    def _wait(self, event: e.Wait) -> None:
        request = event.request
        if self.stopping and not event.again:
            self._out.append(e.Refuse(request, 503, "the door is closing: ask again", 1))
            return
        known = self._people.get(request)
        if not event.again and known is None and len(self._fresh) - len(self._gone) >= self.bounds.queue:
            why = f"{self.bounds.queue} requests are waiting for an engine already"
            self._out.append(e.Refuse(request, 503, why, 1))
            return
        waiter = self._people[request] = known or Waiter(self._now)
        if event.again and not waiter.again:
            waiter.again, waiter.since = True, self._now
        if waiter.again:
            insort(self._again, request)
        else:
            heappush(self._fresh, request)

    def _proved(self, event: e.Proved) -> None:
        if self.grant is not None and event.request in self.grant.leases:
            self.grant.unproven.pop(event.request, None)
            self.grant.rereading.discard(event.request)
            self._people[event.request].strikes = 0
            if self._trial == event.request:
                self._trial = None

    def _free(self, event: e.Free | e.Over) -> None:
        """It gives its lease back."""
        self._doubts.pop(event.request, None)
        if self.grant is not None:
            self.grant.leases.pop(event.request, None)
            self.grant.unproven.pop(event.request, None)
            self.grant.rereading.discard(event.request)
        if self._trial == event.request:
            self._trial = None

    def _over(self, event: e.Over) -> None:
        self._free(event)
        if self._people.pop(event.request, None) is None:
            return
        if self._again and event.request in self._again:
            self._again.remove(event.request)
        elif self._fresh and event.request in self._fresh:
            self._gone.add(event.request)

    def _doubt(self, event: e.Doubt) -> None:
        grant = self.grant
        if grant is None or event.request not in grant.leases:
            self._out.append(e.Verdict(event.request, True, False))
            return
        self._doubts[event.request] = (grant.token, self._now)

    def _not_reached(self, event: e.NotSent) -> None:
        """Nobody listens there. The lock will say what that means."""
        self._try_at = self._now + UNREACHABLE_S

    def _connected(self, event: e.Connected) -> None:
        if self.grant is not None and event.token == self.grant.token:
            self._try_at = None

    def _stop(self, event: e.Stop) -> None:
        self.stopping = True
        for request in [request for request in self._fresh if request not in self._gone]:
            self._out.append(e.Refuse(request, 503, "the door is closing: ask again", 1))

    def _tick(self, event: e.Tick) -> None:
        """Time has passed."""

    # -- conclusions -----------------------------------------------------------------------------------------------

    def _conclude(self) -> None:
        """Draws every conclusion that is due, and says when to be called again."""
        self.deadline = math.inf
        grant = self.grant
        serves = grant is not None and grant.phase in (Phase.OPEN, Phase.DRAINING)
        if self._serves and not serves:
            self.last_served = self._now
        self._serves = serves
        if self._doubts:
            self._judge()
        if grant is not None and grant.phase is Phase.DRAINING and grant.leases and self._reached(grant.sever_at):
            self._sever(grant)
        if self._again or self._fresh:
            self._give_up()
            if grant is not None and grant.phase is Phase.OPEN:
                self._admit(grant)

    def _reached(self, at: float) -> bool:
        if self._now >= at:
            return True
        self.deadline = min(self.deadline, at)
        return False

    def _judge(self) -> None:
        """Those who ask whether their engine still holds."""
        seen, grant = self.lock, self.grant
        knows = not self.away and seen.state not in ("RECOVERING", "FENCING")
        for request, (token, since) in list(self._doubts.items()):
            holds = knows and seen.token == token
            if (knows and not holds) or self._reached_in_doubt(since):
                self._decide(request, lost=True)
            elif (holds and self._reached(since + self.bounds.hold_s)) or (
                holds and grant is not None and grant.phase is not Phase.OPEN
            ):
                self._decide(request, lost=False)

    def _reached_in_doubt(self, since: float) -> bool:
        return self._reached(since + self.bounds.failover_timeout_s)

    def _decide(self, request: int, *, lost: bool) -> None:
        del self._doubts[request]
        grant, waiter = self.grant, self._people[request]
        if lost and grant is not None and self._to_blame(grant, request) and not grant.planned:
            waiter.strikes += 1
        if request == self._trial and waiter.strikes > self.bounds.strikes:
            self._out.append(e.Refuse(request, 502, POISON))
        else:
            self._out.append(e.Verdict(request, lost, grant is not None and grant.phase is Phase.OPEN))

    def _sever(self, grant: Grant) -> None:
        """The drain has taken as long as it may. Whoever is left is continued by the successor."""
        self.severed += len(grant.leases)
        self._note("severed", token=grant.token, requests=len(grant.leases))
        for request in list(grant.leases):
            if request not in self._doubts:
                self._out.append(e.TakeAway(request))
        grant.sever_at = math.inf

    def _give_up(self) -> None:
        """Who has waited for too long."""
        bounds = self.bounds
        for request in list(self._again):
            if self._reached(self._people[request].since + bounds.failover_timeout_s):
                self._again.remove(request)
                why = f"the engine was lost, and no other took over within {bounds.failover_timeout_s:g} s"
                self._out.append(e.Refuse(request, 502, why, 1))
        while (first := self._first_fresh()) is not None:
            if not self._reached(self._people[first].since + bounds.queue_timeout_s):
                return
            heappop(self._fresh)
            why = f"no engine was there to serve it within {bounds.queue_timeout_s:g} s"
            self._out.append(e.Refuse(first, 503, why, 1))

    def _first_fresh(self) -> int | None:
        while self._fresh:
            if self._fresh[0] not in self._gone:
                return self._fresh[0]
            self._gone.discard(heappop(self._fresh))
        return None

    # -- admission -------------------------------------------------------------------------------------------------

    def _admit(self, grant: Grant) -> None:
        self._acquit(grant)
        while self._trial is None:
            if self._try_at is not None and not self._reached(self._try_at):
                return
            request = self._next(grant)
            if request is None:
                return
            waiter = self._people[request]
            grant.leases[request] = self._now
            grant.unproven[request] = None
            if waiter.again:
                grant.rereading.add(request)
            if waiter.strikes >= self.bounds.strikes:
                self._trial = request
                self._note("suspect", request=request, token=grant.token, deaths=waiter.strikes)
            if self._try_at is not None:
                self._try_at = math.inf  # until it is known whether somebody listens
            self._out.append(e.Admit(request, grant.token, grant.url))

    def _next(self, grant: Grant) -> int | None:
        """Whose turn it is, if it is anybody's."""
        innocent = suspect = None
        for request in self._again:
            if self._people[request].strikes < self.bounds.strikes:
                innocent = request
                break
            suspect = suspect if suspect is not None else request
        if innocent is not None:
            if len(grant.rereading) >= self.bounds.at_once:
                return None
            self._again.remove(innocent)
            return innocent
        if suspect is not None:
            if grant.unproven:
                return None
            self._again.remove(suspect)
            return suspect
        if self._first_fresh() is None:
            return None
        return heappop(self._fresh)

    def _acquit(self, grant: Grant) -> None:
        """Who shows nothing until it has all, and has been there for long, is no longer waited for."""
        while grant.unproven:
            request = next(iter(grant.unproven))
            if not self._reached(grant.leases[request] + self.bounds.acquit_s):
                return
            del grant.unproven[request]
            grant.rereading.discard(request)
            if self._trial == request:
                self._trial = None

    def _note(self, event: str, **detail: str | int | float | bool) -> None:
        self._out.append(e.Note(event, detail))


POISON = (
    "three engines have died while they had only this request and had given nothing of its answer: it isn't tried again"
)

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
    e.Stop: Door._stop,
    e.Tick: Door._tick,
}
