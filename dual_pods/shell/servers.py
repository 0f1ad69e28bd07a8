"""Server pods and requesters, as the controller reaches them over HTTP.

A pool is watched (`GET /failover/models?watch=1`), and says each second that it is there. A pod with one engine is
asked, in vLLM's words (`/is_sleeping`, its probe), and told of in a pool's. Each order carries the leadership's token,
so that a pool or a requester that has heard a newer one refuses it; an engine doesn't know it. What this file may not
do: decide anything.
"""

import asyncio
import contextlib
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import msgspec

from dual_pods.rules import events as e
from dual_pods.rules import reading
from dual_pods.rules.facts import Instance, Requester, Server, Told
from dual_pods.rules.standing import Target
from pool.entries import State
from sidecar.http.http_client import HttpClient, Unanswered
from sidecar.wire import tcp

TOKEN = "x-dual-pods-token"
ANSWER_S, WAKE_S = 5.0, 60.0
_READ_BYTES, _TAKEN_BYTES = 64 << 10, 1 << 20
"""Nothing else happens while an answer is read, the Lease's renewal neither. One that is longer is told by its size."""
_AGAIN_S, _AGAIN_MOST_S = 0.05, 1.0
_LOOK_S, _LOOK_QUICK_S = 1.0, 0.1
_MODELS = "/failover/models"
Tell = Callable[[e.Event], None]


class Failed(Exception):
    """A sentence."""


FAILS = (Failed, Unanswered, reading.BadAnswer)
"""What any question or order here may raise."""


def url(ip: str, port: int, path: str) -> str:
    return f"http://{tcp.named(ip, port)}{path}"


