"""A pod's specification, beside its containers and volumes: from the API's ValidatePodSpec, field by field.

Beyond the API: what it takes and no cluster can run. Containers and probes have files of their own.
"""

from . import container_rules, formats, objects, probe_rules, security_rules, volume_rules
from .node import Node
from .objects import complain, one_of
from .pods import Pod, Role

INT32_MAX = (1 << 31) - 1


def check(pod: Pod) -> None:
    spec = pod.spec
    if not spec:
        pod.document.root.error("there is no pod in it: spec is missing")
        return
    if pod.kind != "Pod":
        objects.check_labels_and_annotations(pod.metadata)
    if not spec["containers"].value:
        spec["containers"].error("a pod needs at least one container")
    _times(pod)
    _policies(pod)
    _names(spec)
    _tolerations(spec["tolerations"])
    _scheduling(spec)
    _claims(spec["resourceClaims"])
    security_rules.check_pod(pod)
    volume_rules.check(pod)
    container_rules.check(pod)
    probe_rules.check(pod)


def _times(pod: Pod) -> None:
    spec = pod.spec
    grace, deadline = spec["terminationGracePeriodSeconds"], spec["activeDeadlineSeconds"]
    if grace.number is not None and grace.number < 0:
        grace.error(f"{grace.number}: the API server takes it and makes it 1 second")
    elif grace.number == 0:
        grace.error("with 0 nothing is ended in order: every process is killed at once")
    if deadline.number is not None and not 1 <= deadline.number <= INT32_MAX:
        deadline.error(f"{deadline.number} must be between 1 and {INT32_MAX}")
    if deadline and pod.kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet"):
        deadline.error(f"a {pod.kind}'s pods may not have one")


def _policies(pod: Pod) -> None:
    spec = pod.spec
    policy = spec["restartPolicy"]
    one_of(policy, ("Always", "OnFailure", "Never"))
    if policy and pod.kind in ("Deployment", "StatefulSet", "DaemonSet", "ReplicaSet") and policy.text != "Always":
        policy.error(f"a {pod.kind}'s pods can only have Always")
    if pod.kind in ("Job", "CronJob") and policy.text not in ("OnFailure", "Never"):
        spec["restartPolicy"].error("a Job's pods need OnFailure or Never")
    one_of(spec["preemptionPolicy"], ("PreemptLowerPriority", "Never"))
    if one_of(spec["dnsPolicy"], ("ClusterFirst", "ClusterFirstWithHostNet", "Default", "None")):
        _dns(spec)
    if spec["hostNetwork"].flag and spec["dnsPolicy"].text in ("", "ClusterFirst"):
        spec["hostNetwork"].warn("with hostNetwork dnsPolicy falls back to the node's; give ClusterFirstWithHostNet")
    if spec["os"]:
        one_of(spec.at("os", "name"), ("linux", "windows"))
    if spec["ephemeralContainers"].value:
        spec["ephemeralContainers"].error("they can't be in a manifest: `kubectl debug` adds them")


def _dns(spec: Node) -> None:
    config = spec["dnsConfig"]
    servers = list(config["nameservers"].items())
    if spec["dnsPolicy"].text == "None" and not servers:
        spec["dnsPolicy"].error("None needs a dnsConfig with nameservers")
    if len(servers) > 3:
        config["nameservers"].error("there may be three at most")
    for server in servers:
        complain(server, formats.address(server.text))
    if len(list(config["searches"].items())) > 32:
        config["searches"].error("there may be 32 at most")
    for search in config["searches"].items():
        if search.text != ".":
            complain(search, formats.dns_subdomain(search.text.removesuffix(".").replace("_", "-")))
    for option in config["options"].items():
        if not option["name"].text:
            option.error("name is missing")


def _names(spec: Node) -> None:
    for key, rule in (
        ("hostname", formats.dns_label),
        ("subdomain", formats.dns_label),
        ("nodeName", formats.dns_subdomain),
        ("serviceAccountName", formats.dns_subdomain),
        ("priorityClassName", formats.dns_subdomain),
        ("runtimeClassName", formats.dns_subdomain),
    ):
        if spec[key].text:
            complain(spec[key], rule(spec[key].text))
    if spec["nodeName"].text:
        spec["nodeName"].warn("this goes round the scheduler, and so round the allocation of claims")
    for secret in spec["imagePullSecrets"].items():
        if not secret["name"].text:
            secret.error("name is missing")
    for alias in spec["hostAliases"].items():
        complain(alias["ip"], formats.address(alias["ip"].text))
        for name in alias["hostnames"].items():
            complain(name, formats.dns_subdomain(name.text))
    for gate in spec["readinessGates"].items():
        complain(gate["conditionType"], formats.qualified_name(gate["conditionType"].text))
    seen: set[str] = set()
    for gate in spec["schedulingGates"].items():
        complain(gate["name"], formats.qualified_name(gate["name"].text))
        if gate["name"].text in seen:
            gate["name"].error(f"{gate['name'].text} stands twice")
        seen.add(gate["name"].text)


