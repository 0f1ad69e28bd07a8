"""The program in a requester's pod, as a process, between an instance and its client."""

import asyncio
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dual_pods.rules.standing import Standing, Target
from dual_pods.shell import requester
from dual_pods.shell.requester import Requester
from sidecar.terminal.logs import Log
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S, NEVER_S, until

IP = f"127.{70 + os.getpid() % 50_000 // 250}.{os.getpid() % 250}.1"


@dataclass
class Instance:
    """Answers `/ready`, and keeps any other connection for the test to read and write."""

    listener: socket.socket = field(default_factory=lambda: socket.create_server(("127.0.0.1", 0)))
    taken: list[socket.socket] = field(default_factory=list)
    busy_s: float = 0.0
    asked: int = 0
    status: str = "200 OK"

    def serve(self) -> None:
        while True:
            try:
                connection, _ = self.listener.accept()
            except OSError:
                return
            connection.settimeout(DEADLINE_S)
            if connection.recv(10, socket.MSG_PEEK).startswith(b"GET /ready"):
                time.sleep(self.busy_s)
                with suppress(OSError):
                    head = f"HTTP/1.1 {self.status}\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
                    connection.sendall(head.encode())
                connection.close()
                self.asked += 1
            else:
                self.taken.append(connection)

    @property
    def port(self) -> int:
        return int(self.listener.getsockname()[1])


def _ask(method: str, port: int, path: str, body: object = None) -> int:
    return _send(method, port, path, json.dumps(body) if body is not None else None)


def _send(method: str, port: int, path: str, body: str | None) -> int:
    connection = http.client.HTTPConnection(IP, port, timeout=DEADLINE_S)
    with closing(connection):
        connection.request(method, path, body)
        return connection.getresponse().status


def _is_ready() -> bool:
    try:
        return _ask("GET", 8080, "/ready") == 200
    except ConnectionRefusedError:
        return False


@contextmanager
def _serving(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], Instance]]:
    """A requester that is ready, and the instance that it leads to."""
    command = [sys.executable, "-m", "dual_pods.cli.requester", "--host", IP, "--accelerators", "0", *words]
    instance = Instance()
    serving = threading.Thread(target=instance.serve, daemon=True)
    serving.start()
    few = ["sh", "-c", 'ulimit -Sn 256 && exec "$@"', "sh"]  # as containers begin, with more to be had for the asking
    process = subprocess.Popen([*few, *command, "--relay-port", "8000"], cwd=ROOT, stderr=subprocess.DEVNULL)
    try:
        until(_answers, "it listens")
        where = {
            "url": f"http://127.0.0.1:{instance.port}/ready",
            "host": "127.0.0.1",
            "port": instance.port,
            "token": 7,
        }
        assert _ask("POST", 8081, "/v1/become-ready", where) == 200
        until(_is_ready, "it is ready")
        yield process, instance
    finally:
        process.kill()
        process.wait()
        instance.listener.shutdown(socket.SHUT_RDWR)  # the thread waits in accept(), which no close ends
        serving.join()
        for each in (instance.listener, *instance.taken):
            each.close()


def _answers() -> bool:
    try:
        return _ask("GET", 8080, "/live") == 200
    except ConnectionRefusedError:
        return False


def _ends_that_are_probed() -> int:
    """Clients' connections whose timer is the one of keep-alives, as the kernel says."""
    there = f"{socket.inet_aton(IP)[::-1].hex().upper()}:{8000:04X}"
    lines = Path("/proc/net/tcp").read_text().splitlines()
    return sum(words[1] == there and words[5].startswith("02:") for words in map(str.split, lines))


def _connect(instance: Instance, says: bytes) -> tuple[socket.socket, socket.socket]:
    """A client's end, and the instance's, which has heard it."""
    before = len(instance.taken)
    client = socket.create_connection((IP, 8000), timeout=DEADLINE_S)
    client.sendall(says)
    until(lambda: len(instance.taken) > before, "the instance is reached")
    assert instance.taken[-1].recv(100) == says
    return client, instance.taken[-1]


