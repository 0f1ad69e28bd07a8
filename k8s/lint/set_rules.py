"""What needs two objects: every reference has to lead somewhere, in its own namespace.

An object that is on the cluster already is told to the linter (`--have Secret/huggingface`); what no manifest ever
makes (the default service account, kube-root-ca.crt, system's priority classes) is known.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from . import claim_rules, objects, pod_rules
from .node import Document, Node
from .pods import Container, Pod, pods

_ALWAYS_THERE = {
    ("ServiceAccount", "default"), ("ConfigMap", "kube-root-ca.crt"), ("PriorityClass", "system-cluster-critical"),
    ("PriorityClass", "system-node-critical"),
}  # fmt: skip


_NAMED = {
    "serviceAccountName": "ServiceAccount",
    "priorityClassName": "PriorityClass",
    "runtimeClassName": "RuntimeClass",
}
_CLAIM_SOURCES = {"ResourceClaimTemplate": "resourceClaimTemplateName", "ResourceClaim": "resourceClaimName"}


@dataclass(frozen=True, eq=False)
class Set:
    """The objects of one file, those of the other files of the call, and what is said to be on the cluster."""

    documents: list[Document]
    others: list[Document]
    have: frozenset[tuple[str, str]]

    def named(self, kind: str, name: str) -> Iterator[Document]:
        for document in (*self.documents, *self.others):
            if document.root["kind"].text == kind and document.root.at("metadata", "name").text == name:
                yield document

    def find(self, reference: Node, kind: str, name: str, namespace: str, *, optional: bool = False) -> Document | None:
        """The object that is meant. Reports one that isn't there."""
        elsewhere = []
        for document in self.named(kind, name):
            other = document.root.at("metadata", "namespace").text
            if kind in objects.CLUSTER_SCOPED or other == namespace:
                return document
            elsewhere.append(other or "no namespace")
        if optional or (kind, name) in self.have or (kind, name) in _ALWAYS_THERE or not name:
            return None
        if elsewhere:
            reference.error(
                f"the {kind} {name} is in {' and '.join(elsewhere)}, only one in {namespace or 'its own namespace'} "
                "can be meant here"
            )
        else:
            reference.error(f"there is no {kind} {name} here; if the cluster has it: --have {kind}/{name}")
        return None


def check(documents: list[Document], have: Iterable[tuple[str, str]]) -> None:
    """Each file is a set; what it lacks may be in another file of the call."""
    for file in dict.fromkeys(document.file for document in documents):
        own = [document for document in documents if document.file == file]
        _check(Set(own, [document for document in documents if document.file != file], frozenset(have)))


def _check(these: Set) -> None:
    _twice(these.documents)
    for pod in (pod for document in these.documents for pod in pods(document)):
        _claims(these, pod)
        _volumes(these, pod)
        _configs(these, pod)
        _names(these, pod)
    for document in these.documents:
        root = document.root
        rule = {
            "Service": _service,
            "PodDisruptionBudget": _budget,
            "NetworkPolicy": _network_policy,
            "PodMonitor": _pod_monitor,
        }.get(root["kind"].text)
        if rule is not None:
            rule(these, root)
        for spec in claim_rules.claim_specs(root):
            _classes(these, spec)
    _unused_claims(these)


def _twice(documents: list[Document]) -> None:
    seen: dict[tuple[str, str, str], Document] = {}
    for document in documents:
        metadata = document.root["metadata"]
        key = (document.root["kind"].text, metadata["namespace"].text, metadata["name"].text)
        other = seen.setdefault(key, document)
        if other is not document and metadata["name"].text:
            metadata["name"].error(f"there are two {key[0]} {key[2]}: the later one would replace the other")


def _claims(these: Set, pod: Pod) -> None:
    for claim in pod.spec["resourceClaims"].items():
        name, source = claim["name"].text, None
        for kind, key in _CLAIM_SOURCES.items():
            if claim[key].text:
                source = these.find(claim[key], kind, claim[key].text, pod.namespace)
        uses = pod_rules.uses_of(pod, name)
        if not uses:
            claim.error(f"no container uses the claim {name}: its devices would be taken for nothing")
        if source is None:
            continue
        for spec in claim_rules.claim_specs(source.root):
            names = claim_rules.request_names(spec)
            for use in uses:
                request = use["request"]
                if request.text and request.text not in names:
                    request.error(f"the claim has no request {request.text!r}; it has: {', '.join(sorted(names))}")
        if claim["resourceClaimName"].text and pod.replicas > 1:
            claim["resourceClaimName"].warn(f"{pod.replicas} pods would share the devices of one claim")


