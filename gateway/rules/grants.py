"""The lock's grants, as the door sees them: the newest, the engine that serves under it, and its requests. Pure.

A grant is a token of the lock and the engine that it was given to. The door decides nothing about grants. A request is
with one grant, so one that is still with an old grant can delay nothing that concerns a newer one.
"""

import enum
import math

from gateway.rules import events as e
from gateway.rules.legs import BrokenRule


class Phase(enum.Enum):
    __hash__ = object.__hash__  # an Enum's own is made of Python, and asked for very often

    OPEN = "open"
    """Requests are admitted."""
    DRAINING = "draining"
    """A switchover is under way: no new requests; those that are there may finish, up to a bound."""
    CLOSED = "closed"
    """Its endpoint was withdrawn, or the lock has doubts or says that there is no holder: no new requests; those that
    are there go on. That there is no holder is not the end: a server that lost its file may say so of one that lives
    and comes back."""
    LOST = "lost"
    """The lock has given a newer token: nothing of it is passed on any more, and it never comes back."""


MAY_FOLLOW: dict[Phase, frozenset[Phase]] = {
    Phase.OPEN: frozenset({Phase.DRAINING, Phase.CLOSED, Phase.LOST}),
    Phase.DRAINING: frozenset({Phase.OPEN, Phase.CLOSED, Phase.LOST}),
    Phase.CLOSED: frozenset({Phase.OPEN, Phase.DRAINING, Phase.LOST}),
    Phase.LOST: frozenset(),
}


SERVES = (Phase.OPEN, Phase.DRAINING)


class Grant:
    def __init__(self, token: int, engine_id: str) -> None:
        self.token = token
        self.engine_id = engine_id
        self.url = ""
        self.phase = Phase.CLOSED
        self.open_since = 0.0
        self.requests: dict[int, float] = {}
        """Those that are with it, and since when."""
        self.unproven: dict[int, None] = {}
        """Those that have got nothing from it yet, in the order of their admission."""
        self.sent: set[int] = set()
        """And those that were sent to it: the others are still being connected."""
        self.rereading: dict[int, int] = {}
        """Those among them that are interrupted answers, and how many tokens of each it has to compute again."""
        self.kept_tokens = self.kept_block = 0
        """It goes on with its predecessor's KV cache, of so many tokens that no context was counted for yet."""
        self.sever_at = math.inf
        """When the requests that are with it are taken away: a drain's bound is over, or its engine is asleep."""
        self.planned = False
        """It is to end, or has withdrawn: no request is to blame for what becomes of it."""

    def move(self, to: Phase) -> None:
        if to is self.phase:
            return
        if to not in MAY_FOLLOW[self.phase]:
            raise BrokenRule(f"the grant with token {self.token} can't go from {self.phase.value} to {to.value}")
        self.phase = to

    # -- requests --------------------------------------------------------------------------------------------------

    def admit(self, request: int, now: float, reread: int | None) -> None:
        """`reread`: it was interrupted, and so many tokens have to be computed again."""
        self.requests[request] = now
        self.unproven[request] = None
        if reread is not None:
            self.rereading[request] = reread

    def prove(self, request: int) -> None:
        """It has got something from this engine, or is no longer waited for."""
        self.unproven.pop(request, None)
        self.rereading.pop(request, None)

    def release(self, request: int) -> None:
        self.requests.pop(request, None)
        self.sent.discard(request)
        self.unproven.pop(request, None)
        self.rereading.pop(request, None)

    def lose(self) -> None:
        self.requests.clear()
        self.unproven.clear()
        self.sent.clear()
        self.rereading.clear()
        self.move(Phase.LOST)

    def check(self, request: int | None) -> str:
        """What is wrong with it, if anything is: with this request, or with all of them."""
        if self.phase is Phase.LOST and self.requests:
            return f"token {self.token} is lost and has requests"
        if self.phase is Phase.OPEN and not self.url:
            return f"token {self.token} is open, and has no address"
        if request is None:
            right = self.rereading.keys() <= self.unproven.keys() <= self.requests.keys() >= self.sent
        elif request in self.requests:
            right = request in self.unproven or request not in self.rereading
        else:
            right = request not in self.unproven and request not in self.rereading and request not in self.sent
        return "" if right else f"requests of token {self.token} are not what they should be"


