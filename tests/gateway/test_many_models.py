"""A real door in front of many models: real lock servers, engines that answer, and a pool that says what a test wants.
What is asked of whom, what waits and is told what for, what is refused, and what a person can see and change.
"""

import asyncio
import http.client
import json
import os
import shutil
import signal
import ssl
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from pool.entries import MOST_ENTRY_BYTES, Entry, Limits, ModelOutlook, Profile, Remote, State
from tests.engine.shims import House, Program
from tests.gateway.door import GatewayProgram, Stream, ask, request_bytes
from tests.gateway.pool_script import PoolScript
from tests.support.answering import Answering
from tests.support.browser import Browser
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("gateway/many_models")]  # one house for all of them
BODY: dict[str, Any] = {"prompt": "tell me", "max_tokens": 20, "temperature": 0, "ignore_eos": True}
MODELS = ("chat", "small")


class Cloud:
    """An OpenAI-compatible endpoint elsewhere, which keeps what it is asked."""

    def __init__(self, secure: ssl.SSLContext | None = None) -> None:
        self.asked: list[tuple[str, dict[str, str], Any]] = []
        cloud = self

        class Handler(Answering):
            def do_POST(self) -> None:
                body = json.loads(self.body())
                cloud.asked.append((self.path, {key.lower(): value for key, value in self.headers.items()}, body))
                stream = body.get("stream") is True
                said = 'data: {"from": "cloud"}\n\ndata: [DONE]\n\n' if stream else '{"from": "cloud"}'
                self.answer(200, said, "text/event-stream" if stream else "application/json")

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        if secure is not None:
            self.server.socket = secure.wrap_socket(self.server.socket, server_side=True)
            self.url = f"https://localhost:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()


class Many:
    """Models with their locks, and a pool's script."""

    def __init__(self, directory: Path, limits: Limits | None = None, flags: tuple[str, ...] = ()) -> None:
        self.house = House(directory)
        self.house.environment["CLOUD_KEY"] = "secret"
        self.cloud = Cloud()
        there = Remote(url=f"{self.cloud.url}/base/v1", model="gpt-x", key_env="CLOUD_KEY")
        entries = [
            Entry(name="chat", aliases=["gpt-4"], defaults={"seed": 5}),
            Entry(name="small", limits=limits or Limits(waiting=3, per_client=2), own_port=True),
            Entry(name="off", priority=7),
            Entry(name="best", ladder=["chat", "small", "cloud"]),
            Entry(name="strict", ladder=["chat", "small"], in_order=True),
            Entry(name="cloud", remote=there),
        ]
        profiles = [Profile(clients=["agent"], models={"gpt-4": "small"}, keep_alive_s=30.0)]
        self.pool = PoolScript(directory / "host", entries, profiles)
        for name in MODELS:
            self.start(name)
        self.door = GatewayProgram(self.house, "--pool", str(self.pool.run_dir), "--comment-s", "0.2", *flags)
        for name in MODELS:
            self.pool.see(name, State.AWAKE, estimate_ms=0)
        until(lambda: self.state("chat") == "awake", "the door has heard of the pool")
        until(self._serve, "the door sees both engines serve")

    def _serve(self) -> bool:
        """A test may stop an engine: before it is granted, no request would ever come to it."""
        pairs = self.door.state()["pairs"]
        return {*MODELS} <= {Path(pair["run_dir"]).name for pair in pairs if pair["serves"]}

    def start(self, name: str) -> None:
        run_dir = str(self.pool.lock_of(name))
        os.makedirs(run_dir)
        flags = ("--settle-s", "0.3", "--memory", "none", "--grant-unproven")
        self.house.add(Program(self.house, f"lock-{name}", "lockserver", "--run-dir", run_dir, *flags))
        self.house.environment["SIM_MODEL"] = name
        self.house.add(Program(self.house, f"engine-{name}", "tests.gateway.liar", run_dir, "honest"))

    def state(self, name: str) -> str:
        try:
            status, found = self.door.get("/v1/models")
        except OSError:
            return ""
        return (
            next((str(model["state"]) for model in found["data"] if model["id"] == name), "") if status == 200 else ""
        )

    def see(self, name: str, state: State, **more: Any) -> None:
        """The pool says so, and the door has heard it."""
        self.pool.see(name, state, **more)
        until(lambda: self.state(name) == state.value, f"the door has heard that {name} is {state.value}")

    def ask(self, path: str = "/v1/completions", **body: Any) -> tuple[int, dict[str, str], Any]:
        status, headers, said = ask(self.door.port, path, {**BODY, **body})
        return status, headers, json.loads(said)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    many = Many(Path(tmp_path_factory.mktemp("many")))
    yield many
    many.house.close()
    many.pool.close()
    many.cloud.server.shutdown()


