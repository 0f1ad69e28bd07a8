"""The door's machine in a world of its own: simulated engines that die wherever they are told to, a lock that says so,
clients that keep every byte, and a clock. One seed is one schedule.

What must hold is looked at all the time: nothing is passed on of an engine whose token is old, nothing follows the end
of an answer, no client that is over has anything with an engine, and the machine finds no broken rule of its own.
"""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from gateway.rules import events as e
from gateway.rules import kinds
from gateway.rules.machine import Machine
from sidecar.machine.context import Note, Tick
from tests.gateway import engine

NAMES = "abcdefghij"


@dataclass
class SimClient:
    number: int
    kind: kinds.Kind
    status: int = 0
    headers: e.Headers = ()
    body: bytes = b""
    ended: str = ""
    """`end`, `cut` or `whole`."""
    outcome: e.Outcome | None = None
    how: str = ""
    why: str = ""
    gaps: int = 0

    @property
    def events(self) -> list[Any]:
        """Those of a stream, without comments and without what differs between two runs."""
        found = []
        for event in self.body.split(b"\n\n"):
            if event.startswith(b"data: "):
                data = event[6:]
                found.append(data.decode() if data == b"[DONE]" else _alike(json.loads(data)))
        return found


def _alike(event: Any) -> Any:
    if isinstance(event, dict) and "created" in event:
        event = {**event, "created": 0}
    for choice in event.get("choices", ()) if isinstance(event, dict) else ():
        for call in (choice.get("delta") or {}).get("tool_calls") or ():
            call.pop("id", None)
    return event


@dataclass
class Exchange:
    ask: e.Ask
    said: engine.Said
    at: int = 0
    """Pieces that are out."""
    headed: bool = False


@dataclass
class Connecting:
    """A connection for what is to be asked, while it isn't known whether a server listens."""

    ask: e.Ask
    wanted: bool = True


@dataclass
class SimEngine:
    token: int
    name: str
    alive: bool = True
    exchanges: dict[tuple[int, int], Exchange] = field(default_factory=dict)
    connecting: list[Connecting] = field(default_factory=list)
    idle: int = 0
    """Connections whose answers are over."""


