"""The small HTTP port over real sockets: what it answers, and what no client can do to it or to the others."""

import contextlib
import gc
import http.client
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator

import pytest

from sidecar.http import http_port
from sidecar.http.http_port import JSON, CannotListen, HttpPort, MakePage, Page, text
from sidecar.http.http_server import HttpServer
from sidecar.machine.loop import Loop
from tests.support.waiting import DEADLINE_S, until

LARGE = b"0123456789abcdef" * (1 << 20)


class Turning:
    """A loop that turns in a thread, and a port in it."""

    def __init__(
        self, pages: dict[str, MakePage], slow: dict[str, MakePage] | None = None, host: str = "127.0.0.1"
    ) -> None:
        self.loop = Loop()
        self.port = HttpPort((host, 0), self.loop, pages, slow)
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self.loop.add(self._bell, lambda _: setattr(self.loop, "stopping", "told"))
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()

    def _turn(self) -> None:
        while not self.loop.stopping:
            for fd, what in self.loop.poll():
                handler = self.loop.handlers.get(fd)
                if handler is not None:
                    handler(what)

    def close(self) -> None:
        os.eventfd_write(self._bell, 1)
        self._thread.join(DEADLINE_S)
        assert not self._thread.is_alive(), "the loop doesn't turn any more"
        self.port.close()

    def connect(self) -> socket.socket:
        return socket.create_connection(self.port.address, DEADLINE_S)

    def ask(self, path: str, method: str = "GET", body: bytes | None = None) -> tuple[int, str, bytes]:
        connection = http.client.HTTPConnection(*self.port.address, timeout=DEADLINE_S)
        with contextlib.closing(connection):
            connection.request(method, path, body)
            answer = connection.getresponse()
            return answer.status, answer.getheader("Content-Type") or "", answer.read()


Start = Callable[..., Turning]


@pytest.fixture
def start() -> Iterator[Start]:
    running: list[Turning] = []

    def begin(*arguments: object, **named: object) -> Turning:
        running.append(Turning(*arguments, **named))  # type: ignore[arg-type]
        return running[-1]

    yield begin
    for turning in running:
        turning.close()


def whole(sock: socket.socket) -> bytes:
    data = b""
    while more := sock.recv(1 << 20):
        data += more
    return data


# -- what it answers ---------------------------------------------------------------------------------------------------


def test_each_page_is_at_its_path_and_live_is_always_there(start: Start) -> None:
    turning = start({"/state": lambda: Page(b"{}", kind=JSON), "/ready": lambda: text("not yet", 503)})
    assert turning.ask("/live") == (200, http_port.TEXT, b"alive\n")
    assert turning.ask("/state?pretty=1") == (200, JSON, b"{}")
    assert turning.ask("/ready")[::2] == (503, b"not yet\n")
    assert turning.ask("/state", "HEAD")[::2] == (200, b"")
    assert turning.ask("/nothing")[::2] == (404, b"there are /live, /ready, /state\n")


def test_a_programs_own_live_takes_the_place_of_ours(start: Start) -> None:
    assert start({"/live": lambda: text("stalled", 503)}).ask("/live")[0] == 503


def test_nothing_but_get_and_head_is_answered_and_what_a_client_sends_with_it_takes_no_answer_away(
    start: Start,
) -> None:
    turning = start({})
    for method in ("POST", "PUT", "DELETE", "OPTIONS"):
        assert turning.ask("/live", method, b"x" * 200_000)[0] == 405


@pytest.mark.parametrize("slow", [False, True])
def test_a_page_that_cant_be_made_costs_one_answer_and_is_made_again_next_time(start: Start, slow: bool) -> None:
    moods = iter([RuntimeError("no figures today"), None])

    def moody() -> Page:
        mood = next(moods)
        if mood is not None:
            raise mood
        return text("well")

    turning = start({}, {"/metrics": moody}) if slow else start({"/metrics": moody})
    assert turning.ask("/metrics")[::2] == (500, b"RuntimeError: no figures today\n")
    assert turning.ask("/metrics")[::2] == (200, b"well\n")


