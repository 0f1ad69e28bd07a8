"""The door's machine: the rules about who may be with which engine (`door.py`), and each request's own (`request.py`).

An event and the time go in. What one part says to the other is passed on here, in the order in which it was said, and
what is left are effects for the shell. The parts don't know each other, and nobody but this file knows both.

After each event it looks at its own rules, as far as that request is concerned; at those of all requests with the
lock's events and the clock's. A broken rule is reported; a request that breaks one of its own is cut, and costs nobody
else anything: whoever wrote it was wrong, and its client has to know that its answer isn't whole. Pure.
"""

import math
from collections.abc import Iterable
from typing import Any

from gateway import events as e
from gateway.door import Door
from gateway.kinds import Api, Way
from gateway.request import Request

LOOK_S = 1.0
"""So often those are looked at to whom nothing is said."""
_MODELS_MOST = 1000

_TO_DOOR = frozenset({e.Wait, e.Doubt, e.Proved, e.Free})
_TO_REQUEST = frozenset({e.Admit, e.Refuse, e.TakeAway, e.Verdict})
_FOR_THE_DOOR = frozenset({e.LockSeen, e.LockAway, e.Stop, e.Connected, e.Unreachable})


class Machine:
    def __init__(self, bounds: e.Bounds) -> None:
        self.bounds = bounds
        self.door = Door(bounds)
        self.requests: dict[int, Request] = {}
        self.models: tuple[str, ...] = ()
        self.max_len: int | None = None
        self.parses: set[str] = set()
        """Models whose chats are known to go through a parser of their engine's."""
        self._look_at = math.inf
        self._moved_at = -math.inf
        """When an engine last said something."""
        self._out: list[e.Effect] = []

    @property
    def deadline(self) -> float:
        return min(self.door.deadline, self._look_at)

    @property
    def in_flight(self) -> int:
        return len(self.requests)

    def handle(self, event: Any, now: float) -> list[e.Effect]:
        self._out = []
        kind = type(event)
        if kind is e.Came:  # nearly all events are of this kind
            self._moved_at = now
            effects = self._ask(event.request, event, now)
            if len(effects) == 1 and type(effects[0]) is e.Send:
                return effects
            self._pass(effects, now)
        elif kind is e.Answered:
            self._pass(self._ask(event.request, event, now), now)
        elif kind is e.Arrived:
            request = self.requests[event.request] = Request(event.request, event.kind, self.bounds, now)
            if now + LOOK_S < self._look_at:
                self._look_at = now + LOOK_S
            self._pass(request.begin(), now)
        elif kind in _FOR_THE_DOOR:
            effects = self._tell_door(event, now)
            if effects:
                self._pass(effects, now)
        elif kind is e.Models:
            self.models, self.max_len = event.names, event.max_len
        elif kind is e.Tick:
            self._mind_time(now)
        else:
            effects = self._ask(event.request, event, now)
            if kind is e.NotSent:
                effects = [*self._tell_door(event, now), *effects]
            self._pass(effects, now)
        return self._out

    def _mind_time(self, now: float) -> None:
        if now >= self._look_at:
            for request in list(self.requests.values()):
                self._pass(request.mind_time(now, self._moved_at), now)
            self._look_at = now + LOOK_S if self.requests else math.inf
        self._pass(self._tell_door(e.Tick(), now), now)

    def _pass(self, effects: Iterable[e.Effect], now: float) -> None:
        """To whom each is said."""
        queue: list[Any] = list(effects)
        ends = bool(queue) and type(queue[-1]) is e.Over
        for effect in queue:  # it grows meanwhile
            kind = type(effect)
            if ends and kind is e.Proved:
                self.door.acquit(effect.request)  # all else follows from its end
                continue
            if kind in _TO_DOOR:
                queue += self._tell_door(effect, now)
            elif kind in _TO_REQUEST:
                queue += self._ask(effect.request, effect, now)
            else:
                self._out.append(effect)
                if kind is e.Over:
                    self._forget(effect)
                    queue += self._tell_door(effect, now)

    def _tell_door(self, event: Any, now: float) -> list[e.Effect]:
        effects = self.door.handle(event, now)
        wrong = self.door.check(getattr(event, "request", None))
        if wrong:
            effects.append(e.Note("broken_rule", {"why": wrong}, True))
        return effects

    def _ask(self, number: int, event: e.Event, now: float) -> list[e.Effect]:
        request = self.requests.get(number)
        if request is None:
            return [e.Free(number)] if isinstance(event, e.Admit) else []
        request.max_len = self.max_len
        try:
            effects = request.handle(event, now)
            wrong = request.check()
        except Exception as error:  # whatever it is: a mistake in here costs this request, and nobody else's
            wrong = f"{type(error).__name__}: {error}"
        if wrong:
            return self._give_up(request, wrong, type(event).__name__)
        return effects

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
        if account is None or kind.api is not Api.CHAT or kind.way is not Way.CONTINUED:
            return
        if any(choice.parsed for choice in account.choices) and len(self.parses) < _MODELS_MOST:
            self.parses.add(kind.model)
