"""The door's clients: which requests are let in, which pair answers them, and what the door answers itself.

`/live`, `/ready`, `/metrics`, `/failover` and what lies below it (`view.py`) are the door's own. Everything else is an
engine's, if it is on the list (`kinds.py`): no client can reach `/sleep` and its like through here. With several pairs
the request's model chooses.

What this file may not do: know how an answer goes on (`machine.py`).
"""

import asyncio
import contextlib
import math
import random
import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from gateway.rules import errors, kinds, routing, view
from gateway.rules import events as e
from gateway.shell.keys import Keys, is_preflight
from gateway.shell.metrics import Counts, Value, collect, of_engines
from gateway.shell.models_api import ModelsApi
from gateway.shell.pair import Client, Pair
from gateway.shell.ports import Ports
from gateway.shell.router import OverOf, Parts, Router
from gateway.shell.view import View
from gateway.shell.watch import asleep
from sidecar.http.http_exchange import Reply, Request, hop_by_hop
from sidecar.http.http_requests import Refused
from sidecar.http.http_server import HttpServer, Limits
from sidecar.terminal.logs import Log

if TYPE_CHECKING:
    from gateway.shell import lease

_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
_NOT_FOR_ENGINES = frozenset(
    (
        *(b"connection", b"keep-alive", b"te", b"trailer", b"transfer-encoding", b"upgrade", b"expect"),
        *(b"content-length", b"host", b"accept-encoding", b"http2-settings", b"x-request-id"),
        *(b"proxy-authorization", b"proxy-authenticate", b"proxy-connection", b"x-failover-lease"),
    )
)
_NOR_WITH_KEYS = _NOT_FOR_ENGINES | {b"authorization"}
_LINES_AT_ONCE = 64
_HOST = (b"host", b"engine")


@dataclass(frozen=True)
class Settings:
    run_dirs: tuple[Path, ...]
    bounds: e.Bounds
    limits: Limits
    keys: Keys | None = None
    access_log: bool = True
    lease: "lease.Settings | None" = None
    pool: Path | None = None
    """The host directory of a pool, whose models are served instead of those of `run_dirs`."""
    admin_keys: Keys | None = None
    host: str = ""
    """Where models that are to have a port of their own get it."""


class _Models(msgspec.Struct):
    data: list[msgspec.Raw]


