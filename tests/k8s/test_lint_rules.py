"""The API's own validation, rule by rule: one edit of the good set, and the sentence that it has to bring."""

import json
from typing import Any

import pytest

from k8s.lint import formats
from tests.k8s.manifests import DROP, GOOD, broken, errors, warnings

SPEC = "Deployment.spec.template.spec"
MAIN = f"{SPEC}.containers[0]"
SIDECAR = f"{SPEC}.initContainers[0]"
LIVE = f"{MAIN}.livenessProbe"
CLAIM = "ResourceClaimTemplate.spec.spec.devices"
REQUEST = f"{CLAIM}.requests[0]"


def volume(**source: Any) -> dict[str, Any]:
    return {
        f"{SPEC}.volumes[1]": {"name": "more", **source},
        f"{MAIN}.volumeMounts[1]": {"name": "more", "mountPath": "/more"},
    }


def env(**value: Any) -> dict[str, Any]:
    return {f"{MAIN}.env[1]": {"name": "X", **value}}


def toleration(**fields: Any) -> dict[str, Any]:
    return {f"{SPEC}.tolerations": [fields]}


def affinity(kind: str, when: str, value: Any) -> dict[str, Any]:
    return {f"{SPEC}.affinity": {kind: {f"{when}DuringSchedulingIgnoredDuringExecution": value}}}


def policy(**spec: Any) -> str:
    document = {"apiVersion": "networking.k8s.io/v1", "kind": "NetworkPolicy", "metadata": {"name": "x"}, "spec": spec}
    return json.dumps(document)


