"""vLLM's HTTP endpoint, built before it has an address: uvicorn with the application in it, started and warmed up, that
listens nowhere yet. What is left to do after the lock is granted is to bind.

A gate in front of the application counts the requests that are under way, for draining, and turns new ones away then.

What this file may not do: know vLLM. All of it runs in the engine's loop.
"""

import asyncio
import json
import socket
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any

import uvicorn

_Scope = MutableMapping[str, Any]
_Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
_Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
_App = Callable[[_Scope, _Receive, _Send], Awaitable[None]]

WARM_UP_TIMEOUT_S = 1800.0
"""The first of its kind compiles, on a machine that may be busy."""
_READS = ("GET", "HEAD", "OPTIONS")


class Gate:
    def __init__(self, app: _App) -> None:
        self._app = app
        self._busy = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self.closed = False

    async def idle(self, timeout_s: float) -> None:
        """Waits until nothing is under way, or until the time is over."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return

    async def __call__(self, scope: _Scope, receive: _Receive, send: _Send) -> None:
        if scope["type"] not in ("http", "websocket"):
            await self._app(scope, receive, send)
            return
        if self.closed and scope.get("method") not in _READS:
            await _turn_away(scope, send)
            return
        self._busy += 1
        self._idle.clear()
        try:
            await self._app(scope, receive, send)
        finally:
            self._busy -= 1
            if not self._busy:
                self._idle.set()


async def _turn_away(scope: _Scope, send: _Send) -> None:
    if scope["type"] == "websocket":
        await send({"type": "websocket.close", "code": 1013})
        return
    why = {"message": "the engine is draining: it takes no new requests", "type": "service_unavailable", "code": 503}
    body = json.dumps({"error": why}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": 503, "headers": headers})
    await send({"type": "http.response.body", "body": body})


class Endpoint:
    def __init__(self, app: _App, settings: dict[str, Any]) -> None:
        self.gate = Gate(app)
        self._config = uvicorn.Config(self.gate, **settings)
        self.server = uvicorn.Server(self._config)
        """vLLM's error handlers ask for it."""
        self._ticking: asyncio.Task[None] | None = None

    async def prepare(self) -> None:
        """Does everything of uvicorn's start but the sockets."""
        self._config.load()
        self.server.lifespan = self._config.lifespan_class(self._config)
        await self.server.startup(sockets=[])
        self._ticking = asyncio.create_task(self.server.main_loop())

    async def warm_up(self, path: str, body: dict[str, Any], api_key: str = "") -> str:
        """Makes one request that goes the whole way, on a connection that no client can have, and returns its status
        line. Whatever a first request costs is paid now, and not by the first one after a failover.
        """
        if self._config.is_ssl:
            return "left out: a TLS client would be needed"
        ours, theirs = socket.socketpair()
        theirs.setblocking(False)
        await asyncio.get_running_loop().connect_accepted_socket(self._protocol, theirs)
        reader, writer = await asyncio.open_connection(sock=ours)
        try:
            writer.write(_request(path, body, api_key))
            answer = await asyncio.wait_for(reader.read(), WARM_UP_TIMEOUT_S)
        finally:
            writer.close()
        return answer.partition(b"\r\n")[0].decode("latin-1")

    async def listen(self, bound: socket.socket) -> None:
        """At this address, and at no other from now on."""
        for old in self.server.servers:
            old.close()
        self.server.servers.clear()
        bound.setblocking(False)
        loop = asyncio.get_running_loop()
        server = await loop.create_server(
            self._protocol, sock=bound, ssl=self._config.ssl, backlog=self._config.backlog
        )
        self.server.servers.append(server)

    async def close(self) -> None:
        for server in self.server.servers:
            server.close()
        if self._ticking is not None:
            self._ticking.cancel()

    def _protocol(self) -> asyncio.Protocol:
        protocol: asyncio.Protocol = self._config.http_protocol_class(
            config=self._config,
            server_state=self.server.server_state,
            app_state=self.server.lifespan.state,
            _loop=asyncio.get_running_loop(),
        )
        return protocol


def _request(path: str, body: dict[str, Any], api_key: str) -> bytes:
    data = json.dumps(body).encode()
    lines = [
        f"POST {path} HTTP/1.1",
        "Host: warm-up",
        "Content-Type: application/json",
        f"Content-Length: {len(data)}",
        "Connection: close",
    ]
    if api_key:
        lines.append(f"Authorization: Bearer {api_key}")
    return "\r\n".join([*lines, "", ""]).encode() + data
