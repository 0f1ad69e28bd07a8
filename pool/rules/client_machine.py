"""What a door does towards the pool. Pure; `pool/client.py` is its shell.

1. It connects, and again whenever the connection ends, at once or after growing pauses (`reconnect.py`).
2. The newest demand is said after each welcome, and whenever there is another one: the pool has it whole, or not.
3. A command is answered by the pool, or by this machine where the connection ends first: it may have been done. None
   is said twice, and none while there is no connection.
"""

import math
from collections.abc import Callable
from typing import Any

import msgspec

from pool.entries import ModelDemand
from pool.rules import messages as m
from sidecar.machine.context import Effect, Event, Heard
from sidecar.machine.reconnect import Reconnect

MOST_PAUSE_S = 0.5
SAYS_MORE = (m.Models, m.Outlook, m.Listing)
AWAY = "the pool doesn't answer: engines serve on, and none is waked or put to sleep until it is back"
LOST = "the pool went away before it answered: it may have been done"

Done = Callable[[m.CommandDone], object]


class Started(Event, frozen=True):
    pass


class Connected(Event, frozen=True):
    ok: bool


class Disconnected(Event, frozen=True):
    why: str = ""


class Wants(Event, frozen=True):
    """The door's demand is another one."""

    models: dict[str, ModelDemand]


class Asks(Event, frozen=True):
    """A command; its number is given to it here."""

    command: m.Command
    done: Done


class Connect(Effect, frozen=True):
    pass


class Say(Effect, frozen=True):
    message: Any


class Tell(Effect, frozen=True):
    """The door: what the pool says. None: it doesn't answer any more."""

    news: Any


class Answer(Effect, frozen=True):
    done: Done
    said: m.CommandDone


class ClientMachine:
    def __init__(self) -> None:
        self.deadline = math.inf
        self._reconnect = Reconnect(MOST_PAUSE_S)
        self._up = False
        self._demand: dict[str, ModelDemand] = {}
        self._asked: dict[int, Done] = {}
        self._number = 0

    def handle(self, event: Any, now: float) -> list[Effect]:
        if isinstance(event, Heard):
            return self._heard(event.message, now)
        if isinstance(event, Wants):
            self._demand = event.models
            return [Say(m.Demand(models=self._demand))] if self._up else []
        if isinstance(event, Asks):
            return self._asks(event)
        if isinstance(event, Disconnected) or (isinstance(event, Connected) and not event.ok):
            return self._ended(now)
        if isinstance(event, Connected):
            return [Say(m.DoorHello(protocol=m.OLDEST, newest=m.PROTOCOL))]
        self.deadline = math.inf  # the start, or a pause is over
        return [Connect()]

    def _heard(self, message: Any, now: float) -> list[Effect]:
        if isinstance(message, SAYS_MORE):
            return [Tell(message)]
        if isinstance(message, m.CommandDone):
            done = self._asked.pop(message.number, None)
            return [Answer(done, message)] if done is not None else []
        if isinstance(message, m.Welcome):
            self._up = True
            self._reconnect.welcomed(now)
            return [Say(m.Demand(models=self._demand)), Say(m.Watch())]
        return []  # the connection ends with what else there is

    def _asks(self, event: Asks) -> list[Effect]:
        self._number += 1
        command = msgspec.structs.replace(event.command, number=self._number)
        if not self._up:
            return [Answer(event.done, m.CommandDone(number=self._number, ok=False, status=503, detail=AWAY))]
        self._asked[self._number] = event.done
        return [Say(command)]

    def _ended(self, now: float) -> list[Effect]:
        was_up, self._up = self._up, False
        self._reconnect.ended(now)
        self.deadline = self._reconnect.at
        asked, self._asked = self._asked, {}
        lost: list[Effect] = [
            Answer(done, m.CommandDone(number=number, ok=False, status=503, detail=LOST))
            for number, done in asked.items()
        ]
        return [*lost, Tell(None)] if was_up else lost
