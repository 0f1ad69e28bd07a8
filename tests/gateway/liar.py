"""An engine that holds the lock and does what no engine should: `python -m tests.gateway.liar RUN_DIR ENGINE_ID`.

A prompt that begins with `fault:NAME ` says what it does with that request; all others it answers as the simulator's
engine does (`engine.py`), and so does every other of its kind: an answer can go on anywhere. An engine that is called
`honest` ignores faults. SIM_MODEL is what its model is called. How often each fault was asked for stands in
`asked.NAME` beside its socket.
"""

import asyncio
import json
import os
import re
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

from lockserver.client import LockClient
from tests.gateway import engine

Writer = asyncio.StreamWriter
PIECE_S = 0.01
HALF = 6
"""So many events of an answer come before what is wrong with it."""


def head(status: int, *lines: str) -> bytes:
    return "\r\n".join([f"HTTP/1.1 {status} X", *lines, "", ""]).encode()


EVENTS = head(200, "content-type: text/event-stream", "transfer-encoding: chunked")


def chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


async def stay(out: Writer) -> None:
    await out.drain()
    await asyncio.Event().wait()


async def pieces(out: Writer, some: tuple[bytes, ...]) -> None:
    for piece in some:
        out.write(chunk(piece))
        await out.drain()
        await asyncio.sleep(PIECE_S)


async def begin(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS)
    await pieces(out, said.pieces[:HALF])


async def honest(out: Writer, said: engine.Said) -> None:
    if said.headers == engine.EVENTS:
        out.write(EVENTS)
        await pieces(out, said.pieces)
        out.write(chunk(b""))
    else:
        out.write(head(said.status, "content-type: application/json", f"content-length: {len(said.body)}") + said.body)


async def reset(out: Writer, said: engine.Said) -> None:
    out.transport.abort()


async def silent(out: Writer, said: engine.Said) -> None:
    await stay(out)


async def slow(out: Writer, said: engine.Said) -> None:
    await asyncio.sleep(1.5)
    await honest(out, said)


async def head_only(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS[:40])
    await out.drain()
    out.transport.close()


async def cut(out: Writer, said: engine.Said) -> None:
    await begin(out, said)
    out.write(chunk(said.pieces[HALF])[:20])
    await out.drain()
    out.transport.close()


async def stall(out: Writer, said: engine.Said) -> None:
    await begin(out, said)
    await stay(out)


async def no_json(out: Writer, said: engine.Said) -> None:
    await begin(out, said)
    out.write(chunk(b'data: {"choices": [{"ind\n\n'))
    await stay(out)


async def wrong_choice(out: Writer, said: engine.Said) -> None:
    await begin(out, said)
    out.write(chunk(b'data: {"id": "x", "choices": [{"index": 7, "text": "no"}]}\n\n'))
    await stay(out)


async def event_error(out: Writer, said: engine.Said) -> None:
    await begin(out, said)
    out.write(chunk(b'data: {"error": {"message": "out of memory", "type": "InternalServerError", "code": 500}}\n\n'))
    out.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def early_done(out: Writer, said: engine.Said) -> None:
    await begin(out, said)
    out.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def no_done(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS)
    await pieces(out, said.pieces[:-1])
    out.write(chunk(b""))


async def two_dones(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS)
    await pieces(out, (*said.pieces, said.pieces[-1]))
    out.write(chunk(b""))


async def late_words(out: Writer, said: engine.Said) -> None:
    """Behind the end of the answer, on a connection that might be used again."""
    await honest(out, said)
    out.write(head(200, "content-length: 4") + b"evil")


async def bad_request(out: Writer, said: engine.Said) -> None:
    body = b'{"error": {"message": "no", "type": "BadRequestError", "code": 400}}'
    out.write(head(400, "content-type: application/json", f"content-length: {len(body)}") + body)


