"""One engine that sleeps and wakes again and again: addresses, memory and answers stay what they were."""

import dataclasses
import json
from pathlib import Path

import pytest

from tests.engine.shims import House
from tests.vllm import pair, sleep_and_wake


@pytest.mark.parametrize("ranks", [1, 2], ids=["tp1", "tp2"])
def test_sleep_and_wake_keep_addresses_and_answers_and_give_the_memory_back(
    house: House, model: Path, tmp_path: Path, ranks: int
) -> None:
    notes = tmp_path / "notes"
    kind = pair.kind(model, ranks, engine="tests.vllm.sleep_and_wake:make")
    kind = dataclasses.replace(kind, arguments=(str(notes), *kind.arguments))
    house.start_lock()
    house.start_gms(kind)
    shim = house.shim(kind, "a")
    shim.until("Active", ready=True)
    *seen, hasty, other_weights, empty, again = json.loads(notes.read_text())
    for each in (empty, again):
        assert each["forgotten"] and each["cached"] == [0], "a client's wish that the cache be forgotten is one"
    assert [each["when"] for each in seen] == ["started", *["asleep", "awake"] * sleep_and_wake.NAPS]
    needed = {f"host:{rank}": pair.KV_BYTES for rank in range(ranks)}
    for each in seen:
        assert each["well"] and each["needs"] == needed and len(each["ranks"]) == ranks
        for rank, now in enumerate(each["ranks"]):
            then = seen[0]["ranks"][rank]
            for what in ("pid", "weights", "kv", "parameter", "cache"):
                assert now[what] == then[what] and now[what], what
            assert now["asleep"] is (each["when"] == "asleep")
    for rank in range(ranks):
        started, *free = [each["ranks"][rank]["free"] for each in seen]
        assert set(free[0::2]) == {free[0]} and set(free[1::2]) == {free[0] - pair.KV_BYTES}
        assert free[0] - started < pair.KV_BYTES // 4, "while it starts, the other engine may have the rest"
    answers = {tuple(each["tokens"]) for each in seen if each["when"] == "awake"}
    assert len(answers) == 1 and len(answers.pop()) == sleep_and_wake.TOKENS
    assert hasty["cached"] == [pair.BLOCK], "what there was no time for is forgotten"
    assert other_weights["cached"] == [0], "what one rank doesn't vouch for is forgotten by all"
    awake = [each for each in seen if each["when"] == "awake"]
    assert len({tuple(each["long"]) for each in (*awake, hasty, other_weights)}) == 1
    full = (len(sleep_and_wake.LONG) - 1) // pair.BLOCK * pair.BLOCK
    assert [each["cached"] for each in awake] == [[0], *[[full]] * (len(awake) - 1)], "its cache slept with it"
    known = {tuple(each["known"]) for each in seen if each["when"] == "awake"}
    assert len(known) == 1 and len(known.pop()) == 2, "before any client asks, it is known to be what it was"


def test_without_a_prefix_cache_nothing_is_parked_and_the_log_says_once_why(
    house: House, model: Path, tmp_path: Path
) -> None:
    notes = tmp_path / "notes"
    kind = pair.kind(model, 1, engine="tests.vllm.sleep_and_wake:make")
    kind = dataclasses.replace(kind, arguments=(str(notes), *kind.arguments, "--no-enable-prefix-caching"))
    house.start_lock()
    house.start_gms(kind)
    shim = house.shim(kind, "a")
    shim.until("Active", ready=True)
    awake = [each for each in json.loads(notes.read_text()) if each["when"] == "awake"]
    assert len(awake) == sleep_and_wake.NAPS and len({tuple(each["long"]) for each in awake}) == 1
    assert all(each["cached"] == [0] for each in awake) and shim.said().count("kv_not_kept") == 1