def test_the_controller_may_say_that_its_pod_ends_before_kubelet_does() -> None:
    with _serving() as (process, instance):
        client, far = _connect(instance, b"a question")
        with client:
            assert _ask("POST", 8081, "/v1/become-unready", {"token": 7, "ends": True}) == 200 and not _is_ready()
            far.sendall(b"one")
            assert client.recv(10) == b"one"
            process.send_signal(signal.SIGTERM)
            far.sendall(b"two")
            assert client.recv(10) == b"two"
            far.close()
            assert client.recv(10) == b""
        assert process.wait(DEADLINE_S) == 0


def test_told_to_end_it_is_unready_at_once_and_what_is_open_is_answered_to_its_end() -> None:
    with _serving() as (process, instance):
        client, far = _connect(instance, b"a question")
        with client:
            process.send_signal(signal.SIGTERM)
            until(lambda: not _is_ready(), "it is unready")
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection((IP, 8000), timeout=DEADLINE_S)
            for part in (b"one", b"two"):
                far.sendall(part)
                assert client.recv(10) == part
            client.sendall(b"more")
            assert far.recv(10) == b"more", "it is still bound"
            assert _ask("POST", 8081, "/v1/become-unready", {"token": 7}) == 200
            client.sendall(b"the next question, which would wake the instance")
            far.sendall(b"three")
            assert client.recv(10) == b"three" and process.poll() is None
            far.settimeout(0.2)
            with pytest.raises(TimeoutError):
                far.recv(10)
            far.close()
            assert client.recv(10) == b""
        assert process.wait(DEADLINE_S) == 0


def test_it_is_told_at_the_admin_port_alone_and_what_is_no_word_for_it_changes_nothing() -> None:
    """Of a pod that had its address before, say: it would lead to another model, or be unready for ever, for the
    controller believes that it told another one.
    """
    with _serving("--metrics-port", "8083", "--pod-uid", "me"):
        for port in (8080, 8083):
            assert _ask("POST", port, "/v1/become-unready", {"token": 99}) == 404 and _is_ready()
        connection = http.client.HTTPConnection(IP, 8083, timeout=DEADLINE_S)
        with closing(connection):
            connection.request("GET", "/metrics")
            assert b"\ndual_pods_requester_ready 1\n" in connection.getresponse().read()
        for body in ("[]", '{"token": "7"}', '{"else": ' + "[" * 7000 + "]" * 7000 + "}"):
            assert _send("POST", 8081, "/v1/become-ready", body) == 400 and _is_ready()
        for pod, status in (("other", 421), ("me", 200), ("", 200)):
            assert _ask("POST", 8081, "/v1/become-ready", {"token": 7, "pod": pod}) == status
            assert _ask("POST", 8081, "/v1/become-unready", {"token": 7, "pod": pod}) == status
            assert _is_ready() == (status == 421)


def test_that_its_instance_isn_t_awake_is_for_the_instance_to_say() -> None:
    with _serving() as (_, instance):
        client, far = _connect(instance, b"GET /v1/models")
        assert _ask("POST", 8081, "/v1/become-unready", {"token": 7, "stays": True}) == 200 and _is_ready()
        far.sendall(b"it goes on")
        assert client.recv(100) == b"it goes on"
        elsewhere = {"token": 7, "stays": True, "host": "127.0.0.2"}
        assert _ask("POST", 8081, "/v1/become-unready", elsewhere) == 200 and not _is_ready()
        assert client.recv(100) == b"", "another model may have that address now"
        client.close()


@pytest.mark.parametrize("answered", [False, True])
def test_its_grace_is_the_longest_that_it_goes_on(answered: bool) -> None:
    with _serving("--grace-s", "0.5") as (process, instance):
        client, far = _connect(instance, b"a question")
        with client:
            if answered:
                far.sendall(b"an answer that goes on")
                assert client.recv(100)
            began = time.monotonic()
            process.send_signal(signal.SIGTERM)
            assert process.wait(DEADLINE_S) == 0 and time.monotonic() - began >= 0.5
            assert client.recv(10) == b""


