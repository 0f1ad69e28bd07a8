"""The failovers of a pair, as the door has seen them in the lock's public status: when each part of the proof came in,
when the successor had the lock and served, and what the clients felt. Pure.

A failover begins when the engine that served is fenced, or says that it serves no more; it is over when another one
serves. Its times are milliseconds since then, as this door saw them. Only the newest are kept.
"""

from collections import deque

from gateway.rules import events as e
from lockserver.advice import Status

MOST = 8
LAST_GAPS = 10_000
ENGINES_MOST = 16
GAP_PARTS = ("noticed", "engine", "turn", "reading", "repeating")
PROCESSES, LIFE_LOCK, GRANTED, SERVES, GOES_ON = "processes", "life_lock", "granted", "serves", "goes_on"


class Handoff:
    """From one engine to the next."""

    def __init__(self, status: Status, began: float, at: float, planned: bool) -> None:
        """`status`: the last one in which the engine served."""
        assert status.holder is not None
        self.began, self.at = began, at
        """On the clock of the loop, and on the wall."""
        self.engine_id, self.token = status.holder.engine_id, status.holder.token
        self.members = len(status.holder.members)
        self.planned = planned
        """By a switchover."""
        self.to, self.to_token, self.verified = "", 0, False
        self.phases_ms: dict[str, float] = {}
        self.gaps: deque[e.Gap] = deque(maxlen=LAST_GAPS)
        self._felt: tuple[int, dict[str, object]] = (0, {})
        self._clients = 0

    def spent_ms(self, now: float) -> float:
        return round((now - self.began) * 1000, 3)

    def reach(self, phase: str, now: float) -> None:
        self.phases_ms.setdefault(phase, self.spent_ms(now))

    def resumed(self, gap: e.Gap, now: float) -> None:
        self.reach(GOES_ON, now)
        self.gaps.append(gap)
        self._clients += 1

    def felt(self) -> dict[str, object] | None:
        """The pauses of the clients; None where there was none."""
        if self.gaps and self._felt[0] != self._clients:
            parts = {part: _middle([getattr(gap, f"{part}_s") for gap in self.gaps]) for part in GAP_PARTS}
            totals = [gap.total_s for gap in self.gaps]
            longest = round(max(totals) * 1000, 3)
            shown: dict[str, object] = {"clients": len(totals), "p50": _middle(totals), "max": longest}
            self._felt = (self._clients, {**shown, "parts_p50": parts})
        return self._felt[1] if self._felt[0] else None

    def settle(self) -> None:
        """Another one begins: of this one's pauses only the figures stay."""
        self.felt()
        self.gaps.clear()


class Handoffs:
    def __init__(self) -> None:
        self.count = 0
        self.now: Handoff | None = None
        """The one that is under way."""
        self.past: deque[Handoff] = deque(maxlen=MOST)
        """The newest is the last."""
        self.engines: dict[str, float] = {}
        """When each was seen last: it holds the lock, waits for it, or starts. One that is gone may come back."""
        self._served: Status | None = None
        """The last status in which an engine served."""

    def see(self, status: Status, now: float, wall: float) -> None:
        if status.resting:  # its engine sleeps, or is about to: no engine fails over
            self.now = self._served = None
        self._meet(status, wall)
        holder, last = status.holder, self._served
        serves = holder is not None and bool(holder.endpoint) and status.state == "HELD"
        if self.now is None and last is not None and last.holder is not None and status.state != "RECOVERING":
            held = holder is not None and holder.token == last.holder.token
            if not (serves and held):
                self._begin(last, status, now, wall)
        if self.now is not None:
            self._follow(self.now, status, now)
        if serves:
            self._served = status

    def _begin(self, last: Status, status: Status, now: float, wall: float) -> None:
        self.now = Handoff(last, now, wall, last.switchover is not None or status.switchover is not None)
        if self.past:
            self.past[-1].settle()

    def _follow(self, handoff: Handoff, status: Status, now: float) -> None:
        holder = status.holder
        fence = status.fencing.life_lock if status.fencing is not None else ""
        if holder is None or holder.token > handoff.token:
            if status.state != "RECOVERING" and not fence:  # else a new server doesn't know which one held
                handoff.reach(PROCESSES, now)
                handoff.reach(LIFE_LOCK, now)
        elif status.state == "FENCING":
            if holder.members and not any(member.alive for member in holder.members):
                handoff.reach(PROCESSES, now)
            if fence == "free":
                handoff.reach(LIFE_LOCK, now)
        elif status.state == "HELD" and holder.endpoint:
            self.now = None  # it was nothing
        if holder is not None and holder.token > handoff.token and status.state == "HELD":
            handoff.reach(GRANTED, now)
            handoff.to, handoff.to_token = holder.engine_id, holder.token
            handoff.verified = status.memory == "verified"
            if holder.endpoint:
                handoff.reach(SERVES, now)
                self.now, self.count = None, self.count + 1
                self.past.append(handoff)

    def _meet(self, status: Status, wall: float) -> None:
        there = [status.holder.engine_id] if status.holder is not None else []
        there += [waiter.engine_id for waiter in status.waiters]
        for permit in status.permits.values():
            there += [*([permit.holder] if permit.holder else []), *permit.waiters]
        for engine_id in there[:ENGINES_MOST]:
            self.engines.pop(engine_id, None)
            self.engines[engine_id] = wall
        while len(self.engines) > ENGINES_MOST:
            del self.engines[next(iter(self.engines))]

    def resumed(self, gap: e.Gap, now: float) -> None:
        if self.past:
            self.past[-1].resumed(gap, now)

    def json(self) -> dict[str, object] | None:
        """The newest, for `GET /failover`."""
        if not self.past:
            return None
        last = self.past[-1]
        return {
            "at": last.at,
            "from_token": last.token,
            "to_token": last.to_token,
            "to": last.to,
            "phases_ms": {phase: last.phases_ms[phase] for phase in (GRANTED, SERVES)},
            "gap_ms": last.felt(),
        }


def _middle(seconds: list[float]) -> float:
    """The median, in milliseconds."""
    return round(sorted(seconds)[len(seconds) // 2] * 1000, 3)
