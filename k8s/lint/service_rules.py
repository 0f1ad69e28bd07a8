"""Services, network policies, disruption budgets, claims for volumes, config: one object at a time.

From the API's ValidateService, ValidateNetworkPolicySpec, ValidatePodDisruptionBudgetSpec and their like. What needs a
second object is in `set_rules.py`.
"""

import base64
import ipaddress

from . import formats, objects
from .container_rules import check_port_number
from .formats import NoQuantity, quantity
from .node import Node
from .objects import complain, not_negative, one_of

CONFIG_BYTES_MAX = 1 << 20
_ACCESS = ("ReadWriteOnce", "ReadOnlyMany", "ReadWriteMany", "ReadWriteOncePod")


def check(root: Node) -> None:
    rule = {
        "Service": _service,
        "NetworkPolicy": _network_policy,
        "PodDisruptionBudget": _budget,
        "PersistentVolumeClaim": _volume_claim,
        "ConfigMap": _config,
        "Secret": _config,
        "PodMonitor": _monitor,
        "ServiceMonitor": _monitor,
        "PrometheusRule": _alerts,
    }.get(root["kind"].text)
    if rule is not None:
        rule(root)


def _service(root: Node) -> None:
    spec = root["spec"]
    kind, cluster_ip = spec["type"].text or "ClusterIP", spec["clusterIP"].text
    one_of(spec["type"], ("ClusterIP", "NodePort", "LoadBalancer", "ExternalName"))
    ports = list(spec["ports"].items())
    if not ports and cluster_ip != "None" and kind != "ExternalName":
        spec["ports"].error("a Service needs ports")
    if kind == "ExternalName":
        if not spec["externalName"].text:
            spec.error("externalName is missing")
        else:
            complain(spec["externalName"], formats.dns_subdomain(spec["externalName"].text.removesuffix(".")))
    if cluster_ip == "None" and kind in ("NodePort", "LoadBalancer"):
        spec["clusterIP"].error(f"a {kind} can't be headless")
    elif cluster_ip and cluster_ip != "None":
        complain(spec["clusterIP"], formats.address(cluster_ip))
    names: set[str] = set()
    taken: set[tuple[object, str]] = set()
    for port in ports:
        _service_port(port, kind, len(ports) > 1, names, taken)
    for key, value in spec["selector"].fields():
        complain(value, formats.qualified_name(key) or formats.label_value(value.text))
    one_of(spec["sessionAffinity"], ("None", "ClientIP"))
    seconds = spec.at("sessionAffinityConfig", "clientIP", "timeoutSeconds")
    if spec["sessionAffinityConfig"] and spec["sessionAffinity"].text != "ClientIP":
        spec["sessionAffinityConfig"].error("this is for sessionAffinity: ClientIP")
    if seconds.number is not None and not 0 < seconds.number <= 86400:
        seconds.error("it must be between 1 and 86400")
    outside = kind in ("NodePort", "LoadBalancer")
    if one_of(spec["externalTrafficPolicy"], ("Cluster", "Local")) and spec["externalTrafficPolicy"] and not outside:
        spec["externalTrafficPolicy"].error(f"a {kind} has none")
    one_of(spec["internalTrafficPolicy"], ("Cluster", "Local"))
    one_of(spec["trafficDistribution"], ("PreferClose", "PreferSameZone", "PreferSameNode"))
    one_of(spec["ipFamilyPolicy"], ("SingleStack", "PreferDualStack", "RequireDualStack"))
    for family in spec["ipFamilies"].items():
        one_of(family, ("IPv4", "IPv6"))
    for address in spec["externalIPs"].items():
        complain(address, formats.address(address.text))
    for network in spec["loadBalancerSourceRanges"].items():
        complain(network, formats.network(network.text.strip()))
    for key in ("loadBalancerSourceRanges", "loadBalancerClass", "allocateLoadBalancerNodePorts"):
        if spec[key] and kind != "LoadBalancer":
            spec[key].error(f"a {kind} has none")


def _service_port(port: Node, kind: str, named: bool, names: set[str], taken: set[tuple[object, str]]) -> None:
    name, number, protocol = port["name"], port["port"], port["protocol"].text or "TCP"
    if named and not name.text:
        port.error("name is missing: with several ports each needs one")
    if name.text:
        complain(name, formats.dns_label(name.text))
        if name.text in names:
            name.error(f"{name.text} stands twice")
        names.add(name.text)
    check_port_number(number)
    one_of(port["protocol"], ("TCP", "UDP", "SCTP"))
    if (number.number, protocol) in taken:
        number.error(f"{number.number} stands twice")
    taken.add((number.number, protocol))
    target = port["targetPort"]
    check_port_number(target)
    if target.text:
        complain(target, formats.port_name(target.text))
    check_port_number(port["nodePort"])
    if port["nodePort"].number and kind not in ("NodePort", "LoadBalancer"):
        port["nodePort"].error(f"a {kind} has none")


def _network_policy(root: Node) -> None:
    spec = root["spec"]
    objects.check_selector(spec["podSelector"])
    for each in spec["policyTypes"].items():
        one_of(each, ("Ingress", "Egress"))
    types = spec["policyTypes"].texts()
    for key, direction, peers in (("ingress", "Ingress", "from"), ("egress", "Egress", "to")):
        if types and spec[key] and direction not in types:
            spec[key].error(f"policyTypes don't name {direction}: these rules do nothing")
        for rule in spec[key].items():
            for port in rule["ports"].items():
                _policy_port(port)
            for peer in rule[peers].items():
                _peer(peer)