class Gateway:
    def __init__(self, loop: asyncio.AbstractEventLoop, settings: Settings, log: Log) -> None:
        self.loop = loop
        self.settings = settings
        self.log = log
        self.counts = Counts()
        self.lease: lease.Lease | None = None
        self.pairs = [self._make_pair(run_dir, settings.bounds, self._over) for run_dir in settings.run_dirs]
        self.http = HttpServer(loop, self.handle, errors.body, settings.limits, self.let_in)
        self._random = random.Random()
        """For names and seeds, which are no secrets: the kernel's randomness costs a call each time."""
        self._hidden = _NOT_FOR_ENGINES if settings.keys is None else _NOR_WITH_KEYS
        self._lines: list[dict[str, object]] = []
        """The access log's, for the next write."""
        self.stopping = False
        self.began = time.time()
        self._own: dict[str, Callable[[Request, Reply], None]] = {
            "/live": self._live,
            "/ready": self._ready,
            "/failover": self._failover,
            "/metrics": self._metrics,
        }
        self.lease = self._with_lease(settings.lease) if settings.lease is not None else None
        self.view = View(loop, self._look)
        self._own |= self.view.pages
        self.api: ModelsApi | None = None
        """Where a pool has many models."""
        if settings.pool is not None:
            parts = Parts(
                make_pair=self._make_pair, pairs=self.pairs, changed=self._changed, over=self._over,
                bounds=settings.bounds, keys=settings.keys is not None,
                began=int(self.began), seed=partial(self._random.getrandbits, 31), parses=self._parses,
                named=self._named, leased=self.lease is not None,
                forget=self.lease.forget if self.lease is not None else lambda pair: None,
            )  # fmt: skip
            ports = Ports(loop, settings.host, self._own_server)
            self.api = ModelsApi(loop, Router(loop, settings.pool, parts), settings.admin_keys, ports)

    def _with_lease(self, settings: "lease.Settings") -> "lease.Lease":
        from gateway.shell.lease import Lease

        return Lease(self.loop, settings, self.pairs, self.counts, self.log)

    def start(self) -> None:
        if self.lease is not None:
            self.lease.on_changed = self.view.changed
            self.lease.start()
        for pair in self.pairs:
            pair.on_changed = self.view.changed
            pair.start()
        if self.api is not None:
            self.api.router.start()

    def _make_pair(self, run_dir: Path, bounds: e.Bounds, over: OverOf, url: str = "") -> Pair:
        pair = Pair(self.loop, run_dir, bounds, self.counts, self.log, over, url)
        if self.lease is not None:
            self.lease.adopt(pair)
        return pair

    def _changed(self) -> None:
        self.view.changed()
        if self.api is not None:
            self.api.live.changed()

    def _named(self, catalogue: routing.Catalogue) -> None:
        if self.api is not None:
            self.api.ports.mind({entry.name for entry in catalogue.entries.values() if entry.own_port and entry.runs})

    def _own_server(self, model: str) -> HttpServer:
        """For a port of that model. What all of them hold is bounded together."""
        handle = partial(self.handle, of=model)
        server = HttpServer(self.loop, handle, errors.body, self.settings.limits, self.let_in)
        server.bodies = self.http.bodies
        return server

    # -- requests --------------------------------------------------------------------------------------------------

    def let_in(self, request: Request, has_body: bool) -> str | Refused | None:
        """Asked when its head is here, before anything of its body is kept. With keys a client is its key."""
        keys = self.settings.keys
        if request.path in self._own:
            if request.method not in ("GET", "HEAD"):
                return Refused(405, f"{request.path} takes GET", [(b"allow", b"GET, HEAD")])
            return Refused(413, f"{request.path} takes no body") if has_body else None
        if self.api is not None and self.api.has(request.path):
            return self.api.let_in(request, has_body)
        if keys is None:
            return ""
        if is_preflight(request.method, request.header(b"origin")) and not has_body:
            return None
        name = keys.name_of(request.header(b"authorization"))
        if name:
            return name
        return Refused(401, "this needs an API key: Authorization: Bearer KEY", [(b"www-authenticate", b"Bearer")])

    def handle(self, request: Request, reply: Reply, of: str = "") -> None:
        """`of`: the model whose own port it came by."""
        now = time.monotonic()
        path = request.path
        own = self._own.get(path)
        if own is not None:
            own(request, reply)
            return
        headers, name = self._for_engines(request)
        try:
            if self.api is not None:
                self.api.take(request, reply, headers, name, now, of)
                return
            kind = kinds.kind_of(
                request.method,
                request.target,
                headers,
                request.body,
                request_id=name,
                seed=self._random.getrandbits(31),
                parses=self._parses,
            )
            if self.lease is not None:
                kind = kinds.carrying(kind, request.header(kinds.LEASE))
        except kinds.NotAllowed:
            why = f"there is no {path[:200]} here; there are /v1/models, /v1/chat/completions and such, and /failover"
            reply.send(404, errors.body(404, why), errors.JSON)
            return
        except kinds.WrongMethod:
            allow = [*errors.JSON, (b"allow", ", ".join(kinds.METHODS).encode())]
            reply.send(405, errors.body(405, f"{path[:200]} doesn't take {request.method}"), allow)
            return
        except errors.Refusal as refusal:
            self.counts.outcomes[e.Outcome.REFUSED.value, "passed"] += 1
            reply.send(*refusal.answer())
            return
        pair = self.pairs[0] if len(self.pairs) == 1 else self._pair(kind, path, reply)
        if pair is not None:
            pair.take(kind, reply, path, request.peer, now)

    def _for_engines(self, request: Request) -> tuple[list[tuple[bytes, bytes]], str]:
        """The headers that an engine gets, and the request's name, which is one of them."""
        hidden = self._hidden
        headers, name = [], b""
        for header in request.headers:
            key = header[0]
            if key not in hidden:
                headers.append(header)
            elif key == b"x-request-id":
                name = header[1]
            elif key == b"connection" and header[1] != b"keep-alive":
                named = hop_by_hop(request.headers)
                headers = [other for other in request.headers if other[0] not in hidden and other[0] not in named]
                name = request.header(b"x-request-id")
                break
        if not name or not _REQUEST_ID.fullmatch(name):
            name = b"%032x" % self._random.getrandbits(128)
        headers += (_HOST, (b"x-request-id", name))
        return headers, name.decode("ascii")

    def _parses(self, model: str) -> bool:
        return any(model in pair.machine.parses for pair in self.pairs)

    def _pair(self, kind: kinds.Kind, path: str, reply: Reply) -> Pair | None:
        """The pair that is to answer it; None when that has been done."""
        if path == "/v1/models" and kind.method in ("GET", "HEAD"):
            self.loop.create_task(self._all_models(reply))
            return None
        known = {name: pair for pair in reversed(self.pairs) for name in pair.machine.models}
        pair = known.get(kind.model)
        if pair is None and not kind.model and kind.method in ("GET", "HEAD", "OPTIONS"):
            serving = (pair for pair in self.pairs if pair.machine.admission.ready(time.monotonic()))
            pair = next(serving, self.pairs[0])
        if pair is None:
            there = ", ".join(sorted(known)) or "none yet"
            why = f"the model {kind.model[:200]!r} does not exist; there are: {there}" if kind.model else (
                f"a request has to name its model; there are: {there}"
            )  # fmt: skip
            status = 404 if kind.model else 400
            reply.send(status, errors.body(status, why, "model"), errors.JSON)
        return pair

    def _over(self, client: Client, over: e.Over, now: float) -> None:
        if not self.settings.access_log:
            return
        first_ms = round((client.first_at - client.began) * 1000, 1) if client.first_at else None
        fields: dict[str, object] = {
            "id": client.kind.request_id,
            "from": client.peer,
            "method": client.kind.method,
            "path": client.path,
            "status": client.status,
            "outcome": over.outcome._value_,
            "ms": round((now - client.began) * 1000, 1),
            "first_ms": first_ms,
            "tokens": over.tokens,
        }
        if self.api is not None:
            fields |= {"model": client.kind.model, "client": client.kind.client}
        if over.how != "passed":
            fields["how"] = over.how
        if over.why:
            fields["why"] = over.why
        self._lines.append(fields)
        if len(self._lines) == 1:
            self.loop.call_soon(self._write_lines)
        elif len(self._lines) == _LINES_AT_ONCE:
            self._write_lines()

    def _write_lines(self) -> None:
        """Those of one turn of the loop together: a write for each request took as long as all the rest."""
        lines, self._lines = self._lines, []
        if lines:
            self.log.infos("request", lines)

    # -- what the door says itself ---------------------------------------------------------------------------------

    def _live(self, request: Request, reply: Reply) -> None:
        reply.send(200, b"ok\n", _TEXT)

    @property
    def ready(self) -> bool:
        return not self._why_not_ready()

    def _why_not_ready(self) -> str:
        """A sentence, or "" while every client can expect an answer."""
        if self.stopping:
            return "the door is closing"
        if self.api is not None:
            return self.api.router.why_not_ready()
        now, bound_s = time.monotonic(), self.settings.bounds.failover_timeout_s
        why = []
        for pair in self.pairs:
            admission = pair.machine.admission
            if admission.ready(now):
                continue
            if admission.ended:
                why.append(f"{pair.run_dir}: the engine that served was told to end, and there is no other")
            elif math.isinf(admission.last_served):
                since_s = time.time() - self.began
                why.append(f"{pair.run_dir}: no engine has served yet since this door was started {since_s:.0f} s ago")
            else:
                for_s = f"{now - admission.last_served:.0f} s, longer than --failover-timeout-s {bound_s:g}"
                why.append(f"{pair.run_dir}: no engine has served for {for_s}")
        return "; ".join(why)

    def _ready(self, request: Request, reply: Reply) -> None:
        why = self._why_not_ready()
        if why:
            reply.send(503, why.encode(errors="surrogateescape") + b"\n", _TEXT)
        else:
            reply.send(200, b"ready\n", _TEXT)

    def _failover(self, request: Request, reply: Reply) -> None:
        reply.send(200, msgspec.json.encode(self.state()) + b"\n", errors.JSON)

    def state(self) -> dict[str, object]:
        counts = self.counts
        return {
            "ready": self.ready,
            "pairs": [self._pair_state(pair) for pair in self.pairs],
            "in_flight": sum(pair.machine.in_flight for pair in self.pairs),
            "waiting": sum(pair.machine.admission.visitors.waiting for pair in self.pairs),
            "continued": counts.how("continued"),
            "compared": counts.how("compared"),
            "restarted": counts.how("restarted"),
            "ended": counts.outcome("ended"),
            "refused": counts.outcome("refused"),
            "connections": len(self.http.connections),
            "held_bytes": self.http.bodies.bytes,
            "uptime_s": round(time.time() - self.began, 3),
            "lease": self.lease.seen() if self.lease is not None else None,
        }

    def _pair_state(self, pair: Pair) -> dict[str, object]:
        machine = pair.machine
        admission = machine.admission
        grant, lock = admission.grants.current, admission.grants.lock
        serves = grant is not None and grant.url and grant.phase.value in ("open", "draining")
        return {
            "run_dir": str(pair.run_dir),
            "models": list(machine.models),
            "lock": "away" if admission.grants.away else lock.state,
            "serves": {"engine": grant.engine_id, "token": grant.token, "url": grant.url} if grant and serves else None,
            "grant": {"token": grant.token, "phase": grant.phase.value, "requests": len(grant.requests)}
            if grant
            else None,
            "redundant": list(lock.ready),
            **pair.requests(),
            "last_failover": pair.handoffs.json(),
            "failovers": pair.handoffs.count,
        }

    def _look(self) -> view.Document:
        counts, now = self.counts, time.monotonic()
        said = {how: counts.how(how) for how in ("continued", "compared", "restarted")}
        said |= {outcome: counts.outcome(outcome) for outcome in ("ended", "refused")}
        more = {"connections": len(self.http.connections), "tokens": counts.tokens}
        host = self.lease.seen() if self.lease is not None else None
        door = view.DoorSeen(self.began, self._why_not_ready(), {**said, **more}, counts.alarms, host)
        if self.api is None:
            return view.document(door, [pair.seen() for pair in self.pairs], now, time.time())
        pairs = [pair.seen() for pair in self.pairs if pair.status is not None and not asleep(pair.status)]
        return view.document(door, pairs, now, time.time(), self.api.document())

    def _metrics(self, request: Request, reply: Reply) -> None:
        self.loop.create_task(self._answer_metrics(reply))

    async def _answer_metrics(self, reply: Reply) -> None:
        status, kind, body = await self.metrics_page()
        reply.send(status, body, [(b"content-type", kind.encode())])

    async def metrics_page(self) -> tuple[int, str, bytes]:
        """The door's own metrics, and behind them those of the engines that serve, under the same roof."""
        from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, generate_latest

        gateway = self

        class Own:
            def collect(self) -> object:
                return collect(gateway.counts, gateway._values())

        registry = CollectorRegistry()
        registry.register(Own())  # type: ignore[arg-type]
        pages = [generate_latest(registry)]
        found = await asyncio.gather(*(pair.get(b"/metrics") for pair in self.pairs))
        pages.append(of_engines((str(pair.run_dir), page or b"") for pair, page in zip(self.pairs, found, strict=True)))
        return 200, CONTENT_TYPE_LATEST, b"".join(pages)

    def _values(self) -> list[Value]:
        values: list[Value] = [
            ("ready", "1 when an engine serves, or can be expected to within the bound", {}, float(self.ready)),
            ("started_timestamp_seconds", "When this door was started, in seconds since 1970", {}, self.began),
            ("connections", "Clients' connections", {}, float(len(self.http.connections))),
            ("held_bytes", "Requests that are received or answered", {}, float(self.http.bodies.bytes)),
        ]
        if self.lease is not None:
            values.extend(self.lease.values())
        for pair in self.pairs:
            admission, labels = pair.machine.admission, {"run_dir": str(pair.run_dir)}
            requests = pair.requests()
            values += [
                ("in_flight", "Requests that have come and aren't over", labels, float(requests["in_flight"])),
                ("waiting", "Requests that wait for an engine", labels, float(requests["waiting"])),
                ("interrupted", "Those of them whose engine was lost", labels, float(requests["interrupted"])),
                ("token", "The newest fencing token that was seen", labels, float(admission.grants.newest)),
                ("failovers_total", "Changes of the engine that serves", labels, float(pair.handoffs.count)),
                (
                    "severed_total",
                    "Requests that a switchover took away at its bound",
                    labels,
                    float(requests["severed"]),
                ),
                ("redundant", "Engines that wait, and are ready", labels, float(len(admission.grants.lock.ready))),
                ("lock_away", "1 while no lock server answers", labels, float(admission.grants.away)),
            ]
        return values

    async def _all_models(self, reply: Reply) -> None:
        data: list[msgspec.Raw] = []
        for found in await asyncio.gather(*(pair.get(b"/v1/models") for pair in self.pairs)):
            if found is not None:
                with contextlib.suppress(msgspec.DecodeError):
                    data += msgspec.json.decode(found, type=_Models).data
        reply.send(200, msgspec.json.encode({"object": "list", "data": data}), errors.JSON)

    # -- the end ---------------------------------------------------------------------------------------------------

    async def drain(self, *, delay_s: float, within_s: float) -> None:
        """`/ready` says no; new requests are served until the endpoints have dropped this pod. Then none are, and those
        that are here may finish.
        """
        self.stopping = True
        await asyncio.sleep(delay_s)
        self.http.stop_listening()
        self.view.close()
        if self.api is not None:
            self.api.live.close()
            self.api.ports.stop_listening()
        end = time.monotonic() + within_s
        for pair in self.pairs:
            pair.stop(within_s)
        while any(pair.clients for pair in self.pairs) and time.monotonic() < end:
            await asyncio.sleep(0.02)
        left = sum(len(pair.clients) for pair in self.pairs)
        self.log.info("drained", cut=left)
        if self.lease is not None and not left:
            await self.lease.close()

    def close(self) -> None:
        self.http.close()
        if self.api is not None:
            self.api.router.close()
            self.api.ports.close()
        for pair in self.pairs:
            pair.close()
        self._write_lines()


_TEXT = [(b"content-type", b"text/plain; charset=utf-8")]