@pytest.fixture
def many(house: Many) -> Many:
    for name in MODELS:
        house.see(name, State.AWAKE, estimate_ms=0)
    house.cloud.asked.clear()
    return house


def test_a_requests_model_chooses_by_its_names_and_its_clients_profile(many: Many) -> None:
    for asked, model in (
        ("chat", "chat"),
        ("gpt-4", "chat"),
        ("small", "small"),
        ("ghost|small", "small"),
        ("best", "chat"),
    ):
        assert many.ask(model=asked)[2]["model"] == model
    assert many.ask(model="gpt-4", x_client_id="agent")[2]["model"] == "small"
    status, _, said = many.ask(model="chta")
    assert status == 404 and "is chat meant?" in said["error"]["message"]
    assert many.ask()[0] == 400
    assert many.ask(model="chat", x_priority="high")[0] == 400
    status, _, said = many.ask(model=["chat"])
    assert status == 400 and said["error"]["message"] == 'model is a name in quotes, and not ["chat"]'
    status, _, said = many.ask(model="chat", top_p=float("nan"))
    assert status == 400 and "the body can't be read" in said["error"]["message"]
    status, said = send(many, "POST", "/v1/completions", None)
    assert status == 400 and "can't be read" not in said["error"]["message"], "there is none"


def test_a_ladder_that_is_kept_in_order_waits_for_its_first_and_another_takes_the_one_that_is_awake(many: Many) -> None:
    many.see("chat", State.LOADING, estimate_ms=60_000)
    assert many.ask(model="best")[2]["model"] == "small" and many.ask(model="strict")[2]["model"] == "chat"
    many.see("chat", State.FAILED)
    assert many.ask(model="strict")[2]["model"] == "small", "one that has failed isn't waited for"


def test_what_comes_by_a_models_own_port_is_for_it_whatever_it_is_called(many: Many) -> None:
    ports = many.door.get("/failover/models")[1]["ports"]
    assert list(ports) == ["small"]
    for asked in ("small", "chat", "ghost"):
        assert json.loads(ask(ports["small"], "/v1/completions", {**BODY, "model": asked})[2])["model"] == "small"
    for path in ("/v1/models", "/v1/models/chat"):
        status, _, said = ask(ports["small"], path)
        assert status == 200 and b'"small"' in said and b'"chat"' not in said


def test_a_models_own_port_says_of_no_other_model_that_it_is_ready(many: Many) -> None:
    """A requester asks where its ports lead, and a door that begins anew may give that port to another model."""
    [own] = many.door.get("/failover/models")[1]["ports"].values()
    asked = [(port, model) for port in (own, many.door.port) for model in ("small", "chat")]
    status = [ask(port, f"/failover/models/{model}/ready")[0] for port, model in asked]
    assert status == [200, 404, 200, 200]


def test_models_are_listed_with_their_states(many: Many) -> None:
    found = many.door.get("/v1/models")[1]["data"]
    assert {model["id"]: model["state"] for model in found} == {
        "chat": "awake", "small": "awake", "off": "off", "best": "off", "strict": "off", "cloud": "awake",
    }  # fmt: skip
    assert many.door.get("/v1/models/gpt-4")[1]["id"] == "chat" and many.door.get("/v1/models/chatt")[0] == 404


def test_one_that_has_failed_is_listed_so_though_it_takes_requests_again(many: Many) -> None:
    many.pool.see("off", State.OFF, State.FAILED, estimate_ms=1000)
    until(lambda: many.state("off") == "failed", "the door has heard it")
    many.see("off", State.OFF)


