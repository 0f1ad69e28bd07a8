"""What a pod or a node of the API says, and what a pool and a requester answer."""

import json
from typing import Any

import pytest

from dual_pods.rules import names, reading
from dual_pods.rules.facts import Ask, Instance, Memory
from pool.entries import State

Object = dict[str, Any]
ASK = Ask("qwen", {}, {})
RUNS: Object = {"name": names.CONTAINER, "state": {"running": {}}, "restartCount": 2}
PULLS: Object = {"waiting": {"reason": "ErrImagePull", "message": "no such image"}}
OVER: Object = {"terminated": {}}


def _pod(annotations: Object | None = None, labels: Object | None = None, status: Object | None = None) -> Object:
    meta: Object = {"uid": "u", "name": "a", "namespace": "ns", "resourceVersion": "7", "annotations": annotations}
    meta |= {"labels": labels, "creationTimestamp": "2026-11-28T10:00:00Z"}
    containers = [{"name": "side"}, {"name": names.CONTAINER, "args": ["--port=9"]}]
    return {"metadata": meta, "spec": {"nodeName": "n", "containers": containers}, "status": status or {}}


def _requester(pod: Object) -> Any:
    pod["metadata"]["annotations"] = {names.PREFIX + "server-patch": "x", **(pod["metadata"]["annotations"] or {})}
    return reading.requester(pod, lambda _: ASK)


def _server(status: Object | None = None, annotations: Object | None = None, kind: str = "pool", **labels: str) -> Any:
    return reading.server(_pod(annotations, {names.SERVER: kind, **labels}, status))


@pytest.mark.parametrize(
    ("annotations", "labels", "is_one"),
    [
        (None, None, False),
        ({}, {}, False),
        ({names.PREFIX + "server-patch": "x"}, None, True),
        ({names.OLD_PREFIX + "server-patch": "x"}, None, True),
        ({names.PREFIX + names.CONFIG: "x"}, None, True),
        ({names.PREFIX + "server-patch": "x"}, {names.SERVER: "single"}, False),
        ({names.PREFIX + "server-patch": "x", names.OLD_PREFIX + "role": "runner"}, None, False),
    ],
)
def test_a_requester_is_a_pod_with_a_wish_that_runs_nothing_itself(
    annotations: Object | None, labels: Object | None, is_one: bool
) -> None:
    assert reading.is_requester(_pod(annotations, labels)) == is_one


