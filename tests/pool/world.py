"""A host with many models, simulated: engines, memory and clients, under our pool's real machine or another's rules.

Time is the world's own. What holds in it, and what is wrong when it doesn't (`Violation`), stands at the top of
`house.py` for ours. Nothing here decides who is awake.
"""

import heapq
import itertools
import math
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from bench.traffic import Agents, Traffic
from bench.traffic import Request as Asked
from tests.pool import peers
from tests.sim.schedule import Violation

TOKEN_S, PREFILL_S = 0.02, 0.1
"""What a token of an answer takes, and reading a prompt (again, after a pause)."""


@dataclass(frozen=True)
class Kind:
    """A model, and what it costs."""

    name: str
    bytes: int = 60
    wake_s: float = 0.6
    sleep_s: float = 0.3
    load_s: float = 30.0
    weights: int = 0
    """Bytes beside `bytes`, in the device or parked."""
    copy_s: float = 0.5
    """They go to host memory, or come back."""


@dataclass(eq=False)
class Stream:
    """A request, and its answer."""

    model: str
    at: float
    tokens: float
    """Still to come."""
    of: int = 0
    began: float | None = None
    first: float | None = None
    """When its first token came."""
    paused_at: float | None = None
    pauses: list[float] = field(default_factory=list)
    run: int = 0
    """Which of its runs: an end of an older one means nothing."""
    over: str = ""
    then: Callable[[], None] = lambda: None


class World:
    """Time, clients, and the streams that engines work on."""

    def __init__(self, kinds: list[Kind], capacity: int, seed: int) -> None:
        self.kinds = {kind.name: kind for kind in kinds}
        self.capacity = capacity
        self.chance = random.Random(seed)
        self.now = 0.0
        self.events = 0
        self.streams: list[Stream] = []
        self.waiting: dict[str, list[Stream]] = {kind.name: [] for kind in kinds}
        """Or paused: in the order in which they are served again."""
        self.served: dict[str, list[Stream]] = {kind.name: [] for kind in kinds}
        self.ended = dict.fromkeys(self.kinds, 0)
        self.awake: set[str] = set()
        self.moving: set[str] = set()
        """Wakes, sleeps, loads or is unloaded: memory that serves no request."""
        self.swapping_s = 0.0
        self._looked = 0.0
        self._heap: list[tuple[float, int, Callable[[], None]]] = []
        self._number = itertools.count()
        self.arrived: Callable[[Stream], None] = lambda stream: None
        self.finished: Callable[[Stream], None] = lambda stream: None

    def after(self, seconds: float, do: Callable[[], None]) -> None:
        heapq.heappush(self._heap, (self.now + seconds, next(self._number), do))

    def run(self, until: float, most_events: int = 10**9) -> None:
        heap = self._heap
        while heap and heap[0][0] <= until and self.events < most_events:
            at, _, do = heapq.heappop(heap)
            if self.moving:
                moving, awake = self._bytes(self.moving), self._bytes(self.awake)
                self.swapping_s += (at - self._looked) * moving / (moving + awake)
            self.now = self._looked = at
            self.events += 1
            do()
        if self.events < most_events:
            self.now = self._looked = max(self.now, until)

    def _bytes(self, names: set[str]) -> int:
        return sum(self.kinds[name].bytes for name in names)

    # -- clients ---------------------------------------------------------------------------------------------------

    def play(self, traffic: Traffic) -> None:
        if isinstance(traffic, Agents):
            for loop in traffic.loops:
                self.after(self.chance.random(), lambda loop=loop: self._turn(traffic, loop, 0))  # type: ignore[misc]
        else:
            self._next(traffic)

    def _next(self, traffic: Iterator[Asked]) -> None:
        asked = next(traffic, None)
        if asked is not None:
            self.after(max(asked.at - self.now, 0.0), partial(self._asked, asked, traffic))

    def _asked(self, asked: Asked, traffic: Iterator[Asked]) -> None:
        self.ask(asked.model, asked.tokens)
        self._next(traffic)

    def _turn(self, agents: Agents, loop: tuple[str, ...], number: int) -> None:
        tokens = max(1, round(self.chance.expovariate(1 / agents.tokens)))
        stream = self.ask(loop[number % len(loop)], tokens)
        stream.then = lambda: self.after(agents.think_s, lambda: self._turn(agents, loop, number + 1))
        if stream.over:
            stream.then()

    def ask(self, model: str, tokens: int) -> Stream:
        stream = Stream(model, self.now, tokens, tokens)
        self.streams.append(stream)
        self.waiting[model].append(stream)
        self.arrived(stream)
        return stream

    # -- engines ---------------------------------------------------------------------------------------------------

    def serve(self, stream: Stream) -> None:
        """An engine takes it, or goes on with it."""
        if stream.model not in self.awake:
            raise Violation(f"{stream.model} serves and isn't awake")
        self.waiting[stream.model].remove(stream)
        self.served[stream.model].append(stream)
        if stream.paused_at is not None:
            stream.pauses.append(self.now + PREFILL_S - stream.paused_at)
            stream.paused_at = None
        stream.run += 1
        stream.began, run = self.now, stream.run
        self.after(PREFILL_S, lambda: self._first(stream, run))
        self.after(PREFILL_S + stream.tokens * TOKEN_S, lambda: self._ends(stream, run))

    def _first(self, stream: Stream, run: int) -> None:
        if stream.run == run and stream.first is None and not stream.over:
            stream.first = self.now

    def _ends(self, stream: Stream, run: int) -> None:
        if stream.run == run and not stream.over:
            self.over(stream, "whole")
            self.finished(stream)

    def over(self, stream: Stream, how: str) -> None:
        stream.over = how
        for where in (self.waiting, self.served):
            if stream in where[stream.model]:
                where[stream.model].remove(stream)
        self.ended[stream.model] += 1
        stream.then()

    def pause_all(self, model: str) -> None:
        """Its engine stops in the middle of these."""
        for stream in self.served[model]:
            assert stream.began is not None
            stream.run += 1
            stream.tokens -= max(self.now - stream.began - PREFILL_S, 0.0) / TOKEN_S
            if stream.paused_at is None and stream.first is not None:
                stream.paused_at = self.now
        self.waiting[model][:0] = self.served[model]
        self.served[model].clear()

    # -- what came of it -------------------------------------------------------------------------------------------

    def figures(self) -> "Figures":
        seconds = self.now or 1.0
        first = sorted(
            (stream.first if stream.first is not None else self.now) - stream.at
            for stream in self.streams
            if stream.first is not None or not stream.over
        )
        pauses = sorted(pause for stream in self.streams for pause in stream.pauses)
        pauses += [self.now - stream.paused_at for stream in self.streams if stream.paused_at is not None]
        return Figures(
            requests=len(self.streams),
            whole=sum(stream.over == "whole" for stream in self.streams),
            refused=sum(stream.over == "refused" for stream in self.streams),
            cut=sum(stream.over == "cut" for stream in self.streams),
            p50_s=at(first, 0.5),
            p99_s=at(first, 0.99),
            longest_s=at(first, 1.0),
            pause_p99_s=at(sorted(pauses), 0.99),
            share=self.swapping_s / seconds,
        )


