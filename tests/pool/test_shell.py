"""What the pool's shell has others do, alone."""

import sys

from gms.rules import messages as gm
from pool.rules import events as e
from pool.shell.server import _run, weights_seen


def test_a_gms_that_awaits_what_sleepers_have_says_nothing_of_what_weights_take() -> None:
    pool = gm.RegionStatus(key="kv", policy="exclusive", state="OWNED", bytes=5)
    there = gm.RegionStatus(key="a", policy="shared", state="RO", bytes=40)
    awaited = gm.RegionStatus(key="a", policy="shared", state="RECOVERING", bytes=0)
    said = gm.Status(state="RO", device="gpu", regions=[there, pool], parked={"b": 30}, host_memory=100)
    assert weights_seen("gpu", said) == e.WeightsSeen("gpu", {"a": 40}, {"b": 30}, 70)
    said = gm.Status(state="RECOVERING", device="gpu", regions=[awaited, pool], parked={"b": 30}, host_memory=100)
    assert weights_seen("gpu", said) == e.WeightsSeen("gpu", None)


def test_a_program_that_parks_and_hangs_fails_or_is_killed_is_told_in_a_sentence() -> None:
    python = [sys.executable, "-c"]
    assert _run([*python, "pass"], 60.0) == ""
    assert "hadn't done it after 0.2 s" in _run([*python, "import time; time.sleep(600)"], 0.2)
    assert _run([*python, "import os; os.kill(os.getpid(), 9)"], 60.0) == "gmsctl was killed by SIGKILL"
    assert _run([*python, "exit('no room')"], 60.0) == "no room"
    assert _run([*python, "exit(3)"], 60.0) == "gmsctl ended with 3"
    assert "No such file" in _run(["/there/is/none"], 60.0)