def test_what_a_requester_s_pod_says_of_itself() -> None:
    status = {"podIP": "10.0.0.1", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": [RUNS]}
    it = _requester(_pod({names.STATUS: "s", "other": "x"}, {names.DUAL: "d", "app": "a"}, status))
    assert (it.uid, it.name, it.namespace, it.version, it.node, it.ip) == ("u", "a", "ns", "7", "n", "10.0.0.1")
    assert it.running and it.ready and it.restarts == 2 and not it.leaving and not it.old and it.ask is ASK
    assert it.marks == {names.PREFIX + "server-patch": "x", names.STATUS: "s", names.DUAL: "d"}, "no other's words"
    assert it.created == 1795860000.0 and it.why == it.wrong == ""
    new = _requester(_pod())
    assert new.ip == "" and not new.running and not new.ready and new.restarts == 0
    since = {"type": "Ready", "lastTransitionTime": "2026-11-28T10:00:09Z"}
    for said, unready_since in (("False", 1795860009.0), ("True", 0.0)):
        assert _requester(_pod(status={"conditions": [since | {"status": said}]})).unready_since == unready_since
    assert new.unready_since == 0.0
    assert _requester(_pod({names.OLD_PREFIX + "admin-port": "7"})).old


@pytest.mark.parametrize(
    ("status", "running"),
    [
        ({"containerStatuses": [RUNS]}, True),
        ({"containerStatuses": [{**RUNS, "state": OVER}]}, False),
        ({"containerStatuses": [{**RUNS, "state": None}]}, False),
        ({"containerStatuses": [{**RUNS, "name": "side"}]}, False),
    ],
)
def test_a_requester_runs_when_its_own_container_does(status: Object, running: bool) -> None:
    assert _requester(_pod(status=status)).running == running


def test_a_requester_leaves_when_it_is_deleted_or_over() -> None:
    deleted = _pod()
    deleted["metadata"]["deletionTimestamp"] = "2026-11-28T10:00:00Z"
    assert _requester(deleted).leaving and _requester(_pod(status={"phase": "Failed"})).leaving
    assert not _requester(_pod(status={"phase": "Running"})).leaving


@pytest.mark.parametrize(("placed", "why"), [("False", "no node was found for it: 0/3 nodes"), ("True", "")])
def test_a_requester_that_no_node_takes_has_the_scheduler_s_words(placed: str, why: str) -> None:
    condition = {"type": "PodScheduled", "status": placed, "message": "0/3 nodes"}
    assert _requester(_pod(status={"conditions": [{"type": "Other", "status": "False"}, condition]})).why == why


def test_its_admin_port_is_a_number_or_a_port_s_name() -> None:
    pod = _pod({names.PREFIX + "admin-port": "admin"})
    pod["spec"]["containers"][1]["ports"] = [{"containerPort": 1}, {"name": "admin", "containerPort": 8001}]
    assert _requester(pod).admin_port == 8001
    assert _requester(_pod({names.PREFIX + "admin-port": "8002"})).admin_port == 8002
    assert _requester(_pod()).admin_port == names.ADMIN_PORT
    assert "neither a port's number" in _requester(_pod({names.PREFIX + "admin-port": "admin"})).wrong


def test_a_pool_of_another_name_is_the_first_container_of_its_pod() -> None:
    pod = _pod(labels={names.SERVER: "pool"}, status={"containerStatuses": [{**RUNS, "name": "side"}]})
    assert not reading.server(pod).running
    pod["spec"]["containers"].pop()
    assert reading.server(pod).running


def test_one_without_the_container_is_refused() -> None:
    pod = _pod()
    pod["spec"]["containers"].pop()
    assert _requester(pod).wrong == "it has no container inference-server"


@pytest.mark.parametrize(
    ("status", "running"),
    [
        ({}, False),
        ({"containerStatuses": [RUNS]}, True),
        ({"containerStatuses": [RUNS, {"name": "side", "state": PULLS}]}, True),
        ({"containerStatuses": [{"name": "side", "state": OVER}, RUNS]}, True),
        ({"containerStatuses": [{**RUNS, "state": PULLS}, {"name": "side", "state": {"running": {}}}]}, False),
        ({"containerStatuses": [RUNS], "phase": "Failed"}, False),
    ],
)
def test_a_server_pod_runs_when_its_engine_does_whatever_is_beside_it(status: Object, running: bool) -> None:
    """On a node that was lost it is said to run for ever."""
    assert _server(status).running == running


def test_why_a_pod_doesn_t_run_is_kubelet_s_word_or_the_scheduler_s() -> None:
    assert _requester(_pod(status={"containerStatuses": [{"state": PULLS}]})).why == "ErrImagePull no such image"
    making = {"waiting": {"reason": "ContainerCreating"}}
    both = {"containerStatuses": [{"state": making}, {"state": PULLS}, {"state": {}}]}
    assert _server(both).why == "ErrImagePull no such image"
    before = {"containerStatuses": [{"state": {"waiting": {"reason": "PodInitializing"}}}]}
    assert _server(before).why == "" and not _server(before).running
    assert _server(before | {"initContainerStatuses": [{"state": PULLS}]}).why == "ErrImagePull no such image"
    goes_on = before | {"initContainerStatuses": [{"name": "fetch", "state": {"running": {}}}], "phase": "Pending"}
    assert _server(goes_on).why == "its init container fetch hasn't ended"
    assert _server({"phase": "Failed", "reason": "Evicted", "message": "memory"}).why == "Evicted memory"
    beside = {**RUNS, "name": "beside", "restartCount": 5}
    assert _server({"containerStatuses": [beside, RUNS]}).restarts == 2, "the engine's own"
    condition = {"type": "PodScheduled", "status": "False", "message": "0/3 nodes"}
    assert _server({"conditions": [condition]}).why == "no node was found for it: 0/3 nodes"


def test_a_server_pod_is_where_it_was_made_for_else_where_it_was_placed() -> None:
    pod = _pod(labels={names.SERVER: "pool"})
    assert reading.server(pod).node == "n"
    expression = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["m"]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    pod["spec"]["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
    assert reading.server(pod).node == "m"
    bare = _pod(labels={names.SERVER: "pool"})
    del bare["spec"]["nodeName"]
    assert reading.server(bare).node == ""


def test_what_a_server_pod_is_for_stands_on_it() -> None:
    single = _server(None, {names.ACCELERATORS: "0,1"}, "single", **{names.INSTANCE: "i"})
    assert not single.pool and single.instance == "i" and single.accelerators == {"0", "1"} and not single.held
    pool = _server()
    assert pool.pool and pool.accelerators == frozenset() and (pool.port, pool.probe) == (9, (9, "/health"))
    held = _pod(labels={names.SERVER: "pool"})
    held["metadata"]["finalizers"] = [names.FINALIZER]
    assert reading.server(held).held


@pytest.mark.parametrize(
    ("value", "ready", "usable"),
    [
        ({}, False, False),
        ({"spec": {}, "status": {}}, False, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "True"}]}}, True, False),
        ({"status": {"conditions": [{"type": "Ready", "status": "Unknown"}]}}, False, False),
        ({"spec": {"taints": [{"key": "x"}, {"key": "dual-pods"}]}}, False, True),
        ({"spec": {"taints": [{"key": "x"}]}}, False, False),
    ],
)
def test_a_node_is_the_controller_s_by_its_taint_if_one_is_asked_for(value: Object, ready: bool, usable: bool) -> None:
    node = reading.node({"metadata": {"uid": "u", "name": "n"}, **value}, "dual-pods")
    assert (node.ready, node.usable) == (ready, usable)
    assert reading.node({"metadata": {"uid": "u", "name": "n"}, **value}, "").usable