ERRORS: list[tuple[dict[str, Any], str]] = [
    ({f"{SPEC}.securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, "runAsNonRoot with runAsUser 0"),
    ({f"{SPEC}.securityContext": {"runAsNonRoot": True}, f"{MAIN}.securityContext": {"runAsUser": 0}}, "runAsNonRoot with"),
    ({f"{SPEC}.securityContext": {"runAsUser": 0}, f"{MAIN}.securityContext": {"runAsNonRoot": True}}, "runAsNonRoot with"),
    (volume(projected={"sources": [{"secret": {"name": "a"}}]}), "no Secret a here"),
    # metadata, labels, selectors
    ({"Deployment.metadata.name": DROP}, "name is missing"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["llm"]}]}, "match"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, "match"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "other", "operator": "Exists"}]}, "match"),
    # the workload
    ({"Deployment.spec.selector.matchLabels": {"app": "llm", "more": None}}, "the selector doesn't match"),
    ({"Deployment.spec.strategy.type": "Rolling"}, "'Rolling' is unknown"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}, "may not be 0"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "0%"}}}, "may not be 0"),
    # the pod
    ({f"{SPEC}.restartPolicy": "Sometimes"}, "is unknown"),
    ({f"{SPEC}.terminationGracePeriodSeconds": 0}, "killed at once"),
    (toleration(key="a", effect="Never"), "is unknown"),
    # claims of the pod
    ({f"{SPEC}.resourceClaims[0].name": "A"}, "no DNS label"),
    ({f"{SPEC}.resourceClaims[0].resourceClaimTemplateName": DROP}, "exactly one of resourceClaimName"),
    ({f"{SPEC}.resourceClaims[1]": {"name": "more", "resourceClaimTemplateName": "gpus"}}, "no container uses the claim"),
    # containers
    ({f"{MAIN}.name": "A"}, "no DNS label"),
    ({f"{MAIN}.image": DROP}, "it is missing"),
    ({f"{SIDECAR}.restartPolicy": "Never"}, "refused before 1.35"),
    ({f"{MAIN}.ports[0].containerPort": 0}, "between 1 and 65535"),
    ({f"{SIDECAR}.ports": [{"containerPort": 8000}]}, "has port 8000, too"),
    (env(valueFrom={"fieldRef": {"fieldPath": "spec.hostname"}}), "can't be had as a variable"),
    ({f"{MAIN}.resources.requests": {"memory": "9Gi"}}, "more than the limit"),
    ({f"{MAIN}.resources.limits.memory": "-1"}, "must not be negative"),
    # probes and hooks
    ({f"{LIVE}.httpGet": DROP, f"{LIVE}.tcpSocket": {"port": 1}}, "no container of this pod declares port 1"),
    ({f"{SIDECAR}.startupProbe.exec": DROP, f"{SIDECAR}.startupProbe.tcpSocket": {"port": 9000}}, "the pod never starts"),
    ({f"{MAIN}.lifecycle": {"preStop": {}}}, "has to be given"),
    ({f"{MAIN}.lifecycle": {"preStop": {"sleep": {"seconds": 61}}}}, "between 0 and the pod's"),
    ({f"{MAIN}.lifecycle": {"preStop": {"sleep": {"seconds": -1}}}}, "between 0 and the pod's"),
    ({f"{MAIN}.lifecycle": {"preStop": {"tcpSocket": {"port": 8000}}}}, "no such hook"),
    ({f"{MAIN}.lifecycle": {"postStart": {"httpGet": {"path": "/", "port": "nope"}}}}, "declares no port 'nope'"),
    ({f"{SIDECAR}.restartPolicy": DROP, f"{SIDECAR}.lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "native sidecar"),
    # volumes
    ({f"{SPEC}.volumes[0].name": "A"}, "no DNS label"),
    ({f"{SPEC}.volumes[1]": {"name": "run", "emptyDir": {}}}, "declared twice"),
    ({f"{SPEC}.volumes[0].emptyDir.medium": "Disk"}, "unknown to kubelet"),
    ({f"{SPEC}.volumes[0].emptyDir.sizeLimit": "-1"}, "must not be negative"),
    ({f"{MAIN}.volumeMounts[0].mountPath": "/"}, "container's root"),
    ({f"{MAIN}.volumeMounts[1]": {"name": "run", "mountPath": "/run/failover/"}}, "mounted twice"),
    # security
    # claims
    ({f"{CLAIM}.requests": []}, "asks for nothing"),
    ({f"{REQUEST}.firstAvailable": [{"name": "a", "deviceClassName": "gpu.nvidia.com"}]}, "exactly one of exactly"),
    ({f"{REQUEST}.exactly": DROP}, "exactly one of exactly"),
    ({f"{REQUEST}.exactly.count": 0}, "greater than zero"),
    ({f"{REQUEST}.exactly.selectors[0].cel.expression": ""}, "it is empty"),
    # the Service
    ({"Service.spec.ports[0].targetPort": 8001}, "declares the port 8001"),
    ({"Service.spec.ports[0].targetPort": DROP}, "declares the port 80"),
    # the budget
    # the set
    (env(valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}), "no ConfigMap a here"),
    (env(valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}), "no Secret a here"),
    ({f"{MAIN}.envFrom": [{"secretRef": {"name": "a"}}]}, "no Secret a here"),
    (volume(configMap={"name": "a"}), "no ConfigMap a here"),
    (volume(secret={"secretName": "a"}), "no Secret a here"),
    (volume(persistentVolumeClaim={"claimName": "a"}), "no PersistentVolumeClaim a here"),
    ({f"{SPEC}.serviceAccountName": "a"}, "no ServiceAccount a here"),
    ({f"{SPEC}.priorityClassName": "a"}, "no PriorityClass a here"),
    ({f"{SPEC}.runtimeClassName": "nvidia"}, "no RuntimeClass nvidia here"),
    ({f"{SPEC}.imagePullSecrets": [{"name": "a"}]}, "no Secret a here"),
    ({f"{SPEC}.resourceClaims[0]": {"name": "gpus", "resourceClaimName": "a"}}, "no ResourceClaim a here"),
    ({"ResourceClaimTemplate.metadata.namespace": "other"}, "is in other"),
    ({"Service.metadata.namespace": "other"}, "no pod here has the labels"),
    ({"PodDisruptionBudget.metadata.namespace": "other"}, "no pod here is selected"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "says"), ERRORS, ids=[f"{n}-{says}" for n, (_, says) in enumerate(ERRORS)])
def test_an_error_is_found(edits: dict[str, Any], says: str) -> None:
    assert any(says in error for error in errors(broken(GOOD, edits))), errors(broken(GOOD, edits))