def _policy_port(port: Node) -> None:
    one_of(port["protocol"], ("TCP", "UDP", "SCTP"))
    check_port_number(port["port"])
    check_port_number(port["endPort"])
    if port["port"].value == "":
        port["port"].error("it is empty: neither a number nor a name")
    first, last = port["port"].number, port["endPort"].number
    if port["port"].text:
        complain(port["port"], formats.port_name(port["port"].text))
    if last is not None and (first is None or last < first):
        port["endPort"].error("it needs a port that is a number, and not greater")


def _peer(peer: Node) -> None:
    objects.check_selector(peer["podSelector"])
    objects.check_selector(peer["namespaceSelector"])
    block = peer["ipBlock"]
    if not block and not peer["podSelector"] and not peer["namespaceSelector"]:
        peer.error("one of podSelector, namespaceSelector and ipBlock has to be given")
    if not block:
        return
    if peer["podSelector"] or peer["namespaceSelector"]:
        block.error("there may be nothing beside it")
    why = formats.network(block["cidr"].text)
    complain(block["cidr"], why)
    for each in block["except"].items():
        complain(each, formats.network(each.text))
        if why or formats.network(each.text):
            continue
        outer = ipaddress.ip_network(block["cidr"].text, strict=False)
        inner = ipaddress.ip_network(each.text, strict=False)
        if outer.version != inner.version or outer == inner or not inner.subnet_of(outer):  # type: ignore[arg-type]
            each.error(f"{each.text} isn't within {block['cidr'].text}")


def _budget(root: Node) -> None:
    spec = root["spec"]
    least, most = spec["minAvailable"], spec["maxUnavailable"]
    if least and most:
        most.error("only one of minAvailable and maxUnavailable may be given")
    if not least and not most:
        spec.warn("neither minAvailable nor maxUnavailable is given: it holds minAvailable: 1")
    for each in (least, most):
        complain(each, formats.percent_or_count(each.value, at_most_100=True))
    objects.check_selector(spec["selector"])
    one_of(spec["unhealthyPodEvictionPolicy"], ("IfHealthyBudget", "AlwaysAllow"))


def _volume_claim(root: Node) -> None:
    spec = root["spec"]
    modes = spec["accessModes"]
    if not modes.value:
        spec.error("accessModes are missing")
    for mode in modes.items():
        one_of(mode, _ACCESS)
    if "ReadWriteOncePod" in modes.texts() and len(modes.texts()) > 1:
        modes.error("ReadWriteOncePod stands alone")
    one_of(spec["volumeMode"], ("Filesystem", "Block"))
    storage = spec.at("resources", "requests", "storage")
    if not storage:
        spec["resources"].error("requests.storage is missing")
        return
    try:
        if quantity(storage.value) <= 0:
            storage.error("it must be greater than zero")
    except NoQuantity as error:
        storage.error(str(error))
    for key, node in spec.at("resources", "requests").fields():
        if key != "storage":
            node.error(f"a claim for a volume can't ask for {key}")
    if spec["storageClassName"].text:
        complain(spec["storageClassName"], formats.dns_subdomain(spec["storageClassName"].text))


def _config(root: Node) -> None:
    size = 0
    fields = ("data", "binaryData") if root["kind"].text == "ConfigMap" else ("data", "stringData")
    seen: set[str] = set()
    for field in fields:
        for key, value in root[field].fields():
            complain(value, formats.config_key(key))
            if key in seen and root["kind"].text == "ConfigMap":
                value.error(f"{key} stands in data and binaryData")
            seen.add(key)
            coded = field == "binaryData" or (root["kind"].text == "Secret" and field == "data")
            try:
                size += len(base64.b64decode(value.text, validate=False)) if coded else len(value.text.encode())
            except ValueError:
                value.error("this is no base64")
    if size > CONFIG_BYTES_MAX:
        root.error(f"it has {size} bytes; the most are {CONFIG_BYTES_MAX}")


def _monitor(root: Node) -> None:
    spec = root["spec"]
    objects.check_selector(spec["selector"])
    for name in spec.at("namespaceSelector", "matchNames").items():
        complain(name, formats.dns_label(name.text))
    for key in ("podMetricsEndpoints", "endpoints"):
        for each in spec[key].items():
            given = [name for name in ("port", "portNumber", "targetPort") if each[name]]
            if len(given) != 1:
                each.error("exactly one of port and portNumber has to be given" if key[0] == "p" else "port is missing")
            check_port_number(each["portNumber"])
            not_negative(each["portNumber"])


def _alerts(root: Node) -> None:
    groups: set[str] = set()
    for group in root.at("spec", "groups").items():
        if group["name"].text in groups:
            group["name"].error(f"{group['name'].text} stands twice")
        groups.add(group["name"].text)
        for rule in group["rules"].items():
            for field in ("labels", "annotations"):
                for key, value in rule[field].fields():
                    if not key.isidentifier() or not key.isascii():
                        value.error(f"{key!r} is no name of a label of Prometheus")
            if bool(rule["alert"]) == bool(rule["record"]):
                rule.error("exactly one of alert and record has to be given")
            if rule["record"] and (rule["for"] or rule["annotations"]):
                rule.error("a recorded rule has neither `for` nor annotations")
