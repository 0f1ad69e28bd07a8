"""What a pod or a node of the API says, as facts. Pure.

Whatever a user has written is bounded and answered with a sentence (`Requester.wrong`), and never with an exception.
What a server pod is made of stands in `building.py`.
"""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Annotated, Any, TypeVar

import msgspec

from dual_pods.rules import building, names
from dual_pods.rules.facts import Ask, Instance, Memory, Node, Requester, Server, Told
from dual_pods.rules.strategic import BadPatch
from pool.entries import DeviceShown, ModelShown, State

Object = Mapping[str, Any]
T = TypeVar("T")
_MAKING = ("ContainerCreating", "PodInitializing")
_OVER = ("Succeeded", "Failed")
_NOT_UNDERSTOOD = (404, 405, 501)
_Mib = Annotated[int, msgspec.Meta(ge=0, le=1 << 40)]


def is_server(pod: Object) -> bool:
    return names.SERVER in (pod["metadata"].get("labels") or {})


def is_requester(pod: Object) -> bool:
    annotations = pod["metadata"].get("annotations") or {}
    wanted = names.said(annotations, names.SERVER_PATCH) or names.said(annotations, names.CONFIG)
    return wanted is not None and not is_server(pod) and names.said(annotations, names.ROLE) != "runner"


def _condition(status: Object, kind: str) -> Object:
    """Empty where it isn't there."""
    return next((c for c in status.get("conditions") or () if c["type"] == kind), {})


