"""Engines that end, by a request or because they are told to, behind a real door: how many a request may cost, and what
the door says when none is left.
"""

import asyncio
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest

from tests.engine.shims import House, Program
from tests.gateway.door import GatewayProgram, Stream, ask
from tests.gateway.under_load import pair, whole
from tests.support.waiting import until

pytestmark = pytest.mark.chaos


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    here = House(Path(tmp_path_factory.mktemp("ends")))
    here.devices.mkdir(mode=0o700)
    yield here
    here.close()


class _Engines:
    """Two of them, each started again when it has died, as a shim does it."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.living: dict[str, Program] = {}

    def turn(self) -> None:
        for name in "ab":
            if name not in self.living or self.living[name].dead:
                if name in self.living:
                    self.living[name].child.wait()
                self.living[name] = Program(self.house, name, "tests.gateway.liar", str(self.house.run_dir), name)
                self.house.add(self.living[name])

    @property
    def deaths(self) -> int:
        path = self.house.run_dir / "asked.dies"
        return len(path.read_text()) if path.exists() else 0


def test_poison_costs_three_engines_however_often_it_is_asked(house: House) -> None:
    """OpenAI's own client asks twice more, and others may ask the same."""
    house.start_lock("--memory", "none", "--grant-unproven")
    engines = _Engines(house)
    engines.turn()
    door = GatewayProgram(house).serving()
    asked: dict[str, Any] = {"model": "sim", "prompt": "fault:dies of it", "max_tokens": 5}
    errors: list[openai.APIStatusError] = []

    def client() -> None:
        with openai.OpenAI(base_url=f"{door.url}/v1", api_key="x") as it, pytest.raises(openai.APIStatusError) as said:
            it.completions.create(**asked)
        errors.append(said.value)

    for told in (1, 2):
        thread = threading.Thread(target=client)
        thread.start()

        def over(thread: threading.Thread = thread) -> bool:
            engines.turn()
            return not thread.is_alive()

        until(over, "the client has an answer")
        assert (engines.deaths, len(errors)) == (3, told)
    for error in errors:
        assert error.status_code == 502 and error.response.headers["x-should-retry"] == "false"
        assert error.body["retry_safe"] is False and "three engines have died" in error.message  # type: ignore[index]

    def served() -> bool:
        engines.turn()
        return ask(door.port, "/v1/completions", {**asked, "prompt": "well"})[0] == 200

    until(served, "no other is refused")


def test_told_to_end_its_engines_leave_a_door_that_says_no_at_once_while_streams_finish(house: House) -> None:
    """A pod that is deleted: the engines are told, and the door only when they have ended."""
    shims = pair(house)
    whole(shims)
    door = GatewayProgram(house).serving()
    body: dict[str, Any] = {"prompt": "tell me", "max_tokens": 900, "temperature": 0, "ignore_eos": True}

    async def story() -> Stream:
        stream = Stream(body)
        task = asyncio.create_task(stream.run(door.port, "q"))
        while len(stream.at) < 10:
            await asyncio.sleep(0.01)
        for shim in shims:
            shim.signal(signal.SIGTERM)
        while (await asyncio.to_thread(door.get, "/ready"))[0] == 200:
            assert not task.done(), "it was ready until the last engine had ended"
            await asyncio.sleep(0.02)
        status, headers, said = await asyncio.to_thread(ask, door.port, "/v1/completions", body)
        assert status == 503 and headers["retry-after"] and b"told to end" in said
        assert not task.done(), "who came had to wait for the end"
        return await task

    stream = asyncio.run(story())
    assert stream.whole and b"[DONE]" in stream.raw
    assert "told to end" in door.get("/ready")[1]