def _tolerations(tolerations: Node) -> None:
    for each in tolerations.items():
        key, operator, value, effect = each["key"], each["operator"], each["value"], each["effect"]
        if key.text:
            complain(key, formats.qualified_name(key.text))
        elif operator.text != "Exists":
            each.error("without a key operator has to be Exists")
        if not one_of(operator, ("Equal", "Exists")):
            continue
        if operator.text == "Exists" and value.text:
            value.error("with operator Exists there may be no value")
        if operator.text in ("", "Equal") and value.text:
            complain(value, formats.label_value(value.text))
        one_of(effect, ("NoSchedule", "PreferNoSchedule", "NoExecute"))
        if each["tolerationSeconds"] and effect.text != "NoExecute":
            each["tolerationSeconds"].error("this needs the effect NoExecute")


def _scheduling(spec: Node) -> None:
    objects.check_labels(spec["nodeSelector"])
    affinity = spec["affinity"]
    required = affinity.at("nodeAffinity", "requiredDuringSchedulingIgnoredDuringExecution")
    if required and not required["nodeSelectorTerms"].value:
        required["nodeSelectorTerms"].error("there must be at least one")
    for term in required["nodeSelectorTerms"].items():
        _node_term(term)
    for each in affinity.at("nodeAffinity", "preferredDuringSchedulingIgnoredDuringExecution").items():
        _weight(each["weight"])
        _node_term(each["preference"])
    for kind in ("podAffinity", "podAntiAffinity"):
        for term in affinity.at(kind, "requiredDuringSchedulingIgnoredDuringExecution").items():
            _pod_term(term)
        for each in affinity.at(kind, "preferredDuringSchedulingIgnoredDuringExecution").items():
            _weight(each["weight"])
            _pod_term(each["podAffinityTerm"])
    for each in spec["topologySpreadConstraints"].items():
        if (each["maxSkew"].number or 0) < 1:
            each["maxSkew"].error("it must be 1 or more")
        _topology_key(each["topologyKey"])
        one_of(each["whenUnsatisfiable"], ("DoNotSchedule", "ScheduleAnyway"))
        if not each["whenUnsatisfiable"]:
            each.error("whenUnsatisfiable is missing")
        if each["minDomains"] and each["whenUnsatisfiable"].text != "DoNotSchedule":
            each["minDomains"].error("this needs whenUnsatisfiable: DoNotSchedule")
        for key in ("nodeAffinityPolicy", "nodeTaintsPolicy"):
            one_of(each[key], ("Honor", "Ignore"))
        objects.check_selector(each["labelSelector"])


def _node_term(term: Node) -> None:
    for each in term["matchExpressions"].items():
        operator, values = each["operator"], each["values"].texts()
        complain(each["key"], formats.qualified_name(each["key"].text))
        if operator.text in ("In", "NotIn") and not values:
            each["values"].error(f"{operator.text} needs some")
        elif operator.text in ("Exists", "DoesNotExist") and values:
            each["values"].error(f"there may be none with {operator.text}")
        elif operator.text in ("Gt", "Lt") and len(values) != 1:
            each["values"].error(f"{operator.text} needs exactly one")
        elif operator.text not in ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"):
            operator.error(f"{operator.text!r} is unknown; allowed: In, NotIn, Exists, DoesNotExist, Gt, Lt")
        for value in each["values"].items():
            complain(value, formats.label_value(value.text))
    for each in term["matchFields"].items():
        if each["key"].text != "metadata.name":
            each["key"].error(f"{each['key'].text!r} is no field to choose a node by; there is metadata.name")
        if each["operator"].text not in ("In", "NotIn") or len(each["values"].texts()) != 1:
            each.error("fields take In or NotIn with exactly one value")


def _pod_term(term: Node) -> None:
    _topology_key(term["topologyKey"])
    objects.check_selector(term["labelSelector"])
    objects.check_selector(term["namespaceSelector"])
    for name in term["namespaces"].items():
        complain(name, formats.dns_label(name.text))


def _topology_key(key: Node) -> None:
    if not key.text:
        key.error("it can't be empty")
    else:
        complain(key, formats.qualified_name(key.text))


def _weight(weight: Node) -> None:
    if weight.number is None or not 1 <= weight.number <= 100:
        weight.error("it must be between 1 and 100")


def _claims(claims: Node) -> None:
    names: set[str] = set()
    for claim in claims.items():
        name = claim["name"].text
        complain(claim["name"], formats.dns_label(name))
        if name in names:
            claim["name"].error(f"{name} is declared twice")
        names.add(name)
        sources = [key for key in ("resourceClaimName", "resourceClaimTemplateName") if claim[key].text]
        if len(sources) != 1:
            claim.error("exactly one of resourceClaimName and resourceClaimTemplateName has to be given")
        for source in sources:
            complain(claim[source], formats.dns_subdomain(claim[source].text))


def uses_of(pod: Pod, claim: str) -> list[tuple[Role, Node]]:
    """Which containers name this claim of the pod, and where."""
    return [
        (container.role, each)
        for container in pod.containers
        for each in container.node.at("resources", "claims").items()
        if each["name"].text == claim
    ]
