"""The controller, requesters and pools as real processes, on the strict API server."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from dual_pods.rules import names
from tests.dual_pods.cluster import FMA, Cluster, ask, cluster
from tests.support.waiting import until


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Cluster]:
    with cluster(tmp_path) as made:
        yield made


def test_a_pod_asks_another_one_runs_the_model_and_what_it_leaves_asleep_is_waked_for_the_next(it: Cluster) -> None:
    it.controller()
    it.served("a")
    pod = it.pod("a")
    [server] = it.servers()
    assert pod["metadata"]["labels"][names.DUAL] == server["metadata"]["name"] == "n1-dual"
    [model] = it.pool()["models"]
    assert model["state"] == "awake" and model["devices"] == ["GPU-0"]
    said = ask(f"http://{pod['status']['podIP']}:8000/v1/completions", {"model": "qwen"})
    assert said == {"model": model["name"]}
    it.delete("a")
    until(lambda: it.states() == ["asleep"], "it sleeps")
    until(lambda: not it.pod("a"), "the requester has gone")
    it.served("b")
    assert len(it.pool()["models"]) == 1
    it.until_event("b", "Waking")
    until(lambda: json.loads(it.pod("b")["metadata"]["annotations"][names.STATUS])["Phase"] == "ready", "it says so")


def test_fma_s_requester_is_ready_while_its_instance_is_awake_though_it_asks_none(it: Cluster) -> None:
    it.controller()
    it.served("a", image=FMA)
    it.misbehave(kill=it.instance_of("a"), wake_fails=1000)
    until(lambda: not it.is_ready("a"), "it is unready")
    it.misbehave()
    it.until_ready("a")
    it.misbehave(kill=it.instance_of("a"), wake_fails=1000)
    until(lambda: not it.is_ready("a"), "it is unready again")
    it.kill_controllers()
    it.misbehave()
    it.controller()
    it.until_ready("a")
    it.kill_controllers()
    it.misbehave(kill=it.instance_of("a"), wake_fails=1000)
    it.controller()
    until(lambda: not it.is_ready("a"), "a new controller, which told it nothing, sees to it as well")
    it.delete("a")
    until(lambda: not it.pod("a"), "it has gone")
