"""What goes wrong around real processes: controllers that are killed or stopped, an API server that is away, refuses or
forgets, nodes and pods that go.
"""

import contextlib
import http.client
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import cast

import pytest

from dual_pods.rules import names
from tests.api_server.asked import Answer, Asked, Refused
from tests.dual_pods.cluster import FMA, NAMESPACE, PODS, Cluster, cluster, wish
from tests.support.ports import free_port
from tests.support.processes import ROOT
from tests.support.waiting import NEVER_S, readable, until

LEASES = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases"
DEPLOYMENTS = f"/apis/apps/v1/namespaces/{NAMESPACE}/deployments"

pytestmark = pytest.mark.chaos
SEED = int(os.environ.get("FAILOVER_CHAOS_SEED", random.randrange(1 << 30)))


@pytest.fixture
def it(tmp_path: Path) -> Iterator[Cluster]:
    print(f"seed {SEED}")
    with cluster(tmp_path) as made:
        yield made


def _ours(asked: Asked) -> bool:
    return asked.headers.get("user-agent", "").startswith("dual-pods/")


def _round(it: Cluster, name: str) -> None:
    """One requester comes, is served and goes; its instance sleeps, and no accelerator had two awake."""
    it.served(name)
    it.delete(name)
    until(lambda: not it.pod(name), f"{name} has gone")
    until(lambda: it.states() == ["asleep"], "its instance sleeps")
    assert max(it.misbehave()["most_awake"].values()) <= 1


def test_a_controller_that_is_killed_between_any_two_requests_is_followed_by_one_that_goes_on(it: Cluster) -> None:
    draw, left = random.Random(SEED), [0]

    def meddle(asked: Asked) -> Answer | None:
        if not _ours(asked):
            return None
        left[0] -= 1
        if left[0]:
            return None
        it.controllers[-1].kill()
        return None if draw.random() < 0.5 else Answer(503, {"kind": "Status", "message": "not any more"})

    it.server.meddle = meddle
    stop = threading.Event()

    def begin_anew() -> None:
        while not stop.is_set():
            left[0] = draw.randint(1, 25) if len(it.controllers) < 8 else 0
            it.controller().wait()

    beginner = threading.Thread(target=begin_anew, daemon=True)
    beginner.start()
    for name in ("a", "b", "c"):
        _round(it, name)
    stop.set()
    it.server.meddle = lambda asked: None
    it.controllers[-1].kill()
    beginner.join()
    assert len(it.servers()) == 1 and not it.servers()[0]["metadata"]["annotations"].get(names.BINDINGS)


def _leader(it: Cluster, *, but: int = 0) -> tuple[int, int]:
    """Its process, and its token."""

    def another() -> tuple[int, int] | None:
        spec = it.server.ask("GET", f"{LEASES}/dual-pods").get("spec", {})
        pid = int((spec.get("holderIdentity") or "_0").rpartition("_")[2])
        acquired = datetime.fromisoformat(spec.get("acquireTime", "1970-01-01T00:00:00Z"))
        return (pid, int(acquired.timestamp())) if pid not in (0, but) else None

    return until(another, "a controller leads")


def test_of_two_controllers_one_leads_and_what_an_old_one_says_late_is_refused(it: Cluster) -> None:
    """The Lease that both find is of another clock: they wait for it by their own."""
    times = dict.fromkeys(("acquireTime", "renewTime"), "2090-01-01T00:00:00.000000Z")
    spec = {"holderIdentity": "ghost_0", "leaseDurationSeconds": 1, **times}
    it.server.ask("POST", LEASES, {"metadata": {"name": "dual-pods"}, "spec": spec})
    it.controller()
    it.controller()
    it.served("a")
    old, token = _leader(it)
    assert token == 3786912001, "a second later than the ghost's"
    os.kill(old, signal.SIGSTOP)
    it.request("b")
    it.until_ready("b")  # the other one has taken over
    assert _leader(it, but=old)[1] > token
    before = len(it.server.seen)
    os.kill(old, signal.SIGCONT)
    it.delete("a")
    it.delete("b")
    until(lambda: it.states() == ["asleep", "asleep"], "the new leader puts them to sleep")
    of_the_old = [code < 300 and path.endswith(f"=dual-pods-{token}") for _, _, path, code in it.server.seen]
    assert any(of_the_old[:before]) and not any(of_the_old[before:])


_OLD = "2020-01-01T00:00:00.000000Z"


