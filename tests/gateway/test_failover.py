"""Real engines killed behind a real door, while 64 clients read: no request fails, and every byte is the undisturbed
answer's. For longer: `make soak`.
"""

import asyncio
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.engine.shims import House
from tests.gateway.door import GatewayProgram, Stream
from tests.gateway.under_load import DEEDS, Stage, all_of, check, pair, whole

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]


@pytest.fixture
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    here = House(Path(tmp_path_factory.mktemp("door", numbered=True)))
    here.devices.mkdir(mode=0o700)
    yield here
    here.close()


def test_what_dies_under_load_is_not_in_the_answers(house: House) -> None:
    seed = int(os.environ.get("FAILOVER_DOOR_SEED", "0")) or random.randrange(1 << 30)
    print(f"FAILOVER_DOOR_SEED={seed}")
    dice = random.Random(seed)
    stage = Stage(house, dice)
    deeds = dice.sample(DEEDS, len(DEEDS))
    gaps: list[float] = []
    for number, deed in enumerate(deeds, 1):
        whole(stage.shims)
        wait_s = dice.uniform(0.0, 1.0)

        def strike(deed: Callable[[Stage], None] = deed, wait_s: float = wait_s) -> None:
            signal.sigtimedwait([], wait_s)
            deed(stage)

        streams = asyncio.run(all_of(stage.door.port, stage.asked, strike))
        check(streams, stage.like)
        gaps += [stream.gap_s for stream in streams]
        longest = sorted(round(stream.gap_s * 1000) for stream in streams)
        print(f"{number} {deed.__name__}: each stream's longest gap in ms: {longest}")
    state = stage.door.state()
    assert (state["ended"], state["refused"]) == (0, 0), json.dumps(state)
    assert state["continued"] and state["compared"] and state["restarted"]
    print(
        f"{len(deeds)} rounds, {len(gaps)} answers; longest gaps p50 {sorted(gaps)[len(gaps) // 2] * 1000:.0f} ms, max "
        f"{max(gaps) * 1000:.0f} ms; {state['continued']} continued, {state['compared']} compared, "
        f"{state['restarted']} restarted"
    )


def test_contexts_that_are_kept_take_no_turns(house: House) -> None:
    """With turns all but the first would wait for others' first tokens, which the door counts as time. Here they are
    admitted in the very event in which the door hears of the successor, and that takes no time.
    """
    clients, reread = 10, 160
    shims = pair(house, "--tokens-per-s", "4")
    whole(shims)
    door = GatewayProgram(house, "--reread-tokens", str(reread)).serving()
    body = {"max_tokens": 24, "temperature": 0, "ignore_eos": True}
    asked = [Stream({**body, "prompt": f"{number} of those who have said much: " * 10}) for number in range(clients)]

    async def broken() -> list[Stream]:
        streams = [Stream(one.body) for one in asked]
        tasks = [asyncio.create_task(stream.run(door.port, f"q{place}")) for place, stream in enumerate(streams)]
        while any(len(stream.at) < 4 for stream in streams):
            await asyncio.sleep(0.01)
        shims[0].main().kill() if house.holder() == "a" else shims[1].main().kill()
        await asyncio.gather(*tasks)
        return streams

    streams = asyncio.run(broken())
    check(streams, asyncio.run(all_of(door.port, asked)))
    page = f"\n{door.get('/metrics')[1]}"
    names = ("failover_door_gap_seconds_count", 'failover_door_gap_part_seconds_total{part="turn"}')
    paused, turns_s = (float(page.partition(f"\n{name} ")[2].partition("\n")[0]) for name in names)
    assert (paused, turns_s) == (clients, 0.0), door.state()
