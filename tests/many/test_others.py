"""Memory that isn't there though it was promised, and programs beside the models that take some, ask for some, or grow:
real engines, real memory. What isn't free is leased to none, it is said who has it, and what was awake goes on.
"""

import asyncio
import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from gms.memory.host import HostMemory
from pool.entries import State
from tests.engine.shims import House
from tests.gateway.under_load import all_of, check
from tests.many.host import Host
from tests.many.test_swaps import known
from tests.support.processes import Program
from tests.vram.programs import DEVICE, MIB, VRAMCTL, Holder
from vram.observer import Observer as Ledger
from vram.rules.messages import Status

pytestmark = pytest.mark.chaos
CAPACITY = 160
OTHER = 120
"""So many MiB `b` takes, beside which `a` has no room."""
WEIGHTS = 12
"""Of both models."""

Beside = Callable[..., Holder]


@pytest.fixture
def beside(house: House) -> Iterator[Beside]:
    """Makes programs that use memory, with a lease or without."""
    with contextlib.ExitStack() as stack:

        def make(name: str, *hold: str) -> Holder:
            """`hold`: the settings of the `vramctl hold` that it runs under, if it does."""
            command = (sys.executable, "-m", "tests.vram.programs", str(house.run_dir), name)
            through = (*VRAMCTL, "--run-dir", str(house.run_dir), "hold", *hold, "--") if hold else ()
            program = Program(*through, *command, environment={"FAILOVER_HOST_DEVICES": str(house.devices)})
            stack.callback(program.close)
            return Holder(program)

        yield make


def two(house: House, mib: int, **file: Any) -> Host:
    """`a` takes so much, and is an engine that does what files in its directory say; so does `b`, which takes more."""

    def model(seed: int, name: str, takes: int) -> dict[str, Any]:
        (house.directory / name).mkdir()
        how = ("--model", name, "--seed", str(seed), "--tokens-per-s", "60", "--kv-bytes", f"{takes}MiB")
        return {
            "engine": "tests.many.odd_engine:make",
            "arguments": [str(house.directory / name), *how],
            "environment": {"REFERENCE_DEVICES": DEVICE},
            "memory": f"{takes}MiB",
        }

    models = {"a": model(0, "a", mib), "b": model(1, "b", OTHER)}
    return Host(house, models, devices=[DEVICE], capacity=f"{CAPACITY}MiB", drain_s=0.1, **file).ready()


def ledger(host: Host) -> Status:
    with Ledger(host.house.run_dir) as observer:
        return observer.status()


def foreign(host: Host) -> int:
    """So many MiB, as the ledger has measured it."""
    return sum(one.foreign for one in ledger(host).devices) // MIB


async def so(host: Host, look: Callable[[], object], what: str) -> None:
    await asyncio.to_thread(host.until, look, what)


def answered_at_last(host: Host, name: str) -> None:
    """Unasked by a person: what has failed is tried again for the next request."""

    def look() -> bool:
        (stream,) = host.run([host.stream(name)])
        return stream.status == 200 and b'"error"' not in stream.raw

    host.until(look, f"{name} answers")


def play(host: Host, story: Callable[[Any], Any]) -> None:
    """`story` gets an answer of `a` that streams. It is whole at last, and what it is when nothing else happens."""
    asked = [host.stream("a", "Once", 300, ignore_eos=True)]
    like = known(host, asked)

    async def all_of_it() -> None:
        running = asyncio.create_task(all_of(host.port, asked))
        await so(host, lambda: host.shown_of("a").streaming, "a streams")
        await story(running)
        check(await running, like)

    asyncio.run(all_of_it())


# -- what is promised, and isn't there ---------------------------------------------------------------------------------


def test_after_a_sleep_that_freed_less_than_promised_the_next_wake_is_refused_by_name_and_the_old_one_goes_on(
    house: House,
) -> None:
    host = two(house, 96)
    keeps = house.directory / "a" / "keeps"

    async def story(running: Any) -> None:
        keeps.write_text(str(80 * MIB))
        refused = asyncio.create_task(host.stream("b", "Once").run(host.port))
        said = f"said that it has given back a, and 80 MiB of {DEVICE} are still in use"
        await so(host, lambda: said in str(ledger(host).alarms), "the alarm says who, and how much")
        await so(host, lambda: host.failed("b"), "b is refused")
        assert "there is no room for b" in host.up.said() and said in host.up.said()
        await so(host, lambda: host.states()["a"] is State.AWAKE, "what a still has is its own again")
        assert not ledger(host).alarms and b'"error"' in (await refused).raw

    play(host, story)
    assert host.shown_of("a").failures == 0
    keeps.unlink()  # from now on it gives all of it back
    answered_at_last(host, "b")


