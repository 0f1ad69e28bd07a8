"""A pod, its containers, their ports, variables, devices and volumes.

Two kinds of rules: what a real API server refused in the recorded cases (`tests/k8s/cases.diff`), so that it is known
without a server; and what a server takes and no cluster can run. Everything else of the API's validation is the
server's own (`server.py`). Probes are in `probe_rules.py`.
"""

import re
from fractions import Fraction

from . import formats, probe_rules
from .formats import NoQuantity, quantity
from .node import Node
from .objects import complain, matches, one_of
from .pods import Container, Pod, Role

_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
    "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
_SOURCES = ("resourceClaimName", "resourceClaimTemplateName")


def check(pod: Pod) -> None:
    spec = pod.spec
    if not spec["containers"].value:
        (spec if spec else pod.document.root).error("a pod needs at least one container")
    grace = spec["terminationGracePeriodSeconds"]
    if grace.number is not None and grace.number < 0:
        grace.error(f"{grace.number}: the API server takes it and makes it 1 second")
    elif grace.number == 0:
        grace.error("with 0 nothing is ended in order: every process is killed at once")
    if spec["shareProcessNamespace"].flag and spec["hostPID"].flag:
        spec["shareProcessNamespace"].error("shareProcessNamespace and hostPID can't both be on")
    for each in spec["tolerations"].items():
        one_of(each["operator"], "Equal", "Exists")
        one_of(each["effect"], "NoSchedule", "PreferNoSchedule", "NoExecute")
    _makes(pod)
    _unique(list(spec["resourceClaims"].items()), "is declared twice")
    for claim in spec["resourceClaims"].items():
        if len([key for key in _SOURCES if claim[key].text]) != 1:
            claim.error(f"exactly one of {' and '.join(_SOURCES)} has to be given")
    _unique([container.node for container in pod.containers], "is the name of two containers of this pod")
    for container in pod.containers:
        _container(pod, container)
    _ports_of_all(pod)
    _volumes(pod)
    probe_rules.check(pod)


def _makes(pod: Pod) -> None:
    """The object that makes it: a Deployment most often."""
    root = pod.document.root
    spec = root["spec"]
    if pod.kind not in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"):
        return
    one_of(pod.spec["restartPolicy"], "Always")
    if spec["selector"].value and not matches(spec["selector"], pod.labels):
        pod.metadata["labels"].error(f"the selector doesn't match the template's labels, {pod.labels}")
    if pod.kind == "Deployment" and one_of(spec.at("strategy", "type"), "RollingUpdate", "Recreate"):
        rolling = spec.at("strategy", "rollingUpdate")
        if spec.at("strategy", "type").text == "Recreate" and rolling:
            rolling.error("there may be none with the type Recreate")
        if all(str(rolling[key].value).rstrip("%") == "0" for key in ("maxSurge", "maxUnavailable")):
            rolling["maxUnavailable"].error("it may not be 0 when maxSurge is 0: nothing could ever be replaced")


def _unique(named: list[Node], why: str) -> None:
    seen: set[str] = set()
    for each in named:
        name = each["name"]
        complain(name, formats.dns_label(name.text))
        if name.text in seen:
            name.error(f"{name.text} {why}")
        seen.add(name.text)


# -- one container -----------------------------------------------------------------------------------------------------


def _container(pod: Pod, container: Container) -> None:
    node = container.node
    image, policy = node["image"], node["restartPolicy"]
    if not image.text.strip():
        image.error("it is missing")
    elif (image.text.rpartition("/")[2].partition(":")[2] or "latest") == "latest":
        image.warn("it is :latest: two nodes may run different ones, and nothing says which; name a version")
    one_of(node["imagePullPolicy"], "Always", "IfNotPresent", "Never")
    if one_of(policy, "Always", "OnFailure", "Never") and policy and container.role is Role.MAIN:
        policy.error(
            "a main container with a restartPolicy of its own is refused before Kubernetes 1.35, and from then on ends "
            "otherwise than the rest of its pod; the pod has a restartPolicy"
        )
    elif policy and container.role is Role.INIT:
        policy.error(f"an init container with {policy.text} is refused before 1.35; for a native sidecar it is Always")
    own, outer = node["securityContext"], pod.spec["securityContext"]
    non_root = own["runAsNonRoot"] or outer["runAsNonRoot"]
    user = (own["runAsUser"] or outer["runAsUser"]).number
    if non_root.flag and user == 0:
        non_root.error("runAsNonRoot with runAsUser 0: kubelet would never start it")
    elif non_root.flag and user is None:
        non_root.warn("without runAsUser it depends on the image: kubelet refuses one whose user is a name, or root")
    names: set[str] = set()
    for port in node["ports"].items():
        check_port_number(port["containerPort"])
        if port["name"].text in names:
            port["name"].error(f"{port['name'].text} is the name of two ports of this container")
        names |= {port["name"].text} - {""}
    _environment(container)
    _resources(pod, container)


def check_port_number(node: Node) -> None:
    if node.number is not None and not 1 <= node.number <= 65535:
        node.error(f"{node.number} must be between 1 and 65535")


