"""Many models behind one door: a pair for each, what the pool says of them, and which one is asked.

The pool hears what there is for each model, soon after it has changed; what it says comes from its client's thread.
While it is away everything stays as it is: what is awake serves, and what waits waits on. A model that was taken away
keeps its pair until its last request is over; what waits for it is refused once the pool knows it no more. What this
file may not do: decide (`gateway/rules/routing.py`, `wishes.py`, `demand.py`).
"""

import asyncio
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import msgspec

from gateway.rules import demand, errors, kinds, remote, routing, wishes
from gateway.rules import events as e
from gateway.rules.own_turns import longest_turn_s
from gateway.shell.pair import Client, Headers, Pair
from pool.client import Listing, ModelDemand, ModelOutlook, Models, News, Outlook, PoolClient, State
from pool.entries import Entry, Profile
from pool.launching import LOCKS
from sidecar.http.http_exchange import Reply, Request

SAY_S, AGAIN_S = 0.1, 1.0
"""The pool is told at once that a model begins to wait; what else has changed, so soon. And while something waits, at
least so often."""
REMOTE_S = 10.0
"""An endpoint elsewhere that can't be reached for so long isn't there."""
OverOf = Callable[[Client, e.Over, float], None]
MakePair = Callable[[Path, e.Bounds, OverOf, str], Pair]


@dataclass(frozen=True)
class Parts:
    """What the door lends."""

    make_pair: MakePair
    """Where its lock is, its bounds, what is called when a request is over, where it answers if it has no lock."""
    pairs: list[Pair]
    changed: Callable[[], None]
    over: OverOf
    bounds: e.Bounds
    keys: bool
    """Clients are told apart by their keys, and not by what they call themselves."""
    began: int
    seed: Callable[[], int]
    parses: Callable[[str], bool]
    named: Callable[[routing.Catalogue], None]
    """The pool has said which models there are."""
    forget: Callable[[Pair], None]
    """It isn't there any more; what it has counted stays."""
    leased: bool
    """Requests may carry the token of a lease of this host."""


class Model:
    """What is here of one."""

    def __init__(self, pair: Pair, entry: Entry) -> None:
        self.pair = pair
        self.entry = entry
        """As it was last, if it was taken out."""
        self.told: e.Outlook | None = None
        self.clients: Counter[str] = Counter()
        """How many requests each has here."""
        self.served = 0
        self.keep_alive_s = 0.0
        """The longest that was asked for by the requests that are here, or were here last."""

    def begins(self, client: str, keep_alive_s: float | None) -> None:
        self.keep_alive_s = max(self.keep_alive_s if self.clients else 0.0, keep_alive_s or 0.0)
        self.clients[client] += 1

    def ends(self, client: str) -> None:
        self.served += 1
        self.clients[client] -= 1
        if not self.clients[client]:
            del self.clients[client]


