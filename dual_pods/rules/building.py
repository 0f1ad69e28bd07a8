"""What a server pod is made of, and what a pool is asked to launch. Pure.

Where each instance has a pod (`direct`, `sleep`), it is the requester's pod, as its server patch changes it, on the
requester's node and accelerators. Where a pool runs (`swap`), its pod comes from the controller's own template, and the
patched container's command becomes an entry of models.yaml.

A requester's labels don't go over to the pod that runs it: a Service or a ReplicaSet that selects them would take that
pod for one of its own.
"""

import re
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from dual_pods.rules import names
from dual_pods.rules.facts import Ask
from dual_pods.rules.strategic import BadPatch, expanded, mapping, merged
from pool.entries import Entry, of_weights, parted
from sidecar.terminal.names import BadValue, is_meant

Object = dict[str, Any]
DEFAULT_PORT = 8000
VISIBLE = "CUDA_VISIBLE_DEVICES"
_OF_THE_SERVER = (
    "nodeName",
    "priority",
    "preemptionPolicy",
    "serviceAccount",
    "schedulingGates",
    "ephemeralContainers",
)
"""What the API server or the scheduler has filled in, and refuses to be told."""
_OF_ITS_OWNER = ("hostname", "subdomain", "activeDeadlineSeconds", "topologySpreadConstraints")
"""What is said of this pod alone, or of where its like are: the next one asks for the same, and may be another one's.
"""
_OF_ITS_HEALTH = ("readinessProbe", "livenessProbe", "startupProbe", "lifecycle")
_OF_A_POOL = {"name", "command", "args", "env", "ports", *_OF_ITS_HEALTH}
"""What a pool takes of a container, or sees to itself."""
_TOKEN = "kube-api-access-"
_WHERE = "kubernetes.io/hostname"
_SIZE = re.compile(r"(\d{1,18})\s*([KMGT]i?)?B?")


class _Named(msgspec.Struct):
    """What says in an entry what its weights are. A pool judges the rest of it, where one runs."""

    engine: str = ""
    arguments: list[str] = []


def ask(pod: Mapping[str, Any], *, swaps: bool = False) -> Ask:
    """Raises BadPatch, with a sentence about the user's annotation. `swaps`: a pool runs it, to which one wish differs
    from another by its command and its environment alone, as the specification has it."""
    annotations = pod["metadata"]["annotations"]
    node = pod["spec"].get("nodeName") or ""
    known = {"NodeName": node, "LocalVolume": f"{node}-local"}
    patch = _mapping(names.SERVER_PATCH, names.said(annotations, names.SERVER_PATCH) or "", known)
    plain = {"metadata": {"labels": {}, "annotations": {}}, "spec": _plain(pod["spec"])}
    try:
        made = merged(plain, patch)
        spec = made["spec"]
        found = [c for c in spec["containers"] if c["name"] == names.CONTAINER]
    except (KeyError, TypeError, AttributeError, RecursionError):
        raise BadPatch("it doesn't leave a pod: spec has to hold containers, each with a name") from None
    if not found or "image" not in found[0]:
        raise BadPatch(f"it removes the container {names.CONTAINER}, or its image")
    container = found[0]
    endpoint(container)
    said = annotations.get(names.MODEL)
    more, fields = _mapping(names.MODEL, said) if said else {}, Entry.__struct_fields__
    if VISIBLE in (more.get("environment") or ()):
        raise BadPatch(f"{names.MODEL}: {VISIBLE} isn't its user's to say: it runs on what its requester has")
    for field in more.keys() - {*fields}:
        raise BadPatch(f"{names.MODEL}: there is no field {field}{is_meant(str(field), fields)}")
    own = [v for c in plain["spec"]["containers"] if c["name"] == names.CONTAINER for v in c.get("env") or ()]
    of_pod = [v for v in own if "fieldRef" in (v.get("valueFrom") or {})]  # its own, which says no engine anything
    env = [v for v in container.get("env") or () if v not in of_pod]
    entry = _entry({**container, "env": env}) | more
    try:
        msgspec.convert(entry, _Named)
    except msgspec.ValidationError as error:
        raise BadPatch(f"{names.MODEL}: {error}") from None
    meta = {key: made["metadata"].get(key) or {} for key in ("labels", "annotations")}
    needs = entry.pop("memory", 0)
    wanted = Ask(
        wish=names.digest(entry if swaps else [spec, entry]),
        pod={"metadata": meta, "spec": spec},
        entry=entry,
        references=tuple(
            str(v["name"])
            for v in container.get("env") or ()
            if ("valueFrom" in v and v in env) or f"$({v['name']})" in str(entry)
        ),
        unused=_unused(patch.get("spec") or {}),
        needs={str(k): _bytes(v) for k, v in needs.items()} if isinstance(needs, dict) else _bytes(needs),
    )
    single(wanted, "", "", (), "", "")  # labels or resources of another kind are refused now, and end no plan
    return wanted


