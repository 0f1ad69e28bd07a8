"""The door's own lease: one shared lease of its host for all interactive traffic, and what it means for requests.

1. While the shared lease is held, requests are admitted. A wish for the host alone closes the door: those that are with
   an engine may finish within a bound, the rest is paused, and then the lease is given back. It is asked for again at
   once, and waits for its turn.
2. While another has the host alone, only requests that carry its token are admitted: each is looked at. An older token
   is refused. A newer one than is known waits until the database has been looked at.
3. Without an answer of the database interactive traffic goes on, unverified: when the door's own lease can't be relied
   on any more; or, while another has the host alone, when that lease has ended for certain.
4. A request that is with an engine while the door has no lease that it can rely on is *uncovered*. The door counts
   these, and reports them before it asks for its next lease, and whenever a lease of another has begun or ended. One
   that is still there at a report counts again in the next one: another may have had the host in between. One that the
   door's lease has covered since counts anew when that is lost.

The lease itself is `fleet/rules/term.py`'s, what becomes of a request `admission.py`'s. Pure.
"""

import math

import msgspec

from fleet.rules import term as t
from fleet.rules.leases import LeaseRow, Mode, Seen, Wish, leased, seen
from gateway.rules.events import LeaseSeen, Note

FOR_EVER_S = 1e9
RETRY_S, LOOK_S, DRAIN_LOOK_S = 2.0, 1.0, 0.05


class Bounds(msgspec.Struct, frozen=True):
    host: str
    door: str
    """What this door is called; no other of the same host is."""
    incarnation: str
    ttl_s: float = 60.0
    drain_s: float = 30.0
    refuse: bool = False
    """What carries no token is refused at once while the host is leased."""