def test_a_stream_waits_for_its_model_is_told_what_for_and_is_then_answered(many: Many) -> None:
    many.see("off", State.LOADING, turn=3, estimate_ms=3500)

    async def story() -> Stream:
        stream = Stream({**BODY, "model": "off", "x_priority": -4, "x_keep_alive_s": 12, "x_client_id": "me"})
        running = asyncio.create_task(stream.run(many.door.port, "r"))
        while b"third in the queue" not in stream.raw:
            await asyncio.sleep(0.01)
        leaves = asyncio.create_task(Stream(stream.body).run(many.door.port))
        while many.pool.demand["off"].waiting < 2:
            await asyncio.sleep(0.01)
        leaves.cancel()
        while many.pool.demand["off"].waiting > 1:
            await asyncio.sleep(0.01)
        demand = many.pool.demand["off"]
        assert (demand.waiting, demand.priority, demand.keep_alive_s) == (1, -4, 12.0)
        await asyncio.to_thread(many.start, "off")
        many.pool.see("off", State.AWAKE, estimate_ms=0)
        return await running

    stream = asyncio.run(story())
    assert stream.whole and stream.status == 200 and b": loading, third in the queue, about 4 s\n\n" in stream.raw
    like = asyncio.run(Stream({**BODY, "model": "off"}).run(many.door.port, "r"))
    assert like.whole and stream.alike == like.alike
    until(lambda: many.pool.demand["off"].served == 2, "the pool hears that they were served")


def taken_out(many: Many, name: str, then: Callable[[], None]) -> Stream:
    """What a request has that waits for a model which is taken out, and of which the pool then says something else."""
    many.pool.entries.append(Entry(name=name))
    many.pool.see(name, State.LOADING)
    many.pool.again()
    until(lambda: many.state(name) == "loading", "the door has heard of it")

    async def story() -> Stream:
        stream = Stream({**BODY, "model": name}, streams=False)
        running = asyncio.create_task(stream.run(many.door.port))
        while not (name in many.pool.demand and many.pool.demand[name].waiting):
            await asyncio.sleep(0.01)
        many.pool.entries.pop()
        many.pool.again()
        await asyncio.to_thread(until, lambda: not many.state(name), "it was taken out")
        await asyncio.to_thread(many.state, name)  # by then a refusal would be here
        assert not running.done(), "the pool knows it still, and serves what it has"
        then()
        return await running

    return asyncio.run(story())


def test_what_waits_for_a_model_of_which_the_pool_knows_no_more_is_refused_and_not_kept_waiting(many: Many) -> None:
    def forgotten() -> None:
        del many.pool.outlook["gone"]
        many.pool.again()

    stream = taken_out(many, "gone", forgotten)
    assert stream.status == 503 and b"'gone' is not here any more" in stream.raw


def test_what_waits_for_a_model_that_was_taken_out_and_fails_is_told_why_and_not_kept_until_its_bound(
    many: Many,
) -> None:
    failed = partial(many.pool.see, "lost", State.FAILED, leaving=True, why="its weights are gone")
    stream = taken_out(many, "lost", failed)
    assert stream.status == 503 and b"'lost' can't be served now: its weights are gone" in stream.raw
    del many.pool.outlook["lost"]


def test_a_cold_load_counts_against_the_callers_time_out(many: Many) -> None:
    many.see("small", State.ASLEEP, estimate_ms=60_000)
    status, headers, said = many.ask(model="small", x_deadline_ms=2000)
    assert (status, said["error"]["estimate_ms"], headers["retry-after"]) == (504, 60_000, "60")
    assert many.ask(model="small|chat", x_deadline_ms=2000)[2]["model"] == "chat"
    assert many.ask(model="small", x_deadline_ms=60_000)[2]["model"] == "small", "taken and kept"


