"""The controller at work: it leads or waits to, feeds its machine with what it sees, and carries out what that says.

A leadership begins with a new machine and ends with all of its requests: nothing of it is kept. Each write to the API
server names the leadership's token as its field manager and the version that was read, so what an older leader sends
late is refused; a creation, which can name none, makes a pod that runs only once a leader has read it. What this file
may not do: decide what is to be done (`rules/machine.py`).
"""

import asyncio
import contextlib
import math
import time
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from dual_pods.rules import building, names, reading
from dual_pods.rules import events as e
from dual_pods.rules.facts import Ask, Pod, Requester
from dual_pods.rules.machine import Machine
from dual_pods.rules.place import Mode, Settings
from dual_pods.rules.strategic import BadPatch
from dual_pods.shell.kube import MERGE, STRATEGIC, Kube, Refused
from dual_pods.shell.lease import Lease
from dual_pods.shell.prometheus import Prometheus
from dual_pods.shell.servers import FAILS, Failed, Servers
from sidecar.http.http_client import Unanswered
from sidecar.terminal.logs import Log

Object = dict[str, Any]
_WRITES = 64
_NODES = "/api/v1/nodes"
_ASKS = (names.PREFIX + names.SERVER_PATCH, names.OLD_PREFIX + names.SERVER_PATCH, names.MODEL)
_LET_GO = {"$deleteFromPrimitiveList/finalizers": [names.FINALIZER]}
_OPEN = {"schedulingGates": [{"$patch": "delete", "name": names.GATE}]}
_MESSAGE_MOST = 1000
_LEADS_NO_MORE = "this controller doesn't lead any more"


class _Broken(BaseException):
    """What the machine knows may be the half of it: the program ends, and another one begins anew."""


@dataclass(frozen=True)
class Options:
    namespace: str
    settings: Settings
    admin_key: str = ""
    owner: str = ""
    """The Deployment that owns server pods; empty: none does."""
    prometheus: Prometheus | None = None

    @property
    def deployment(self) -> str:
        return f"/apis/apps/v1/namespaces/{self.namespace}/deployments/{self.owner}"


class Controller:
    def __init__(self, kube: Kube, lease: Lease, options: Options, log: Log) -> None:
        self.kube, self.lease, self.options, self.log = kube, lease, options, log
        self.work: Work | None = None
        """While this one leads."""
        self.counts: Counter[str] = Counter()
        """What earlier leaderships did."""
        self.ready_s: list[tuple[str, float]] = []
        """How long requesters took to become Ready, and by what; the metrics take them away."""

    @property
    def blind(self) -> str:
        """Why it doesn't see the cluster, or the Lease before it leads; else empty."""
        if self.work is None:
            return self.lease.trouble
        unseen = "" if self.work.machine.listed else "it hasn't seen the cluster yet"
        return "; ".join(self.kube.troubles.values()) or unseen

    async def run(self) -> None:
        """For ever, until it is cancelled."""
        while True:
            await self.lease.acquire()
            self.work = work = Work(self.kube, self.lease, self.options, self.log, self.ready_s)
            running = asyncio.create_task(work.run())
            keeping = asyncio.create_task(self.lease.keep())
            try:
                await asyncio.wait([running, keeping], return_when=asyncio.FIRST_COMPLETED)
            finally:
                self.counts += work.machine.counts
                self.work = None
                running.cancel()
                keeping.cancel()
                work.servers.close()
            if running.done() and not running.cancelled():
                running.result()

    async def end(self) -> None:
        """Told to end: another one may lead at once. Where the Deployment that owns the server pods is gone, they are
        let go: no controller would come to do it."""
        if self.lease.leads:
            with contextlib.suppress(Refused, Unanswered):
                if self.options.owner and await self._owner_goes():
                    await self._let_go_of_all()
            await self.lease.release()

    async def _owner_goes(self) -> bool:
        try:
            return "deletionTimestamp" in (await self.kube.ask("GET", self.options.deployment))["metadata"]
        except Refused as refused:
            return refused.code == 404

    async def _let_go_of_all(self) -> None:
        pods = _path(self.options.namespace)
        for pod in (await self.kube.ask("GET", pods, query={"labelSelector": names.SERVER}))["items"]:
            path = f"{pods}/{pod['metadata']['name']}"
            with contextlib.suppress(Refused, Unanswered):
                await self.kube.ask("PATCH", path, {"metadata": _LET_GO}, content_type=STRATEGIC)


