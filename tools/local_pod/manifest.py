"""From a manifest to a pod as kubelet needs it (`spec.py`). Pure: the files are read by `run.py`.

What has no meaning on one machine (claims, tolerations, limits) is listed in `Pod.ignored` and said; what would change
what runs, and can't be had, is refused.
"""

import base64
import math
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from .linting import NoQuantity, quantity
from .spec import Container, Exec, Handler, Http, Kind, Mount, Pod, Probe, Role, Sleep, Tcp, Volume

KINDS = ("Pod", "Deployment", "StatefulSet", "DaemonSet", "ReplicaSet")
PATH = "/opt/gpu-failover/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_IGNORED_POD = ("resourceClaims", "tolerations", "affinity", "nodeSelector", "priorityClassName", "runtimeClassName",
                "topologySpreadConstraints", "imagePullSecrets", "dnsConfig", "hostAliases", "readinessGates",
                "activeDeadlineSeconds")  # fmt: skip
_IGNORED_CONTAINER = ("resources", "restartPolicyRules", "volumeDevices", "stdin", "tty", "resizePolicy")


class BadManifest(Exception):
    """This can't be run here; the text says why, and what to do."""


@dataclass(frozen=True)
class Wishes:
    """What the command line says beyond the manifest."""

    object: str = ""
    """KIND/NAME of the one to run, where there are several."""
    volumes: Mapping[str, str] = field(default_factory=dict)
    """Volume -> directory of this machine: for what has no volume here."""
    uid: str = "00000000-0000-0000-0000-000000000000"
    address: str = "10.88.0.2"
    startup_period_s: float | None = None


def pod(documents: list[Any], wishes: Wishes) -> Pod:
    """Raises BadManifest."""
    document = _chosen(documents, wishes.object)
    if document["kind"] == "Pod":
        metadata, spec = document.get("metadata") or {}, document.get("spec") or {}
    else:
        template = (document.get("spec") or {}).get("template") or {}
        metadata, spec = template.get("metadata") or {}, template.get("spec") or {}
        outer = document.get("metadata") or {}
        metadata = {**metadata, "name": f"{outer.get('name', 'pod')}-0", "namespace": outer.get("namespace")}
    return _Reader(documents, metadata, spec, wishes).read()


def _chosen(documents: list[Any], wanted: str) -> Any:
    able = [each for each in documents if isinstance(each, dict) and each.get("kind") in KINDS]
    names = [f"{each['kind']}/{(each.get('metadata') or {}).get('name')}" for each in able]
    if wanted:
        if wanted not in names:
            raise BadManifest(f"there is no {wanted} in it; there are: {', '.join(names) or 'no pods'}")
        return able[names.index(wanted)]
    if not able:
        raise BadManifest(f"there is no pod in it, and nothing that makes one: {', '.join(KINDS)}")
    if len(able) > 1:
        raise BadManifest(
            f"there are {len(able)} objects that make pods: {', '.join(names)}; choose one: --object {names[0]}"
        )
    return able[0]