def test_a_model_and_a_client_have_bounds_and_are_told_when_to_come_again(many: Many) -> None:
    many.see("small", State.ASLEEP, estimate_ms=7000)

    async def story() -> None:
        engine = next(program for program in many.house.programs if program.log.name == "engine-small.log")
        engine.signal(signal.SIGSTOP)
        try:
            mine = [Stream({**BODY, "model": "small", "x_client_id": "me"}) for _ in range(2)]
            running = [asyncio.create_task(stream.run(many.door.port)) for stream in mine]
            while many.pool.demand.get("small") is None or many.pool.demand["small"].streaming < 2:
                await asyncio.sleep(0.01)
            status, headers, said = await asyncio.to_thread(many.ask, model="small", x_client_id="me")
            assert status == 429 and headers["retry-after"] == "7" and "of this client" in said["error"]["message"]
        finally:
            engine.signal(signal.SIGCONT)
        assert [stream.whole for stream in await asyncio.gather(*running)] == [True, True]

    asyncio.run(story())
    assert many.ask(model="small", x_client_id="me")[0] == 200, "what is over counts no more"


def test_a_failed_model_is_refused_and_a_ladder_goes_on_to_the_cloud_with_the_doors_own_key(many: Many) -> None:
    many.see("chat", State.FAILED, why="it doesn't fit: 12 GiB of 8")
    status, _, said = many.ask(model="chat")
    assert status == 503 and "12 GiB of 8" in said["error"]["message"]
    many.see("small", State.FAILED)
    assert many.ask(model="best", x_client_id="agent")[2] == {"from": "cloud"}
    stream = asyncio.run(Stream({**BODY, "model": "chat|cloud"}).run(many.door.port))
    assert stream.whole and b'{"from": "cloud"}' in stream.raw
    path, headers, body = many.cloud.asked[0]
    assert (path, headers["authorization"], headers["host"]) == (
        "/base/v1/completions", "Bearer secret", many.cloud.url.removeprefix("http://"),
    )  # fmt: skip
    assert body == {**BODY, "model": "gpt-x"}, "nothing of ours is in it"


def test_a_stream_that_waited_goes_on_with_the_next_model_of_its_ladder(many: Many) -> None:
    async def story() -> Stream:
        stream = Stream({**BODY, "model": "ghost2|off2|small"})
        many.pool.entries.append(Entry(name="off2"))
        many.pool.outlook["off2"] = ModelOutlook(
            state=State.LOADING, run_dir=str(many.pool.lock_of("off2")), estimate_ms=900
        )
        many.pool.again()
        await asyncio.to_thread(until, lambda: many.state("off2") == "loading", "the door knows the new model")
        running = asyncio.create_task(stream.run(many.door.port, "r"))
        while b": loading" not in stream.raw:
            await asyncio.sleep(0.01)
        many.pool.see("off2", State.FAILED, why="no")
        return await running

    stream = asyncio.run(story())
    like = asyncio.run(Stream({**BODY, "model": "small"}).run(many.door.port, "r"))
    assert stream.whole and stream.alike == like.alike
    many.pool.entries.pop()
    many.pool.again()
    until(lambda: many.state("off2") == "", "the door has forgotten it")
    assert many.ask(model="off2")[0] == 404


def test_the_guard_is_read_and_set_at_run_time_and_strips_only_fallbacks(many: Many) -> None:
    assert many.door.get("/failover/config") == (200, {"allow_cloud_fallback": True})
    many.see("chat", State.FAILED, why="no")
    try:
        assert put(many, {"allow_cloud_fallback": False}) == (200, {"allow_cloud_fallback": False, "detail": "done"})
        until(lambda: many.door.get("/failover/config")[1] == {"allow_cloud_fallback": False}, "the door knows it")
        assert many.ask(model="chat|cloud")[0] == 503 and many.ask(model="ghost|cloud")[0] == 404
        assert many.ask(model="cloud")[2] == many.ask(model="cloud|chat")[2] == {"from": "cloud"}
    finally:
        assert put(many, {"allow_cloud_fallback": True})[0] == 200
    until(lambda: many.ask(model="chat|cloud")[0] == 200, "fallbacks are allowed again")
    assert put(many, {"allow_cloud_fallback": 1})[0] == put(many, {"x": True})[0] == 400


def put(many: Many, body: Any) -> tuple[int, Any]:
    return send(many, "PUT", "/failover/config", body)


