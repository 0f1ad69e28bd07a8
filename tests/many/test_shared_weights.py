"""Two instances of one model, which differ in how many requests they take at a time: they have one copy of its weights.

The second one loads nothing, whatever the first one does; and what is left is there until the last one has gone.
"""

import asyncio
import signal
from typing import Any

import pytest

from gms.observer import Observer as Gms
from pool.entries import State
from tests.engine.shims import House
from tests.gateway.door import Stream
from tests.gateway.under_load import all_of, check
from tests.many.host import DEVICE, Host
from tests.many.test_parking import PIECE, words
from tests.many.test_swaps import known
from tests.support.waiting import until
from vram.observer import Observer as Ledger

pytestmark = pytest.mark.chaos
NAME = "qwen-weights"


def instance(batch: int, **more: Any) -> dict[str, Any]:
    words = ["--seed", "7", "--kv-bytes", str(PIECE), "--max-model-len", "1024", "--max-batch", str(batch)]
    return {"arguments": words, "memory": PIECE, "weights": NAME, **more}


def written(host: Host) -> tuple[int, str, int, int]:
    """Generation and hash of the weights, how often any were written, and what they take."""
    with Gms(host.house.run_dir, DEVICE) as gms:
        status = gms.status()
    (region,) = (one for one in status.regions if one.policy == "shared" and one.bytes)
    assert region.key == NAME
    return region.generation, region.hash, status.events.get("writing", 0), region.bytes


def leases(host: Host) -> set[str]:
    with Ledger(host.house.run_dir) as ledger:
        return {lease.name for lease in ledger.status().leases}


def has(host: Host, models: dict[str, dict[str, Any]]) -> None:
    host.models = models
    host.write()
    host.part("pool").signal(signal.SIGHUP)


def same(streams: list[Stream], like: Stream) -> None:
    """Event by event, but for the instance's name."""
    for stream in streams:
        assert (stream.status, stream.whole, stream.error) == (200, True, ""), (stream.raw[-300:], stream.body)
        said, before = ([event["choices"] for event in one.alike[0]] for one in (stream, like))
        assert said == before, stream.body


def nothing_is_left(host: Host) -> bool:
    with Gms(host.house.run_dir, DEVICE) as gms:
        regions = [one for one in gms.status().regions if one.bytes]
    return not regions and not leases(host) and not any((host.house.run_dir / "lock" / name).exists() for name in "ab")


def test_a_second_instance_loads_nothing_and_each_goes_on_when_the_other_dies_or_goes(house: House) -> None:
    host = Host(house, {"a": instance(1)}, capacity=4 * PIECE).ready()
    asked = [host.stream(name, "Once", tokens=200) for name in "ab"]
    (like,) = known(host, asked[:1])
    first = written(host)
    assert first[2] == 1
    has(host, {"a": instance(1), "b": instance(8)})
    host.until(lambda: host.states().get("b") is State.ASLEEP, "the second one is loaded")
    answers = asyncio.run(all_of(host.port, asked))
    same(answers, like)
    assert host.states() == {"a": State.AWAKE, "b": State.AWAKE}
    assert written(host) == first, "nothing was written for it"
    assert {one.weights_name: one.weights for one in host.shown()} == {NAME: {DEVICE: first[3]}}
    assert leases(host) == {"a", "b", f"gms/{DEVICE}/{NAME}"}
    for killed, other in ((1, 0), (0, 1)):
        same(asyncio.run(all_of(host.port, asked, host.main("ab"[killed]).kill, [other])), like)
        same(asyncio.run(all_of(host.port, asked, None, [killed])), like)
    assert written(host) == first
    same(asyncio.run(all_of(host.port, asked, lambda: has(host, {"b": instance(8)}), [1])), like)
    host.until(lambda: host.states().keys() == {"b"} and "a" not in leases(host), "the first one has gone")
    same(asyncio.run(all_of(host.port, asked, None, [1])), like)
    assert written(host) == first
    has(host, {})
    until(lambda: nothing_is_left(host), "all of the last one has gone")


def test_a_model_that_names_weights_that_it_cant_share_is_told_so_in_words_and_the_other_stays(house: House) -> None:
    host = Host(house, {"a": instance(1)}, capacity=4 * PIECE).ready()
    other = instance(1)
    has(host, {"a": instance(1), "b": {**other, "arguments": ["--seed", "8", *other["arguments"][2:]]}})
    host.until(lambda: host.failed("b"), "it can't be started")
    why = host.shown_of("b").why
    assert '"seed": 7' in why and "another name for its weights in models.yaml (weights: NAME)" in why, why
    assert "\\" not in why, "as the engine has said it, and not as a log line quotes it"
    host.until(lambda: host.states()["a"] in (State.ASLEEP, State.AWAKE), "the other one is as before")


def test_a_model_that_is_given_anothers_arguments_answers_as_that_one(house: House) -> None:
    first, other = ({**instance(1), "weights": ""} for _ in "ab")
    other["arguments"] = ["--seed", "8", *other["arguments"][2:]]
    host = Host(house, {"a": first, "b": other}, capacity=5 * PIECE, devices=[DEVICE, "host:more"]).ready()
    asked = [host.stream(name, "Once") for name in "ab"]
    like = known(host, asked)
    has(host, {"a": other, "b": other})
    host.until(lambda: b"8" in words(host, "a").split(b"\0"), "it is started with them")
    same(asyncio.run(all_of(host.port, asked, None, [0])), like[1])
    assert host.shown_of("a").failures == 0


def test_weights_that_two_share_are_parked_for_a_third_and_come_back_once_for_both(house: House) -> None:
    other = {**instance(4), "arguments": ["--kv-bytes", str(PIECE), "--max-model-len", "1024"], "weights": ""}
    models = {"a": instance(1), "b": instance(8), "c": other}
    host = Host(house, models, capacity=2 * PIECE, swap_share=0.9, drain_s=0.0).ready()
    asked = [host.stream(name, "Once") for name in "abc"]
    like = known(host, asked)
    same([like[1]], like[0])
    for place in (0, 2, 1, 0, 2, 0):
        check(asyncio.run(all_of(host.port, asked, None, [place])), [like[place]])
        shown = {one.name: one for one in host.shown()}
        assert shown["a"].weights == shown["b"].weights and shown["a"].parked == shown["b"].parked
        assert bool(shown["a"].parked) is (place == 2) is not bool(shown["c"].parked)
    assert sum(one.failures for one in host.shown()) == 0
