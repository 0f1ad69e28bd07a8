"""What clients and operators meet at a real door with one plain engine behind it: who is let in, what is refused, what
the door says itself, how it ends and comes back.
"""

import asyncio
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from gateway.__main__ import main
from tests.engine.shims import House, Program
from tests.gateway import engine
from tests.gateway.door import GatewayProgram, Stream, ask, exchanged, request_bytes
from tests.support.ports import free_port
from tests.support.processes import resident, run_here
from tests.support.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("gateway/at_the_door")]  # one house for all of them
BODY: dict[str, Any] = {"prompt": "tell me", "max_tokens": 20, "temperature": 0, "ignore_eos": True}


def engine_of(house: House, name: str = "honest") -> Program:
    """Holds the lock and answers, without a shim."""
    program = Program(house, name, "tests.gateway.liar", str(house.run_dir), name)
    house.add(program)
    return program


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    here = House(Path(tmp_path_factory.mktemp("at_the_door")))
    here.start_lock("--memory", "none", "--grant-unproven")
    engine_of(here)
    yield here
    here.close()


@pytest.fixture(scope="module")
def door(house: House) -> GatewayProgram:
    return GatewayProgram(house, "--max-body", "64KiB", "--max-headers", "4KiB", "--request-s", "1").serving()


def post(lines: str, body: bytes = b"") -> bytes:
    return f"POST /v1/completions HTTP/1.1\r\n{lines}\r\n\r\n".encode() + body