class Router:
    def __init__(self, loop: asyncio.AbstractEventLoop, run_dir: Path, parts: Parts) -> None:
        self.client = PoolClient(run_dir, lambda news: self._loop.call_soon_threadsafe(self._hear, news))
        self.catalogue = routing.Catalogue()
        self.outlook: Mapping[str, ModelOutlook] = {}
        self.listing: Listing | None = None
        self.models: dict[str, Model] = {}
        self.away_since: float | None = loop.time()
        self._loop, self._run_dir, self._parts = loop, run_dir, parts
        self._said: dict[str, ModelDemand] = {}
        self._moved_at = loop.time()
        self._timer: asyncio.TimerHandle | None = None
        self._soon: asyncio.TimerHandle | None = None

    def start(self) -> None:
        self.client.start()
        self._beat()

    def close(self) -> None:
        self.client.close()
        for timer in (self._timer, self._soon):
            if timer is not None:
                timer.cancel()

    # -- what the pool says ----------------------------------------------------------------------------------------

    def _hear(self, news: News) -> None:
        if news is None:
            self.away_since = self._loop.time()
        elif isinstance(news, Models):
            self.catalogue = routing.Catalogue(news.entries, news.profiles, news.flags, news.default)
            self._parts.named(self.catalogue)
        elif isinstance(news, Listing):
            self.listing, self.away_since = news, None  # not before: what it runs is said last
        elif isinstance(news, Outlook):
            before, self.outlook = self.outlook, news.models
            if routing.states(before) != routing.states(news.models):
                self._moved_at = self._loop.time()
        for entry in self.catalogue.entries.values():
            if entry.name in self.models or routing.outlook_of(entry, self.outlook).state is not State.OFF:
                self._mind(entry)
        wanted = {_key(entry) for entry in self.catalogue.entries.values()}
        for key in [key for key in self.models if key not in wanted]:
            model = self.models[key]
            if model.clients:
                if key in self.outlook:
                    self._see(model)
                else:  # the pool wishes nothing for it any more
                    self._tell(model, e.Outlook("", f"the model {key!r} is not here any more", gone=True))
                continue
            del self.models[key]
            self._parts.pairs.remove(model.pair)
            self._parts.forget(model.pair)
            model.pair.close()
        self._parts.changed()

    def _mind(self, entry: Entry) -> Model:
        """This model's pair is there, and knows what the pool says."""
        model = self.models.get(_key(entry))
        if model is None:
            seen = routing.outlook_of(entry, self.outlook)
            run_dir, bounds, url = Path(seen.run_dir or self._run_dir / LOCKS / entry.name), self._parts.bounds, ""
            if entry.remote is not None:
                url = remote.address_of(entry.remote)
                bounds = replace(bounds, queue_timeout_s=REMOTE_S)
            pair = self._parts.make_pair(run_dir, bounds, partial(self._over, _key(entry)), url)
            model = self.models[_key(entry)] = Model(pair, entry)
            self._parts.pairs.append(pair)
            pair.on_changed = self._changed
            pair.start()
        model.entry = entry
        self._see(model)
        return model

    def _see(self, model: Model) -> None:
        """What the pool says of it. One that was taken out may fail while requests wait for it."""
        seen = routing.outlook_of(model.entry, self.outlook)
        told = routing.told(model.entry, seen, away=self.away_since is not None)
        self._tell(model, msgspec.structs.replace(told, loaded=seen.loaded))

    def _tell(self, model: Model, told: e.Outlook) -> None:
        if told != model.told:
            model.told = told
            model.pair.feed(told)

    def _changed(self) -> None:
        self._touch()
        self._parts.changed()

    # -- what the pool is told -------------------------------------------------------------------------------------

    def _touch(self, *, at_once: bool = False) -> None:
        """Something that it should know has changed."""
        if at_once:
            self._say()
        elif self._soon is None:
            self._soon = self._loop.call_later(SAY_S, self._say)

    def _say(self) -> None:
        if self._soon is not None:
            self._soon.cancel()
            self._soon = None
        found = self.demand(self._loop.time())
        if found != self._said:  # what waits has always waited longer than before
            self._said = found
            self.client.demand(found)

    def _beat(self) -> None:
        self._say()
        self._timer = self._loop.call_later(AGAIN_S, self._beat)

    def demand(self, now: float) -> dict[str, ModelDemand]:
        """What each model that is here is asked for: also one that models.yaml no longer has, until it has answered."""
        found = {
            name: demand.demand_of(model.pair.machine, now, model.served, model.keep_alive_s)
            for name, model in self.models.items()
            if not model.pair.url and (model.served or model.clients)
        }
        devices = {name: entry.devices for name, entry in self.catalogue.entries.items()}
        return demand.shared(found, devices, longest_turn_s(self._parts.bounds))

    # -- requests --------------------------------------------------------------------------------------------------

    def take(self, request: Request, reply: Reply, headers: Headers, name: str, now: float, of: str = "") -> None:
        """`of`: the model whose own port it came by. Raises kinds.NotAllowed, kinds.WrongMethod or errors.Refusal."""
        path, asks = kinds.allowed(request.method, request.target), request.method in ("GET", "HEAD", "OPTIONS")
        if path.startswith("/v1/models") and request.method in ("GET", "HEAD"):
            reply.send(200, self._listed(path.removeprefix("/v1/models").lstrip("/"), of), errors.JSON)
            return
        wish = wishes.wish_of(request.body, request.header(b"content-type"))
        calls_itself = wish.own.x_client_id or request.client
        client = request.client if self._parts.keys else calls_itself
        if of:
            candidates = self._only(of)
        elif asks and not wish.model:
            candidates = self.catalogue.awake(self.outlook)
        elif wish.unread:
            raise errors.Refusal(400, f"the body can't be read, so that it names no model: {wish.unread}")
        else:
            candidates = self.catalogue.candidates(wish.model, calls_itself)
        patience_ms = wishes.patience_ms(wish, request.header(b"x-stainless-read-timeout"))
        in_order = not of and self.catalogue.in_order(wish.model, calls_itself)
        awake_first_ms = math.inf if in_order else routing.AWAKE_FIRST_MS
        rungs = routing.order(candidates, self.outlook, partial(self._load, client), patience_ms, awake_first_ms)
        until = now + patience_ms / 1000 if patience_ms is not None else math.inf
        profile = self.catalogue.profile_of(calls_itself)

        def ask(greeted: bool) -> None:
            """The next model. `greeted`: its client has the head of a stream, from the one before."""
            entry = rungs.pop(0)
            priority, keep_alive_s = wishes.standing(wish.own, entry, profile)
            more = {"client": client, "priority": priority, "until": until, "ladder": bool(rungs)}
            kind = msgspec.structs.replace(self._kind(request, headers, name, wish, entry, profile), **more)
            model = self._mind(entry)
            model.begins(client, keep_alive_s)
            model.pair.take(kind, reply, path, request.peer, now, greeted=greeted, hand_on=ask)
            self._touch(at_once=model.pair.machine.admission.visitors.waiting == 1)

        ask(False)

    def _only(self, name: str) -> list[Entry]:
        if name not in self.catalogue.entries:
            raise errors.Refusal(404, f"the model {name!r} is not here any more")
        return [self.catalogue.entries[name]]

    def _load(self, client: str, entry: Entry) -> tuple[int, int]:
        model = self.models.get(_key(entry))
        return (model.pair.machine.admission.visitors.waiting, model.clients[client]) if model is not None else (0, 0)

    def _kind(
        self, request: Request, headers: Headers, name: str, wish: wishes.Wish, entry: Entry, profile: Profile | None
    ) -> kinds.Kind:
        body = wishes.body_for(wish, request.path, entry, profile)
        kind = kinds.kind_of(
            request.method, request.target, headers, body, request_id=name, seed=self._parts.seed(),
            parses=self._parts.parses, tells_ids=not entry.command,
        )  # fmt: skip
        if self._parts.leased:
            kind = kinds.carrying(kind, request.header(kinds.LEASE))
        if entry.remote is None:
            return kind
        return remote.kind_there(kind, body, entry.remote, os.environ.get(entry.remote.key_env, ""))

    def _over(self, key: str, client: Client, over: e.Over, now: float) -> None:
        self.models[key].ends(client.kind.client)
        self._touch()
        self._parts.over(client, over, now)

    # -- what the door itself says ---------------------------------------------------------------------------------

    def why_not_ready(self) -> str:
        """A sentence, or "" while every client can expect an answer."""
        now, bound_s = self._loop.time(), self._parts.bounds.failover_timeout_s
        entries = self.catalogue.entries
        if not entries:
            return f"no model is known yet: no pool has answered at {self._run_dir}"
        if routing.all_have_failed(entries.values(), self.outlook):
            return "no model can be served: all have failed"
        return demand.wedged(self.demand(now), self.outlook, now - self._moved_at, bound_s)

    def _listed(self, name: str, of: str) -> bytes:
        """As OpenAI's clients list models, with the state of each. Raises Refusal."""
        every = self._only(of) if of else list(self.catalogue.entries.values())
        shown = self.catalogue.candidates(name, "")[:1] if name and not of else every
        people_see = self.listing.models if self.listing is not None else []
        failed = {model.name for model in people_see if model.state is State.FAILED}
        data = []
        for entry in shown:
            model = self.models.get(_key(entry))
            max_len = model.pair.machine.max_len if model is not None else None
            seen = routing.outlook_of(entry, self.outlook)
            if entry.name in failed:  # it takes requests again, and none has come since
                seen = msgspec.structs.replace(seen, state=State.FAILED)
            data.append(routing.listed(entry, seen, self._parts.began, max_len))
        return msgspec.json.encode(data[0] if name else {"object": "list", "data": data})


def _key(entry: Entry) -> str:
    """A model's pair is another one when it is to be found elsewhere."""
    return entry.name if entry.remote is None else f"{entry.name} at {entry.remote.url}"
