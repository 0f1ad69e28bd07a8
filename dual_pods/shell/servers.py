"""Server pods and requesters, as the controller reaches them over HTTP.

A pool is watched (`GET /failover/models?watch=1`). A pod with one engine is asked, in vLLM's words (`/is_sleeping`, its
probe), and told of in a pool's. Each order carries the leadership's token, so that a pool or a requester that has heard
a newer one refuses it. What this file may not do: decide anything.
"""

import asyncio
import contextlib
from collections.abc import Callable

import msgspec

from dual_pods.rules import events as e
from dual_pods.rules import reading
from dual_pods.rules.facts import Instance, Requester, Server, Told
from pool.entries import State
from sidecar.http.http_client import HttpClient, Unanswered

TOKEN = "x-dual-pods-token"
ANSWER_S, WAKE_S = 5.0, 60.0
_AGAIN_S, _AGAIN_MOST_S = 0.05, 1.0
_LOOK_S, _LOOK_QUICK_S = 1.0, 0.1
_NOT_UNDERSTOOD = (404, 405, 501)
Tell = Callable[[e.Event], None]


class Failed(Exception):
    """A sentence."""


def url(ip: str, port: int, path: str) -> str:
    return f"http://[{ip}]:{port}{path}" if ":" in ip else f"http://{ip}:{port}{path}"


