"""Engines in pods of their own (`--mode sleep`, `--mode direct`), as real processes: no accelerator ever has two that
are not asleep, by locks that the kernel keeps (`engine_stand_in.py`).
"""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from dual_pods.rules import building, names
from tests.dual_pods.cluster import Cluster, cluster
from tests.support.chance import seeded
from tests.support.waiting import until

STEPS = 20
pytestmark = pytest.mark.chaos


@dataclass
class Singles(Cluster):
    grace: bool = False
    """No pod of an engine ends: it has time to, and takes it."""

    def _engine(self, pod: dict[str, Any], ip: str) -> list[str]:
        said = pod["spec"]["containers"][0]["env"]
        gpus = next(each["value"] for each in said if each["name"] == building.VISIBLE)
        return [
            "-m",
            "tests.dual_pods.engine_stand_in",
            ip,
            ",".join(f"{self.directory}/{it}" for it in gpus.split(",")),
        ]

    def _mind_pod(self, pod: dict[str, Any]) -> None:
        known = self.running.get(pod["metadata"]["uid"])
        if self.grace and known is not None and self._is_server(pod):
            if known.process.poll() is not None:  # it is started again, and said to have ended for a moment more
                self._start(pod)
                self._status(pod, "Running", {"terminated": {"exitCode": 137}}, ready=False)
        else:
            super()._mind_pod(pod)

    def both(self) -> str:
        file = self.directory / "both"
        return file.read_text() if file.exists() else ""


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Singles]:
    with cluster(tmp_path, {"n1": ["GPU-0"]}, Singles) as made:
        assert isinstance(made, Singles)
        yield made


def test_a_container_that_is_started_again_as_its_pod_is_deleted_has_not_ended(it: Singles) -> None:
    it.controller("--mode", "sleep")
    it.served("a")
    it.delete("a")
    until(lambda: names.ASLEEP_SINCE in it.servers()[0]["metadata"]["annotations"], "its engine sleeps")
    it.grace = True
    uid = it.servers()[0]["metadata"]["uid"]
    it.running[uid].process.kill()
    until(lambda: "deletionTimestamp" in it.servers()[0]["metadata"], "one that crashed asleep is deleted")
    it.request("b", "llama")
    until(lambda: "on an accelerator of this one" in it.says("b") or len(it.running) > 2, "it waits, or runs")
    assert len(it.running) == 2 and not it.both(), "a, which has time to end, and the requester b"
    it.grace = False
    it.until_ready("b")
    assert not it.both()


@pytest.mark.parametrize("mode", ["sleep", "direct"])
def test_whatever_comes_goes_and_is_killed_no_accelerator_has_two(it: Singles, mode: str) -> None:
    draw, there = seeded(), list[str]()
    it.gpus["n1"].append("GPU-1")
    it.controller("--mode", mode)
    for step in range(STEPS):
        what = draw.choice(["request", "request", "delete", "engine", "controller"])
        if what == "request" and len(there) < 2:
            it.request(name := f"r{step}", draw.choice(["qwen", "llama", "phi"]))
            there.append(name)
        elif what == "delete" and there:
            name = there.pop(draw.randrange(len(there)))
            if draw.random() < 0.6:
                it.until_ready(name)
            it.delete(name, gracePeriodSeconds=draw.choice(["0", "30"]))
        elif what == "engine":  # of those that sleep another one may have the accelerator: kubelet knows no better
            bound = [pod for pod in it.servers() if names.BINDINGS in pod["metadata"]["annotations"]]
            running = [it.running[uid] for pod in bound if (uid := pod["metadata"]["uid"]) in it.running]
            if running:
                draw.choice(running).process.kill()
        elif what == "controller":
            it.kill_controllers()
            it.controller("--mode", mode)
        assert not it.both()
    for name in there:
        it.until_ready(name)
        it.delete(name)
    until(lambda: {*map(partial(_bound, it), it.servers())} <= {False}, "what is there is promised to none")
    assert not it.both()


def _bound(it: Singles, pod: dict[str, Any]) -> bool:
    return names.BINDINGS in pod["metadata"]["annotations"]
