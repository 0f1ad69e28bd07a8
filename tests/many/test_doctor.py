"""`failover doctor` on a host with many models: it names the part that doesn't answer, and the model that fails."""

import json
import os
import signal
import sys

import pytest

from pool.entries import State
from sidecar.terminal.findings import Level
from tests.engine.shims import House
from tests.many.host import Host
from tests.support.processes import Process, run_to_end

pytestmark = pytest.mark.slow
PARTS = {"lockserver": {"lock of a"}, "vram": {"ledger"}, "pool": {"pool"}, "gateway": {"door"}}


def found(house: House) -> dict[str, Level]:
    """What isn't well."""
    words = (sys.executable, "-m", "engine_shim.cli.failover", "doctor", "--json", "--run-dir", str(house.run_dir))
    code, said, _ = run_to_end(*words, environment=house.environment)
    sick = {one["check"]: Level(one["level"]) for one in json.loads(said)["checks"] if one["level"] != Level.OK.value}
    assert code == (Level.FAIL in sick.values()), said
    return sick


def test_the_doctor_names_the_part_that_is_stopped_and_the_model_that_fails(house: House) -> None:
    host = Host(house, {"a": {}}).ready()
    host.do("wake", "a")
    assert found(house) == {}

    def stopped(process: Process) -> set[str]:
        process.stop()
        try:
            return {check for check, level in found(house).items() if level is Level.FAIL}
        finally:
            process.go_on()

    for word, checks in PARTS.items():
        assert stopped(host.part(word)) == checks, word
    assert stopped(host.shim("a")) == {"engine a/a"}
    host.do("stop", "a")
    host.until(lambda: host.states().get("a") is State.OFF, "a is off")
    assert found(house) == {}, "it has no shim, and is to have none"
    host.models["b"] = {"engine": "command", "command": [sys.executable, "-c", "exit(3)", "{port}"], "arguments": []}
    host.write()
    os.kill(host.up.pid, signal.SIGHUP)
    host.until(lambda: host.states().get("b") is State.ASLEEP, "b is there")
    host.do("wake", "b")
    host.until(lambda: host.states().get("b") is State.FAILED, "b has failed")
    assert "model b" in found(house), "it has failed, or is tried again"


def test_of_a_models_file_that_is_wrong_the_doctor_says_the_key_and_the_way_out(house: House) -> None:
    host = Host(house, {"a": {}}).ready()
    host.models["a"] = {"priorty": 1}
    host.write()
    os.kill(host.up.pid, signal.SIGHUP)
    host.until(lambda: (listing := host.listing()) and listing.alarms, "an alarm")
    words = (sys.executable, "-m", "engine_shim.cli.failover", "doctor", "--run-dir", str(house.run_dir))
    code, said, _ = run_to_end(*words, environment=house.environment)
    assert code == 1 and f"{host.path} is wrong" in said and "a: there is no field priorty; is priority meant?" in said
    assert "failover models check FILE" in said and "kill -HUP of failover models up" in said