# -- where it listens --------------------------------------------------------------------------------------------------


def test_without_a_host_it_is_reached_by_ipv4_and_by_ipv6(start: Start) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    turning = start({}, None, "")
    port = turning.port.address[1]
    for host in ("127.0.0.1", "::1"):
        with socket.create_connection((host, port), DEADLINE_S) as client:
            client.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert whole(client).startswith(b"HTTP/1.1 200 OK"), host


def test_where_no_process_can_listen_is_said_with_the_address(start: Start) -> None:
    taken = start({}).port.address[1]
    with pytest.raises(CannotListen, match=f"^can't listen on 127.0.0.1:{taken}: Address already in use$"):
        HttpPort(("127.0.0.1", taken), Loop(), {})
    with pytest.raises(CannotListen, match=r"^can't listen on nowhere\.invalid:0: "):
        HttpPort(("nowhere.invalid", 0), Loop(), {})


# -- what no client can do ---------------------------------------------------------------------------------------------


def test_a_client_that_says_nothing_is_let_go(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_port, "EXCHANGE_S", 0.05)
    turning = start({})
    with turning.connect() as silent:
        silent.sendall(b"GET /liv")
        assert whole(silent).startswith(b"HTTP/1.1 408 ")
    assert turning.ask("/live")[0] == 200


def test_when_too_many_are_there_the_one_that_came_first_goes(start: Start) -> None:
    turning = start({})
    with contextlib.ExitStack() as kept:
        clients = [kept.enter_context(turning.connect()) for _ in range(http_port.CLIENTS_MOST + 3)]
        for client in clients[:3]:
            assert client.recv(1) == b""
        for client in (clients[3], clients[-1]):
            client.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
            assert whole(client).startswith(b"HTTP/1.1 200 OK")
    assert turning.ask("/live")[0] == 200


def test_a_request_without_end_is_answered_and_let_go(start: Start) -> None:
    with start({}).connect() as client, contextlib.suppress(BrokenPipeError, ConnectionResetError):
        client.sendall(b"GET /live HTTP/1.1\r\nX: " + b"x" * (http_port.HEAD_BYTES_MOST + 1000))
        assert whole(client).startswith(b"HTTP/1.1 431 ")


def test_a_client_that_never_stops_sending_is_let_go(start: Start) -> None:
    with start({}).connect() as client, pytest.raises((BrokenPipeError, ConnectionResetError)):
        client.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        while True:
            client.sendall(b"x" * 65536)


def test_a_client_that_reads_slowly_holds_up_no_other_and_gets_every_byte(start: Start) -> None:
    turning = start({"/large": lambda: Page(LARGE)})
    with turning.connect() as slow:
        slow.sendall(b"GET /large HTTP/1.1\r\nhost: x\r\n\r\n")
        assert slow.recv(8) == b"HTTP/1.1"
        for _ in range(3):
            assert turning.ask("/live")[0] == 200
        assert whole(slow).partition(b"\r\n\r\n")[2] == LARGE


def test_clients_that_leave_at_any_moment_harm_no_other(start: Start) -> None:
    turning = start({"/large": lambda: Page(LARGE)})
    rest = b" HTTP/1.1\r\nhost: x\r\n\r\n"
    for request in (b"", b"GET", b"GET /large" + rest, b"GET /nothing" + rest):
        for reset in (False, True):
            with turning.connect() as client:
                client.sendall(request)
                if reset:  # no farewell, and what is unread is lost
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    assert turning.ask("/live")[0] == 200


