"""The controller's shell, in this process: faults of its own, and what it asks the API server."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from dual_pods.rules import building, names, reading
from dual_pods.rules.events import Done, Tells
from dual_pods.rules.facts import Requester
from dual_pods.rules.machine import Machine
from dual_pods.rules.place import Mode, Settings
from dual_pods.rules.strategic import BadPatch
from dual_pods.shell.controller import Controller, Options
from dual_pods.shell.prometheus import Prometheus
from dual_pods.shell.servers import Failed, Servers
from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from sidecar.terminal.logs import Log
from sidecar.wire import tcp
from tests.support.waiting import DEADLINE_S, until

Object = dict[str, Any]
IP = "127.0.0.1"
PATCH = "spec: {containers: [{name: inference-server, image: x, command: [vllm, serve, --port=PORT, qwen]}]}"
RUNS = {"phase": "Running", "podIP": IP, "containerStatuses": [{"name": names.CONTAINER, "state": {"running": {}}}]}
NODE = {
    "metadata": {"uid": "n", "name": "n", "resourceVersion": "1"},
    "status": {"conditions": [{"type": "Ready", "status": "True"}]},
}


def _pod(port: int, labels: dict[str, str], annotations: dict[str, str]) -> Object:
    meta = {"uid": "u", "name": "a", "namespace": "ns", "resourceVersion": "1", "labels": labels}
    meta |= {"creationTimestamp": "2026-11-28T10:00:00Z", "annotations": annotations}
    command = ["x", f"--port={port}"]
    container = {"name": names.CONTAINER, "image": "x", "command": command}
    return {"metadata": meta, "spec": {"nodeName": "n", "containers": [container]}, "status": RUNS}


def _requester(port: int) -> Object:
    annotations = {"server-patch": PATCH.replace("PORT", str(port)), "admin-port": str(port)}
    return _pod(port, {}, {names.PREFIX + key: value for key, value in annotations.items()})


def _server(port: int) -> Object:
    return _pod(port, {names.SERVER: "pool"}, {})


OPTIONS = Options("ns", Settings())


class Kube:
    """An API server that has some pods on one node, and takes everything."""

    ahead_s = 0.0

    def __init__(self, *pods: Object) -> None:
        self.pods = pods

    async def follow(self, path: str, log: Log) -> AsyncIterator[tuple[str, Object]]:
        for each in [NODE] if path.endswith("/nodes") else self.pods:
            yield "ADDED", each
        yield "LISTED", {}
        await asyncio.Event().wait()

    async def ask(self, method: str, path: str, body: Any = None, *_: Any) -> Object:
        return self.pods[-1]


class Lease:
    leads, token = True, 7

    async def acquire(self) -> None:
        pass

    async def keep(self) -> None:
        await asyncio.Event().wait()


def _run(pods: Callable[[int], list[Object]], options: Callable[[int], Options] = lambda port: OPTIONS) -> None:
    """A controller of pods at a port where all that is asked is answered, until it ends."""

    def handle(request: Request, reply: Reply) -> None:
        reply.send(200, b"data: {}\n\n" if request.path == "/failover/models" else b'["GPU-0"]')

    async def run() -> None:
        listener = tcp.listen(IP, 0)
        http = HttpServer(asyncio.get_running_loop(), handle, lambda status, why: why.encode(), Limits())
        await http.listen(listener)
        port = listener.getsockname()[1]
        kube: Any = Kube(*pods(port))
        lease: Any = Lease()
        async with asyncio.timeout(DEADLINE_S):
            await Controller(kube, lease, options(port), Log("test")).run()

    asyncio.run(run())


class Heard(BaseException):
    pass


@pytest.mark.parametrize(("pod", "reads"), [(_requester, "accelerators"), (_server, "told")])
def test_a_fault_while_one_pod_is_asked_is_that_pod_s_alone_and_it_is_asked_again(
    pod: Callable[[int], Object], reads: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """One user's words ended each controller that led, and so all of the cluster's."""
    asked = list[bytes]()

    def fault(body: bytes) -> None:
        asked.append(body)
        raise Heard if len(asked) == 3 else ZeroDivisionError("a fault of ours")

    monkeypatch.setattr(reading, reads, fault)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [pod(port)])
    assert ended.group_contains(Heard)
    said = capsys.readouterr().err
    assert said.count(" fault what=") == 2 and said.count("Traceback") == 1, "and is in the log, with where it was once"


def test_what_was_at_fault_is_what_its_pod_waits_for(monkeypatch: pytest.MonkeyPatch) -> None:
    async def ask(self: Kube, method: str, path: str, body: Any = None, *_: Any) -> Object:
        if "a fault of the controller, which its log tells: ZeroDivisionError: ours" in json.dumps(body):
            raise Heard
        return self.pods[-1]

    def fault(body: bytes) -> None:
        raise ZeroDivisionError("ours")

    monkeypatch.setattr(reading, "accelerators", fault)
    monkeypatch.setattr(Kube, "ask", ask)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_requester(port)])
    assert ended.group_contains(Heard)


@pytest.mark.parametrize("reads", ["node", "requester", "server"])
def test_what_can_t_be_read_is_said_to_those_that_wait_for_it_and_ends_nothing(
    reads: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It ended each controller that led, and so all of the cluster's."""
    said = list[str]()

    async def ask(self: Kube, method: str, path: str, body: Any = None, *_: Any) -> Object:
        if path.endswith("/events") and "a fault of the controller" in body["message"]:
            raise Heard
        said.append(path)
        return self.pods[-1]

    def fault(*_: Any) -> None:
        raise ZeroDivisionError("ours")

    def pods(port: int) -> list[Object]:
        pool = _server(port)
        return [pool | {"metadata": pool["metadata"] | {"uid": "s", "name": "pool"}}, _requester(port)]

    monkeypatch.setattr(reading, reads, fault)
    monkeypatch.setattr(Kube, "ask", ask)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(pods)
    assert ended.group_contains(Heard) and not [path for path in said if "/pods/pool" in path], "nothing was promised"
    what = {"node": "n", "requester": "a", "server": "pool"}[reads]
    assert f' fault what="read {what}"' in capsys.readouterr().err