def test_what_a_pool_says_it_runs() -> None:
    model: Object = {"name": "i", "state": "asleep", "devices": ["0"], "why": "w", "bytes": {"0": 7}}
    model |= {"port": None, "pinned": True, "turn": 0, "estimate_ms": None}
    model |= {"weights": {"0": 3}, "parked": {"0": 2}}
    model |= {"asleep_bytes": {"0": 1}, "last_used": "2026-11-28T10:00:00Z"}
    figures = {"0": (9, 0), "1": (9, None), "2": (None, 3)}
    devices = [{"uuid": uuid, "total": total, "free": free, "leased": 2} for uuid, (total, free) in figures.items()]
    told = reading.told(json.dumps({"models": [model], "devices": devices, "ports": {"i": 80}}).encode())
    at = 1795860000.0
    assert told.instances == {
        "i": Instance("i", State.ASLEEP, frozenset("0"), "w", {"0": 7}, {"0": 1}, {"0": 3}, {"0": 2}, at, 80)
    }
    assert told.memory == {"0": Memory(9, 0, 2)}, "what isn't known isn't 0"
    never = reading.told(json.dumps({"models": [{**model, "last_used": None}]}).encode()).instances["i"]
    assert (never.last_used, never.port) == (0.0, 0)
    plain = reading.told(json.dumps({"models": [{**model, "why": "asleep"}]}).encode()).instances["i"]
    assert not plain.why, "a state is no reason"
    for state, wanted in (("asleep", True), ("awake", False)):
        said = {"models": [{**model, "state": state, "wanted": True}]}
        assert reading.told(json.dumps(said).encode()).instances["i"].wanted is wanted, "a pool says it of both"
    for bad in ({**model, "last_used": "yesterday"}, {**model, "state": "flying"}):
        with pytest.raises(reading.BadAnswer):
            reading.told(json.dumps({"models": [bad]}).encode())
    for pool in ("silent", "away"):  # a door that begins anew hasn't heard yet that anything runs
        with pytest.raises(reading.BadAnswer, match=f"pool is {pool}"):
            reading.told(json.dumps({"models": [model], "pool": pool}).encode())
    with pytest.raises(reading.BadAnswer):
        reading.told(b'{"a":' * 5000)


def test_what_a_requester_says_it_has() -> None:
    assert reading.accelerators(b'["GPU-1", "GPU-0", "GPU-1"]') == ("GPU-0", "GPU-1")
    for bad in (b'["a", ""]', b'["a\\n"]'):
        with pytest.raises(reading.BadAnswer):
            reading.accelerators(bad)
    assert reading.memory(b'{"GPU-0": 3}') == {"GPU-0": 3 << 20}
    for odd in (f"1{'0' * 399}1", "-1", "1e3", "1.5"):  # the first one would end a controller that puts it into words
        with pytest.raises(reading.BadAnswer):
            reading.memory(f'{{"GPU-0": {odd}}}'.encode())


@pytest.mark.parametrize(
    ("status", "body", "state"),
    [
        (200, b'{"is_sleeping": true}', State.ASLEEP),
        (200, b'{"is_sleeping": false}', None),
        (200, b"{}", None),
        (200, b"[]", None),
        (404, b'{"is_sleeping": true}', None),
        (500, b'{"is_sleeping": true}', State.LOADING),
    ],
)
def test_an_engine_sleeps_only_if_it_says_so(status: int, body: bytes, state: State | None) -> None:
    said = reading.sleeping(Instance("i", State.LOADING, frozenset()), status, body)
    assert (said.state if said is not None else None) is state
