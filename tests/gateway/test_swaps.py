"""Models that take turns behind a real door, with real locks: what streams is paused when its model sleeps, and goes on
with its next grant; nothing is cut, and every byte is the undisturbed answer's.
"""

import asyncio
import os
import random
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from lockserver.observer import Observer
from lockserver.rules import messages as m
from pool.entries import Limits, State
from tests.gateway.door import Stream, request_bytes
from tests.gateway.test_many_models import Many
from tests.gateway.under_load import all_of, check, questions
from tests.support.waiting import until

pytestmark = [pytest.mark.chaos, pytest.mark.xdist_group("gateway/swaps")]  # one house for all of them
SWAPS = int(os.environ.get("FAILOVER_DOOR_SWAPS", "20"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Many]:
    it = Many(Path(tmp_path_factory.mktemp("swaps")), Limits())
    yield it
    it.house.close()
    it.pool.close()
    it.cloud.server.shutdown()


def swap(many: Many, one: str, other: str, drain_s: float) -> None:
    """One sleeps, the other wakes, and the pool says so."""
    many.pool.see(one, State.DRAINING, turn=1, estimate_ms=100)
    many.pool.see(other, State.WAKING, estimate_ms=50)
    with Observer(many.pool.lock_of(one)) as lock:
        step = lock.ask(m.Sleep(drain_timeout_s=drain_s, why=f"it is {other}'s turn"), m.SwitchoverStep)
        while not step.done:
            step = lock.hear(m.SwitchoverStep, 30.0)
        assert step.ok, step
    many.pool.see(one, State.ASLEEP, turn=1, estimate_ms=100)
    wake(many, other)


def wake(many: Many, name: str) -> None:
    with Observer(many.pool.lock_of(name)) as lock:
        assert lock.ask(m.Wake(), m.SwitchoverStep).ok
    many.pool.see(name, State.AWAKE, estimate_ms=0)


def test_nothing_is_cut_and_nothing_is_wrong_however_often_models_take_turns(many: Many) -> None:
    seed = int(os.environ.get("FAILOVER_DOOR_SEED", "0")) or random.randrange(1 << 30)
    print(f"FAILOVER_DOOR_SEED={seed}")
    dice = random.Random(seed)
    asked = questions(32, dice)
    for number, stream in enumerate(asked):
        stream.body["model"] = ("chat", "small")[number % 2]
    like = asyncio.run(all_of(many.door.port, asked))
    swap(many, "small", "chat", 5.0)
    over = threading.Event()

    def swaps() -> None:
        for number in range(SWAPS):
            one, other = ("chat", "small") if number % 2 == 0 else ("small", "chat")
            until(partial(serves, many, one), f"{one} serves")
            swap(many, one, other, dice.choice((0.0, 0.0, 0.05, 0.3)))
        over.set()
        for name in ("chat", "small"):
            wake(many, name)

    async def one(place: int) -> int:
        answers = 0
        while not over.is_set():
            check(await all_of(many.door.port, asked, None, [place]), [like[place]])
            answers += 1
        return answers

    async def story() -> int:
        swapping = asyncio.create_task(asyncio.to_thread(swaps))
        answers = await asyncio.gather(*(one(place) for place in range(len(asked))))
        await swapping
        return sum(answers)

    answers = asyncio.run(story())
    severed = sum(pair["severed"] for pair in many.door.state()["pairs"])
    print(f"{SWAPS} swaps under {answers} answers, {severed} pauses")
    assert severed and many.door.state()["ended"] == 0


def serves(many: Many, name: str) -> bool:
    pairs = many.door.state()["pairs"]
    return any(pair["serves"] for pair in pairs if pair["run_dir"].endswith(f"/{name}"))


def test_a_client_that_hangs_holds_no_swap_up_and_short_answers_finish_first(many: Many) -> None:
    for name in ("chat", "small"):
        wake(many, name)
        until(partial(serves, many, name), f"{name} serves")

    async def story() -> Stream:
        _, hung = await asyncio.open_connection("127.0.0.1", many.door.port)
        body = {"model": "chat", "prompt": "x", "max_tokens": 400, "stream": True, "ignore_eos": True, "temperature": 0}
        hung.write(request_bytes("/v1/completions", body))
        short = Stream({**body, "max_tokens": 20})
        running = asyncio.create_task(short.run(many.door.port))
        while not short.raw:
            await asyncio.sleep(0.005)
        await asyncio.to_thread(swap, many, "chat", "small", 1.0)
        hung.close()
        return await asyncio.wait_for(running, 30)

    short = asyncio.run(story())
    assert short.whole and b": " not in short.raw.replace(b"data: ", b""), "it finished within the drain"
