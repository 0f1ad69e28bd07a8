"""A pair's memory on the emulated GPU: GMS with the weights, two engines' ranks with NVIDIA's own bindings, kills.

The GPU has room for the weights, one KV cache, and little more: what a standby may take is counted to the byte.
"""

import json
import os
import select
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gms.client import GmsClient
from tests import emulated_driver
from tests.engine.kinds import Kind
from tests.engine.rank import CONTENT
from tests.engine.shims import House
from tests.gms.memory.makers import MAKERS
from tests.gms.memory.remote import Remote
from tests.support.processes import ROOT
from tests.support.waiting import DEADLINE_S, until

MIB = 1 << 20
DEVICE = "GPU-656d756c-6174-6564-0000-000000000000"
CAPACITY, WEIGHTS, KV, SCRATCH = 64 * MIB, 16 * MIB, 40 * MIB, 6 * MIB
ON_IT = next(name for name in MAKERS if name.startswith("cuda"))


class Rank:
    def __init__(self, house: House, engine_id: str, weights: int = 0) -> None:
        words = [str(house.run_dir), DEVICE, engine_id, str(KV), str(weights)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.engine.rank", *words],
            cwd=ROOT,
            env=house.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.scratch = self._answer()["scratch"]

    def ask(self, word: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        self.process.stdin.write(word + "\n")
        self.process.stdin.flush()
        return self._answer()

    def _answer(self) -> dict[str, Any]:
        out = self.process.stdout
        assert out is not None and select.select([out], [], [], DEADLINE_S)[0], "it doesn't answer"
        answer: dict[str, Any] = json.loads(out.readline())
        return answer

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.communicate()


class Gpu:
    def __init__(self, directory: Path) -> None:
        self.house = House(directory)
        self.house.environment.update(emulated_driver.environment(directory, capacity=CAPACITY))
        self.house.start_gms(Kind("none", "", (), "", ("--devices", DEVICE, "--share-devices")))
        with GmsClient(self.house.run_dir, DEVICE, "observer") as client:
            client.await_server(DEADLINE_S)
        self._observer = Remote(ON_IT, self.house.environment)
        self._ranks: list[Rank] = []

    def rank(self, engine_id: str, weights: int = 0) -> Rank:
        self._ranks.append(Rank(self.house, engine_id, weights))
        return self._ranks[-1]

    @property
    def used(self) -> int:
        return CAPACITY - self._observer.free()

    def close(self) -> None:
        for rank in self._ranks:
            rank.kill()
        self._observer.kill()
        self.house.close()


@pytest.fixture
def gpu() -> Iterator[Gpu]:
    missing = emulated_driver.why_not()
    if missing:
        pytest.skip(missing)
    with tempfile.TemporaryDirectory(prefix="gpu-failover-test-", dir="/dev/shm") as directory:
        os.chmod(directory, 0o700)
        gpu = Gpu(Path(directory))
        yield gpu
        gpu.close()


def test_killed_engines_come_back_as_standbys_within_a_piece_of_scratch(gpu: Gpu) -> None:
    active = gpu.rank("a", WEIGHTS)
    assert (active.scratch, gpu.used) == (SCRATCH, WEIGHTS + SCRATCH)
    active.ask("sleep")
    active.ask("wake")
    standby = gpu.rank("b")
    assert gpu.used == WEIGHTS + KV + SCRATCH, "it starts beside a GPU that is all but full"
    for name in ("a", "b", "a"):
        before = standby.ask("look")
        standby.ask("sleep")
        assert gpu.used == WEIGHTS + KV, "asleep, it has nothing of its own"
        active.kill()
        until(lambda: gpu.used == WEIGHTS, "what the killed one had is free, and the weights are there")
        standby.ask("wake")
        assert gpu.used == WEIGHTS + KV
        assert standby.ask("look") == before and before["weights"] == CONTENT.decode()
        active, standby = standby, gpu.rank(name)
