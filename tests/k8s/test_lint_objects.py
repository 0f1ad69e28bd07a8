"""Objects beside the pod: each as a whole document, and the sentence that it has to bring; "" where it is right."""

import pytest
import yaml

from k8s.lint.check import check
from k8s.lint.node import Level

POD = "spec: {containers: [{name: a, image: x, ports: [{name: web, containerPort: 80}]}]}"
TEMPLATE = f"template: {{metadata: {{labels: {{app: x}}}}, {POD}}}"
LABELLED = f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p, labels: {{app: x}}}}\n{POD}\n---\n"
SELECTOR = "selector: {matchLabels: {app: x}}"


def workload(kind: str, rest: str, api: str = "apps/v1") -> str:
    return f"apiVersion: {api}\nkind: {kind}\nmetadata: {{name: x}}\nspec:\n  {rest}"


def stateful(rest: str) -> str:
    return workload("StatefulSet", f"{{serviceName: '', {SELECTOR}, {TEMPLATE}, {rest}}}")


def job(rest: str, policy: str = "Never") -> str:
    template = f"template: {{spec: {{restartPolicy: {policy}, containers: [{{name: a, image: x}}]}}}}"
    return workload("Job", f"{{{template}, {rest}}}", "batch/v1")


def cron(rest: str) -> str:
    template = "jobTemplate: {spec: {template: {spec: {restartPolicy: Never, containers: [{name: a, image: x}]}}}}"
    return workload("CronJob", f"{{{template}, {rest}}}", "batch/v1")


def monitor(endpoint: str, more: str = SELECTOR) -> str:
    return LABELLED + workload(
        "PodMonitor", f"{{{more}, podMetricsEndpoints: [{endpoint}]}}", "monitoring.coreos.com/v1"
    )


def rules(rule: str, more: str = "") -> str:
    return workload("PrometheusRule", f"{{groups: [{{name: g, rules: [{rule}]}}{more}]}}", "monitoring.coreos.com/v1")


def spread(rest: str) -> str:
    constraint = f"topologySpreadConstraints: [{{maxSkew: 1, topologyKey: zone, {rest}}}]"
    return (
        f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{constraint}, containers: [{{name: a, image: x}}]}}"
    )


def container(fields: str, more: str = "") -> str:
    return f"apiVersion: v1\nkind: Pod\nmetadata: {{name: p}}\nspec: {{{more} containers: [{{name: a, image: x, {fields}}}]}}"


