"""What admission knows, and what is due: questions that change nothing, and `plan`, which asks them in order.

`plan` returns the first step that is due, or the time at which the next one may be. `admission.py` takes that step, and
asks again until none is due; so each step sees what the one before it has changed, and a timer is nothing but an
answer. What this file may not do: change anything. Pure.
"""

import enum
import math

import msgspec

from gateway.rules import events as e
from gateway.rules.grants import Grant, Grants, Phase
from gateway.rules.visitors import Visitor, Visitors

NEVER = math.inf
ENDED = "the engine that served was told to end, and there is no other: ask again"


class State:
    """All that is known of the lock, the engine and the requests, as far as it counts for admission."""

    def __init__(self, bounds: e.Bounds) -> None:
        self.bounds = bounds
        self.grants = Grants(bounds.drain_timeout_s)
        self.visitors = Visitors()
        self.doubts: dict[int, float] = {}
        """Requests that ask whether the newest grant is lost, and since when; in the order of asking."""
        self.returning: set[int] = set()
        """Requests that were just told that their engine is lost: each comes back to wait, or is over, before any
        request is admitted."""
        self.trial: int | None = None
        """The suspect that is alone with the engine."""
        self.try_at: float | None = None
        """No engine listened: one request is admitted then, to see whether it does. None: it is known to listen."""
        self.scout: int | None = None
        """The request that was admitted for that. No other is, until it is known, or until the scout is gone."""
        self.looking = False
        """The door is finding out whether the newest grant's engine listens."""
        self.look_at = -NEVER
        """When it is looked again, after an engine that didn't listen."""
        self.there_at = -NEVER
        """When it was last known to listen."""
        self.moved_at = -NEVER
        """When a request was last sent to an engine, whichever it was."""
        self.served_last = 0
        """The token of the newest of the lost grants that were ever open: a KV cache that is kept is that engine's."""
        self.alone_since: float | None = None
        """The engine that served has left in order, and there is no other."""
        self.gate = e.LeaseSeen()
        """Which requests the lease of the door's host lets in."""
        self.failed = ""
        """Why the model can't be awake for now, as the pool says."""
        self.failed_for_s = 1
        """For so long, as it says."""
        self.gone = False
        """For good."""
        self.outlook = ""
        """What a request that waits for it waits for, as the pool says."""
        self.stop_at: float | None = None
        """The requests that are still here then are refused. Infinite once that is done."""

    @property
    def untokened(self) -> list[int]:
        """The requests that are with the engine and carry no token."""
        grant, apart = self.grants.current, (self.visitors.tokened, self.returning, self.doubts)
        return [each for each in grant.requests if not any(each in some for some in apart)] if grant is not None else []

    def lets_in(self, request: int) -> bool:
        """As far as the lease of the door's host goes."""
        lease = self.visitors[request].lease
        return lease == self.gate.token if lease else self.gate.open


# -- the steps ------------------------------------------------------------------------------------------------------


class Do(enum.Enum):
    __hash__ = object.__hash__  # an Enum's own is made of Python, and asked for very often

    CLOSE = "close"
    """The time that was left is over: every request is refused."""
    JUDGE = "judge"
    """A request whose engine failed is told whether that engine has lost the lock."""
    LOOK = "look"
    """Does the newest grant's engine listen?"""
    SEVER = "sever"
    """The drain has taken as long as it may, or the engine is asleep: the requests that are left go on with the next
    grant."""
    PAUSE = "pause"
    """The host is to be leased to another, and requests have had their time to finish: they go on afterwards."""
    REFUSE = "refuse"
    """A request has waited in vain."""
    ACQUIT = "acquit"
    """A request shows nothing until it has all, and has been there for long: it is no longer waited for."""
    ADMIT = "admit"


class Step(msgspec.Struct, frozen=True, gc=False):
    do: Do
    request: int = 0
    lost: bool = False
    """What the judgement is."""
    status: int = 0
    why: str = ""
    """Why it is refused."""
    retry_after_s: int = 1


def plan(state: State, now: float) -> Step | float:
    """The first step that is due; while none is, when the next one may be."""
    grant, at = state.grants.current, NEVER
    if state.stop_at is not None:
        if now >= state.stop_at:
            return Step(Do.CLOSE)
        at = state.stop_at
    if state.doubts:
        verdict = _verdict(state, now)
        if isinstance(verdict, Step):
            return verdict
        at = min(at, verdict)
    if grant is not None and grant.sever_at < NEVER and grant.requests:
        if now >= grant.sever_at:
            return Step(Do.SEVER)
        at = min(at, grant.sever_at)
    if not state.gate.open and grant is not None and state.untokened:
        if now >= state.gate.pause_at:
            return Step(Do.PAUSE)
        at = min(at, state.gate.pause_at)
    if state.visitors.new or state.visitors.interrupted:
        for question in (_turn, _in_vain, _patience):
            found = question(state, now)
            if isinstance(found, Step):
                return found
            at = min(at, found)
    return at


# -- doubts ---------------------------------------------------------------------------------------------------------