def _unused(patch: Mapping[str, Any]) -> tuple[str, ...]:
    """What a pool does not use of a server patch."""
    found = patch.keys() - {"containers"}
    for container in patch.get("containers") or ():
        if "$patch" not in container:
            own = container["name"] == names.CONTAINER
            found |= container.keys() - _OF_A_POOL if own else {f"container {container['name']}"}
    return tuple(sorted(field for field in found if not field.startswith("$")))


def _mapping(annotation: str, text: str, known: Mapping[str, str] | None = None) -> Object:
    try:
        return mapping(text if known is None else expanded(text, known))
    except BadPatch as error:
        raise BadPatch(f"{annotation}: {error}") from None


def _plain(spec: Mapping[str, Any]) -> Object:
    """A pod's spec as its user wrote it, about: without what the API server has added, and without claims that are the
    requester's own, and go with it.
    """
    found = {key: value for key, value in spec.items() if key not in (*_OF_THE_SERVER, *_OF_ITS_OWNER)}
    claims = {claim["name"] for claim in spec.get("resourceClaims") or () if "resourceClaimTemplateName" in claim}
    found["resourceClaims"] = [c for c in spec.get("resourceClaims") or () if c["name"] not in claims]
    found["volumes"] = [v for v in spec.get("volumes") or () if not v["name"].startswith(_TOKEN)]
    for kind in ("containers", "initContainers"):
        found[kind] = [_plain_container(container, claims) for container in spec.get(kind) or ()]
    return _without_empty(found)


def _plain_container(container: Mapping[str, Any], claims: set[str]) -> Object:
    """How it is asked whether it is well is the requester's own: the patch says how the engine is. So are its uid, and
    the node's ports, which no second pod there can have.
    """
    own = container["name"] == names.CONTAINER
    found = {key: value for key, value in container.items() if not (own and key in _OF_ITS_HEALTH)}
    found["env"] = [v for v in container.get("env") or () if not (own and v["name"] == names.POD_UID)]
    found["ports"] = [{k: v for k, v in p.items() if k != "hostPort"} for p in container.get("ports") or ()]
    found["volumeMounts"] = [m for m in container.get("volumeMounts") or () if not m["name"].startswith(_TOKEN)]
    resources = container.get("resources") or {}
    kept = [claim for claim in resources.get("claims") or () if claim["name"] not in claims]
    found["resources"] = _without_empty({**resources, "claims": kept})
    return _without_empty(found)


def _without_empty(lists: Object) -> Object:
    return {key: value for key, value in lists.items() if value != []}


def _command(container: Mapping[str, Any]) -> list[str]:
    words = []
    for said in (container.get("command") or [], container.get("args") or []):
        if not isinstance(said, list) or not all(isinstance(word, str) for word in said):
            raise BadPatch("a command is a list of texts: quote numbers")
        words += said
    return words


def endpoint(container: Mapping[str, Any]) -> tuple[int, tuple[int, str]]:
    """Where a server pod's container is asked, and where it says that it is ready: port and path. It is asked where its
    command says, else where its probe does, as FMA has it: its first port may be the requester's. Raises BadPatch.
    """
    ports = [p for p in container.get("ports") or () if isinstance(p.get("containerPort"), int)]
    probe = (container.get("readinessProbe") or {}).get("httpGet") or {}
    named = {p.get("name"): p["containerPort"] for p in ports}
    probed = probe["port"] if isinstance(probe.get("port"), int) else named.get(str(probe.get("port", "")), 0)
    port = probed or next((p["containerPort"] for p in ports), DEFAULT_PORT)
    for value in parted(_command(container), ("--port",))[1][:1]:
        port = names.port(value)
        if not port:
            raise BadPatch(f"--port {value[:40]!r} is no port")
    return port, (probed or port, "/" + str(probe.get("path", "health")).lstrip("/"))  # kubelet adds one, too


def _entry(container: Mapping[str, Any]) -> Object:
    """`vllm serve MODEL ...` becomes the pool's words for it; any other command is one that the pool starts."""
    words = _command(container)
    environment = {str(v["name"]): str(v.get("value", "")) for v in container.get("env") or ()}
    environment.pop(VISIBLE, None)
    entry: Object = {"environment": environment} if environment else {}
    if words[:2] == ["vllm", "serve"]:
        rest = [word for word in words[2:] if word != "--enable-sleep-mode"]  # a pool's engines always can
        return {"engine": "vllm", "arguments": parted(rest, ("--port", "--host"))[0], **entry}
    return {"engine": "command", "command": parted(words, ("--port",), "{port}")[0], **entry}


def _bytes(size: Any) -> int:
    match = _SIZE.fullmatch(str(size).strip())
    if match is None:
        raise BadPatch(f"memory: {str(size)[:40]!r} is no size, such as 12GiB")
    base = 1024 if (match[2] or "").endswith("i") else 1000
    power: int = " KMGT".index((match[2] or " ")[0])
    return int(match[1]) * int(base**power)