OBJECTS = [
    ("apiVersion: v1\nkind: Pod\nspec: {}\n", "metadata is missing"),
    ("apiVersion: v1\nkind: Pod\nmetadata: {name: p}\n", "there is no pod in it"),
    ("apiVersion: v1\nkind: Namespace\nmetadata: {name: a.b}\n", "no DNS label"),
    ("apiVersion: v1\nkind: Namespace\nmetadata: {name: a, namespace: b}\n", "is in no namespace"),
    ("apiVersion: v1\nkind: List\nitems: [{apiVersion: v1, kind: Namespace, metadata: {name: A}}]\n", "no DNS label"),
    # workloads
    (stateful("replicas: 1"), ""),
    (stateful("podManagementPolicy: Fast"), "'Fast' is unknown"),
    (stateful("updateStrategy: {type: Recreate}"), "'Recreate' is unknown"),
    (stateful("updateStrategy: {rollingUpdate: {partition: -1}}"), "must not be negative"),
    (stateful("persistentVolumeClaimRetentionPolicy: {whenDeleted: Keep}"), "'Keep' is unknown"),
    (stateful("replicas: 1").replace("serviceName: ''", "serviceName: nope"), "no Service nope"),
    (workload("DaemonSet", f"{{{SELECTOR}, {TEMPLATE}, updateStrategy: {{type: OnDelete, rollingUpdate: {{}}}}}}"), "type OnDelete"),
    (job("backoffLimit: 1"), ""),
    (job("backoffLimit: -1"), "must not be negative"),
    (job("completionMode: Fast"), "'Fast' is unknown"),
    (job("completionMode: Indexed"), "Indexed needs completions"),
    (job("selector: {matchLabels: {a: b}}"), "made by the API server"),
    (job("backoffLimit: 1", "Always"), "need OnFailure or Never"),
    (cron("schedule: '*/5 * * * *'"), ""),
    (cron("schedule: '@hourly'"), ""),
    (cron("schedule: often"), "no schedule of five fields"),
    (cron("schedule: '@hourly', concurrencyPolicy: Maybe"), "'Maybe' is unknown"),
    # pods
    (spread("whenUnsatisfiable: DoNotSchedule"), ""),
    (spread("minDomains: 1"), "whenUnsatisfiable is missing"),
    (container("ports: [{name: a}]"), "containerPort is missing"),
    (container("livenessProbe: {httpGet: {path: /}}"), "port is missing"),
    (container("livenessProbe: {exec: {}}"), "command is missing"),
    (container("livenessProbe: {tcpSocket: {port: 70000}}"), "between 1 and 65535"),
    (container("livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: a, value: b}]}}, ports: [{containerPort: 80}]"), ""),
    (container("args: []", "securityContext: {seLinuxChangePolicy: Fast},"), "'Fast' is unknown"),
    (container("volumeMounts: [{name: v, mountPath: /v}]",
               "volumes: [{name: v, downwardAPI: {items: [{path: /x, fieldRef: {fieldPath: metadata.name}}]}}],"), "relative"),
    (container("volumeMounts: [{name: v, mountPath: /v}], volumeDevices: [{name: v, devicePath: /v}]",
               "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}],"), "something is mounted there"),
    (container("volumeDevices: [{name: v, devicePath: /dev/../x}]",
               "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}],"), "must not contain '..'"),
    (container("args: []", "affinity: {podAntiAffinity: {requiredDuringSchedulingIgnoredDuringExecution: [{topologyKey: z, "
               "labelSelector: {matchExpressions: [{key: 'a b', operator: Exists}]}}]}},"), "no qualified name"),
    (container("args: []", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
               "[{matchExpressions: [{key: 'a b', operator: Exists}]}]}}},"), "no qualified name"),
    (container("args: []", "affinity: {nodeAffinity: {requiredDuringSchedulingIgnoredDuringExecution: {nodeSelectorTerms: "
               "[{matchExpressions: [{key: a, operator: In, values: ['b c']}]}]}}},"), "value of a label"),
    # claims
    ("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: g, exactly: "
     "{deviceClassName: gpu.nvidia.com}}], config: [{opaque: {driver: gpu.nvidia.com, parameters: 1}}]}}", "to be an object"),
    # services
    ("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {type: NodePort, externalTrafficPolicy: Some, "
     "ports: [{port: 80, nodePort: 70000}]}", "'Some' is unknown"),
    ("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {type: NodePort, ports: [{port: 80, nodePort: 70000}]}", "65535"),
    ("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}", ""),
    # network policies
    (LABELLED + workload("NetworkPolicy", "{podSelector: {}, ingress: [{ports: [{port: 0}]}]}", "networking.k8s.io/v1"), "65535"),
    (LABELLED + workload("NetworkPolicy", "{podSelector: {}, ingress: [{ports: [{port: 1, endPort: 70000}]}]}",
                         "networking.k8s.io/v1"), "65535"),
    (LABELLED + workload("NetworkPolicy", "{podSelector: {}, egress: [{to: [{ipBlock: {cidr: 10.0.0.0/8, except: [x]}}]}]}",
                         "networking.k8s.io/v1"), "no range"),
    # volumes and config
    ("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadOnlyMany]}", "requests.storage"),
    ("apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadOnlyMany], "
     "resources: {requests: {storage: 1, cpu: 1}}}", "can't ask for cpu"),
    ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {'a b': x}", "no key"),
    ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: x}\nbinaryData: {a: eA==}", "stands in data and"),
    ("apiVersion: v1\nkind: Secret\nmetadata: {name: c}\ndata: {a: eA=}", "is not a 'byte'"),
    ("apiVersion: v1\nkind: Secret\nmetadata: {name: c}\ndata: {a: e}", "this is no base64"),
    (f"apiVersion: v1\nkind: ConfigMap\nmetadata: {{name: c}}\ndata: {{a: {'x' * (1 << 20)}, b: z}}", "the most are"),
    ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: x, b.txt: z}", ""),
    # the Prometheus operator's
    (monitor("{port: web}"), ""),
    (monitor("{portNumber: 80, interval: 15s}"), ""),
    (monitor("{port: web, intervall: 15s}"), "no field intervall; interval is meant?"),
    (monitor("{port: web, interval: soon}"), "does not match"),
    (monitor("{path: /metrics}"), "exactly one of port and portNumber"),
    (monitor("{portNumber: 70000}"), "between 1 and 65535"),
    (monitor("{portNumber: -1}"), "less than the minimum"),
    (monitor("{port: wep}"), "declares the port wep"),
    (monitor("{port: web}", "selector: {matchLabels: {app: y}}"), "no pod here is selected"),
    (monitor("{port: web}", SELECTOR + ", namespaceSelector: {matchNames: [A]}"), "no DNS label"),
    (rules("{alert: A, expr: up == 0, for: 5m, labels: {severity: page}}"), ""),
    (rules("{record: 'a:b', expr: up}"), ""),
    (rules("{expr: up}"), "exactly one of alert and record"),
    (rules("{alert: A, expr: up, for: ever}"), "does not match"),
    (rules("{record: a, expr: up, for: 5m}"), "neither `for` nor annotations"),
    (rules("{alert: A, expr: up, labels: {'a-b': x}}"), "no name of a label of Prometheus"),
    (rules("{alert: A, expr: up}", ", {name: g, rules: []}"), "stands twice"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), OBJECTS, ids=[f"{n}-{says}" for n, (_, says) in enumerate(OBJECTS)])
def test_objects(text: str, says: str) -> None:
    assert list(yaml.safe_load_all(text))
    findings = check([("x.yaml", text)], have=[("PersistentVolumeClaim", "c")])
    errors = [found.message for found in findings if found.level is Level.ERROR]
    assert any(says in error for error in errors) if says else errors == [], errors


WARNINGS = [
    ("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: g, exactly: "
     "{deviceClassName: gpu.nvidia.com}}]}}", "no pod here uses the ResourceClaim c"),
    ("apiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: c}\nspec: {devices: {requests: [{name: g, exactly: "
     "{deviceClassName: gpu.nvidia.com}}]}}\n---\n" + workload("Deployment", "{replicas: 2, " + SELECTOR + ", template: {metadata: "
     "{labels: {app: x}}, spec: {resourceClaims: [{name: g, resourceClaimName: c}], containers: [{name: a, image: x, "
     "resources: {claims: [{name: g}]}}]}}}"), "2 pods would share the devices of one claim"),
    (container("volumeMounts: [{name: v, mountPath: /v}]", "volumes: [{name: v, persistentVolumeClaim: {claimName: c}}],")
     + "\n---\napiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: c}\nspec: {accessModes: [ReadOnlyMany], "
     "resources: {requests: {storage: 1}}}", "readOnly: true belongs here"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "says"), WARNINGS, ids=[says for _, says in WARNINGS])
def test_warnings_of_sets(text: str, says: str) -> None:
    findings = check([("x.yaml", text)])
    assert not [found for found in findings if found.level is Level.ERROR], findings
    assert any(says in found.message for found in findings)