class DoorLease:
    def __init__(self, bounds: Bounds, now: float) -> None:
        self.bounds = bounds
        self.deadline = now
        self.seen: Seen | None = None
        """The host, as it was last looked at."""
        self.away = ""
        """Why the database gave no answer the last time; empty when it did."""
        self.unverified = False
        """Interactive traffic goes on without a lease."""
        self._held = False
        self._knows = 0
        """Whatever excluded this door up to this token has ended."""
        self._terms = self._reports = self._reported = self._sent = 0
        self._uncovered_now = self._carried = self._carrying = 0
        self._drain_until: float | None
        """The lease is to be given back then, or when no request is left."""
        self._term = self._begin(now, 0)
        self._answered_at = now
        self._look_sent_at = self._looked_at = self._other_until = -math.inf
        self._other: LeaseRow | None = None
        """The lease that had the host alone at the last look, and how long it has it at least."""
        self._next_at = self._report_at = self._report_not_before = now
        self._reporting = self._closing = False
        self._out: list[t.Ask | t.Cut | Note] = []

    # -- from outside ----------------------------------------------------------------------------------------------

    def handle(
        self, event: t.Answered | t.Failed | t.Tick, now: float, uncovered: int, in_flight: int, uncovered_now: int = 0
    ) -> list[t.Ask | t.Cut | Note]:
        """`uncovered`: so many have been counted. `in_flight`: so many requests that carry no token are with an engine,
        and `uncovered_now` of these are uncovered.
        """
        self._out, self._uncovered_now = [], uncovered_now
        if not isinstance(event, t.Tick) and event.question < 0:
            self._on_report(event, now)
        else:
            self._feed(event, now)
        if self._drain_until is not None and not in_flight:
            self._feed(t.GiveBack(), now)
        self._mind_silence(now)
        held, self._held = self._held, self._term.holds(now)
        if held and not self._held:  # what is with an engine is counted when it is told, and then there is more to say
            self.deadline = now
            return self._out
        if self._term.phase is t.Phase.OVER and now >= self._next_at and not self._closing:
            self._report(uncovered, now, due=uncovered > self._reported)
            self._term = self._begin(now, self._term.asked)
            self._feed(t.Tick(), now)
        self._report(uncovered, now, due=uncovered > self._reported or now >= self._report_at)
        drains = self._drain_until is not None and self._held
        self.deadline = min(self._term.deadline, now + (DRAIN_LOOK_S if drains else LOOK_S))
        return self._out

    def look_now(self) -> None:
        """A request has come with a token that isn't known; a tick comes next."""
        self._term.look_now()

    def close(self, now: float, uncovered: int) -> list[t.Ask | t.Cut | Note]:
        self._out, self._closing, self._reporting = [], True, False
        self._report_not_before = now
        self._report(uncovered, now, due=True)
        self._feed(t.GiveBack(), now)
        return self._out

    # -- questions -------------------------------------------------------------------------------------------------

    def gate(self, now: float) -> LeaseSeen:
        """What it means for requests."""
        newest = self.seen.newest if self.seen is not None else 0
        if self._term.holds(now) and self._drain_until is None:
            return LeaseSeen(True, self._term.until, newest=newest, looked_at=self._looked_at)
        if self.unverified:
            return LeaseSeen(True, -math.inf, newest=newest, looked_at=self._looked_at)
        other = self.other(now)
        until = pause_at = -math.inf
        if self._drain_until is not None:
            until = self._term.until
            # Its own lease may be over first: while another waits, it is renewed no further than that drains.
            pause_at = min(self._drain_until, self._term.until - self.bounds.ttl_s / 30)
        return LeaseSeen(
            open=False,
            until=until,
            token=(other.token or 0) if other is not None else 0,
            newest=newest,
            why=leased(self.bounds.host, other or self.intent),
            retry_after_s=math.ceil(self._other_until - now) if other is not None else 1,
            refuse=self.bounds.refuse,
            pause_at=pause_at,
            looked_at=self._looked_at,
        )

    def other(self, now: float) -> LeaseRow | None:
        """The lease of another that has the host alone, as far as is known."""
        return self._other if now < self._other_until else None

    @property
    def intent(self) -> LeaseRow | None:
        return self.seen.intent if self.seen is not None else None

    # -- the lease -------------------------------------------------------------------------------------------------

    def _begin(self, now: float, asked: int) -> t.Term:
        bounds = self.bounds
        self._terms += 1
        self._drain_until = None
        wish = Wish(bounds.host, Mode.SHARED, bounds.door, "interactive traffic", 0, bounds.ttl_s, FOR_EVER_S)
        return t.Term(wish, f"{bounds.incarnation}-{self._terms}", now, looks=True, asked=asked)

    def _feed(self, event: t.Answered | t.Failed | t.Tick | t.GiveBack, now: float) -> None:
        if isinstance(event, t.Answered):
            self._learn(event, now)
        elif isinstance(event, t.Failed):
            self.away = event.why
        for effect in self._term.handle(event, now):
            if isinstance(effect, t.Granted):
                self._verify(f"shared, with token {effect.token}")
                self._say("lease_held", f"host {self.bounds.host} is shared: requests are let in", token=effect.token)
            elif isinstance(effect, t.Wanted):
                intent = self.intent
                drain_s = min(self.bounds.drain_s, intent.drain_s if intent is not None else math.inf)
                self._drain_until = now + drain_s
                self._say("lease_wanted", leased(self.bounds.host, intent), bound_s=drain_s)
            elif isinstance(effect, t.Ended):
                self._ended(effect, now)
            elif isinstance(effect, (t.Ask, t.Cut)):
                if isinstance(effect, t.Cut):
                    self.away = f"no answer within {self._term.patience_s:g} s"
                elif effect.name == "look":
                    self._look_sent_at = now
                self._out.append(effect)
        if isinstance(event, t.Answered) and self._term.phase is t.Phase.WAITS and self._term.answered:
            self._verify(f"waits: {leased(self.bounds.host, self.intent)}")

    def _ended(self, ended: t.Ended, now: float) -> None:
        self._next_at = now + RETRY_S if ended.end is t.End.REFUSED else now
        if ended.end is t.End.LOST:
            self._go_unverified(ended.why, now)
            self._feed(t.GiveBack(), now)
        elif ended.end is t.End.REFUSED:
            self._go_unverified(ended.why, now)

    def _mind_silence(self, now: float) -> None:
        """The database is away, and this door has no lease: rule 3."""
        waits = self._term.phase is t.Phase.WAITS and not self.unverified
        if waits and self.away and now >= self._answered_at + self.bounds.ttl_s / 3:
            self._go_unverified(self.away, now)

    def _go_unverified(self, why: str, now: float) -> None:
        if not self.unverified and self.other(now) is None:
            self.unverified = True
            self._say("lease_unverified", why, alarm=True)

    def _verify(self, what: str) -> None:
        if self.unverified:
            self._say("lease_verified", what)
        self.unverified = False

    def _learn(self, event: t.Answered, now: float) -> None:
        self.away, self._answered_at = "", now
        if not event.rows or "newest" not in event.rows[0]:
            return
        self.seen, self._looked_at = seen(event.rows), self._look_sent_at
        assert self.seen is not None
        before, self._other, knows = self._other, self.seen.exclusive, self.seen.newest
        if self._other is not None:
            self._verify(f"waits: {leased(self.bounds.host, self._other)}")
            if before is None or before.token != self._other.token:
                self._say("lease_of_another", leased(self.bounds.host, self._other), token=self._other.token or 0)
            self._other_until = now + self._other.expires_at - self.seen.now
            knows = (self._other.token or 0) - 1
        if knows > self._knows:  # a lease has begun or ended meanwhile
            self._knows, self._report_at = knows, now

    def _say(self, event: str, why: str, *, alarm: bool = False, **more: float) -> None:
        self._out.append(Note(event, {"host": self.bounds.host, "why": why, **more}, alarm))

    # -- uncovered requests ----------------------------------------------------------------------------------------

    def _report(self, uncovered: int, now: float, *, due: bool) -> None:
        if self._reporting or not due or now < self._report_not_before:
            return
        self._reports -= 1
        self._reporting, self._sent = True, uncovered
        self._report_at = now + self.bounds.ttl_s / 3
        values: dict[str, object] = {
            "host": self.bounds.host,
            "door": self.bounds.door,
            "incarnation": self.bounds.incarnation,
        }
        sighted = uncovered - self._reported + self._carried
        self._carrying = self._uncovered_now if self.unverified else 0
        more: dict[str, object] = {"uncovered": sighted, "knows": self._knows, "ended": self._closing}
        self._out.append(t.Ask(self._reports, "report", values | more))

    def _on_report(self, event: t.Answered | t.Failed | t.Tick, now: float) -> None:
        self._reporting = False
        if isinstance(event, t.Answered):
            self._reported, self._carried = self._sent, self._carrying

        else:
            self._report_at = self._report_not_before = now + RETRY_S
