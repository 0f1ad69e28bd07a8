"""Resource claims and their templates: from the API's validation of resource.k8s.io/v1.

Beyond the API: a sharing stanza of NVIDIA's driver, which is off unless somebody turned it on; a class nobody knows.
"""

import re
from collections.abc import Iterator

from . import cel, formats
from .node import Node
from .objects import complain, one_of

MOST = 32
CEL_BYTES_MAX = 10 << 10
KNOWN_CLASSES = {
    "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com", "compute-domain-daemon.nvidia.com",
    "compute-domain-default-channel.nvidia.com",
}  # fmt: skip


def claim_specs(root: Node) -> Iterator[Node]:
    """The specification of a claim, or of the claims that a template makes."""
    if not root["apiVersion"].text.startswith("resource.k8s.io/"):
        return
    if root["kind"].text == "ResourceClaim":
        yield root["spec"]
    elif root["kind"].text == "ResourceClaimTemplate":
        yield root.at("spec", "spec")


def request_names(spec: Node) -> set[str]:
    """What a container may name: a request, or REQUEST/SUBREQUEST."""
    found = set()
    for request in spec.at("devices", "requests").items():
        found.add(request["name"].text)
        found |= {f"{request['name'].text}/{sub['name'].text}" for sub in request["firstAvailable"].items()}
    return found


def check(root: Node) -> None:
    for selector in root.at("spec", "selectors").items() if root["kind"].text == "DeviceClass" else ():
        _expression(selector.at("cel", "expression"))
    for spec in claim_specs(root):
        devices = spec["devices"]
        requests = list(devices["requests"].items())
        if not requests:
            devices.error("the claim asks for nothing: requests are missing")
        for key in ("requests", "constraints", "config"):
            if len(list(devices[key].items())) > MOST:
                devices[key].error(f"there may be {MOST} at most")
        _unique(requests)
        for request in requests:
            _request(request)
        names = request_names(spec)
        for constraint in devices["constraints"].items():
            _constraint(constraint, names)
        for config in devices["config"].items():
            _config(config, names)


def _unique(requests: list[Node]) -> None:
    seen: set[str] = set()
    for request in requests:
        name = request["name"]
        complain(name, formats.dns_label(name.text))
        if name.text in seen:
            name.error(f"{name.text} stands twice")
        seen.add(name.text)


def _request(request: Node) -> None:
    exactly, first = request["exactly"], list(request["firstAvailable"].items())
    if bool(exactly) == bool(first):
        request.error("exactly one of exactly and firstAvailable has to be given")
    if len(first) > 8:
        request["firstAvailable"].error("there may be 8 at most")
    _unique(first)
    for wanted in ([exactly] if exactly else []) + first:
        _devices(wanted)


def _devices(wanted: Node) -> None:
    device_class, mode, count = wanted["deviceClassName"], wanted["allocationMode"], wanted["count"]
    if not device_class.text:
        wanted.error("deviceClassName is missing")
    else:
        complain(device_class, formats.dns_subdomain(device_class.text))
    if one_of(mode, ("ExactCount", "All")):
        if mode.text == "All" and count.number:
            count.error("there may be none with allocationMode: All")
        elif mode.text != "All" and count.number is not None and count.number <= 0:
            count.error("it must be greater than zero")
    if len(list(wanted["selectors"].items())) > MOST:
        wanted["selectors"].error(f"there may be {MOST} at most")
    for selector in wanted["selectors"].items():
        if not selector["cel"]:
            selector.error("cel is missing")
        _expression(selector.at("cel", "expression"))
    if wanted["adminAccess"].flag:
        wanted["adminAccess"].warn("only in a namespace with the label resource.kubernetes.io/admin-access=true")
    for toleration in wanted["tolerations"].items():
        if toleration["key"].text:
            complain(toleration["key"], formats.qualified_name(toleration["key"].text))
        one_of(toleration["operator"], ("Equal", "Exists"))
        if toleration["operator"].text == "Exists" and toleration["value"].text:
            toleration["value"].error("with operator Exists there may be no value")
        if not toleration["key"].text and toleration["operator"].text != "Exists":
            toleration.error("without a key operator has to be Exists")
        one_of(toleration["effect"], ("NoSchedule", "NoExecute"))


def _expression(expression: Node) -> None:
    if not expression.text:
        expression.error("it is empty")
        return
    if len(expression.text) > CEL_BYTES_MAX:
        expression.error(f"it has more than {CEL_BYTES_MAX} bytes")
    complain(expression, cel.problem(expression.text))


def _constraint(constraint: Node, names: set[str]) -> None:
    given = [key for key in ("matchAttribute", "distinctAttribute") if constraint[key].text]
    if len(given) != 1:
        constraint.error("matchAttribute is missing")
    for key in given:
        domain, slash, name = constraint[key].text.partition("/")
        if not slash or formats.dns_subdomain(domain) or not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]{0,31}", name):
            constraint[key].error(f"{constraint[key].text!r} is no attribute such as gpu.nvidia.com/uuid")
    _names_requests(constraint["requests"], names)


def _config(config: Node, names: set[str]) -> None:
    _names_requests(config["requests"], names)
    opaque = config["opaque"]
    if not opaque:
        config.error("opaque is missing")
        return
    if not opaque["driver"].text:
        opaque.error("driver is missing")
    else:
        complain(opaque["driver"], formats.dns_subdomain(opaque["driver"].text))
    if not isinstance(opaque["parameters"].value, dict):
        opaque["parameters"].error("parameters have to be an object")
    if opaque.at("parameters", "sharing"):
        opaque.at("parameters", "sharing").warn(
            "time slicing and MPS are alpha in NVIDIA's driver and off unless turned on there: the claim fails. "
            "Containers that name one claim share its GPUs without it"
        )


def _names_requests(requests: Node, names: set[str]) -> None:
    for each in requests.items():
        if each.text not in names:
            each.error(f"the claim has no request {each.text!r}; it has: {', '.join(sorted(names))}")
