"""One pair behind the door: its machine, its lock, its engines, and the clients that are with it. Or an endpoint
elsewhere, which has no lock, and of which the machine is told that it always holds.

The shell around `machine.py`: what clients, engines and the lock say goes in as events, and effects are carried out in
order. What this file may not do: decide.
"""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from gateway.rules import errors
from gateway.rules import events as e
from gateway.rules.grants import SERVES
from gateway.rules.handoffs import Handoffs
from gateway.rules.kinds import Kind
from gateway.rules.machine import Machine
from gateway.rules.view import PairSeen
from gateway.shell.metrics import Counts
from gateway.shell.upstream import Upstreams
from gateway.shell.watch import lock_seen, watch
from lockserver.observer import Status
from sidecar.http.http_exchange import Reply, nothing
from sidecar.machine.turns import Turns
from sidecar.terminal.logs import Log

OWN_TIMEOUT_S = 5.0
UNVERIFIED = (b"x-failover-lease", b"unverified")
MODELS_RETRY_S = 1.0
Headers = list[tuple[bytes, bytes]]
_NOWHERE: Callable[[bool], None] = nothing


class Client:
    """The client that waits for the answer to one request."""

    __slots__ = (
        "began", "first_at", "hand_on", "kind", "last_at", "number", "path", "peer", "reply", "started", "status",
    )  # fmt: skip

    def __init__(self, number: int, reply: Reply, kind: Kind, path: str, peer: str, now: float) -> None:
        self.number = number
        self.reply = reply
        self.kind = kind
        self.path = path
        self.peer = peer
        self.began = now
        self.first_at = self.last_at = 0.0
        self.status = 0
        self.started = False
        self.hand_on = _NOWHERE
        """Another model is to answer it."""


