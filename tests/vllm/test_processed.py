"""Weights that are published as vLLM has processed them, and adopted in that form: the loader's order on a GPU, with
vLLM's real model on the CPU.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from gms.client import GmsClient
from tests.engine.kinds import Kind
from tests.engine.shims import House
from tests.support.processes import ROOT

GMS = Kind("none", "", (), "", ("--devices", "host:0", "--capacity", "64MiB"))


@pytest.mark.parametrize("mode", ["told", "untold"])
def test_an_engine_that_adopts_has_the_publishers_tensors_shared_and_scales_of_its_own(
    house: House, model: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`told`: vLLM knows that weights are processed (0.32). `untold`: an older one does it without values, before."""
    house.start_gms(GMS)
    monkeypatch.setenv("FAILOVER_HOST_DEVICES", str(house.devices))
    with GmsClient(house.run_dir, "host:0", "observer") as client:
        client.await_server(60)
    done = subprocess.run(
        [sys.executable, "-m", "tests.vllm.processed", str(model), str(house.run_dir), mode],
        cwd=ROOT,
        env=house.environment,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    report = json.loads(done.stdout.splitlines()[-1])
    assert report.pop("version")
    assert report.pop("scales") > 0
    assert report == {"names": True, "different": [], "not_shared": [], "shared_scales": []}
