"""Memory that isn't there though it was promised, or that others take, for real: reference engines, real memory, real
programs beside them. What isn't free is leased to none, an alarm names who has it, and what was awake goes on.
"""

import asyncio

import pytest

from tests.engine.shims import House
from tests.gateway.under_load import all_of, check
from tests.many.host import DEVICE, Host
from tests.many.test_swaps import KV, known, models
from vram.observer import Observer as Ledger
from vram.rules.messages import Status

pytestmark = pytest.mark.chaos
MIB = 1 << 20


def ledger(host: Host) -> Status:
    with Ledger(host.house.run_dir) as observer:
        return observer.status()


def test_a_sleep_that_frees_less_than_it_promised_is_named_the_next_wake_is_refused_and_the_old_one_goes_on(
    house: House,
) -> None:
    many = models("ab")
    keeps = house.directory / "keeps"
    many["a"] = {
        "engine": "tests.many.keeps_some:make",
        "arguments": [str(keeps), "--model", "a", "--seed", "0", *KV, "--tokens-per-s", "60"],
        "environment": {"REFERENCE_DEVICES": DEVICE},
        "memory": "96MiB",
    }
    host = Host(house, many, capacity="160MiB", drain_s=0.1).ready()
    asked = [host.stream("a", "Once", 300, ignore_eos=True)]
    like = known(host, asked)
    keeps.write_text(str(80 * MIB))

    async def story() -> None:
        running = asyncio.create_task(all_of(host.port, asked))
        while not any(model.name == "a" and model.streaming for model in host.shown()):
            await asyncio.sleep(0.01)
        refused = asyncio.create_task(host.stream("b", "Once").run(host.port))
        await asyncio.to_thread(host.until, lambda: ledger(host).alarms, "the alarm")
        print(ledger(host).alarms)
        await asyncio.to_thread(host.until, lambda: host.failed("b"), "b fails")
        print(host.shown_of("b"), ledger(host))
        check(await running, like)
        print(host.states())
        refused.cancel()

    try:
        asyncio.run(story())
    finally:
        print(host.up.said()[-5000:])
