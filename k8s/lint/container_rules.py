"""Containers: names, images, ports, environment, resources. From the API's validateContainerCommon.

Beyond the API: two containers of a pod on one port, `$(NAME)` of nothing, a GPU booked twice.
"""

import re
from fractions import Fraction

from . import formats
from .formats import NoQuantity, quantity
from .node import Node
from .objects import complain, one_of
from .pods import Container, Pod, Role

_FIELDS = (
    "metadata.name", "metadata.namespace", "metadata.uid", "spec.nodeName", "spec.serviceAccountName",
    "status.hostIP", "status.hostIPs", "status.podIP", "status.podIPs",
)  # fmt: skip
_OVERCOMMIT = ("cpu", "memory", "ephemeral-storage")
_RESOURCES = tuple(f"{kind}.{name}" for kind in ("limits", "requests") for name in _OVERCOMMIT)


def check(pod: Pod) -> None:
    names: set[str] = set()
    for container in pod.containers:
        node = container.node
        complain(node["name"], formats.dns_label(container.name))
        if container.name in names:
            node["name"].error(f"{container.name} is the name of two containers of this pod")
        names.add(container.name)
        _image(node)
        one_of(node["imagePullPolicy"], ("Always", "IfNotPresent", "Never"))
        one_of(node["terminationMessagePolicy"], ("File", "FallbackToLogsOnError"))
        _restart(container)
        _ports(container)
        _environment(container)
        _resources(pod, container)
        if node["stdinOnce"].flag and not node["stdin"].flag:
            node["stdinOnce"].warn("without stdin it does nothing")
        for each in (node["workingDir"], node["terminationMessagePath"]):
            if each.text and not each.text.startswith("/"):
                each.error(f"{each.text!r} is no absolute path")
    _ports_of_all(pod)


def _image(node: Node) -> None:
    image = node["image"]
    if not image.text:
        image.error("it is missing")
    elif image.text != image.text.strip():
        image.error("there is space around it")
    else:
        complain(image, formats.image(image.text))
        if formats.tag(image.text) == "latest":
            image.warn("it is :latest: two nodes may run different ones, and nobody can say which; name a version")


def _restart(container: Container) -> None:
    node, policy = container.node, container.node["restartPolicy"]
    if not policy and node["restartPolicyRules"].value:
        node["restartPolicyRules"].error("rules need a restartPolicy beside them")
    if not one_of(policy, ("Always", "OnFailure", "Never")):
        return
    if policy and container.role is Role.MAIN:
        policy.error(
            "a main container with a restartPolicy of its own is refused before Kubernetes 1.35, and from then on ends "
            "otherwise than the rest of its pod; the pod has a restartPolicy"
        )
    if policy and container.role is Role.INIT:
        policy.error(f"an init container with {policy.text} is refused before 1.35; for a native sidecar it is Always")


def _ports(container: Container) -> None:
    names: set[str] = set()
    for port in container.node["ports"].items():
        name = port["name"]
        if name.text:
            complain(name, formats.port_name(name.text))
            if name.text in names:
                name.error(f"{name.text} is the name of two ports of this container")
            names.add(name.text)
        for key in ("containerPort", "hostPort"):
            check_port_number(port[key])
        if not port["containerPort"]:
            port.error("containerPort is missing")
        one_of(port["protocol"], ("TCP", "UDP", "SCTP"))
        if port["hostIP"].text:
            complain(port["hostIP"], formats.address(port["hostIP"].text))


def check_port_number(node: Node) -> None:
    if node.number is not None and not 1 <= node.number <= 65535:
        node.error(f"{node.number} must be between 1 and 65535")


def _ports_of_all(pod: Pod) -> None:
    """Those who run together share one network namespace."""
    taken: dict[tuple[int, str], Container] = {}
    named: dict[str, Container] = {}
    hosts: set[tuple[int, str, str]] = set()
    for container in pod.lasting:
        for number, name, port in container.ports():
            protocol = _protocol(port)
            other = taken.setdefault((number, protocol), container)
            if other is not container:
                port["containerPort"].error(f"{other.name} has port {number}, too: they share one network namespace")
            else:
                same = [each for each in container.ports() if each[0] == number and _protocol(each[2]) == protocol]
                if len(same) > 1 and same[0][2].path != port.path:
                    port["containerPort"].warn(f"{number} is declared twice")
            if name and named.setdefault(name, container) is not container:
                port["name"].warn(f"{named[name].name} has a port {name}, too: a Service sends to the first one")
            host = port["hostPort"].number
            if host:
                key = (host, protocol, port["hostIP"].text)
                if key in hosts:
                    port["hostPort"].error(f"{host} is the hostPort of two ports")
                hosts.add(key)
            if pod.spec["hostNetwork"].flag and host not in (None, number):
                port["hostPort"].error("with hostNetwork it has to be the containerPort")


def _protocol(port: Node) -> str:
    return port["protocol"].text or "TCP"


def _environment(container: Container) -> None:
    known: set[str] = set()
    whole = bool(container.node["envFrom"].value)  # what comes from there isn't known here
    for each in container.node["env"].items():
        name, source = each["name"], each["valueFrom"]
        complain(name, formats.environment_name(name.text))
        if name.text in known:
            name.warn(f"{name.text} is set twice: the last one counts")
        if source:
            _source(each, source)
        elif not whole:
            _references(each["value"], known, "")
        known.add(name.text)
    for each in container.node["envFrom"].items():
        if each["prefix"].text:
            complain(each["prefix"], formats.environment_name(each["prefix"].text))
        given = [key for key in ("configMapRef", "secretRef") if each[key]]
        if len(given) != 1:
            each.error("exactly one of configMapRef and secretRef has to be given")
        for key in given:
            complain(each[key]["name"], formats.dns_subdomain(each[key]["name"].text))
    for key in ("command", "args"):
        for word in container.node[key].items():
            if not whole:
                _references(word, known, "the container's env has no such variable: ")