def launch(ask: Ask, instance: str, accelerators: Iterable[str]) -> Object:
    """What a pool gets. What is promised stays awake, so it is pinned. It is asked by a port of its own, whatever a
    client calls it: else a request for one instance could wake another one of its model. Raises BadPatch where it is
    no entry of models.yaml.
    """
    devices = sorted(accelerators)
    if ask.references:
        why = "give each variable its value, and write that instead of $(VARIABLE)"
        raise BadPatch(f"a pool can't look up {', '.join(ask.references)}: {why}")
    entry = {**ask.entry, "name": instance, "devices": devices, "pin": True, "own_port": True}
    if named := weights_name(ask, devices):
        entry["weights"] = named
    if ask.needs:
        entry["memory"] = ask.needs if isinstance(ask.needs, Mapping) else dict.fromkeys(devices, ask.needs)
    entry.pop("aliases", None)  # by its own port it answers to any name, and no other one may have them
    try:
        its = msgspec.convert(entry, Entry)
    except (msgspec.ValidationError, BadValue) as error:
        raise BadPatch(f"a pool can't run it: {error}") from None
    if not its.runs:
        raise BadPatch(f"{names.MODEL}: with a ladder, or where it is remote, no engine of its node would run it")
    return {**entry, "id": instance}


def weights_name(ask: Ask, accelerators: Iterable[str]) -> str:
    """What the weights are called in GMS, by all that decides what they are: with the same, instances share them. There
    are none for a command.
    """
    entry, engine = ask.entry, ask.entry.get("engine", "vllm")
    if engine == "command" or entry.get("weights"):
        return str(entry.get("weights", ""))
    words = of_weights(engine, entry.get("arguments") or ())
    return "w" + names.digest([engine, words, entry.get("environment"), sorted(accelerators)])[:15]


# -- pods --------------------------------------------------------------------------------------------------------------


def pinned_to(spec: Mapping[str, Any]) -> str:
    """The node that a server pod was made for, before the scheduler has looked at it."""
    try:
        affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
        term = affinity["nodeSelectorTerms"][0]["matchExpressions"][0]
        return str(term["values"][0]) if term["key"] == _WHERE else ""
    except (KeyError, IndexError, TypeError):
        return ""


def _sees_all(container: Mapping[str, Any], kind: str) -> Object:
    """None is counted, and all are seen: what the device plugin does with a quantity of 0."""
    resources = dict(container.get("resources") or {})
    requests = {key: value for key, value in (resources.pop("requests", None) or {}).items() if key != kind}
    resources["limits"] = {**(resources.get("limits") or {}), kind: "0"}
    return {**container, "resources": resources | ({"requests": requests} if requests else {})}


def single(ask: Ask, instance: str, node: str, accelerators: Iterable[str], name: str, kind: str) -> Object:
    """The pod of one instance. `kind`: the resource as which accelerators are counted."""
    seen = ",".join(sorted(accelerators))

    def of_it(container: Mapping[str, Any]) -> Mapping[str, Any]:
        if container["name"] != names.CONTAINER:  # the requester has what it asks for
            asks = container.get("resources") or {}
            counted = any(kind in (asks.get(what) or ()) for what in ("limits", "requests"))
            return _sees_all(container, kind) if counted else container
        env = [*(v for v in container.get("env") or () if v.get("name") != VISIBLE), {"name": VISIBLE, "value": seen}]
        return _sees_all({**container, "env": env}, kind)

    its = {each: [*map(of_it, ask.pod["spec"].get(each) or ())] for each in ("containers", "initContainers")}
    labels = {**ask.pod["metadata"]["labels"], names.SERVER: "single", names.INSTANCE: instance}
    annotations = {**ask.pod["metadata"]["annotations"], names.ACCELERATORS: seen}
    gates = [*(ask.pod["spec"].get("schedulingGates") or ()), {"name": names.GATE}]
    spec = {**ask.pod["spec"], **_without_empty(its), "schedulingGates": gates}
    spec.pop("restartPolicy", None)  # a Job's: beside a container that stays, an engine that ended would for ever
    return _pod(name, labels, annotations, spec, node)


def pool(template: Mapping[str, Any], node: str, name: str, kind: str, taint: str = "") -> Object:
    """The pod of a node's pool, from the controller's template (`k8s/dual_pods`)."""
    meta, spec = template.get("metadata") or {}, dict(template["spec"])
    if taint:
        spec["tolerations"] = [*(spec.get("tolerations") or ()), {"key": taint, "operator": "Exists"}]
    spec["containers"] = [_sees_all(container, kind) for container in spec["containers"]]
    labels = {**(meta.get("labels") or {}), names.SERVER: "pool"}
    return _pod(name, labels, dict(meta.get("annotations") or {}), spec, node)


def _pod(name: str, labels: Object, annotations: Object, spec: Object, node: str) -> Object:
    terms = [{"matchExpressions": [{"key": _WHERE, "operator": "In", "values": [node]}]}]
    pinned = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}}
    meta = {"name": name, "labels": labels, "annotations": annotations, "finalizers": [names.FINALIZER]}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": {**spec, "affinity": pinned}}