def _unused_claims(these: Set) -> None:
    used = {
        (key, claim[key].text)
        for document in (*these.documents, *these.others)
        for pod in pods(document)
        for claim in pod.spec["resourceClaims"].items()
        for key in _CLAIM_SOURCES.values()
    }
    for document in these.documents:
        kind, name = document.root["kind"].text, document.root.at("metadata", "name")
        if kind in _CLAIM_SOURCES and (_CLAIM_SOURCES[kind], name.text) not in used:
            name.warn(f"no pod here uses the {kind} {name.text}")


def _classes(these: Set, spec: Node) -> None:
    for request in spec.at("devices", "requests").items():
        for wanted in (request["exactly"], *request["firstAvailable"].items()):
            name = wanted["deviceClassName"]
            known = name.text in claim_rules.KNOWN_CLASSES or ("DeviceClass", name.text) in these.have
            if name.text and not known and not any(these.named("DeviceClass", name.text)):
                name.warn(
                    f"NVIDIA's driver has no class {name.text}; if the cluster has it: --have DeviceClass/{name.text}"
                )


def _volumes(these: Set, pod: Pod) -> None:
    for volume in pod.spec["volumes"].items():
        for key, kind, name in (("configMap", "ConfigMap", "name"), ("secret", "Secret", "secretName")):
            keys = [item["key"] for item in volume.at(key, "items").items()]
            _keys_of(these, pod, kind, volume.at(key, name), volume[key], keys)
        for each in volume.at("projected", "sources").items():
            for key, kind in (("configMap", "ConfigMap"), ("secret", "Secret")):
                keys = [item["key"] for item in each.at(key, "items").items()]
                _keys_of(these, pod, kind, each.at(key, "name"), each[key], keys)
        claim = volume["persistentVolumeClaim"]
        if claim["claimName"].text:
            _volume_claim(these, pod, volume, claim)


def _volume_claim(these: Set, pod: Pod, volume: Node, claim: Node) -> None:
    found = these.find(claim["claimName"], "PersistentVolumeClaim", claim["claimName"].text, pod.namespace)
    modes = found.root.at("spec", "accessModes").texts() if found is not None else []
    if set(modes) == {"ReadOnlyMany"}:
        for mount in (mount for container in pod.containers for mount in container.mounts()):
            read_only = claim["readOnly"].flag or mount["readOnly"].flag
            if mount["name"].text == volume["name"].text and not read_only:
                mount.warn(f"the volume can only be read ({', '.join(modes)}): readOnly: true belongs here")
    if modes and pod.replicas > 1 and not {"ReadOnlyMany", "ReadWriteMany"} & set(modes):
        claim["claimName"].error(f"{pod.replicas} pods can't share a volume of {', '.join(modes)}")


def _configs(these: Set, pod: Pod) -> None:
    for container in pod.containers:
        for each in container.node["env"].items():
            for key, kind in (("configMapKeyRef", "ConfigMap"), ("secretKeyRef", "Secret")):
                source = each.at("valueFrom", key)
                _keys_of(these, pod, kind, source["name"], source, [source["key"]])
        for each in container.node["envFrom"].items():
            for key, kind in (("configMapRef", "ConfigMap"), ("secretRef", "Secret")):
                _keys_of(these, pod, kind, each.at(key, "name"), each[key], [])


def _keys_of(these: Set, pod: Pod, kind: str, name: Node, source: Node, keys: list[Node]) -> None:
    optional = source["optional"].flag is True
    found = these.find(name, kind, name.text, pod.namespace, optional=optional) if name.text else None
    if found is None or optional:
        return
    there = {key for field in ("data", "binaryData", "stringData") for key, _ in found.root[field].fields()}
    for key in keys:
        if key.text and key.text not in there:
            key.error(f"the {kind} {name.text} has no {key.text}; it has: {', '.join(sorted(there)) or 'nothing'}")


def _names(these: Set, pod: Pod) -> None:
    spec = pod.spec
    for key, kind in _NAMED.items():
        if spec[key].text:
            these.find(spec[key], kind, spec[key].text, pod.namespace)
    for secret in spec["imagePullSecrets"].items():
        if secret["name"].text:
            these.find(secret["name"], "Secret", secret["name"].text, pod.namespace)


def _chosen(these: Set, choose: Callable[[Pod], bool]) -> list[Pod]:
    """The pods of this file that are chosen, else those of the other files."""
    for documents in (these.documents, these.others):
        found = [pod for document in documents for pod in pods(document) if choose(pod)]
        if found:
            return found
    return []


def _selected(these: Set, selector: Node, namespace: str) -> list[Pod]:
    return _chosen(these, lambda pod: pod.namespace == namespace and objects.matches(selector, pod.labels))


