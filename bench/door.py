"""The door beside nginx and the engine itself, in turns: `python -m bench.door`.

Each figure is measured over all ways in every round, so that whatever else the machine does disturbs them alike. The
last is a door that has a lease of its host (`fleet/`).
The client is one process in Python and costs more than any relay; so the relay's own processor time stands beside each
rate. Without nginx that column is left out.
"""

import argparse
import asyncio
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from pathlib import Path
from statistics import median

import uvloop

from bench.stage import DEADLINE_S, ROOT, TMPFS, Broken, free_port, lock_server
from fleet.shell.store import open_store

STREAMS = 64
CHUNKS, PACED, PACE, SMALL = 1500, 80, 40, 60
"""For each of 64 connections: chunks in one stream; chunks of a paced stream, and how many a second; small requests."""
OPEN = 500
"""Streams that are open at once, for memory."""
NGINX = """
daemon off; worker_processes 1; pid {0}/nginx.pid; error_log /dev/null;
events {{ worker_connections 4096; }}
http {{
  access_log off; client_body_temp_path {0}/b; proxy_temp_path {0}/p; fastcgi_temp_path {0}/f; uwsgi_temp_path {0}/u;
  scgi_temp_path {0}/s; keepalive_requests 1000000;
  upstream engine {{ server 127.0.0.1:{1}; keepalive 256; keepalive_requests 1000000; }}
  server {{ listen 127.0.0.1:{2} backlog=4096;
    location / {{
      proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
    }}
  }}
}}
"""


class Way:
    """How clients come to the engine."""

    def __init__(self, name: str, port: int, relay: subprocess.Popen[bytes] | None) -> None:
        self.name = name
        self.port = port
        self.relay = relay

    def processor_s(self) -> float:
        if self.relay is None:
            return 0.0
        pids = [self.relay.pid, *_children(self.relay.pid)]
        return sum(_processor_s(pid) for pid in pids)

    def resident(self) -> int:
        assert self.relay is not None
        pids = [self.relay.pid, *_children(self.relay.pid)]
        pages = sum(int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in pids)
        return pages * os.sysconf("SC_PAGE_SIZE")