def test_a_leader_whose_lease_was_deleted_or_edited_is_followed_by_one_that_is_obeyed(it: Cluster) -> None:
    it.server.ask("POST", LEASES, {"metadata": {"name": "dual-pods"}, "spec": {}})
    it.controller()
    it.controller()
    it.served("a")
    edits: list[dict[str, object] | None] = [
        {"acquireTime": _OLD},
        {"acquireTime": None, "holderIdentity": "x_1"},
        None,
    ]
    for number, edit in enumerate(edits):
        _, token = _leader(it)
        if edit is None:
            it.server.ask("DELETE", f"{LEASES}/dual-pods")
        else:
            until(lambda token=token: time.time() > token, "the second is over that it is of")  # type: ignore[misc]
            merge = "application/merge-patch+json"
            it.server.ask("PATCH", f"{LEASES}/dual-pods", {"spec": edit}, content_type=merge)
        until(lambda token=token: _leader(it)[1] > token, f"the next leader's token is higher: {edit}")  # type: ignore[misc]
        it.served(f"b{number}")
        it.delete(f"b{number}")
        until(lambda: it.states() == ["asleep", "awake"], f"what it says is done: {edit}")
    assert max(it.misbehave()["most_awake"].values()) <= 1


@pytest.mark.parametrize(("lease_s", "is_kept"), [("1", False), ("60", True)])
def test_an_api_server_that_comes_back_with_another_history_disturbs_nothing_that_is_bound(
    it: Cluster, lease_s: str, is_kept: bool
) -> None:
    """Meanwhile one requester has gone, another one has come, and no watch can tell of either."""
    port = free_port()
    it.controller("--lease-s", lease_s, "--listen", f"127.0.0.1:{port}")
    it.request("a")
    it.request("b", serves="llama")
    it.until_ready("a", "b")
    log, (_, token) = it.directory / "controller-0.log", _leader(it)
    it.kubelets = False
    it.server.away()
    if is_kept:
        until(lambda: log.read_text().count("watch_ended") > 5, "it has tried for a while to follow again")
    else:
        until(lambda: not json.loads(_get(port, "/dual-pods"))["leads"], "it leads no more")
    it.delete("b", gracePeriodSeconds="0")
    it.request("c", serves="llama")
    it.server.call(it.server.api.store.forget_events)
    it.server.back()
    it.kubelets = True
    it.until_ready("a", "c")
    assert it.pod("c")["metadata"]["annotations"][names.ACCELERATORS] == "GPU-1"
    assert (_leader(it)[1] == token) is is_kept
    assert ("too old resource version" in log.read_text()) is is_kept, "a new leader begins with a list"
    until(lambda: it.states() == ["awake", "awake"], "the one that has gone left its instance to the next")
    since_ready = (it.directory / "a.log").read_text().partition(" ready ")[2]
    assert since_ready and " unready " not in since_ready and " ready " not in since_ready
    assert max(it.misbehave()["most_awake"].values()) <= 1


def test_watches_that_are_cut_histories_that_are_forgotten_and_conflicts_lose_nothing(it: Cluster) -> None:
    writes = [0]

    def meddle(asked: Asked) -> Answer | None:
        if _ours(asked) and asked.method in ("PATCH", "PUT", "POST", "DELETE"):
            writes[0] += 1
            if writes[0] % 10 == 0:
                return Answer(409, Refused(409, "the object has been modified", {}).status)
        return None

    it.server.meddle = meddle
    it.controller()
    stop = threading.Event()

    def cut() -> None:
        draw = random.Random(SEED)
        while not stop.wait(draw.uniform(0.01, 0.2)):
            it.server.cut_watches()
            if draw.random() < 0.3:
                it.server.call(it.server.api.store.forget_events)

    cutter = threading.Thread(target=cut, daemon=True)
    cutter.start()
    for name in ("a", "b", "c"):
        _round(it, name)
    stop.set()
    cutter.join()


def test_a_label_that_something_takes_off_at_each_write_is_written_seldom(it: Cluster) -> None:
    def meddle(asked: Asked) -> Answer | None:
        said = json.loads(asked.body) if _ours(asked) and asked.method == "PATCH" else {}
        if said.get("metadata", {}).get("labels", {}).pop(names.SLEEPING, None) is None:
            return None
        return cast(Answer, it.server.api.answer(replace(asked, body=json.dumps(said).encode())))

    it.server.meddle = meddle
    it.controller()
    it.served("a")
    lost = f"{names.SLEEPING} of pod n1-dual was written, and something else has changed it since"
    until(lambda: lost in (it.directory / "controller-0.log").read_text(), "it is no success")