def _environment(container: Container) -> None:
    known: set[str] = set()
    whole = bool(container.node["envFrom"].value)  # what comes from there isn't known here
    for each in container.node["env"].items():
        name, source = each["name"], each["valueFrom"]
        if name.text in known:
            name.warn(f"{name.text} is set twice: the last one counts")
        if source:
            _source(each, source)
        elif not whole:
            _references(each["value"], known, "no variable of that name stands before it")
        known.add(name.text)
    for key in ("command", "args"):
        for word in container.node[key].items():
            if not whole:
                _references(word, known, "the container's env has no such variable")


def _references(node: Node, known: set[str], why: str) -> None:
    for escape, name in re.findall(r"\$(\$?)\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", node.text):
        if not escape and name not in known:
            node.warn(f"$({name}) stays as it is: {why}")


def _source(each: Node, source: Node) -> None:
    if each["value"].text:
        source.error("there may be value or valueFrom, and not both")
    path = source.at("fieldRef", "fieldPath")
    subscript = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path.text)
    if source["fieldRef"] and not subscript and path.text not in _FIELDS:
        path.error(f"{path.text!r} can't be had as a variable; there are {', '.join(_FIELDS)}, metadata.labels['KEY']")


def _resources(pod: Pod, container: Container) -> None:
    resources = container.node["resources"]
    limits = {name: _amount(name, node) for name, node in resources["limits"].fields()}
    for name, node in resources["requests"].fields():
        wanted, limit = _amount(name, node), limits.get(name)
        if wanted is not None and limit is not None and wanted > limit:
            node.error(f"{node.value} is more than the limit, {resources.at('limits', name).value}")
    declared = {each["name"].text for each in pod.spec["resourceClaims"].items()}
    for claim in resources["claims"].items():
        if claim["name"].text not in declared:
            there = ", ".join(sorted(declared)) or "none"
            claim["name"].error(f"{claim['name'].text!r} isn't among the pod's resourceClaims; there are: {there}")
    for name in limits:
        if declared and name.endswith(".com/gpu"):
            resources.at("limits", name).warn(
                f"{name} beside a claim: where the device plugin and DRA are on one node, a GPU is booked twice"
            )


def _amount(name: str, node: Node) -> Fraction | None:
    """A resource's amount in base units; None if it isn't one."""
    try:
        amount = quantity(node.value)
    except NoQuantity as error:
        node.error(str(error))
        return None
    if amount < 0:
        node.error(f"{node.value} must not be negative")
    if name == "memory" and amount.denominator != 1:
        node.warn(f"{node.value} isn't a whole number of bytes: M or Mi is meant?")
    return amount


# -- all of them -------------------------------------------------------------------------------------------------------


def _ports_of_all(pod: Pod) -> None:
    """Containers that run together share one network namespace."""
    taken: dict[tuple[int, str], Container] = {}
    named: dict[str, Container] = {}
    for container in pod.lasting:
        for number, name, port in container.ports():
            other = taken.setdefault((number, port["protocol"].text or "TCP"), container)
            if other is not container:
                port["containerPort"].error(f"{other.name} has port {number}, too: they share one network namespace")
            if name and named.setdefault(name, container) is not container:
                port["name"].warn(f"{named[name].name} has a port {name}, too: a Service sends to the first one")


def _volumes(pod: Pod) -> None:
    _unique(list(pod.spec["volumes"].items()), "is declared twice")
    used = {mount["name"].text for container in pod.containers for mount in container.mounts()}
    for name, volume in pod.volumes.items():
        if name not in used:
            volume.warn(f"no container mounts {name}")
        if len(dict(volume.fields())) == 1:
            volume.warn("no source is given: the API server makes it an emptyDir")
        source = volume["emptyDir"]
        medium, limit = source["medium"], source["sizeLimit"]
        if medium.text and not re.fullmatch(r"Memory|HugePages(-[0-9]+(Ki|Mi|Gi))?", medium.text):
            medium.error(
                f"{medium.text!r} is unknown to kubelet; allowed: Memory, HugePages, HugePages-2Mi, or none: disk"
            )
        if limit:
            _amount("sizeLimit", limit)
        elif medium.text == "Memory":
            source.warn("memory without a sizeLimit: what fills it fills the node (or the container's limit)")
    for container in pod.containers:
        _mounts(pod, container)


def _mounts(pod: Pod, container: Container) -> None:
    paths: set[str] = set()
    for mount in container.mounts():
        name, path = mount["name"], mount["mountPath"]
        if name.text not in pod.volumes:
            name.error(f"the pod has no volume {name.text!r}; it has: {', '.join(sorted(pod.volumes)) or 'none'}")
        if path.text and not path.text.startswith("/"):
            path.warn(f"{path.text!r} is no absolute path: kubelet takes it for /{path.text}")
        elif path.text == "/":
            path.error("nothing can be mounted over the container's root")
        plain = path.text.rstrip("/") or path.text
        if plain in paths:
            path.error(f"{path.text} is mounted twice in this container")
        paths.add(plain)
        for other in container.mounts():
            above = other["mountPath"].text.rstrip("/")
            if other["readOnly"].flag and path.text.startswith(above + "/"):
                path.warn(f"it lies in {above}, which is read-only: the directory has to be there already")


def uses_of(pod: Pod, claim: str) -> list[Node]:
    """Where containers name this claim of the pod."""
    return [
        each
        for container in pod.containers
        for each in container.node.at("resources", "claims").items()
        if each["name"].text == claim
    ]