REFUSED = {
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
    "both lengths": post(
        "host: x\r\ncontent-length: 5\r\ntransfer-encoding: chunked", b"0\r\n\r\nGET /x HTTP/1.1\r\n\r\n"
    ),
    "two lengths": post("host: x\r\ncontent-length: 2\r\ncontent-length: 3", b"{}x"),
    "bare CR": post("host: x\rcontent-length: 0"),
    "a space before the colon": post("host: x\r\ncontent-length : 2", b"{}"),
    "a folded header": post("host: x\r\nx: a\r\n b"),
    "two hosts": post("host: x\r\nhost: y\r\ncontent-length: 0"),
    "no host": post("content-length: 0"),
    "an unknown coding": post("host: x\r\ntransfer-encoding: gzip"),
    "two codings": post("host: x\r\ntransfer-encoding: gzip, chunked", b"0\r\n\r\n"),
    "two codings in two headers": post(
        "host: x\r\ntransfer-encoding: gzip\r\ntransfer-encoding: chunked", b"0\r\n\r\n"
    ),
    "chunks in HTTP/1.0": b"POST /tokenize HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
    "no version": b"GET /version\r\n\r\n",
    "a length that is none": post("host: x\r\ncontent-length: -1"),
    "a chunk that is none": post("host: x\r\ntransfer-encoding: chunked", b"zz\r\n"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_two_servers_could_read_in_two_ways_reaches_no_engine(door: GatewayProgram, name: str) -> None:
    said = exchanged(door.port, REFUSED[name])
    assert said.startswith(b"HTTP/1.1 400 ") and said.count(b"HTTP/1.1") == 1, said[:300]
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["type"]


def test_another_major_version_is_refused(door: GatewayProgram) -> None:
    said = exchanged(door.port, b"GET /v1/models HTTP/2.0\r\nhost: x\r\n\r\n")
    assert said.startswith(b"HTTP/1.1 505 ") and b"HTTP/1.1 and HTTP/1.0" in said


def test_a_target_in_absolute_form_is_the_same_target(door: GatewayProgram) -> None:
    for target in (b"http://door:8000/v1/models", b"HTTPS://other/v1/models?x=1", b"http://door/live"):
        said = exchanged(door.port, b"GET %b HTTP/1.1\r\nhost: door\r\nconnection: close\r\n\r\n" % target)
        assert said.startswith(b"HTTP/1.1 200 "), said
    for target in (b"http://door", b"http://door/sleep", b"ftp://door/v1/models", b"*"):
        said = exchanged(door.port, b"OPTIONS %b HTTP/1.1\r\nhost: door\r\nconnection: close\r\n\r\n" % target)
        assert said.startswith(b"HTTP/1.1 404 "), said


def test_a_method_that_no_engine_has_is_answered_with_those_that_there_are(door: GatewayProgram) -> None:
    lines = "HTTP/1.1\r\nhost: x\r\ncontent-length: 0\r\nconnection: close\r\n\r\n"
    for method, path, status in (("PUT", "/v1/models", 405), ("PATCH", "/rerank", 405), ("PUT", "/nothing", 404)):
        said = exchanged(door.port, f"{method} {path} {lines}".encode())
        assert said.startswith(b"HTTP/1.1 %d " % status), said
        assert (b"allow: GET, HEAD, POST, DELETE, OPTIONS" in said) is (status == 405)


@pytest.mark.parametrize(
    ("data", "status"),
    [
        (post("host: x\r\ncontent-length: 70000", b"x" * 70_000), 413),
        (post("host: x\r\ntransfer-encoding: chunked", b"%x\r\n" % 70_000 + b"x" * 70_000), 413),
        (post(f"host: x\r\nx: {'y' * 6000}"), 431),
        (post("host: x\r\n" + "\r\n".join(f"x{n}: y" for n in range(900))), 431),
        (post("host: x\r\ncontent-length: 9", b"half"), 408),
        (b"POST /v1/completions HTTP/1.1\r\nho", 408),
    ],
    ids=["body", "chunked body", "one header", "many headers", "half a body", "half a head"],
)
def test_what_is_too_large_or_too_slow_is_said(door: GatewayProgram, data: bytes, status: int) -> None:
    assert exchanged(door.port, data).startswith(b"HTTP/1.1 %d " % status)


@pytest.mark.parametrize(
    "path",
    [
        *("/sleep", "/wake_up", "/collective_rpc", "/is_sleeping", "/v1/../sleep", "/v1/%2e%2e/sleep", "//sleep"),
        *("/v1//completions", "/server_info", "/reset_prefix_cache", "/", "/v1", "/metrics/", "/start_profile"),
    ],
)
def test_what_is_for_an_engines_owner_cant_be_reached(door: GatewayProgram, path: str) -> None:
    assert ask(door.port, path, {})[0] == 404


def chunked(trailers: bytes) -> bytes:
    body = json.dumps(BODY).encode()
    lines = "host: x\r\nconnection: close\r\ntransfer-encoding: chunked"
    return post(lines, b"%x\r\n%b\r\n0\r\n%b" % (len(body), body, trailers))


def test_what_comes_behind_a_body_is_no_header_and_has_its_bound(door: GatewayProgram) -> None:
    said = exchanged(door.port, chunked(b"x-request-id: slipped-in\r\n\r\n"))
    assert said.startswith(b"HTTP/1.1 200 ") and b"slipped-in" not in said
    for more in (b"x: y\r\n" * 100_000, b"x: " + b"y" * 600_000):
        assert exchanged(door.port, chunked(more)).startswith(b"HTTP/1.1 431 ")


def test_an_offer_to_speak_otherwise_is_answered_as_if_it_were_not_there(door: GatewayProgram) -> None:
    """Java's client makes it with every request of its own."""
    body = json.dumps({**BODY, "max_tokens": 1}).encode()
    offer = "connection: Upgrade, HTTP2-Settings\r\nupgrade: h2c\r\nhttp2-settings: AA"
    one = post(f"host: x\r\n{offer}\r\ncontent-length: {len(body)}", body)
    last = b"GET /live HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
    said = exchanged(door.port, one * 2 + last)
    assert said.count(b"HTTP/1.1 200 ") == said.count(b"HTTP/1.1") == 3 and said.count(b'"finish_reason"') == 2, said
    assert said.endswith(b"ok\n"), "they are answered in their order"


def test_a_client_of_http_1_0_is_told_that_its_connection_stays(door: GatewayProgram) -> None:
    said = exchanged(door.port, b"GET /live HTTP/1.0\r\nconnection: keep-alive\r\n\r\nGET /live HTTP/1.0\r\n\r\n")
    assert said.count(b"HTTP/1.1 200 ") == 2
    assert said.count(b"connection: keep-alive") == 1 and said.count(b"connection: close") == 1


def test_a_chat_without_messages_is_answered(door: GatewayProgram) -> None:
    assert ask(door.port, "/v1/chat/completions", {"stream": True})[0] == 400


def test_all_that_was_asked_before_the_sending_half_is_closed_is_answered(door: GatewayProgram) -> None:
    asked = b"GET /v1/models HTTP/1.1\r\nhost: x\r\n\r\n"
    assert exchanged(door.port, asked * 50, half=True).count(b"HTTP/1.1 200 ") == 50


def test_a_request_has_the_name_that_its_client_gave_it(door: GatewayProgram) -> None:
    assert json.loads(ask(door.port, "/v1/completions", BODY, x_request_id="mine")[2])["id"] == "cmpl-mine"
    made = json.loads(ask(door.port, "/v1/completions", BODY, x_request_id="not\tmine")[2])["id"]
    assert len(made) > 20 and "mine" not in made
    until(lambda: "id=mine" in door.said(), "the access log has it")
    (line,) = [line for line in door.said().splitlines() if "id=mine" in line]
    assert "status=200" in line and "path=/v1/completions" in line and "outcome=answered" in line


def test_what_the_door_says_itself(house: House, door: GatewayProgram) -> None:
    assert door.get("/live") == (200, "ok\n") and door.get("/ready") == (200, "ready\n")
    assert ask(door.port, "/ready", {})[0] == 405
    state = door.state()
    (pair,) = state["pairs"]
    assert pair["serves"]["engine"] == "honest" and pair["lock"] == "HELD" and pair["redundant"] == []
    assert {"in_flight", "waiting", "continued", "compared", "restarted", "ended", "connections"} <= set(state)
    page = door.get("/metrics")[1]
    assert 'failover_door_requests_total{how="passed",outcome="answered"}' in page and "failover_door_ready 1.0" in page
    assert "failover_door_gap_seconds_bucket" in page


def test_it_says_that_no_engine_has_served_yet_and_later_that_none_does(tmp_path: Path) -> None:
    with closing(House(tmp_path)) as alone:
        alone.start_lock("--memory", "none", "--grant-unproven")
        door = GatewayProgram(alone, "--failover-timeout-s", "0.5")
        until(lambda: door.state(), "it answers")
        status, why = door.get("/ready")
        assert status == 503 and f"{alone.run_dir}: no engine has served yet since this door was started" in why
        engine = engine_of(alone)
        until(lambda: door.get("/ready")[0] == 200, "an engine serves")
        engine.kill()
        until(lambda: door.get("/ready")[0] == 503, "none has for longer than the bound")
        assert "longer than --failover-timeout-s 0.5" in door.get("/ready")[1]


@pytest.mark.parametrize("flag", ["--listen", "--metrics"])
def test_a_port_that_is_taken_is_said_with_who_has_it_and_the_way_out(flag: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        where = f"127.0.0.1:{taken.getsockname()[1]}"
        words = ["--run-dir", str(tmp_path), "--listen", "127.0.0.1:0", flag, where]
        done = subprocess.run([sys.executable, "-m", "gateway", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and len(done.stderr.splitlines()) == 1
    assert done.stderr.startswith(
        f"gateway: can't listen on {where}: Address already in use by process {os.getpid()} ("
    ) and done.stderr.endswith(f"; give another {flag}\n")


def test_keys_are_asked_for_and_read_again(house: House, tmp_path: Path) -> None:
    keys = tmp_path / "keys"
    keys.write_text("# ours\nfirst\n")
    door = GatewayProgram(house, "--api-keys", str(keys), name="keys").serving()

    def status(authorization: str = "") -> int:
        return ask(door.port, "/v1/completions", BODY, **({"authorization": authorization} if authorization else {}))[0]

    assert (status(), status("Bearer second"), status("Basic first"), status("Bearer first")) == (401, 401, 401, 200)
    assert ask(door.port, "/ready")[0] == 200, "probes have no key"
    for lines, refused in (("origin: http://page\r\n", False), ("", True)):  # a browser's question has none either
        said = exchanged(
            door.port, f"OPTIONS /v1/models HTTP/1.1\r\nhost: x\r\n{lines}connection: close\r\n\r\n".encode()
        )
        assert said.startswith(b"HTTP/1.1 401 ") is refused, said
    keys.write_text("second\n")
    door.signal(signal.SIGHUP)
    until(lambda: status("Bearer second") == 200, "the new key is known")
    assert status("Bearer first") == 401
    keys.write_text("")
    door.signal(signal.SIGHUP)
    until(lambda: "those from before stay" in door.said(), "it says so")
    assert status("Bearer second") == 200
    assert "second" not in door.said()
    door.kill()


def test_killed_it_takes_only_its_own_connections_along_and_serves_again_at_once(house: House) -> None:
    door = GatewayProgram(house, name="first").serving()
    holder = house.status()

    async def broken() -> Stream:
        stream = Stream({**BODY, "max_tokens": 400})
        task = asyncio.create_task(stream.run(door.port, "q"))
        while not stream.raw:
            await asyncio.sleep(0.001)
        door.kill()
        return await task

    assert not asyncio.run(broken()).whole
    began = time.monotonic()
    again = GatewayProgram(house, name="again", port=door.port).serving()
    stream = asyncio.run(Stream(BODY).run(again.port, "q"))
    print(f"serves again after {time.monotonic() - began:.2f} s")
    assert stream.whole
    after = house.status()
    assert holder is not None and after is not None and holder.holder == after.holder
    again.kill()


def test_several_pairs_behind_one_door_are_told_apart_by_the_model(
    house: House, tmp_path_factory: pytest.TempPathFactory
) -> None:
    other = House(Path(tmp_path_factory.mktemp("other")))
    try:
        other.start_lock("--memory", "none", "--grant-unproven")
        other.environment["SIM_MODEL"] = "another"
        engine_of(other)
        run_dirs = ("--run-dir", str(house.run_dir), "--run-dir", str(other.run_dir))
        door = GatewayProgram(house, *run_dirs, name="several")

        def models() -> list[str]:
            status, _, body = ask(door.port, "/v1/models")
            return [model["id"] for model in json.loads(body)["data"]] if status == 200 else []

        until(lambda: door.state() and sorted(models()) == ["another", engine.MODEL], "both are known")
        until(lambda: all(pair["models"] for pair in door.state()["pairs"]), "both are known")
        for model in ("another", engine.MODEL):
            status, _, body = ask(door.port, "/v1/completions", {**BODY, "model": model})
            assert (status, json.loads(body)["model"]) == (200, model)
        status, _, body = ask(door.port, "/v1/completions", {**BODY, "model": "third"})
        assert status == 404 and f"there are: another, {engine.MODEL}" in json.loads(body)["error"]["message"]
        assert ask(door.port, "/v1/completions", BODY)[0] == 400
        other.programs[-1].kill()
        until(lambda: not door.state()["pairs"][1]["serves"], "the other has none")
        assert ask(door.port, "/v1/completions", {**BODY, "model": engine.MODEL})[0] == 200
        door.kill()
    finally:
        other.close()


def test_told_to_end_it_says_so_waits_for_the_endpoints_and_lets_answers_finish(house: House) -> None:
    door = GatewayProgram(house, "--shutdown-delay-s", "0.7", name="ends").serving()

    async def story() -> list[Stream]:
        async def begin() -> tuple[Stream, asyncio.Task[Stream]]:
            stream = Stream({**BODY, "max_tokens": 150})
            task = asyncio.create_task(stream.run(door.port, "q"))
            while not stream.raw:
                await asyncio.sleep(0.001)
            return stream, task

        first = await begin()
        door.signal(signal.SIGTERM)
        while (await asyncio.to_thread(ask, door.port, "/ready"))[0] == 200:
            await asyncio.sleep(0.005)
        second = await begin()  # a client that still comes is served
        return [await first[1], await second[1]]

    assert [stream.whole for stream in asyncio.run(story())] == [True, True]
    assert door.code() == 0 and "cut=0" in door.said()
    line = next(line for line in door.said().splitlines() if " stopping " in line)
    assert "requests=1 " in line and "requests are taken for 0.7 s more (/ready says no)" in line


def test_it_can_be_reached_over_ipv6(house: House) -> None:
    if not socket.has_dualstack_ipv6():
        pytest.skip("there is no IPv6 here")
    port = free_port()
    door = GatewayProgram(house, "--listen", f":{port}", name="dual", port=port).serving()
    with socket.create_connection(("::1", port), DEADLINE_S) as sock:
        sock.sendall(request_bytes("/live"))
        assert sock.recv(65536).startswith(b"HTTP/1.1 200 ")
    door.kill()


def test_five_thousand_idle_connections_keep_no_client_from_being_served(house: House) -> None:
    import resource

    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    count = min(5000, most - 500)
    door = GatewayProgram(house, name="idle").serving()
    before = resident(door.pid)
    idle = [socket.create_connection(("127.0.0.1", door.port), DEADLINE_S) for _ in range(count)]
    try:
        until(lambda: door.state()["connections"] >= count, "all of them are there")
        assert ask(door.port, "/v1/completions", BODY)[0] == 200
        print(f"{count} idle connections take {(resident(door.pid) - before) / count / 1000:.1f} kB each")
    finally:
        for sock in idle:
            sock.close()
    until(lambda: door.state()["connections"] <= 2, "all of them are gone")
    door.kill()


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ((), "--run-dir is needed"),
        (("--run-dir", ""), "it is empty; allowed: a directory such as /run/failover"),
        (("--run-dir", "a", "--run-dir", "b/../a"), "--run-dir names one directory more than once"),
        (("--run-dir", "x", "--listen", "nowhere"), "'nowhere' is no address"),
        (("--run-dir", "x", "--api-keys", "/nowhere"), "can't be read"),
        (("--run-dir", "x", "--queue", "many"), "many"),
    ],
)
def test_a_persons_mistake_is_answered_with_a_sentence(words: tuple[str, ...], expected: str) -> None:
    code, _, said = run_here(main, *words)
    assert code == 64 and expected in said and "Traceback" not in said