def at(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, math.ceil(share * len(values)) - 1)] if values else 0.0


@dataclass(frozen=True)
class Figures:
    requests: int
    whole: int
    refused: int
    cut: int
    p50_s: float
    p99_s: float
    longest_s: float
    pause_p99_s: float
    share: float


class PeerWorld(World):
    """The same host under another's rules."""

    def __init__(self, kinds: list[Kind], capacity: int, seed: int, peer: type[peers.Peer], *, cold: bool) -> None:
        """`cold`: engines are stopped and started, as these do; else put to sleep and waked, as ours."""
        super().__init__(kinds, capacity, seed)
        self.peer = peer({kind.name: kind.bytes for kind in kinds}, capacity)
        self.cold = cold
        self.arrived = lambda stream: self._do(self.peer.arrived(stream, self.now))
        self.finished = lambda stream: self._do(self.peer.finished(stream.model, self.now))

    def _do(self, effects: list[Any]) -> None:
        for effect in effects:
            if isinstance(effect, peers.Serve):
                self.serve(effect.request)
            elif isinstance(effect, peers.Refuse):
                self.over(effect.request, "refused")
            elif isinstance(effect, peers.Cut):
                for stream in list(self.served[effect.model]):
                    self.over(stream, "cut")
            elif isinstance(effect, peers.Load):
                kind = self.kinds[effect.model]
                self.moving.add(effect.model)
                self.after(kind.load_s if self.cold else kind.wake_s, lambda name=effect.model: self._loaded(name))  # type: ignore[misc]
            else:
                if self.served[effect.model]:
                    raise Violation("it is unloaded with requests in flight")
                self.awake.discard(effect.model)
                self.moving.add(effect.model)
                sleep_s = self.kinds[effect.model].sleep_s
                self.after(sleep_s, lambda name=effect.model: self._unloaded(name))  # type: ignore[misc]
        if self.peer.deadline < math.inf:
            self.after(self.peer.deadline - self.now, lambda: self._do(self.peer.tick(self.now)))

    def _loaded(self, name: str) -> None:
        self.moving.discard(name)
        self.awake.add(name)
        self._do(self.peer.is_loaded(name, self.now))

    def _unloaded(self, name: str) -> None:
        self.moving.discard(name)
        self._do(self.peer.is_unloaded(name, self.now))
