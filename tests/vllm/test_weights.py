"""A rank's weights, without vLLM: torch modules and a real GMS."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch", reason="torch isn't installed in this Python")

from engine_shim.engine import CannotRun  # noqa: E402
from engine_shim.shell import scratch  # noqa: E402
from engine_shim.vllm_engine import engine_directory  # noqa: E402
from engine_shim.vllm_engine.weights import Weights, differs  # noqa: E402
from engine_shim.vllm_engine.worker_settings import WorkerSettings  # noqa: E402
from gms.client import GmsClient, Layout, StaleLayout  # noqa: E402
from gms.snapshot import find, save  # noqa: E402
from gms.torch import adopt  # noqa: E402
from tests.engine.kinds import Kind  # noqa: E402
from tests.engine.shims import House  # noqa: E402
from tests.support.waiting import until  # noqa: E402

GMS = Kind("none", "", (), "", ("--devices", "host:0", "--capacity", "32MiB"))
SAID = {"model": "small"}


@pytest.fixture
def gms(house: House, monkeypatch: pytest.MonkeyPatch) -> Iterator[House]:
    monkeypatch.setenv("FAILOVER_HOST_DEVICES", str(house.devices))
    house.start_gms(GMS)
    with GmsClient(house.run_dir, "host:0", "observer") as client:
        client.await_server(60)
    yield house


def home(house: House, engine_id: str, *, writes: bool) -> WorkerSettings:
    return WorkerSettings(str(house.run_dir), engine_id, writes, ("host:0",), weights_timeout_s=60, wake_timeout_s=60)


def module() -> Any:
    torch.manual_seed(0)
    return torch.nn.Linear(64, 64)


def no_load() -> Any:
    raise AssertionError("the weights are there: no engine loads them again")


def test_one_writes_the_other_reads_and_both_sleep_and_wake(gms: House) -> None:
    wanted = module().weight
    a, b = (Weights(home(gms, name, writes=name == "a"), 0) for name in "ab")
    readers = [a.get(SAID, module), b.get(SAID, no_load)]
    assert readers[0].hash == readers[1].hash
    again = Weights(home(gms, "a", writes=True), 0)
    again.get(SAID, no_load)
    with torch.device("meta"):
        adopted = torch.nn.Linear(64, 64)
    adopt(adopted, readers[1])
    for each in (a, b):
        each.sleep()
        assert each.well
        each.wake()
        assert each.well
    assert torch.equal(adopted.weight, wanted)
    for each in (a, b, again):
        each.client.close()


def test_a_snapshot_spares_a_start_its_load_unless_it_is_of_another_model_or_older_than_the_files(
    gms: House, tmp_path: Path
) -> None:
    settings = replace(home(gms, "a", writes=True), snapshot=str(tmp_path / "snapshot"))
    loads: list[int] = []

    def load() -> Any:
        loads.append(1)
        return module()

    for described, files, count in (
        (SAID, "1", 1),
        (SAID, "1", 1),
        (SAID, "2", 2),
        ({"model": "large"}, "1", 3),
    ):
        a = Weights(settings, 0)
        reader = a.get(described, load, files=files)
        assert len(loads) == count
        if find(tmp_path / "snapshot") is None:
            save([reader], "weights", tmp_path / "snapshot")
        reader.close()
        a.client.write(60).abort()
        a.client.close()


def test_the_weights_of_another_model_are_refused(gms: House) -> None:
    a, b = (Weights(home(gms, name, writes=name == "a"), 0) for name in "ab")
    a.get(SAID, module)
    with pytest.raises(CannotRun, match=r"model is small there, and large here"):
        b.get({"model": "large"}, no_load)
    a.client.close()
    b.client.close()


def test_weights_that_were_replaced_while_it_slept_are_no_more_to_be_had(
    gms: House, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(scratch.VARIABLE, str(tmp_path))
    a = Weights(home(gms, "a", writes=True), 0)
    a.get(SAID, module)
    a.sleep()
    assert a.well and not engine_directory.marked()
    with GmsClient(gms.run_dir, "host:0", "other") as client, client.write(60) as writer:
        slab = writer.create(writer.granularity)
        reader = writer.commit(Layout((writer.sizes[slab],), (), {"model": "another"}))
        until(lambda: not a.well, "it says that it couldn't wake")
        until(lambda: engine_directory.marked(), "and leaves a mark, so that no engine has to ask")
        with pytest.raises(StaleLayout):
            a.wake()
        reader.close()
    a.client.close()


def test_weights_of_another_model_are_told_apart_by_what_differs() -> None:
    ours = {"model": "m", "vllm": "0.32.0"}
    assert differs(json.dumps({**ours, "dtype": "half"}), ours) == "dtype is half there, and None here"
    assert differs(json.dumps({**ours, "vllm": "0.26.0"}), ours) == "vllm is 0.26.0 there, and 0.32.0 here"
    assert differs("", ours) == "another program than vLLM wrote them"
