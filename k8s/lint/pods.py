"""A pod and its containers as the rules see them. No rules here: only what stands where.

What this file may not do: report anything.
"""

import enum
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property

from .node import Document, Node

TEMPLATES = {
    "Deployment": ("spec", "template"),
    "StatefulSet": ("spec", "template"),
    "DaemonSet": ("spec", "template"),
    "ReplicaSet": ("spec", "template"),
    "ReplicationController": ("spec", "template"),
    "Job": ("spec", "template"),
    "CronJob": ("spec", "jobTemplate", "spec", "template"),
}


class Role(enum.Enum):
    """How kubelet runs a container."""

    INIT = "init container"
    SIDECAR = "native sidecar"
    MAIN = "container"


@dataclass(frozen=True, eq=False)
class Container:
    node: Node
    role: Role
    place: int
    """In kubelet's order of starts: init containers and sidecars one after the other, then all main ones together."""

    @property
    def name(self) -> str:
        return self.node["name"].text

    @cached_property
    def environment(self) -> dict[str, str]:
        """What it is told in so many words; the last of a name counts."""
        return {each["name"].text: each["value"].text for each in self.node["env"].items() if not each["valueFrom"]}

    @cached_property
    def words(self) -> list[str]:
        return self.node["command"].texts() + self.node["args"].texts()

    def ports(self) -> Iterator[tuple[int, str, Node]]:
        """(number, name, where) of each declared port."""
        for port in self.node["ports"].items():
            number = port["containerPort"].number
            if number is not None:
                yield number, port["name"].text, port

    def probes(self) -> Iterator[tuple[str, Node]]:
        for kind in ("startupProbe", "livenessProbe", "readinessProbe"):
            if self.node[kind]:
                yield kind, self.node[kind]

    def mounts(self) -> Iterator[Node]:
        yield from self.node["volumeMounts"].items()


@dataclass(frozen=True, eq=False)
class Pod:
    """A pod, or the template of one."""

    document: Document
    metadata: Node
    spec: Node
    kind: str
    """What object it is in: Pod, Deployment, ..."""

    @property
    def namespace(self) -> str:
        return self.document.root.at("metadata", "namespace").text

    @property
    def labels(self) -> dict[str, str]:
        return self.metadata["labels"].mapping()

    @property
    def replicas(self) -> int:
        if self.kind in ("Deployment", "StatefulSet", "ReplicaSet", "ReplicationController"):
            number = self.document.root.at("spec", "replicas").number
            return 1 if number is None else number
        return 1

    @property
    def grace_s(self) -> int:
        number = self.spec["terminationGracePeriodSeconds"].number
        return 30 if number is None else number

    @cached_property
    def containers(self) -> list[Container]:
        found = []
        for place, node in enumerate(self.spec["initContainers"].items()):
            role = Role.SIDECAR if node["restartPolicy"].text == "Always" else Role.INIT
            found.append(Container(node, role, place))
        place = len(found)
        return found + [Container(node, Role.MAIN, place) for node in self.spec["containers"].items()]

    @cached_property
    def lasting(self) -> list[Container]:
        """Those that run together: sidecars and main containers."""
        return [container for container in self.containers if container.role is not Role.INIT]

    @cached_property
    def volumes(self) -> dict[str, Node]:
        return {volume["name"].text: volume for volume in self.spec["volumes"].items()}


def pods(document: Document) -> Iterator[Pod]:
    """The pods that this object is, or makes."""
    root = document.root
    kind = root["kind"].text
    if kind == "Pod":
        yield Pod(document, root["metadata"], root["spec"], kind)
    elif kind in TEMPLATES:
        template = root.at(*TEMPLATES[kind])
        yield Pod(document, template["metadata"], template["spec"], kind)