def test_a_node_that_goes_and_comes_back_serves_again(it: Cluster) -> None:
    port = free_port()
    it.controller("--listen", f"127.0.0.1:{port}")
    it.served("a")
    it.server.ask("DELETE", "/api/v1/nodes/n1")
    it.request("b")
    until(lambda: "node n1 isn't there" in " ".join(_status(port)), "it has gone, and the controller knows")
    [server] = json.loads(_get(port, "/dual-pods"))["servers"]
    assert server["why"] == "node n1 isn't there"
    it.server.ask("POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
    it.server.ask("PATCH", "/api/v1/nodes/n1/status", status, content_type="application/merge-patch+json")
    it.until_ready("a", "b")
    assert len(it.servers()) == 1


def test_a_requester_that_is_deleted_during_its_wake_leaves_nothing(it: Cluster) -> None:
    it.controller()
    _round(it, "a")
    it.misbehave(wake_s=0.5)
    it.request("b")
    until(lambda: it.states() == ["waking"], "it wakes")
    it.delete("b", gracePeriodSeconds="0")
    until(lambda: it.states() == ["asleep"], "it sleeps again")


def test_what_a_stopped_pool_was_asked_is_known_before_its_accelerator_is_given_on(it: Cluster) -> None:
    """It hears an order that went unanswered when it goes on, and with it whatever else it was told by then."""
    it.gpus["n1"] = ["GPU-0"]
    port = free_port()
    it.controller("--lease-s", "15", "--listen", f"127.0.0.1:{port}")
    for name, serves in (("a", "qwen"), ("b", "llama")):
        it.served(name, serves)
        it.delete(name)
        until(lambda: "awake" not in it.states() and it.states()[-1:] == ["asleep"], "its instance sleeps")
    it.misbehave(wake_s=1.0)
    [pod] = it.servers()
    pool, log = it.running[pod["metadata"]["uid"]].process.pid, it.directory / "controller-0.log"
    os.kill(pool, signal.SIGSTOP)
    try:
        it.request("c", "qwen")
        until(lambda: "no answer within" in log.read_text(), "its wake goes unanswered")
        it.delete("c", gracePeriodSeconds="0")
        it.request("d", "llama")
        until(lambda: f"{pod['metadata']['name']} hasn't said yet" in " ".join(_status(port)), "it waits for the pool")
    finally:
        os.kill(pool, signal.SIGCONT)
    it.until_ready("d")
    assert max(it.misbehave()["most_awake"].values()) <= 1


def test_a_requester_that_is_started_again_in_its_pod_is_told_its_instance_by_whichever_controller_leads(
    it: Cluster,
) -> None:
    first = it.controller()
    uid = it.served("a")
    bound = it.servers()[0]["metadata"]["annotations"][names.BINDINGS]

    def starts_again(times: int) -> None:
        it.running[uid].process.kill()
        until(lambda: it.pod("a")["status"]["containerStatuses"][0]["restartCount"] == times, "kubelet says so")

    starts_again(1)
    it.until_ready("a")
    first.kill()
    first.wait()
    starts_again(2)
    until(lambda: not it.is_ready("a"), "it knows of no instance")
    it.controller()
    it.until_ready("a")
    assert it.states() == ["awake"] and it.servers()[0]["metadata"]["annotations"][names.BINDINGS] == bound
    it.delete("a", gracePeriodSeconds="0")
    second = it.request("a")
    assert uid != second, "a pod of the same name is another requester"
    it.until_ready("a")
    assert it.servers()[0]["metadata"]["annotations"][names.BINDINGS].count(second) == 1


def test_a_pool_that_hangs_makes_each_requester_unready_until_it_goes_on(it: Cluster) -> None:
    """It refuses no connection, and ends no answer. FMA's requester asks nothing by itself."""
    it.controller("--lease-s", "15", "--ready-within-s", "4")
    it.request("a", image=FMA)
    it.request("b", "llama")
    it.until_ready("a", "b")
    [pod] = it.servers()
    pool = it.running[pod["metadata"]["uid"]].process.pid
    os.kill(pool, signal.SIGSTOP)
    try:
        until(lambda: not it.is_ready("a") and not it.is_ready("b"), "neither is Ready")
        for name in ("a", "b"):
            it.until_event(name, "isn't Ready after 4 s: server pod n1-dual hasn't said yet what it runs")
    finally:
        os.kill(pool, signal.SIGCONT)
    it.until_ready("a", "b")
    assert it.states() == ["awake", "awake"]


def test_a_right_that_is_missing_is_said_and_once_it_is_there_all_goes_on(it: Cluster) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/dual-pods"
    rules = it.server.ask("GET", path)["rules"]

    def may_not(verb: str) -> None:
        fewer = [{**r, "verbs": [v for v in r["verbs"] if v != verb or "pods" not in r["resources"]]} for r in rules]
        it.server.ask("PUT", path, {"rules": fewer, "metadata": {"name": "dual-pods"}})

    port = free_port()
    may_not("watch")
    it.controller("--listen", f"127.0.0.1:{port}")
    for verb in ("watch", "create", "patch"):
        may_not(verb)
        if verb == "create":
            it.request("a")
        missing = f'cannot {verb} resource "pods"'
        until(lambda missing=missing: missing in " ".join(_status(port)), f"the status says {missing}")  # type: ignore[misc]
        if verb == "watch":
            assert {"dual_pods_leader 1.0", "dual_pods_blind 1.0"} <= {*_get(port, "/metrics").splitlines()}
        else:
            it.until_event("a", missing)
        if verb == "create":
            until(lambda missing=missing: missing in it.says("a"), "so does the requester's status")  # type: ignore[misc]
    may_not("")
    it.until_ready("a")
    until(lambda: "cannot" not in " ".join(_status(port)), "nothing is missing any more")
    assert "dual_pods_blind 0.0" in _get(port, "/metrics").splitlines()


def test_a_controller_that_can_t_have_the_lease_says_why_and_isn_t_ready(it: Cluster) -> None:
    path = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{NAMESPACE}/roles/dual-pods"
    role = it.server.ask("GET", path)
    fewer = [rule for rule in role["rules"] if "leases" not in rule["resources"]]
    it.server.ask("PUT", path, {**role, "rules": fewer, "metadata": {"name": "dual-pods"}})
    port = free_port()
    it.controller("--listen", f"127.0.0.1:{port}")
    missing = 'cannot get resource "leases"'
    until(lambda: missing in " ".join(_status(port)), "the status says it")
    assert missing in _get(port, "/ready"), "so a rollout isn't done"
    it.server.ask("PUT", path, {**role, "metadata": {"name": "dual-pods"}})
    until(lambda: _get(port, "/ready") == "ready\n", "it leads")
    assert _status(port) == [""]


def test_a_requester_is_unready_while_its_engine_is_and_answers_what_is_open_when_it_is_deleted(it: Cluster) -> None:
    """Though kubelet hasn't told it yet."""
    it.controller()
    it.served("a")
    [model] = it.pool()["models"]
    it.misbehave(kill=model["name"], load_s=3.0, wake_s=3.0)
    until(lambda: not it.is_ready("a"), "it is unready")
    it.until_ready("a")
    it.until_event("a", "failed: its process has ended")
    it.kubelets = False
    ip = it.pod("a")["status"]["podIP"]
    with socket.create_connection((ip, 8000)) as client:
        client.sendall(b"GET /v1/models HTTP/1.1\r\nhost: a\r\n\r\n")
        assert readable(client.fileno()) and client.recv(1 << 16), "it goes through to the instance"
        client.sendall(b"GET /v1/models HTTP/1.1\r\n")
        it.delete("a")
        until(lambda: b"isn't bound to an instance any more" in _body(ip, "/ready"), "its binding has ended")
        assert not readable(client.fileno(), NEVER_S)
    it.kubelets = True
    until(lambda: not it.pod("a"), "it goes")


def _body(ip: str, path: str) -> bytes:
    with contextlib.closing(http.client.HTTPConnection(ip, 8080)) as connection:
        connection.request("GET", path)
        return connection.getresponse().read()


def _status(port: int) -> list[str]:
    with contextlib.suppress(OSError):
        status = json.loads(_get(port, "/dual-pods"))
        return [status["blind"], *(it["says"] for it in status["requesters"])]
    return []


def test_bad_input_is_an_event_and_a_status_and_leaves_nothing(it: Cluster) -> None:
    """And a pod whose wish is taken off is no requester any more, and one again when it is back."""
    it.gpus["n1"] = [f"GPU-{number}" for number in range(4)]
    gone = "{name: inference-server, $patch: delete}"
    bad = {
        "a": ({"server_patch": "spec: ["}, "it is no YAML"),
        "b": ({"server_patch": f"spec: {{containers: [{gone}]}}"}, "removes the container"),
        "c": ({"model": "memory: 90GiB"}, "can never fit: GPU-2 has 80 GiB"),
    }
    port = free_port()
    it.controller("--listen", f"127.0.0.1:{port}")
    it.request("many", gpus=9)
    until(lambda: "no node was found for it" in it.says("many"), "no node has so many accelerators")
    for name, (annotations, says) in bad.items():
        it.request(name, "qwen", 1, **annotations)
        until(lambda name=name, says=says: says in it.says(name), f"the status says {says}")  # type: ignore[misc]
        it.until_event(name, says)
        assert name == "c" or not it.servers()
    it.served("good")
    for name in ("many", "b", "c"):
        it.delete(name)
    merge, key = "application/merge-patch+json", f"{names.PREFIX}server-patch"
    it.server.ask("PATCH", f"{PODS}/a", {"metadata": {"annotations": {key: None}}}, content_type=merge)

    def asking() -> list[str]:
        return [one["name"] for one in json.loads(_get(port, "/dual-pods"))["requesters"]]

    until(lambda: asking() == ["good"], "the others have gone, and a is forgotten")
    assert len(it.pool()["models"]) == 1
    it.server.ask("PATCH", f"{PODS}/a", {"metadata": {"annotations": {key: wish("qwen")}}}, content_type=merge)
    it.until_ready("a")


_OF_A_SERVER = names.BINDINGS, names.ACCELERATORS, names.ASLEEP_SINCE
"""What a new controller reads there, the last two of a pod with one instance."""


def test_what_is_bound_is_frozen_and_what_may_be_changed_of_it_ends_no_binding(it: Cluster) -> None:
    it.controller()
    it.served("a")
    merge = "application/merge-patch+json"
    words = "server-patch", "admin-port", "role"
    wishes = [prefix + name for prefix in (names.PREFIX, names.OLD_PREFIX) for name in words]
    for patch in (
        *({"metadata": {"annotations": {name: "9999"}}} for name in (*wishes, names.MODEL)),
        *({"metadata": {"annotations": {name: "1.0"}}} for name in _OF_A_SERVER),
        {"metadata": {"labels": {names.DUAL: None}}},
        {"metadata": {"labels": {names.INSTANCE: "i1"}}},
    ):
        bound = f"{PODS}/a", f"{PODS}/{it.servers()[0]['metadata']['name']}"
        for path in (*bound, *(f"{pod}/status" for pod in bound)):
            assert it.server.ask("PATCH", path, patch, content_type=merge)["code"] == 422, (path, patch)
    assert (
        it.server.ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}}, content_type=merge)["kind"] == "Pod"
    )
    forged = {
        "metadata": {"name": "x", "labels": {names.SERVER: "pool"}},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }
    assert it.server.ask("POST", PODS, forged)["code"] == 422
    before = it.instance_of("a")
    said = {"spec": {"tolerations": [{"key": "x", "operator": "Exists"}]}}
    assert it.server.ask("PATCH", f"{PODS}/a", said, content_type=merge)["kind"] == "Pod"
    it.kill_controllers()
    it.controller()
    it.request("b")
    it.until_ready("a", "b")
    assert it.instance_of("a") == before and it.states() == ["awake", "awake"], "whichever controller leads"


