"""Connections and their limits, with limits that a test can wait for."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import replace

import pytest

from reference_engine.api import error_body
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from sidecar.http.http_server import _home as home
from tests.reference_engine.serving import Client
from tests.support.waiting import DEADLINE_S

LIMITS = Limits(request_s=0.2, idle_s=DEADLINE_S, unread_bytes=1 << 20, linger_s=0.2)
"""A client on a busy machine may be long in saying its first word: only the test of that waits for the end of it."""


class Stage:
    """A server whose handler keeps what it is given, for the test to answer."""

    def __init__(self, limits: Limits = LIMITS) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self.thread.start()
        self.asked: Future[tuple[Request, Reply]] = Future()
        self.gone = threading.Event()
        self.server = HttpServer(self.loop, self._handle, error_body, limits)
        listener = socket.create_server(("127.0.0.1", 0))
        listener.setblocking(False)
        self.address = f"http://127.0.0.1:{listener.getsockname()[1]}"
        asyncio.run_coroutine_threadsafe(self.server.listen(listener), self.loop).result(DEADLINE_S)

    def _handle(self, request: Request, reply: Reply) -> None:
        reply.gone = self.gone.set
        self.asked.set_result((request, reply))

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.server.close)
        asyncio.run_coroutine_threadsafe(asyncio.sleep(0), self.loop).result(DEADLINE_S)  # its connections end, too
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join(DEADLINE_S)
        self.loop.close()


@pytest.fixture
def stage() -> Iterator[Stage]:
    stage = Stage()
    yield stage
    stage.close()


@pytest.mark.parametrize(
    "begun",
    [
        b"P",
        b"POST /v1/completions HTTP/1.1\r\nhost: a\r\n",
        b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 9\r\n\r\nabc",
    ],
)
def test_who_does_not_finish_its_request_is_told_so_and_loses_the_connection(stage: Stage, begun: bytes) -> None:
    with Client(stage.address) as client:
        client.say(begun)
        assert client.head()[0] == 408


def test_a_request_says_where_it_came_from(stage: Stage) -> None:
    with Client(stage.address) as client:
        client.say(b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
        assert stage.asked.result(DEADLINE_S)[0].peer == "127.0.0.1"


def test_who_drips_its_request_has_no_longer_than_who_stops(stage: Stage) -> None:
    with Client(stage.address) as client:
        stop = threading.Event()

        def drip() -> None:
            while not stop.wait(0.02):
                try:
                    client.say(b"a")
                except OSError:
                    return

        client.say(b"GET /")
        thread = threading.Thread(target=drip)
        thread.start()
        try:
            assert client.head()[0] == 408
        finally:
            stop.set()
            thread.join()


def test_a_connection_on_which_nothing_is_asked_ends() -> None:
    stage = Stage(replace(LIMITS, idle_s=0.3))
    with Client(stage.address) as client:
        assert client.ended() == b""
    stage.close()


def test_a_client_that_does_not_read_is_let_go(stage: Stage) -> None:
    with Client(stage.address) as client:
        client.request("/", method="GET")
        _, reply = stage.asked.result(DEADLINE_S)
        stage.loop.call_soon_threadsafe(lambda: reply.open(200))
        for _ in range(40):
            stage.loop.call_soon_threadsafe(reply.stream, b"x" * (1 << 20))
        assert stage.gone.wait(DEADLINE_S)
        stage.loop.call_soon_threadsafe(reply.stream, b"to none")


def test_an_answer_that_is_broken_off_does_not_look_complete(stage: Stage) -> None:
    with Client(stage.address) as client:
        client.request("/", method="GET")
        _, reply = stage.asked.result(DEADLINE_S)
        stage.loop.call_soon_threadsafe(lambda: reply.open(200))
        stage.loop.call_soon_threadsafe(reply.stream, b"data: 1\n\n")
        assert client.head()[0] == 200
        events = client.events()
        assert next(events) == 1
        stage.loop.call_soon_threadsafe(reply.abort)
        assert list(events) == []
        assert not client.ended().endswith(b"0\r\n\r\n")


def test_the_client_that_goes_is_noticed_while_its_answer_is_made(stage: Stage) -> None:
    with Client(stage.address) as client:
        client.request("/", method="GET")
        stage.asked.result(DEADLINE_S)
    assert stage.gone.wait(DEADLINE_S)


def test_of_ipv6_a_client_has_a_whole_network_and_of_ipv4_an_address() -> None:
    """What is held is counted for each: one client has as many addresses of IPv6 as it likes."""
    assert home("2001:db8::1") == home("2001:db8::ffff:2") != home("2001:db8:0:1::1")
    assert home("fe80::1%eth0") == home("fe80::2%eth0")
    assert home("::ffff:192.0.2.1") != home("::ffff:192.0.2.2")
    assert home("192.0.2.1") != home("192.0.2.2")
    assert home("unix") == "unix"
