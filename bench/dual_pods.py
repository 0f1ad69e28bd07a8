"""The controller of dual pods with 200 requesters on 50 nodes: from a requester that runs to Ready, and at rest.

    python -m bench.dual_pods --requesters 200 --nodes 50
    python -m bench.dual_pods --real 5                     with real pools and reference engines on one node

The controller is a process of its own, and talks to the strict API server. Requesters and pools are as many HTTP
servers in one other process, whose instances load and wake in no time: what is left is the controller's part, with
the answers of the API server, of the pool and of the requester in it. Then, with loads and wakes that take a while,
the same for a cold launch and for a wake, in turns.
"""

import argparse
import asyncio
import os
import statistics
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sidecar.http.http_exchange import Reply, Request
from sidecar.http.http_server import HttpServer, Limits
from sidecar.wire import tcp
from tests.dual_pods.cluster import PODS, Cluster, cluster
from tests.dual_pods.pool_stand_in import GIB, Pool, _Faults
from tests.support.waiting import until

GPUS_A_NODE = 8
LOAD_S, WAKE_S = 2.0, 0.2


class Crowd(Cluster):
    """A cluster whose pods are HTTP servers in this process."""

    loop: asyncio.AbstractEventLoop
    told: dict[str, float]
    pools: dict[str, Pool]

    def serve(self, ip: str, port: int, handle: Callable[[Request, Reply], None]) -> None:
        async def listen() -> None:
            server = HttpServer(self.loop, handle, lambda status, why: why.encode(), Limits(unread_s=600))
            await server.listen(tcp.listen(ip, port))

        asyncio.run_coroutine_threadsafe(listen(), self.loop).result()

    def _start(self, pod: dict[str, Any]) -> None:
        uid, name, node = pod["metadata"]["uid"], pod["metadata"]["name"], pod["spec"]["nodeName"]
        if uid in self.told:
            return
        self.told[uid] = 0.0
        self.numbers += 1
        ip = f"127.2.{self.numbers // 250}.{self.numbers % 250 + 1}"
        if self._is_server(pod):
            pool = self.pools[node] = Pool(ip, dict.fromkeys(self.gpus[node], 80 * GIB))
            pool.faults = _Faults(load_s=0.0, wake_s=0.0, sleep_s=0.0)
            self.serve(ip, 8000, pool.handle)
        else:
            accelerators = str(self.given[uid]).replace("'", '"').encode()

            def handle(request: Request, reply: Reply) -> None:
                if request.path == "/v1/become-ready":
                    self.told[uid] = time.monotonic()
                reply.send(200, accelerators if request.method == "GET" else b"OK")

            self.serve(ip, 8081, handle)
        self.began[name] = time.monotonic()
        self._status(pod, "Running", {"running": {}}, ready=self._is_server(pod), ip=ip)

    began: dict[str, float]

    def mind(self) -> None:
        """What is created is scheduled and started at once, by the thread that has created it."""

    def place(self, name: str, node: str, gpu: str, model: str) -> str:
        uid = self.request(name, model)
        self.given[uid] = [gpu]
        target = {"metadata": {"name": name}, "target": {"apiVersion": "v1", "kind": "Node", "name": node}}
        self.server.ask("POST", f"{PODS}/{name}/binding", target)
        self._start(self.pod(name))
        return uid

    def start_servers(self) -> None:
        for pod in self.servers():
            if pod["metadata"]["uid"] not in self.told:
                if "nodeName" not in pod["spec"]:
                    self._schedule(pod)
                self._start(self.pod(pod["metadata"]["name"]))

    def took_s(self, name: str, uid: str) -> float:
        until(lambda: self.told[uid], f"{name} is told")
        return self.told[uid] - self.began[name]


