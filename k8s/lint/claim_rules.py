"""Resource claims and their templates: what they ask for, and what a container may name of it.

Beyond the API: a sharing stanza of NVIDIA's driver, which is off unless it was turned on there.
"""

import re
from collections.abc import Iterator

from .node import Node
from .objects import one_of

KNOWN_CLASSES = {
    "gpu.nvidia.com", "mig.nvidia.com", "vfio.gpu.nvidia.com", "compute-domain-daemon.nvidia.com",
    "compute-domain-default-channel.nvidia.com",
}  # fmt: skip
_OPENS = {")": "(", "]": "[", "}": "{"}


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
    for spec in claim_specs(root):
        requests = list(spec.at("devices", "requests").items())
        if not requests:
            spec["devices"].error("the claim asks for nothing: requests are missing")
        for request in requests:
            exactly, first = request["exactly"], list(request["firstAvailable"].items())
            if bool(exactly) == bool(first):
                request.error("exactly one of exactly and firstAvailable has to be given")
            for wanted in ([exactly] if exactly else []) + first:
                one_of(wanted["allocationMode"], "ExactCount", "All")
                if wanted["count"].number is not None and wanted["count"].number <= 0:
                    wanted["count"].error("it must be greater than zero")
                for selector in wanted["selectors"].items():
                    _expression(selector.at("cel", "expression"))
        for config in spec.at("devices", "config").items():
            sharing = config.at("opaque", "parameters", "sharing")
            if sharing:
                sharing.warn(
                    "time slicing and MPS are alpha in NVIDIA's driver and off unless turned on there: the claim "
                    "fails. Containers that name one claim share its GPUs without it"
                )


def _expression(expression: Node) -> None:
    """Only that its brackets and quotes are closed: the rest of CEL is for the API server to say."""
    if not expression.text:
        expression.error("it is empty")
    plain = re.sub(r"'(\\.|[^'\\\n])*'|\"(\\.|[^\"\\\n])*\"", "", expression.text)
    open_: list[str] = []
    for mark in re.findall(r"[][(){}'\"]", plain):
        if mark in "([{":
            open_.append(mark)
        elif mark in "'\"" or not open_ or open_.pop() != _OPENS[mark]:
            expression.error(f"this is no CEL: {mark} has nothing that belongs to it")
            return
    if open_:
        expression.error(f"this is no CEL: {open_[-1]} is never closed")