class Servers:
    """Watches each server pod that runs."""

    def __init__(self, tell: Tell, token: Callable[[], int], admin_key: str, *, sleeps: bool) -> None:
        """`admin_key`: by which a pool is told what to do. `sleeps`: engines in their own pods know sleep and wake."""
        self._tell, self._token, self._sleeps = tell, token, sleeps
        self._key = {"authorization": f"Bearer {admin_key}"} if admin_key else {}
        self._http = HttpClient()
        self._watches: dict[str, tuple[tuple[str, int], asyncio.Task[None]]] = {}

    # -- watching --------------------------------------------------------------------------------------------------

    def seen(self, server: Server) -> None:
        known = self._watches.get(server.uid)
        where = server.ip, server.port
        if not server.running or not server.ip or server.ended:
            self.gone(server.uid)
        elif known is None or known[0] != where:
            self.gone(server.uid)
            watch = self._watch_pool(server) if server.pool else self._look_at_engine(server)
            self._watches[server.uid] = where, asyncio.create_task(watch)

    def gone(self, uid: str) -> None:
        known = self._watches.pop(uid, None)
        if known is not None:
            known[1].cancel()

    def close(self) -> None:
        for uid in list(self._watches):
            self.gone(uid)
        self._http.close()

    async def _watch_pool(self, server: Server) -> None:
        pause_s = _AGAIN_S
        while True:
            with contextlib.suppress(Unanswered, reading.BadAnswer):
                at = url(server.ip, server.port, "/failover/models?watch=1")
                async with self._http.stream(at, timeout_s=ANSWER_S) as (status, lines):
                    async for line in lines:
                        if status == 200 and line.startswith(b"data:"):
                            self._tell(e.Tells(server.uid, reading.told(line[5:])))
                            pause_s = _AGAIN_S
            self._tell(e.Tells(server.uid, None))
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 2, _AGAIN_MOST_S)

    async def _look_at_engine(self, server: Server) -> None:
        last: Told | None = None
        while True:
            try:
                state, why = await self._state(server)
                told = Told({server.instance: Instance(server.instance, state, server.accelerators, why)})
            except TimeoutError:
                told, state = None, State.OFF
            if told is None or told != last:
                self._tell(e.Tells(server.uid, told))
            last = told
            await asyncio.sleep(_LOOK_S if state in (State.AWAKE, State.ASLEEP) else _LOOK_QUICK_S)

    async def _state(self, server: Server) -> tuple[State, str]:
        """Raises TimeoutError where the pod doesn't answer at all."""
        port, path = server.probe
        try:
            if self._sleeps:
                answer = await self._http.ask("GET", url(server.ip, server.port, "/is_sleeping"), timeout_s=ANSWER_S)
                if answer.status == 200 and _sleeping(answer.body):
                    return State.ASLEEP, ""
                if answer.status not in (200, *_NOT_UNDERSTOOD):
                    return State.LOADING, f"/is_sleeping says {answer.status}"
            answer = await self._http.ask("GET", url(server.ip, port, path), timeout_s=ANSWER_S)
        except Unanswered as error:
            if "no answer within" in str(error):
                raise TimeoutError from None
            return State.LOADING, "it doesn't listen yet"
        return (State.AWAKE, "") if answer.status == 200 else (State.LOADING, f"{path} says {answer.status}")

    # -- orders ----------------------------------------------------------------------------------------------------

    async def _post(self, method: str, at: str, body: bytes, timeout_s: float, *, keyed: bool = False) -> bytes:
        headers = {TOKEN: str(self._token()), "content-type": "application/json", **(self._key if keyed else {})}
        try:
            answer = await self._http.ask(method, at, body, headers, timeout_s=timeout_s)
        except Unanswered as error:
            raise Failed(str(error)) from None
        if answer.status >= 300 and not (method == "DELETE" and answer.status == 404):
            raise Failed(f"{at} says {answer.status}: {_sentence(answer.body)}")
        return answer.body

    async def launch(self, effect: e.Launch) -> None:
        server = effect.server
        at = url(server.ip, server.port, "/failover/models")
        await self._post("POST", at, msgspec.json.encode(effect.entry), ANSWER_S, keyed=True)

    async def order(self, effect: e.Order) -> None:
        server, what = effect.server, effect.what
        if server.pool:
            method = "DELETE" if what == "delete" else "POST"
            path = f"/failover/models/{effect.instance}" + ("" if what == "delete" else f"/{what}")
            await self._post(method, url(server.ip, server.port, path), b"", ANSWER_S, keyed=True)
        else:
            path = "/wake_up" if what == "wake" else "/sleep?level=1"
            await self._post("POST", url(server.ip, server.port, path), b"", WAKE_S)

    # -- requesters ------------------------------------------------------------------------------------------------

    async def accelerators(self, requester: Requester) -> tuple[str, ...]:
        body = await self._get(requester, "/v1/dual-pods/accelerators")
        try:
            return reading.accelerators(body)
        except reading.BadAnswer as error:
            raise Failed(str(error)) from None

    async def memory(self, requester: Requester) -> dict[str, int]:
        """Bytes in use: FMA's requester says MiB."""
        body = await self._get(requester, "/v1/dual-pods/accelerator-memory-usage")
        try:
            return {name: mib << 20 for name, mib in msgspec.json.decode(body, type=dict[str, int]).items()}
        except msgspec.MsgspecError as error:
            raise Failed(f"its answer isn't understood: {error}") from None

    async def _get(self, requester: Requester, path: str) -> bytes:
        at = url(requester.ip, requester.admin_port, path)
        try:
            answer = await self._http.ask("GET", at, timeout_s=ANSWER_S)
        except Unanswered as error:
            raise Failed(str(error)) from None
        if answer.status != 200:
            raise Failed(f"{at} says {answer.status}: {_sentence(answer.body)}")
        return answer.body

    async def relay(self, effect: e.Relay) -> None:
        requester, target = effect.requester, effect.target
        said: dict[str, object] = {"token": self._token()}
        if target:
            said |= {"url": target[0], "watch": target[1], "host": target[2], "port": int(target[3])}
        path = "/v1/become-ready" if target else "/v1/become-unready"
        at = url(requester.ip, requester.admin_port, path)
        await self._post("POST", at, msgspec.json.encode(said), ANSWER_S)


def _sleeping(body: bytes) -> bool:
    try:
        found = msgspec.json.decode(body, type=dict[str, bool])
    except msgspec.MsgspecError:
        return False
    return found.get("is_sleeping", False)


def _sentence(body: bytes) -> str:
    """An error's words, whatever wraps them."""
    with contextlib.suppress(msgspec.MsgspecError):
        found = msgspec.json.decode(body)
        while isinstance(found, dict):
            found = found.get("error", found.get("message", found.get("why", "")))
        return str(found)[:500]
    return " ".join(body[:500].decode("utf-8", "replace").split())
