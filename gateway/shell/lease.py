"""The door's lease in the world: its clock, the thread that asks the database, and the pairs that are told.

What this file may not do: decide (`gateway/rules/lease.py`).
"""

import asyncio
import math
import secrets
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from fleet.rules import term as t
from fleet.rules.leases import leased
from fleet.shell.holding import Asker, clock
from fleet.shell.store import open_store
from gateway.rules import events as e
from gateway.rules.lease import Bounds, DoorLease
from gateway.shell.metrics import Counts, Value
from gateway.shell.pair import Pair
from sidecar.terminal.logs import Log

CLOSE_S = 2.0


@dataclass(frozen=True)
class Settings:
    host: str
    database: str
    door: str
    refuse: bool
    ttl_s: float
    drain_s: float


class Lease:
    def __init__(
        self, loop: asyncio.AbstractEventLoop, settings: Settings, pairs: Sequence[Pair], counts: Counts, log: Log
    ) -> None:
        self._loop, self._pairs, self._counts, self._log = loop, pairs, counts, log
        self._host = settings.host
        bounds = Bounds(
            settings.host, settings.door, secrets.token_hex(16), settings.ttl_s, settings.drain_s, settings.refuse
        )
        self._machine = DoorLease(bounds, clock())
        self._asker = Asker(open_store(settings.database), self._answer)
        self._gate = self._told = e.LeaseSeen()
        """In this machine's time, and in that of the pairs."""
        self._offset_s = 0.0
        self._gone = 0
        """Requests that no lease covered, with pairs that aren't there any more."""
        self._timer: asyncio.TimerHandle | None = None
        self._closed: asyncio.Event = asyncio.Event()
        self.on_changed: Callable[[], None] = lambda: None

    def start(self) -> None:
        for pair in self._pairs:
            self.adopt(pair)
        self._feed(t.Tick())

    def adopt(self, pair: Pair) -> None:
        """One that is new: it knows no lease yet."""
        pair.on_lease = self._look_now
        pair.feed(self._told)

    def forget(self, pair: Pair) -> None:
        self._gone += pair.machine.admission.uncovered

    async def close(self) -> None:
        """Says that this door has ended in order, and gives the lease back; not for longer than `CLOSE_S`."""
        if self._timer is not None:
            self._timer.cancel()
        self._carry_out(self._machine.close(clock(), self._uncovered))
        self._asker.close_when_done(lambda: self._loop.call_soon_threadsafe(self._closed.set))
        try:
            await asyncio.wait_for(self._closed.wait(), CLOSE_S)
        except TimeoutError:
            self._asker.cut()

    # -- the machine -----------------------------------------------------------------------------------------------

    @property
    def _uncovered(self) -> int:
        return self._gone + sum(pair.machine.admission.uncovered for pair in self._pairs)

    def _answer(self, answer: t.Answered | t.Failed) -> None:
        """In the asker's thread."""
        if isinstance(answer, t.Answered) and answer.rows and "now" in answer.rows[0]:
            self._offset_s = answer.rows[0]["now"] - time.time()
        self._loop.call_soon_threadsafe(self._feed, answer)

    def _look_now(self) -> None:
        self._machine.look_now()
        self._loop.call_soon(self._feed, t.Tick())

    def _feed(self, event: t.Answered | t.Failed | t.Tick) -> None:
        if self._closed.is_set():
            return
        admissions = [pair.machine.admission for pair in self._pairs]
        in_flight = sum(len(each.state.untokened) for each in admissions)
        uncovered_now = sum(each.uncovered_now for each in admissions)
        self._carry_out(self._machine.handle(event, clock(), self._uncovered, in_flight, uncovered_now))
        self._tell()
        wait_s = max(0.0, self._machine.deadline - clock())
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(wait_s, self._feed, t.Tick())

    def _carry_out(self, effects: Sequence[t.Ask | t.Cut | e.Note]) -> None:
        for effect in effects:
            if isinstance(effect, t.Ask):
                self._asker.ask(effect)
            elif isinstance(effect, t.Cut):
                self._asker.cut()
            else:
                self._counts.alarms[effect.event] += effect.alarm
                (self._log.alarm if effect.alarm else self._log.info)(effect.event, **effect.detail)

    def _tell(self) -> None:
        """The pairs, in their own time: their clock stops while the machine is suspended, and this one doesn't."""
        now = clock()
        gate, earlier_s = self._machine.gate(now), now - time.monotonic()
        if not any(pair.machine.admission.visitors.tokened for pair in self._pairs):
            gate = msgspec.structs.replace(gate, looked_at=-math.inf)  # nothing waits to hear of every look
        times = {name: getattr(gate, name) - earlier_s for name in ("until", "pause_at", "looked_at")}
        told = msgspec.structs.replace(gate, **times)
        plain = msgspec.structs.replace(gate, retry_after_s=1)
        if plain != self._gate:
            self._gate, self._told = plain, told
            for pair in self._pairs:
                pair.feed(told)
            self.on_changed()

    # -- what there is to see --------------------------------------------------------------------------------------

    def seen(self) -> dict[str, object]:
        machine, now = self._machine, clock()
        other = machine.other(now)
        waits = machine.seen is not None and machine.intent is not None
        state = "unverified" if machine.unverified else "shared" if self._gate.open else "leased" if other else "wanted"
        says = {
            "unverified": f"the host's lease can't be asked for ({machine.away}): requests are let in all the same",
            "shared": f"host {self._host} is shared" + ("; a program waits to have it alone" if waits else ""),
        }.get(state, leased(self._host, other or machine.intent))
        return {"host": self._host, "state": state, "says": says, "token": self._gate.token,
                "uncovered": self._uncovered}  # fmt: skip

    def values(self) -> list[Value]:
        machine, now, labels = self._machine, clock(), {"host": self._host}
        other, intent, seen = machine.other(now), machine.intent, machine.seen
        unrenewed_s = 0.0
        if other is not None and seen is not None:  # a long term is renewed the later
            unrenewed_s = max(0.0, seen.now - other.renewed_at - max(0.0, other.ttl_s - 60.0) / 3)
        waits_s = seen.now - intent.asked_at if intent is not None and seen is not None else 0.0
        values = [
            ("lease_open", "1 while requests without a token are admitted", float(self._gate.open)),
            ("lease_unverified", "1 while they are, and the lease can't be asked for", float(machine.unverified)),
            ("lease_token", "The token of the lease that another has the host alone with", float(self._gate.token)),
            ("lease_unrenewed_seconds", "Since that lease was renewed, as last seen", unrenewed_s),
            ("lease_intent_seconds", "How long a wish for the host alone has waited, as last seen", waits_s),
            ("lease_clock_offset_seconds", "The database's clock less this machine's", self._offset_s),
            ("lease_uncovered_total", "Requests that no lease covered", float(self._uncovered)),
        ]
        return [(name, help, labels, value) for name, help, value in values]
