"""The endpoint without vLLM: a small application behind uvicorn."""

import asyncio
import socket
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("uvicorn", reason="uvicorn, which vLLM brings, isn't installed in this Python")

from engine_shim.vllm_engine.endpoint import Endpoint


class App:
    """Answers with what was said; `hold` keeps it from finishing."""

    def __init__(self) -> None:
        self.hold = asyncio.Event()
        self.hold.set()
        self.asked: list[tuple[str, dict[bytes, bytes]]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await receive()
            await send({"type": "lifespan.startup.complete"})
            await receive()
            return
        self.asked.append((scope["path"], dict(scope["headers"])))
        body = (await receive())["body"]
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"%d" % len(body))]})
        await self.hold.wait()
        await send({"type": "http.response.body", "body": body})


async def asked(path: Path, method: str, body: bytes = b"") -> bytes:
    reader, writer = await asyncio.open_unix_connection(path)
    writer.write(
        b"%s /x HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: %d\r\n\r\n" % (method.encode(), len(body))
    )
    writer.write(body)
    try:
        return await reader.read()
    finally:
        writer.close()


def bound(path: Path) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX)
    sock.bind(str(path))
    return sock


def test_it_is_warmed_up_before_it_has_an_address_and_then_only_bound(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = App()
        endpoint = Endpoint(app, {"access_log": False})
        await endpoint.prepare()
        said = await endpoint.warm_up("/v1/completions", {"prompt": [0]}, "secret")
        assert said == "HTTP/1.1 200 OK"
        path, headers = app.asked[0]
        assert path == "/v1/completions" and headers[b"authorization"] == b"Bearer secret"
        await endpoint.listen(bound(tmp_path / "s"))
        assert (await asked(tmp_path / "s", "POST", b"hello")).endswith(b"\r\n\r\nhello")
        await endpoint.close()
        with pytest.raises(OSError):
            await asked(tmp_path / "s", "GET")

    asyncio.run(scenario())


def test_draining_finishes_what_is_under_way_and_turns_new_work_away(tmp_path: Path) -> None:
    async def scenario() -> None:
        app = App()
        endpoint = Endpoint(app, {"access_log": False})
        await endpoint.prepare()
        await endpoint.listen(bound(tmp_path / "s"))
        app.hold.clear()
        first = asyncio.create_task(asked(tmp_path / "s", "POST", b"first"))
        while not app.asked:
            await asyncio.sleep(0)
        endpoint.gate.closed = True
        await endpoint.gate.idle(0.01)
        assert not first.done()
        refused = await asked(tmp_path / "s", "POST", b"second")
        assert refused.startswith(b"HTTP/1.1 503") and b"draining" in refused and len(app.asked) == 1
        app.hold.set()
        await endpoint.gate.idle(60)
        assert (await first).endswith(b"first")
        assert (await asked(tmp_path / "s", "GET")).startswith(b"HTTP/1.1 200"), "probes and metrics are still answered"
        endpoint.gate.closed = False
        assert (await asked(tmp_path / "s", "POST", b"third")).endswith(b"third")
        await endpoint.close()

    asyncio.run(scenario())
