"""A cluster of real processes on the strict API server: a small scheduler, a small kubelet, and what pods run.

Each pod has an address of its own on the loopback, so every pod may listen on the same ports. A requester runs
`dual-pods-requester`, or what stands in for FMA's, a server pod the pool's stand-in. The controller is a process of its
own, with the rights that `k8s/dual_pods` gives it.
"""

import contextlib
import http.client
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import yaml

from dual_pods.rules import names
from sidecar.kernel import host_usage
from tests.api_server.server import ApiServer
from tests.support.processes import ROOT
from tests.support.waiting import until

NAMESPACE = "dual"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
KUBELET_S = 0.01
ADDRESSES = f"127.{10 + os.getpid() % 50_000 // 250}.{os.getpid() % 250}"
"""Others than those of tests that run beside these."""
FMA = "fma-requester:1"
ADMIN_KEY = "the-key-of-the-pools"
MANIFESTS = ROOT / "k8s" / "dual_pods"
_LINE = 'spec: {containers: [{name: inference-server, image: "vllm:1", command: [vllm, serve, --port=8000, MODEL]}]}'


@dataclass
class Running:
    process: subprocess.Popen[bytes]
    ip: str
    name: str
    ready: bool = False


@dataclass
class Cluster:
    directory: Path
    server: ApiServer
    gpus: dict[str, list[str]]
    running: dict[str, Running] = field(default_factory=dict)
    given: dict[str, list[str]] = field(default_factory=dict)
    """A requester's uid -> its accelerators."""
    controllers: list[subprocess.Popen[bytes]] = field(default_factory=list)
    stopped: threading.Event = field(default_factory=threading.Event)
    numbers: int = 1
    real_pools: bool = False
    """`failover models up`, and not its stand-in."""
    kubelets: bool = True
    """Off: no node does anything."""

    # -- what a test does ------------------------------------------------------------------------------------------

    def request(
        self, name: str, serves: str = "qwen", gpus: int = 1, image: str = "requester:1", **annotations: str
    ) -> str:
        """Creates a requester; returns its uid."""
        said = {names.PREFIX + key.replace("_", "-"): value for key, value in annotations.items()}
        patch = said.setdefault(f"{names.PREFIX}server-patch", wish(serves))
        container = {
            "name": names.CONTAINER,
            "image": image,
            "resources": {"limits": {"nvidia.com/gpu": f"{gpus}"}},
        }
        meta = {"name": name, "annotations": said | {f"{names.PREFIX}server-patch": patch}}
        made = self.server.ask("POST", PODS, {"metadata": meta, "spec": {"containers": [container]}})
        return str(made["metadata"]["uid"])

    def served(self, name: str, serves: str = "qwen", **more: Any) -> str:
        """Creates a requester, and waits until it is Ready; returns its uid."""
        uid = self.request(name, serves, **more)
        self.until_ready(name)
        return uid

    def delete(self, name: str, **query: str) -> Any:
        more = "&".join(f"{key}={value}" for key, value in query.items())
        return self.server.ask("DELETE", f"{PODS}/{name}" + (f"?{more}" if more else ""))

    def pod(self, name: str) -> dict[str, Any]:
        found = self.server.ask("GET", f"{PODS}/{name}")
        return found if found["kind"] == "Pod" else {}

    def pods(self) -> list[dict[str, Any]]:
        return list(self.server.ask("GET", PODS)["items"])

    def is_ready(self, name: str) -> bool:
        conditions = self.pod(name).get("status", {}).get("conditions", ())
        return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)

    def until_ready(self, *wanted: str) -> None:
        for name in wanted:
            try:
                until(partial(self.is_ready, name), f"{name} is Ready")
            except AssertionError as error:
                raise AssertionError(f"{error}; it says: {self.says(name)}; {self.events(name)}") from None

    def says(self, name: str) -> str:
        text = self.pod(name).get("metadata", {}).get("annotations", {}).get(names.STATUS, "{}")
        return str(json.loads(text).get("Says", ""))

    def events(self, name: str) -> list[str]:
        items = self.server.ask("GET", f"/api/v1/namespaces/{NAMESPACE}/events")["items"]
        return [f"{e['reason']}: {e['message']}" for e in items if e["involvedObject"]["name"] == name]

    def until_event(self, name: str, text: str) -> None:
        """An event comes by a request of its own, and may be later than what else it is seen by."""
        until(lambda: any(text in event for event in self.events(name)), f"an event of {name} says {text}")

    def servers(self) -> list[dict[str, Any]]:
        return [pod for pod in self.pods() if names.SERVER in pod["metadata"].get("labels", {})]

    def pool(self, node: str = "n1") -> dict[str, Any]:
        """What a node's pool says."""
        url = self._pool_url(node)
        return dict(ask(url + "/failover/models")) if url else {"models": []}

    def states(self, node: str = "n1") -> list[str]:
        return sorted(model["state"] for model in self.pool(node)["models"])

    def instance_of(self, requester: str) -> str:
        return str(self.pod(requester)["metadata"]["labels"][names.INSTANCE])

    def misbehave(self, node: str = "n1", **faults: Any) -> dict[str, Any]:
        return dict(ask(self._pool_url(node) + "/stand-in", faults))

    def _pool_url(self, node: str) -> str:
        pods = [p for p in self.servers() if p["spec"].get("nodeName") == node and "podIP" in p.get("status", {})]
        return f"http://{pods[0]['status']['podIP']}:8000" if pods else ""

    def controller(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Another one; with its account's token."""
        token = self.directory / "token"
        path = f"/api/v1/namespaces/{NAMESPACE}/serviceaccounts/dual-pods/token"
        token.write_text(self.server.ask("POST", path, {"spec": {"expirationSeconds": 3600}})["status"]["token"])
        template = self.directory / "server-pod.yaml"
        template.write_text(yaml.safe_dump({"spec": {"containers": [{"name": names.CONTAINER, "image": "pool:1"}]}}))
        process = subprocess.Popen(
            [
                sys.executable, "-m", "dual_pods.cli.controller", "--api-server", self.server.url,
                "--token-file", token, "--namespace", NAMESPACE, "--server-pod", template,
                "--lease-s", "1", "--listen", "127.0.0.1:0", *self._keys(),
                *arguments,
            ],
            cwd=ROOT, stderr=(self.directory / f"controller-{len(self.controllers)}.log").open("wb"),
        )  # fmt: skip
        self.controllers.append(process)
        return process

    def _keys(self) -> list[str]:
        if not self.real_pools:
            return []
        (self.directory / "admin-keys").write_text(f"{ADMIN_KEY}\n")
        return ["--admin-keys", str(self.directory / "admin-keys")]

    def kill_controllers(self) -> None:
        for process in self.controllers:
            process.kill()
            process.wait()

    # -- scheduler and kubelet -------------------------------------------------------------------------------------

    def mind(self) -> None:
        while not self.stopped.wait(KUBELET_S):
            if self.kubelets:
                for pod in self.pods():
                    self._mind_pod(pod)
                self._end_what_has_gone({pod["metadata"]["uid"] for pod in self.pods()})

    def _mind_pod(self, pod: dict[str, Any]) -> None:
        meta, spec = pod["metadata"], pod["spec"]
        known = self.running.get(meta["uid"])
        if "nodeName" not in spec:
            if "deletionTimestamp" not in meta and not spec.get("schedulingGates"):
                self._schedule(pod)
        elif "deletionTimestamp" in meta:
            if known is not None or pod["status"]["phase"] != "Failed" or meta["deletionGracePeriodSeconds"] > 0:
                self._end(pod)
        elif known is None:
            if pod["status"]["phase"] == "Pending":
                self._start(pod)
        elif known.process.poll() is not None:
            self._start(pod)
        elif not self._is_server(pod):
            ready = _is_ready(known.ip)
            if ready != known.ready:
                known.ready = ready
                self._status(pod, "Running", {"running": {}}, ready=ready)

    def _end(self, pod: dict[str, Any]) -> None:
        """As kubelet does, also where the pod was deleted before it had begun."""
        meta = pod["metadata"]
        if known := self.running.pop(meta["uid"], None):
            known.process.kill()
            known.process.wait()
        self._status(pod, "Failed", {"terminated": {"exitCode": 137}}, ready=False)
        gone = {"gracePeriodSeconds": 0, "preconditions": {"uid": meta["uid"]}}
        self.server.ask("DELETE", f"{PODS}/{meta['name']}", gone)

    def _is_server(self, pod: dict[str, Any]) -> bool:
        return names.SERVER in pod["metadata"].get("labels", {})

    def _schedule(self, pod: dict[str, Any]) -> None:
        spec, uid = pod["spec"], pod["metadata"]["uid"]
        wanted = int(spec["containers"][0]["resources"].get("limits", {}).get("nvidia.com/gpu", "0"))
        for node, gpus in self.gpus.items():
            if self._is_server(pod):
                terms = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
                if node != terms["nodeSelectorTerms"][0]["matchExpressions"][0]["values"][0]:
                    continue
            taken = {gpu for other, held in self.given.items() if other in self.running for gpu in held}
            pending = {p["metadata"]["uid"] for p in self.pods()} & set(self.given)
            taken |= {gpu for other in pending for gpu in self.given[other]}
            free = [gpu for gpu in gpus if gpu not in taken]
            if wanted <= len(free):
                self.given[uid] = free[:wanted]
                target = {"apiVersion": "v1", "kind": "Node", "name": node}
                body = {"metadata": {"name": pod["metadata"]["name"], "uid": uid}, "target": target}
                self.server.ask("POST", f"{PODS}/{pod['metadata']['name']}/binding", body)
                return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": "no node has them",
        }
        if condition["message"] not in json.dumps(pod["status"]):
            self._patch_status(pod, {"conditions": [condition]})

    def _start(self, pod: dict[str, Any]) -> None:
        uid, node, name = pod["metadata"]["uid"], pod["spec"]["nodeName"], pod["metadata"]["name"]
        known = self.running.get(uid)
        if known is None:
            self.numbers += 1
        ip = known.ip if known is not None else f"{ADDRESSES}.{self.numbers}"
        if self._is_server(pod):
            command = self._real_pool(node, ip) if self.real_pools else self._engine(pod, ip)
        else:
            gpus = ",".join(self.given[uid])
            command = ["-m", "dual_pods.cli.requester", "--host", ip, "--accelerators", gpus, "--relay-port-1=8000"]
            if pod["spec"]["containers"][0]["image"] == FMA:
                command = ["-m", "tests.dual_pods.fma_requester", ip, gpus]
        log = (self.directory / f"{name}.log").open("ab")
        its = {host_usage.ENVIRONMENT: str(self.directory / "devices")}
        its |= {"FAILOVER_ADMIN_KEYS": str(self.directory / "keys")} if self.real_pools else {}
        process = subprocess.Popen([sys.executable, *command], cwd=ROOT, stdout=log, stderr=log, env=os.environ | its)
        self.running[uid] = Running(process, ip, name)
        restarts = 0 if known is None else pod["status"]["containerStatuses"][0].get("restartCount", 0) + 1
        self._status(pod, "Running", {"running": {}}, ready=self._is_server(pod), ip=ip, restarts=restarts)

    def _engine(self, pod: dict[str, Any], ip: str) -> list[str]:
        devices = ",".join(f"{gpu}=80" for gpu in self.gpus[pod["spec"]["nodeName"]])
        return ["-m", "tests.dual_pods.pool_stand_in", "--host", ip, "--devices", devices]

    def _real_pool(self, node: str, ip: str) -> list[str]:
        file, keys = self.directory / f"{node}.yaml", self.directory / "keys"
        keys.write_text(ADMIN_KEY)
        said = {"devices": self.gpus[node], "capacity": "256MiB", "api_launch": True, "models": {}}
        file.write_text(yaml.safe_dump(said))
        where = ["--run-dir", str(self.directory / f"run-{node}"), "--listen", f"{ip}:8000"]
        return ["-m", "engine_shim.cli.failover", "models", "up", *where, str(file)]

    def _status(
        self, pod: dict[str, Any], phase: str, state: dict[str, Any], *, ready: bool, ip: str = "", restarts: int = 0
    ) -> None:
        known = (pod["status"].get("containerStatuses") or [{}])[0].get("restartCount", 0)
        count = max(restarts, known)
        container = {"name": names.CONTAINER, "ready": ready, "image": "x", "imageID": "x", "restartCount": count}
        status = {
            "phase": phase,
            "containerStatuses": [{**container, "state": state}],
            "conditions": [{"type": "Ready", "status": str(ready)}],
        }
        self._patch_status(pod, status | ({"podIP": ip, "podIPs": [{"ip": ip}]} if ip else {}))

    def _patch_status(self, pod: dict[str, Any], status: dict[str, Any]) -> None:
        kind = "application/strategic-merge-patch+json"
        path = f"{PODS}/{pod['metadata']['name']}/status"
        body = {"metadata": {"uid": pod["metadata"]["uid"]}, "status": status}  # not of another one of the same name
        self.server.ask("PATCH", path, body, content_type=kind, user_agent="kubelet/1")

    def _end_what_has_gone(self, there: set[str]) -> None:
        for uid in set(self.running) - there:
            known = self.running.pop(uid)
            known.process.kill()
            known.process.wait()

    def end(self) -> None:
        self.stopped.set()
        self.kill_controllers()
        for known in self.running.values():
            known.process.kill()
            known.process.wait()


