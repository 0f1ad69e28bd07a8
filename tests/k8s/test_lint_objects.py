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
    # workloads
    (stateful("replicas: 1"), ""),
    (job("backoffLimit: 1"), ""),
    (cron("schedule: '*/5 * * * *'"), ""),
    (cron("schedule: '@hourly'"), ""),
    # pods
    (spread("whenUnsatisfiable: DoNotSchedule"), ""),
    (container("livenessProbe: {httpGet: {port: 80, httpHeaders: [{name: a, value: b}]}}, ports: [{containerPort: 80}]"), ""),
    # claims
    # services
    ("apiVersion: v1\nkind: Service\nmetadata: {name: s}\nspec: {ports: [{port: 80}]}", ""),
    # network policies
    # volumes and config
    ("apiVersion: v1\nkind: ConfigMap\nmetadata: {name: c}\ndata: {a: x, b.txt: z}", ""),
    # the Prometheus operator's
    (monitor("{port: web}"), ""),
    (monitor("{portNumber: 80, interval: 15s}"), ""),
    (monitor("{port: wep}"), "declares the port wep"),
    (monitor("{port: web}", "selector: {matchLabels: {app: y}}"), "no pod here is selected"),
    (rules("{alert: A, expr: up == 0, for: 5m, labels: {severity: page}}"), ""),
    (rules("{record: 'a:b', expr: up}"), ""),
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
