"""Many models on one device, for real: reference engines, real memory, a real door, real SIGKILL. Nothing is cut,
nothing is wrong, nothing grows.
"""

import asyncio
import os
import random
import re
import signal
from collections.abc import Callable
from typing import Any

import pytest

from pool.entries import State
from sidecar.kernel import process_tree
from tests.engine.shims import House
from tests.gateway.door import Stream, ask
from tests.gateway.under_load import all_of, check, questions
from tests.many.host import Counted, Host
from tests.support.chance import seeded
from tests.support.processes import Process
from tests.support.waiting import until

pytestmark = pytest.mark.chaos
SWAPS = int(os.environ.get("FAILOVER_MANY_SWAPS", "40"))
ROUNDS = int(os.environ.get("FAILOVER_MANY_ROUNDS", "2"))
"""`make night` has more of both."""
KV = ("--kv-bytes", "96MiB")
"""On a device of 256 MiB two of them fit, and on one of 160 MiB one."""


def models(names: str, **more: Any) -> dict[str, dict[str, Any]]:
    return {name: {"arguments": ["--seed", str(n), *KV], "memory": "96MiB", **more} for n, name in enumerate(names)}


def known(host: Host, asked: list[Stream], at_a_time: int = 1) -> list[Stream]:
    """The answers while nothing else happens. `at_a_time`: of one model, where each takes its time."""
    together = [range(len(asked))[n : n + at_a_time] for n in range(0, len(asked), at_a_time)]
    answers = [answer for places in together for answer in asyncio.run(all_of(host.port, asked, None, places))]
    host.answered(answers)
    host.until(lambda: not any(model.streaming for model in host.shown()), "the page has heard that it is over")
    return answers


def test_two_models_swap_again_and_again_and_nothing_grows(house: House) -> None:
    host = Host(house, models("ab"), capacity="160MiB").ready()
    asked = [host.stream(name, prompt) for name in "ab" for prompt in ("Once", "upon")]
    like = known(host, asked)
    for number in range(SWAPS):
        place = number % 4 // 2 + number % 2 * 2  # a, b, a, b ...
        check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
        if number == SWAPS // 3 | 1:  # b is awake, as in the end
            before = host.counted()
    after = host.counted()
    swaps = {one.name: one.swaps for one in (host.listing() or pytest.fail("no pool")).models}
    assert sum(swaps.values()) >= SWAPS and sum(one.failures for one in host.shown()) == 0
    after.check(before, before.memory * 1.1 + (8 << 20))


def test_a_kv_cache_that_is_to_be_kept_is_in_no_other_models_way_and_comes_back(house: House) -> None:
    """It stayed in the device, and for the others there was no room again: now it sleeps in host memory."""
    many = models("ab")
    for name, parked in (("a", "1GiB"), ("b", "0")):
        many[name]["kv_parked"] = parked
    host = Host(house, many, capacity="160MiB").ready()
    asked = [host.stream(name, "Once upon a time " * 8) for name in "ab"]
    like = known(host, asked)
    for place in (0, 1, 0, 1, 0):
        check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
    assert sum(one.failures for one in host.shown()) == 0
    holder = host.holder("a")
    assert holder is not None and holder.kept is not None, "the door is told of it"
    said = re.findall(r"^(\w) .* kv adopted=(\d+) dropped=0 why=none$", host.up.said(), re.MULTILINE)
    assert said and all(name == "a" and int(adopted) for name, adopted in said), said


def test_the_door_is_told_of_no_kept_cache_where_a_standby_has_served_since(house: House) -> None:
    """Two engines of one model take turns, and what either parked is from before the other's."""
    host = Host(house, models("ab", kv_parked="1GiB", standby=True), capacity="200MiB").ready()
    for name in "abababa":
        host.answered(host.run([host.stream(name, "Once upon a time " * 8)]))
    holder = host.holder("a")
    assert holder is not None and holder.kept is None
    assert "a.a" in host.up.said() and "why=none" in host.up.said()


