"""A real gateway, in this process, in front of an engine whose queue of connections is full: what one request learns of
the engine counts for all others.
"""

import asyncio
import io
import json
import re
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gateway.rules import events as e
from gateway.rules.kinds import Kind
from gateway.shell.server import Gateway, Settings
from gateway.shell.upstream import Upstreams
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import Limits
from sidecar.terminal.logs import Log
from sidecar.wire.sockets import address_of
from tests.gateway import engine, liar
from tests.gateway.door import Stream
from tests.support.waiting import DEADLINE_S

BODY: dict[str, Any] = {"prompt": "The sea", "max_tokens": 8, "temperature": 0, "ignore_eos": True}


class Engine:
    """It accepts one connection, gives as many answers on it as it may, and lets no other one in."""

    def __init__(self, path: Path) -> None:
        self.answers = asyncio.Semaphore(0)
        self.full = asyncio.Event()
        self.asked = 0
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.setblocking(False)
        self._in_the_queue = socket.socket(socket.AF_UNIX)
        self._path = path
        with address_of(path) as address:
            self._listener.bind(address)
        self._listener.listen(0)

    async def serve(self) -> None:
        connection, _ = await asyncio.get_running_loop().sock_accept(self._listener)
        with address_of(self._path) as address:
            self._in_the_queue.connect(address)
        self.full.set()
        reader, out = await asyncio.open_connection(sock=connection)
        while True:
            head = (await reader.readuntil(b"\r\n\r\n")).decode()
            length = re.search(r"content-length: (\d+)", head)
            body = await reader.readexactly(int(length[1])) if length else b""
            self.asked += 1
            await self.answers.acquire()
            method, target, *_ = head.split()
            await liar.honest(out, engine.answer(method, target.encode(), [], body))

    def close(self) -> None:
        self._listener.close()
        self._in_the_queue.close()


async def until(condition: Callable[[], bool]) -> None:
    while not condition():
        await asyncio.sleep(0.002)


async def reaches_it_by_a_kept_connection(directory: Path) -> None:
    loop = asyncio.get_running_loop()
    it = Engine(directory / "engine.sock")
    settings = Settings((directory,), e.Bounds(), Limits(), access_log=False)
    gateway = Gateway(loop, settings, Log("gateway", stream=io.StringIO()))
    listener = socket.create_server(("127.0.0.1", 0))
    listener.setblocking(False)
    await gateway.http.listen(listener)
    port, machine = listener.getsockname()[1], gateway.pairs[0].machine
    serving = loop.create_task(it.serve())

    def client() -> asyncio.Task[Stream]:
        return loop.create_task(Stream(BODY, streams=False).run(port))

    try:
        gateway.pairs[0].feed(e.LockSeen("HELD", 1, 1, "a", f"unix:{directory / 'engine.sock'}"))
        clients = [client()]
        await it.full.wait()
        clients.append(client())
        await until(lambda: machine.admission.visitors.waiting == 1)  # it was refused, and waits to be tried alone
        it.answers.release()
        await until(lambda: it.asked == 2)  # on the connection of the first
        clients.append(client())
        grant = machine.admission.grants.current
        assert grant is not None
        await until(lambda: len(grant.requests) == 2)  # it is admitted while the second has no answer yet
        it.answers.release()
        it.answers.release()
        assert [(await one).status for one in clients] == [200, 200, 200]
    finally:
        serving.cancel()
        gateway.close()
        it.close()


def test_one_that_is_asked_for_on_a_kept_connection_shows_that_the_engine_is_reached(tmp_path: Path) -> None:
    asyncio.run(asyncio.wait_for(reaches_it_by_a_kept_connection(tmp_path), DEADLINE_S))


