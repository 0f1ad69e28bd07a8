"""From a manifest to a pod as kubelet needs it (`spec.py`). Pure: the files are read by `commands.py`.

What has no meaning on one machine (claims, tolerations, limits) is listed in `Pod.ignored` and said; what would change
what runs, and can't be had, is refused.
"""

import base64
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from .linting import NoQuantity, quantity
from .spec import (
    Container,
    Exec,
    Handler,
    Http,
    Kind,
    Mount,
    Pod,
    Policy,
    Probe,
    Role,
    Sleep,
    Tcp,
    Volume,
)

TEMPLATES = ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "Job")
PATH = "/opt/gpu-failover/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
NODE = "local-pod"
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
    """Volume -> directory of this machine: for claims, which have no volume here."""
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
        name = (document.get("metadata") or {}).get("name", "pod")
        metadata = {**metadata, "name": f"{name}-0", "namespace": (document.get("metadata") or {}).get("namespace")}
    return _Reader(documents, metadata, spec, wishes).read()


def _chosen(documents: list[Any], wanted: str) -> Any:
    able = [each for each in documents if isinstance(each, dict) and each.get("kind") in ("Pod", *TEMPLATES)]
    names = [f"{each['kind']}/{(each.get('metadata') or {}).get('name')}" for each in able]
    if wanted:
        if wanted not in names:
            raise BadManifest(f"there is no {wanted} in it; there are: {', '.join(names) or 'no pods'}")
        return able[names.index(wanted)]
    if len(able) != 1:
        raise BadManifest(
            f"there are {len(able)} objects that make pods: {', '.join(names)}; choose one: --object {names[0]}"
            if able
            else "there is no pod in it, and nothing that makes one"
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
        for key in _IGNORED_POD:
            if spec.get(key):
                self.ignored.append(key)
        if context.get("seccompProfile"):
            self.ignored.append("seccompProfile")
        if spec.get("hostPID") or spec.get("hostIPC"):
            raise BadManifest("hostPID and hostIPC can't be had here: each container has namespaces of its own")
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
            policy=Policy(spec.get("restartPolicy") or "Always"),
            fs_group=context.get("fsGroup"),
            hostname=spec.get("hostname") or self.metadata.get("name") or "pod",
            address=self.wishes.address,
            host_network=bool(spec.get("hostNetwork")),
            share_processes=bool(spec.get("shareProcessNamespace")),
            ignored=tuple(dict.fromkeys(self.ignored)),
        )

    # -- containers ------------------------------------------------------------------------------------------------

    def _container(self, node: dict[str, Any], role: Role) -> Container:
        name = node.get("name") or ""
        for key in _IGNORED_CONTAINER:
            if node.get(key):
                self.ignored.append(key)
        environment = self._environment(node)
        command = [_expanded(word, environment) for word in (node.get("command") or ())]
        if not command:
            raise BadManifest(f"the container {name} has no command: there are no images here that could say it")
        command += [_expanded(word, environment) for word in (node.get("args") or ())]
        own, outer = node.get("securityContext") or {}, self.spec.get("securityContext") or {}
        ports = {port.get("name"): port.get("containerPort") for port in node.get("ports") or () if port.get("name")}
        lifecycle = node.get("lifecycle") or {}
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
            pre_stop=self._handler(lifecycle["preStop"], name, ports) if lifecycle.get("preStop") else None,
            post_start=self._handler(lifecycle["postStart"], name, ports) if lifecycle.get("postStart") else None,
            mounts=tuple(self._mount(each, environment) for each in node.get("volumeMounts") or ()),
            run_as_user=own.get("runAsUser", outer.get("runAsUser")),
            run_as_group=own.get("runAsGroup", outer.get("runAsGroup")),
            read_only_root=bool(own.get("readOnlyRootFilesystem")),
            new_privileges=own.get("allowPrivilegeEscalation") is not False,
        )

    def _mount(self, node: dict[str, Any], environment: Mapping[str, str]) -> Mount:
        sub = node.get("subPath") or _expanded(node.get("subPathExpr") or "", environment)
        path = node.get("mountPath") or ""
        if not path.startswith("/") or ".." in path.split("/"):
            raise BadManifest(f"{path!r} is no absolute path to mount at")
        return Mount(node.get("name") or "", path.rstrip("/") or "/", bool(node.get("readOnly")), sub)

    def _probe(self, node: dict[str, Any], kind: Kind, name: str, ports: Mapping[str, int]) -> Probe:
        period: float = _integer(node.get("periodSeconds"), 10) or 10
        threshold = _integer(node.get("failureThreshold"), 3) or 3
        quicker = self.wishes.startup_period_s
        if kind is Kind.STARTUP and quicker is not None and quicker < period:
            threshold = math.ceil(threshold * period / quicker)  # all of them together may take as long as before
            period = quicker
        return Probe(
            kind=kind,
            handler=self._handler(node, name, ports),
            initial_delay_s=_integer(node.get("initialDelaySeconds"), 0),
            timeout_s=_integer(node.get("timeoutSeconds"), 1) or 1,
            period_s=period,
            success_threshold=_integer(node.get("successThreshold"), 1) or 1,
            failure_threshold=threshold,
            grace_s=node.get("terminationGracePeriodSeconds"),
        )

    def _handler(self, node: dict[str, Any], name: str, ports: Mapping[str, int]) -> Handler:
        if node.get("exec"):
            return Exec(tuple(node["exec"].get("command") or ()))
        if node.get("sleep"):
            return Sleep(_integer(node["sleep"].get("seconds"), 0))
        for key in ("httpGet", "tcpSocket"):
            if not node.get(key):
                continue
            port = node[key].get("port")
            number = ports.get(port) if isinstance(port, str) else port
            if not isinstance(number, int):
                raise BadManifest(f"{name} declares no port {port!r}, which a probe or hook asks")
            if key == "tcpSocket":
                return Tcp(number, node[key].get("host") or "")
            headers = tuple((each["name"], each.get("value") or "") for each in node[key].get("httpHeaders") or ())
            path, scheme = node[key].get("path") or "/", node[key].get("scheme") or "HTTP"
            return Http(number, path, scheme, node[key].get("host") or "", headers)
        raise BadManifest(f"{name} has a probe or hook that can't be done here: {', '.join(node) or 'nothing'}")

    # -- environment -----------------------------------------------------------------------------------------------

    def _environment(self, node: dict[str, Any]) -> dict[str, str]:
        """As kubelet makes it: the image's, the Services', envFrom, env; $(NAME) is what stands before."""
        found = {"PATH": PATH, "HOSTNAME": self.spec.get("hostname") or self.metadata.get("name") or "pod"}
        if self.spec.get("enableServiceLinks") is not False:
            found |= self._service_links()
        for each in node.get("envFrom") or ():
            for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                if each.get(key):
                    data = self._data(kind, each[key].get("name") or "", bool(each[key].get("optional")))
                    found |= {(each.get("prefix") or "") + name: value for name, value in data.items()}
        for each in node.get("env") or ():
            source = each.get("valueFrom")
            value = self._value_from(source, node) if source else _expanded(each.get("value") or "", found)
            if value is not None:
                found[each["name"]] = value
        return found

    def _service_links(self) -> dict[str, str]:
        found = {}
        services = [each for each in self.documents if isinstance(each, dict) and each.get("kind") == "Service"]
        for number, service in enumerate(services, start=10):
            spec = service.get("spec") or {}
            if spec.get("clusterIP") == "None":
                continue
            address = spec.get("clusterIP") or f"10.96.0.{number}"
            prefix = re.sub("[^A-Z0-9]", "_", ((service.get("metadata") or {}).get("name") or "").upper())
            found[f"{prefix}_SERVICE_HOST"] = address
            for index, port in enumerate(spec.get("ports") or ()):
                protocol, at = (port.get("protocol") or "TCP").lower(), port.get("port")
                if not index:
                    found[f"{prefix}_SERVICE_PORT"] = str(at)
                    found[f"{prefix}_PORT"] = f"{protocol}://{address}:{at}"
                if port.get("name"):
                    found[f"{prefix}_SERVICE_PORT_{re.sub('[^A-Z0-9]', '_', port['name'].upper())}"] = str(at)
                link = f"{prefix}_PORT_{at}_{protocol.upper()}"
                found |= {link: f"{protocol}://{address}:{at}", f"{link}_PROTO": protocol}
                found |= {f"{link}_PORT": str(at), f"{link}_ADDR": address}
        return found

    def _value_from(self, source: dict[str, Any], node: dict[str, Any]) -> str | None:
        if source.get("fieldRef"):
            return self._field(source["fieldRef"].get("fieldPath") or "")
        if source.get("resourceFieldRef"):
            return _resource(node, source["resourceFieldRef"])
        for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
            if source.get(key):
                wanted, optional = source[key], bool(source[key].get("optional"))
                data = self._data(kind, wanted.get("name") or "", optional)
                if wanted.get("key") not in data and not optional:
                    raise BadManifest(f"the {kind} {wanted.get('name')} has no {wanted.get('key')}")
                return data.get(wanted.get("key") or "")
        raise BadManifest(f"a variable can't come from {', '.join(source)}")

    def _field(self, path: str) -> str:
        subscript = re.fullmatch(r"metadata\.(labels|annotations)\['([^']+)'\]", path)
        if subscript:
            return str((self.metadata.get(subscript[1]) or {}).get(subscript[2], ""))
        if path in ("metadata.labels", "metadata.annotations"):
            every = self.metadata.get(path.removeprefix("metadata.")) or {}
            return "".join(f'{key}="{value}"\n' for key, value in sorted(every.items()))
        known = {
            "metadata.name": self.metadata.get("name") or "pod",
            "metadata.namespace": self.metadata.get("namespace") or "default",
            "metadata.uid": self.wishes.uid,
            "spec.nodeName": NODE,
            "spec.serviceAccountName": self.spec.get("serviceAccountName") or "default",
            "status.hostIP": self.wishes.address,
            "status.hostIPs": self.wishes.address,
            "status.podIP": self.wishes.address,
            "status.podIPs": self.wishes.address,
        }
        if path not in known:
            raise BadManifest(f"the field {path!r} can't be had; there are {', '.join(known)}")
        return str(known[path])

    # -- volumes ---------------------------------------------------------------------------------------------------

    def _data(self, kind: str, name: str, optional: bool) -> dict[str, str]:
        for each in self.documents:
            if isinstance(each, dict) and each.get("kind") == kind and (each.get("metadata") or {}).get("name") == name:
                coded = each.get("binaryData" if kind == "ConfigMap" else "data") or {}
                plain = each.get("data" if kind == "ConfigMap" else "stringData") or {}
                decoded = {key: base64.b64decode(value).decode("utf-8", "replace") for key, value in coded.items()}
                return {**decoded, **{key: str(value) for key, value in plain.items()}}
        if optional:
            return {}
        raise BadManifest(f"there is no {kind} {name} in the manifest")

    def _volume(self, node: dict[str, Any]) -> Volume:
        name = node["name"]
        if name in self.wishes.volumes:
            return Volume(name, "host", directory=self.wishes.volumes[name])
        if "emptyDir" in node or len(node) == 1:
            source = node.get("emptyDir") or {}
            limit = source.get("sizeLimit")
            return Volume(
                name, "memory" if source.get("medium") == "Memory" else "disk", _bytes(limit) if limit else None
            )
        if node.get("hostPath"):
            return Volume(name, "host", directory=node["hostPath"].get("path") or "")
        if any(node.get(key) for key in ("configMap", "secret", "downwardAPI", "projected")):
            files = dict(self._files(node))
            source = next(node[key] for key in ("configMap", "secret", "downwardAPI", "projected") if node.get(key))
            return Volume(name, "files", files=files, mode=_integer(source.get("defaultMode"), 0o644))
        kind = next((key for key in node if key != "name"), "nothing")
        raise BadManifest(
            f"the volume {name} is a {kind}, which isn't on this machine; give it one: --volume {name}=DIRECTORY"
        )

    def _files(self, node: dict[str, Any]) -> Iterator[tuple[str, str]]:
        sources = [node] if not node.get("projected") else node["projected"].get("sources") or []
        for source in sources:
            for key, kind, by in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
                if source.get(key):
                    wanted = source[key]
                    name = wanted.get(by) or wanted.get("name") or ""
                    data = self._data(kind, name, bool(wanted.get("optional")))
                    paths = {item["key"]: item["path"] for item in wanted.get("items") or ()}
                    yield from (
                        (paths.get(key, key), value) for key, value in data.items() if not paths or key in paths
                    )
            for item in (source.get("downwardAPI") or {}).get("items") or ():
                if item.get("fieldRef"):
                    yield item["path"], self._field(item["fieldRef"].get("fieldPath") or "")
            if source.get("serviceAccountToken"):
                self.ignored.append("serviceAccountToken")


def _integer(value: Any, default: int) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else default


def _bytes(value: Any) -> int:
    try:
        return int(quantity(value))
    except NoQuantity as error:
        raise BadManifest(str(error)) from None


def _resource(node: dict[str, Any], wanted: dict[str, Any]) -> str:
    kind, _, name = (wanted.get("resource") or "").partition(".")
    resources = node.get("resources") or {}
    given = (resources.get(kind) or {}).get(name) or (resources.get("limits") or {}).get(name)
    if given is None:
        raise BadManifest(f"{wanted.get('resource')} isn't set in {node.get('name')}, and a variable asks for it")
    try:
        divisor = quantity(wanted.get("divisor") or 1) or Fraction(1)
        return str(-(-quantity(given) // divisor))
    except NoQuantity as error:
        raise BadManifest(str(error)) from None


def _expanded(text: str, environment: Mapping[str, str]) -> str:
    """$(NAME) is a variable's value, $$ a dollar; what isn't set stays."""

    def one(match: re.Match[str]) -> str:
        return "$" if match[0] == "$$" else environment.get(match[1], match[0])

    return re.sub(r"\$\$|\$\(([-._a-zA-Z][-._a-zA-Z0-9]*)\)", one, text)
