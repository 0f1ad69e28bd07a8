"""Models whose weights don't fit into the device together: the pool parks those of one that sleeps in host memory, and
its next wake brings them back. Nothing is wrong, nothing is lost, nothing grows.
"""

import asyncio
import contextlib
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from gms.memory.host import HostMemory
from gms.memory.host_device import GRANULARITY, create_device
from gms.observer import Observer as Gms
from gms.rules import messages as gm
from pool.entries import State
from sidecar.kernel import process_tree
from tests.engine.shims import House
from tests.gateway.door import Stream, ask
from tests.gateway.under_load import all_of, check
from tests.many.host import DEVICE, Host
from tests.many.test_swaps import known
from tests.support.processes import Process
from vram.observer import Observer as Ledger
from vram.observer import ObserverError

pytestmark = pytest.mark.chaos
PIECE = 6 << 20
"""What each model's weights take, and the rest of it."""
ROUNDS = 8


def models(names: str, **more: Any) -> dict[str, dict[str, Any]]:
    words = ("--kv-bytes", str(PIECE), "--max-model-len", "1024")
    return {name: {"arguments": ["--seed", str(n), *words], "memory": PIECE, **more} for n, name in enumerate(names)}


@pytest.mark.slow
def test_models_whose_weights_dont_fit_together_swap_and_answer_as_before_and_nothing_grows(house: House) -> None:
    host = Host(house, models("abc"), capacity=3 * PIECE, swap_share=0.9, drain_s=0.0).ready()
    asked = [host.stream(name, "Once") for name in "abc"]
    like = known(host, asked)
    for number in range(ROUNDS):
        for place in range(3):
            check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
            shown = host.shown()
            here, parked = (sum(getattr(one, what).get(DEVICE, 0) for one in shown) for what in ("weights", "parked"))
            assert here + parked == 3 * PIECE and here <= 2 * PIECE, shown
        if number == ROUNDS // 3:
            before = host.counted()
    after = host.counted()
    assert sum(one.swaps for one in shown) >= 3 * ROUNDS and sum(one.failures for one in shown) == 0
    assert all(one.estimate_ms for one in shown if one.state is State.ASLEEP)
    after.check(before, before.memory * 1.1 + (8 << 20))


