"""A requester at work: its HTTP ports, its questions to the instance, and the relay of its ports.

    GET  /v1/dual-pods/accelerators, /v1/dual-pods/accelerator-memory-usage     for the controller
    POST /v1/become-ready, /v1/become-unready                                   from the controller
    GET  /ready, /live, /metrics                                                for kubelet, for Prometheus

What this file may not do: decide whether it is ready (`rules/standing.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import msgspec

from dual_pods.rules.standing import Standing, Target
from dual_pods.shell import answering
from dual_pods.shell.devices import NoDevices
from sidecar.http.http_client import HttpClient, Unanswered
from sidecar.http.http_exchange import Request
from sidecar.http.http_port import MakePage, Page, text
from sidecar.http.http_server import HttpServer
from sidecar.terminal.logs import Log
from sidecar.wire import tcp

ANSWER_S = 5.0
"""vLLM's event loop, of an engine in a pod of its own, may be busy for a second or two under load."""
WATCH_AGAIN_S = 1.0
CONNECT_S = 5.0
QUIET_S = 5.0
RELAYS_MOST = 4096
_LOOK_S = 0.05
_PIECE_BYTES = 64 << 10


@dataclass(eq=False)
class _Relayed:
    """A connection that leads to the instance."""

    task: asyncio.Task[Any]
    up: asyncio.Task[None] | None = None
    """What the client says goes by this one."""
    asks: bool = False
    """The client spoke last."""
    silent: bool = True
    """Nothing was said by it yet."""
    at: float = field(default_factory=time.monotonic)

    def moved(self, asks: bool) -> None:
        self.silent, self.asks, self.at = False, asks, time.monotonic()

    def is_open(self) -> bool:
        """Clients keep connections for their next request: one that was answered, and is quiet, is over."""
        return self.asks or time.monotonic() < self.at + QUIET_S