class Servers:
    """Watches each server pod that runs."""

    def __init__(
        self, group: asyncio.TaskGroup, tell: Tell, fault: Callable[[str, Exception], object],
        token: Callable[[], int], admin_key: str, *, sleeps: bool,
    ) -> None:  # fmt: skip
        """`fault`: is told of one of ours. `admin_key`: by which a pool is told what to do. `sleeps`: engines in their
        own pods know sleep and wake."""
        self._group, self._tell, self._fault, self._token, self._sleeps = group, tell, fault, token, sleeps
        self._key = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
        self._http = HttpClient(body_bytes=_TAKEN_BYTES)
        self._watches: dict[str, tuple[tuple[str, int], asyncio.Task[None]]] = {}

    # -- watching --------------------------------------------------------------------------------------------------

    def seen(self, server: Server) -> None:
        known = self._watches.get(server.uid)
        where = server.ip, server.port
        if not server.running or not server.ip:
            self.gone(server.uid)
        elif known is None or known[0] != where:
            self.gone(server.uid)
            self._watches[server.uid] = where, self._group.create_task(self._watch(server))

    def gone(self, uid: str) -> None:
        known = self._watches.pop(uid, None)
        if known is not None:
            known[1].cancel()

    def _anew(self, server: Server) -> None:
        """What it said before counts no more."""
        if self._watches.get(server.uid, (None,))[0] == (server.ip, server.port):
            self.gone(server.uid)
            self._tell(e.Tells(server.uid, None))
            self.seen(server)

    def close(self) -> None:
        self._http.close()

    async def _watch(self, server: Server) -> None:
        pause_s = _AGAIN_S
        while True:
            began = time.monotonic()
            try:
                await (self._watch_pool if server.pool else self._look_at_engine)(server)
            except (*FAILS, TimeoutError):
                pass
            except Exception as fault:
                self._fault(f"watch {server.name}", fault)
            self._tell(e.Tells(server.uid, None))
            pause_s = _AGAIN_S if time.monotonic() > began + _AGAIN_MOST_S else min(pause_s * 2, _AGAIN_MOST_S)
            await asyncio.sleep(pause_s)

    async def _watch_pool(self, server: Server) -> None:
        at = url(server.ip, server.port, f"{_MODELS}?watch=1")
        told = self._http.stream(at, self._key, timeout_s=ANSWER_S)  # by it, others don't keep this one out
        async with told as (status, lines), asyncio.timeout(ANSWER_S) as beat:
            async for line in lines:
                beat.reschedule(asyncio.get_running_loop().time() + ANSWER_S)
                if status == 200 and line.startswith(b"data:"):
                    self._tell(e.Tells(server.uid, reading.told(line[5:])))

    async def _look_at_engine(self, server: Server) -> None:
        last: Instance | None = None
        while True:
            engine = await self._engine(server)
            if engine is None or engine != last:
                self._tell(e.Tells(server.uid, Told({engine.id: engine}) if engine is not None else None))
            last = engine
            settled = engine is not None and engine.state in (State.AWAKE, State.ASLEEP)
            await asyncio.sleep(_LOOK_S if settled else _LOOK_QUICK_S)

    async def _engine(self, server: Server) -> Instance | None:
        """None: the pod doesn't answer at all."""
        port, path = server.probe
        it = Instance(server.instance, State.LOADING, server.accelerators)
        try:
            if self._sleeps:
                answer = await self._http.ask("GET", url(server.ip, server.port, "/is_sleeping"), timeout_s=ANSWER_S)
                if said := reading.sleeping(it, answer.status, answer.body):
                    return said
            answer = await self._http.ask("GET", url(server.ip, port, path), timeout_s=ANSWER_S)
        except Unanswered as error:
            refused = isinstance(error.__context__, ConnectionRefusedError)
            return replace(it, why="it doesn't listen yet") if refused else None
        return reading.probed(it, path, answer.status)

    # -- asking and telling ----------------------------------------------------------------------------------------

    async def _ask(
        self, method: str, at: str, body: object = None, key: Mapping[str, str] = {}, timeout_s: float = ANSWER_S
    ) -> bytes:
        """Raises Failed and Unanswered."""
        data = b"" if body is None else msgspec.json.encode(body)
        headers = {TOKEN: str(self._token()), "content-type": "application/json", **key}
        answer = await self._http.ask(method, at, data, headers, timeout_s=timeout_s)
        if answer.status >= 300 and not (method == "DELETE" and answer.status == 404):
            raise Failed(f"{at} says {answer.status}: {sentence(answer.body)}")
        if len(answer.body) > _READ_BYTES:
            raise Failed(f"{at} says {len(answer.body)} bytes, and {_READ_BYTES} at most are read")
        return answer.body

    async def order(self, order: e.Order) -> None:
        """One that goes unanswered may be heard later: what its server pod runs isn't known before it says it again."""
        try:
            await self._order(order)
        except Failed:
            raise
        except Exception:
            self._anew(order.server)
            raise

    async def _order(self, order: e.Order) -> None:
        what, at, model = order.what, partial(url, order.server.ip, order.server.port), f"{_MODELS}/{order.instance}"
        if not order.server.pool:
            path = "/wake_up" if what == "wake" else "/sleep?level=1"
            await self._ask("POST", at(path), timeout_s=WAKE_S)
        elif what == "delete":
            await self._ask("DELETE", at(model), key=self._key)
        else:
            path, entry = (_MODELS, order.entry) if what == "launch" else (f"{model}/{what}", None)
            await self._ask("POST", at(path), entry, self._key)

    async def accelerators(self, requester: Requester) -> tuple[str, ...]:
        return reading.accelerators(await self._ask("GET", _admin(requester, "/v1/dual-pods/accelerators")))

    async def memory(self, requester: Requester) -> dict[str, int]:
        return reading.memory(await self._ask("GET", _admin(requester, "/v1/dual-pods/accelerator-memory-usage")))

    async def relay(self, requester: Requester, target: Target | None) -> None:
        at = _admin(requester, "/v1/become-ready" if target and not target.stays else "/v1/become-unready")
        said = replace(target or Target(), token=self._token(), pod=requester.uid, ends=requester.leaving)
        await self._ask("POST", at, said)


def _admin(requester: Requester, path: str) -> str:
    return url(requester.ip, requester.admin_port, path)


def sentence(body: bytes) -> str:
    """An error's words, whatever wraps them."""
    found: Any = body.decode("utf-8", "replace")
    with contextlib.suppress(reading.BadAnswer):
        found = reading.decoded(body, object)
        while isinstance(found, dict):
            found = found.get("error", found.get("message", found.get("why", "")))
    return " ".join(str(found).split())[:500]