def _deploy(it: Cluster) -> str:
    """Returns its uid."""
    template = {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}}
    spec = {"selector": {"matchLabels": {"a": "b"}}, "template": template}
    made = it.server.ask("POST", DEPLOYMENTS, {"metadata": {"name": "dual-pods"}, "spec": spec})
    return str(made["metadata"]["uid"])


def _owned(it: Cluster) -> subprocess.Popen[bytes]:
    """A controller of a Deployment, with a server pod."""
    _deploy(it)
    controller = it.controller("--owner", "dual-pods")
    it.served("a")
    return controller


def test_a_deployment_that_cant_be_looked_at_is_there_for_all_that_is_known(it: Cluster) -> None:
    controller = _owned(it)
    refusal = Answer(500, {"kind": "Status", "message": "not now"})
    it.server.meddle = lambda asked: refusal if "/deployments/" in asked.path else None
    controller.terminate()
    assert controller.wait() == 0
    assert [pod["metadata"]["finalizers"] for pod in it.servers()] == [[names.FINALIZER]]


def test_server_pods_are_the_deployments_that_is_there_and_go_when_their_containers_have_ended(it: Cluster) -> None:
    refusals = [Answer(500, {"kind": "Status", "message": "not now"})]
    it.server.meddle = lambda asked: refusals.pop() if refusals and "/deployments/" in asked.path else None
    controller = _owned(it)
    it.server.ask("DELETE", f"{DEPLOYMENTS}/dual-pods?propagationPolicy=Orphan")
    uid = _deploy(it)
    [server] = it.servers()
    it.kubelets = False  # nothing ends, and yet it is deleted by force
    it.delete(server["metadata"]["name"], gracePeriodSeconds="0")
    held = it.pod(server["metadata"]["name"])
    assert held["metadata"]["finalizers"] == [names.FINALIZER] and "deletionTimestamp" in held["metadata"]
    it.kubelets = True

    def owners() -> list[str]:
        return [owner["uid"] for pod in it.servers() for owner in pod["metadata"].get("ownerReferences", [])]

    until(lambda: owners() == [uid], "the pod that is made now is the new one's")
    it.until_ready("a")
    it.kubelets = False
    it.server.ask("DELETE", f"{DEPLOYMENTS}/dual-pods")
    until(lambda: "deletionTimestamp" in it.servers()[0]["metadata"], "the collector has marked it")
    controller.terminate()
    assert controller.wait() == 0
    it.kubelets = True
    until(lambda: not it.servers(), "where the Deployment goes first no server pod is left")