def test_free_memory_in_pieces_is_as_good_as_any_for_weights_and_the_rest(house: House) -> None:
    name, capacity = DEVICE.removeprefix("host:"), 8 * PIECE
    create_device(name, capacity, house.devices)
    with contextlib.closing(HostMemory(name, house.devices)) as others:
        pieces = [others.create(GRANULARITY) for _ in range(capacity // GRANULARITY)]
        for piece in pieces[::2]:
            others.release(piece)
        host = Host(house, models("ab"), capacity=capacity).ready()
        host.answered(host.run([host.stream("a", "Once"), host.stream("b", "Once")]))


def test_a_model_whose_weights_have_no_room_beside_others_is_loaded_once_those_are_parked(house: House) -> None:
    host = Host(house, models("abc"), capacity=2 * PIECE).ready()
    asked = [host.stream(name, "Once") for name in "abc"]
    known(host, asked)
    assert sum(one.failures for one in host.shown()) == 0


def gms_is_killed(host: Host, asked: list[Stream], like: list[Stream]) -> None:
    """What is to go when it was killed goes at the end of the next one's window, and nothing fails."""
    before = len(host.up.said())
    (server,) = process_tree.children(host.part("gms").pid)
    Process(server).kill()
    check(asyncio.run(all_of(host.port, asked, None, [0])), [like[0]])
    assert "_failed" not in host.up.said()[before:], "nothing is refused, and tried again later"


def test_where_none_can_be_parked_an_engine_that_sleeps_is_ended_and_its_weights_are_dropped(house: House) -> None:
    """As those of one that is off already are."""
    host = Host(house, models("ab"), capacity=2 * PIECE, host_memory=0).ready()
    asked = [host.stream(name, "Once") for name in "ab"]
    like = known(host, asked)
    for place, other in ((0, "b"), (1, "a")):
        check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
        assert host.shown_of(other).state is State.OFF and not host.shown_of(other).weights
    gms_is_killed(host, asked, like)
    for place, other in ((1, "a"), (0, "b")):
        host.until(lambda other=other: not host.shown_of(other).waiting, "the pool has heard of its answer")  # type: ignore[misc]
        host.do("stop", other)
        host.until_states(**{other: State.OFF})
        check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
        assert not host.shown_of(other).weights, "dropped"
    assert sum(one.failures for one in host.shown()) == 0


def test_whatever_is_killed_while_weights_are_parked_nothing_is_lost(house: House) -> None:
    """A pool that parks is followed by one that goes on; an engine whose weights are parked has room made for them."""
    host = Host(house, models("ab"), capacity=2 * PIECE, swap_share=0.9, drain_s=0.0).ready()
    asked = [host.stream(name, "Once") for name in "ab"]
    like = known(host, asked)
    gms_is_killed(host, asked, like)

    async def story() -> None:
        for place in (1, 0, 1, 0):
            running = asyncio.create_task(all_of(host.port, asked, None, [place]))
            await asyncio.to_thread(parks_now, house)
            await asyncio.to_thread(host.part("pool").kill)
            check(await running, [like[place]])

    asyncio.run(story())
    host.until(host.well, "the last pool goes on")
    assert sum(one.failures for one in host.shown()) == 0
    for place, other in ((0, "b"), (1, "a")):
        check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
        assert host.shown_of(other).parked
        host.main(other).kill()
        host.until_states(**{other: State.LOADING})
        check(asyncio.run(all_of(host.port, asked, None, [1 - place])), [like[1 - place]])


def test_weights_of_a_model_that_was_taken_out_are_dropped_while_others_go_on(house: House) -> None:
    host = Host(house, models("ab"), capacity=3 * PIECE, host_memory=0).ready()
    asked = [host.stream(name, "Once") for name in "ab"]
    known(host, asked)
    kept = host.models.pop("a")
    host.write()
    host.part("pool").signal(signal.SIGHUP)

    def keys() -> set[str]:
        with Gms(house.run_dir, DEVICE) as gms:
            return {region.key for region in gms.status().regions if region.bytes}

    host.until(lambda: keys() == {"b"}, "a's weights are gone")
    host.models["a"] = kept
    host.write()
    host.part("pool").signal(signal.SIGHUP)
    host.until(lambda: ask(host.port, "/v1/models/a")[0] == 200, "a is back, and the door has been told")
    host.answered(host.run(asked))


def test_what_a_killed_gms_has_made_is_leased_by_the_next_one_and_nothing_is_foreign(house: House) -> None:
    host = Host(house, models("ab"), capacity=3 * PIECE, swap_share=0.9, drain_s=0.0).ready()
    asked = [host.stream(name, "Once") for name in "ab"]
    like = known(host, asked)

    def leased() -> bool:
        with Gms(house.run_dir, DEVICE) as gms, Ledger(house.run_dir) as ledger:
            here, said = gms.status(), ledger.status()
        has = {f"gms/{DEVICE}/{one.key}": {DEVICE: one.bytes} for one in here.regions if one.bytes}
        leases = {lease.name: lease.bytes for lease in said.leases if lease.name.startswith("gms/") and lease.bytes}
        device = said.devices[0]
        return bool(has) and leases == has and not device.foreign and not device.returning

    for place in (0, 1):
        (server,) = process_tree.children(host.part("gms").pid)
        Process(server).kill()
        host.until(lambda: answers(leased), "the next GMS has leased what it was handed back")
        check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
    assert sum(one.failures for one in host.shown()) == 0


def answers(question: Callable[[], bool]) -> bool:
    """Not while a server is away."""
    try:
        return question()
    except ObserverError:
        return False


def parks_now(house: House) -> None:
    """Returns as soon as GMS says that weights are being parked."""
    with Gms(house.run_dir, DEVICE) as gms:
        gms.tell(gm.Watch())
        while not any(
            one.engine_id == "gmsctl" and one.doing == "writing" for one in gms.hear(gm.Status, 60.0).clients
        ):
            pass


def words(host: Host, name: str) -> bytes:
    """What its engine was started with; nothing while it has none."""
    with contextlib.suppress(AssertionError, OSError):
        return Path(f"/proc/{host.main(name).pid}/cmdline").read_bytes()
    return b""


def test_of_a_model_that_was_taken_out_while_no_pool_ran_nothing_is_left(house: House) -> None:
    host = Host(house, models("ab"), capacity=4 * PIECE).ready()
    shim, place = host.shim("b"), house.run_dir / "lock" / "b"

    def weights() -> set[str]:
        with Gms(house.run_dir, DEVICE) as gms:
            return {region.key for region in gms.status().regions if region.policy == "shared" and region.bytes}

    assert weights() == {"a", "b"} and place.exists()
    del host.models["b"]
    host.models["a"]["arguments"] += ["--max-batch", "2"]
    host.write()
    host.part("pool").kill()
    host.until(lambda: shim.dead and weights() == {"a"} and not place.exists(), "b is gone, and a stays")
    host.until(lambda: host.states().keys() == {"a"} and host.well(), "the next pool goes on")
    host.until(lambda: b"--max-batch" in words(host, "a"), "and a's new arguments hold")
    check(
        asyncio.run(all_of(host.port, [host.stream("a", "Once")], None, [0])), known(host, [host.stream("a", "Once")])
    )
