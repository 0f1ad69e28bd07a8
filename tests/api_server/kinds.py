"""The resources that are served, and what each kind has of its own: defaults, and what may not be said or changed."""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from tests.api_server import schema
from tests.api_server.schema import Node

Object = dict[str, Any]
Cause = tuple[str, str]
"""Reason and field."""
INVALID, REQUIRED, FORBIDDEN, UNSUPPORTED, DUPLICATE = (
    "FieldValueInvalid", "FieldValueRequired", "FieldValueForbidden", "FieldValueNotSupported", "FieldValueDuplicate"
)  # fmt: skip


@dataclass(frozen=True)
class Resource:
    group: str
    version: str
    plural: str
    kind: str
    subresources: tuple[str, ...] = ()
    namespaced: bool = True
    counts: bool = False
    """Its `generation` counts the changes of what is wished."""
    needs_version: bool = False
    """A PUT has to name the version that it replaces."""
    put_creates: bool = False
    answers: bool = False
    """A DELETE answers with the object, and not with a Status."""
    status_takes_metadata: bool = False
    custom: bool = False
    node: Node = field(default_factory=dict, compare=False, hash=False)

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def stored_as(self) -> str:
        return "events" if self.group == "events.k8s.io" else self.full_name

    @property
    def full_name(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _served() -> dict[str, Resource]:
    found = {}
    for row in yaml.safe_load((Path(__file__).parent / "kinds.yaml").read_text()):
        row = {"group": "", "version": "v1", **row, "subresources": tuple(row.get("subresources", ()))}
        made = Resource(**row, node=schema.of_kind(row["group"], row["version"], row["kind"]))
        found[made.full_name] = made
    return found


SERVED = _served()
PODS, NAMESPACES = SERVED["pods"], SERVED["namespaces"]
_RBAC, _ADMISSION = "rbac.authorization.k8s.io", "admissionregistration.k8s.io"
ROLES, CLUSTER_ROLES = SERVED[f"roles.{_RBAC}"], SERVED[f"clusterroles.{_RBAC}"]
ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS = SERVED[f"rolebindings.{_RBAC}"], SERVED[f"clusterrolebindings.{_RBAC}"]
POLICIES = SERVED[f"validatingadmissionpolicies.{_ADMISSION}"]
BINDINGS = SERVED[f"validatingadmissionpolicybindings.{_ADMISSION}"]
DEFINITIONS = SERVED["customresourcedefinitions.apiextensions.k8s.io"]


def custom(definition: Object) -> Resource:
    spec = definition["spec"]
    version = next(v for v in spec["versions"] if v["served"])
    return Resource(
        spec["group"], version["name"], spec["names"]["plural"], spec["names"]["kind"], ("status",), counts=True,
        needs_version=True, custom=True, node=schema.of_custom(version["schema"]["openAPIV3Schema"]),
    )  # fmt: skip


# -- defaults ----------------------------------------------------------------------------------------------------------


def fill(value: Object, default: Object) -> None:
    for key, inner in default.items():
        if key not in value:
            value[key] = inner
        elif isinstance(inner, dict) and isinstance(value[key], dict):
            fill(value[key], inner)


def _each(parts: Any, default: Object) -> None:
    for part in filter(None, parts or ()):
        fill(part, default)


_PROBE = {"timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3}
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def _pod_spec(spec: Object) -> None:
    for container in [*spec.get("initContainers", ()), *spec.get("containers", ())]:
        latest = ":" not in container.get("image", "").rpartition("/")[2] or container["image"].endswith(":latest")
        fill(container, {"resources": {}, "terminationMessagePath": "/dev/termination-log"})
        pull = "Always" if latest else "IfNotPresent"
        fill(container, {"terminationMessagePolicy": "File", "imagePullPolicy": pull})
        if "limits" in container["resources"]:
            fill(container["resources"], {"requests": dict(container["resources"]["limits"])})
        _each(container.get("ports"), {"protocol": "TCP"})
        for name in ("startupProbe", "livenessProbe", "readinessProbe"):
            if name in container:
                fill(container[name], _PROBE)
                _each([container[name].get("httpGet")], {"path": "/", "scheme": "HTTP"})
        for variable in container.get("env", ()):
            _each([variable.get("valueFrom", {}).get("fieldRef")], {"apiVersion": "v1"})
    fill(spec, {"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst"})
    fill(spec, {"securityContext": {}, "schedulerName": "default-scheduler"})


def _pod(pod: Object, suffix: Callable[[], str], now: str) -> None:
    spec, status = pod["spec"], pod.setdefault("status", {})
    _pod_spec(spec)
    account = spec.get("serviceAccountName", "default")
    fill(spec, {"serviceAccountName": account, "serviceAccount": account, "enableServiceLinks": True})
    tolerations = spec.setdefault("tolerations", [])
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("operator") == "Exists" and t.get("key") in (None, key) for t in tolerations):
            tolerations.append({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300})
    fill(spec, {"priority": _PRIORITIES[spec.get("priorityClassName", "")], "preemptionPolicy": "PreemptLowerPriority"})
    mounted = any(v["name"].startswith("kube-api-access-") for v in spec.get("volumes", ()))
    if spec.get("automountServiceAccountToken") is not False and not mounted:
        name = f"kube-api-access-{suffix()}"
        source = {"sources": [{"serviceAccountToken": {"path": "token"}}], "defaultMode": 420}
        spec.setdefault("volumes", []).append({"name": name, "projected": source})
        for container in spec["containers"]:
            mounts = container.setdefault("volumeMounts", [])
            mounts.append({"name": name, "readOnly": True, "mountPath": _TOKEN})
    fill(status, {"phase": "Pending", "qosClass": _qos(spec)})
    if spec.get("schedulingGates") and "conditions" not in status:
        why = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
        status["conditions"] = [{"type": "PodScheduled", "status": "False", "lastTransitionTime": now, **why}]
    _each(status.get("conditions"), {"lastProbeTime": None, "lastTransitionTime": None})
    _each(status.get("containerStatuses"), {"lastState": {}, "state": {}})


_PRIORITIES = {"": 0, "system-node-critical": 2000001000, "system-cluster-critical": 2000000000}


def _qos(spec: Object) -> str:
    resources = [c["resources"] for c in [*spec.get("initContainers", ()), *spec["containers"]]]
    if not any(r.get("requests") or r.get("limits") for r in resources):
        return "BestEffort"
    whole = all({"cpu", "memory"} <= set(r.get("limits", {})) and r["limits"] == r.get("requests") for r in resources)
    return "Guaranteed" if whole else "Burstable"


def default(resource: Resource, value: Object, suffix: Callable[[], str], now: str, *, creates: bool) -> None:
    """Fills in what the server adds to an object of this kind."""
    kind, spec = resource.kind, value.get("spec", {})
    if kind == "Pod" and spec.get("containers") and spec.get("priorityClassName", "") in _PRIORITIES:
        _pod(value, suffix, now)
    elif kind == "Node" and creates:
        kubelet = {"daemonEndpoints": {"kubeletEndpoint": {"Port": 0}}, "nodeInfo": dict.fromkeys(_NODE_INFO, "")}
        fill(value, {"spec": {"taints": []}, "status": kubelet})
        value["spec"]["taints"].append({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"})
    elif kind == "Node":
        for condition in value["status"].get("conditions", ()):
            for key in [key for key in ("message", "reason") if condition.get(key) == ""]:
                del condition[key]
    elif kind == "Namespace":
        labels = {"kubernetes.io/metadata.name": value["metadata"].get("name", "")}
        fill(value, {"metadata": {"labels": labels}, "spec": {"finalizers": ["kubernetes"]}})
        value["status"] = {"phase": "Terminating" if "deletionTimestamp" in value["metadata"] else "Active"}
    elif kind in ("Deployment", "ReplicaSet"):
        _pod_spec(spec["template"]["spec"])
        fill(value, {"spec": {"replicas": 1}, "status": {"replicas": 0} if kind == "ReplicaSet" else {}})
        if kind == "Deployment":
            fill(spec, {"strategy": {"type": "RollingUpdate"}})
            fill(spec, {"revisionHistoryLimit": 10, "progressDeadlineSeconds": 600})
            if spec["strategy"]["type"] == "RollingUpdate":
                fill(spec["strategy"], {"rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}})
    elif kind == "Event":
        fill(value, {"eventTime": None, "reportingComponent": "", "reportingInstance": ""})
    elif kind == "CustomResourceDefinition":
        fill(spec, {"names": {"listKind": f"{spec['names']['kind']}List"}, "conversion": {"strategy": "None"}})
    elif kind == "ValidatingAdmissionPolicy":
        match = {"namespaceSelector": {}, "objectSelector": {}, "matchPolicy": "Equivalent"}
        fill(spec, {"matchConstraints": match})
        _each(spec["matchConstraints"].get("resourceRules"), {"scope": "*"})
    elif kind == "ValidatingAdmissionPolicyBinding":
        selectors = {"objectSelector": {}, "namespaceSelector": {}, "matchPolicy": "Equivalent"}
        fill(spec, {"matchResources": selectors} if "matchResources" in spec else {})


_NODE_INFO = (
    "machineID", "systemUUID", "bootID", "kernelVersion", "osImage", "containerRuntimeVersion", "kubeletVersion",
    "kubeProxyVersion", "operatingSystem", "architecture",
)  # fmt: skip


# -- what may not be said ----------------------------------------------------------------------------------------------

_NAME = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = rf"({_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_STANDARD = ("orphan", "foregroundDeletion", "kubernetes")


def wrong_metadata(meta: Object, old: Object | None) -> Iterator[Cause]:
    """The real server looks at some of it several times when an object is changed, and says it each time."""
    times = 1 if old is None else 4
    if not meta.get("name"):
        yield REQUIRED, "metadata.name"
    elif old is None and (not re.fullmatch(_NAME, meta["name"]) or len(meta["name"]) > 253):
        yield INVALID, "metadata.name"
    for _ in range(times):
        for key in meta.get("labels", {}):
            if not re.fullmatch(_KEY, key):
                yield INVALID, "metadata.labels"
        values = meta.get("labels", {}).values()
        yield from ((INVALID, "metadata.labels") for text in values if not re.fullmatch(LABEL_VALUE, text))
        for key in meta.get("annotations", {}):
            if not re.fullmatch(_KEY, key.lower()):
                yield INVALID, "metadata.annotations"
    for number, name in enumerate(meta.get("finalizers", ())):
        if not re.fullmatch(_KEY, name):
            yield INVALID, "metadata.finalizers"
        elif "/" not in name and name not in _STANDARD:
            yield INVALID, f"metadata.finalizers[{number}]"
    owners = meta.get("ownerReferences", ())
    for name in ("apiVersion", "kind", "name", "uid"):
        yield from ((INVALID, f"metadata.ownerReferences.{name}") for owner in owners if not owner.get(name))
    if any((owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event") for owner in owners):
        yield INVALID, "metadata.ownerReferences"
    if sum(owner.get("controller", False) for owner in owners) > 1:
        yield INVALID, "metadata.ownerReferences"
    if old is not None:
        new_ones = set(meta.get("finalizers", ())) - set(old.get("finalizers", ()))
        held = "deletionTimestamp" in old and new_ones
        yield from [(FORBIDDEN, "metadata.finalizers")] * (2 if held else 0)
        for name in ("uid", "deletionTimestamp"):
            yield from [(INVALID, f"metadata.{name}")] * (2 if meta.get(name) != old.get(name) else 0)


def wrong(resource: Resource, new: Object, old: Object | None) -> Iterator[Cause]:
    """Everything that is wrong with it, in the order in which the real server says it."""
    yield from wrong_metadata(new["metadata"], old["metadata"] if old else None)
    check = _WRONG.get(resource.kind)
    if check is not None:
        yield from check(new, old)


def _wrong_pod(new: Object, old: Object | None) -> Iterator[Cause]:
    spec = new.get("spec", {})
    if not spec.get("containers"):
        yield REQUIRED, "spec.containers"
    for number, container in enumerate(spec.get("containers", ())):
        where = f"spec.containers[{number}]"
        if not re.fullmatch(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?", container["name"]):
            yield INVALID, f"{where}.name"
        if not container.get("image"):
            yield from [(REQUIRED, f"{where}.image")] * (1 if old is None else 2)
        for place, port in enumerate(container.get("ports", ())):
            if not port.get("containerPort"):
                yield REQUIRED, f"{where}.ports[{place}].containerPort"
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        yield UNSUPPORTED, "spec.restartPolicy"
    for number, claim in enumerate(spec.get("resourceClaims", ())):
        if ("resourceClaimName" in claim) == ("resourceClaimTemplateName" in claim):
            yield INVALID, f"spec.resourceClaims[{number}]"
    if old is None:
        if spec.get("nodeName") and spec.get("schedulingGates"):
            yield FORBIDDEN, "spec.nodeName"
    else:
        yield from list(_changed_pod(spec, old["spec"]))[:1]


def _changed_pod(spec: Object, old: Object) -> Iterator[Cause]:
    gates, had = ([g["name"] for g in s.get("schedulingGates", ())] for s in (spec, old))
    yield from ((FORBIDDEN, f"spec.schedulingGates[{i}].name") for i, gate in enumerate(gates) if gate not in had)
    for containers in ("containers", "initContainers"):
        if [c["name"] for c in spec.get(containers, ())] != [c["name"] for c in old.get(containers, ())]:
            yield FORBIDDEN, f"spec.{containers}"
    if any(toleration not in spec.get("tolerations", ()) for toleration in old.get("tolerations", ())):
        yield FORBIDDEN, "spec.tolerations"
    deadline, before = spec.get("activeDeadlineSeconds"), old.get("activeDeadlineSeconds")
    if before is not None and (deadline is None or deadline > before):
        yield INVALID, "spec.activeDeadlineSeconds"
    free = {"tolerations", "schedulingGates", "activeDeadlineSeconds"}
    if had:
        free |= {"nodeSelector"}
        if any(spec.get("nodeSelector", {}).get(k) != v for k, v in old.get("nodeSelector", {}).items()):
            yield INVALID, "spec.nodeSelector"
    if _frozen(spec, free) != _frozen(old, free):
        yield FORBIDDEN, "spec"


def _frozen(spec: Object, free: set[str]) -> Object:
    """What of a pod may not change."""
    found = {key: value for key, value in spec.items() if key not in free}
    for containers in ("containers", "initContainers"):
        found[containers] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(containers, ())]
    return found


def _wrong_lease(new: Object, _: Object | None) -> Iterator[Cause]:
    if new.get("spec", {}).get("leaseDurationSeconds", 1) <= 0:
        yield INVALID, "spec.leaseDurationSeconds"


def _wrong_event(new: Object, _: Object | None) -> Iterator[Cause]:
    if new["involvedObject"].get("namespace", "default") != new["metadata"]["namespace"]:
        yield INVALID, "involvedObject.namespace"


_WRONG: dict[str, Callable[[Object, Object | None], Iterator[Cause]]] = {
    "Pod": _wrong_pod,
    "Lease": _wrong_lease,
    "Event": _wrong_event,
}
