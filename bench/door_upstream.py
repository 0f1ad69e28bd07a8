"""An engine that costs nothing: it holds the lock and streams chunks of vLLM's form, as fast or paced as it is asked.

    python -m bench.door_upstream RUN_DIR PORT

`max_tokens` chunks come; `user` is how many of them in a second (0: at once). With a pace each has the time of its
writing for its text.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import uvloop

from bench.stage import tcp_listener
from lockserver.client import LockClient
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits

EVENTS = [(b"content-type", b"text/event-stream; charset=utf-8")]
JSON = [(b"content-type", b"application/json")]
MODELS = b'{"object":"list","data":[{"id":"m","max_model_len":100000}]}'
CHUNK = (
    b'data: {"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":"%b",'
    b'"logprobs":null,"finish_reason":%b,"stop_reason":null%b}]}\n\n'
)
WHOLE = (
    b'{"id":"cmpl-1","object":"text_completion","created":1,"model":"m","choices":[{"index":0,"text":" some text",'
    b'"logprobs":null,"finish_reason":"length"}],"usage":{"prompt_tokens":6,"total_tokens":22,"completion_tokens":16}}'
)
AT_ONCE = 64
"""Chunks that are written before others have their turn."""


class Upstream:
    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop

    def handle(self, request: Request, reply: Reply) -> None:
        if request.path != "/v1/completions":
            reply.send(200, MODELS, JSON)
            return
        body = json.loads(request.body)
        if not body.get("stream"):
            reply.send(200, WHOLE, JSON)
            return
        self.loop.create_task(self._stream(body, reply))

    async def _stream(self, body: dict[str, object], reply: Reply) -> None:
        room = asyncio.Event()
        room.set()
        gone = asyncio.Event()

        def leave() -> None:
            gone.set()
            room.set()

        reply.room = lambda there: room.set() if there else room.clear()
        reply.gone = leave
        count, rate = int(str(body["max_tokens"])), float(str(body.get("user") or 0))
        ids = body.get("return_token_ids") is True
        reply.open(200, EVENTS)
        began = self.loop.time()
        for number in range(count):
            if rate:
                await asyncio.sleep(max(0.0, began + (number + 1) / rate - self.loop.time()))
            elif number % AT_ONCE == 0:
                await asyncio.sleep(0)
            await room.wait()
            if gone.is_set():
                return
            more = b""
            if ids:
                more = b',"token_ids":[%d],"prompt_token_ids":%b' % (
                    number % 30000,
                    b"[1,2,3]" if not number else b"null",
                )
            text = b"%.6f" % time.monotonic() if rate else b" some text"
            reply.stream(CHUNK % (text, b'"length"' if number == count - 1 else b"null", more))
        reply.stream(b"data: [DONE]\n\n")
        reply.end()


async def serve(run_dir: Path, port: int) -> None:
    loop = asyncio.get_running_loop()
    server = HttpServer(loop, Upstream(loop).handle, lambda status, why: why.encode(), Limits(unread_bytes=1 << 30))
    await server.listen(tcp_listener(port))
    client = LockClient(run_dir, "upstream").start()
    await loop.run_in_executor(None, client.acquire)
    client.serving(f"http://127.0.0.1:{port}")
    await asyncio.Event().wait()


if __name__ == "__main__":
    uvloop.run(serve(Path(sys.argv[1]), int(sys.argv[2])))
