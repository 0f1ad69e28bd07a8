"""What the pool's shell has others do, alone."""

import sys

import pytest

from gms.rules import messages as gm
from lockserver.rules.messages import SwitchoverStep
from pool.rules import events as e
from pool.shell import reading
from pool.shell.weights import _run
from vram.rules import messages as vm


def test_a_gms_that_awaits_what_sleepers_have_says_nothing_of_what_weights_take() -> None:
    pool = gm.RegionStatus(key="kv", policy="exclusive", state="OWNED", bytes=5)
    there = gm.RegionStatus(key="a", policy="shared", state="RO", bytes=40)
    awaited = gm.RegionStatus(key="a", policy="shared", state="RECOVERING", bytes=0)
    said = gm.Status(state="RO", device="gpu", regions=[there, pool], parked={"b": 30}, host_memory=100)
    assert reading.weights("gpu", said) == e.WeightsSeen("gpu", {"a": 40}, {"b": 30}, 70)
    said = gm.Status(state="RECOVERING", device="gpu", regions=[awaited, pool], parked={"b": 30}, host_memory=100)
    assert reading.weights("gpu", said) == e.WeightsSeen("gpu", None)
    late = gm.RegionStatus(key="a", policy="shared", state="RECOVERING", doubt="it was not handed back")
    said = gm.Status(state="RECOVERING", device="gpu", regions=[late, pool], parked={"b": 30}, host_memory=100)
    assert reading.weights("gpu", said) == e.WeightsSeen("gpu", {"a": 0}, {"b": 30}, 70), "it doesn't come any more"


@pytest.mark.parametrize(
    ("phase", "done", "ok", "heard"),
    [
        ("waked", True, True, True),
        ("waked", True, False, False),  # a sleep that comes to nothing, as a person has waked it meanwhile
        ("refused", True, False, False),
        ("asleep", True, True, None),
        ("draining", False, False, None),
    ],
)
def test_of_what_a_lock_answers_it_is_heard_that_it_wakes_and_that_it_doesnt_sleep(
    phase: str, done: bool, ok: bool, heard: bool | None
) -> None:
    said = reading.answer("a", SwitchoverStep(phase=phase, detail="why", done=done, ok=ok))
    assert said == (None if heard is None else e.LockAnswered("a", heard, "why"))


def lease(name: str, size: int) -> vm.LeaseState:
    return vm.LeaseState(1, name, "h", "i", 1, {"gpu": size}, {}, 0, False, "", 0.0, "held")


def test_what_models_may_have_is_without_what_others_have_and_with_their_weights() -> None:
    gpu = vm.DeviceState("gpu", total=100, leased=40, returning=0, foreign=15, keep_free=5, available=10, free=20)
    waiters = [vm.WaiterState(name, "h", 1, {"gpu": 25}, 0, "", "") for name in ("b", "gms/gpu/c")]
    leases = [lease("a", 10), lease("gms/gpu/a", 20), lease("another", 7), lease("gms/gpu/gone", 3)]
    status = vm.Status([gpu], leases, 4, waiters, 2, "", "", [], "", "", 1)
    unheard = reading.ledger(status, {"a"}, {"a"}, {})
    assert (unheard.room, unheard.leases) == ({"gpu": 100 - 5 - 15 - 30}, {"a": {"gpu": 10}})
    assert unheard.lacking == {"b": {"gpu": 15}, "c": {"gpu": 15}}
    heard = reading.ledger(status, {"a"}, {"a"}, {"gpu": e.WeightsSeen("gpu", {"a": 20, "gone": 3})})
    assert heard.foreign == {"gpu": 15}
    assert heard.room == {"gpu": 100 - 5 - 15 - 7}, "weights are the models', also of one that is no more"


def test_a_program_that_parks_and_hangs_fails_or_is_killed_is_told_in_a_sentence() -> None:
    python = [sys.executable, "-c"]
    assert _run([*python, "pass"], 60.0) == ""
    assert "hadn't done it after 0.2 s" in _run([*python, "import time; time.sleep(600)"], 0.2)
    assert _run([*python, "import os; os.kill(os.getpid(), 9)"], 60.0) == "gmsctl was killed by SIGKILL"
    assert _run([*python, "exit('no room')"], 60.0) == "no room"
    assert _run([*python, "exit(3)"], 60.0) == "gmsctl ended with 3"
    assert "No such file" in _run(["/there/is/none"], 60.0)