async def failure(out: Writer, said: engine.Said, status: int = 500) -> None:
    body = b'{"error": {"message": "oops", "type": "InternalServerError", "code": %d}}' % status
    out.write(head(status, "content-type: application/json", f"content-length: {len(body)}") + body)


async def busy(out: Writer, said: engine.Said) -> None:
    await failure(out, said, 503)


async def long_length(out: Writer, said: engine.Said) -> None:
    out.write(head(200, "content-type: application/json", f"content-length: {len(said.body) + 9}") + said.body)
    await out.drain()
    out.transport.close()


async def two_lengths(out: Writer, said: engine.Said) -> None:
    out.write(head(200, "content-length: 3", "content-length: 4") + b"abcd")


async def no_http(out: Writer, said: engine.Said) -> None:
    out.write(b"\x00\x01 SSH-2.0\r\n\r\n")


async def large_chunk(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS)
    await pieces(out, said.pieces[:HALF])
    out.write(chunk(b": " + b"x" * (10 << 20) + b"\n\n"))
    await pieces(out, said.pieces[HALF:])
    out.write(chunk(b""))


async def error_first(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS)
    out.write(chunk(b'data: {"error": {"message": "out of memory", "type": "InternalServerError", "code": 503}}\n\n'))
    out.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def old_error(out: Writer, said: engine.Said) -> None:
    """As vLLM said it once: the error's fields are the event's own."""
    out.write(EVENTS)
    out.write(chunk(b'data: {"object": "error", "message": "too long", "type": "BadRequestError", "code": 400}\n\n'))
    out.write(chunk(b"data: [DONE]\n\n") + chunk(b""))


async def whole_then_cut(out: Writer, said: engine.Said) -> None:
    """Each choice has its reason to end, and then the connection breaks."""
    out.write(EVENTS)
    await pieces(out, said.pieces[:-1])
    out.transport.abort()


async def whole_then_noise(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS)
    await pieces(out, said.pieces[:-1])
    out.write(b"this is no chunk\r\n")
    await stay(out)


async def in_one_piece(out: Writer, body: bytes, kind: str, status: int = 200) -> None:
    out.write(head(status, f"content-type: {kind}", f"content-length: {len(body)}") + body)


async def nothing(out: Writer, said: engine.Said) -> None:
    await in_one_piece(out, b"", "text/plain")


async def page(out: Writer, said: engine.Said) -> None:
    await in_one_piece(out, b"<html><body>Welcome</body></html>", "text/html")


async def half_json(out: Writer, said: engine.Said) -> None:
    await in_one_piece(out, b'{"id": "x", "choices": [{"index": 0, "te', "application/json")


async def other_json(out: Writer, said: engine.Said) -> None:
    await in_one_piece(out, b'{"status": "fine"}', "application/json")


async def error_as_answer(out: Writer, said: engine.Said) -> None:
    await in_one_piece(out, b'{"error": {"message": "out of memory", "code": 500}}', "application/json")


async def no_content(out: Writer, said: engine.Said) -> None:
    out.write(head(204))


async def no_events(out: Writer, said: engine.Said) -> None:
    out.write(EVENTS + chunk(b""))


async def for_the_hop(out: Writer, said: engine.Said) -> None:
    """Some of its headers are for this connection alone."""
    lines = ("content-type: application/json", "connection: keep-alive, X-Hop", "x-hop: 1", "x-other: 2")
    out.write(head(200, *lines, f"content-length: {len(said.body)}") + said.body)


async def dies(out: Writer, said: engine.Said) -> None:
    os._exit(9)


async def all_at_once(out: Writer, said: engine.Said) -> None:
    """More than fits between the door and a client that doesn't read, and the answer's end right behind it."""
    more = chunk(b": " + b"x" * (16 << 20) + b"\n\n")
    out.write(EVENTS + b"".join(map(chunk, said.pieces[:-1])) + more + chunk(said.pieces[-1]) + chunk(b""))


async def endless(out: Writer, said: engine.Said) -> None:
    """An event that never ends."""
    await begin(out, said)
    out.write(chunk(b"data: "))
    while True:
        out.write(chunk(b"x" * (1 << 20)))
        await out.drain()


