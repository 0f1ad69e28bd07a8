"""Probes and lifecycle hooks: ports that no container declares, a start that waits for itself, hooks that outlast the
pod's grace; and what a real API server refused in the recorded cases.
"""

from collections.abc import Iterator

from .node import Node
from .pods import Container, Pod, Role

PROBES = ("startupProbe", "livenessProbe", "readinessProbe")
_PORTS = ("httpGet", "tcpSocket", "grpc")


def check(pod: Pod) -> None:
    for container in pod.containers:
        node = container.node
        if container.role is Role.INIT:
            for key in (*PROBES, "lifecycle"):
                if node[key]:
                    node[key].error("of the init containers only a native sidecar may have it (restartPolicy: Always)")
            continue
        for kind, probe in container.probes():
            _probe(pod, container, kind, probe)
        for hook in ("postStart", "preStop"):
            if node.at("lifecycle", hook):
                _hook(pod, container, node.at("lifecycle", hook))


def _probe(pod: Pod, container: Container, kind: str, probe: Node) -> None:
    _handler(probe, ("exec", *_PORTS))
    if kind != "readinessProbe" and probe["successThreshold"].number not in (None, 0, 1):
        probe["successThreshold"].error(f"it must be 1 for a {kind}")
    grace = probe["terminationGracePeriodSeconds"]
    if grace and kind == "readinessProbe":
        grace.error("a readinessProbe ends nothing, so it has none")
    elif grace.number is not None and grace.number > pod.grace_s:
        grace.warn(f"it is longer than the pod's own ({pod.grace_s} s)")
    for number, port in _ports(container, probe):
        _reachable(pod, container, kind, number, port)


def _handler(node: Node, allowed: tuple[str, ...]) -> None:
    given = [key for key in allowed if node[key]]
    if not given:
        node.error(f"one of {', '.join(allowed)} has to be given")
    for key in given[1:]:
        node[key].error(f"there may be one handler, and there is {given[0]} already")


def _ports(container: Container, handler: Node) -> Iterator[tuple[int | None, Node]]:
    """The port that a probe or hook asks: kubelet looks a name up in the container itself."""
    for key in _PORTS:
        port = handler.at(key, "port")
        if port.number is not None:
            yield port.number, port
        elif handler[key]:
            named = [number for number, name, _ in container.ports() if name == port.text]
            yield (named[0] if named else None), port


def _reachable(pod: Pod, container: Container, kind: str, number: int | None, port: Node) -> None:
    if number is None:
        there = ", ".join(name for _, name, _ in container.ports() if name) or "none"
        port.error(f"the container declares no port {port.text!r}; it has: {there}")
        return
    if any(number == own for own, _, _ in container.ports()):
        return
    owners = [other for other in pod.lasting for own, _, _ in other.ports() if own == number]
    if not owners:
        port.error(f"no container of this pod declares port {number}")
    elif kind == "startupProbe" and container.role is Role.SIDECAR and owners[0].place > container.place:
        port.error(
            f"port {number} is {owners[0].name}'s, which starts only when this probe has passed: the pod never starts"
        )
    else:
        port.warn(f"port {number} is {owners[0].name}'s: the probe says nothing about {container.name}")


def _hook(pod: Pod, container: Container, hook: Node) -> None:
    _handler(hook, ("exec", "httpGet", "tcpSocket", "sleep"))
    sleep = hook.at("sleep", "seconds")
    if sleep.number is not None and not 0 <= sleep.number <= pod.grace_s:
        sleep.error(f"{sleep.number} must be between 0 and the pod's terminationGracePeriodSeconds, {pod.grace_s}")
    if hook["tcpSocket"]:
        hook["tcpSocket"].error("kubelet has no such hook: it fails when it is called")
    for number, port in _ports(container, hook):
        _reachable(pod, container, "hook", number, port)
