"""put, get and verify on a GPU: the cuda maker and the driver's copies, on the emulated driver."""

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from gms.shell.rundir import connect, devices
from tests import emulated_driver
from tests.gms.live import MIB
from tests.gms.test_transfer import contents, dense_7b, write_file
from tests.support.processes import ROOT
from tests.support.waiting import until

pytestmark = pytest.mark.skipif(bool(emulated_driver.why_not()), reason=emulated_driver.why_not() or "")
pytest.importorskip("cuda.bindings")


class Pod:
    """`gms --devices cuda` in a run directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.run_dir = directory / "run"
        self.run_dir.mkdir()
        self.environment = {**os.environ, **emulated_driver.environment(directory, capacity=256 * MIB)}
        command = [sys.executable, "-m", "gms", "--run-dir", str(self.run_dir), "--devices", "cuda", "--share-devices"]
        with (directory / "log").open("w") as log:
            self.gms = subprocess.Popen(command, cwd=ROOT, env=self.environment, stderr=log)
        until(lambda: self._listens() or self.gms.poll() is not None, "it listens")
        assert self.gms.poll() is None, (directory / "log").read_text()

    def _listens(self) -> bool:
        named = devices(self.run_dir)
        if not named:
            return False
        try:
            connect(self.run_dir, named[0]).close()
        except OSError:
            return False
        return True

    def gmsctl(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "gms.cli.gmsctl", "--run-dir", str(self.run_dir), *map(str, arguments)]
        return subprocess.run(command, cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=60)


@pytest.fixture
def pod() -> Iterator[Pod]:
    with tempfile.TemporaryDirectory(prefix="gpu-failover-test-", dir="/dev/shm") as directory:
        pod = Pod(Path(directory))
        yield pod
        pod.gms.terminate()
        pod.gms.wait(20)


@pytest.mark.slow
def test_a_checkpoint_goes_to_a_gpu_and_comes_back_byte_for_byte(pod: Pod, tmp_path: Path) -> None:
    file = write_file(tmp_path / "in.safetensors", dense_7b(32), 1, {"format": "pt"})
    done = pod.gmsctl("put", file)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("GPU-")
    out = tmp_path / "out.safetensors"
    done = pod.gmsctl("get", out)
    assert done.returncode == 0, done.stderr
    assert contents(out) == contents(file)
    verified = pod.gmsctl("verify")
    assert verified.returncode == 3, "no sums are made on a GPU"


@pytest.mark.slow
def test_a_snapshot_goes_to_disk_and_comes_back_byte_for_byte_with_its_sums(pod: Pod, tmp_path: Path) -> None:
    file = write_file(tmp_path / "in.safetensors", dense_7b(16), 2, {"format": "pt"})
    for words in (("put", file), ("save", tmp_path / "snapshot"), ("clear",), ("restore", tmp_path / "snapshot")):
        done = pod.gmsctl(*words)
        assert done.returncode == 0, done.stderr
    out = tmp_path / "out.safetensors"
    assert pod.gmsctl("get", out).returncode == 0 and contents(out) == contents(file)
    verified = pod.gmsctl("verify")
    assert verified.returncode == 0, verified.stdout + verified.stderr


@pytest.mark.slow
def test_weights_are_parked_and_brought_back_byte_for_byte_with_their_sums(pod: Pod, tmp_path: Path) -> None:
    file = write_file(tmp_path / "in.safetensors", dense_7b(16), 3, {"format": "pt"})
    assert pod.gmsctl("put", file).returncode == 0
    device = json.loads(pod.gmsctl("status", "--json").stdout)
    parked = pod.gmsctl("park", "weights", "--json")
    assert parked.returncode == 0, parked.stderr
    said, status = json.loads(parked.stdout), json.loads(pod.gmsctl("status", "--json").stdout)
    assert (said["bytes"], said["seen"], said["still"]) == (device["bytes"], False, []), "its processes say so"
    assert (status["state"], status["bytes"], status["parked"]) == ("PARKED", 0, {"weights": device["bytes"]})
    assert status["free"] == device["free"] + device["bytes"]
    assert pod.gmsctl("unpark", "weights").returncode == 0
    out = tmp_path / "out.safetensors"
    assert pod.gmsctl("get", out).returncode == 0 and contents(out) == contents(file)
    assert pod.gmsctl("verify").returncode == 0, "on a GPU they are first summed up when they are parked"