def send(
    many: Many, method: str, path: str, body: Any, *, door: GatewayProgram | None = None, **headers: str
) -> tuple[int, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", (door or many.door).port)
    sent = None if body is None else json.dumps(body)
    connection.request(method, path, sent, {"content-type": "application/json", **headers})
    answer = connection.getresponse()
    return answer.status, json.loads(answer.read() or b"null")


# -- what a person sees and changes ----------------------------------------------------------------------------------


def test_what_the_pool_shows_can_be_seen_once_and_watched(many: Many) -> None:
    status, found = many.door.get("/failover/models")
    assert status == 200 and found["pool"] == "answers" and found["models"][0]["state"] == "awake"
    assert many.door.get("/failover/models/chat")[1]["bytes"] == {"host:0": 1}
    assert many.door.get("/failover/models/chatt")[0] == 404
    assert many.door.get("/failover/models/chat/ready")[0] == 200
    assert many.door.get("/failover/state")[1]["models"][0]["name"] == "chat"

    async def watched() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", many.door.port)
        writer.write(request_bytes("/failover/models?watch=1"))
        assert b'"small"' in await reader.readuntil(b'"small","state":"awake"')
        many.pool.see("small", State.ASLEEP)
        await reader.readuntil(b'"small","state":"asleep"')
        writer.close()

    asyncio.run(watched())
    many.see("small", State.ASLEEP)
    assert many.door.get("/failover/models/small/ready")[0] == 503


@pytest.mark.parametrize(
    ("method", "path", "body", "verb"),
    [(*("POST", f"/failover/models/small/{verb}", None), verb) for verb in ("wake", "sleep", "stop", "pin", "unpin")]
    + [("DELETE", "/failover/models/small", None, "remove"), ("POST", "/failover/models", {"name": "new"}, "launch")],
)
def test_a_command_goes_to_the_pool_and_its_word_comes_back(
    many: Many, method: str, path: str, body: Any, verb: str
) -> None:
    many.pool.commands.clear()
    assert send(many, method, path, body) == (202, {"detail": f"{verb} is on its way"})
    (command,) = many.pool.commands
    assert (command.verb, command.name) == (verb, "new" if verb == "launch" else "small")
    many.pool.refuses = (409, "it is pinned")
    status, said = send(many, method, path, body)
    many.pool.refuses = None
    assert status == 409 and said["error"]["message"] == "it is pinned"
    assert send(many, method, path, body, origin="http://evil.example")[0] == 403


def test_an_alias_with_a_slash_can_be_commanded_too(many: Many) -> None:
    many.pool.commands.clear()
    assert send(many, "POST", "/failover/models/org%2Fsmall:8b/wake", None)[0] == 202
    assert [command.name for command in many.pool.commands] == ["org/small:8b"]


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/failover/models", {"name": "a b"}, 202),
        ("POST", "/failover/models", {"aliases": 5}, 400),
        ("POST", "/failover/models", {"name": "a", "memmory": "12GiB"}, 400),
        ("POST", "/failover/models", {"name": "a" * 201}, 400),
        ("POST", "/failover/models", {"name": "a", "arguments": ["x" * MOST_ENTRY_BYTES]}, 400),
        ("POST", "/failover/models/small/ready", None, 405),
        ("PUT", "/failover/models/small", None, 405),
        ("POST", "/failover/models/small/explode", None, 404),
        ("POST", "/failover/config", {"allow_cloud_fallback": True}, 405),
        ("GET", "/failover/modelsx", None, 404),
    ],
)
def test_what_is_no_command_is_refused_with_a_sentence(
    many: Many, method: str, path: str, body: Any, status: int
) -> None:
    found, said = send(many, method, path, body)
    assert found == status and (status == 202 or said["error"]["message"])


def test_of_several_controllers_the_one_with_the_newest_token_is_heard(many: Many) -> None:
    wake = "/failover/models/small/wake"

    def order(token: str) -> int:
        return send(many, "POST", wake, None, door=None, **{"x-dual-pods-token": token})[0]

    assert [order(it) for it in ("7", "8", "7", "8", "x", "-1", "9" * 30)] == [202, 202, 409, 202, 400, 400, 400]
    assert send(many, "POST", wake, None)[0] == 202, "a person has no token"


