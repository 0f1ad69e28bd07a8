"""Real engines, real GMS, real SIGKILL at any moment: every answer is the undisturbed one, token for token.

FAILOVER_KV_KILLS=500 python -m pytest tests/kv/test_kills.py      for so many kills; by default a few
"""

import asyncio
import os
import random
from pathlib import Path

import pytest

from tests.kv.engines import Asked, Chain, Undisturbed, metrics, tokens

KILLS = int(os.environ.get("FAILOVER_KV_KILLS", "12"))
STREAMS = 64
QUESTIONS = 40
DEADLINE_S = 120 + 15 * KILLS  # a kill takes two seconds on a quiet machine

pytestmark = pytest.mark.chaos


def questions(rng: random.Random) -> list[Asked]:
    """Prompts that share beginnings and branch."""
    families = [[rng.randrange(300) for _ in range(120)] for _ in range(4)]
    return [
        Asked(
            tuple(
                rng.choice(families)[: rng.randrange(20, 120)] + [rng.randrange(300) for _ in range(rng.randrange(40))]
            ),
            rng.randrange(20, 80),
        )
        for _ in range(QUESTIONS)
    ]


class Load:
    """Clients that ask one question after the other and go on where an answer broke."""

    def __init__(self, chain: Chain, asked: list[Asked], undisturbed: Undisturbed, rng: random.Random) -> None:
        self.chain, self.asked, self.undisturbed, self.rng = chain, asked, undisturbed, rng
        self.answered = self.broken = 0
        self.ended = False

    async def client(self) -> None:
        while not self.ended:
            asked, had = self.rng.choice(self.asked), list[int]()
            while not await tokens(self._path(), asked, had):
                self.broken += 1
                await asyncio.sleep(0.01)
            assert had == self.undisturbed.answer(asked), "an answer isn't the undisturbed one"
            self.answered += 1

    async def killer(self, kills: int) -> None:
        for _ in range(kills):
            await asyncio.sleep(self.rng.uniform(0.05, 0.6))
            self.chain.pages[-1] = await metrics(self._path())
            await asyncio.sleep(self.rng.uniform(0, 0.1))
            await asyncio.to_thread(self.chain.turn)
        answered = self.answered
        while self.answered < answered + 10:
            await asyncio.sleep(0.01)
        self.chain.pages[-1] = await metrics(self._path())
        self.ended = True

    def _path(self) -> Path:
        assert self.chain.current is not None
        return self.chain.current.path

    async def run(self, kills: int) -> None:
        async with asyncio.timeout(DEADLINE_S), asyncio.TaskGroup() as group:
            for _ in range(STREAMS):
                group.create_task(self.client())
            group.create_task(self.killer(kills))


@pytest.mark.timeout(DEADLINE_S + 60)
def test_every_answer_under_kills_is_the_undisturbed_one_and_blocks_are_reused(chain: Chain) -> None:
    seed = int(os.environ.get("FAILOVER_KV_SEED", "0")) or random.randrange(1 << 32)
    print(f"FAILOVER_KV_SEED={seed}")
    rng = random.Random(seed)
    undisturbed, asked = Undisturbed(), questions(rng)
    for one in asked:
        undisturbed.answer(one)
    chain.begin()
    load = Load(chain, asked, undisturbed, rng)
    asyncio.run(load.run(KILLS))
    adopted, reused = chain.total("failover_kv_blocks_adopted_total"), chain.total("vllm:prefix_cache_hits_total")
    print(
        f"{KILLS} kills, {load.answered} answers, {load.broken} breaks; {adopted:.0f} blocks adopted, {reused:.0f} of "
        f"{chain.total('vllm:prefix_cache_queries_total'):.0f} tokens of full blocks reused; "
        f"whys { ({key: chain.total(key) for page in chain.pages for key in page if key.startswith('why:')}) }"
    )
    assert load.broken > KILLS
    assert adopted > 0 and reused > 0
