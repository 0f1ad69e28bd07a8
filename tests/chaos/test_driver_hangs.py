"""The driver hangs as it is loaded, while the lock server starts anew: the server is there, its holder is back, and who
needs memory that can't be read waits, with an alarm, until the driver answers."""

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from evidence.shell import memory
from tests import emulated_driver
from tests.chaos.house import House
from tests.support.processes import ROOT

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.skipif(bool(emulated_driver.why_not()), reason=emulated_driver.why_not() or ""),
]
NAMES = "import pynvml as n; n.nvmlInit(); print(n.nvmlDeviceGetUUID(n.nvmlDeviceGetHandleByIndex(0)))"


def test_the_server_serves_and_no_engine_is_granted_memory_that_cannot_be_read(house: House) -> None:
    pytest.importorskip("pynvml")
    environment = emulated_driver.environment(house.devices)
    named = subprocess.run(
        [sys.executable, "-c", NAMES], env={**os.environ, **environment}, cwd=ROOT, capture_output=True, check=True
    )
    needs = {named.stdout.decode().strip(): 1 << 20}
    hangs = house.directory / "the-driver-hangs"
    environment |= {"EMULATED_NVML_HANGS": str(hangs), "PYTHONPATH": str(ROOT)}
    server = house.server("--memory", "nvml", cold=True, env=environment)
    a, b = house.engine("a"), house.engine("b")
    token = a.holds(needs=needs)
    b.wants(needs=needs, watching=[a])
    server.shows(lambda s: s.waiters)
    hangs.touch()
    server.kill()
    server = house.server("--memory", "nvml", cold=True, env=environment)
    held = server.shows(lambda s: s.state == "HELD" and s.waiters)
    assert held.holder is not None and held.holder.token == token
    a.kill()
    server.shows(lambda s: any("does the driver hang" in alarm for alarm in s.alarms))
    doctor = subprocess.run(
        [sys.executable, "-m", "lockserver.cli.lockctl", "--run-dir", str(house.run_dir), "doctor"],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )
    assert "the driver doesn't answer" in doctor.stdout, doctor
    assert not b.heard("granted")
    hangs.unlink()
    assert b.granted()["dead"] == [True]
    server.shows(lambda s: not s.alarms)


def test_a_driver_that_says_late_that_it_does_not_work_is_one_that_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    answers = threading.Event()

    def none(kind: str, host_devices: object) -> tuple[None, str]:
        answers.wait()
        raise memory.NoReader("NVML does not work here")

    monkeypatch.setattr(memory, "reader", none)
    late, why = memory.reader_in_time("nvml", tmp_path, 0.0)
    assert late is not None and not why
    answers.set()
    with pytest.raises(memory.NoReader, match="does not work"):
        memory.reader_in_time("nvml", tmp_path)
    for _ in range(2):
        with pytest.raises(memory.NoReader, match="does not work"):
            late()
