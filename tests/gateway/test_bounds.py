"""What clients can make a real door hold, and for how long: bodies, keys, clients that have left or never read."""

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from functools import partial
from pathlib import Path

import pytest

from tests.engine.shims import House, Program
from tests.gateway.door import GatewayProgram, ask, exchanged, request_bytes
from tests.support.processes import resident
from tests.support.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("gateway/bounds")]  # one house for all of them
MIB = 1 << 20


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    here = House(Path(tmp_path_factory.mktemp("bounds")))
    here.start_lock("--memory", "none", "--grant-unproven")
    here.add(Program(here, "lies", "tests.gateway.liar", str(here.run_dir), "lies"))
    yield here
    here.close()


@pytest.fixture(scope="module")
def door(house: House) -> GatewayProgram:
    """One without flags, for tests that look at no memory."""
    return GatewayProgram(house).serving()


def upload(port: int, size: int, *lines: str, of: int = 60 * MIB, host: str = "127.0.0.1") -> socket.socket:
    """A request whose body never comes to its end."""
    sock = socket.create_connection(("127.0.0.1", port), DEADLINE_S, source_address=(host, 0))
    head = "\r\n".join(["POST /v1/completions HTTP/1.1", "host: x", f"content-length: {of}", *lines, "", ""])
    sock.sendall(head.encode())
    with suppress(OSError):  # it is refused meanwhile; what was said about it can still be read
        for _ in range(size // MIB):
            sock.sendall(bytes(MIB))
    return sock


def holds_nothing(door: GatewayProgram) -> bool:
    """But the request that asks it."""
    return bool(door.state()["held_bytes"] < 1 << 14)


def status_of(sock: socket.socket) -> int:
    sock.settimeout(DEADLINE_S)
    return int(sock.recv(65536).split()[1])


def test_unfinished_uploads_take_no_more_memory_in_the_fourth_wave_than_in_the_first(house: House) -> None:
    door = GatewayProgram(house, name="waves").serving()
    seen = []
    for _ in range(4):
        with ExitStack() as wave:
            for _ in range(4):
                wave.enter_context(upload(door.port, 40 * MIB))
            until(lambda: door.state()["held_bytes"] >= 160 * MIB, "all of it is here")
        until(lambda: holds_nothing(door) and door.state()["connections"] <= 1, "all of them have gone")
        seen.append(resident(door.pid) // MIB)
    print(f"after each wave it has {seen} MiB")
    assert max(seen) < 160, "what a client sent has gone with its connection"
    door.kill()


def test_a_body_in_tiny_pieces_takes_what_is_counted(house: House) -> None:
    door = GatewayProgram(house, name="pieces").serving()
    before = resident(door.pid)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
    with socket.create_connection(("127.0.0.1", door.port), DEADLINE_S) as sock:
        sock.sendall(head + b"2\r\nab\r\n" * (2 * MIB))
        until(lambda: door.state()["held_bytes"] >= 4 * MIB, "all of it is here")
        taken = resident(door.pid) - before
    assert taken < 40 * MIB, f"4 MiB of a body take {taken // MIB} MiB"
    door.kill()


def test_a_request_that_is_answered_takes_what_is_counted_and_nothing_when_its_client_has_gone(house: House) -> None:
    door = GatewayProgram(house, name="whole").serving()
    before = resident(door.pid)
    body = {"prompt": "fault:silent " + "x" * 20 * MIB, "stream": True}
    with ExitStack() as crowd:
        for count in range(1, 5):
            sock = crowd.enter_context(socket.create_connection(("127.0.0.1", door.port), DEADLINE_S))
            sock.sendall(request_bytes("/v1/completions", body))
            until(lambda count=count: door.state()["in_flight"] == count, "the engine has it")  # type: ignore[misc]
        held, taken = door.state()["held_bytes"], resident(door.pid) - before
    assert held >= 80 * MIB and taken < held * 1.4, f"{held // MIB} MiB are counted, {taken // MIB} MiB taken"
    until(lambda: door.state()["in_flight"] == 0 and holds_nothing(door), "all of them have gone")
    assert resident(door.pid) - before < 40 * MIB
    door.kill()


def test_requests_behind_one_that_is_being_answered_are_held_within_the_bound(house: House) -> None:
    door = GatewayProgram(house, "--max-client-bodies", "8MiB", "--max-body", "1MiB", name="behind").serving()
    before = resident(door.pid)
    one = request_bytes("/v1/completions", {"prompt": "fault:silent"}).replace(b"connection: close\r\n", b"")
    more = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n" * 50_000
    with ExitStack() as some:
        for _ in range(20):
            sock = some.enter_context(socket.create_connection(("127.0.0.1", door.port), DEADLINE_S))
            with suppress(OSError):
                sock.sendall(one + more)
            assert door.state()["held_bytes"] <= 9 * MIB
        assert ask(door.port, "/ready")[0] == 200, "what the door says itself it always says"
        assert resident(door.pid) - before < 64 * MIB
    door.kill()


def test_without_a_key_nothing_of_a_body_is_read(house: House, tmp_path: Path) -> None:
    (tmp_path / "keys").write_text("right\nother\n")
    door = GatewayProgram(house, "--api-keys", str(tmp_path / "keys"), name="keyless").serving()
    for lines in ((), ("authorization: Bearer wrong",)):
        with upload(door.port, 0, *lines) as sock:
            assert status_of(sock) == 401, "at once, and not when the body is whole"
    with ExitStack() as crowd:
        for _ in range(18):
            crowd.enter_context(upload(door.port, 4 * MIB))
        assert holds_nothing(door)
        body = {"prompt": "hello", "max_tokens": 1}
        assert ask(door.port, "/v1/completions", body, authorization="Bearer right")[0] == 200
    with upload(door.port, 0, of=MIB) as sock:
        assert status_of(sock) == 401
    door.kill()


def test_without_a_key_a_connection_that_does_not_read_takes_next_to_nothing(house: House, tmp_path: Path) -> None:
    """What the door answers itself needs no key; what is sent behind it was held, or was not even counted."""
    (tmp_path / "keys").write_text("right\n")
    door = GatewayProgram(house, "--api-keys", str(tmp_path / "keys"), name="unread").serving()
    own = b"GET /metrics HTTP/1.1\r\nhost: x\r\n\r\n"
    before = resident(door.pid)
    with ExitStack() as crowd:
        for number in range(40):
            sock = crowd.enter_context(socket.socket())
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            sock.settimeout(DEADLINE_S)
            sock.connect(("127.0.0.1", door.port))
            with suppress(OSError):
                sock.sendall(own * (20_000 if number % 2 else 50))
                sock.sendall(bytes(4 * MIB))
        held, taken = door.state()["held_bytes"], resident(door.pid) - before
    assert held < 4 * MIB and taken < 24 * MIB, f"{held // MIB} MiB are counted, {taken // MIB} MiB taken"
    door.kill()


@pytest.mark.parametrize("path", ["/ready", "/metrics"])
def test_what_the_door_answers_itself_takes_no_body(door: GatewayProgram, path: str) -> None:
    with socket.create_connection(("127.0.0.1", door.port), DEADLINE_S) as sock:
        sock.sendall(f"GET {path} HTTP/1.1\r\nhost: x\r\ncontent-length: {60 * MIB}\r\n\r\n".encode())
        assert status_of(sock) == 413


def test_one_client_can_hold_only_its_part(house: House, tmp_path: Path) -> None:
    """Told apart by their keys, where there are keys, and by their addresses where there are none."""
    (tmp_path / "keys").write_text("one\ntwo\n")
    bounds = ("--max-bodies", "16MiB", "--max-client-bodies", "8MiB", "--max-body", "6MiB")
    keyed = GatewayProgram(house, *bounds, "--api-keys", str(tmp_path / "keys"), name="keyed").serving()
    open_door = GatewayProgram(house, *bounds, name="addresses").serving()

    def greedy(door: GatewayProgram, *lines: str) -> None:
        first = upload(door.port, 5 * MIB, *lines, of=6 * MIB)
        until(lambda: door.state()["held_bytes"] >= 5 * MIB, "the first is held")
        second = upload(door.port, 5 * MIB, *lines, of=6 * MIB)
        assert status_of(second) == 429
        stay.enter_context(first)
        second.close()

    body = {"prompt": "x" * 4 * MIB, "max_tokens": 1}
    with ExitStack() as stay:
        greedy(keyed, "authorization: Bearer one")
        assert ask(keyed.port, "/v1/completions", body, authorization="Bearer two")[0] in (200, 400)
        greedy(open_door)
        with upload(open_door.port, 5 * MIB, of=6 * MIB, host="127.0.0.2") as other:
            until(lambda: open_door.state()["held_bytes"] >= 10 * MIB, "another address has its own part")
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.recv(1)
    for door in (keyed, open_door):
        until(partial(holds_nothing, door), "nothing is held of a client that has gone")
        door.kill()


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_leaves_before_the_first_byte_is_noticed_in_each_version(
    door: GatewayProgram, version: str
) -> None:
    """A stock nginx asks in HTTP/1.0: nothing may be said to it before the answer."""
    asked = request_bytes("/v1/completions", {"prompt": "fault:silent"}).replace(
        b"HTTP/1.1", f"HTTP/{version}".encode()
    )
    for more in (b"", asked * 3000):  # and one that has sent its next ones already
        sock = socket.create_connection(("127.0.0.1", door.port), DEADLINE_S)
        sock.sendall(asked.replace(b"connection: close\r\n", b""))
        until(lambda: door.state()["in_flight"] == 1, "the engine has it")
        sock.setblocking(False)
        if more:
            sock.send(more)
        sock.close()
        until(lambda: door.state()["in_flight"] == 0, "it is noticed that no client waits for it", 20)


@pytest.mark.parametrize("version", ["1.0", "1.1"])
def test_a_client_that_closes_its_sending_half_still_has_its_answer(door: GatewayProgram, version: str) -> None:
    asked = request_bytes("/v1/completions", {"prompt": "fault:slow", "max_tokens": 3})
    said = exchanged(door.port, asked.replace(b"HTTP/1.1", f"HTTP/{version}".encode()), half=True)
    head, _, body = said.partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 200 ") and head.count(b"HTTP/1.1") == 1, head
    assert json.loads(body)["choices"], body


@pytest.mark.parametrize("reads", [0, 1, 3], ids="reads {} bytes of its answer first".format)
def test_a_client_that_has_said_all_and_leaves_in_its_second_request_is_noticed(
    door: GatewayProgram, reads: int
) -> None:
    first = request_bytes("/v1/completions", {"prompt": "hello", "max_tokens": 1})
    second = request_bytes("/v1/completions", {"prompt": "fault:silent"})
    with socket.create_connection(("127.0.0.1", door.port), DEADLINE_S) as sock:
        sock.sendall(first.replace(b"connection: close\r\n", b"") + second)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(DEADLINE_S)
        said = b""
        while b'"choices"' not in said:  # its head may come in two pieces
            said += sock.recv(65536)
        until(lambda: door.state()["in_flight"] == 1, "the engine has the second")
        for _ in range(reads):
            sock.recv(1)
    until(lambda: door.state()["in_flight"] == 0, "it is noticed that no client waits for it", 20)


def test_a_client_that_never_reads_is_cut(house: House) -> None:
    door = GatewayProgram(house, "--unread-s", "0.5", name="unread").serving()
    with ExitStack() as crowd:
        for _ in range(6):
            sock = crowd.enter_context(socket.create_connection(("127.0.0.1", door.port), DEADLINE_S))
            sock.sendall(request_bytes("/v1/completions", {"prompt": "fault:flood", "stream": True}))
        until(lambda: door.state()["in_flight"] == 6, "all of them have an engine")
        until(lambda: door.state()["in_flight"] == 0, "their places are free again", 30)
        until(lambda: door.state()["connections"] <= 1, "and they are cut")
    door.kill()