class Pair(Turns):
    machine: Machine

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        run_dir: Path,
        bounds: e.Bounds,
        counts: Counts,
        log: Log,
        on_over: Callable[[Client, e.Over, float], None],
        url: str = "",
    ) -> None:
        """`url`: where it always is, and has no lock."""
        super().__init__(_EFFECTS, time.monotonic)
        self.loop = loop
        self.run_dir = run_dir
        self.url = url
        self.closed = False
        self.counts = counts
        self.log = log
        self.machine = Machine(bounds)
        self.handoffs = Handoffs()
        self.status: Status | None = None
        """The lock's newest; it stays while no lock server answers."""
        self.away_since: float | None = time.time()
        """Since when none does, on the wall's clock."""
        self.clients: dict[int, Client] = {}
        self.on_changed: Callable[[], None] = lambda: None
        """Its models may have changed, or the engine that serves."""
        self.on_lease: Callable[[], None] = lambda: None
        """A request carries a token of a lease that isn't known yet."""
        self._on_over = on_over
        self._ups = Upstreams(loop, self._hear_from_afar if url else self.feed)
        self._unreached = ""
        self._numbers = self._own_numbers = 0
        self._models_of = 0
        """The token of the grant whose models are known."""
        self._timer: asyncio.TimerHandle | None = None
        self._armed = float("inf")

    def start(self) -> None:
        if self.url:
            self.feed(e.LockSeen(state="HELD", newest=1, token=1, engine_id="remote", url=self.url))
            return

        def tell(status: Status | None) -> None:
            if not self.closed:
                self.loop.call_soon_threadsafe(self._lock_said, status)

        watch(self.run_dir, tell, lambda: self.closed, self.log)

    def _hear_from_afar(self, event: e.Event) -> None:
        """No lock says why an endpoint elsewhere can't be reached."""
        if type(event) is e.NotSent and event.why != self._unreached:
            self._unreached = event.why
            self.log.alarm("unreachable", name=self.run_dir.name, why=event.why)
        elif type(event) is e.Connected:
            self._unreached = ""
        self.feed(event)

    # -- clients ---------------------------------------------------------------------------------------------------

    def take(
        self, kind: Kind, reply: Reply, path: str, peer: str, began: float, *,
        greeted: bool = False, hand_on: Callable[[bool], None] = _NOWHERE,
    ) -> None:  # fmt: skip
        """A request that this pair is to answer. `greeted`: the head of a stream is out. `hand_on` is called (with the
        same) when another model is to answer it after all.
        """
        self._numbers += 1
        number = self._numbers
        client = self.clients[number] = Client(number, reply, kind, path, peer, began)
        if hand_on is not _NOWHERE:
            client.hand_on = hand_on
            client.started, client.status = greeted, 200 if greeted else 0
        reply.gone = lambda: self.feed(e.Left(number))
        reply.room = lambda room: self._ups.pause(number, not room)
        self.feed(e.Arrived(number, kind, greeted))

    def stop(self, within_s: float) -> None:
        self.feed(e.Stop(within_s))

    def close(self) -> None:
        self.closed = True
        self._ups.close()
        if self._timer is not None:
            self._timer.cancel()

    # -- the machine -----------------------------------------------------------------------------------------------

    def feed(self, event: object) -> None:
        super().feed(event)
        deadline = self.machine.deadline
        if deadline != self._armed:
            self._arm(deadline)

    def _arm(self, at: float) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._armed = at
        self._timer = None
        if at != float("inf"):
            self._timer = self.loop.call_later(max(0.0, at - time.monotonic()), self._tick)

    def _tick(self) -> None:
        self._timer, self._armed = None, float("inf")
        self.feed(e.Tick())

    def _lock_said(self, status: Status | None) -> None:
        self.feed(lock_seen(status))
        if status is not None:
            self._ups.drain(status.plan.old_token if status.plan is not None else 0)
            self.status, self.away_since = status, None
            self.handoffs.see(status, time.monotonic(), time.time())
            self._learn_models()
        elif self.away_since is None:
            self.away_since = time.time()
        self.on_changed()

    def requests(self) -> dict[str, int]:
        """How many there are, and of which kinds."""
        machine, admission = self.machine, self.machine.admission
        phases = Counter(request.phase.value for request in machine.requests.values())
        return {
            "in_flight": machine.in_flight,
            "waiting": admission.visitors.waiting,
            "interrupted": admission.interrupted,
            "answering": phases["streaming"] + phases["continuing"] + phases["repeating"],
            "silent": sum(request.silent for request in machine.requests.values()),
            "severed": admission.severed,
        }

    def seen(self) -> PairSeen:
        where, models = str(self.run_dir), self.machine.models
        return PairSeen(where, models, self.status, self.away_since, self.handoffs, self.requests())

    # -- what the door itself asks ---------------------------------------------------------------------------------

    async def get(self, target: bytes) -> bytes | None:
        """What the engine that serves answers; None when it doesn't."""
        grant = self.machine.admission.grants.current
        if grant is None or grant.phase not in SERVES or self.url:
            return None
        self._own_numbers -= 1  # those of clients' requests are positive
        number, own = self._own_numbers, _Own(self.loop)
        ask = e.Ask(number, 1, grant.token, grant.url, "GET", target, [(b"host", b"engine")], b"", True)
        self._ups.ask(ask, own.hear)
        try:
            return await asyncio.wait_for(own.answer, OWN_TIMEOUT_S)
        except TimeoutError:
            self._ups.drop(e.Drop(number, 1, False))
            return None

    def _learn_models(self) -> None:
        grant = self.machine.admission.grants.current
        if grant is None or grant.phase not in SERVES or grant.token == self._models_of:
            return
        self._models_of = grant.token
        self.loop.create_task(self._ask_models(grant.token))

    async def _ask_models(self, token: int) -> None:
        body = await self.get(b"/v1/models")
        try:
            models = msgspec.json.decode(body or b"", type=_Models).data
        except (msgspec.DecodeError, UnicodeDecodeError):
            self._models_of = 0
            self.loop.call_later(MODELS_RETRY_S, self._learn_models)
            return
        lengths = [model.max_model_len for model in models if model.max_model_len is not None]
        self.feed(e.Models(token, tuple(model.id for model in models), min(lengths, default=None)))
        self.on_changed()

    # -- effects ---------------------------------------------------------------------------------------------------

    def _whole(self, effect: e.Whole) -> None:
        client = self.clients[effect.request]
        self._note_first(client, effect.status)
        client.reply.send(effect.status, effect.body, self._marked(_headers(effect.headers, client.kind)))

    def _open(self, effect: e.Open) -> None:
        client = self.clients[effect.request]
        client.status = effect.status
        client.started = True
        client.reply.open(effect.status, self._marked(_headers(effect.headers, client.kind)))

    def _marked(self, headers: Headers) -> Headers:
        """As one that no lease covers, if that is so."""
        gate = self.machine.admission.state.gate
        if gate.open and self.now >= gate.until:
            headers.append(UNVERIFIED)
        return headers

    def _send(self, effect: e.Send) -> None:
        client = self.clients[effect.request]
        now = self.now
        if client.last_at:
            self.counts.between.add(now - client.last_at)
        elif not effect.data.startswith(b": "):
            self._note_first(client, client.status)
        else:  # a comment: it waits, and has nothing of an answer yet
            now = 0.0
        client.last_at = now
        client.reply.stream(effect.data)

    def _cut(self, effect: e.Cut) -> None:
        client = self.clients[effect.request]
        if client.started:
            client.reply.abort()
        else:
            client.status = 500
            said = errors.body(500, "this request met a mistake of the door's; its log has more")
            client.reply.send(500, said, _headers(errors.JSON, client.kind))

    def _over(self, effect: e.Over) -> None:
        client = self.clients.pop(effect.request)
        self._ups.paused.discard(effect.request)
        now = self.now
        self.counts.over(effect)
        self.counts.latency.add(now - client.began)
        self._on_over(client, effect, now)

    def _resumed(self, effect: e.Resumed) -> None:
        self.counts.gap(effect.gap)
        self.handoffs.resumed(effect.gap, self.now)

    def _note(self, effect: e.Note) -> None:
        if effect.alarm:
            self.counts.alarms[effect.event] += 1
        (self.log.alarm if effect.alarm else self.log.info)(effect.event, **effect.detail)

    def _note_first(self, client: Client, status: int) -> None:
        client.status = status
        client.first_at = self.now
        self.counts.first.add(client.first_at - client.began)