def _verdict(state: State, now: float) -> Step | float:
    """On the request that has asked for longest; every doubt is about the newest grant. An engine that drains or has
    withdrawn is as good as lost: another will take over, and goes on with what this one leaves. An engine that has only
    failed still listens; one that is dead doesn't, whatever the lock says by now.
    """
    grants, bounds = state.grants, state.bounds
    request, since = next(iter(state.doubts.items()))
    token = grants.current.token if grants.current is not None else 0
    last_at = since + bounds.failover_timeout_s
    if not (grants.lock_knows and grants.lock.token == token and grants.open is not None):
        return Step(Do.JUDGE, request, lost=True) if grants.lock_knows or now >= last_at else last_at
    held_until = since + bounds.hold_s
    if now < held_until:
        return held_until
    if state.there_at >= held_until or now >= last_at:
        return Step(Do.JUDGE, request, lost=state.there_at < held_until)
    if state.looking:
        return last_at
    return Step(Do.LOOK) if now >= state.look_at else min(state.look_at, last_at)


def to_blame(state: State, request: int, now: float) -> bool:
    """It was sent to the newest grant's engine, and had got nothing: a request that only waited for its connection
    killed no engine.
    """
    grant = state.grants.current
    return (
        grant is not None
        and request in grant.unproven
        and request in grant.sent
        and now < grant.requests[request] + state.bounds.acquit_s
    )


# -- admission ------------------------------------------------------------------------------------------------------


def _turn(state: State, now: float) -> Step | float:
    grant, at = state.grants.current, NEVER
    if grant is None or grant.phase is not Phase.OPEN or state.returning:
        return NEVER
    if grant.unproven:
        first = next(iter(grant.unproven))
        at = grant.requests[first] + state.bounds.acquit_s
        if now >= at:
            return Step(Do.ACQUIT, first)
    if state.trial is not None or state.scout is not None:
        return at
    if state.try_at is not None and now < state.try_at:
        return min(at, state.try_at)
    request = _next(state, grant)
    return at if request is None else Step(Do.ADMIT, request)


def _next(state: State, grant: Grant) -> int | None:
    """The request whose turn it is, if there is one."""
    visitors, strikes = state.visitors, state.bounds.strikes
    suspect, interrupted, new = None, visitors.interrupted, visitors.new
    if not state.gate.open or visitors.tokened:
        interrupted = [each for each in interrupted if state.lets_in(each)]
        new = [each for each in new if state.lets_in(each)]
    for request in interrupted:
        if visitors[request].strikes < strikes:
            room = state.bounds.reread_tokens - sum(grant.rereading.values())
            return request if to_compute(state, grant, visitors[request]) <= room or not grant.rereading else None
        suspect = request if suspect is None else suspect
    if suspect is None:
        if not new:
            return None
        suspect = new[0]
        if visitors[suspect].strikes < strikes:
            return suspect
    return None if grant.unproven else suspect


def to_compute(state: State, grant: Grant, visitor: Visitor) -> int:
    """How many tokens of a visitor's context the engine has to compute."""
    kept = visitor.read_by == state.served_last and visitor.tokens <= grant.kept_tokens
    return min(visitor.tokens, grant.kept_block) if kept else visitor.tokens


# -- requests that wait in vain -------------------------------------------------------------------------------------


def _in_vain(state: State, now: float) -> Step | float:
    """A new request that would wait in vain: the pool says that its model can't be awake; or the engine that served has
    left in order, and for `hold_s` no other is there (it may only bind its socket again). An interrupted one waits on,
    unless the pool knows its model no more.
    """
    new = state.visitors.new
    waits = [*state.visitors.interrupted, *new] if state.gone else new
    if state.failed and waits:
        return Step(Do.REFUSE, waits[0], status=503, why=state.failed, retry_after_s=state.failed_for_s)
    if state.alone_since is None or not new:
        return NEVER
    at = state.alone_since + state.bounds.hold_s
    return Step(Do.REFUSE, new[0], status=503, why=ENDED) if now >= at else at


def _patience(state: State, now: float) -> Step | float:
    """Waiting has a bound. A request whose engine was lost waits for another one, and then for its turn: as long as
    others have theirs, it isn't given up.
    """
    bounds, visitors, at = state.bounds, state.visitors, NEVER
    waits = visitors.longest
    if not state.gate.open:  # a paused answer waits for the end of another's lease, and then for its turn
        waits = [each for each in waits if state.lets_in(each[1])]
    if waits:
        since, longest = waits[0]
        within_s = bounds.turn_s or bounds.failover_timeout_s
        at = max(since, state.moved_at) + within_s
        if now >= at:
            why = f"the engine was lost, and no other took over within {within_s:g} s"
            return Step(Do.REFUSE, longest, status=502, why=why)
    if visitors.new:
        first_at, first = visitors.first_end
        if now >= first_at:
            since = visitors[first].since
            status = 504 if first_at < since + bounds.queue_timeout_s else 503
            why = f"no engine was there to serve it within {first_at - since:g} s"
            why = f"{why}: {state.outlook}" if state.outlook else why
            why = why if state.lets_in(first) else state.gate.why
            return Step(Do.REFUSE, first, status=status, why=why)
        at = min(at, first_at)
    return at
