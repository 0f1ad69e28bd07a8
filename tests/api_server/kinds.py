"""The resources that are served, and what each kind has of its own: defaults, and what may not be said or changed."""

import copy
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
INVALID, REQUIRED, FORBIDDEN, UNSUPPORTED = (
    f"FieldValue{why}" for why in ("Invalid", "Required", "Forbidden", "NotSupported")
)
_DATA = yaml.safe_load((Path(__file__).parent / "kinds.yaml").read_text())


@dataclass(frozen=True)
class Resource:
    plural: str
    kind: str
    group: str = ""
    version: str = "v1"
    subresources: tuple[str, ...] | list[str] = field(default=(), hash=False)
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
    def full_name(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _made(**row: Any) -> Resource:
    it = Resource(**row)
    return it if it.custom else Resource(**row, node=schema.of_kind(it.group, it.version, it.kind))


SERVED = {it.full_name: it for it in (_made(**row) for row in _DATA["served"])}
PODS, NAMESPACES, DEFINITIONS = (
    SERVED[name] for name in ("pods", "namespaces", "customresourcedefinitions.apiextensions.k8s.io")
)


def custom(definition: Object) -> Resource:
    spec = definition["spec"]
    version = next(v for v in spec["versions"] if v["served"])
    node = schema.of_custom(version["schema"]["openAPIV3Schema"])
    plural, kind = spec["names"]["plural"], spec["names"]["kind"]
    has = {"counts": True, "needs_version": True, "custom": True}
    return Resource(plural, kind, spec["group"], version["name"], ("status",), node=node, **has)


# -- defaults ----------------------------------------------------------------------------------------------------------

_PRIORITIES = {"": 0, "system-node-critical": 2000001000, "system-cluster-critical": 2000000000}
_TOKEN = "/var/run/secrets/kubernetes.io/serviceaccount"


def _fill(value: Object, default: Object) -> None:
    for key, inner in default.items():
        name = key.removeprefix("in ")
        if name == key and name not in value:
            value[name] = {} if isinstance(inner, dict) else copy.deepcopy(inner)
        there = value.get(name)
        if isinstance(inner, dict) and isinstance(there, dict):
            _fill(there, inner)
        elif isinstance(inner, list) and inner and isinstance(inner[0], dict):
            for each in there or ():
                _fill(each, inner[0])


def default(resource: Resource, value: Object, suffix: Callable[[], str], now: str, *, creates: bool) -> None:
    """Fills in what the server adds to an object of this kind."""
    kind, meta = resource.kind, value["metadata"]
    if kind == "Pod" and value.get("spec", {}).get("priorityClassName", "") not in _PRIORITIES:
        return
    _fill(value, _DATA["defaults"].get(kind, {}))
    spec = value.get("spec", {})
    for container in _containers(spec if kind == "Pod" else spec.get("template", {}).get("spec", {})):
        latest = ":" not in container.get("image", "").rpartition("/")[2] or container["image"].endswith(":latest")
        container.setdefault("imagePullPolicy", "Always" if latest else "IfNotPresent")
        if "limits" in container["resources"]:
            container["resources"].setdefault("requests", dict(container["resources"]["limits"]))
    if kind == "Pod":
        _default_pod(spec, value["status"], suffix, now)
    elif kind == "Node" and creates:
        taint = {"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}
        value["spec"] = {**spec, "taints": [*spec.get("taints", ()), taint]}
    elif kind == "Namespace":
        meta["labels"].setdefault("kubernetes.io/metadata.name", meta.get("name", ""))
        value["status"] = {"phase": "Terminating" if "deletionTimestamp" in meta else "Active"}
    elif kind == "Deployment" and spec["strategy"]["type"] == "RollingUpdate":
        _fill(spec["strategy"], {"rollingUpdate": {"maxUnavailable": "25%", "maxSurge": "25%"}})
    elif kind == "CustomResourceDefinition":
        spec["names"].setdefault("listKind", f"{spec['names']['kind']}List")


def _containers(spec: Object) -> list[Object]:
    return [*spec.get("initContainers", ()), *spec.get("containers", ())]


def _default_pod(spec: Object, status: Object, suffix: Callable[[], str], now: str) -> None:
    account = spec.setdefault("serviceAccountName", "default")
    _fill(spec, {"serviceAccount": account, "enableServiceLinks": True, "preemptionPolicy": "PreemptLowerPriority"})
    _fill(spec, {"priority": _PRIORITIES[spec.get("priorityClassName", "")], "tolerations": []})
    for key in ("node.kubernetes.io/not-ready", "node.kubernetes.io/unreachable"):
        if not any(t.get("operator") == "Exists" and t.get("key") in (None, key) for t in spec["tolerations"]):
            toleration = {"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300}
            spec["tolerations"].append(toleration)
    mounted = any(v["name"].startswith("kube-api-access-") for v in spec.get("volumes", ()))
    if spec.get("automountServiceAccountToken") is not False and not mounted:
        name = f"kube-api-access-{suffix()}"
        source = {"sources": [{"serviceAccountToken": {"path": "token"}}], "defaultMode": 420}
        spec.setdefault("volumes", []).append({"name": name, "projected": source})
        for container in spec.get("containers", ()):
            container.setdefault("volumeMounts", []).append({"name": name, "readOnly": True, "mountPath": _TOKEN})
    status.setdefault("qosClass", _qos([container["resources"] for container in _containers(spec)]))
    if spec.get("schedulingGates") and "conditions" not in status:
        why = {"reason": "SchedulingGated", "message": "Scheduling is blocked due to non-empty scheduling gates"}
        gated = {"type": "PodScheduled", "status": "False", "lastProbeTime": None, "lastTransitionTime": now}
        status["conditions"] = [gated | why]


def _qos(resources: list[Object]) -> str:
    if not any(r.get("requests") or r.get("limits") for r in resources):
        return "BestEffort"
    whole = all({"cpu", "memory"} <= set(r.get("limits", {})) and r["limits"] == r.get("requests") for r in resources)
    return "Guaranteed" if whole else "Burstable"


# -- what may not be said ----------------------------------------------------------------------------------------------

_WORD = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_NAME = rf"{_WORD}(\.{_WORD})*"
_KEY = rf"({_NAME}/)?[A-Za-z0-9]([-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?"
LABEL_VALUE = r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?"
_STANDARD = ("orphan", "foregroundDeletion", "kubernetes")
_FREE = {"tolerations", "schedulingGates", "activeDeadlineSeconds"}


def wrong(resource: Resource, new: Object, old: Object | None) -> Iterator[Cause]:
    """Everything that is wrong with it, in the order in which the real server says it."""
    yield from _wrong_metadata(new["metadata"], old["metadata"] if old else None)
    if resource.kind == "Pod":
        yield from _wrong_pod(new.get("spec", {}), old["spec"] if old else None)
    elif resource.kind == "Lease" and new.get("spec", {}).get("leaseDurationSeconds", 1) <= 0:
        yield INVALID, "spec.leaseDurationSeconds"
    elif resource.kind == "Event" and new["involvedObject"].get("namespace", "default") != new["metadata"]["namespace"]:
        yield INVALID, "involvedObject.namespace"


def _wrong_metadata(meta: Object, old: Object | None) -> Iterator[Cause]:
    """The real server looks at some of it several times when an object is changed, and says it each time."""
    if not meta.get("name"):
        yield REQUIRED, "metadata.name"
    elif old is None and (not re.fullmatch(_NAME, meta["name"]) or len(meta["name"]) > 253):
        yield INVALID, "metadata.name"
    labels = [(_KEY, key) for key in meta.get("labels", ())]
    labels += [(LABEL_VALUE, text) for text in meta.get("labels", {}).values()]
    annotations = [(_KEY, key.lower()) for key in meta.get("annotations", ())]
    for _ in range(1 if old is None else 4):
        for where, texts in (("labels", labels), ("annotations", annotations)):
            yield from ((INVALID, f"metadata.{where}") for form, text in texts if not re.fullmatch(form, text))
    for number, name in enumerate(meta.get("finalizers", ())):
        if not re.fullmatch(_KEY, name):
            yield INVALID, "metadata.finalizers"
        elif "/" not in name and name not in _STANDARD:
            yield INVALID, f"metadata.finalizers[{number}]"
    owners = meta.get("ownerReferences", ())
    for name in ("apiVersion", "kind", "name", "uid"):
        yield from ((INVALID, f"metadata.ownerReferences.{name}") for owner in owners if not owner.get(name))
    are_events = any((owner.get("apiVersion"), owner.get("kind")) == ("v1", "Event") for owner in owners)
    many_control = sum(owner.get("controller", False) for owner in owners) > 1
    yield from [(INVALID, "metadata.ownerReferences")] * (are_events + many_control)
    if old is not None:
        held = "deletionTimestamp" in old and set(meta.get("finalizers", ())) - set(old.get("finalizers", ()))
        yield from [(FORBIDDEN, "metadata.finalizers")] * (2 if held else 0)
        for name in ("uid", "deletionTimestamp"):
            yield from [(INVALID, f"metadata.{name}")] * (2 if meta.get(name) != old.get(name) else 0)


def _wrong_pod(spec: Object, old: Object | None) -> Iterator[Cause]:
    if not spec.get("containers"):
        yield REQUIRED, "spec.containers"
    for number, container in enumerate(spec.get("containers", ())):
        where = f"spec.containers[{number}]"
        if not re.fullmatch(_WORD, container["name"]):
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
    if old is not None:
        yield from list(_changed_pod(spec, old))[:1]
    elif spec.get("nodeName") and spec.get("schedulingGates"):
        yield FORBIDDEN, "spec.nodeName"


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
    if had and not old.get("nodeSelector", {}).items() <= spec.get("nodeSelector", {}).items():
        yield INVALID, "spec.nodeSelector"
    free = _FREE | ({"nodeSelector"} if had else set())
    if _frozen(spec, free) != _frozen(old, free):
        yield FORBIDDEN, "spec"


def _frozen(spec: Object, free: set[str]) -> Object:
    """What of a pod may not change."""
    found = {key: value for key, value in spec.items() if key not in free}
    for containers in ("containers", "initContainers"):
        found[containers] = [{k: v for k, v in c.items() if k != "image"} for c in spec.get(containers, ())]
    return found