def test_with_admin_keys_only_these_change_anything_and_every_client_is_its_api_key(many: Many, tmp_path: Path) -> None:
    for name in ("admin", "api"):
        (tmp_path / name).write_text(f"{name}-key\n")
    keys = ("--admin-keys", str(tmp_path / "admin"), "--api-keys", str(tmp_path / "api"))
    door = GatewayProgram(many.house, "--pool", str(many.pool.run_dir), *keys, name="keys")
    until(lambda: door.state() and door.get("/failover/models")[1]["models"], "it has heard of the pool")
    wake = "/failover/models/small/wake"
    assert [
        send(many, "POST", wake, None, door=door, authorization=f"Bearer {key}")[0] for key in ("api-key", "admin-key")
    ] == [401, 202]
    assert ask(door.port, "/v1/completions", {**BODY, "model": "chat"})[0] == 401
    bearer = {"authorization": "Bearer api-key"}
    assert (
        send(many, "POST", "/v1/completions", {**BODY, "model": "gpt-4", "x_client_id": "agent"}, door=door, **bearer)[
            1
        ]["model"]
        == "small"
    )


@pytest.mark.slow
def test_the_page_shows_every_model_and_what_it_waits_for(many: Many) -> None:
    many.see("small", State.LOADING, turn=2, estimate_ms=3500, why="<b>its weights are read</b>")
    with Browser() as page:
        for width in (1280, 360):
            page.looks(width)
            page.open(f"{many.door.url}/failover/")
            page.until_text(
                "models are awake", "small\nloading", "<b>its weights are read</b>", "number 2 in the queue"
            )
            assert page.run("return document.documentElement.scrollWidth") <= width
        many.see("small", State.ASLEEP)
        page.until_text("small\nasleep")


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificate")
def test_an_endpoint_elsewhere_is_who_its_certificate_says_or_the_ladder_goes_on(tmp_path: Path) -> None:
    key, certificate = tmp_path / "key.pem", tmp_path / "certificate.pem"
    words = "req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost -addext subjectAltName=DNS:localhost -keyout"
    subprocess.run(["openssl", *words.split(), key, "-out", certificate], check=True, capture_output=True)
    secure = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    secure.load_cert_chain(certificate, key)
    cloud = Cloud(secure)
    other = Remote(url=f"{cloud.url.replace('localhost', '127.0.0.1')}/v1")
    entries = [Entry(name="good", remote=Remote(url=f"{cloud.url}/v1")), Entry(name="other", remote=other)]
    house, pool = House(tmp_path), PoolScript(tmp_path / "host", entries)
    house.environment["SSL_CERT_FILE"] = str(certificate)
    door = GatewayProgram(house, "--pool", str(pool.run_dir))
    try:
        until(lambda: door.state() and door.get("/v1/models")[1]["data"], "it has heard of the pool")
        assert ask(door.port, "/v1/completions", {**BODY, "model": "other|good"})[2] == b'{"from": "cloud"}'
        assert "certificate verify failed" in door.said() and len(cloud.asked) == 1
    finally:
        house.close()
        pool.close()
        cloud.server.shutdown()


def test_while_the_pool_is_away_what_is_awake_serves_on_and_what_waits_is_told(
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    many = Many(tmp_path_factory.mktemp("many"))  # a short name: sockets are in it
    try:
        many.pool.see("small", State.ASLEEP)
        pool = many.pool
        pool.stands_still = True
        with ThreadPoolExecutor(1) as asking:
            asked = asking.submit(send, many, "POST", "/failover/models/small/wake", None)
            try:
                until(lambda: many.door.get("/failover/models")[1]["pool"] == "silent", "a command is unanswered", 30)
            finally:
                pool.close()
            assert asked.result()[0] == 503
        until(lambda: many.door.get("/failover/models")[1]["pool"] == "away", "the door has seen the pool go")
        assert many.ask(model="chat")[0] == 200 and many.door.get("/ready")[0] == 200
        assert send(many, "POST", "/failover/models/chat/sleep", None)[0] == 503
        assert put(many, {"allow_cloud_fallback": False})[0] == 503
        many.pool = PoolScript(pool.run_dir, pool.entries, pool.profiles)
        until(lambda: many.door.get("/failover/models")[1]["pool"] == "answers", "and come back")
        until(lambda: "chat" in many.pool.demand and many.pool.demand["chat"].served == 1, "it hears what there was")
    finally:
        many.house.close()
        many.pool.close()