def wish(serves: str) -> str:
    return _LINE.replace("MODEL", serves)


def ask(url: str, body: Any = None) -> Any:
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=10)
    with contextlib.closing(connection):
        method, said = ("GET", None) if body is None else ("POST", json.dumps(body))
        connection.request(method, parts.path, said, {"Authorization": f"Bearer {ADMIN_KEY}"})
        return json.loads(connection.getresponse().read())


def _is_ready(ip: str) -> bool:
    connection = http.client.HTTPConnection(ip, 8080, timeout=2)
    with contextlib.closing(connection), contextlib.suppress(OSError, http.client.HTTPException):
        connection.request("GET", "/ready")
        return connection.getresponse().status == 200
    return False


@contextlib.contextmanager
def cluster(
    directory: Path, gpus: dict[str, list[str]] | None = None, kind: type[Cluster] | None = None
) -> Iterator[Cluster]:
    with ApiServer() as server:
        it = (kind or Cluster)(directory, server, gpus or {"n1": ["GPU-0", "GPU-1"]})
        for document in manifests():
            path = _path_of(document)
            answer = server.ask("POST", path, document)
            assert answer["kind"] != "Status", (path, answer)
        for name in it.gpus:
            server.ask("POST", "/api/v1/nodes", {"metadata": {"name": name}})
            status = {"status": {"conditions": [{"type": "Ready", "status": "True"}]}}
            server.ask("PATCH", f"/api/v1/nodes/{name}/status", status, content_type="application/merge-patch+json")
        kubelet = threading.Thread(target=it.mind, daemon=True)
        kubelet.start()
        try:
            yield it
        finally:
            it.stopped.set()
            kubelet.join()
            it.end()
            for log in sorted(directory.glob("*.log")) if "PYTEST_CURRENT_TEST" in os.environ else ():
                print(f"--- {log.name}\n{log.read_text(errors='replace')[-6000:]}")


