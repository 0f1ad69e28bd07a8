"""A real gateway in front of a real pair, and clients that keep every byte."""

import asyncio
import json
import socket
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from tests.engine.shims import House, Program
from tests.support.ports import free_port
from tests.support.waiting import DEADLINE_S, until


class GatewayProgram(Program):
    """`python -m gateway`, on a port of its own."""

    def __init__(self, house: House, *more: str, name: str = "gateway", port: int = 0) -> None:
        self.port = port or free_port()
        address = f"127.0.0.1:{self.port}"
        place = () if {"--run-dir", "--pool"} & {*more} else ("--run-dir", str(house.run_dir))
        super().__init__(house, name, "gateway", *place, "--listen", address, "--shutdown-delay-s", "0", *more)
        self.url = f"http://{address}"
        house.add(self)

    def get(self, path: str) -> tuple[int, Any]:
        status, _, body = ask(self.port, path)
        try:
            return status, json.loads(body)
        except json.JSONDecodeError:
            return status, body.decode()

    def state(self) -> dict[str, Any]:
        try:
            return dict(self.get("/failover")[1])
        except OSError:
            return {}

    def serving(self) -> "GatewayProgram":
        """Waits until it sees an engine that serves."""
        until(lambda: any(pair["serves"] for pair in self.state().get("pairs", ())), "the door sees an engine")
        return self


def exchanged(port: int, data: bytes, *, half: bool = False) -> bytes:
    """All that is answered to these bytes."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
        sock.sendall(data)
        if half:
            sock.shutdown(socket.SHUT_WR)
        found = b""
        try:
            while more := sock.recv(65536):
                found += more
        except ConnectionResetError:
            pass
        return found


def ask(port: int, path: str, body: Any = None, **headers: str) -> tuple[int, dict[str, str], bytes]:
    """One request on a connection of its own, to its end."""
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as sock:
        sock.sendall(request_bytes(path, body, **headers))
        data = b""
        while more := sock.recv(65536):
            data += more
    head, _, rest = data.partition(b"\r\n\r\n")
    lines = head.decode().split("\r\n")
    found = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines[1:])}
    return int(lines[0].split()[1]), found, dechunked(rest) if "chunked" in found.get("transfer-encoding", "") else rest


def request_bytes(path: str, body: Any = None, **headers: str) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [f"{'GET' if body is None else 'POST'} {path} HTTP/1.1", "host: door"]
    lines += ["connection: close"]
    lines += ["content-type: application/json", f"content-length: {len(data)}"] if data else []
    lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
    return "\r\n".join([*lines, "", ""]).encode() + data


def dechunked(data: bytes) -> bytes:
    found = b""
    while data:
        size, _, data = data.partition(b"\r\n")
        if not size or int(size, 16) == 0:
            break
        found += data[: int(size, 16)]
        data = data[int(size, 16) + 2 :]
    return found


@dataclass
class Stream:
    """An answer as a client has it: every byte, and when it came."""

    body: dict[str, Any]
    path: str = "/v1/completions"
    streams: bool = True
    raw: bytes = b""
    status: int = 0
    head: bytes = b""
    """In small letters."""
    whole: bool = False
    """It was closed as it should be."""
    error: str = ""
    at: list[float] = field(default_factory=list)

    async def run(self, port: int, name: str = "") -> "Stream":
        reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 24)
        try:
            extra = {"x_request_id": name} if name else {}
            body = {**self.body, "stream": True} if self.streams else self.body
            writer.write(request_bytes(self.path, body, **extra))
            self.at.append(time.monotonic())
            head = self.head = (await reader.readuntil(b"\r\n\r\n")).lower()
            self.status = int(head.split()[1])
            if b"transfer-encoding: chunked" in head:
                await self._chunks(reader)
            else:
                length = int(head.split(b"content-length: ")[1].split()[0])
                self.raw = await reader.readexactly(length)
                self.whole = True
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            writer.close()
        return self

    async def _chunks(self, reader: asyncio.StreamReader) -> None:
        while size := int(await reader.readline(), 16):
            data = await reader.readexactly(size + 2)
            self.raw += data[:-2]
            if not data.startswith(b":"):
                self.at.append(time.monotonic())
        self.whole = True

    @property
    def events(self) -> Iterator[bytes]:
        return (event for event in self.raw.split(b"\n\n") if event and not event.startswith(b":"))

    @property
    def alike(self) -> dict[int, list[Any]]:
        """What has to be the same every time, by choice: between choices there is no order. What belongs to none is at
        -1. Only the moment of an answer's making and the names of its tool calls may be others.
        """
        found: dict[int, list[Any]] = {}
        for event in self.events if self.streams else [self.raw]:
            data = event.removeprefix(b"data: ")
            said: dict[str, Any] = {"done": 1} if data == b"[DONE]" else {**json.loads(data), "created": 0}
            choices = said.get("choices") or [{"index": -1}]
            for choice in choices:
                for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ():
                    call.pop("id", None)
            found.setdefault(choices[0]["index"], []).append(said)
        return found

    @property
    def gap_s(self) -> float:
        """The longest."""
        return max((b - a for a, b in pairwise(self.at)), default=0.0)