def _line(what: str, seconds: list[float]) -> None:
    ms = sorted(1000 * each for each in seconds)
    p99 = ms[min(int(len(ms) * 0.99), len(ms) - 1)]
    print(f"{what:58} p50 {statistics.median(ms):8.1f} ms   p99 {p99:8.1f} ms   of {len(ms)}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.dual_pods", description=__doc__.partition("\n")[0])
    parser.add_argument("--requesters", type=int, default=200)
    parser.add_argument("--nodes", type=int, default=50)
    parser.add_argument("--rest-s", type=float, default=20.0)
    parser.add_argument("--real", type=int, metavar="ROUNDS", help="with `failover models up` and reference engines")
    options = parser.parse_args()
    if options.real:
        _real(options.real)
        return
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()
    gpus = {f"n{n}": [f"GPU-{n}-{gpu}" for gpu in range(GPUS_A_NODE)] for n in range(options.nodes)}
    with tempfile.TemporaryDirectory() as directory, cluster(Path(directory), gpus, Crowd) as it:
        assert isinstance(it, Crowd)
        it.loop, it.told, it.pools, it.began = loop, {}, {}, {}
        controller = it.controller("--lease-s", "15", "--node-taint", "dual-pods", "--listen", "127.0.0.1:0")
        for node in gpus:
            taint = {"spec": {"taints": [{"key": "dual-pods", "effect": "NoSchedule"}]}}
            it.server.ask("PATCH", f"/api/v1/nodes/{node}", taint, content_type="application/merge-patch+json")
        until(lambda: len(it.servers()) == options.nodes, "each node has its server pod")
        it.start_servers()
        began_s, uids, launched = _cpu_s(controller.pid), {}, list[float]()
        for number in range(options.requesters):
            node, gpu = f"n{number % options.nodes}", number // options.nodes
            name = f"r{number}"
            uids[name] = it.place(name, node, gpus[node][gpu], f"model-{number % 7}")
            launched.append(it.took_s(name, uids[name]))
        _line("runs -> told ready, by a launch that takes no time", launched)
        each_ms = 1000 * (_cpu_s(controller.pid) - began_s) / options.requesters
        print(f"of it the controller's own processor time: {each_ms:.1f} ms for each requester")
        woken = list[float]()
        for number in range(options.requesters):
            name, node, gpu = f"r{number}", f"n{number % options.nodes}", number // options.nodes
            it.delete(name, gracePeriodSeconds="0")
            pool = it.pools[node]
            until(lambda pool=pool: any(m.state.value == "asleep" for m in pool.models.values()), "it sleeps")  # type: ignore[misc]
            uids[name] = it.place(name, node, gpus[node][gpu], f"model-{number % 7}")
            woken.append(it.took_s(name, uids[name]))
        _line("runs -> told ready, by a wake that takes no time", woken)
        time.sleep(5)
        before = len([s for s in it.server.seen if s[0] == "dual-pods" or s[0].startswith("dual-pods-")])
        ticks = _cpu_s(controller.pid)
        time.sleep(options.rest_s)
        after = len([s for s in it.server.seen if s[0] == "dual-pods" or s[0].startswith("dual-pods-")])
        busy = (_cpu_s(controller.pid) - ticks) / options.rest_s
        print(
            f"at rest: {(after - before) / options.rest_s:.2f} requests a second to the API server (the Lease's; one ",
            end="",
        )
        print(f"is renewed every 5 s), {100 * busy:.1f} % of a processor, {_rss_mb(controller.pid):.0f} MB")
        _slow(it, gpus)


def _slow(it: Crowd, gpus: dict[str, list[str]]) -> None:
    """Side by side: a launch that takes a while, and a wake."""
    launches, wakes = list[float](), list[float]()
    for number in range(5):
        node = f"n{number}"
        it.pools[node].faults = _Faults(load_s=LOAD_S, wake_s=WAKE_S, sleep_s=0.0)
        for seconds in (launches, wakes):
            name = f"slow{number}{len(seconds) + len(launches)}"
            uid = it.place(name, node, gpus[node][7], "slow")
            seconds.append(it.took_s(name, uid))
            it.delete(name, gracePeriodSeconds="0")
            pool = it.pools[node]
            until(lambda pool=pool: any(m.state.value == "asleep" for m in pool.models.values()), "it sleeps")  # type: ignore[misc]
    _line(f"runs -> told ready, cold launch (its own {LOAD_S:g} s in it)", launches)
    _line(f"runs -> told ready, wake (its own {WAKE_S:g} s in it)", wakes)


def _real(rounds: int) -> None:
    """In turns: created -> Ready by a cold launch, by a wake, and by a launch whose weights another instance has."""
    seconds: dict[str, list[float]] = {"cold launch": [], "wake": [], "launch with the weights in GMS": []}
    with tempfile.TemporaryDirectory() as directory, cluster(Path(directory), {"n1": ["host:d0"]}) as it:
        it.real_pools = True
        it.controller()
        for number in range(rounds):
            for how, took in seconds.items():
                name, batch = f"r{number}-{len(how)}", 8 if how.endswith("GMS") else 16
                words = f"--preset, small, --seed, '{number}', --max-batch, '{batch}'"
                model = f"{{engine: reference, arguments: [{words}], memory: 64MiB}}"
                began = time.monotonic()
                it.request(name, f"m{number}", model=model)
                it.until_ready(name)
                took.append(time.monotonic() - began)
                instance = it.instance_of(name)
                it.delete(name)
                until(lambda instance=instance: _state(it, instance) == "asleep", "it sleeps")  # type: ignore[misc]
    for how, took in seconds.items():
        _line(f"created -> Ready, a reference engine of 110 MB, {how}", took)


def _state(it: Cluster, instance: str) -> str:
    return next((str(shown["state"]) for shown in it.pool()["models"] if shown["name"] == instance), "")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _rss_mb(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(status.partition("VmRSS:")[2].split()[0]) / 1024


if __name__ == "__main__":
    main()