def manifests() -> list[dict[str, Any]]:
    """What `k8s/dual_pods` has to say about rights and policies, in a namespace of ours."""
    found: list[dict[str, Any]] = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}}]
    for path in sorted(MANIFESTS.glob("*.yaml")):
        text = path.read_text().replace("namespace: dual-pods", f"namespace: {NAMESPACE}")
        text = text.replace("serviceaccount:dual-pods:", f"serviceaccount:{NAMESPACE}:")
        text = text.replace("kubernetes.io/metadata.name: dual-pods", f"kubernetes.io/metadata.name: {NAMESPACE}")
        documents = [d for d in yaml.safe_load_all(text) if d]
        found += [d for d in documents if d["kind"] in _KINDS]
    return found


_KINDS = {
    "ServiceAccount": "/api/v1/namespaces/{}/serviceaccounts",
    "Role": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/roles",
    "RoleBinding": "/apis/rbac.authorization.k8s.io/v1/namespaces/{}/rolebindings",
    "ClusterRole": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "ClusterRoleBinding": "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings",
    "ValidatingAdmissionPolicy": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "ValidatingAdmissionPolicyBinding": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
}


def _path_of(document: dict[str, Any]) -> str:
    return _KINDS.get(document["kind"], "/api/v1/namespaces").format(NAMESPACE)
