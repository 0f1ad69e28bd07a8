"""A requester at work: its HTTP ports, its questions to the instance, and the relay of its ports.

    GET  /v1/dual-pods/accelerators, /v1/dual-pods/accelerator-memory-usage     for the controller
    POST /v1/become-ready, /v1/become-unready                                   from the controller
    GET  /ready, /live                                                          for kubelet

What this file may not do: decide whether it is ready (`rules/standing.py`).
"""

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

import msgspec

from dual_pods.rules.standing import Standing, Target
from dual_pods.shell import answering
from dual_pods.shell.devices import NoDevices
from sidecar.http.http_client import HttpClient, Unanswered
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer
from sidecar.terminal.logs import Log
from sidecar.wire import tcp

ANSWER_S = 1.0
CONNECT_S = 5.0
RELAYS_MOST = 4096
_PIECE_BYTES = 64 << 10


class _Said(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the controller says of the instance. All of it is missing where FMA's says it."""

    url: str = ""
    watch: str = ""
    host: str = ""
    port: int = 0
    token: int = 0


class Requester:
    def __init__(
        self, accelerators: Callable[[], list[str]], memory_mib: Callable[[], dict[str, int]], log: Log
    ) -> None:
        self.standing = Standing()
        self.log = log
        self._http = HttpClient(body_bytes=1 << 20)
        self._servers: list[HttpServer] = []
        self._relays: list[asyncio.Server] = []
        self._changed = asyncio.Event()
        self._watching: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._relayed = set[asyncio.Task[Any]]()
        """Connections that lead to the instance; nothing else keeps these alive."""
        self._posts = {"/v1/become-ready": self._become_ready, "/v1/become-unready": self._become_unready}
        self._gets: dict[str, answering.Get] = {
            "/v1/dual-pods/accelerators": lambda reply: self._say(reply, accelerators),
            "/v1/dual-pods/accelerator-memory-usage": lambda reply: self._say(reply, memory_mib),
            "/ready": self._say_ready,
            "/live": lambda reply: answering.say(reply, "alive"),
        }

    # -- ports -----------------------------------------------------------------------------------------------------

    async def serve(self, address: tuple[str, int]) -> None:
        """Raises CannotListen."""
        self._servers.append(await answering.serve(address, self._gets, self._posts))

    async def relay(self, address: tuple[str, int]) -> None:
        listener = tcp.listen(*address)
        port = listener.getsockname()[1]

        async def take(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await self._relay(port, reader, writer)

        self._relays.append(await asyncio.start_server(take, sock=listener))

    async def run(self) -> None:
        """Asks the instance when the machine says so; for ever."""
        while True:
            wait_s = self.standing.ask_at - time.monotonic()
            self._changed.clear()
            if wait_s > 0:
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(None if wait_s == float("inf") else wait_s):
                        await self._changed.wait()
                continue
            target = self.standing.target
            assert target is not None
            self._asking = asyncio.create_task(self._ask(target))
            await asyncio.wait([self._asking, changed := asyncio.create_task(self._changed.wait())],
                               return_when=asyncio.FIRST_COMPLETED)  # fmt: skip
            changed.cancel()

    async def _ask(self, target: Target) -> None:
        try:
            answer = await self._http.ask("GET", target.url, timeout_s=ANSWER_S)
            why = "" if answer.status == 200 else f"its instance says {answer.status}: {_words(answer.body)}"
        except Unanswered as error:
            why = f"its instance doesn't answer: {error}"
        self._now(self.standing.answered(target, why, time.monotonic()))

    async def _watch(self, target: Target) -> None:
        while self.standing.target == target:
            with contextlib.suppress(Unanswered):
                async with self._http.stream(target.watch, timeout_s=CONNECT_S) as (status, lines):
                    async for line in lines:
                        if status == 200 and line.startswith(b"data:"):
                            self._now(self.standing.told(target, time.monotonic()))
            self._now(self.standing.cut(target, time.monotonic()))
            await asyncio.sleep(ANSWER_S)

    def _now(self, standing: Standing) -> None:
        was, self.standing = self.standing, standing
        if (was.ready, was.target) != (standing.ready, standing.target):
            where = standing.target.host if standing.target is not None else ""
            self.log.info("ready" if standing.ready else "unready", instance_at=where, why=standing.why)
        if was.target != standing.target:
            for relayed in self._relayed:  # a request that came by it now would wake what has been left
                relayed.cancel()
            if self._watching is not None:
                self._watching.cancel()
            watch = standing.target is not None and standing.target.watch
            self._watching = asyncio.create_task(self._watch(standing.target)) if standing.target and watch else None
        self._changed.set()

    # -- the controller and kubelet --------------------------------------------------------------------------------

    def _become_ready(self, request: Request, reply: Reply) -> None:
        try:
            said = msgspec.json.decode(request.body, type=_Said) if request.body.strip() else _Said()
        except msgspec.MsgspecError as error:
            answering.refuse(reply, 400, f"this isn't where an instance is: {error}")
            return
        target = Target(said.url, said.watch, said.host, said.port)
        self._take(self.standing.bound(target, said.token, time.monotonic()), said.token, reply)

    def _become_unready(self, request: Request, reply: Reply) -> None:
        try:
            token = msgspec.json.decode(request.body, type=_Said).token if request.body.strip() else 0
        except msgspec.MsgspecError as error:
            answering.refuse(reply, 400, f"this isn't understood: {error}")
            return
        self._take(self.standing.unbound(token), token, reply)

    def _take(self, standing: Standing | None, token: int, reply: Reply) -> None:
        if standing is None:
            why = f"a newer controller was heard: its token is {self.standing.token}, and this one's is {token}"
            answering.refuse(reply, 409, why)
            return
        self._now(standing)
        answering.say(reply, "OK")

    def _say(self, reply: Reply, find: Callable[[], object]) -> None:
        try:
            answering.show(reply, find())
        except NoDevices as error:
            answering.refuse(reply, 500, str(error))

    def _say_ready(self, reply: Reply) -> None:
        ready = self.standing.ready
        answering.say(reply, "ready" if ready else self.standing.why, 200 if ready else 503)

    # -- the relay -------------------------------------------------------------------------------------------------

    async def _relay(self, port: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        target = self.standing.target
        task = asyncio.current_task()
        assert task is not None
        self._relayed.add(task)
        with contextlib.closing(writer):
            try:
                if target is not None and target.host and len(self._relayed) <= RELAYS_MOST:
                    async with asyncio.timeout(CONNECT_S):
                        far_reader, far_writer = await asyncio.open_connection(target.host, target.port or port)
                    with contextlib.closing(far_writer):
                        await asyncio.gather(_pump(reader, far_writer), _pump(far_reader, writer))
            except (OSError, TimeoutError, asyncio.CancelledError):
                pass
            finally:
                self._relayed.discard(task)

    def close(self) -> None:
        for server in self._servers:
            server.close()
        for relay in self._relays:
            relay.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Until the one side has said its last; then the other one is told so."""
    with contextlib.suppress(OSError):
        while data := await reader.read(_PIECE_BYTES):
            writer.write(data)
            await writer.drain()
        if writer.can_write_eof():
            writer.write_eof()
        return
    writer.close()


def _words(body: bytes) -> str:
    return " ".join(body[:300].decode("utf-8", "replace").split())