def test_eight_models_under_streams_of_every_kind_and_nothing_grows(house: House) -> None:
    dice = seeded()
    host = Host(house, models("abcdefgh"), capacity="300MiB", drain_s=0.2).ready()
    asked = questions(32, dice, most_tokens=120)
    for number, stream in enumerate(asked):
        stream.body["model"] = "abcdefgh"[number // 4]
    like = known(host, asked, 4)

    async def one(place: int, rounds: int) -> None:
        for _ in range(rounds):
            check(await all_of(host.port, asked, None, [place]), [like[place]])

    async def story(rounds: int) -> Counted:
        await asyncio.gather(*(one(place, rounds) for place in range(len(asked))))
        for place in (0, 4):  # these two are awake
            await one(place, 1)
        return host.counted()

    before, after = (asyncio.run(story(rounds)) for rounds in (1, ROUNDS - 1))
    after.check(before, before.memory * 1.1 + (8 << 20))
    shown = host.shown()
    assert all(model.swaps > 1 for model in shown) and sum(model.failures for model in shown) == 0, shown
    print(sum(model.swaps for model in shown), "swaps,", sum(model.pauses for model in shown), "pauses")


# -- kill -9 of anything, at each step of a swap -------------------------------------------------------------------


VICTIMS: dict[str, Callable[[Host], None]] = {
    "the pool": lambda host: host.part("pool").kill(),
    "the ledger": lambda host: host.part("vram").kill(),
    "the lock server": lambda host: host.part("lockserver").kill(),
    "gms": lambda host: host.part("gms").kill(),
    "an engine": lambda host: host.main("a").kill(),
    "a shim": lambda host: host.shim("a").kill(),
}
"""Whatever one model is at in a swap, the other is the counterpart of: those of `a` alone are killed."""


STEPS = (State.AWAKE, State.DRAINING, State.ASLEEP, State.WAKING)


async def asked_while_a_is(
    host: Host, step: State, asked: list[Stream], like: list[Stream]
) -> "asyncio.Task[list[Stream]]":
    """Clients that are being answered while `a` is at that step."""
    running = asyncio.create_task(all_of(host.port, asked))
    while (await asyncio.to_thread(host.states)).get("a") is not step:
        if running.done():
            check(await running, like)
            running = asyncio.create_task(all_of(host.port, asked))
    return running


@pytest.mark.parametrize("victim", VICTIMS)
def test_whatever_is_killed_in_a_swap_every_answer_is_whole(house: House, victim: str) -> None:
    slow = ("--tokens-per-s", "60")
    many = {name: {"arguments": ["--seed", str(n), *KV, *slow]} for n, name in enumerate("ab")}
    host = Host(house, many, capacity="160MiB", drain_s=0.1, swap_share=0.5).ready()
    asked = [host.stream(name, f"prompt {n}", 80) for name in "ab" for n in range(4)]
    like = known(host, asked, 4)

    async def story() -> None:
        for step in STEPS:
            running = await asked_while_a_is(host, step, asked, like)
            await asyncio.to_thread(VICTIMS[victim], host)
            check(await running, like)
            await asyncio.to_thread(
                host.until, lambda: host.well(), f"all is well after a kill while a is {step.value}"
            )

    asyncio.run(story())


def at_each_step(host: Host, kill: Callable[[], None], again: Callable[[], None]) -> None:
    """What has clients' connections, or all of it, is killed while `a` is at each step. Those that ask anew have what
    they would have had.
    """
    asked = [host.stream(name, f"prompt {n}", 80) for name in "ab" for n in range(4)]
    like = known(host, asked, 4)

    async def story() -> None:
        for step in STEPS:
            running = await asked_while_a_is(host, step, asked, like)
            await asyncio.to_thread(kill)
            await running
            await asyncio.to_thread(again)
            check(await all_of(host.port, asked), like)

    asyncio.run(story())


PACE = {name: {"arguments": ["--seed", str(n), *KV, "--tokens-per-s", "60"]} for n, name in enumerate("ab")}


def test_a_door_that_is_killed_in_a_swap_takes_only_its_own_connections_along(house: House) -> None:
    host = Host(house, PACE, capacity="160MiB", drain_s=0.1, swap_share=0.5).ready()
    engines = [host.main(name).pid for name in "ab"]
    at_each_step(
        host, lambda: host.part("gateway").kill(), lambda: host.until(lambda: answers(host), "the door is back")
    )
    assert engines == [host.main(name).pid for name in "ab"] and sum(one.failures for one in host.shown()) == 0


def test_a_launcher_that_is_killed_in_a_swap_takes_all_along_and_the_next_one_serves_as_before(house: House) -> None:
    host = Host(house, PACE, capacity="160MiB", drain_s=0.1, swap_share=0.5).ready()

    def kill() -> None:
        all_of_it = [Process(pid) for pid in process_tree.descendants(host.up.pid)]
        host.up.kill()
        for process in all_of_it:
            process.wait()

    def again() -> None:
        host.start()
        host.ready().until(lambda: answers(host), "its door answers, too")

    at_each_step(host, kill, again)


# -- what else may go wrong ----------------------------------------------------------------------------------------


def test_endless_traffic_for_one_keeps_the_other_neither_from_loading_nor_from_answering(house: House) -> None:
    """What was loaded for a request answers it before it sleeps for others."""
    many = models("ab")
    many["b"]["preload"] = False
    host = Host(house, many, capacity="160MiB", swap_share=0.9, drain_s=0.1)
    over = False

    async def endless() -> None:
        while not over:
            host.answered([await host.stream("a", "on and on", 20).run(host.port)])

    async def story() -> None:
        nonlocal over
        running = [asyncio.create_task(endless()) for _ in range(8)]
        host.answered([await host.stream("b", "me, too").run(host.port)])
        assert host.shown_of("b").swaps == 1, "it was awake once"
        host.answered([await host.stream("b", "me, again").run(host.port)])
        over = True
        await asyncio.gather(*running)

    host.until(lambda: host.states().get("a") in (State.ASLEEP, State.AWAKE), "a is loaded")
    asyncio.run(story())


def test_a_request_for_the_one_that_is_being_put_to_sleep_is_answered_too(house: House) -> None:
    host = Host(house, models("ab"), capacity="160MiB", drain_s=0.1, swap_share=0.5).ready()
    asked = [host.stream(name, "Once", 60) for name in "ab"]
    like = known(host, asked)

    async def story() -> None:
        for _ in range(6):
            check(await all_of(host.port, asked, None, [0]), [like[0]])
            other = asyncio.create_task(all_of(host.port, asked, None, [1]))
            while host.states().get("a") is State.AWAKE:
                await asyncio.sleep(0)
            check(await all_of(host.port, asked, None, [0]), [like[0]])
            check(await other, [like[1]])

    asyncio.run(story())


def test_for_a_victim_that_has_crashed_already_no_client_waits(house: House) -> None:
    host = Host(house, models("ab"), capacity="160MiB").ready()
    asked = [host.stream(name) for name in "ab"]
    like = known(host, asked)
    for _ in range(3):
        check(asyncio.run(all_of(host.port, asked, None, [0])), [like[0]])
        for process in (host.shim("a"), host.main("a")):
            process.kill()
        check(asyncio.run(all_of(host.port, asked, None, [1])), [like[1]])
        host.until(lambda: host.well(), "a's engine is there again")


def test_a_client_that_leaves_while_its_model_wakes_or_loads_disturbs_no_other(house: House) -> None:
    host = Host(house, models("ab", preload=False), capacity="160MiB")
    host.until(lambda: f"127.0.0.1:{host.port}/v1" in host.up.said(), "the door answers")
    host.until(lambda: ready(host)[0] == 200, "the door knows its models")

    async def story() -> None:
        running = asyncio.create_task(host.stream("a", "never mind", 400).run(host.port))
        while host.states().get("a") is not State.LOADING:
            await asyncio.sleep(0.01)
        running.cancel()
        host.answered([await host.stream("b", "Once").run(host.port)])

    asyncio.run(story())


def test_a_host_directory_that_is_moved_away_is_made_again_and_its_models_are_started_there(house: House) -> None:
    """The launcher, too, is where pools come anew."""
    host = Host(house, models("ab", preload=False), capacity="160MiB")
    host.until(lambda: f"127.0.0.1:{host.port}/v1" in host.up.said(), "the door answers")
    host.until(lambda: ready(host)[0] == 200, "the door knows its models")
    house.run_dir.rename(house.directory / "away")
    host.until(lambda: "launcher.sock was removed: made again" in host.up.said(), "the launcher listens again")
    host.until(lambda: len(host.states()) == 2 and not host.listing().waiting_for, "the pool has found it")  # type: ignore[union-attr]
    host.answered(host.run([host.stream("a"), host.stream("b", "Once")]))


def test_a_client_that_hangs_holds_up_no_swap(house: House) -> None:
    host = Host(house, models("ab"), capacity="160MiB", drain_s=0.1).ready()

    async def story() -> None:
        _, hung = await asyncio.open_connection("127.0.0.1", host.port)
        body = host.stream("a", "x", 2000, ignore_eos=True).body | {"stream": True}
        from tests.gateway.door import request_bytes

        hung.write(request_bytes("/v1/completions", body))
        while not any(model.name == "a" and model.streaming for model in host.shown()):
            await asyncio.sleep(0.01)
        host.answered([await host.stream("b", "Once").run(host.port)])
        hung.close()

    asyncio.run(story())


def test_a_pool_that_stands_still_is_said_by_the_door_and_no_request_is_lost(house: House) -> None:
    house.environment["FAILOVER_DOOR_FAILOVER_TIMEOUT_S"] = "5"
    host = Host(house, models("ab"), capacity="160MiB").ready()
    host.answered(host.run([host.stream("a")]))
    pool = host.part("pool")
    pool.stop()

    async def story() -> None:
        waits = asyncio.create_task(host.stream("b", "Once").run(host.port))
        await asyncio.to_thread(host.until, lambda: ready(host)[0] == 503, "the door isn't ready")
        assert "b" in ready(host)[1] and not waits.done()
        pool.signal(signal.SIGCONT)
        host.answered([await waits])
        await asyncio.to_thread(host.until, lambda: ready(host)[0] == 200, "the door is ready again")

    asyncio.run(story())


def answers(host: Host) -> bool:
    try:
        return ready(host)[0] == 200
    except OSError:
        return False


def ready(host: Host) -> tuple[int, str]:
    status, _, said = ask(host.port, "/ready", None)
    return status, said.decode()


def test_a_model_that_is_taken_out_of_the_file_answers_what_it_has(house: House) -> None:
    host = Host(house, models("ab", arguments=["--seed", "5", *KV, "--tokens-per-s", "60"]), capacity="160MiB").ready()
    asked = [host.stream("a", "Once", 300, ignore_eos=True)]
    like = known(host, asked)

    async def story() -> None:
        running = asyncio.create_task(all_of(host.port, asked))
        while not host.shown_of("a").streaming:
            await asyncio.sleep(0.01)
        del host.models["a"]
        host.write()
        os.kill(host.up.pid, signal.SIGHUP)
        check(await running, like)
        await asyncio.to_thread(host.until, lambda: host.model("a") is None, "it is gone")

    asyncio.run(story())


def test_an_answer_that_has_begun_is_never_ended_by_another_model_that_has_its_name_since(house: House) -> None:
    many = {name: {"arguments": ["--seed", str(n), *KV, "--tokens-per-s", "60"]} for n, name in enumerate("ab")}
    host = Host(house, many, capacity="160MiB", drain_s=0.1).ready()
    asked = [host.stream(name, "Once", 200, ignore_eos=True) for name in "ab"]
    old, new = ([choice["text"] for choice in choices(one)] for one in known(host, asked))

    async def story() -> None:
        running = asyncio.create_task(all_of(host.port, asked, None, [0]))
        while not host.shown_of("a").streaming:
            await asyncio.sleep(0.01)
        host.models["a"] = host.models["b"]
        host.write()
        os.kill(host.up.pid, signal.SIGHUP)
        (cut,) = await running
        said = [choice["text"] for choice in choices(cut)]
        assert said == old[: len(said)] != old and b"its model has other weights since the answer began" in cut.raw
        (whole,) = await all_of(host.port, asked, None, [0])
        assert [choice["text"] for choice in choices(whole)] == new

    asyncio.run(story())


def choices(stream: Stream) -> list[dict[str, Any]]:
    """Of all its events; an error's has none."""
    return [one for said in stream.alike.get(0, []) for one in said["choices"]]


def test_of_a_model_that_could_not_run_and_was_taken_out_nothing_stays(house: House) -> None:
    many = models("ab")
    many["b"]["arguments"] = ["--no-such-flag"]
    host = Host(house, many, capacity="160MiB")
    host.until(lambda: host.failed("b") and host.states()["a"] is State.ASLEEP, "b can't be started")
    place = house.run_dir / "lock" / "b"
    for number in range(5000):  # what takes its time to be removed, while the lock server looks on
        (place / "life" / f"more-{number}").touch()
    del host.models["b"]
    host.write()
    os.kill(host.up.pid, signal.SIGHUP)
    host.until(lambda: host.model("b") is None and not place.exists(), "nothing of it is left")


def test_a_model_that_doesnt_fit_fails_loudly_and_the_other_is_back_with_its_streams(house: House) -> None:
    many = models("ab")
    many["b"] = {"arguments": ["--seed", "9", "--kv-bytes", "140MiB"], "memory": "96MiB"}  # it says less than it takes
    host = Host(house, many, capacity="160MiB", drain_s=0.1).ready()
    held = host.hold("30MiB")
    host.until(lambda: "held" in held.said(), "another program has what is between the two")
    like = known(host, [host.stream("a", "Once", 300, ignore_eos=True)])

    async def story() -> None:
        running = asyncio.create_task(all_of(host.port, [host.stream("a", "Once", 300, ignore_eos=True)]))
        while not any(model.name == "a" and model.streaming for model in host.shown()):
            await asyncio.sleep(0.01)
        refused = asyncio.create_task(host.stream("b", "Once").run(host.port))
        await asyncio.to_thread(host.until, lambda: host.failed("b"), "b fails")
        check(await running, like)
        assert "there is no room for b" in host.up.said()
        refused.cancel()

    asyncio.run(story())


def test_other_parameters_cause_no_reload_and_a_keep_alive_is_over_with_the_next_request_that_says_none(
    house: House,
) -> None:
    """The model was kept awake for as long after each later request, too."""
    host = Host(house, models("a", keep_alive_s=0.1)).ready()
    more = [{"temperature": n % 2, "top_p": 0.5 + n / 40} for n in range(12)]
    asked = [host.stream("a", f"prompt {n}", 16, x_keep_alive_s=3600, **its) for n, its in enumerate(more)]
    host.answered(host.run(asked))
    host.until(lambda: not host.shown_of("a").streaming, "the pool has heard that it is over")
    assert host.states() == {"a": State.AWAKE} and host.shown_of("a").swaps == 1
    assert "starts" not in host.up.said().partition("wakes")[2]
    host.answered(host.run([host.stream("a")]))
    host.until_states(a=State.ASLEEP)


def test_with_a_standby_a_kill_is_a_pause_and_a_swap_is_one_too(house: House) -> None:
    host = Host(house, models("ab", standby=True), capacity="200MiB", drain_s=0.1).ready()
    asked = [host.stream(name, "Once", 200, ignore_eos=True) for name in "ab"]
    like = known(host, asked)
    for _ in range(3):

        async def story() -> None:
            running = asyncio.create_task(all_of(host.port, asked))
            await asyncio.sleep(random.uniform(0, 0.5))
            await asyncio.to_thread(host.kill_awake)
            check(await running, like)

        asyncio.run(story())
        until(lambda: host.well(), "both are whole again")
