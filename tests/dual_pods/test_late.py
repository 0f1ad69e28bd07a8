"""What a leader of before sends late, on the strict API server, where a later one has been at work."""

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from typing import Any

import pytest

from dual_pods.rules import building, names, reading
from dual_pods.rules.events import Create, Order
from dual_pods.rules.facts import Server
from dual_pods.rules.place import Settings
from dual_pods.shell.controller import Options, Work
from dual_pods.shell.kube import MERGE, Kube, Refused
from dual_pods.shell.lease import Lease
from dual_pods.shell.servers import Failed, Servers
from sidecar.terminal.logs import Log
from tests.api_server.access import ADMINISTRATOR
from tests.api_server.server import ApiServer

PODS = "/api/v1/namespaces/default/pods"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/default/leases"
PATCH = "spec: {containers: [{name: inference-server, image: x, command: [vllm, serve, qwen]}]}"


@pytest.fixture
def server() -> Iterator[ApiServer]:
    with ApiServer() as it:
        it.ask("POST", "/api/v1/namespaces", {"metadata": {"name": "default"}})
        yield it


def _does(server: ApiServer, what: Callable[[Work], Awaitable[Any]]) -> None:
    async def run() -> None:
        log, kube = Log("test"), Kube(server.url, lambda: ADMINISTRATOR, "test")
        lease = Lease(kube, "default", "dual-pods", "a", 15.0, log)
        await what(Work(kube, lease, Options("default", Settings()), log, []))

    asyncio.run(run())


def _order(server: ApiServer, what: str, pod: Server) -> None:
    _does(server, lambda work: work._order(Order(what, pod)))


def _made(server: ApiServer) -> Server:
    """A server pod with one instance, as its controller makes it."""
    annotations = {names.PREFIX + names.SERVER_PATCH: PATCH}
    container = {"name": names.CONTAINER, "image": "requester"}
    ask = building.ask({"metadata": {"annotations": annotations}, "spec": {"containers": [container]}})
    body = building.single(ask, "i1", "n", ["0"], "n-1-dual", "nvidia.com/gpu")
    _does(server, lambda work: work._create(Create("n", "default", body)))
    return _there(server)


def _there(server: ApiServer) -> Server:
    return reading.server(server.ask("GET", f"{PODS}/n-1-dual"))


def _touched(server: ApiServer) -> None:
    """Another leader has bound it, or whatever else."""
    server.ask("PATCH", f"{PODS}/n-1-dual", {"metadata": {"labels": {names.DUAL: "b"}}}, content_type=MERGE)


@pytest.mark.parametrize("what", ["wake", "sleep"])
def test_an_engine_is_told_nothing_by_one_whose_lease_another_one_has(
    server: ApiServer, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would obey: it knows no token."""
    heard, order = list[Order](), Order(what, Server("u", "s", "default", pool=False))

    async def hear(self: Servers, order: Order) -> None:
        heard.append(order)

    async def check(work: Work) -> None:
        await work.lease.acquire()
        await asyncio.gather(*(work._order(order) for _ in range(5)))
        assert len(heard) == 5 and work.lease.leads
        taken = {"spec": {"holderIdentity": "b"}}
        server.ask("PATCH", f"{LEASES}/dual-pods", taken, content_type=MERGE)
        with pytest.raises(Failed, match="doesn't lead any more"):
            await work._order(order)
        assert len(heard) == 5

    monkeypatch.setattr(Servers, "order", hear)
    _does(server, check)


def test_a_pod_with_one_instance_is_made_with_a_gate_which_its_leader_takes_off(server: ApiServer) -> None:
    pod = _made(server)
    assert pod.gated
    _order(server, "admit", pod)
    assert not _there(server).gated


@pytest.mark.parametrize("what", ["admit", "release", "delete-pod"])
def test_nothing_is_done_to_a_pod_that_another_leader_has_touched(server: ApiServer, what: str) -> None:
    pod = _made(server)
    _touched(server)
    with pytest.raises(Refused) as refused:
        _order(server, what, pod)
    assert refused.value.code == 409 and not _there(server).leaving
    _order(server, "delete-pod", _there(server))
    assert _there(server).leaving
