"""Engines that do what no engine should, behind a real door and a real lock: what the client gets of each.

Each fault is met twice: the engine keeps the lock, and its failure is its own word; or it dies of it, and another goes
on with the answer.
"""

import asyncio
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine.shims import House, Program
from tests.gateway import engine
from tests.gateway.door import GatewayProgram, Stream, request_bytes
from tests.gateway.door import ask as request
from tests.support.waiting import DEADLINE_S, until

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("gateway/lying_engines")]  # one house for all of them


class Stage:
    """A liar that holds the lock, an honest engine that waits for it, and a door."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.house.start_lock("--memory", "none", "--grant-unproven")
        self.liar = self._engine("liar")
        until(lambda: self.house.holder() == "liar" and self.house.endpoint(), "the liar serves")
        self.door = GatewayProgram(self.house, "--comment-s", "0.5", "--stall-s", "1").serving()

    def _engine(self, name: str) -> Program:
        program = Program(self.house, name, "tests.gateway.liar", str(self.house.run_dir), name)
        self.house.add(program)
        return program

    def prepare(self) -> None:
        """An honest engine waits, and takes over when the liar dies."""
        self._honest = self._engine("honest")
        until(self._waits, "an honest engine waits")

    def end_the_liar(self) -> None:
        self.liar.kill()

    def lie_again(self) -> None:
        self.liar = self._engine("liar")
        until(self._waits, "the liar waits")
        self._honest.kill()
        until(lambda: self.house.holder() == "liar" and self.house.endpoint(), "the liar serves")
        token = self.house.status()
        assert token is not None
        until(lambda: (self.door.state()["pairs"][0]["serves"] or {}).get("token") == token.token, "the door sees it")

    def _waits(self) -> bool:
        status = self.house.status()
        return status is not None and any(waiter.ready for waiter in status.waiters)

    def asked(self, fault: str) -> int:
        path = self.house.run_dir / f"asked.{fault}"
        return len(path.read_text()) if path.exists() else 0


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    house = House(Path(tmp_path_factory.mktemp("liars")))
    try:
        yield Stage(house)
    finally:
        house.close()  # whatever of it was started


def question(fault: str, **more: Any) -> dict[str, Any]:
    return {"prompt": f"fault:{fault} tell me", "max_tokens": 20, "temperature": 0, "ignore_eos": True, **more}


def undisturbed(body: dict[str, Any], name: str, *, streams: bool = True) -> Any:
    stream = Stream(body, streams=streams)
    sent = json.dumps({**body, "stream": True} if streams else body).encode()
    stream.raw = engine.answer("POST", b"/v1/completions", [(b"x-request-id", name.encode())], sent).body
    return stream.alike


def ask(stage: Stage, body: dict[str, Any], name: str, *, streams: bool = True) -> Stream:
    return asyncio.run(Stream(body, streams=streams).run(stage.door.port, name))


def is_whole(stream: Stream, body: dict[str, Any], name: str) -> None:
    assert (stream.status, stream.whole, stream.error) == (200, True, ""), stream.raw[-300:]
    assert stream.alike == undisturbed(body, name, streams=stream.streams)


def ends_with_an_error(stream: Stream) -> None:
    """An event that says so, no reason to end, no [DONE], and a body that breaks off."""
    assert stream.status == 200 and not stream.whole and stream.error
    *said, last = (json.loads(event.removeprefix(b"data: ")) for event in stream.events)
    assert last["error"]["type"] == "engine_lost" and last["error"]["retry_safe"] is True
    assert said and not any(choice["finish_reason"] for event in said for choice in event["choices"])


INVISIBLE = ["slow", "no_done", "two_dones", "late_words", "large_chunk", "whole_then_cut", "whole_then_noise"]


@pytest.mark.parametrize("fault", INVISIBLE)
def test_what_the_client_never_notices(stage: Stage, fault: str) -> None:
    for _ in range(2):
        stream = ask(stage, question(fault), "q")
        stream.raw = b"\n\n".join(event for event in stream.events) + b"\n\n"
        is_whole(stream, question(fault), "q")


@pytest.mark.parametrize("fault", ["cut", "no_json", "wrong_choice", "early_done", "endless"])
def test_a_stream_that_its_engine_breaks_ends_with_an_error_that_says_so(stage: Stage, fault: str) -> None:
    ends_with_an_error(ask(stage, question(fault), "q"))


def test_an_error_that_the_engine_tells_in_its_stream_is_passed_on(stage: Stage) -> None:
    stream = ask(stage, question("event_error"), "q")
    assert not stream.whole
    assert [event for event in stream.events if b"out of memory" in event] == list(stream.events)[-1:]
    assert b"[DONE]" not in stream.raw


NO_ANSWER = ["nothing", "page", "half_json", "other_json", "no_content"]


@pytest.mark.parametrize("fault", ["reset", "head_only", "long_length", "two_lengths", "no_http", *NO_ANSWER])
@pytest.mark.parametrize("streams", [True, False])
def test_without_an_answer_the_status_is_502(stage: Stage, fault: str, streams: bool) -> None:
    stream = ask(stage, question(fault), "q", streams=streams)
    assert stream.status == 502, (stream.status, stream.raw[:300], stream.error)
    assert json.loads(stream.raw)["error"]["type"] == "engine_lost"


def test_an_error_with_a_status_that_says_all_is_well_is_an_error(stage: Stage) -> None:
    stream = ask(stage, question("error_as_answer"), "q", streams=False)
    assert stream.status == 502 and "out of memory" in json.loads(stream.raw)["error"]["message"]


OTHER_STREAMS = [("responses", fault) for fault in ("nothing", "page", "half_json", "no_content")]


@pytest.mark.parametrize("streams", [True, False])
@pytest.mark.parametrize("path", ["/v1/completions", "/v1/responses", "/v1/audio/transcriptions"])
def test_a_stream_without_an_event_has_a_head_that_says_so(stage: Stage, path: str, streams: bool) -> None:
    stream = asyncio.run(Stream(question("no_events"), path, streams).run(stage.door.port, "q"))
    assert (stream.status, stream.whole) == (502, True), (stream.raw, stream.error)
    assert json.loads(stream.raw)["error"]["type"] == "engine_lost"


@pytest.mark.parametrize(("path", "fault"), [("embeddings", "half_json"), *OTHER_STREAMS])
def test_what_is_no_answer_of_any_other_kind_is_an_error_too(stage: Stage, path: str, fault: str) -> None:
    stream = Stream(question(fault), f"/v1/{path}", streams=path != "embeddings")
    asyncio.run(stream.run(stage.door.port, "q"))
    assert (stream.status, stream.whole) == (502, True), (stream.raw, stream.error)


@pytest.mark.parametrize(("fault", "status"), [("failure", 500), ("busy", 503), ("bad_request", 400)])
def test_an_engines_own_error_is_passed_on_as_it_is(stage: Stage, fault: str, status: int) -> None:
    """A 503 when it is said again: one that stops to serve says it as well."""
    before = stage.asked(fault)
    stream = ask(stage, question(fault), "q", streams=False)
    assert (stream.status, stage.asked(fault)) == (status, before + 1 + (status == 503))
    assert json.loads(stream.raw)["error"]["code"] == status


def test_an_error_that_is_all_of_a_stream_is_told_with_its_status(stage: Stage) -> None:
    stream = ask(stage, question("error_first"), "q")
    assert (stream.status, stream.whole) == (503, True), stream.raw
    assert json.loads(stream.raw)["error"]["message"] == "out of memory"
    stream = ask(stage, question("old_error"), "q")
    assert (stream.status, stream.whole) == (400, True), stream.raw
    assert json.loads(stream.raw)["message"] == "too long"


def test_a_client_that_does_not_read_disturbs_none_that_comes_after_it(stage: Stage) -> None:
    """Its answer's end is here before it reads: the engine's connection is used again, and is read again."""
    with socket.create_connection(("127.0.0.1", stage.door.port), DEADLINE_S) as slow:
        slow.sendall(request_bytes("/v1/completions", {**question("all_at_once"), "stream": True}))
        until(lambda: stage.asked("all_at_once") and not stage.door.state()["in_flight"], "the door has all of it")
        next_one = Stream(question("none")).run(stage.door.port, "q")
        is_whole(asyncio.run(asyncio.wait_for(next_one, DEADLINE_S)), question("none"), "q")


def test_what_an_engine_says_to_this_connection_alone_goes_no_further(stage: Stage) -> None:
    status, headers, _ = request(stage.door.port, "/v1/completions", question("for_the_hop"))
    assert status == 200 and headers["x-other"] == "2" and "x-hop" not in headers


def test_what_cant_be_read_is_reported(stage: Stage) -> None:
    def count() -> float:
        page = stage.door.get("/metrics")[1]
        malformed = 'failover_door_alarms_total{event="engine_malformed"}'
        lines = [line for line in page.splitlines() if line.startswith(malformed)]
        return float(lines[0].split()[-1]) if lines else 0.0

    before = count()
    ask(stage, question("no_json"), "q")
    assert count() == before + 1 and not stage.liar.dead
    assert "engine_malformed" in stage.door.said()


def test_a_silent_stream_gets_comments_and_the_client_that_leaves_is_noticed(stage: Stage) -> None:
    async def wait_for_comments() -> Stream:
        stream = Stream(question("stall"))
        task = asyncio.create_task(stream.run(stage.door.port, "q"))
        while stream.raw.count(b": waiting") < 2:
            await asyncio.sleep(0.01)
        assert stage.door.state()["in_flight"] == 1
        task.cancel()
        return stream

    asyncio.run(wait_for_comments())
    until(lambda: stage.door.state()["in_flight"] == 0, "no request is in flight")
    assert "engine_silent" in stage.door.said()


def test_an_engine_that_says_nothing_more_is_not_waited_for_for_ever(stage: Stage) -> None:
    """No shim judges this one, and comments keep the client's own time-out from ever passing."""
    door = GatewayProgram(stage.house, "--comment-s", "0.3", "--silence-s", "1.5", name="impatient").serving()
    stream = asyncio.run(Stream(question("stall")).run(door.port, "q"))
    assert b": waiting" in stream.raw and b"said nothing for 1.5 s" in stream.raw
    ends_with_an_error(stream)
    door.kill()


DIES = ["reset", "silent", "head_only", "cut", "stall", "event_error", "early_done", "failure", "busy", "long_length"]


@pytest.mark.parametrize("more", [{}, {"presence_penalty": 0.5}], ids=["continued", "compared"])
def test_who_dies_of_it_is_followed_by_another_who_goes_on(stage: Stage, more: dict[str, Any]) -> None:
    """All faults at once: the liar dies while each of its clients has met another."""
    stage.prepare()

    async def all_of_them() -> list[Stream]:
        asked = {fault: stage.asked(fault) for fault in DIES}
        streams = [Stream(question(fault, **more)) for fault in DIES]
        whole = [Stream(question(fault, **more), streams=False) for fault in ("silent", "long_length", "failure")]
        tasks = [asyncio.create_task(it.run(stage.door.port, f"q{n}")) for n, it in enumerate([*streams, *whole])]
        while any(stage.asked(fault) == count for fault, count in asked.items()):
            await asyncio.sleep(0.005)
        stage.end_the_liar()
        await asyncio.gather(*tasks)
        return [*streams, *whole]

    for number, stream in enumerate(asyncio.run(all_of_them())):
        is_whole(stream, stream.body, f"q{number}")
    stage.lie_again()