async def flood(out: Writer, said: engine.Said) -> None:
    """A stream that goes on for as long as it is read."""
    await begin(out, said)
    while True:
        out.write(chunk(b": " + b"x" * (1 << 16) + b"\n\n"))
        await out.drain()


FAULTS: dict[str, Callable[[Writer, engine.Said], Awaitable[None]]] = {
    one.__name__: one
    for one in (
        *(reset, silent, slow, head_only, cut, stall, no_json, wrong_choice, event_error, early_done, no_done),
        *(two_dones, late_words, bad_request, failure, busy, long_length, two_lengths, no_http, large_chunk, endless),
        *(error_first, all_at_once, flood, old_error, whole_then_cut, whole_then_noise, nothing, page, half_json),
        *(other_json, error_as_answer, no_content, no_events, dies, for_the_hop),
    )
}


class Liar:
    def __init__(self, socket_path: Path, *, lies: bool) -> None:
        self._path = socket_path
        self._lies = lies
        self._there: set[Writer] = set()
        self.busy = 0
        """Requests that it answers."""

    async def serve(self, serving: Callable[[], None], sleep: asyncio.Event) -> None:
        """Until it is to sleep. Then nothing of it listens, and what it has begun breaks off."""
        server = await asyncio.start_unix_server(self._connection, self._path, limit=1 << 24)
        serving()
        await sleep.wait()
        server.close()
        self._path.unlink()
        for out in self._there:
            out.transport.abort()

    async def _connection(self, reader: asyncio.StreamReader, out: Writer) -> None:
        self._there.add(out)
        try:
            while request := (await reader.readuntil(b"\r\n\r\n")).decode():
                length = re.search(r"content-length: (\d+)", request)
                body = await reader.readexactly(int(length[1])) if length else b""
                self.busy += 1
                try:
                    await self._answer(request, body, out)
                    await out.drain()
                finally:
                    self.busy -= 1
        except (OSError, asyncio.IncompleteReadError):
            out.close()

    async def _answer(self, request: str, body: bytes, out: Writer) -> None:
        method, target, *_ = request.split()
        name = re.search(r"x-request-id: (\S+)", request)
        headers = [(b"x-request-id", name[1].encode())] if name else []
        said = engine.answer(method, target.encode(), headers, body)
        prompt = json.loads(body).get("prompt") if body else ""
        fault = re.match(r"fault:(\w+)", prompt) if isinstance(prompt, str) else None
        if fault is None or fault[1] not in FAULTS or not self._lies:
            await honest(out, said)
            return
        with open(self._path.with_name(f"asked.{fault[1]}"), "a") as asked:
            asked.write("x")
        await FAULTS[fault[1]](out, said)


async def live(run_dir: Path, engine_id: str) -> None:
    """Acquires, serves, and sleeps in place when it is told to; and again."""
    loop, sleep, there = asyncio.get_running_loop(), asyncio.Event(), list[Liar]()

    def drain(timeout_s: float) -> None:
        end = time.monotonic() + timeout_s
        while there[-1].busy and time.monotonic() < end:
            time.sleep(0.002)

    client = LockClient(run_dir, engine_id, on_drain=drain, on_give_back=lambda: loop.call_soon_threadsafe(sleep.set))
    client.start()
    client.ready(True)
    while True:
        grant = await asyncio.to_thread(client.acquire)
        path = run_dir / f"{engine_id}.{grant.token}.sock"
        there.append(Liar(path, lies=engine_id != "honest"))
        await there[-1].serve(partial(client.serving, f"unix:{path}"), sleep)
        sleep.clear()
        client.give_back()


def main() -> None:
    engine.MODEL = os.environ.get("SIM_MODEL", engine.MODEL)
    asyncio.run(live(Path(sys.argv[1]), sys.argv[2]))


if __name__ == "__main__":
    main()