class Work:
    """One leadership."""

    def __init__(self, kube: Kube, lease: Lease, options: Options, log: Log, ready_s: list[tuple[str, float]]) -> None:
        self.kube, self.lease, self.options, self.log = kube, lease, options, log
        self.ready_s = ready_s
        self.machine = Machine(options.settings)
        self._group = asyncio.TaskGroup()
        sleeps = options.settings.mode is not Mode.DIRECT
        token, key = (lambda: lease.token), options.admin_key
        self.servers = Servers(self._group, self.tell, self._fault, token, key, sleeps=sleeps)
        self._began = time.time() + kube.ahead_s - time.monotonic()
        self._faults: set[tuple[str, int | None]] = set()
        """Where those of ours were."""
        self._writes = asyncio.Semaphore(_WRITES)
        """Pods are asked as many as there are: one that doesn't answer must keep none waiting."""
        self._looks = asyncio.Event()
        self._lists = 2
        self._by: dict[str, str] = {}
        """Requester -> by what it becomes ready, or that it has."""
        self._asks: dict[str, tuple[tuple[str | None, ...], Ask | Exception]] = {}

    def now(self) -> float:
        """Seconds of the API server's clock at the start, which no adjustment moves afterwards: it is the one that says
        when a requester was made, and the same one for the next controller.
        """
        return self._began + time.monotonic()

    async def run(self) -> None:
        async with self._group as group:
            group.create_task(self._follow(_path(self.options.namespace), self._pod))
            group.create_task(self._follow(_NODES, self._node))
            group.create_task(self._mind_time())
            if self.options.prometheus is not None:
                group.create_task(self._measure(self.options.prometheus))

    # -- events ----------------------------------------------------------------------------------------------------

    def tell(self, event: e.Event) -> None:
        try:
            for effect in self.machine.feed(event, self.now()):
                self._group.create_task(self._carry_out(effect))
        except Exception as fault:
            raise _Broken from fault
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

    async def _follow(self, path: str, seen: Callable[[Object], None]) -> None:
        async for what, value in self.kube.follow(path, self.log):
            if what == "LISTED":
                self._lists -= 1
                if self._lists == 0:
                    self.tell(e.Listed())
            elif what == "DELETED":
                self._gone(value["metadata"]["uid"])
            else:
                if path != _NODES and reading.is_requester(value):
                    await self._read(value)
                try:
                    seen(value)
                except Exception as fault:
                    self._unread(path, value, fault)

    def _unread(self, path: str, value: Object, fault: Exception) -> None:
        """One of ours. Else what a server pod has would be promised once more, or let go with its node."""
        meta = value["metadata"]
        uid, name, what = meta["uid"], meta["name"], f"read {meta['name']}"
        if path == _NODES or reading.is_server(value):
            self.tell(e.Unread(uid, name if path == _NODES else reading.node_of(value["spec"]), what, fault))
        else:  # it stays as it was read before
            said = e.Say(Pod(uid, name, meta["namespace"]), "Failed", self._fault(what, fault), warning=True)
            self._group.create_task(self._carry_out(said))

    def _node(self, node: Object) -> None:
        self.tell(reading.node(node, self.options.settings.taint))

    def _pod(self, pod: Object) -> None:
        if reading.is_server(pod):
            self.tell(reading.server(pod))
            if server := self.machine.server(pod["metadata"]["uid"]):  # what has come may be older than what is known
                self.servers.seen(server)
        elif reading.is_requester(pod):
            requester = reading.requester(pod, self._ask)
            self._mind_ready(requester)
            self.tell(requester)
        else:
            self._gone(pod["metadata"]["uid"], stays=True)

    async def _read(self, pod: Object) -> None:
        """What a pod asks for changes with its node and its annotations alone, and so does why it is refused; it is
        told of at each change of its status. A large patch takes a second, in which the Lease has to be renewed.
        """
        said, uid = _said(pod), pod["metadata"]["uid"]
        if self._asks.get(uid, ((),))[0] != said:
            found = await asyncio.to_thread(_asked, pod, self.options.settings.mode)
            self._asks[uid] = said, found
            if isinstance(found, Exception) and not isinstance(found, BadPatch):  # another kind of value, or our fault
                where = "".join(traceback.format_exception(found))
                self.log.warning("not_understood", pod=pod["metadata"]["name"], why=where)

    def _ask(self, pod: Mapping[str, Any]) -> Ask:
        """As it was read."""
        _, found = self._asks[pod["metadata"]["uid"]]
        if isinstance(found, Exception):
            raise found.with_traceback(None)
        return found

    def _gone(self, uid: str, *, stays: bool = False) -> None:
        self._asks.pop(uid, None)
        self._by.pop(uid, None)
        self.servers.gone(uid)
        self.tell(e.Gone(uid, stays))

    def _mind_ready(self, requester: Requester) -> None:
        """One that was ready before this leadership isn't counted again."""
        by = self._by.get(requester.uid, "")
        if requester.ready and by != "ready":
            if by:
                self.ready_s.append((by, max(self.now() - requester.created, 0.0)))
            self._by[requester.uid] = "ready"

    async def _measure(self, prometheus: Prometheus) -> None:
        while True:
            at, used, why = self.now(), dict[str, dict[str, int]](), "Prometheus has no series of this node"
            try:
                used = await prometheus.used()
            except Failed as error:
                why = str(error)
                self.log.warning("prometheus", why=why)
            for node in {*self.machine.places, *used}:
                self.tell(e.Measured(node, used.get(node, {}), at, "" if used.get(node) else why))
            await asyncio.sleep(prometheus.every_s)

    # -- effects ---------------------------------------------------------------------------------------------------

    async def _carry_out(self, effect: e.Effect) -> None:
        key, error, accelerators = e.key(effect), "", ()
        try:
            if not self.lease.leads:
                raise Failed(_LEADS_NO_MORE)
            accelerators = await _DO[type(effect)](self, effect) or ()
        except (Refused, *FAILS) as failure:
            error = str(failure)[:_MESSAGE_MOST] or type(failure).__name__
        except Exception as fault:
            error = self._fault(" ".join(key), fault)
        if error and key[0] != "query":
            self.log.warning("failed", what=" ".join(key), why=error)
        self.tell(e.Done(effect, error, accelerators))

    def _fault(self, what: str, fault: Exception) -> str:
        """One of ours, while a pod is asked or written, is that pod's alone: it is told of it, and others go on. Where
        it is in the program is logged once: two hundred pods may meet it each second.
        """
        self.machine.counts["faults"] += 1
        words, at = f"{type(fault).__name__}: {fault}"[:_MESSAGE_MOST], traceback.extract_tb(fault.__traceback__)[-1]
        known = (at.filename, at.lineno) in self._faults
        self._faults.add((at.filename, at.lineno))
        self.log.alarm("fault", what=what, why=words if known else "".join(traceback.format_exception(fault)))
        return f"a fault of the controller, which its log tells: {words}"

    async def _query(self, effect: e.Query) -> tuple[str, ...]:
        found = await self.servers.accelerators(effect.requester)
        if self.options.settings.mode is not Mode.DIRECT and self.options.prometheus is None:
            at, used, why = self.now(), dict[str, int](), ""
            try:
                used = await self.servers.memory(effect.requester)
            except FAILS as error:
                why = str(error)
            self.tell(e.Measured(effect.requester.node, used, at, why))
        return found

    async def _write(self, method: str, path: str, body: Object, content_type: str = "application/json") -> Object:
        manager = {"fieldManager": f"dual-pods-{self.lease.token}"}
        async with self._writes:
            return await self.kube.ask(method, path, body, manager, content_type)

    async def _mark(self, effect: e.Mark) -> None:
        pod = effect.pod
        meta = {"resourceVersion": pod.version, "labels": effect.labels, "annotations": effect.annotations}
        body = {"metadata": {key: value for key, value in meta.items() if value}}
        made = await self._write("PATCH", _path(pod.namespace, pod.name), body, MERGE)
        self._pod(made)
        has = {**(made["metadata"].get("annotations") or {}), **(made["metadata"].get("labels") or {})}
        if lost := [key for key, value in {**effect.labels, **effect.annotations}.items() if has.get(key) != value]:
            raise Failed(f"{', '.join(lost)} of pod {pod.name} was written, and something else has changed it since")

    async def _owners(self) -> list[Object]:
        """The owners of a server pod as they are now: with one that was made anew since, it would be collected."""
        if not self.options.owner:
            return []
        found = await self.kube.ask("GET", self.options.deployment)
        kind = {"apiVersion": "apps/v1", "kind": "Deployment", "controller": True}
        return [{**kind, "name": self.options.owner, "uid": found["metadata"]["uid"]}]

    async def _create(self, effect: e.Create) -> None:
        meta = effect.body["metadata"]
        owners = meta.get("ownerReferences") or await self._owners()
        body = {**effect.body, "metadata": {**meta, "ownerReferences": owners}}
        self._pod(await self._write("POST", _path(effect.namespace or self.options.namespace), body))

    async def _order(self, effect: e.Order) -> None:
        server = effect.server
        path, read = _path(server.namespace, server.name), {"resourceVersion": server.version}
        try:
            if effect.what == "delete-pod":
                options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": server.uid, **read}}
                await self.kube.ask("DELETE", path, options)
            elif effect.what == "release":
                await self._write("PATCH", path, {"metadata": {**read, **_LET_GO}}, STRATEGIC)
            elif effect.what == "admit":
                await self._write("PATCH", path, {"metadata": read, "spec": _OPEN}, STRATEGIC)
            else:
                if not server.pool and not await self.lease.renew():  # an engine refuses no older token
                    raise Failed(_LEADS_NO_MORE)
                await self.servers.order(effect)
        except Refused as refused:
            if refused.code != 404:
                raise

    async def _plan(self, effect: e.Fault) -> None:
        raise Failed(self._fault(effect.what, effect.fault))

    async def _relay(self, effect: e.Relay) -> None:
        try:
            await self.servers.relay(effect.requester, effect.target)
        except FAILS:
            if effect.target:
                raise  # else it is as unready as it can be
        self._by.setdefault(effect.requester.uid, "wake")

    async def _say(self, effect: e.Say) -> None:
        """Its name follows from its key and since when it is so: a controller that begins anew says nothing twice."""
        pod, now = effect.pod, datetime.fromtimestamp(self.now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        if effect.reason == "Launching" and self._by.get(pod.uid) != "ready":
            self._by[pod.uid] = "launch"
        which = now if effect.again else effect.since or ""
        name = f"{pod.name[:200].rstrip('.-')}.{names.digest([*e.key(effect), which])[:16]}"
        about = {"apiVersion": "v1", "kind": "Pod", "namespace": pod.namespace, "name": pod.name, "uid": pod.uid}
        meta = {"name": name, "namespace": pod.namespace}
        body: Object = {"apiVersion": "v1", "kind": "Event", "metadata": meta, "involvedObject": about}
        body |= {"type": "Warning" if effect.warning else "Normal", "source": {"component": "dual-pods"}}
        body |= {"reason": effect.reason, "message": effect.sentence[:_MESSAGE_MOST]}
        body |= {"firstTimestamp": now, "lastTimestamp": now, "count": 1}
        self.log.info(effect.reason.lower(), pod=pod.name, says=effect.sentence)
        try:
            await self._write("POST", f"/api/v1/namespaces/{pod.namespace}/events", body)
        except Refused as refused:
            if refused.reason != "AlreadyExists":
                raise


def _said(pod: Mapping[str, Any]) -> tuple[str | None, ...]:
    annotations = pod["metadata"].get("annotations") or {}
    return pod["spec"].get("nodeName"), *(annotations.get(name) for name in _ASKS)


def _asked(pod: Mapping[str, Any], mode: Mode) -> Ask | Exception:
    try:
        return building.ask(pod, swaps=mode is Mode.SWAP)
    except Exception as error:
        return error


def _path(namespace: str, name: str = "") -> str:
    return f"/api/v1/namespaces/{namespace}/pods" + (f"/{name}" if name else "")


_DO: dict[type[Any], Callable[[Work, Any], Any]] = {
    e.Query: Work._query,
    e.Mark: Work._mark,
    e.Create: Work._create,
    e.Order: Work._order,
    e.Relay: Work._relay,
    e.Say: Work._say,
    e.Fault: Work._plan,
}