async def is_made_too_late() -> bytes:
    """What the engine reads of a connection that was being made when its token was forgotten."""
    loop = asyncio.get_running_loop()
    read: asyncio.Future[bytes] = loop.create_future()

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            read.set_result(await reader.read())
        except ConnectionResetError:
            read.set_result(b"")
        writer.close()

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    upstreams = Upstreams(loop, lambda event: None)
    try:
        upstreams.look(e.Look(7, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"))
        upstreams.forget(7)
        return await read
    finally:
        upstreams.close()
        server.close()


def test_a_connection_that_is_made_after_its_token_was_forgotten_is_closed_again() -> None:
    assert asyncio.run(asyncio.wait_for(is_made_too_late(), DEADLINE_S)) == b""


async def heard_of_two_answers_at_once(second: bytes) -> tuple[list[e.Event], int]:
    """What is told of an engine that says more behind its answer, and how often it was connected to."""
    loop = asyncio.get_running_loop()
    told: list[e.Event] = []
    connections = 0

    async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal connections
        connections += 1
        while await reader.readline():
            await reader.readuntil(b"\r\n\r\n")
            writer.write(b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\ngood" + second)

    server = await asyncio.start_server(accept, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    upstreams = Upstreams(loop, told.append)
    try:
        for number in (1, 2):
            upstreams.ask(e.Ask(number, 1, 7, url, "GET", b"/", [(b"host", b"x")], b"", True))
            await until(lambda: sum(isinstance(event, e.Heard | e.Broke) for event in told) == number)  # noqa: B023
    finally:
        upstreams.close()
        server.close()
    return [event for event in told if isinstance(event, e.Heard | e.Broke)], connections


@pytest.mark.parametrize("second", [b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nevil", b"no HTTP at all\r\n"])
def test_what_comes_with_an_answers_end_is_not_passed_on(second: bytes) -> None:
    told, connections = asyncio.run(asyncio.wait_for(heard_of_two_answers_at_once(second), DEADLINE_S))
    assert [event.data for event in told if isinstance(event, e.Heard)] == [b"good", b"good"], told
    assert connections == 2, "a connection on which more was said isn't used again"


def test_one_connection_has_answer_after_answer() -> None:
    told, connections = asyncio.run(asyncio.wait_for(heard_of_two_answers_at_once(b""), DEADLINE_S))
    assert len(told) == 2 and all((isinstance(event, e.Heard) and event.ended) for event in told) and connections == 1


Take = Callable[[dict[str, Any], e.Headers], Kind]


@pytest.fixture
def taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Take]:
    """What a gateway takes of a request for its pair."""
    loop = asyncio.new_event_loop()
    settings = Settings((tmp_path,), e.Bounds(), Limits(), access_log=False)
    gateway = Gateway(loop, settings, Log("gateway", stream=io.StringIO()))
    kinds: list[Kind] = []
    monkeypatch.setattr(gateway.pairs[0], "take", lambda kind, *_: kinds.append(kind))

    def take(body: dict[str, Any], headers: e.Headers) -> Kind:
        reply = Reply(Silent(), chunked=True, headless=False, keeps=True)
        gateway.handle(Request("POST", b"/v1/completions", list(headers), json.dumps(body).encode(), "x"), reply)
        return kinds.pop()

    yield take
    loop.close()


def test_who_gives_no_seed_gets_one_of_its_own_each_time(taken: Take) -> None:
    """The same seed for all would be the same answer for all who sample."""
    sampled = {**BODY, "temperature": 1.0, "presence_penalty": 0.5, "stream": True}
    first, second = (json.loads(taken(sampled, []).body)["seed"] for _ in range(2))
    assert first != second


def test_what_a_client_says_to_this_connection_alone_goes_no_further(taken: Take) -> None:
    headers = [(b"connection", b"Keep-Alive, X-One"), (b"connection", b"x-two"), (b"keep-alive", b"5")]
    headers += [(b"x-one", b"1"), (b"x-two", b"2"), (b"x-three", b"3")]
    assert [name for name, _ in taken(BODY, headers).headers] == [b"x-three", b"host", b"x-request-id"]


class Silent:
    """A client's connection to which nothing is said."""

    unsent = 0

    def write(self, reply: Reply, data: bytes) -> None:
        raise AssertionError(data)

    def answered(self, reply: Reply) -> None:
        raise AssertionError("answered")

    def break_off(self, reply: Reply) -> None:
        raise AssertionError("broken off")
