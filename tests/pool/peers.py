"""Others' rules as machines, for comparison: each takes what happens and says what to load, unload, serve and refuse.

* `LlamaSwap`: one model at a time. A request for the model that is loaded is served at once; the others wait, ten for
  each model, more are refused. When nothing is in flight any more, the model whose request waits longest is loaded, and
  all that wait for it are served. How long that takes has no bound.
* `Ollama`: as many models as fit. Requests are taken one after the other: one whose model has to be loaded and doesn't
  fit holds up all behind it, until a victim has nothing in flight and is unloaded: an idle one, of those the one with
  the shortest keep-alive (here: used longest ago).
* `Draining`: one model at a time. A request for another begins a swap: new requests wait, what is in flight may go on
  for so long, and is cut then (ADR-0006 of a multiplexer: 30 s).
"""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, NamedTuple


class Load(NamedTuple):
    model: str


class Unload(NamedTuple):
    model: str


class Serve(NamedTuple):
    request: Any


class Refuse(NamedTuple):
    request: Any


class Cut(NamedTuple):
    model: str


Effect = Load | Unload | Serve | Refuse | Cut


@dataclass
class Peer:
    """What all of them see. The world calls; each answers with effects."""

    bytes: dict[str, int]
    capacity: int
    loaded: set[str] = field(default_factory=set)
    loading: str = ""
    unloading: str = ""
    flying: dict[str, int] = field(default_factory=dict)
    used_at: dict[str, float] = field(default_factory=dict)
    waiting: deque[Any] = field(default_factory=deque)
    deadline: float = math.inf

    def arrived(self, request: Any, now: float) -> list[Effect]:
        self.waiting.append(request)
        return self.plan(now)

    def finished(self, model: str, now: float) -> list[Effect]:
        self.flying[model] -= 1
        self.used_at[model] = now
        return self.plan(now)

    def is_loaded(self, model: str, now: float) -> list[Effect]:
        self.loaded.add(model)
        self.loading = ""
        self.used_at[model] = now
        return self.plan(now)

    def is_unloaded(self, model: str, now: float) -> list[Effect]:
        self.unloading = ""
        return self.plan(now)

    def tick(self, now: float) -> list[Effect]:
        self.deadline = math.inf
        return self.plan(now)

    def plan(self, now: float) -> list[Effect]:
        raise NotImplementedError

    def serve(self, request: Any) -> Serve:
        self.waiting.remove(request)
        self.flying[request.model] = self.flying.get(request.model, 0) + 1
        return Serve(request)

    def load(self, model: str) -> Load:
        self.loading = model
        return Load(model)

    def unload(self, model: str) -> Unload:
        self.loaded.discard(model)
        self.unloading = model
        return Unload(model)


class LlamaSwap(Peer):
    MOST = 10

    def arrived(self, request: Any, now: float) -> list[Effect]:
        if request.model not in self.loaded and sum(one.model == request.model for one in self.waiting) >= self.MOST:
            return [Refuse(request)]
        return super().arrived(request, now)

    def plan(self, now: float) -> list[Effect]:
        out: list[Effect] = [self.serve(one) for one in list(self.waiting) if one.model in self.loaded]
        if self.loading or self.unloading or not self.waiting or any(self.flying.values()):
            return out
        if self.loaded:
            return [*out, self.unload(next(iter(self.loaded)))]
        return [*out, self.load(self.waiting[0].model)]


class Ollama(Peer):
    def plan(self, now: float) -> list[Effect]:
        out: list[Effect] = []
        while self.waiting and not self.loading and not self.unloading:
            request = self.waiting[0]
            if request.model in self.loaded:
                out.append(self.serve(request))
                continue
            used = sum(self.bytes[name] for name in self.loaded)
            if used + self.bytes[request.model] <= self.capacity:
                return [*out, self.load(request.model)]
            idle = [name for name in self.loaded if not self.flying.get(name)]
            if not idle:
                return out  # and all behind it wait, too
            out.append(self.unload(min(idle, key=lambda name: self.used_at.get(name, 0.0))))
        return out


class Draining(Peer):
    DRAIN_S = 30.0
    draining_since: float | None = None

    def plan(self, now: float) -> list[Effect]:
        if self.loading or self.unloading:
            return []
        out: list[Effect] = []
        while self.waiting and self.waiting[0].model in self.loaded and self.draining_since is None:
            out.append(self.serve(self.waiting[0]))
        if not self.waiting:
            return out
        if not self.loaded:
            self.draining_since = None
            return [*out, self.load(self.waiting[0].model)]
        (old,) = self.loaded
        if self.draining_since is None:
            self.draining_since = now
        over = now >= self.draining_since + self.DRAIN_S
        if self.flying.get(old) and not over:
            self.deadline = self.draining_since + self.DRAIN_S
            return out
        if self.flying.get(old):
            out.append(Cut(old))
            self.flying[old] = 0
        return [*out, self.unload(old)]