class Grants:
    def __init__(self, drain_timeout_s: float | None) -> None:
        self.newest = 0
        """The newest token that was ever seen."""
        self.current: Grant | None = None
        """The newest grant that is known. It may be lost."""
        self.lock = e.LockSeen(state="", newest=0)
        self.away = True
        """No lock server answers. The holder serves on."""
        self._drain_timeout_s = drain_timeout_s

    @property
    def open(self) -> Grant | None:
        return self.current if self.current is not None and self.current.phase is Phase.OPEN else None

    @property
    def lock_knows(self) -> bool:
        """It says for certain which engine holds."""
        return not self.away and self.lock.state not in ("RECOVERING", "FENCING")

    @property
    def ended(self) -> bool:
        """The engine that served has left in order, and there is no other. A server that begins doesn't know them all
        yet.
        """
        left = self.current is not None and self.current.planned and self.current.phase is Phase.CLOSED
        return left and not (self.away or self.lock.others or self.lock.state == "RECOVERING")

    def see(self, seen: e.LockSeen) -> Grant | None:
        """What the lock says. Returns the grant that is lost by it; `follow` comes next."""
        self.away = False
        self.lock = seen
        self.newest = max(self.newest, seen.newest, seen.token)
        current = self.current
        return current if current is not None and current.token < self.newest else None

    def follow(self, now: float) -> list[e.Effect]:
        """What it means for the newest grant."""
        seen = self.lock
        if not seen.token or seen.token < self.newest:
            if self.current is not None and self.current.phase is not Phase.LOST:
                self.current.move(Phase.CLOSED)
                if seen.resting and seen.state == "FREE":  # it was given back
                    self.current.planned, self.current.sever_at = True, now
                else:
                    self.current.sever_at = math.inf
            if not seen.token:
                return []
            return [_note("old_token", token=seen.token, newest=self.newest, engine=seen.engine_id)]
        if self.current is None or self.current.token != seen.token:
            left = self.current is not None and self.current.planned
            self.current = Grant(seen.token, seen.engine_id)
            self.current.planned = left  # until it serves: both engines may have been told to end
        grant = self.current
        if seen.switchover is not None and seen.switchover.old_token == grant.token:
            return self._drain(grant, seen.switchover, now)
        grant.sever_at = math.inf
        if seen.state == "FENCING" or not seen.url:
            grant.planned = grant.planned or (grant.phase is Phase.OPEN and seen.state != "FENCING")
            grant.move(Phase.CLOSED)
            return []
        notes: list[e.Effect] = []
        if grant.phase is not Phase.OPEN:
            grant.open_since = now
            notes = [_note("open", token=grant.token, engine=grant.engine_id, url=seen.url)]
            grant.kept_tokens, grant.kept_block = seen.kept_tokens, seen.kept_block
        grant.url, grant.planned = seen.url, False
        grant.move(Phase.OPEN)
        return notes

    def _drain(self, grant: Grant, switchover: e.Switchover, now: float) -> list[e.Effect]:
        """A switchover wants it to end: within its time, or our own if that is less."""
        notes: list[e.Effect] = []
        if grant.phase is not Phase.DRAINING:
            own = self._drain_timeout_s
            bound = switchover.drain_timeout_s if own is None else min(own, switchover.drain_timeout_s)
            grant.sever_at = now + bound
            grant.move(Phase.DRAINING)
            notes = [_note("draining", token=grant.token, in_flight=len(grant.requests), bound_s=bound)]
        if switchover.exiting:
            grant.sever_at = now
        grant.planned = True
        return notes


def _note(event: str, **detail: str | int | float | bool) -> e.Note:
    return e.Note(event, detail)
