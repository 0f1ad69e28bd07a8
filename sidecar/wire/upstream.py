"""A server that another server watches, within the loop of the one that watches: connected to, asked, and connected to
again, for as long as it is wanted.

    lock = Upstream(loop, whom, (Watch(),), heard=..., lost=..., question=AskStatus())
    lock.due(now)               # as soon as, and whenever `deadline` is reached
    lock.say(Wake())

One that is stopped says as little as one whose state doesn't change: where there is a question it is asked when it has
been silent for a while, and counts as lost when it doesn't answer. What this file may not do: know a message. For
people and threads there is `observer.py`.
"""

import math
from collections.abc import Callable, Sequence
from typing import Any

from sidecar.machine.loop import Loop
from sidecar.machine.reconnect import Reconnect
from sidecar.wire import sockets
from sidecar.wire.client_connection import ClientConnection
from sidecar.wire.frames import Channel, Message
from sidecar.wire.observer import Whom

MOST_PAUSE_S = 0.25
SILENT_S = 5.0


class Upstream:
    def __init__(
        self,
        loop: Loop,
        whom: Whom,
        first: Sequence[Message],
        *,
        heard: Callable[[Any], None],
        lost: Callable[[], None],
        clock: Callable[[], float],
        question: Message | None = None,
    ) -> None:
        """`first`: said after the hello. `heard` gets every message; `lost` is called when it answers no more."""
        self._whom, self._first, self._question = whom, first, question
        self._heard, self._lost, self._clock = heard, lost, clock
        self._reconnect = Reconnect(MOST_PAUSE_S)
        self._silent_at = math.inf
        self._asked = False
        self._closed = False
        self._connection = ClientConnection(loop, heard=self._on_heard, ended=lambda why: self._on_ended())

    @property
    def deadline(self) -> float:
        if self._closed:
            return math.inf
        return self._silent_at if self._connection.up else self._reconnect.at

    def due(self, now: float) -> None:
        if now < self.deadline:
            return
        if not self._connection.up:
            self._connect(now)
        elif self._asked or self._question is None:
            self._on_ended()
        else:
            self._asked, self._silent_at = True, now + SILENT_S
            self.say(self._question)

    def say(self, message: Message) -> None:
        """Where there is no connection it isn't said: `lost` was called, or will be."""
        if self._connection.up and not self._connection.say(message):
            self._on_ended()

    def close(self) -> None:
        self._closed = True
        self._connection.hang_up()

    def _connect(self, now: float) -> None:
        try:
            sock = sockets.connect(self._whom.socket)
        except OSError:
            self._reconnect.ended(now)
            return
        self._connection.open(Channel(sock, self._whom.decoder, max_frame_bytes=self._whom.max_frame_bytes))
        self._reconnect.welcomed(now)
        self._hears(now)
        for message in (self._whom.hello, *self._first):
            self.say(message)

    def _hears(self, now: float) -> None:
        self._asked, self._silent_at = False, now + SILENT_S if self._question is not None else math.inf

    def _on_heard(self, message: Any) -> None:
        self._hears(self._clock())
        if type(message) not in self._whom.last_words:
            self._heard(message)

    def _on_ended(self) -> None:
        self._connection.hang_up()
        self._reconnect.ended(self._clock())
        self._lost()