class World:
    def __init__(
        self, bounds: e.Bounds | None = None, say: Callable[..., engine.Said] = engine.answer, *, slow: bool = False
    ) -> None:
        """`slow`: a connection is made, or refused, when `connect` is called."""
        self.machine = Machine(bounds or e.Bounds())
        self.now = 100.0
        self.newest = 0
        self.engines: dict[int, SimEngine] = {}
        self.clients: dict[int, SimClient] = {}
        self.notes: list[Note] = []
        self.asked: list[e.Ask] = []
        self.switchover: e.Switchover | None = None
        self.serving: SimEngine | None = None
        self.ready: tuple[str, ...] = ()
        self.others = True
        self.looks_at_lease = 0
        self.forgotten: set[int] = set()
        self.kept = (0, 0)
        """Of how many tokens, in blocks of how many, the KV cache is with which the next engine goes on."""
        self._say = say
        self._slow = slow

    # -- what happens ----------------------------------------------------------------------------------------------

    def arrive(self, path: str, body: Any = None, *, method: str = "POST", seed: int = 5, **more: Any) -> SimClient:
        """`more`: fields of its kind."""
        number = len(self.clients) + 1
        data = b"" if body is None else json.dumps(body).encode()
        name = f"r{number}"
        headers = [(b"content-type", b"application/json"), (b"x-request-id", name.encode())]
        parses = self.machine.parses.__contains__
        kind = kinds.kind_of(method, path.encode(), headers, data, request_id=name, seed=seed, parses=parses)
        kind = msgspec.structs.replace(kind, **more)
        client = self.clients[number] = SimClient(number, kind)
        self.feed(e.Arrived(number, kind))
        return client

    def leave(self, client: SimClient) -> None:
        client.ended = client.ended or "left"
        self.feed(e.Left(client.number))

    def grant(self, *, serves: bool = True) -> SimEngine:
        """The lock gives its next token to another engine."""
        self.newest += 1
        name = NAMES[self.newest % 2]
        it = self.engines[self.newest] = SimEngine(self.newest, name)
        self.serving = it
        self.lock("HELD", serves=serves)
        if serves:
            self.feed(e.Models(it.token, (engine.MODEL,), engine.MAX_LEN))
        return it

    def rest(self) -> None:
        """Its engine has given the lock back, and is asleep."""
        self.lock("FREE", resting=True)

    def lock(
        self, state: str, *, serves: bool = True, switchover: e.Switchover | None = None, resting: bool = False
    ) -> None:
        """What the lock says now."""
        self.switchover = switchover
        holder = self.serving if state != "FREE" else None
        url = f"unix:{holder.token}" if holder is not None and serves else ""
        self.feed(
            e.LockSeen(
                state=state,
                newest=self.newest,
                token=holder.token if holder is not None else 0,
                engine_id=holder.name if holder is not None else "",
                url=url,
                kept_tokens=self.kept[0],
                kept_block=self.kept[1],
                switchover=switchover,
                ready=self.ready,
                others=self.others,
                resting=resting,
            )
        )

    def die(self, it: SimEngine) -> None:
        """Its connections break off where they are."""
        it.alive, it.idle = False, 0
        while it.exchanges:
            key = next(iter(it.exchanges))
            del it.exchanges[key]
            self.feed(e.Broke(*key, "its connection ended"))

    def fail_over(self) -> None:
        """The engine that serves dies, which the lock then says, and another is granted."""
        assert self.serving is not None
        self.die(self.serving)
        self.lock("FENCING", serves=False)
        self.grant()

    def connect(self, connecting: Connecting, *, refused: bool = False) -> None:
        """A connection is made, unless it is refused or no server listens; the client that wanted it may have left."""
        ask, it = connecting.ask, self.engines[connecting.ask.token]
        if it.alive and not refused:
            self.feed(e.Connected(ask.token, ask.request if connecting.wanted else 0))
            it.connecting.remove(connecting)
            if connecting.wanted:
                self._begin(ask)
            else:
                it.idle += 1
            return
        it.connecting.remove(connecting)
        if connecting.wanted:
            self.feed(e.NotSent(ask.request, ask.leg, "no server listens"))

    def piece(self, exchange: Exchange, cut: int | None = None) -> None:
        """The next piece of an answer, or only so many bytes of it."""
        ask, said = exchange.ask, exchange.said
        if not exchange.headed:
            exchange.headed = True
            length = None if said.headers == engine.EVENTS else len(said.body)
            self.feed(e.Heard(ask.request, ask.leg, e.Head(said.status, said.headers, length)))
        if exchange.at < len(said.pieces) and self._still(exchange):
            data = said.pieces[exchange.at]
            exchange.at += 1
            self.feed(e.Heard(ask.request, ask.leg, data=data if cut is None else data[:cut]))
        if exchange.at == len(said.pieces) and cut is None and self._still(exchange):
            del self.engines[ask.token].exchanges[ask.request, ask.leg]
            self.engines[ask.token].idle += 1
            self.feed(e.Heard(ask.request, ask.leg, ended=True))

    def _still(self, exchange: Exchange) -> bool:
        it = self.engines[exchange.ask.token]
        return it.exchanges.get((exchange.ask.request, exchange.ask.leg)) is exchange

    @property
    def exchanges(self) -> list[Exchange]:
        return [exchange for it in self.engines.values() for exchange in it.exchanges.values()]

    @property
    def connecting(self) -> list[Connecting]:
        return [connecting for it in self.engines.values() for connecting in it.connecting]

    def run(self, most: int = 100_000) -> None:
        """Until no engine has anything more to say."""
        while self.exchanges or self.connecting:
            if self.connecting:
                self.connect(self.connecting[0])
            else:
                self.piece(self.exchanges[0])
            most -= 1
            assert most, "it doesn't end"

    def wait(self, seconds: float) -> None:
        """Time passes."""
        end = self.now + seconds
        while self.machine.deadline <= end:
            self.now = max(self.now, self.machine.deadline)
            self.feed(Tick())
        self.now = end

    # -- the machine's effects -------------------------------------------------------------------------------------

    def feed(self, event: Any) -> None:
        queue = [event]
        while queue:
            for effect in self.machine.handle(queue.pop(0), self.now):
                back = self._carry_out(effect)
                if back is not None:
                    queue.append(back)
        assert self.machine.deadline > self.now or queue, "it wants to be called again at once, for ever"
        for token in self.forgotten & self.engines.keys():
            it = self.engines[token]
            wanted = any(connecting.wanted for connecting in it.connecting)
            assert not it.exchanges and not wanted, "the exchanges of a lost token were not dropped"

    def _carry_out(self, effect: e.Effect) -> e.Event | None:
        if isinstance(effect, e.Ask):
            return self._ask(effect)
        if isinstance(effect, e.Look):
            assert effect.token == self.newest, "it is looked for an engine with an old token"
            return e.Connected(effect.token, 0) if self.engines[effect.token].alive else e.Unreachable(effect.token)
        if isinstance(effect, e.Drop):
            self._drop(effect)
        elif isinstance(effect, e.Forget):
            self.forgotten.add(effect.token)
        elif isinstance(effect, Note):
            assert effect.event != "broken_rule", effect
            self.notes.append(effect)
        elif isinstance(effect, e.LookAtLease):
            self.looks_at_lease += 1
        elif isinstance(effect, e.Resumed):
            self.clients[effect.request].gaps += 1
        else:
            self._to_client(effect)
        return None

    def _ask(self, ask: e.Ask) -> e.Event | None:
        assert ask.token == self.newest, "an engine with an old token is asked"
        self.asked.append(ask)
        it = self.engines[ask.token]
        if ask.again and it.idle:
            it.idle -= 1
        elif self._slow:
            it.connecting.append(Connecting(ask))
            return None
        elif not it.alive:
            return e.NotSent(ask.request, ask.leg, "no server listens")
        self._begin(ask)
        return e.Connected(ask.token, ask.request)

    def _begin(self, ask: e.Ask) -> None:
        said = self._say(ask.method, ask.target, ask.headers, ask.body, created=ask.token)
        self.engines[ask.token].exchanges[ask.request, ask.leg] = Exchange(ask, said)

    def _drop(self, drop: e.Drop) -> None:
        for it in self.engines.values():
            if it.exchanges.pop((drop.request, drop.leg), None) is not None and drop.ending:
                it.idle += 1
            for connecting in it.connecting:
                if (connecting.ask.request, connecting.ask.leg) == (drop.request, drop.leg):
                    connecting.wanted = False

    def _to_client(self, effect: Any) -> None:
        client = self.clients[effect.request]
        if isinstance(effect, e.Over):
            client.outcome, client.how, client.why = effect.outcome, effect.how, effect.why
            assert client.ended, "a request is over, and its client was told nothing"
            left = [exchange.ask for exchange in self.exchanges]
            left += [connecting.ask for connecting in self.connecting if connecting.wanted]
            assert client.number not in [ask.request for ask in left], (
                "a request is over, and an engine still works on it"
            )
            return
        assert not client.ended, f"{effect} comes behind the end"
        if isinstance(effect, e.Whole):
            assert not client.body and not client.status
            client.status, client.body, client.ended = effect.status, effect.body, "whole"
            client.headers = effect.headers
        elif isinstance(effect, e.Open):
            assert not client.status
            client.status = effect.status
        elif isinstance(effect, e.Send):
            assert client.status, "bytes come before the head"
            client.body += effect.data
        elif isinstance(effect, e.End):
            client.ended = "end"
        elif isinstance(effect, e.HandOn):
            client.ended = "handed on"
            assert effect.greeted is bool(client.status)
        elif isinstance(effect, e.Cut):
            client.ended = "cut"
        else:
            raise AssertionError(effect)


def undisturbed(path: str, body: Any, *, seed: int = 5) -> tuple[SimClient, Sequence[bytes]]:
    """What the client gets when nothing happens, and the pieces in which the engine said it."""
    world = World()
    world.grant()
    client = world.arrive(path, body, seed=seed)
    (exchange,) = world.exchanges
    world.run()
    return client, exchange.said.pieces