def _declares(pod: Pod, port: Node) -> bool:
    every: list[Container] = pod.lasting
    return any(port.text == name or port.number == number for each in every for number, name, _ in each.ports())


def _service(these: Set, root: Node) -> None:
    spec, namespace = root["spec"], root.at("metadata", "namespace").text
    if spec["type"].text == "ExternalName":
        return
    if not spec["selector"].value:
        spec.warn("it has no selector: its EndpointSlice has to be written by hand")
        return
    wanted = spec["selector"].mapping()
    chosen = _chosen(these, lambda pod: pod.namespace == namespace and wanted.items() <= pod.labels.items())
    if not chosen:
        spec["selector"].error(f"no pod here has the labels {wanted}")
    for port in spec["ports"].items():
        target = port["targetPort"] or port["port"]
        for pod in chosen:
            if not _declares(pod, target):
                target.error(f"no container of {pod.document.name} declares the port {target.value}")


def _budget(these: Set, root: Node) -> None:
    spec = root["spec"]
    chosen = _selected(these, spec["selector"], root.at("metadata", "namespace").text)
    if not chosen:
        spec["selector"].error("no pod here is selected by it")
    count = sum(pod.replicas for pod in chosen)
    least, most = spec["minAvailable"], spec["maxUnavailable"]
    never = (
        (not (least or most) and count == 1)
        or str(most.value) in ("0", "0%")
        or str(least.value) == "100%"
        or (least.number or 0) >= count > 0
    )
    if chosen and never:
        (least or most or spec).warn(f"with {count} pod(s) it never lets one go: `kubectl drain` waits for ever")


def _network_policy(these: Set, root: Node) -> None:
    spec, namespace = root["spec"], root.at("metadata", "namespace").text
    chosen = _selected(these, spec["podSelector"], namespace)
    if not chosen:
        spec["podSelector"].error("no pod here is selected by it")
    types = spec["policyTypes"].texts()
    for key, direction in (("ingress", "Ingress"), ("egress", "Egress")):
        if types and spec[key] and direction not in types:
            spec[key].error(f"policyTypes don't name {direction}: these rules do nothing")
    _let_in(these, spec, namespace, chosen)
    for rule in spec["ingress"].items():
        for port in rule["ports"].items():
            for pod in chosen:
                if port["port"] and not port["endPort"] and not _declares(pod, port["port"]):
                    port["port"].error(f"no container of {pod.document.name} declares the port {port['port'].value}")


def _let_in(these: Set, spec: Node, namespace: str, chosen: list[Pod]) -> None:
    """What a Service leads to has to be let in, or no client ever gets an answer."""
    if spec["policyTypes"] and "Ingress" not in spec["policyTypes"].texts():
        return
    rules = [list(rule["ports"].items()) for rule in spec["ingress"].items()]
    if any(port["endPort"] for ports in rules for port in ports):
        return
    let_in = {port["port"].port for ports in rules for port in ports}
    for document in these.documents:
        service = document.root
        if service["kind"].text != "Service" or service.at("metadata", "namespace").text != namespace:
            continue
        wanted = service.at("spec", "selector").mapping()
        if not wanted or not any(wanted.items() <= pod.labels.items() for pod in chosen) or [] in rules:
            continue
        for port in service.at("spec", "ports").items():
            target = port["targetPort"] or port["port"]
            numbers = {number for pod in chosen for container in pod.containers for number, name, _ in container.ports()
                       if target.port in (number, name)}  # fmt: skip
            if not ({target.port} | numbers) & let_in and None not in let_in:
                spec["ingress"].warn(
                    f"no client is let in to port {target.value}, which {service.at('metadata', 'name').text} leads to"
                )


def _pod_monitor(these: Set, root: Node) -> None:
    spec, namespace = root["spec"], root.at("metadata", "namespace").text
    spaces = spec.at("namespaceSelector", "matchNames").texts()
    anywhere = spec.at("namespaceSelector", "any").flag

    def choose(pod: Pod) -> bool:
        if not objects.matches(spec["selector"], pod.labels):
            return False
        return bool(anywhere) or pod.namespace in (spaces or [namespace]) or bool(spaces and not pod.namespace)

    chosen = _chosen(these, choose)
    if not chosen:
        spec["selector"].error("no pod here is selected by it")
    for each in spec["podMetricsEndpoints"].items():
        port = each["port"] or each["portNumber"]
        if port and chosen and not any(_declares(pod, port) for pod in chosen):
            names = sorted({pod.document.name for pod in chosen})
            port.error(f"no container of {' or '.join(names)} declares the port {port.value}")