def _references(node: Node, known: set[str], why: str) -> None:
    for escape, name in re.findall(r"\$(\$?)\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", node.text):
        if not escape and name not in known:
            node.warn(f"$({name}) stays as it is: {why or 'no variable of that name stands before it'}".rstrip(": "))


def _source(each: Node, source: Node) -> None:
    kinds = [key for key, _ in source.fields()]
    if each["value"].text:
        source.error("there may be value or valueFrom, and not both")
    if len(kinds) != 1:
        source.error("exactly one of fieldRef, resourceFieldRef, configMapKeyRef and secretKeyRef has to be given")
    path = source.at("fieldRef", "fieldPath")
    if source["fieldRef"]:
        version = source.at("fieldRef", "apiVersion")
        if version and version.text != "v1":
            version.error(f"{version.text!r} is unknown; allowed: v1")
        subscript = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path.text)
        if subscript:
            complain(path, formats.qualified_name(subscript[2]))
        elif path.text not in _FIELDS:
            path.error(
                f"{path.text!r} can't be had as a variable; there are {', '.join(_FIELDS)}, metadata.labels['KEY']"
            )
    resource = source["resourceFieldRef"]
    if resource:
        name = resource["resource"].text
        if name not in _RESOURCES and not re.match(r"(limits|requests)\.hugepages-", name):
            resource["resource"].error(f"{name!r} is unknown; there are {', '.join(_RESOURCES)}")
        divisor = resource["divisor"]
        allowed = ("1m", "1", "0") if name.endswith(".cpu") else _DIVISORS
        if divisor and str(divisor.value) not in allowed:
            divisor.error(f"{divisor.value} can't divide {name}; allowed: {', '.join(allowed)}")
    for key in ("configMapKeyRef", "secretKeyRef"):
        if source[key]:
            complain(source[key]["name"], formats.dns_subdomain(source[key]["name"].text))
            complain(source[key]["key"], formats.config_key(source[key]["key"].text))


_DIVISORS = ("1", "0", *(f"1{unit}" for unit in ("k", "M", "G", "T", "P", "E", "Ki", "Mi", "Gi", "Ti", "Pi", "Ei")))


def _resources(pod: Pod, container: Container) -> None:
    resources = container.node["resources"]
    limits = {name: _amount(name, node) for name, node in resources["limits"].fields()}
    limits |= dict.fromkeys(resources["limits"].nulls(), Fraction(0))
    for name, node in resources["requests"].fields():
        wanted, limit = _amount(name, node), limits.get(name)
        if wanted is not None and limit is not None and wanted > limit:
            node.error(f"{node.value} is more than the limit, {resources.at('limits', name).value}")
        if name not in _OVERCOMMIT and wanted is not None and wanted != limit:
            node.error(f"request and limit of {name} have to be the same")
    claims: set[tuple[str, str]] = set()
    declared = {each["name"].text for each in pod.spec["resourceClaims"].items()}
    for claim in resources["claims"].items():
        name, key = claim["name"].text, (claim["name"].text, claim["request"].text)
        if name not in declared:
            there = ", ".join(sorted(declared)) or "none"
            claim["name"].error(f"{name!r} isn't among the pod's resourceClaims; there are: {there}")
        if key in claims:
            claim.error(f"{'/'.join(part for part in key if part)} stands twice")
        claims.add(key)
    whole_gpus = [name for name in limits if name.endswith(".com/gpu")]
    for name in whole_gpus:
        if declared:
            resources.at("limits", name).warn(
                f"{name} beside a claim: where the device plugin and DRA are on one node, a GPU is booked twice"
            )
    seen: set[str] = set()
    for each in container.node["resizePolicy"].items():
        one_of(each["resourceName"], ("cpu", "memory"))
        one_of(each["restartPolicy"], ("NotRequired", "RestartContainer"))
        if each["resourceName"].text in seen:
            each.error(f"{each['resourceName'].text} stands twice")
        seen.add(each["resourceName"].text)


def _amount(name: str, node: Node) -> Fraction | None:
    """A resource's amount in base units; None if it isn't one."""
    complain(node, formats.qualified_name(name))
    if "/" not in name and name not in _OVERCOMMIT and not name.startswith("hugepages-"):
        node.error(
            f"Kubernetes has no resource {name!r}; there are {', '.join(_OVERCOMMIT)}, hugepages-SIZE, DOMAIN/NAME"
        )
    try:
        amount = quantity(node.value)
    except NoQuantity as error:
        node.error(str(error))
        return None
    if amount < 0:
        node.error(f"{node.value} must not be negative")
    if name == "cpu" and (amount * 1000).denominator != 1:
        node.error(f"{node.value} is finer than a thousandth of a processor")
    if name == "memory" and amount.denominator != 1:
        node.warn(f"{node.value} isn't a whole number of bytes: M or Mi is meant?")
    if "/" in name and amount.denominator != 1:
        node.error(f"{node.value}: only whole numbers of {name} can be had")
    return amount