def test_what_another_program_takes_between_the_choice_and_the_wake_is_its_own_and_the_old_one_is_back(
    house: House, beside: Beside
) -> None:
    """The worst moment: the ledger has promised it."""
    host, training = two(house, 60), beside("training")
    memory, wakes = HostMemory("0", house.devices), house.directory / "b" / "wakes"

    async def story(running: Any) -> None:
        wakes.touch()
        refused = asyncio.create_task(host.stream("b", "Once").run(host.port))
        await so(host, lambda: any(one.name == "b" for one in ledger(host).leases), "b has its lease")
        assert memory.free() == (CAPACITY - WEIGHTS) * MIB, "and hasn't taken it yet"
        assert training.does("use", 80 * MIB) == "ok"
        wakes.unlink()
        await so(host, lambda: foreign(host) == 80, "its wake finds less, it ends, and it is seen what others have")
        await so(host, lambda: host.states()["a"] is State.AWAKE, "a is back")
        assert not any(one.name == "b" for one in ledger(host).leases)
        await so(host, lambda: "where all models together may have" in host.shown_of("b").why, "it is said why b isn't")
        refused.cancel()

    play(host, story)
    assert training.does("free") == "ok"
    host.answered(host.run([host.stream("b")]))


def test_a_program_without_a_lease_that_grows_beside_a_model_costs_it_nothing_and_no_other_is_promised_it(
    house: House, beside: Beside
) -> None:
    host, training = two(house, 60), beside("training")

    async def story(running: Any) -> None:
        assert training.does("use", 20 * MIB) == "ok"
        await so(host, lambda: foreign(host) == 20, "it is measured")
        assert host.model("b").why == "asleep"  # type: ignore[union-attr]
        assert training.does("use", 40 * MIB) == "ok"
        await so(host, lambda: foreign(host) == 60, "and so is what it takes besides")
        waits = asyncio.create_task(host.stream("b", "Once").run(host.port))
        await so(host, lambda: host.shown_of("b").waiting, "a request waits for b")
        assert f"it takes {OTHER} MiB of {DEVICE}" in host.shown_of("b").why
        await running
        assert host.shown_of("a").pauses == 0 and host.shown_of("a").swaps == 1, "none was put to sleep in vain"
        assert training.does("free") == "ok"
        host.answered([await waits])

    play(host, story)


# -- a program under `vramctl hold` that asks for more, with a lease of its own besides --------------------------------


def train(beside: Beside, *how: str) -> Holder:
    program = beside("train.own", "--name", "train", "--needs", f"{DEVICE}=10MiB")
    assert program.does("reserve", "own", 20 * MIB, *how) == "ok"
    return program


def test_one_that_asks_for_more_has_a_models_memory_once_its_answer_has_ended_and_the_model_waits_for_it(
    house: House, beside: Beside
) -> None:
    """For more than there is it is refused, and what it uses besides is foreign."""
    host, program = two(house, 60), train(beside)

    async def story(running: Any) -> None:
        said = f"200 MiB of {DEVICE} are needed, and it has {CAPACITY} MiB in all"
        assert said in program.does("resize", "own", 200 * MIB)
        assert program.does("use", 50 * MIB) == "ok", "it has what it had"
        await so(host, lambda: foreign(host) == 20, "10 MiB of these may be what its command has leased")
        assert host.shown_of("a").pauses == 0 and program.does("free") == "ok"
        await so(host, lambda: foreign(host) == 0, "it is seen to be free")
        program.tell("resize", "own", 100 * MIB)
        await so(host, lambda: "asked" in {one.state for one in ledger(host).leases if one.name == "a"}, "a is asked")
        assert await asyncio.to_thread(program.program.out.next) == "ok" and running.done()
        assert program.does("use", 100 * MIB) == "ok"
        waits = asyncio.create_task(host.stream("a", "Once").run(host.port))
        await so(host, lambda: host.shown_of("a").waiting, "a request waits for a")
        assert f"it takes 60 MiB of {DEVICE}, where all models together may have" in host.shown_of("a").why
        assert program.does("free") == "ok" and program.does("resize", "own", 20 * MIB) == "ok"
        host.answered([await waits])

    play(host, story)


def test_a_less_urgent_one_that_asks_for_more_waits_until_the_model_sleeps(house: House, beside: Beside) -> None:
    host, program = two(house, 60), train(beside, "priority=5")

    async def story(running: Any) -> None:
        program.tell("resize", "own", 100 * MIB)
        await so(host, lambda: any(one.name == "own" for one in ledger(host).waiters), "it waits")
        assert "may ask no lease for so much" in ledger(host).waiters[0].waits_for
        await running
        assert host.shown_of("a").pauses == 0
        assert any(one.name == "own" for one in ledger(host).waiters)

    play(host, story)
    host.do("sleep", "a")
    assert program.program.out.next() == "ok" and program.does("use", 100 * MIB) == "ok"