@dataclass
class _Reader:
    documents: list[Any]
    metadata: dict[str, Any]
    spec: dict[str, Any]
    wishes: Wishes
    ignored: list[str] = field(default_factory=list)

    def read(self) -> Pod:
        spec = self.spec
        context = spec.get("securityContext") or {}
        self._ignore(spec, _IGNORED_POD)
        self._ignore(context, ("seccompProfile",))
        if spec.get("enableServiceLinks") is not False:
            self.ignored.append("enableServiceLinks")
        if spec.get("hostPID") or spec.get("hostIPC"):
            raise BadManifest("hostPID and hostIPC can't be had here: each container has namespaces of its own")
        if spec.get("restartPolicy") not in (None, "Always"):
            raise BadManifest(f"restartPolicy {spec['restartPolicy']} can't be had here: a pod of servers has Always")
        containers = []
        for each in spec.get("initContainers") or ():
            role = Role.SIDECAR if each.get("restartPolicy") == "Always" else Role.INIT
            containers.append(self._container(each, role))
        containers += [self._container(each, Role.MAIN) for each in spec.get("containers") or ()]
        if not any(container.role is Role.MAIN for container in containers):
            raise BadManifest("a pod needs at least one container")
        used = {mount.volume for container in containers for mount in container.mounts}
        volumes = tuple(self._volume(each) for each in spec.get("volumes") or () if each.get("name") in used)
        missing = used - {volume.name for volume in volumes}
        if missing:
            raise BadManifest(f"there is no volume {', '.join(sorted(missing))}, which a container mounts")
        return Pod(
            name=self.metadata.get("name") or "pod",
            containers=tuple(containers),
            volumes=volumes,
            grace_s=max(_integer(spec.get("terminationGracePeriodSeconds"), 30), 1),
            fs_group=context.get("fsGroup"),
            hostname=spec.get("hostname") or self.metadata.get("name") or "pod",
            address=self.wishes.address,
            host_network=bool(spec.get("hostNetwork")),
            ignored=tuple(dict.fromkeys(self.ignored)),
        )

    def _ignore(self, node: dict[str, Any], keys: tuple[str, ...]) -> None:
        self.ignored += [key for key in keys if node.get(key)]

    # -- containers ------------------------------------------------------------------------------------------------

    def _container(self, node: dict[str, Any], role: Role) -> Container:
        name = node.get("name") or ""
        self._ignore(node, _IGNORED_CONTAINER)
        environment = self._environment(node)
        command = [_expanded(word, environment) for word in (node.get("command") or ())]
        if not command:
            raise BadManifest(f"the container {name} has no command: there are no images here that could say it")
        command += [_expanded(word, environment) for word in (node.get("args") or ())]
        own, outer = node.get("securityContext") or {}, self.spec.get("securityContext") or {}
        ports = {port.get("name"): port.get("containerPort") for port in node.get("ports") or () if port.get("name")}
        lifecycle = node.get("lifecycle") or {}
        if lifecycle.get("postStart"):
            raise BadManifest(f"{name} has a postStart hook, which can't be done here")
        probes = {}
        if role is not Role.INIT:
            for kind in Kind:
                if node.get(f"{kind.value}Probe"):
                    probes[kind] = self._probe(node[f"{kind.value}Probe"], kind, name, ports)
        return Container(
            name=name,
            role=role,
            command=tuple(command),
            environment=environment,
            working_dir=node.get("workingDir") or "/",
            probes=probes,
            pre_stop=_handler(lifecycle["preStop"], name, ports) if lifecycle.get("preStop") else None,
            mounts=tuple(_mount(each, environment) for each in node.get("volumeMounts") or ()),
            run_as_user=own.get("runAsUser", outer.get("runAsUser")),
            run_as_group=own.get("runAsGroup", outer.get("runAsGroup")),
            read_only_root=bool(own.get("readOnlyRootFilesystem")),
            new_privileges=own.get("allowPrivilegeEscalation") is not False,
        )

    def _probe(self, node: dict[str, Any], kind: Kind, name: str, ports: Mapping[str, int]) -> Probe:
        period: float = _integer(node.get("periodSeconds"), 10) or 10
        threshold = _integer(node.get("failureThreshold"), 3) or 3
        quicker = self.wishes.startup_period_s
        if kind is Kind.STARTUP and quicker is not None and quicker < period:
            threshold = math.ceil(threshold * period / quicker)  # all of them together may take as long as before
            period = quicker
        return Probe(
            kind=kind,
            handler=_handler(node, name, ports),
            initial_delay_s=_integer(node.get("initialDelaySeconds"), 0),
            timeout_s=_integer(node.get("timeoutSeconds"), 1) or 1,
            period_s=period,
            success_threshold=_integer(node.get("successThreshold"), 1) or 1,
            failure_threshold=threshold,
            grace_s=node.get("terminationGracePeriodSeconds"),
        )

    # -- environment -----------------------------------------------------------------------------------------------

    def _environment(self, node: dict[str, Any]) -> dict[str, str]:
        """As kubelet makes it: the image's, then env; $(NAME) is what stands before."""
        if node.get("envFrom"):
            raise BadManifest(f"{node.get('name')} has envFrom, which can't be done here: name its variables in env")
        found = {"PATH": PATH, "HOSTNAME": self.spec.get("hostname") or self.metadata.get("name") or "pod"}
        for each in node.get("env") or ():
            source = each.get("valueFrom")
            value = self._value_from(source) if source else _expanded(each.get("value") or "", found)
            if value is not None:
                found[each["name"]] = value
        return found

    def _value_from(self, source: dict[str, Any]) -> str | None:
        if source.get("fieldRef"):
            return self._field(source["fieldRef"].get("fieldPath") or "")
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if source.get(key):
                wanted, optional = source[key], bool(source[key].get("optional"))
                data = self._data(kind, wanted.get("name") or "", optional)
                if wanted.get("key") not in data and not optional:
                    raise BadManifest(f"the {kind} {wanted.get('name')} has no {wanted.get('key')}")
                return data.get(wanted.get("key") or "")
        raise BadManifest(f"a variable can't come from {', '.join(source)} here")

    def _field(self, path: str) -> str:
        known = {
            "metadata.name": self.metadata.get("name") or "pod",
            "metadata.namespace": self.metadata.get("namespace") or "default",
            "metadata.uid": self.wishes.uid,
            "spec.nodeName": "local-pod",
            "spec.serviceAccountName": self.spec.get("serviceAccountName") or "default",
            "status.hostIP": self.wishes.address,
            "status.podIP": self.wishes.address,
        }
        for key, value in (self.metadata.get("labels") or {}).items():
            known[f"metadata.labels['{key}']"] = value
        if path not in known:
            raise BadManifest(f"the field {path!r} can't be had; there are {', '.join(known)}")
        return str(known[path])

    def _data(self, kind: str, name: str, optional: bool) -> dict[str, str]:
        for each in self.documents:
            if isinstance(each, dict) and each.get("kind") == kind and (each.get("metadata") or {}).get("name") == name:
                plain = (each.get("data") if kind == "ConfigMap" else each.get("stringData")) or {}
                coded = (each.get("data") if kind == "Secret" else None) or {}
                decoded = {key: base64.b64decode(value).decode("utf-8", "replace") for key, value in coded.items()}
                return {**decoded, **{key: str(value) for key, value in plain.items()}}
        if optional:
            return {}
        raise BadManifest(f"there is no {kind} {name} in the manifest")

    # -- volumes ---------------------------------------------------------------------------------------------------

    def _volume(self, node: dict[str, Any]) -> Volume:
        name = node["name"]
        if name in self.wishes.volumes:
            return Volume(name, "host", directory=self.wishes.volumes[name])
        if "emptyDir" in node or len(node) == 1:
            source = node.get("emptyDir") or {}
            limit = source.get("sizeLimit")
            kind = "memory" if source.get("medium") == "Memory" else "disk"
            return Volume(name, kind, _bytes(limit) if limit else None)
        if node.get("hostPath"):
            return Volume(name, "host", directory=node["hostPath"].get("path") or "")
        kind = next((key for key in node if key != "name"), "nothing")
        raise BadManifest(
            f"the volume {name} is a {kind}, which isn't on this machine; give it one: --volume {name}=DIRECTORY"
        )


