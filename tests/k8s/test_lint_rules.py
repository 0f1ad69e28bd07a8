"""The API's own validation, rule by rule: one edit of the good set, and the sentence that it has to bring."""

import json
from typing import Any

import pytest

from k8s.lint import cel, formats
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
    # metadata, labels, selectors
    ({"Deployment.metadata.name": DROP}, "name is missing"),
    ({"Service.metadata.name": "1llm"}, "DNS-1035"),
    ({"Deployment.metadata.namespace": "A.b"}, "no DNS label"),
    ({"Deployment.metadata.labels.a b": "x"}, "no qualified name"),
    ({"Deployment.metadata.labels": {"-/x": "y"}}, "before the /"),
    ({"Deployment.metadata.labels.x": "a b"}, "value of a label"),
    ({"Deployment.metadata.annotations": {"a b": "x"}}, "no qualified name"),
    ({"Deployment.metadata.annotations": {"a": "x" * (257 << 10)}}, "annotations have"),
    ({"Deployment.metadata.finalizers": ["a b"]}, "no qualified name"),
    ({"Deployment.spec.template.metadata.labels.y": "-"}, "value of a label"),
    ({"Deployment.spec.selector": {}}, "may not be empty"),
    ({"Deployment.spec.selector.matchLabels.app": "-"}, "value of a label"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "In"}]}, "values are missing"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "Exists", "values": ["a"]}]}, "none with"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "Is"}]}, "'Is' is unknown"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "NotIn", "values": ["llm"]}]}, "match"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "DoesNotExist"}]}, "match"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "other", "operator": "Exists"}]}, "match"),
    ({"Deployment.spec.selector.matchExpressions": [{"key": "app", "operator": "In", "values": ["a b"]}]}, "value of a"),
    # the workload
    ({"Deployment.spec.replicas": -1}, "must not be negative"),
    ({"Deployment.spec.replicas": 1 << 31}, "is not a 'int32'"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxUnavailable": 10**30}}}, "nor 2^31 or more"),
    ({"Deployment.spec.selector.matchLabels": {"app": "llm", "more": None}}, "the selector doesn't match"),
    ({f"{LIVE}.httpGet.port": ""}, "port is missing"),
    ({"Deployment.spec.minReadySeconds": -1}, "must not be negative"),
    ({"Deployment.spec.minReadySeconds": 600}, "greater than minReadySeconds"),
    ({"Deployment.spec.progressDeadlineSeconds": 0}, "greater than minReadySeconds"),
    ({"Deployment.spec.revisionHistoryLimit": -1}, "must not be negative"),
    ({"Deployment.spec.strategy.type": "Rolling"}, "'Rolling' is unknown"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxSurge": 0, "maxUnavailable": 0}}}, "may not be 0"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxSurge": "0%", "maxUnavailable": "0%"}}}, "may not be 0"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxSurge": -1}}}, "must not be negative"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxUnavailable": "101%"}}}, "more than 100%"),
    ({"Deployment.spec.strategy": {"rollingUpdate": {"maxUnavailable": "many"}}}, "percentage"),
    # the pod
    ({f"{SPEC}.restartPolicy": "OnFailure"}, "can only have Always"),
    ({f"{SPEC}.restartPolicy": "Sometimes"}, "is unknown"),
    ({f"{SPEC}.activeDeadlineSeconds": 5}, "may not have one"),
    ({f"{SPEC}.activeDeadlineSeconds": 0}, "must be between 1"),
    ({f"{SPEC}.terminationGracePeriodSeconds": 0}, "killed at once"),
    ({f"{SPEC}.dnsPolicy": "Nope"}, "is unknown"),
    ({f"{SPEC}.dnsPolicy": "None"}, "needs a dnsConfig"),
    ({f"{SPEC}.dnsConfig": {"nameservers": ["1.1.1.1"] * 4}}, "three at most"),
    ({f"{SPEC}.dnsConfig": {"nameservers": ["one"]}}, "no IP address"),
    ({f"{SPEC}.dnsConfig": {"searches": ["a"] * 33}}, "32 at most"),
    ({f"{SPEC}.dnsConfig": {"searches": ["A b"]}}, "no DNS name"),
    ({f"{SPEC}.dnsConfig": {"options": [{"value": "5"}]}}, "name is missing"),
    ({f"{SPEC}.hostname": "A"}, "no DNS label"),
    ({f"{SPEC}.subdomain": "a.b"}, "no DNS label"),
    ({f"{SPEC}.nodeName": "A"}, "no DNS name"),
    ({f"{SPEC}.serviceAccountName": "A"}, "no DNS name"),
    ({f"{SPEC}.preemptionPolicy": "Maybe"}, "is unknown"),
    ({f"{SPEC}.os": {"name": "macos"}}, "is unknown"),
    ({f"{SPEC}.ephemeralContainers": [{"name": "x", "image": "x"}]}, "can't be in a manifest"),
    ({f"{SPEC}.hostAliases": [{"ip": "x", "hostnames": ["A"]}]}, "no IP address"),
    ({f"{SPEC}.hostAliases": [{"ip": "::1", "hostnames": ["A"]}]}, "no DNS name"),
    ({f"{SPEC}.readinessGates": [{"conditionType": "a b"}]}, "no qualified name"),
    ({f"{SPEC}.schedulingGates": [{"name": "a"}, {"name": "a"}]}, "stands twice"),
    ({f"{SPEC}.schedulingGates": [{"name": "a b"}]}, "no qualified name"),
    ({f"{SPEC}.imagePullSecrets": [{}]}, "name is missing"),
    (toleration(operator="Equal"), "without a key"),
    (toleration(key="a b"), "no qualified name"),
    (toleration(key="a", operator="Exists", value="x"), "may be no value"),
    (toleration(key="a", value="a b"), "value of a label"),
    (toleration(key="a", effect="Never"), "is unknown"),
    (toleration(key="a", effect="NoSchedule", tolerationSeconds=5), "needs the effect NoExecute"),
    ({f"{SPEC}.nodeSelector": {"a b": "x"}}, "no qualified name"),
    (affinity("nodeAffinity", "required", {"nodeSelectorTerms": []}), "at least one"),
    (affinity("nodeAffinity", "required", {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "In"}]}]}), "In needs some"),
    (affinity("nodeAffinity", "required", {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["x"]}]}]}), "may be none"),
    (affinity("nodeAffinity", "required", {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Gt", "values": []}]}]}), "exactly one"),
    (affinity("nodeAffinity", "required", {"nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Is"}]}]}), "is unknown"),
    (affinity("nodeAffinity", "required", {"nodeSelectorTerms": [{"matchFields": [{"key": "a", "operator": "In", "values": ["x"]}]}]}), "no field to choose"),
    (affinity("nodeAffinity", "required", {"nodeSelectorTerms": [{"matchFields": [{"key": "metadata.name", "operator": "Gt", "values": ["x"]}]}]}), "take In or NotIn"),
    (affinity("nodeAffinity", "preferred", [{"weight": 0, "preference": {}}]), "between 1 and 100"),
    (affinity("podAntiAffinity", "required", [{"topologyKey": ""}]), "can't be empty"),
    (affinity("podAntiAffinity", "required", [{"topologyKey": "a b"}]), "no qualified name"),
    (affinity("podAffinity", "preferred", [{"weight": 101, "podAffinityTerm": {"topologyKey": "a"}}]), "between 1 and 100"),
    (affinity("podAffinity", "required", [{"topologyKey": "a", "namespaces": ["A"]}]), "no DNS label"),
    ({f"{SPEC}.topologySpreadConstraints": [{"maxSkew": 0, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule"}]}, "1 or more"),
    ({f"{SPEC}.topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "Cry"}]}, "is unknown"),
    ({f"{SPEC}.topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "ScheduleAnyway", "minDomains": 2}]}, "needs whenUnsatisfiable"),
    ({f"{SPEC}.topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "a", "whenUnsatisfiable": "DoNotSchedule", "nodeTaintsPolicy": "x"}]}, "is unknown"),
    # claims of the pod
    ({f"{SPEC}.resourceClaims[0].name": "A"}, "no DNS label"),
    ({f"{SPEC}.resourceClaims[0].resourceClaimTemplateName": DROP}, "exactly one of resourceClaimName"),
    ({f"{SPEC}.resourceClaims[0].resourceClaimTemplateName": "A"}, "no DNS name"),
    ({f"{SPEC}.resourceClaims[1]": {"name": "more", "resourceClaimTemplateName": "gpus"}}, "no container uses the claim"),
    ({f"{MAIN}.resources.claims[1]": {"name": "gpus"}}, "stands twice"),
    ({f"{MAIN}.resources": {"requests": {"memory": "1Mi"}, "limits": {"memory": None}}}, "more than the limit"),
    # containers
    ({f"{MAIN}.name": "A"}, "no DNS label"),
    ({f"{MAIN}.image": " example/x"}, "space around it"),
    ({f"{MAIN}.image": "example/X:1"}, "no name of an image"),
    ({f"{MAIN}.image": DROP}, "it is missing"),
    ({f"{MAIN}.terminationMessagePolicy": "x"}, "is unknown"),
    ({f"{MAIN}.terminationMessagePath": "x"}, "no absolute path"),
    ({f"{MAIN}.workingDir": "x"}, "no absolute path"),
    ({f"{SIDECAR}.restartPolicy": "Never"}, "refused before 1.35"),
    ({f"{MAIN}.restartPolicyRules": [{"action": "Restart", "exitCodes": {"operator": "In", "values": [1]}}]}, "rules need"),
    ({f"{MAIN}.ports[0].name": "HTTP"}, "no name of a port"),
    ({f"{MAIN}.ports[0].name": "a--b"}, "no name of a port"),
    ({f"{MAIN}.ports[0].name": "0123456789abcdef"}, "no name of a port"),
    ({f"{MAIN}.ports[0].containerPort": 0}, "between 1 and 65535"),
    ({f"{MAIN}.ports[0].hostPort": 65536}, "between 1 and 65535"),
    ({f"{MAIN}.ports[0].protocol": "HTTP"}, "is unknown"),
    ({f"{MAIN}.ports[0].hostIP": "x"}, "no IP address"),
    ({f"{MAIN}.ports[0].hostPort": 80, f"{MAIN}.ports[1].hostPort": 80}, "hostPort of two ports"),
    ({f"{SPEC}.hostNetwork": True, f"{MAIN}.ports[0].hostPort": 80}, "has to be the containerPort"),
    ({f"{SIDECAR}.ports": [{"containerPort": 8000}]}, "has port 8000, too"),
    ({f"{MAIN}.env[0].name": "A=B"}, "no name of a variable"),
    ({f"{MAIN}.env[0].name": ""}, "no name of a variable"),
    (env(valueFrom={}), "exactly one of fieldRef"),
    (env(valueFrom={"fieldRef": {"fieldPath": "metadata.name"}, "secretKeyRef": {"name": "x", "key": "y"}}), "exactly one"),
    (env(valueFrom={"fieldRef": {"fieldPath": "metadata.name", "apiVersion": "v2"}}), "allowed: v1"),
    (env(valueFrom={"fieldRef": {"fieldPath": "metadata.labels['a b']"}}), "no qualified name"),
    (env(valueFrom={"fieldRef": {"fieldPath": "spec.hostname"}}), "can't be had as a variable"),
    (env(valueFrom={"resourceFieldRef": {"resource": "limits.gpu"}}), "is unknown"),
    (env(valueFrom={"resourceFieldRef": {"resource": "limits.cpu", "divisor": "1Mi"}}), "can't divide"),
    (env(valueFrom={"resourceFieldRef": {"resource": "limits.memory", "divisor": "3"}}), "can't divide"),
    (env(valueFrom={"secretKeyRef": {"name": "A", "key": "y"}}), "no DNS name"),
    (env(valueFrom={"secretKeyRef": {"name": "a", "key": "a b"}}), "no key of a config map"),
    ({f"{MAIN}.envFrom": [{"prefix": "X"}]}, "exactly one of configMapRef"),
    ({f"{MAIN}.envFrom": [{"prefix": "=", "secretRef": {"name": "a", "optional": True}}]}, "no name of a variable"),
    ({f"{MAIN}.envFrom": [{"configMapRef": {"name": "A", "optional": True}}]}, "no DNS name"),
    ({f"{MAIN}.resources.requests": {"memory": "9Gi"}}, "more than the limit"),
    ({f"{MAIN}.resources.limits.cpu": "0.0001"}, "finer than a thousandth"),
    ({f"{MAIN}.resources.limits.memory": "-1"}, "must not be negative"),
    ({f"{MAIN}.resources.limits.gpu": "1"}, "no resource 'gpu'"),
    ({f"{MAIN}.resources.limits": {"a b/c": "1"}}, "before the /"),
    ({f"{MAIN}.resources.limits": {"nvidia.com/gpu": "0.5"}}, "only whole numbers"),
    ({f"{MAIN}.resources.requests": {"nvidia.com/gpu": "1"}}, "have to be the same"),
    ({f"{MAIN}.resizePolicy": [{"resourceName": "gpu", "restartPolicy": "NotRequired"}]}, "is unknown"),
    ({f"{MAIN}.resizePolicy": [{"resourceName": "cpu", "restartPolicy": "x"}]}, "is unknown"),
    ({f"{MAIN}.resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}] * 2}, "stands twice"),
    # probes and hooks
    ({f"{LIVE}.httpGet": DROP, f"{LIVE}.exec": {"command": []}}, "command is missing"),
    ({f"{LIVE}.httpGet.scheme": "http"}, "is unknown"),
    ({f"{LIVE}.httpGet.httpHeaders": [{"name": "a b", "value": ""}]}, "no name of an HTTP header"),
    ({f"{LIVE}.httpGet.port": 0}, "between 1 and 65535"),
    ({f"{LIVE}.httpGet.port": "PROBE"}, "no name of a port"),
    ({f"{LIVE}.httpGet": DROP, f"{LIVE}.grpc": {"port": 70000}}, "between 1 and 65535"),
    ({f"{LIVE}.periodSeconds": -1}, "must not be negative"),
    ({f"{LIVE}.timeoutSeconds": -1}, "must not be negative"),
    ({f"{LIVE}.initialDelaySeconds": -1}, "must not be negative"),
    ({f"{LIVE}.failureThreshold": -1}, "must not be negative"),
    ({f"{LIVE}.terminationGracePeriodSeconds": 0}, "greater than 0"),
    ({f"{LIVE}.httpGet": DROP, f"{LIVE}.tcpSocket": {"port": 1}}, "no container of this pod declares port 1"),
    ({f"{SIDECAR}.startupProbe.exec": DROP, f"{SIDECAR}.startupProbe.tcpSocket": {"port": 9000}}, "the pod never starts"),
    ({f"{MAIN}.lifecycle": {"preStop": {}}}, "has to be given"),
    ({f"{MAIN}.lifecycle": {"preStop": {"sleep": {"seconds": 61}}}}, "between 0 and the pod's"),
    ({f"{MAIN}.lifecycle": {"preStop": {"sleep": {"seconds": -1}}}}, "between 0 and the pod's"),
    ({f"{MAIN}.lifecycle": {"preStop": {"tcpSocket": {"port": 8000}}}}, "no such hook"),
    ({f"{MAIN}.lifecycle": {"postStart": {"httpGet": {"path": "/", "port": "nope"}}}}, "declares no port 'nope'"),
    ({f"{MAIN}.lifecycle": {"stopSignal": "SIGTERM"}}, "needs the pod's os.name"),
    ({f"{SIDECAR}.restartPolicy": DROP, f"{SIDECAR}.lifecycle": {"preStop": {"sleep": {"seconds": 1}}}}, "native sidecar"),
    # volumes
    ({f"{SPEC}.volumes[0].name": "A"}, "no DNS label"),
    ({f"{SPEC}.volumes[1]": {"name": "run", "emptyDir": {}}}, "declared twice"),
    ({f"{SPEC}.volumes[0].hostPath": {"path": "/x"}}, "one source"),
    ({f"{SPEC}.volumes[0].emptyDir.medium": "Disk"}, "unknown to kubelet"),
    ({f"{SPEC}.volumes[0].emptyDir.sizeLimit": "-1"}, "must not be negative"),
    (volume(configMap={}), "name is missing"),
    (volume(configMap={"name": "A"}), "no DNS name"),
    (volume(configMap={"name": "a", "optional": True, "defaultMode": 512}), "no mode"),
    (volume(configMap={"name": "a", "optional": True, "items": [{"key": "a b", "path": "x"}]}), "no key"),
    (volume(configMap={"name": "a", "optional": True, "items": [{"key": "a", "path": "/x"}]}), "relative"),
    (volume(configMap={"name": "a", "optional": True, "items": [{"key": "a", "path": ""}]}), "path is missing"),
    (volume(secret={"secretName": "a", "optional": True, "items": [{"key": "a", "path": "../x"}]}), "'..'"),
    (volume(secret={"secretName": "a", "optional": True, "items": [{"key": "a", "path": "x"}] * 2}), "stands twice"),
    (volume(secret={"secretName": "a", "optional": True, "items": [{"key": "a", "path": "x", "mode": -1}]}), "no mode"),
    (volume(hostPath={"path": ""}), "path is missing"),
    (volume(hostPath={"path": "/a/../b"}), "'..'"),
    (volume(hostPath={"path": "/a", "type": "Dir"}), "is unknown"),
    (volume(nfs={"server": "a", "path": "b"}), "absolute path"),
    (volume(gitRepo={"repository": "x"}), "taken out of Kubernetes"),
    (volume(image={"reference": "A b"}), "no name of an image"),
    (volume(image={"reference": "a", "pullPolicy": "x"}), "is unknown"),
    (volume(downwardAPI={"items": [{"path": "x"}]}), "exactly one of fieldRef"),
    (volume(downwardAPI={"items": [{"path": "x", "fieldRef": {"fieldPath": "status.podIP"}}]}), "as a file"),
    (volume(downwardAPI={"items": [{"path": "x", "resourceFieldRef": {"resource": "limits.cpu"}}]}), "containerName"),
    (volume(downwardAPI={"items": [{"path": "", "fieldRef": {"fieldPath": "metadata.name"}}]}), "path is missing"),
    (volume(projected={"sources": [{}]}), "a source is one of"),
    (volume(projected={"sources": [{"configMap": {}}]}), "name is missing"),
    (volume(projected={"sources": [{"serviceAccountToken": {"path": "x", "expirationSeconds": 5}}]}), "10 minutes"),
    (volume(projected={"sources": [{"serviceAccountToken": {"path": ""}}]}), "path is missing"),
    (volume(projected={"sources": [{"downwardAPI": {"items": [{"path": "x"}]}}]}), "exactly one"),
    (volume(persistentVolumeClaim={"claimName": "A"}), "no DNS name"),
    ({f"{MAIN}.volumeMounts[0].mountPath": "/a:b"}, "must not contain ':'"),
    ({f"{MAIN}.volumeMounts[0].mountPath": "/"}, "container's root"),
    ({f"{MAIN}.volumeMounts[0].mountPath": ""}, "mountPath is missing"),
    ({f"{MAIN}.volumeMounts[0].mountPath": "/a/../b"}, "'..'"),
    ({f"{MAIN}.volumeMounts[0].subPath": "/x"}, "relative"),
    ({f"{MAIN}.volumeMounts[0].subPath": "x", f"{MAIN}.volumeMounts[0].subPathExpr": "y"}, "only one of"),
    ({f"{MAIN}.volumeMounts[0].mountPropagation": "x"}, "is unknown"),
    ({f"{MAIN}.volumeMounts[0].mountPropagation": "Bidirectional"}, "privileged containers only"),
    ({f"{MAIN}.volumeMounts[0].recursiveReadOnly": "x"}, "is unknown"),
    ({f"{MAIN}.volumeMounts[0].recursiveReadOnly": "Enabled"}, "needs readOnly: true"),
    ({f"{MAIN}.volumeMounts[1]": {"name": "run", "mountPath": "/run/failover/"}}, "mounted twice"),
    ({f"{MAIN}.volumeDevices": [{"name": "nope", "devicePath": "/dev/x"}]}, "no volume 'nope'"),
    ({f"{MAIN}.volumeDevices": [{"name": "run", "devicePath": "/dev/x"}]}, "has to be a persistentVolumeClaim"),
    # security
    ({f"{SPEC}.securityContext": {"runAsUser": -1}}, "between 0 and"),
    ({f"{SPEC}.securityContext": {"fsGroup": 1 << 31}}, "between 0 and"),
    ({f"{SPEC}.securityContext": {"supplementalGroups": [-1]}}, "between 0 and"),
    ({f"{SPEC}.securityContext": {"fsGroup": 1, "fsGroupChangePolicy": "x"}}, "is unknown"),
    ({f"{SPEC}.securityContext": {"fsGroupChangePolicy": "Always"}}, "without fsGroup"),
    ({f"{SPEC}.securityContext": {"supplementalGroupsPolicy": "x"}}, "is unknown"),
    ({f"{SPEC}.securityContext": {"seccompProfile": {"type": "x"}}}, "is unknown"),
    ({f"{SPEC}.securityContext": {"seccompProfile": {"type": "Localhost"}}}, "needs a localhostProfile"),
    ({f"{SPEC}.securityContext": {"seccompProfile": {"type": "Localhost", "localhostProfile": "/x"}}}, "relative"),
    ({f"{SPEC}.securityContext": {"seccompProfile": {"type": "Unconfined", "localhostProfile": "x"}}}, "Localhost only"),
    ({f"{SPEC}.securityContext": {"appArmorProfile": {"type": ""}}}, "type is missing"),
    ({f"{SPEC}.securityContext": {"sysctls": [{"name": "A", "value": "1"}]}}, "no name of a sysctl"),
    ({f"{SPEC}.securityContext": {"sysctls": [{"name": "net.a", "value": "1"}] * 2}}, "stands twice"),
    ({f"{SPEC}.securityContext": {"sysctls": [{"name": "net.a", "value": "1"}]}, f"{SPEC}.hostNetwork": True}, "hostNetwork"),
    ({f"{SPEC}.securityContext": {"sysctls": [{"name": "kernel.shm_x", "value": "1"}]}, f"{SPEC}.hostIPC": True}, "hostIPC"),
    ({f"{SPEC}.securityContext": {"runAsNonRoot": True, "runAsUser": 0}}, "runAsNonRoot with runAsUser 0"),
    ({f"{SPEC}.securityContext": {"runAsNonRoot": True}, f"{MAIN}.securityContext": {"runAsUser": 0}}, "runAsNonRoot with"),
    ({f"{SPEC}.securityContext": {"runAsUser": 0}, f"{MAIN}.securityContext": {"runAsNonRoot": True}}, "runAsNonRoot with"),
    ({f"{SPEC}.hostUsers": False, f"{SPEC}.hostNetwork": True}, "hostUsers: false"),
    ({f"{MAIN}.securityContext": {"runAsUser": -1}}, "between 0 and"),
    ({f"{MAIN}.securityContext": {"privileged": True, "allowPrivilegeEscalation": False}}, "can't be false"),
    ({f"{MAIN}.securityContext": {"privileged": True, "capabilities": {"drop": ["ALL"]}}}, "keeps every capability"),
    ({f"{MAIN}.securityContext": {"capabilities": {"add": ["NOPE"]}}}, "no capability"),
    ({f"{MAIN}.securityContext": {"capabilities": {"add": ["NET_RAW"], "drop": ["NET_RAW"]}}}, "added and dropped"),
    ({f"{MAIN}.securityContext": {"capabilities": {"add": ["ALL"], "drop": ["ALL"]}}}, "added and dropped"),
    ({f"{MAIN}.securityContext": {"capabilities": {"add": ["CAP_SYS_ADMIN"]}, "allowPrivilegeEscalation": False}}, "SYS_ADMIN"),
    ({f"{MAIN}.securityContext": {"procMount": "x"}}, "is unknown"),
    ({f"{MAIN}.securityContext": {"procMount": "Unmasked"}}, "needs hostUsers: false"),
    # claims
    ({f"{CLAIM}.requests": []}, "asks for nothing"),
    ({f"{CLAIM}.requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}] * 33}, "32 at most"),
    ({f"{CLAIM}.requests": [{"name": "gpu", "exactly": {"deviceClassName": "gpu.nvidia.com"}}] * 2}, "stands twice"),
    ({f"{REQUEST}.name": "A"}, "no DNS label"),
    ({f"{REQUEST}.firstAvailable": [{"name": "a", "deviceClassName": "gpu.nvidia.com"}]}, "exactly one of exactly"),
    ({f"{REQUEST}.exactly": DROP}, "exactly one of exactly"),
    ({f"{REQUEST}.exactly": DROP, f"{REQUEST}.firstAvailable": [{"name": "A", "deviceClassName": "gpu.nvidia.com"}]}, "DNS label"),
    ({f"{REQUEST}.exactly": DROP, f"{REQUEST}.firstAvailable": [{"name": f"a{n}", "deviceClassName": "gpu.nvidia.com"} for n in range(9)]}, "8 at most"),
    ({f"{REQUEST}.exactly.deviceClassName": ""}, "deviceClassName is missing"),
    ({f"{REQUEST}.exactly.deviceClassName": "A"}, "no DNS name"),
    ({f"{REQUEST}.exactly.count": 0}, "greater than zero"),
    ({f"{REQUEST}.exactly.allocationMode": "All"}, "may be none with allocationMode: All"),
    ({f"{REQUEST}.exactly.selectors": [{}]}, "cel is missing"),
    ({f"{REQUEST}.exactly.selectors[0].cel.expression": ""}, "it is empty"),
    ({f"{REQUEST}.exactly.selectors[0].cel.expression": "a" * 10241}, "more than 10240"),
    ({f"{REQUEST}.exactly.selectors": [{"cel": {"expression": "true"}}] * 33}, "32 at most"),
    ({f"{REQUEST}.exactly.tolerations": [{"key": "a", "operator": "Is"}]}, "is unknown"),
    ({f"{REQUEST}.exactly.tolerations": [{"key": "a", "operator": "Exists", "value": "x"}]}, "may be no value"),
    ({f"{REQUEST}.exactly.tolerations": [{"operator": "Equal"}]}, "without a key"),
    ({f"{REQUEST}.exactly.tolerations": [{"key": "a b", "operator": "Exists"}]}, "no qualified name"),
    ({f"{REQUEST}.exactly.tolerations": [{"key": "a", "operator": "Exists", "effect": "x"}]}, "is unknown"),
    ({f"{CLAIM}.constraints": [{"requests": ["gpu"]}]}, "matchAttribute is missing"),
    ({f"{CLAIM}.constraints": [{"matchAttribute": "uuid"}]}, "no attribute"),
    ({f"{CLAIM}.constraints": [{"matchAttribute": "gpu.nvidia.com/uuid", "requests": ["x"]}]}, "no request 'x'"),
    ({f"{CLAIM}.config": [{"requests": ["gpu"]}]}, "opaque is missing"),
    ({f"{CLAIM}.config": [{"opaque": {"driver": "", "parameters": {}}}]}, "driver is missing"),
    ({f"{CLAIM}.config": [{"opaque": {"driver": "A", "parameters": {}}}]}, "no DNS name"),
    ({f"{CLAIM}.config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {}}, "requests": ["x"]}]}, "no request"),
    # the Service
    ({"Service.spec.type": "Loadbalancer"}, "is unknown"),
    ({"Service.spec.ports": []}, "needs ports"),
    ({"Service.spec.type": "ExternalName"}, "externalName is missing"),
    ({"Service.spec.type": "ExternalName", "Service.spec.externalName": "A b"}, "no DNS name"),
    ({"Service.spec.type": "NodePort", "Service.spec.clusterIP": "None"}, "can't be headless"),
    ({"Service.spec.clusterIP": "x"}, "no IP address"),
    ({"Service.spec.ports[1]": {"port": 81, "targetPort": 8000}}, "each needs one"),
    ({"Service.spec.ports[1]": {"name": "http", "port": 81, "targetPort": 8000}}, "stands twice"),
    ({"Service.spec.ports[1]": {"name": "more", "port": 80, "targetPort": 8000}}, "stands twice"),
    ({"Service.spec.ports[0].name": "A"}, "no DNS label"),
    ({"Service.spec.ports[0].port": 0}, "between 1 and 65535"),
    ({"Service.spec.ports[0].protocol": "x"}, "is unknown"),
    ({"Service.spec.ports[0].targetPort": 70000}, "between 1 and 65535"),
    ({"Service.spec.ports[0].targetPort": "HTTP"}, "no name of a port"),
    ({"Service.spec.ports[0].targetPort": 8001}, "declares the port 8001"),
    ({"Service.spec.ports[0].targetPort": DROP}, "declares the port 80"),
    ({"Service.spec.ports[0].nodePort": 30000}, "a ClusterIP has none"),
    ({"Service.spec.selector.a b": "x"}, "no qualified name"),
    ({"Service.spec.sessionAffinity": "x"}, "is unknown"),
    ({"Service.spec.sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 5}}}, "for sessionAffinity: ClientIP"),
    ({"Service.spec.sessionAffinity": "ClientIP", "Service.spec.sessionAffinityConfig": {"clientIP": {"timeoutSeconds": 0}}}, "86400"),
    ({"Service.spec.externalTrafficPolicy": "Local"}, "a ClusterIP has none"),
    ({"Service.spec.internalTrafficPolicy": "x"}, "is unknown"),
    ({"Service.spec.trafficDistribution": "x"}, "is unknown"),
    ({"Service.spec.ipFamilyPolicy": "x"}, "is unknown"),
    ({"Service.spec.ipFamilies": ["IPv5"]}, "is unknown"),
    ({"Service.spec.externalIPs": ["x"]}, "no IP address"),
    ({"Service.spec.loadBalancerSourceRanges": ["10.0.0.0/8"]}, "a ClusterIP has none"),
    ({"Service.spec.type": "LoadBalancer", "Service.spec.loadBalancerSourceRanges": ["x"]}, "no range"),
    # the budget
    ({"PodDisruptionBudget.spec.minAvailable": 1}, "only one of"),
    ({"PodDisruptionBudget.spec.maxUnavailable": -1}, "must not be negative"),
    ({"PodDisruptionBudget.spec.maxUnavailable": "x"}, "percentage"),
    ({"PodDisruptionBudget.spec.unhealthyPodEvictionPolicy": "x"}, "is unknown"),
    # the set
    (env(valueFrom={"configMapKeyRef": {"name": "a", "key": "b"}}), "no ConfigMap a here"),
    (env(valueFrom={"secretKeyRef": {"name": "a", "key": "b"}}), "no Secret a here"),
    ({f"{MAIN}.envFrom": [{"secretRef": {"name": "a"}}]}, "no Secret a here"),
    (volume(configMap={"name": "a"}), "no ConfigMap a here"),
    (volume(secret={"secretName": "a"}), "no Secret a here"),
    (volume(projected={"sources": [{"secret": {"name": "a"}}]}), "no Secret a here"),
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
    ({f"{SPEC}.nodeName": "a"}, "round the scheduler"),
    ({f"{SPEC}.hostNetwork": True}, "dnsPolicy falls back"),
    ({f"{SPEC}.volumes[1]": {"name": "more", "emptyDir": {}}}, "no container mounts more"),
    ({f"{SPEC}.volumes[0].emptyDir": DROP}, "makes it an emptyDir"),
    ({f"{SPEC}.volumes[0].emptyDir.sizeLimit": DROP}, "without a sizeLimit"),
    ({f"{MAIN}.stdinOnce": True}, "without stdin"),
    ({f"{MAIN}.image": "registry.example.com:5000/x:latest"}, "it is :latest"),
    ({f"{MAIN}.image": "registry.example.com:5000/x"}, "it is :latest"),
    ({f"{MAIN}.env[1]": {"name": "ENGINE_ROLE", "value": "primary"}}, "set twice"),
    ({f"{MAIN}.env[1]": {"name": "X", "value": "$(NOPE)"}}, "$(NOPE) stays as it is"),
    ({f"{MAIN}.args": ["$(NOPE)"]}, "$(NOPE) stays as it is"),
    ({f"{MAIN}.ports[2]": {"containerPort": 8000}}, "declared twice"),
    ({f"{SPEC}.containers[1].ports[0].name": "http"}, "has a port http, too"),
    ({f"{MAIN}.resources.limits.memory": "100m"}, "M or Mi is meant"),
    ({f"{MAIN}.resources.limits": {"nvidia.com/gpu": 1}}, "booked twice"),
    ({f"{LIVE}.httpGet.path": "live"}, "doesn't begin with /"),
    ({f"{LIVE}.httpGet.host": "example.com"}, "asks this host"),
    ({f"{LIVE}.httpGet.port": 9010}, "is engine-b's"),
    ({f"{LIVE}.terminationGracePeriodSeconds": 61}, "longer than the pod's own"),
    ({f"{SPEC}.securityContext": {"runAsNonRoot": True}}, "depends on the image"),
    ({f"{SPEC}.securityContext": {"seccompProfile": {"type": "RuntimeDefault"}}, f"{MAIN}.securityContext": {"privileged": True}}, "without its seccomp"),
    ({f"{REQUEST}.exactly.deviceClassName": "gpu.example.com"}, "no class gpu.example.com"),
    ({f"{REQUEST}.exactly.adminAccess": True}, "admin-access"),
    ({f"{CLAIM}.config": [{"opaque": {"driver": "gpu.nvidia.com", "parameters": {"sharing": {"strategy": "MPS"}}}}]}, "alpha"),
    ({"PodDisruptionBudget.spec.maxUnavailable": 0}, "never lets one go"),
    ({"PodDisruptionBudget.spec.maxUnavailable": DROP, "PodDisruptionBudget.spec.minAvailable": 1}, "never lets one go"),
    ({"PodDisruptionBudget.spec.maxUnavailable": DROP}, "minAvailable: 1"),
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
        (volume(projected={"sources": [{"configMap": {"name": "a", "items": [{"key": "c", "path": "x"}]}}]}), CONFIG, "no c"),
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
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("Often", "1Gi", ""), "is unknown"),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("", "1Gi", ""), "accessModes are missing"),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("ReadWriteOnce", "0", ""), "greater than zero"),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("ReadWriteOnce", "x", ""), "no quantity"),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("ReadWriteOncePod, ReadOnlyMany", "1", ""), "alone"),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("ReadWriteOnce", "1", ", volumeMode: X"), "is unknown"),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("ReadWriteOnce", "1", ", volumeMode: Block"), "block device"),
        (volume(persistentVolumeClaim={"claimName": "a"}), VOLUME % ("ReadWriteOnce", "1", ", storageClassName: A"), "DNS name"),
        (
            volume(persistentVolumeClaim={"claimName": "a"}) | {"Deployment.spec.replicas": 2},
            VOLUME % ("ReadWriteOnce", "1", ""),
            "2 pods can't share",
        ),
        (
            volume(persistentVolumeClaim={"claimName": "a", "readOnly": True}) | {f"{MAIN}.volumeMounts[1].readOnly": False},
            VOLUME % ("ReadWriteOnce", "1", ""),
            "read-only for the whole pod",
        ),
        ({}, GOOD.split("---")[2], "there are two Service llm"),
        ({}, policy(podSelector={"matchLabels": {"app": "llm"}}, ingress=[{"ports": [{"port": 8000}]}]), ""),
        ({}, policy(podSelector={"matchLabels": {"app": "llm"}}, ingress=[{"ports": [{"port": "htp"}]}]), "declares the port"),
        ({}, policy(podSelector={"matchLabels": {"app": "x"}}), "no pod here is selected"),
        ({}, policy(podSelector={}, policyTypes=["Both"]), "is unknown"),
        ({}, policy(podSelector={}, policyTypes=["Ingress"], egress=[{}]), "do nothing"),
        ({}, policy(podSelector={}, ingress=[{"ports": [{"protocol": "x"}]}]), "is unknown"),
        ({}, policy(podSelector={}, ingress=[{"ports": [{"port": 5, "endPort": 4}]}]), "not greater"),
        ({}, policy(podSelector={}, ingress=[{"ports": [{"endPort": 4}]}]), "not greater"),
        ({}, policy(podSelector={}, ingress=[{"ports": [{"port": ""}]}]), "it is empty"),
        ({}, policy(podSelector={}, ingress=[{"ports": [{"port": "A"}]}]), "no name of a port"),
        ({}, policy(podSelector={}, ingress=[{"from": [{}]}]), "has to be given"),
        ({}, policy(podSelector={}, egress=[{"to": [{"ipBlock": {"cidr": "x"}}]}]), "no range"),
        ({}, policy(podSelector={}, egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8"}, "podSelector": {}}]}]), "nothing beside"),
        ({}, policy(podSelector={}, egress=[{"to": [{"ipBlock": {"cidr": "10.0.0.0/8", "except": ["11.0.0.0/9"]}}]}]), "isn't within"),
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
    "text",
    [
        "true", "device.driver == 'gpu.nvidia.com'", "device.attributes['a'].b >= 1 && !(c in [1, 2, 3])",
        "device.capacity[\"gpu.nvidia.com\"].memory.compareTo(quantity('40Gi')) >= 0", "a ? b : c ? d : e", "-1 + 2.5e3 % 3u",
        "{'a': 1, 'b': [2]}.a", "x.y{z: 1}", "[1, 2].exists(i, i > 1)", "r'\\d' + b'x' + '''a\n'b'''", "a.?b.orValue(1)",
        "has(device.attributes['x'].y)", "// a comment\ntrue", "''",
    ],
)  # fmt: skip
def test_cel_that_parses(text: str) -> None:
    assert cel.problem(text) == ""


@pytest.mark.parametrize(
    "text",
    ["", "a[[[", "a &&", "== 1", "a b", "(a", "a ? b", "'a", "a.", "a..b", "f(1,,2)", "{1}", "[1 2]", "a = b", "for", "a & b",
     "`x`", "(" * 300 + "a" + ")" * 300],
)  # fmt: skip
def test_cel_that_does_not_parse(text: str) -> None:
    assert cel.problem(text).startswith("this is no CEL")


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