class Requester:
    def __init__(
        self, accelerators: Callable[[], list[str]], memory_mib: Callable[[], dict[str, int]], uid: str, log: Log
    ) -> None:
        """`uid`: its pod's; empty: it isn't known."""
        self.standing = Standing()
        self.uid, self.log = uid, log
        self._http = HttpClient(body_bytes=1 << 20)
        self._servers: list[HttpServer] = []
        self._relays: list[asyncio.Server] = []
        self._sooner = asyncio.Event()
        self._following: list[asyncio.Task[None]] = []
        """What asks and watches the instance."""
        self._relayed = dict[_Relayed, None]()
        """In the order of their coming."""
        self._posts: dict[str, answering.Post] = {
            "/v1/become-ready": partial(self._hear, lambda said: self.standing.bound(said, time.monotonic())),
            "/v1/become-unready": partial(self._hear, lambda said: self.standing.unbound(said)),
        }
        self._gets: dict[str, MakePage] = {
            "/v1/dual-pods/accelerators": partial(self._say, accelerators),
            "/v1/dual-pods/accelerator-memory-usage": partial(self._say, memory_mib),
            "/ready": self._say_ready,
            "/live": lambda: text("alive"),
            "/metrics": self._metrics,
        }

    # -- ports -----------------------------------------------------------------------------------------------------

    async def serve(self, address: tuple[str, int], *, is_admin: bool) -> None:
        """`is_admin`: the controller is heard there, and nowhere else. Raises CannotListen."""
        self._servers.append(await answering.serve(address, self._gets, self._posts if is_admin else {}))

    async def relay(self, address: tuple[str, int]) -> None:
        """Raises CannotListen."""
        listener = tcp.listen(*address)
        tcp.probe(listener)
        relay = partial(self._relay, listener.getsockname()[1])
        self._relays.append(await asyncio.start_server(relay, sock=listener, backlog=tcp.BACKLOG))

    async def end(self, grace_s: float) -> None:
        """Its pod ends: what is open goes on for its grace."""
        self._become(self.standing.ends())
        for relay in self._relays:
            relay.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(grace_s):
                while any(relayed.is_open() for relayed in self._relayed):
                    await asyncio.sleep(_LOOK_S)
        for server in self._servers:
            server.close()

    # -- the instance ----------------------------------------------------------------------------------------------

    async def _ask(self, target: Target) -> None:
        """Whenever the machine says so."""
        while True:
            status = 0
            self._sooner.clear()
            try:
                answer = await self._http.ask("GET", target.url, timeout_s=ANSWER_S)
                words, status = " ".join(answer.body[:300].decode("utf-8", "replace").split()), answer.status
                why = "" if status == 200 else f"its instance says {status}: {words}"
            except Unanswered as error:
                why = f"its instance doesn't answer: {error}"
            self._become(self.standing.answered(target, why, time.monotonic(), status))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(self.standing.ask_at - time.monotonic()):
                    await self._sooner.wait()

    async def _watch(self, target: Target) -> None:
        while True:
            with contextlib.suppress(Unanswered):
                async with self._http.stream(target.watch, timeout_s=CONNECT_S) as (status, lines):
                    async for line in lines:
                        if status == 200 and line.startswith(b"data:"):
                            self._become(self.standing.told(target, time.monotonic()))
            self._become(self.standing.cut(target, time.monotonic()))
            await asyncio.sleep(WATCH_AGAIN_S)

    def _become(self, standing: Standing) -> None:
        was, self.standing = self.standing, standing
        target = standing.target
        if (was.ready, was.target) != (standing.ready, target):
            where = target.host if target is not None else ""
            self.log.info("ready" if standing.ready else "unready", instance_at=where, why=standing.why)
        if was.target != target:
            for relayed in self._relayed:  # a request that came by it now would wake what has been left
                (relayed.up if standing.ending and relayed.up else relayed.task).cancel()
            for task in self._following:
                task.cancel()
            self._following = [asyncio.create_task(self._ask(target))] if target and target.url else []
            self._following += [asyncio.create_task(self._watch(target))] if target and target.watch else []
        if standing.ask_at <= time.monotonic():
            self._sooner.set()

    # -- the controller and kubelet --------------------------------------------------------------------------------

    def _hear(self, decide: Callable[[Target], Standing | None], request: Request) -> Page:
        try:
            said = msgspec.json.decode(request.body, type=Target) if request.body.strip() else Target()
        except (msgspec.MsgspecError, RecursionError) as error:
            return answering.refusal(400, f"this isn't where an instance is: {error}")
        if said.pod and self.uid and said.pod != self.uid:
            return answering.refusal(421, f"pod {said.pod} had this address before; this is pod {self.uid}")
        standing = decide(said)
        if standing is None:
            why = f"a newer controller was heard: its token is {self.standing.token}, and this one's is {said.token}"
            return answering.refusal(409, why)
        self._become(standing)
        return text("OK")

    def _say(self, find: Callable[[], object]) -> Page:
        try:
            return answering.json(find())
        except NoDevices as error:
            return answering.refusal(500, str(error))

    def _say_ready(self) -> Page:
        return text("ready") if self.standing.ready else text(self.standing.why, 503)

    def _metrics(self) -> Page:
        values = {"ready": int(self.standing.ready), "connections": len(self._relayed)}
        lines = (f"# TYPE dual_pods_requester_{k} gauge\ndual_pods_requester_{k} {v}" for k, v in values.items())
        return text("\n".join(lines))

    # -- the relay -------------------------------------------------------------------------------------------------

    async def _relay(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target, task = None if self.standing.elsewhere else self.standing.target, asyncio.current_task()
        assert task is not None
        relayed = _Relayed(task)
        self._relayed[relayed] = None
        if len(self._relayed) > RELAYS_MOST:
            self._let_a_silent_one_go()
        try:
            with contextlib.closing(writer), contextlib.suppress(OSError, TimeoutError, asyncio.CancelledError):
                if target is not None and target.host and len(self._relayed) <= RELAYS_MOST:
                    async with asyncio.timeout(CONNECT_S):
                        far_reader, far_writer = await asyncio.open_connection(target.host, target.port or port)
                    with contextlib.closing(far_writer):
                        relayed.up = asyncio.create_task(_pump(reader, far_writer, lambda: relayed.moved(True)))
                        down = _pump(far_reader, writer, lambda: relayed.moved(False))
                        await asyncio.gather(relayed.up, down, return_exceptions=True)
        finally:
            self._relayed.pop(relayed, None)

    def _let_a_silent_one_go(self) -> None:
        """Engines that know no bound for a first word would keep it, and other clients out, for ever."""
        first = next((relayed for relayed in self._relayed if relayed.silent), None)
        if first is not None and not first.is_open():
            del self._relayed[first]
            first.task.cancel()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, moved: Callable[[], None]) -> None:
    """Until the one side has said its last; then the other one is told so."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            moved()
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return
    writer.close()