WARNINGS: list[tuple[dict[str, Any], str]] = [
    ({"Deployment.metadata.name": DROP, "Deployment.metadata.generateName": "x-"}, "`kubectl apply` needs a name"),
    ({f"{MAIN}.volumeMounts[0].mountPath": "run"}, "kubelet takes it for /run"),
    ({f"{SPEC}.volumes[1]": {"name": "more", "emptyDir": {}}}, "no container mounts more"),
    ({f"{SPEC}.volumes[0].emptyDir.sizeLimit": DROP}, "without a sizeLimit"),
    ({f"{MAIN}.image": "registry.example.com:5000/x:latest"}, "it is :latest"),
    ({f"{MAIN}.image": "registry.example.com:5000/x"}, "it is :latest"),
    ({f"{MAIN}.env[1]": {"name": "ENGINE_ROLE", "value": "primary"}}, "set twice"),
    ({f"{MAIN}.env[1]": {"name": "X", "value": "$(NOPE)"}}, "$(NOPE) stays as it is"),
    ({f"{MAIN}.args": ["$(NOPE)"]}, "$(NOPE) stays as it is"),
    ({f"{SPEC}.containers[1].ports[0].name": "http"}, "has a port http, too"),
    ({f"{MAIN}.resources.limits.memory": "100m"}, "M or Mi is meant"),
    ({f"{MAIN}.resources.limits": {"nvidia.com/gpu": 1}}, "booked twice"),
    ({f"{LIVE}.httpGet.port": 9010}, "is engine-b's"),
    ({f"{LIVE}.terminationGracePeriodSeconds": 61}, "longer than the pod's own"),
    ({f"{REQUEST}.exactly.deviceClassName": "gpu.example.com"}, "no class gpu.example.com"),
    ({f"{CLAIM}.config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"sharing": {"strategy": "MPS"}}}}]}, "alpha"),
    ({"PodDisruptionBudget.spec.maxUnavailable": 0}, "never lets one go"),
    ({"PodDisruptionBudget.spec.maxUnavailable": DROP, "PodDisruptionBudget.spec.minAvailable": 1}, "never lets one go"),
    (
        {f"{MAIN}.volumeMounts[0].readOnly": True, f"{MAIN}.volumeMounts[1]": {"name": "run", "mountPath": "/run/failover/x"}},
        "has to be there already",
    ),
]  # fmt: skip


@pytest.mark.parametrize(
    "image", ["x:1", "registry.example.com:5000/x:1", "x@sha256:" + "0" * 64, "x:latest@sha256:" + "0" * 64]
)
def test_an_image_whose_version_is_named_brings_no_warning(image: str) -> None:
    assert not any(":latest" in each for each in warnings(broken(GOOD, {f"{MAIN}.image": image})))


@pytest.mark.parametrize(("edits", "says"), WARNINGS, ids=[f"{n}-{says}" for n, (_, says) in enumerate(WARNINGS)])
def test_a_warning_is_given_and_rejects_nothing(edits: dict[str, Any], says: str) -> None:
    findings = broken(GOOD, edits)
    assert any(says in warning for warning in warnings(findings)), warnings(findings)
    assert errors(findings) == []


VALID: list[dict[str, Any]] = [
    {},
    {"Deployment.spec.strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": "100%"}}},
    {"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "In", "values": ["llm", "x"]}]},
    {f"{SPEC}.tolerations": [{"operator": "Exists"}]},
    {f"{SPEC}.tolerations": [{"key": "nvidia.com/gpu", "effect": "NoExecute", "tolerationSeconds": 5}]},
    {f"{REQUEST}.exactly.allocationMode": "All", f"{REQUEST}.exactly.count": DROP},
    {f"{REQUEST}.exactly.count": DROP, f"{REQUEST}.exactly.allocationMode": DROP},
    {
        f"{REQUEST}.exactly": DROP,
        f"{REQUEST}.firstAvailable": [
            {"name": "large", "deviceClassName": "gpu.nvidia.com"},
            {"name": "two", "deviceClassName": "gpu.nvidia.com", "count": 2, "allocationMode": "ExactCount"},
        ],
        f"{MAIN}.resources.claims[0].request": "gpu/large",
    },
    {f"{CLAIM}.constraints": [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": ["gpu"]}]},
    {f"{MAIN}.resources.claims[0].request": "gpu"},
    {f"{MAIN}.resources.claims[1]": {"name": "gpus", "request": "gpu"}},
    {f"{MAIN}.env[1]": {"name": "X", "value": None, "valueFrom": {"fieldRef": {"fieldPath": "metadata.labels['app']"}}}},
    {f"{MAIN}.env[1]": {"name": "X", "value": "$$(NOPE) $(ENGINE_ROLE)"}},
    {f"{MAIN}.envFrom": [{"configMapRef": {"name": "nope", "optional": True}}]},
    {f"{MAIN}.resources.limits": {"cpu": "1500m", "memory": "1e9", "ephemeral-storage": "1.5Gi"}},
    {f"{MAIN}.securityContext": {"capabilities": {"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}}},
    {f"{MAIN}.resources.claims": None, f"{SPEC}.tolerations": None},
    {f"{MAIN}.image": "registry.example.com:5000/a/b-c@sha256:" + "0" * 64},
    {f"{MAIN}.lifecycle": {"preStop": {"sleep": {"seconds": 60}}}},
    {f"{SPEC}.initContainers[2]": {"name": "copy", "image": "x", "ports": [{"containerPort": 8000}]}},
    {f"{SPEC}.initContainers[2]": {"name": "more", "image": "x", "restartPolicy": "Always"}},
    {"Service.spec.clusterIP": "None"},
    {"Service.spec.type": "LoadBalancer", "Service.spec.loadBalancerSourceRanges": ["10.0.0.0/8"]},
    {"PodDisruptionBudget.spec.maxUnavailable": "50%"},
    {f"{SPEC}.dnsConfig": {"searches": ["a_b.c.", "."], "nameservers": ["::1"]}, f"{SPEC}.dnsPolicy": "None"},
    {f"{SPEC}.serviceAccountName": "default"},
    affinity("podAntiAffinity", "required", [{"topologyKey": "kubernetes.io/hostname", "labelSelector": {}}]),
]  # fmt: skip


@pytest.mark.parametrize("edits", VALID, ids=map(str, range(len(VALID))))
def test_a_valid_variation_is_taken(edits: dict[str, Any]) -> None:
    assert errors(broken(GOOD, edits)) == []


CONFIG = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\ndata: {b: x}\n"
SECRET = "apiVersion: v1\nkind: Secret\nmetadata: {name: a}\nstringData: {b: x}\n"
STANDALONE = """
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: mine}
spec: {devices: {requests: [{name: one, exactly: {deviceClassName: gpu.nvidia.com}}]}}
"""
VOLUME = """
apiVersion: v1
kind: PersistentVolumeClaim
metadata: {name: a}
spec: {accessModes: [%s], resources: {requests: {storage: %s}}%s}
"""


@pytest.mark.parametrize(
    ("edits", "more", "says"),
    [
        (env(valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}), CONFIG, ""),
        (env(valueFrom={"configMapKeyRef": {"name": "a", "key": "c"}}), CONFIG, "has no c; it has: b"),
        (env(valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}), SECRET, ""),
        (env(valueFrom={"secretKeyRef": {"name": "a", "key": "c"}}), SECRET, "has no c; it has: b"),
        (volume(configMap={"name": "a", "items": [{"key": "c", "path": "x"}]}), CONFIG, "has no c"),
        (env(valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}), CONFIG.replace("a}", "a, namespace: x}"), "is in x"),
        ({f"{SPEC}.resourceClaims[0]": {"name": "gpus", "resourceClaimName": "mine"}}, STANDALONE, ""),
        (
            {
                f"{SPEC}.resourceClaims[0]": {"name": "gpus", "resourceClaimName": "mine"},
                f"{MAIN}.resources.claims[0].request": "gpu",
            },
            STANDALONE,
            "no request 'gpu'; it has: one",
        ),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("ReadWriteOnce", "1Gi", ""), ""),
        (
            volume(persistentVolumeClaim={"claimName": "a"}) | {"Deployment.spec.replicas": 2},
            VOLUME % ("ReadWriteOnce", "1", ""),
            "2 pods can't share",
        ),
        ({}, GOOD.split("---")[2], "there are two Service llm"),
        ({}, policy(podSelector={"matchLabels": {"app": "llm"}}, ingress=[{"ports": [{"port": 8000}]}]), ""),
        ({}, policy(podSelector={"matchLabels": {"app": "llm"}}, ingress=[{"ports": [{"port": "htp"}]}]), "declares the port"),
        ({}, policy(podSelector={"matchLabels": {"app": "x"}}), "no pod here is selected"),
        ({}, policy(podSelector={}, egress=[{"to": [{"ipBlock": {"cidr": "::/0", "except": ["fd00::/8"]}}]}]), ""),
    ],
)  # fmt: skip
def test_what_needs_two_objects(edits: dict[str, Any], more: str, says: str) -> None:
    found = errors(broken(GOOD, edits, more))
    if says:
        assert any(says in error for error in found), found
    else:
        assert found == []


def test_an_object_on_the_cluster_is_named() -> None:
    edits = env(valueFrom={"secretKeyRef": {"name": "a", "key": "b"}})
    assert errors(broken(GOOD, edits, have=(("Secret", "a"),))) == []


@pytest.mark.parametrize(
    ("text", "value"),
    [("1", 1), ("1.5", 1.5), ("500m", 0.5), ("1Ki", 1024), ("2Mi", 2 << 20), ("1k", 1000), ("1e3", 1000), ("1E3", 1000),
     ("1E", 10**18), ("-1", -1), ("+1", 1), (".5", 0.5), ("5.", 5), (7, 7), (0.5, 0.5), ("1u", 1e-6), ("3n", 3e-9)],
)  # fmt: skip
def test_a_quantity_is_read(text: object, value: float) -> None:
    assert float(formats.quantity(text)) == pytest.approx(value)


@pytest.mark.parametrize("text", ["", "x", "1 Gi", "1GB", "1Ki1", "1e", "--1", "1,5", True, None, "1e3Mi", "٣"])
def test_what_is_no_quantity_is_said(text: object) -> None:
    with pytest.raises(formats.NoQuantity):
        formats.quantity(text)
