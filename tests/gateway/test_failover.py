"""Real engines killed behind a real door, while 64 clients read: no request fails, and every byte is the undisturbed
answer's.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.engine import kinds
from tests.engine.house import House, Shim, until
from tests.gateway.door import GatewayProgram, Stream

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

ROUNDS = int(os.environ.get("FAILOVER_DOOR_ROUNDS", "4"))
STREAMS = int(os.environ.get("FAILOVER_DOOR_STREAMS", "32"))
PACE = ("--tokens-per-s", "100", "--max-batch", "64", "--kv-bytes", "16MiB", "--layers", "2", "--width", "64")


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    here = House(Path(tmp_path_factory.mktemp("door", numbered=True)))
    here.devices.mkdir(mode=0o700)
    yield here
    here.close()


def pair(house: House, *arguments: str) -> list[Shim]:
    kind = kinds.REFERENCE
    house.start_lock(*kind.lock)
    house.start_gms(kind)
    return [house.shim(kind, name, arguments=(*PACE, *arguments)) for name in "ab"]


def whole(shims: list[Shim]) -> tuple[Shim, Shim]:
    """Who serves, and who is ready to."""

    def look() -> tuple[Shim, Shim] | None:
        states = {shim.state()["state"]: shim for shim in shims if shim.state()["ready"]}
        return (states["Active"], states["Standby"]) if set(states) >= {"Active", "Standby"} else None

    found = until(look, "one serves and the other is ready")
    assert found is not None
    return found


def questions(count: int, dice: random.Random) -> list[dict[str, Any]]:
    found = []
    for number in range(count):
        body: dict[str, Any] = {
            "prompt": f"stream {number}",
            "max_tokens": dice.randrange(10, 80),
            "temperature": 0,
            "ignore_eos": True,
            "stream_options": {"include_usage": True},
        }
        if number % 5 == 1:
            body |= {"temperature": 1.0, "seed": number}
        if number % 5 == 2:
            body |= {"logprobs": 1}
        if number % 7 == 3:
            body |= {"presence_penalty": 0.7}
        found.append(body)
    return found


async def all_of(port: int, bodies: list[dict[str, Any]], meanwhile: Callable[[], None] | None = None) -> list[Stream]:
    streams = [Stream(body) for body in bodies]
    tasks = [asyncio.create_task(stream.run(port, f"q{place}")) for place, stream in enumerate(streams)]
    if meanwhile is not None:
        await asyncio.to_thread(meanwhile)
    await asyncio.gather(*tasks)
    return streams


def check(streams: list[Stream], like: list[Stream]) -> None:
    for stream, other in zip(streams, like, strict=True):
        assert (stream.status, stream.whole, stream.error) == (200, True, ""), (stream.raw[-300:], stream.body)
        assert stream.alike == other.alike, stream.body


VICTIMS: dict[str, Callable[[Shim], None]] = {
    "main": lambda shim: shim.main().signal(signal.SIGKILL),
    "worker": lambda shim: shim.workers()[0].signal(signal.SIGKILL),
    "group": lambda shim: os.killpg(shim.main().pid, signal.SIGKILL),
}


def test_kills_under_load_are_not_in_the_answers(house: House) -> None:
    seed = int(os.environ.get("FAILOVER_DOOR_SEED", "0")) or random.randrange(1 << 30)
    print(f"FAILOVER_DOOR_SEED={seed}")
    dice = random.Random(seed)
    shims = pair(house)
    whole(shims)
    door = GatewayProgram(house).serving()
    bodies = questions(STREAMS, dice)
    like = asyncio.run(all_of(door.port, bodies))
    check(like, like)
    gaps = []
    for _ in range(ROUNDS):
        active, _ = whole(shims)
        victim = dice.choice(list(VICTIMS))
        wait_s = dice.uniform(0.05, 1.0)

        def strike(active: Shim = active, victim: str = victim, wait_s: float = wait_s) -> None:
            signal.sigtimedwait([], wait_s)
            VICTIMS[victim](active)

        streams = asyncio.run(all_of(door.port, bodies, strike))
        check(streams, like)
        gaps.append(max(stream.gap_s for stream in streams))
    state = door.state()
    assert (state["ended"], state["refused"]) == (0, 0), json.dumps(state)
    assert state["continued"] + state["compared"] + state["restarted"] > 0
    print(
        f"longest gaps: {[round(gap * 1000) for gap in gaps]} ms; {state['continued']} continued, "
        f"{state['compared']} compared, {state['restarted']} restarted"
    )