def test_status_and_metrics_say_who_asks_who_runs_and_who_sleeps(it: Cluster) -> None:
    """What came before the last leadership too: the metrics are asked after it alone."""
    port = free_port()
    it.controller("--lease-s", "15", "--listen", f"127.0.0.1:{port}")  # what is under way when one is lost is no part
    _round(it, "a")
    it.served("b", serves="llama")
    command = [sys.executable, "-m", "dual_pods.cli.dualctl", "status", "--controller", f"http://127.0.0.1:{port}"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done
    assert re.search(r"^b +n1 +GPU-[01] +ready", done.stdout, re.M) and "asleep" in done.stdout
    it.request("c", server_patch="spec: [")
    until(lambda: it.says("c"), "it is refused")
    assert subprocess.run([*command, "--json"], cwd=ROOT, capture_output=True).returncode == 1
    it.server.ask("DELETE", f"{LEASES}/dual-pods")
    log = it.directory / "controller-0.log"
    until(lambda: log.read_text().count(" leads ") == 2, "it leads anew")
    until(lambda: 'dual_pods_requesters{phase="ready"} 1.0' in _get(port, "/metrics"), "and knows who is ready")
    text = _get(port, "/metrics")
    for line in ("dual_pods_leader 1.0", 'dual_pods_requesters{phase="ready"} 1.0', "dual_pods_launches_total 3.0"):
        assert line in text, text
    assert 'dual_pods_ready_seconds_count{by="launch"} 2.0' in text


def test_a_controller_that_may_not_see_the_cluster_says_so_and_status_is_no_success(it: Cluster) -> None:
    it.server.ask("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/dual-pods-nodes")
    port = free_port()
    it.controller("--listen", f"127.0.0.1:{port}")
    command = [sys.executable, "-m", "dual_pods.cli.dualctl", "status", "--controller", f"http://127.0.0.1:{port}"]

    def says() -> bool:
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
        assert done.returncode != 0
        return 'cannot list resource "nodes"' in done.stdout

    until(says, "it says which right is missing")
    assert 'cannot list resource "nodes"' in _get(port, "/ready")


def test_one_that_was_ready_before_a_controller_led_isnt_counted_as_become_ready_by_it(it: Cluster) -> None:
    first, port = it.controller(), free_port()
    it.served("a")
    first.kill()
    first.wait()
    it.controller("--listen", f"127.0.0.1:{port}")

    def said(line: str) -> bool:
        with contextlib.suppress(OSError):
            return line in _get(port, "/metrics")
        return False

    until(lambda: said('dual_pods_requesters{phase="ready"} 1.0'), "the second one knows it")
    merge = "application/merge-patch+json"
    it.server.ask("PATCH", f"{PODS}/a", {"metadata": {"labels": {"x": "y"}}}, content_type=merge)
    it.served("b", serves="llama")
    until(lambda: said("dual_pods_ready_seconds_count"), "b has become ready by it")
    text = _get(port, "/metrics")
    counts = re.findall(r"^dual_pods_ready_seconds_count.* (\S+)$", text, re.M)
    assert sum(map(float, counts)) == 1, text


def _get(port: int, path: str) -> str:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    return connection.getresponse().read().decode()
