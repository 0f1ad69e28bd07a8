"""The machine of a pair: which request may be with which engine (`admission.py`), and what each request is told
(`request.py`).

An event and the time go in. What one part says to the other is passed on here, in the order in which it was said, and
what is left are effects for the shell. The parts don't know each other; this file alone knows both.

After each event it looks at its own rules, as far as that request is concerned; at those of all requests with the
lock's events and the clock's. A broken rule is reported; a request that breaks one of its own is cut, and costs no
other request anything: its code was wrong, and its client has to know that its answer isn't whole. Pure.
"""

import math
from typing import Any

from gateway.rules import events as e
from gateway.rules.admission import Admission
from gateway.rules.kinds import Api, Recovery
from gateway.rules.request import Request

LOOK_S = 1.0
"""Every so often each request is looked at, whether or not an event has come for it."""
_MODELS_MOST = 1000

_FOR_ADMISSION = frozenset(
    (
        *(e.LockSeen, e.LockAway, e.LeaseSeen, e.Stop, e.Connected, e.Unreachable),
        *(e.Wait, e.Doubt, e.Proved, e.DoneWithEngine),
    )
)
_FOR_A_REQUEST = frozenset(
    (
        *(e.Heard, e.Broke, e.Left),
        *(e.Admit, e.Refuse, e.TakeAway, e.Verdict),
    )
)


class Machine:
    def __init__(self, bounds: e.Bounds) -> None:
        self.bounds = bounds
        self.admission = Admission(bounds)
        self.requests: dict[int, Request] = {}
        self.models: tuple[str, ...] = ()
        self.max_len: int | None = None
        self.outlook = ""
        """What a request that waits is told, where a pool says so."""
        self.loaded = ""
        """By what the weights of the model's engine are told from others', where a pool says so."""
        self.parses: set[str] = set()
        """Models whose chats are known to go through a parser of their engine's."""
        self.deadline = self._look_at = math.inf
        """When a tick is due; and when each request is."""
        self._moved_at = -math.inf
        """When an engine last said something."""

    @property
    def in_flight(self) -> int:
        return len(self.requests)

    def handle(self, event: Any, now: float) -> list[e.Effect]:
        if type(event) is e.Heard:
            self._moved_at = now
        out: list[e.Effect] = []
        queue = [event]
        for said in queue:  # it grows meanwhile
            kind = type(said)
            if kind in _FOR_A_REQUEST:
                queue += self._ask(said, now)
            elif kind in _FOR_ADMISSION:
                queue += self.admission.handle(said, now)
            elif kind is e.Arrived:
                queue += self._begin(said, now)
            elif kind is e.NotSent:
                queue += [*self.admission.handle(said, now), *self._ask(said, now)]
            elif kind is e.Over:
                out.append(said)
                self._forget(said)
                queue += self.admission.handle(said, now)
            elif kind is e.Tick:
                queue += [*self._mind_time(now), *self.admission.handle(said, now)]
            elif kind is e.Outlook:
                self.outlook, self.loaded = said.says, said.loaded or self.loaded
                queue += self.admission.handle(said, now)
            elif kind is e.Models:
                self.models, self.max_len = said.names, said.max_len
            else:
                out.append(said)
        self.deadline = min(self.admission.deadline, self._look_at)
        return out

    def _begin(self, event: e.Arrived, now: float) -> list[e.Effect]:
        request = self.requests[event.request] = Request(event.request, event.kind, self.bounds, now, event.greeted)
        if now + LOOK_S < self._look_at:
            self._look_at = now + LOOK_S
        return request.begin()

    def _mind_time(self, now: float) -> list[e.Effect]:
        if now < self._look_at:
            return []
        self._look_at = now + LOOK_S if self.requests else math.inf
        requests, moved_at, outlook = self.requests.values(), self._moved_at, self.outlook
        return [effect for request in requests for effect in request.mind_time(now, moved_at, outlook)]

    def _ask(self, event: Any, now: float) -> list[e.Effect]:
        request = self.requests.get(event.request)
        if request is None:
            return [e.DoneWithEngine(event.request)] if type(event) is e.Admit else []
        request.max_len, request.loaded = self.max_len, self.loaded
        try:
            return request.handle(event, now)
        except Exception as error:  # whatever it is: a mistake in here costs this request, and no other
            return self._give_up(request, f"{type(error).__name__}: {error}", type(event).__name__)

    def _give_up(self, request: Request, wrong: str, event: str) -> list[e.Effect]:
        detail: dict[str, str | int | float | bool] = {
            "request": request.number,
            "why": wrong,
            "event": event,
            "phase": request.phase.value,
        }
        over = e.Over(request.number, e.Outcome.ENDED, "broken_rule", 0, wrong)
        return [e.Note("broken_rule", detail, True), *request.give_up(), over]

    def _forget(self, over: e.Over) -> None:
        request = self.requests.pop(over.request)
        account, kind = request.account, request.kind
        if account is None or kind.api is not Api.CHAT or kind.recovery is not Recovery.CONTINUED:
            return
        if any(choice.parsed for choice in account.choices) and len(self.parses) < _MODELS_MOST:
            self.parses.add(kind.model)
