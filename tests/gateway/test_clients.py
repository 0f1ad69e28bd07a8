"""The `openai` package through the door, while the engine that answers is killed."""

import json
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from prometheus_client.parser import text_string_to_metric_families

from gateway.shell.metrics import of_engines
from tests.engine.shims import House, Shim
from tests.gateway.door import GatewayProgram, ask
from tests.gateway.under_load import pair, whole

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("gateway/clients")]  # one house for all of them

TALK: dict[str, Any] = {
    "model": "reference",
    "messages": [{"role": "user", "content": "Tell me of the sea"}],
    "max_tokens": 90,
    "temperature": 0,
    "extra_body": {"ignore_eos": True},
}
WEATHER: dict[str, Any] = {
    "type": "function",
    "function": {"name": "weather", "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}},
}


class Stage:
    def __init__(self, house: House) -> None:
        self.house = house
        self.house.devices.mkdir(mode=0o700)
        self.shims = pair(self.house)
        whole(self.shims)
        self.door = GatewayProgram(self.house).serving()
        self.client = openai.OpenAI(base_url=f"{self.door.url}/v1", api_key="x", max_retries=0)

    def active(self) -> Shim:
        return whole(self.shims)[0]


@pytest.fixture(scope="module")
def stage(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stage]:
    house = House(Path(tmp_path_factory.mktemp("clients")))
    try:
        yield Stage(house)
    finally:
        house.close()  # whatever of it was started


def kill(shim: Shim) -> None:
    shim.main().signal(signal.SIGKILL)


def told(chunks: Iterator[Any], at: int, strike: Any) -> tuple[str, str | None, Any]:
    """Text, reason to end, and usage; `strike` is called behind so many chunks."""
    text, reason, usage = "", None, None
    for place, chunk in enumerate(chunks):
        if place == at:
            strike()
        if chunk.choices:
            text += chunk.choices[0].delta.content or ""
            reason = chunk.choices[0].finish_reason or reason
        usage = chunk.usage or usage
    return text, reason, usage


@pytest.mark.parametrize("at", [0, 20])
def test_a_chat_that_streams_goes_on(stage: Stage, at: int) -> None:
    def ask(strike: Any) -> Any:
        chunks = stage.client.chat.completions.create(**TALK, stream=True, stream_options={"include_usage": True})
        return told(iter(chunks), at, strike)

    active = stage.active()
    like = ask(lambda: None)
    assert like[1] == "length" and like[2].completion_tokens == 90
    assert ask(lambda: kill(active)) == like


def test_a_whole_answer_is_made_again(stage: Stage) -> None:
    active = stage.active()
    like = stage.client.chat.completions.create(**TALK).choices[0].message.content
    timer = threading.Timer(0.3, kill, (active,))
    timer.start()
    assert stage.client.chat.completions.create(**TALK).choices[0].message.content == like
    timer.join()


def test_tools_and_json_go_on(stage: Stage) -> None:
    def arguments(strike: Any) -> tuple[str, str]:
        name, said, place = "", "", 0
        chunks = stage.client.chat.completions.create(**{**TALK, "tools": [WEATHER]}, stream=True)
        for chunk in chunks:
            for call in chunk.choices[0].delta.tool_calls or ():
                place += 1
                if place == 3:
                    strike()
                name += call.function.name or ""
                said += call.function.arguments or ""
        return name, said

    active = stage.active()
    like = arguments(lambda: None)
    assert like[0] == "weather" and "city" in json.loads(like[1])
    assert arguments(lambda: kill(active)) == like


def test_completions_and_vectors_and_models(stage: Stage) -> None:
    active = stage.active()
    asked: dict[str, Any] = {"model": "reference", "prompt": "The sea", "max_tokens": 40, "temperature": 0}
    like = stage.client.completions.create(**asked).choices[0].text
    text = ""
    for place, chunk in enumerate(stage.client.completions.create(**asked, stream=True)):
        if place == 10:
            kill(active)
        text += chunk.choices[0].text
    assert text == like
    vector = stage.client.embeddings.create(model="reference", input="the sea").data[0].embedding
    assert len(vector) == 256
    assert [model.id for model in stage.client.models.list()] == ["reference"]


def test_what_is_wrong_is_the_engines_own_word(stage: Stage) -> None:
    with pytest.raises(openai.BadRequestError, match=r"max_completion_tokens|context"):
        stage.client.chat.completions.create(**{**TALK, "max_tokens": 100_000})
    with pytest.raises(openai.NotFoundError):
        stage.client.chat.completions.create(**{**TALK, "model": "another"})


def test_the_engines_own_metrics_are_under_the_doors_roof(stage: Stage) -> None:
    page = ask(stage.door.port, "/metrics")[2].decode()
    families = {family.name for family in text_string_to_metric_families(page)}
    assert {"vllm:num_requests_running", "vllm:num_requests_waiting", "failover_door_requests"} <= families
    assert "reference_steps" not in page, "nothing else of the engine's"


def test_engines_of_several_pairs_say_each_name_once_and_whose_it_is() -> None:
    said = [b"# HELP vllm:x What it is.", b"# TYPE vllm:x gauge", b'vllm:x{model="m"} 1', b"vllm:y 2", b"other 3", b""]
    said[3:3] = [b"# TYPE vllm:y gauge"]
    page = b"\n".join(said)
    assert of_engines([("/a", page)]) == page.replace(b"other 3\n", b"")
    assert of_engines([("/a", b"# TYPE \n# HELP\n" + page)]) == of_engines([("/a", page)]), "whatever an engine says"
    both = of_engines([("/a", page), ("/b", page), ("/c", b"")]).splitlines()
    assert both == [
        *(b"# HELP vllm:x What it is.", b"# TYPE vllm:x gauge"),
        *(b'vllm:x{run_dir="/a",model="m"} 1', b'vllm:x{run_dir="/b",model="m"} 1'),
        *(b"# TYPE vllm:y gauge", b'vllm:y{run_dir="/a"} 2', b'vllm:y{run_dir="/b"} 2'),
    ]
