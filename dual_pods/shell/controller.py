"""The controller at work: it leads or waits to, feeds its machine with what it sees, and carries out what that says.

A leadership begins with a new machine and ends with all of its requests: nothing of it is kept. Each write to the API
server names the leadership's token as its field manager and the version that was read (or the uid), so what an older
leader sends late is refused. What this file may not do: decide what is to be done (`rules/machine.py`).
"""

import asyncio
import contextlib
import math
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dual_pods.rules import building, names, reading
from dual_pods.rules import events as e
from dual_pods.rules.facts import Ask, Requester
from dual_pods.rules.machine import Machine
from dual_pods.rules.place import Mode, Settings
from dual_pods.rules.plan import Phase
from dual_pods.shell.kube import MERGE, STRATEGIC, Kube, Refused
from dual_pods.shell.lease import Lease
from dual_pods.shell.prometheus import Prometheus
from dual_pods.shell.servers import Failed, Servers
from sidecar.http.http_client import Unanswered
from sidecar.terminal.logs import Log

Object = dict[str, Any]
_AT_ONCE = 64
_ASKS = (names.PREFIX + names.SERVER_PATCH, names.OLD_PREFIX + names.SERVER_PATCH, names.MODEL)
_MESSAGE_MOST = 1000


@dataclass(frozen=True)
class Options:
    namespace: str
    settings: Settings
    template: Mapping[str, Any]
    """What a node's pool is made of."""
    admin_key: str = ""
    owner: str = ""
    """The Deployment that owns server pods; empty: none does."""
    taint: str = ""
    kind_label: str = "nvidia.com/gpu.product"
    resource: str = "nvidia.com/gpu"