def _mount(node: dict[str, Any], environment: Mapping[str, str]) -> Mount:
    sub = node.get("subPath") or _expanded(node.get("subPathExpr") or "", environment)
    path = node.get("mountPath") or ""
    if not path.startswith("/") or ".." in path.split("/"):
        raise BadManifest(f"{path!r} is no absolute path to mount at")
    return Mount(node.get("name") or "", path.rstrip("/") or "/", bool(node.get("readOnly")), sub)


def _handler(node: dict[str, Any], name: str, ports: Mapping[str, int]) -> Handler:
    if node.get("exec"):
        return Exec(tuple(node["exec"].get("command") or ()))
    if node.get("sleep"):
        return Sleep(_integer(node["sleep"].get("seconds"), 0))
    kind = next((key for key in ("httpGet", "tcpSocket") if node.get(key)), "")
    beyond = {"host", "httpHeaders"} & set(node.get(kind) or ())
    if not kind or beyond or node[kind].get("scheme") == "HTTPS":
        what = f"{kind} with {', '.join(beyond) or 'HTTPS'}" if kind else ", ".join(node) or "nothing"
        raise BadManifest(f"{name} has a probe or hook that can't be done here: {what}")
    port = node[kind].get("port")
    number = ports.get(port) if isinstance(port, str) else port
    if not isinstance(number, int):
        raise BadManifest(f"{name} declares no port {port!r}, which a probe or hook asks")
    return Tcp(number) if kind == "tcpSocket" else Http(number, node[kind].get("path") or "/")


def _integer(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _bytes(value: Any) -> int:
    try:
        return int(quantity(value))
    except NoQuantity as error:
        raise BadManifest(str(error)) from None


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) is a variable's value, $$ a dollar; what isn't set stays."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", one, text)