def _children(pid: int) -> list[int]:
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _processor_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def request(body: dict[str, object] | None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: {len(data)}"
    return f"{head}\r\n\r\n".encode() + data if data else b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"


def asked(chunks: int, pace: int = 0) -> bytes:
    return request({"model": "m", "prompt": "x", "max_tokens": chunks, "stream": True, "user": str(pace)})


class _Stream(asyncio.Protocol):
    """Reads to the end of one stream, and hardly looks at it."""

    def __init__(self, words: bytes, paced: bool, done: "asyncio.Future[None]") -> None:
        self._words, self._paced, self._done = words, paced, done
        self.delays_s: list[float] = []
        self.first = asyncio.Event()
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        transport.write(self._words)  # type: ignore[attr-defined]

    def data_received(self, data: bytes) -> None:
        self.first.set()
        if self._paced:
            now = time.monotonic()
            for piece in data.split(b'"text":"')[1:]:
                self.delays_s.append(now - float(piece[: piece.index(b'"')]))
        if b"[DONE]" in data and not self._done.done():
            self._done.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if not self._done.done():
            self._done.set_exception(Broken(f"a stream broke off: {error}"))


async def _streams(port: int, count: int, words: bytes, paced: bool) -> list[_Stream]:
    loop = asyncio.get_running_loop()
    done = [loop.create_future() for _ in range(count)]
    found = []
    for one in done:
        _, stream = await loop.create_connection(partial(_Stream, words, paced, one), "127.0.0.1", port)
        found.append(stream)
    await asyncio.wait_for(asyncio.gather(*done), 120)
    for stream in found:
        assert stream.transport is not None
        stream.transport.abort()
    return found


async def chunk_rate(way: Way) -> tuple[float, float]:
    """Chunks per second, and the relay's processor time for one in microseconds."""
    return await _rate(way, STREAMS * CHUNKS, _streams(way.port, STREAMS, asked(CHUNKS), False))


async def _rate(way: Way, count: int, work: Awaitable[object]) -> tuple[float, float]:
    before, began = way.processor_s(), time.monotonic()
    await work
    took, spent = time.monotonic() - began, way.processor_s() - before
    return count / took, spent / count * 1e6


async def small_rate(way: Way) -> tuple[float, float]:
    """Small requests per second, and the relay's processor time for one in microseconds."""
    words = request(None)

    async def one() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", way.port)
        for _ in range(SMALL):
            writer.write(words)
            head = await reader.readuntil(b"\r\n\r\n")
            await reader.readexactly(int(head.lower().split(b"content-length: ")[1].split()[0]))
        writer.close()

    return await _rate(way, STREAMS * SMALL, asyncio.gather(*(one() for _ in range(STREAMS))))


async def delays(way: Way) -> tuple[float, float]:
    """From the engine's write to the client's read, p50 and p99 in milliseconds."""
    streams = await _streams(way.port, STREAMS, asked(PACED, PACE), True)
    found = sorted(delay for stream in streams for delay in stream.delays_s)
    return found[len(found) // 2] * 1000, found[len(found) * 99 // 100] * 1000


async def memory(way: Way) -> float:
    """What an open stream that has begun takes, in kB."""
    loop = asyncio.get_running_loop()
    before = way.resident()
    found = []
    for _ in range(OPEN):
        _, stream = await loop.create_connection(
            lambda: _Stream(asked(2000, 1), True, loop.create_future()), "127.0.0.1", way.port
        )
        found.append(stream)
    await asyncio.gather(*(stream.first.wait() for stream in found))
    await asyncio.gather(*(_more(stream) for stream in found))
    taken = (way.resident() - before) / OPEN / 1000
    for stream in found:
        stream._done.cancel()
        assert stream.transport is not None
        stream.transport.abort()
    return taken


async def _more(stream: _Stream) -> None:
    while len(stream.delays_s) < 2:
        await asyncio.sleep(0.05)


async def measure(ways: list[Way], rounds: int) -> None:
    figures: list[tuple[str, Callable[[Way], Coroutine[None, None, tuple[float, float]]], str]] = [
        ("delay, ms, p50 and p99", delays, "{:.3f} / {:.3f}"),
        ("chunks a second, and us for one", chunk_rate, "{:.0f} / {:.1f}"),
        ("small requests a second, and us for one", small_rate, "{:.0f} / {:.1f}"),
    ]
    names = [way.name for way in ways]
    print(f"| medians of {rounds} rounds | {' | '.join(names)} |\n|---|{'---|' * len(names)}")
    for title, figure, shown in figures:
        seen: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
        for _ in range(rounds):
            for way in ways:
                seen[way.name].append(await figure(way))
        cells = [shown.format(*(median(values) for values in zip(*seen[name], strict=True))) for name in names]
        print(f"| {title} | {' | '.join(cells)} |", flush=True)
    taken = [f"{await memory(way):.0f}" if way.relay is not None else "" for way in ways]
    print(f"| memory of an open stream, kB | {' | '.join(taken)} |")


def main() -> None:
    it = argparse.ArgumentParser(description="The door beside nginx and the engine itself.")
    it.add_argument("--rounds", type=int, default=5)
    rounds = it.parse_args().rounds
    quiet = {"cwd": ROOT, "stdin": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdout": subprocess.DEVNULL}
    with contextlib.ExitStack() as stack:
        run_dir = stack.enter_context(lock_server(TMPFS)).run_dir
        directory = run_dir.parent

        def start(*command: str) -> subprocess.Popen[bytes]:
            process = subprocess.Popen(command, **quiet)  # type: ignore[call-overload]
            stack.callback(process.wait, DEADLINE_S)
            stack.callback(process.terminate)
            return process  # type: ignore[no-any-return]

        engine, through, door = free_port(), free_port(), free_port()
        start(sys.executable, "-m", "bench.door_upstream", str(run_dir), str(engine))
        ways = [Way("the engine itself", engine, None)]
        if nginx := shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin"):
            (directory / "nginx.conf").write_text(NGINX.format(directory, engine, through))
            ways.append(Way("nginx", through, start(nginx, "-c", str(directory / "nginx.conf"), "-p", str(directory))))
        listen = ("--listen", f"127.0.0.1:{door}", "--no-access-log")
        relay = start(sys.executable, "-m", "gateway", "--run-dir", str(run_dir), *listen)
        ways.append(Way("the door", door, relay))
        leased, database = free_port(), f"sqlite://{directory}/fleet.db"
        open_store(database).init(["h"])
        under = ("--listen", f"127.0.0.1:{leased}", "--no-access-log", "--lease-host", "h", "--database", database)
        relay = start(sys.executable, "-m", "gateway", "--run-dir", str(run_dir), *under)
        ways.append(Way("with a lease", leased, relay))
        uvloop.run(_all(ways, rounds))


async def _all(ways: list[Way], rounds: int) -> None:
    for way in ways:
        end = time.monotonic() + DEADLINE_S
        while True:
            try:
                await _streams(way.port, 1, asked(3), False)
                break
            except (OSError, Broken):
                if time.monotonic() > end:
                    raise Broken(f"{way.name} does not answer") from None
                await asyncio.sleep(0.05)
    await measure(ways, rounds)


if __name__ == "__main__":
    main()