def test_what_is_not_understood_of_a_pod_is_in_the_log_with_where_it_was(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It may be a fault of ours, and no user's."""

    def fault(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError("ours")

    def heard(it: Machine, event: Any, now: float) -> list[Any]:
        if isinstance(event, Requester):
            raise Heard
        return []

    monkeypatch.setattr(building, "ask", fault)
    monkeypatch.setattr(Machine, "feed", heard)
    with pytest.raises(BaseExceptionGroup):
        _run(lambda port: [_requester(port)])
    said = capsys.readouterr().err
    assert " not_understood pod=a" in said and "Traceback" in said


@pytest.mark.parametrize("event", [Tells, Done, Requester])
def test_a_fault_in_what_it_knows_ends_the_program_wherever_it_shows(
    event: type[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It may know half of what happened: the next one reads all of it anew."""
    feed = Machine.feed

    def fault(it: Machine, happened: Any, now: float) -> Any:
        if isinstance(happened, event):
            raise ZeroDivisionError("a fault of ours")
        return feed(it, happened, now)

    monkeypatch.setattr(Machine, "feed", fault)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_requester(port), _server(port) | {"metadata": _server(port)["metadata"] | {"uid": "s"}}])
    assert isinstance(ended.value.exceptions[0].__cause__, ZeroDivisionError)


@pytest.mark.parametrize(
    ("prometheus", "why"),
    [
        (None, "it isn't understood"),
        (Failed("it can't be read"), "it can't be read"),
        ({}, "Prometheus has no series of this node"),
        ({"n1": {}, "n2": {"GPU-0": 7}}, "Prometheus has no series of this node"),
    ],
)
def test_why_no_figure_of_the_memory_in_use_comes_is_what_its_requester_waits_for(
    prometheus: Any, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    says = f"hasn't been measured yet: {why}"

    async def used(self: Prometheus) -> Any:
        if isinstance(prometheus, Failed):
            raise prometheus
        return prometheus

    async def ask(self: Kube, method: str, path: str, body: Any = None, *_: Any) -> Object:
        if says in json.dumps(body):
            raise Heard
        return self.pods[-1]

    def options(port: int) -> Options:
        asked = Prometheus("", 0.01) if prometheus is not None else None
        return Options("ns", Settings(mode=Mode.SLEEP, sleepers_bytes=0), prometheus=asked)

    monkeypatch.setattr(Prometheus, "used", used)
    monkeypatch.setattr(Kube, "ask", ask)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_requester(port)], options)
    assert ended.group_contains(Heard)


@pytest.mark.parametrize("ahead_s", [-3600.0, 0.0, 3600.0])
def test_what_is_late_is_so_by_the_clock_that_says_when_it_was_made(
    ahead_s: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = list[str]()

    async def ask(self: Kube, method: str, path: str, body: Any = None, *_: Any) -> Object:
        said.append(body.get("reason", "status"))
        if "status" in said and "Late" in said:
            raise Heard
        return self.pods[-1]

    def pods(port: int) -> list[Object]:
        new, old = _requester(1), _requester(1)
        for pod, name, age_s in ((new, "new", 60), (old, "old", 3600)):
            made = datetime.fromtimestamp(time.time() + ahead_s - age_s, UTC).isoformat()
            pod["metadata"] |= {"uid": name, "name": name, "creationTimestamp": made}
        return [new, old]

    monkeypatch.setattr(Kube, "ask", ask)
    monkeypatch.setattr(Kube, "ahead_s", ahead_s)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(pods, lambda port: Options("ns", Settings(bound_s=600)))
    assert ended.group_contains(Heard) and said.count("Late") == 1, said


def test_that_one_is_late_again_is_an_event_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """The API server has the one of before for an hour, and a second one of its name is none."""
    said = list[str]()

    async def ask(self: Kube, method: str, path: str, body: Any = None, *_: Any) -> Object:
        if body.get("reason") == "Late":
            said.append(body["metadata"]["name"])
        return self.pods[-1]

    def shown(version: int, ready: bool) -> Object:
        pod = _requester(1)
        changed = {"type": "Ready", "status": str(ready), "lastTransitionTime": f"2026-11-28T1{version}:00:00Z"}
        meta = pod["metadata"] | {"resourceVersion": str(version)}
        return pod | {"metadata": meta, "status": {**RUNS, "conditions": [changed]}}

    async def follow(self: Kube, path: str, log: Log) -> AsyncIterator[tuple[str, Object]]:
        yield "ADDED", NODE if path.endswith("/nodes") else shown(2, ready=False)
        yield "LISTED", {}
        while path.endswith("/nodes") or not said:
            await asyncio.sleep(0.01)
        yield "MODIFIED", shown(3, ready=True)
        yield "MODIFIED", shown(4, ready=False)
        while len(said) < 2:
            await asyncio.sleep(0.01)
        raise Heard

    monkeypatch.setattr(Kube, "ask", ask)
    monkeypatch.setattr(Kube, "follow", follow)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_requester(1)], lambda port: Options("ns", Settings(bound_s=0.01)))
    assert ended.group_contains(Heard) and len({*said}) == 2, said


def test_requesters_that_don_t_answer_keep_none_waiting_that_does(monkeypatch: pytest.MonkeyPatch) -> None:
    async def accelerators(self: Servers, requester: Requester) -> None:
        if requester.uid == "u":
            raise Heard
        await asyncio.Event().wait()

    monkeypatch.setattr(Servers, "accelerators", accelerators)
    silent = [_requester(1) for _ in range(100)]
    for number, pod in enumerate(silent):
        pod["metadata"] |= {"uid": f"s{number}", "name": f"s{number}"}
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [*silent, _requester(port)])
    assert ended.group_contains(Heard)


def test_an_answer_that_comes_late_ends_no_watch_of_a_server_pod(monkeypatch: pytest.MonkeyPatch) -> None:
    """It tells of the pod as it was made; that it runs has been told meanwhile, and nothing more may come for hours."""

    def heard(body: bytes) -> None:
        raise Heard

    monkeypatch.setattr(reading, "told", heard)
    late = _server(1)
    late["metadata"] |= {"resourceVersion": "0"}
    late["status"] = {}
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_server(port), late])
    assert ended.group_contains(Heard)


@pytest.mark.parametrize("mode", [Mode.SWAP, Mode.SLEEP])
def test_one_in_a_pod_of_its_own_that_sleeps_isn_t_taken_for_awake(mode: Mode, monkeypatch: pytest.MonkeyPatch) -> None:
    """In `swap`, too: a controller of the other mode has left it."""

    def heard(*_: Any) -> None:
        raise Heard

    monkeypatch.setattr(reading, "sleeping", heard)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_pod(port, {names.SERVER: "single"}, {})], lambda port: Options("ns", Settings(mode)))
    assert ended.group_contains(Heard)


def test_what_is_refused_is_read_once_however_often_its_pod_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    """A patch of many KiB takes the controller's time, and a pod that starts is told of again and again."""
    read = list[Object]()

    def refuse(pod: Object, *, swaps: bool) -> None:
        read.append(pod)
        raise BadPatch("it is none")

    async def ask(self: Kube, method: str, path: str, body: Any = None, *_: Any) -> Object:
        assert "it is none" in json.dumps(body)
        raise Heard

    monkeypatch.setattr(building, "ask", refuse)
    monkeypatch.setattr(Kube, "ask", ask)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_requester(port)] * 3)
    assert ended.group_contains(Heard) and len(read) == 1


def test_while_a_patch_is_read_the_lease_may_be_renewed(monkeypatch: pytest.MonkeyPatch) -> None:
    """One of many KiB takes a second, and a page of a list has many pods: none would lead for long enough."""
    turns = [0]

    async def keep(self: Lease) -> None:
        while True:
            turns[0] += 1
            await asyncio.sleep(0)

    def read(pod: Object, *, swaps: bool) -> None:
        before = turns[0]
        until(lambda: turns[0] > before, "something else is done")
        raise Heard

    monkeypatch.setattr(Lease, "keep", keep)
    monkeypatch.setattr(building, "ask", read)
    with pytest.raises(BaseExceptionGroup) as ended:
        _run(lambda port: [_requester(port)])
    assert ended.group_contains(Heard)