class _Model(msgspec.Struct):
    id: str
    max_model_len: int | None = None


class _Models(msgspec.Struct):
    data: list[_Model]


class _Own:
    """An answer that the door itself waits for."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.answer: asyncio.Future[bytes | None] = loop.create_future()
        self._status = 0
        self._body: list[bytes] = []

    def hear(self, event: e.Event) -> None:
        if isinstance(event, e.Heard):
            self._status = event.head.status if event.head is not None else self._status
            self._body.append(event.data)
            if not event.ended:
                return
        if not self.answer.done():
            whole = isinstance(event, e.Heard) and self._status == 200
            self.answer.set_result(b"".join(self._body) if whole else None)


def _headers(headers: e.Headers, kind: Kind) -> Headers:
    found = [header for header in headers if header[0] != b"x-request-id"]
    found.append((b"x-request-id", kind.request_id.encode()))
    return found


_EFFECTS: Mapping[type, Callable[[Pair, Any], None]] = {
    e.Ask: lambda pair, ask: pair._ups.ask(ask),
    e.Look: lambda pair, look: pair._ups.look(look),
    e.LookAtLease: lambda pair, look: pair.on_lease(),
    e.Drop: lambda pair, drop: pair._ups.drop(drop),
    e.Forget: lambda pair, forget: pair._ups.forget(forget.token),
    e.Whole: Pair._whole,
    e.Open: Pair._open,
    e.Send: Pair._send,
    e.End: lambda pair, end: pair.clients[end.request].reply.end(),
    e.Cut: Pair._cut,
    e.HandOn: lambda pair, it: pair.clients[it.request].hand_on(it.greeted),
    e.Over: Pair._over,
    e.Resumed: Pair._resumed,
    e.Note: Pair._note,
}