class Controller:
    def __init__(self, kube: Kube, lease: Lease, options: Options, prometheus: Prometheus | None, log: Log) -> None:
        self.kube, self.lease, self.options, self.log = kube, lease, options, log
        self.prometheus = prometheus
        self.work: Work | None = None
        """While this one leads."""
        self.counts: Counter[str] = Counter()
        """What earlier leaderships did."""

    async def run(self) -> None:
        """For ever, until it is cancelled."""
        while True:
            await self.lease.acquire()
            self.work = work = Work(self.kube, self.lease, self.options, self.prometheus, self.log)
            running = asyncio.create_task(work.run())
            keeping = asyncio.create_task(self.lease.keep())
            try:
                await asyncio.wait([running, keeping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.counts += work.machine.counts
                self.work = None
                running.cancel()
                keeping.cancel()
                work.close()
            if running.done() and not running.cancelled():
                running.result()  # a fault of ours ends the program, and another one begins anew

    async def end(self) -> None:
        """Told to end: another one may lead at once. Where the Deployment that owns the server pods is gone, they are
        let go: no controller would come to do it."""
        if self.lease.leads:
            with contextlib.suppress(Refused, Unanswered):
                await self._let_go_of_orphans()
            await self.lease.release()

    async def _let_go_of_orphans(self) -> None:
        if not self.options.owner:
            return
        path = f"/api/v1/namespaces/{self.options.namespace}/pods"
        try:
            found = await self.kube.ask("GET", _deployment(self.options))
            if "deletionTimestamp" not in found["metadata"]:
                return
        except Refused as refused:
            if refused.code != 404:
                return
        for pod in (await self.kube.ask("GET", path, query={"labelSelector": names.SERVER}))["items"]:
            body = {"metadata": {"$deleteFromPrimitiveList/finalizers": [names.FINALIZER]}}
            with contextlib.suppress(Refused, Unanswered):
                await self.kube.ask("PATCH", f"{path}/{pod['metadata']['name']}", body, content_type=STRATEGIC)


def _deployment(options: Options) -> str:
    return f"/apis/apps/v1/namespaces/{options.namespace}/deployments/{options.owner}"


class Work:
    """One leadership."""

    def __init__(self, kube: Kube, lease: Lease, options: Options, prometheus: Prometheus | None, log: Log) -> None:
        self.kube, self.lease, self.options, self.log, self._prometheus = kube, lease, options, log, prometheus
        self.machine = Machine(options.settings, self._pool_pod, options.resource)
        sleeps = options.settings.mode is Mode.SLEEP
        self.servers = Servers(self.tell, lambda: lease.token, options.admin_key, sleeps=sleeps)
        self.ready_s: list[tuple[str, float]] = []
        """How long requesters took to become Ready, and by what; the metrics take them away."""
        self._began = time.time() - time.monotonic()
        self._owner: list[Object] = []
        self._tasks: set[asyncio.Task[None]] = set()
        self._at_once = asyncio.Semaphore(_AT_ONCE)
        self._looks = asyncio.Event()
        self._lists = 2
        self._by: dict[str, str] = {}
        self._asks: dict[str, tuple[tuple[str | None, ...], Ask]] = {}
        self._pods: dict[str, bool] = {}
        """uid -> whether it is a server pod."""
        self._nodes: dict[str, str] = {}

    def now(self) -> float:
        """Seconds of the wall clock at the start, which no adjustment moves afterwards."""
        return self._began + time.monotonic()

    async def run(self) -> None:
        self._owner = await self._read_owner()
        pods = f"/api/v1/namespaces/{self.options.namespace}/pods"
        async with asyncio.TaskGroup() as group:
            group.create_task(self.kube.follow(pods, self._pod, self._pod_gone, self._listed, self.log))
            group.create_task(self.kube.follow("/api/v1/nodes", self._node, self._node_gone, self._listed, self.log))
            group.create_task(self._mind_time())
            if self._prometheus is not None:
                group.create_task(self._measure(self._prometheus))

    def close(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        self.servers.close()

    async def _read_owner(self) -> list[Object]:
        if not self.options.owner:
            return []
        try:
            found = await self.kube.ask("GET", _deployment(self.options))
        except (Refused, Unanswered) as error:
            self.log.warning("no_owner", why=f"server pods will have no owner: {error}")
            return []
        kind = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
        return [{**kind, "name": self.options.owner, "uid": found["metadata"]["uid"]}]

    # -- events ----------------------------------------------------------------------------------------------------

    def tell(self, event: e.Event) -> None:
        for effect in self.machine.feed(event, self.now()):
            task = asyncio.create_task(self._carry_out(effect))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        self._looks.set()

    async def _mind_time(self) -> None:
        while True:
            wait_s = self.machine.look_at - self.now()
            self._looks.clear()
            if wait_s <= 0:
                self.tell(e.Look())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(None if wait_s == math.inf else max(wait_s, 0.01)):
                    await self._looks.wait()

    def _listed(self) -> None:
        self._lists -= 1
        if self._lists == 0:
            self.tell(e.Listed())

    def _node(self, value: Object) -> None:
        node = reading.node(value, self.options.taint, self.options.kind_label)
        self._nodes[value["metadata"]["uid"]] = node.name
        self.tell(e.NodeSeen(node))

    def _node_gone(self, uid: str) -> None:
        self.tell(e.NodeGone(self._nodes.pop(uid, "")))

    def _pod(self, pod: Object) -> None:
        uid = pod["metadata"]["uid"]
        if reading.is_server(pod):
            server = reading.server(pod)
            self._pods[uid] = True
            self.tell(e.ServerSeen(server))
            self.servers.seen(server)
        elif reading.is_requester(pod):
            self._pods[uid] = False
            requester = reading.requester(pod, self._ask)
            self._mind_ready(requester)
            self.tell(e.RequesterSeen(requester))

    def _ask(self, pod: Mapping[str, Any]) -> Ask:
        """Reading a patch takes milliseconds, and a pod is told of at each change of its status. What it asks for
        changes with its node and its annotations alone.
        """
        meta = pod["metadata"]
        said = pod["spec"].get("nodeName"), *((meta.get("annotations") or {}).get(name) for name in _ASKS)
        known = self._asks.get(meta["uid"])
        if known is None or known[0] != said:
            known = self._asks[meta["uid"]] = said, building.ask(pod)
        return known[1]

    def _pod_gone(self, uid: str) -> None:
        self._asks.pop(uid, None)
        if self._pods.pop(uid, None) is not None:
            self._by.pop(uid, None)
            self.servers.gone(uid)
            self.tell(e.PodGone(uid))

    def _mind_ready(self, requester: Requester) -> None:
        """One that was ready before this leadership isn't counted again."""
        by = self._by.get(requester.uid, "")
        if requester.ready and by != "ready":
            if by:
                self.ready_s.append((by, self.now() - requester.created))
            self._by[requester.uid] = "ready"

    async def _measure(self, prometheus: Prometheus) -> None:
        while True:
            try:
                at = self.now()
                for node, used in (await prometheus.used()).items():
                    self.tell(e.Measured(node, used, at))
            except Failed as error:
                self.log.warning("prometheus", why=str(error))
            await asyncio.sleep(prometheus.every_s)

    # -- effects ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, effect: e.Effect) -> None:
        key = e.key(effect)
        async with self._at_once:
            error = ""
            try:
                if not self.lease.leads:
                    raise Failed("this controller doesn't lead any more")
                await _DO[type(effect)](self, effect)
            except (Refused, Unanswered, Failed) as failure:
                error = str(failure)[:_MESSAGE_MOST] or type(failure).__name__
            if error and key[0] != "query":
                self.log.warning("failed", what=" ".join(key), why=error)
            self.tell(e.Done(key, error))

    async def _query(self, effect: e.Query) -> None:
        found = await self.servers.accelerators(effect.requester)
        if self.options.settings.mode is not Mode.DIRECT and self._prometheus is None:
            with contextlib.suppress(Failed):
                used = await self.servers.memory(effect.requester)
                self.tell(e.Measured(effect.requester.node, used, self.now()))
        self.tell(e.Has(effect.requester.uid, found))

    @property
    def _query_args(self) -> dict[str, str]:
        return {"fieldManager": f"dual-pods-{self.lease.token}"}

    def _path(self, namespace: str, name: str = "") -> str:
        return f"/api/v1/namespaces/{namespace or self.options.namespace}/pods" + (f"/{name}" if name else "")

    async def _mark(self, effect: e.MarkPod) -> None:
        pod = effect.pod
        meta = {"resourceVersion": pod.version, "labels": effect.labels, "annotations": effect.annotations}
        path = self._path(pod.namespace, pod.name)
        body = {"metadata": {key: value for key, value in meta.items() if value}}
        self._pod(await self.kube.ask("PATCH", path, body, self._query_args, MERGE))

    async def _create(self, effect: e.Create) -> None:
        meta = effect.body["metadata"]
        body = {**effect.body, "metadata": {"ownerReferences": self._owner, **meta}}
        try:
            self._pod(await self.kube.ask("POST", self._path(effect.namespace), body, self._query_args))
        except Refused as refused:
            if refused.reason == "AlreadyExists":
                raise Failed(f"pod {meta['name']} is still there") from None
            raise

    async def _pod_order(self, effect: e.PodOrder) -> None:
        server, ask = effect.server, self.kube.ask
        path = self._path(server.namespace, server.name)
        try:
            if effect.what == "delete-pod":
                body: Object = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": server.uid}}
                await ask("DELETE", path, body)
            else:
                off = {"$deleteFromPrimitiveList/finalizers": [names.FINALIZER]}
                body = {"metadata": {"resourceVersion": server.version, **off}}
                await ask("PATCH", path, body, self._query_args, STRATEGIC)
        except Refused as refused:
            if refused.code != 404:
                raise

    async def _launch(self, effect: e.Launch) -> None:
        await self.servers.launch(effect)

    async def _order(self, effect: e.Order) -> None:
        await self.servers.order(effect)

    async def _relay(self, effect: e.Relay) -> None:
        try:
            await self.servers.relay(effect)
        except Failed:
            if effect.target:
                raise  # else it is as unready as it can be
        self._by.setdefault(effect.requester.uid, "wake")

    async def _say(self, effect: e.Say) -> None:
        """Its name follows from what it says, so a controller that begins anew says nothing twice."""
        pod, now = effect.pod, datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if effect.reason == "Launching" and self._by.get(pod.uid) != "ready":
            self._by[pod.uid] = "launch"
        name = f"{pod.name[:200].rstrip('.-')}.{names.digest([pod.uid, effect.reason, effect.sentence])[:16]}"
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        body = {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": {"name": name, "namespace": pod.namespace},
            "involvedObject": about,
            "reason": effect.reason,
            "message": effect.sentence[:_MESSAGE_MOST],
            "type": "Warning" if effect.warning else "Normal",
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
            "source": {"component": "dual-pods"},
        }
        self.log.info(effect.reason.lower(), pod=pod.name, says=effect.sentence)
        path = f"/api/v1/namespaces/{pod.namespace}/events"
        try:
            await self.kube.ask("POST", path, body, self._query_args)
        except Refused as refused:
            if refused.reason != "AlreadyExists":
                raise

    # -- what is shown ---------------------------------------------------------------------------------------------

    def _pool_pod(self, node: str) -> Mapping[str, Any]:
        name, options = names.server_name(node, ()), self.options
        return building.pool(options.template, node, name, options.resource, options.taint)

    def phases(self) -> Counter[Phase]:
        return Counter(phase for phase, _ in self.machine.waits.values())


_DO: dict[type[Any], Callable[[Work, Any], Any]] = {
    e.Query: Work._query,
    e.MarkPod: Work._mark,
    e.Create: Work._create,
    e.PodOrder: Work._pod_order,
    e.Launch: Work._launch,
    e.Order: Work._order,
    e.Relay: Work._relay,
    e.Say: Work._say,
}