def timestamp(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


def _of_any(pod: Object) -> dict[str, Any]:
    meta, status = pod["metadata"], pod.get("status") or {}
    both = {**(meta.get("annotations") or {}), **(meta.get("labels") or {})}
    marks = {key: value for key, value in both.items() if key.startswith((names.PREFIX, names.OLD_PREFIX))}
    its = {"uid": meta["uid"], "name": meta["name"], "namespace": meta["namespace"], "version": meta["resourceVersion"]}
    restarts = sum(c.get("restartCount", 0) for c in _own(status))
    return {**its, "ip": status.get("podIP") or "", "marks": marks, "restarts": restarts, "why": _why(status)}


def _why(status: Object) -> str:
    """Why it doesn't run: kubelet's words, or the scheduler's."""
    first = [(c.get("name"), c.get("state") or {}) for c in status.get("initContainerStatuses") or ()]
    every = [*(c.get("state") or {} for c in status.get("containerStatuses") or ()), *(state for _, state in first)]
    waiting = [w for w in (s.get("waiting") or {} for s in every) if w.get("reason", _MAKING[0]) not in _MAKING]
    words = [f"{w['reason']} {w.get('message', '')}".strip() for w in (status, *waiting) if w.get("reason")]
    if status.get("phase") == "Pending":
        words += [f"its init container {name} hasn't ended" for name, state in first if "running" in state]
    placed = _condition(status, "PodScheduled")
    words += [f"no node was found for it: {placed.get('message', '')}"] if placed.get("status") == "False" else []
    return "; ".join(words)[:500]


def _own(status: Object, name: str = names.CONTAINER) -> list[Object]:
    """What kubelet says of the container that it is all about."""
    return [c for c in status.get("containerStatuses") or () if c.get("name") == name]


def _runs(status: Object, name: str = names.CONTAINER) -> bool:
    """Whatever the others beside it do: one may have done its work, or fail for ever."""
    return any("running" in (c.get("state") or {}) for c in _own(status, name))


def requester(pod: Object, ask: Callable[[Object], Ask]) -> Requester:
    """`ask` makes of it what is to be run, or raises BadPatch."""
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    annotations = meta["annotations"]
    container = next((c for c in spec["containers"] if c["name"] == names.CONTAINER), None)
    wanted, wrong, port, ready = None, "", names.ADMIN_PORT, _condition(status, "Ready")
    since = ready.get("lastTransitionTime") if ready.get("status") == "False" else None
    try:
        if names.said(annotations, names.SERVER_PATCH) is None:
            raise BadPatch(f"{names.PREFIX}{names.CONFIG} needs FMA's custom resources; give {names.SERVER_PATCH}")
        if container is None:
            raise BadPatch(f"it has no container {names.CONTAINER}")
        port = _admin_port(annotations, container)
        wanted = ask(pod)
    except BadPatch as error:
        wrong = str(error)
    except Exception as error:  # a value of another kind, or a fault of ours: it is this pod's alone
        wrong = f"its {names.SERVER_PATCH} or {names.MODEL} isn't understood: {type(error).__name__}: {error}"[:500]
    return Requester(
        **_of_any(pod),
        node=spec.get("nodeName") or "",
        running=_runs(status),
        leaving="deletionTimestamp" in meta or status.get("phase") in _OVER,
        ready=ready.get("status") == "True",
        unready_since=timestamp(since) if since else 0.0,
        ask=wanted,
        wrong=wrong,
        admin_port=port,
        old=any(key.startswith(names.OLD_PREFIX) for key in annotations),
        created=timestamp(meta["creationTimestamp"]),
    )


def _admin_port(annotations: Mapping[str, str], container: Object) -> int:
    text = names.said(annotations, names.ADMIN_PORT_NAME) or str(names.ADMIN_PORT)
    named = {p.get("name"): p["containerPort"] for p in container.get("ports") or ()}
    port: int = named.get(text) or names.port(text)
    if port:
        return port
    raise BadPatch(f"{names.ADMIN_PORT_NAME} is {text[:80]!r}: neither a port's number nor the name of a port of it")


def node_of(spec: Object) -> str:
    """A server pod's."""
    return building.pinned_to(spec) or spec.get("nodeName") or ""


def server(pod: Object) -> Server:
    meta, spec, status = pod["metadata"], pod["spec"], pod.get("status") or {}
    its = _of_any(pod)
    marks = its["marks"]
    leaving = "deletionTimestamp" in meta
    # A container that is said to have terminated may have been started again since, also as the pod was deleted.
    # Where a node has gone, Kubernetes' collector writes the phase, and knows nothing of the containers.
    is_over = status.get("phase") in _OVER
    says_running = any("running" in (c.get("state") or {}) for c in status.get("containerStatuses") or ())
    ended = (is_over and not says_running) or (leaving and not spec.get("nodeName"))
    container = next((c for c in spec["containers"] if c["name"] == names.CONTAINER), spec["containers"][0])
    try:
        port, probe = building.endpoint(container)
    except BadPatch:  # no controller of ours has made this pod
        port, probe = building.DEFAULT_PORT, (building.DEFAULT_PORT, "/health")
    return Server(
        **its,
        node=node_of(spec),
        pool=marks.get(names.SERVER) == "pool",
        instance=marks.get(names.INSTANCE, ""),
        accelerators=frozenset(filter(None, marks.get(names.ACCELERATORS, "").split(","))),
        running=not is_over and _runs(status, container["name"]),
        leaving=leaving,
        ended=ended,
        gated=any(gate.get("name") == names.GATE for gate in spec.get("schedulingGates") or ()),
        held=names.FINALIZER in (meta.get("finalizers") or ()),
        port=port,
        probe=probe,
        bindings=_written(marks.get(names.BINDINGS, ""), dict[str, str], {}),
        asleep_since=_written(marks.get(names.ASLEEP_SINCE, ""), float, 0.0),
    )


def _written(text: str | bytes, kind: type[T], otherwise: T) -> T:
    """What no controller of ours has written there counts for nothing."""
    try:
        return decoded(text, kind)
    except BadAnswer:
        return otherwise


def node(value: Object, taint: str) -> Node:
    meta, taints = value["metadata"], (value.get("spec") or {}).get("taints") or ()
    ready = _condition(value.get("status") or {}, "Ready").get("status") == "True"
    usable = not taint or any(t.get("key") == taint for t in taints)
    return Node(meta["uid"], meta["name"], ready, usable)


# -- what a pool says --------------------------------------------------------------------------------------------------


class _Pool(msgspec.Struct, frozen=True):
    models: list[ModelShown] = []
    devices: list[DeviceShown] = []
    ports: dict[str, int] = {}
    pool: str = ""
    """`silent`: it hasn't answered its door, and may do yet what it was asked. `away`: its door doesn't hear it."""


class BadAnswer(Exception):
    """What is said isn't understood."""


def told(body: bytes) -> Told:
    instances = {}
    pool = decoded(body, _Pool)
    if pool.pool in ("away", "silent"):
        raise BadAnswer(f"its pool is {pool.pool}, and has said this before, or nothing yet")
    for m in pool.models:
        try:
            used = timestamp(m.last_used) if m.last_used else 0.0
        except ValueError as error:
            raise BadAnswer(f"it isn't understood: {error}") from None
        port, wanted = pool.ports.get(m.name, 0), m.wanted and m.state is State.ASLEEP
        why = "" if m.why == m.state.value else m.why
        more = why, m.bytes, m.asleep_bytes, m.weights, m.parked, used, port, m.weights_name, wanted
        instances[m.name] = Instance(m.name, m.state, frozenset(m.devices), *more)
    memory = {
        d.uuid: Memory(d.total, d.free, d.leased) for d in pool.devices if d.total is not None and d.free is not None
    }
    return Told(instances, memory)


def accelerators(body: bytes) -> tuple[str, ...]:
    found = decoded(body, list[str])
    if not found or not all(name and len(name) <= 128 and name.isprintable() and "," not in name for name in found):
        raise BadAnswer(f"it names no accelerators: {json.dumps(found)[:200]}")
    return tuple(sorted(set(found)))


def memory(body: bytes) -> dict[str, int]:
    """Bytes in use: FMA's requester says MiB."""
    return {name: mib << 20 for name, mib in decoded(body, dict[str, _Mib]).items()}


def sleeping(it: Instance, status: int, body: bytes) -> Instance | None:
    """By an engine's answer to `/is_sleeping`. None: it isn't, or knows no such question; its probe says more."""
    if status == 200 and _written(body, dict[str, bool], {}).get("is_sleeping", False):
        return replace(it, state=State.ASLEEP)
    return None if status in (200, *_NOT_UNDERSTOOD) else replace(it, why=f"/is_sleeping says {status}")


def probed(it: Instance, path: str, status: int) -> Instance:
    return replace(it, state=State.AWAKE) if status == 200 else replace(it, why=f"{path} says {status}")


def decoded(body: bytes | str, kind: type[T]) -> T:
    """Raises BadAnswer, also where too much is nested."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise BadAnswer(f"it isn't understood: {error}") from None