def test_when_there_is_no_descriptor_left_it_waits_a_moment_and_listens_again() -> None:
    program = """
import os, resource, socket, threading, time
from sidecar.http import http_port
from sidecar.machine.loop import Loop
loop = Loop()
port = http_port.HttpPort(("127.0.0.1", 0), loop, {})
def turn():
    while True:
        for fd, what in loop.poll():
            handler = loop.handlers.get(fd)
            handler and handler(what)
def ask():
    client = socket.create_connection(port.address, 60)
    client.sendall(b"GET /live HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
    return client
def has(port):  # the server has a descriptor of the connection from that port
    rows = [line.split() for line in open("/proc/net/tcp")][1:]
    return any(int(row[2].split(":")[1], 16) == port and row[9] != "0" for row in rows)
threading.Thread(target=turn, daemon=True).start()
first = ask()
first.recv(1)
from_port = first.getsockname()[1]
first.close()
while has(from_port):
    time.sleep(0.01)
client = socket.create_connection(port.address, 60)
client.sendall(b"GET /live")  # and no more: it keeps its connection
while not has(client.getsockname()[1]):
    time.sleep(0.01)
spare = socket.socket()
resource.setrlimit(resource.RLIMIT_NOFILE, (spare.fileno() + 1, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
late, began = socket.socket(fileno=spare.detach()), time.process_time()
late.connect(port.address)
late.sendall(b"GET /live HTTP/1.1\\r\\nhost: x\\r\\n\\r\\n")
late.settimeout(1.5)  # deaf, awake, deaf ...
try:
    print("none could answer", late.recv(15))
except TimeoutError:
    pass
assert time.process_time() - began < 0.6, "it keeps a processor busy"
client.close()
late.settimeout(60)
print(late.recv(15).decode(), flush=True)
os._exit(0)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "HTTP/1.1 200 OK\n", done.stderr


# -- slow pages --------------------------------------------------------------------------------------------------------


class Slow:
    """A page that is made when the test says so."""

    def __init__(self) -> None:
        self.begun = 0
        self.go = threading.Semaphore(0)
        self.began = threading.Semaphore(0)

    def __call__(self) -> Page:
        self.begun += 1
        number = self.begun
        self.began.release()
        assert self.go.acquire(timeout=DEADLINE_S)
        return text(str(number))


def test_a_slow_page_holds_up_no_other_and_who_comes_later_gets_a_later_one(start: Start) -> None:
    slow = Slow()
    turning = start({}, {"/metrics": slow})
    with turning.connect() as first, turning.connect() as second, turning.connect() as third:
        first.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        assert slow.began.acquire(timeout=DEADLINE_S)
        for client in (second, third):
            client.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        assert turning.ask("/live")[0] == 200
        slow.go.release()
        assert whole(first).endswith(b"\r\n1\n")
        slow.go.release()
        assert whole(second).endswith(b"\r\n2\n") and whole(third).endswith(b"\r\n2\n")
    assert slow.begun == 2


def test_a_client_that_leaves_before_its_slow_page_is_made_harms_no_other(start: Start) -> None:
    slow = Slow()
    turning = start({}, {"/metrics": slow})
    with turning.connect() as client:
        client.sendall(b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n")
        assert slow.began.acquire(timeout=DEADLINE_S)
        client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
    slow.go.release()
    slow.go.release()
    assert turning.ask("/metrics")[0] == 200


# -- at rest -----------------------------------------------------------------------------------------------------------


def test_until_a_client_comes_there_is_no_thread_and_nothing_of_http_is_loaded() -> None:
    program = """
import sys, threading
from sidecar.http import http_port
from sidecar.machine.loop import Loop
port = http_port.HttpPort(("127.0.0.1", 0), Loop(), {})
print(threading.active_count(), [name for name in ("asyncio", "httptools") if name in sys.modules])
port.close()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    assert done.stdout == "1 []\n", done.stderr


def test_at_rest_no_timer_runs_and_nothing_is_left_of_its_clients(start: Start) -> None:
    turning = start({})
    assert turning.ask("/live")[0] == 200
    server = next(it for it in gc.get_objects() if isinstance(it, HttpServer) and not it.closing)
    before = len(turning.loop.handlers)
    with turning.connect(), turning.connect() as client:
        client.sendall(b"GET /live HTTP/1.1\r\nhost: x\r\n\r\n")
        assert whole(client)
        assert server.sweep is not None
    until(lambda: not server.connections and server.sweep is None, "its clients are forgotten, and no timer runs")
    assert len(turning.loop.handlers) == before