def test_it_ends_at_once_where_nothing_is_open_and_a_connection_that_is_kept_for_later_isn_t() -> None:
    with _serving() as (process, instance):
        client, far = _connect(instance, b"a question")
        with client:
            far.sendall(b"an answer")
            assert client.recv(10)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0, "it was quiet for less than its grace"
    with _serving() as (process, _):
        process.send_signal(signal.SIGTERM)
        assert process.wait(20) == 0


def test_its_ports_lead_to_an_instance_that_is_away_and_not_to_another_one_that_has_that_port() -> None:
    """A pool's door that begins anew may give it to another model, and no controller be there to say so."""
    with _serving() as (_, instance):
        instance.status = "503 Service Unavailable"
        until(lambda: not _is_ready(), "its engine has died")
        _connect(instance, b"this waits at its pool's door")[0].close()
        instance.status = "404 Not Found"
        until(lambda: _is_elsewhere(instance), "it has heard whose port that is")
        instance.status = "200 OK"
        until(_is_ready, "it is its own again")
        _connect(instance, b"and leads there")[0].close()


def _is_elsewhere(instance: Instance) -> bool:
    before = len(instance.taken)
    with socket.create_connection((IP, 8000), timeout=DEADLINE_S) as client, suppress(ConnectionResetError):
        client.sendall(b"a question")
        client.settimeout(NEVER_S)
        with suppress(TimeoutError):
            return client.recv(10) == b"" and len(instance.taken) == before
    return False


def test_an_instance_that_is_too_busy_for_two_seconds_to_say_that_it_is_ready_is_it() -> None:
    """A single one behind a Service that was unready then left its clients without any."""
    with _serving() as (_, instance):
        instance.busy_s, asked = 2.0, instance.asked
        while instance.asked < asked + 2:
            assert _is_ready()
            time.sleep(0.02)


def test_those_that_say_nothing_keep_none_out_and_those_that_have_spoken_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(requester, "RELAYS_MOST", 3)

    async def run() -> None:
        async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            while data := await reader.read(100):
                writer.write(data)
            writer.close()

        far, it = await asyncio.start_server(answer, "127.0.0.1", 0), Requester(list, dict, "", Log("test"))
        it.standing = Standing(Target(host="127.0.0.1", port=far.sockets[0].getsockname()[1]), ready=True)
        await it.relay(("127.0.0.1", 0))
        where = it._relays[0].sockets[0].getsockname()
        clients = [await asyncio.open_connection(*where) for _ in range(3)]

        async def says(number: int) -> bytes:
            clients[number][1].write(b"word")
            return await clients[number][0].read(100)

        assert await says(0) == b"word"
        clients.append(await asyncio.open_connection(*where))
        assert await clients[3][0].read() == b"", "there is no room yet: the silent ones may be about to speak"
        monkeypatch.setattr(requester, "QUIET_S", 0.0)
        clients.append(await asyncio.open_connection(*where))
        assert await says(4) == b"word" and await says(0) == b"word" and await clients[1][0].read() == b""
        assert await says(2) == b"word", "one is enough"
        await it.end(0)
        for _, writer in clients:
            writer.close()
        far.close()

    asyncio.run(run())


def test_many_that_come_at_once_are_let_in_and_led_on() -> None:
    """Behind a hundred others a client would come again after a second, and each of them takes two descriptors."""
    with _serving() as (process, instance), ExitStack() as stack:
        process.send_signal(signal.SIGSTOP)
        clients = [stack.enter_context(socket.create_connection((IP, 8000), timeout=NEVER_S)) for _ in range(200)]
        process.send_signal(signal.SIGCONT)
        for client in clients:
            client.sendall(b"a question")
        until(lambda: len(instance.taken) == 200, "the instance is reached by each")
        assert _ends_that_are_probed() >= 200, "a client that vanished without a word would stay for ever"
        for far in instance.taken:
            far.sendall(b"an answer")
        for client in clients:
            client.settimeout(DEADLINE_S)
            assert client.recv(100) == b"an answer"
        assert _is_ready()
