"""Our own programs in a manifest: one edit of a pod as it is shipped, and what the linter says to it."""

from pathlib import Path
from typing import Any

import pytest

from k8s.lint.check import check
from tests.k8s.manifests import DROP, POD, REFERENCE, SHIPPED, broken, errors, warnings

SPEC = "Deployment.spec.template.spec"
COPY, LOCK, GMS, DOOR = (f"{SPEC}.initContainers[{name}]" for name in ("gpu-failover", "lockserver", "gms", "gateway"))
A, B = (f"{SPEC}.containers[engine-{name}]" for name in "ab")
ONE = f"{SPEC}.containers[pair]"
SHIM = ["engine-shim", "--engine", "vllm", "--probe", ":9000", "--"]
CLAIM = "ResourceClaimTemplate.spec.spec.devices.requests[0].exactly"
ON_TWO = ["gms", "--devices", "host:0,host:1", "--metrics", ":9401"]


def without(flag: str) -> Any:
    return lambda words: [word for word in words if word != flag]


def swapped(old: str, new: str) -> Any:
    return lambda words: [new if word == old else word for word in words]


ERRORS: list[tuple[dict[str, Any], str]] = [
    # commands
    ({f"{LOCK}.command": ["lockserver", "--mertics", ":9400"]}, "unrecognized arguments: --mertics"),
    ({f"{LOCK}.command": ["lockserver", "--memory", "gpu"]}, "'gpu' is unknown"),
    ({f"{LOCK}.env": DROP}, "FAILOVER_RUN_DIR is missing"),
    ({f"{GMS}.command": ["gms", "--devices", "host:a b"]}, "host:a b"),
    ({f"{A}.command": ["engine-shim", "--engine", "vllm", "--probe", "9000", "--"]}, "is no address"),
    ({f"{A}.command": ["engine-shim", "--engine", "vllm", "--probe", ":9000", "--max-model-len"]}, "go behind --"),
    ({f"{A}.command": ["python3", "-m", "engine_shim", "--engine", "vlm", "--probe", ":9000"]}, "is no engine"),
    ({f"{A}.env[FAILOVER_RUN_DIR].value": ""}, "--run-dir"),
    ({f"{A}.env[+]": {"name": "FAILOVER_STALL_S", "value": "soon"}}, "FAILOVER_STALL_S"),
    ({f"{DOOR}.command": ["--listen", ":8000"]}, "--listen is a flag, and no program"),
    # engines
    ({f"{B}.env[ENGINE_ID].value": "a"}, "engine-a is engine a, too"),
    ({f"{B}.env[ENGINE_ROLE].value": "primary"}, "is the primary already"),
    ({f"{A}.env[ENGINE_ROLE].value": "shadow"}, "no engine is the primary"),
    ({f"{A}.args": []}, "no model is named"),
    ({f"{A}.args": ["--max-model-len", "5"]}, "no model is named"),
    ({f"{A}.args": ["/models/model", "-tp", "2"], f"{B}.args": ["/models/model", "-tp", "2"]}, "needs as many GPUs, and the claim has 1"),
    ({f"{A}.command": ["engine-shim", "--engine", "vllm", "--probe", ":9000", "--listen", "127.0.0.1:8000", "--"]}, "no client outside"),
    # GPUs
    ({f"{LOCK}.resources.claims": DROP}, "lockserver names no claim: --memory nvml"),
    ({f"{LOCK}.resources.claims": DROP, f"{LOCK}.command": ["lockserver", "--metrics", ":9400"]}, "--memory auto"),
    ({f"{GMS}.resources.claims": DROP}, "gms names no claim"),
    ({f"{A}.resources.claims": DROP}, "engine-shim names no claim"),
    (
        {
            f"{SPEC}.resourceClaims[+]": {"name": "others", "resourceClaimTemplateName": "failover-gpus"},
            f"{B}.resources.claims": [{"name": "others"}],
        },
        "other claims than lockserver's",
    ),
    # the pod
    ({f"{SPEC}.shareProcessNamespace": True}, "has to be its shim"),
    ({f"{A}.securityContext.runAsUser": 3000}, "user 3000 where another"),
    # places
    ({f"{GMS}.env[FAILOVER_RUN_DIR].value": "/run/failover/other"}, "they would never meet"),
    ({f"{GMS}.volumeMounts[run].mountPath": "/run/elsewhere"}, "lies on no volume of gms"),
    ({f"{B}.volumeMounts[run].name": "tmp-b"}, "is on another volume here"),
    ({f"{B}.volumeMounts[run].subPath": "x"}, "is on another volume here"),
    ({f"{A}.volumeMounts[run].readOnly": True}, "has to be written"),
    ({f"{A}.env[HOME].value": "/run/failover/home"}, "HOME is on the run directory's volume"),
    ({f"{A}.env[HOME].value": "/root"}, "/root can't be written"),
    ({f"{A}.volumeMounts[tmp-a]": DROP}, "vLLM writes to /tmp"),
    ({f"{A}.volumeMounts[shm-a]": DROP}, "vLLM writes to /dev/shm"),
    ({f"{B}.volumeMounts[shm-b].name": "shm-a"}, "has the same /dev/shm"),
    ({f"{A}.env[+]": {"name": "PYTHONPATH", "value": "/tmp/gpu-failover"}}, "nothing is put into the volume tmp-a"),
    ({f"{COPY}.command": ["cp", "-r", "/opt/gpu-failover/packages", "/tmp"]}, "isn't on the volume gpu-failover"),
    ({f"{COPY}.command": ["cp", "-r", "/opt/gpu-failover/packages", "/gpu-failover/x"]}, "cp makes x/packages on the volume"),
    ({f"{COPY}.command": ["cp", "/opt/gpu-failover/packages", "/gpu-failover"]}, "cp needs -r"),
    ({f"{A}.env[PYTHONPATH].value": "/gpu-failover/ours"}, "cp makes packages on the volume, and /gpu-failover/ours"),
    # probes
    ({f"{LOCK}.startupProbe": {"exec": {"command": ["lockctl", "ping", "--count", "once"]}}}, "'once'"),
    ({f"{A}.command": swapped(":9000", ":9005")}, "port 9005, which the container doesn't declare"),
    ({f"{A}.command": swapped(":9000", ":9005")}, "answers on 9005, and not on 9000"),
    ({f"{A}.command": swapped(":9000", "127.0.0.1:9000")}, "kubelet asks the pod's own address"),
    ({f"{LOCK}.command": swapped(":9400", ":9405")}, "port 9405, which the container doesn't declare"),
    ({f"{A}.livenessProbe.httpGet.path": "/startup"}, "answers /live to a livenessProbe"),
    ({f"{A}.startupProbe.httpGet.path": "/health"}, "answers /startup to a startupProbe"),
    ({f"{GMS}.livenessProbe.httpGet.path": "/healthz"}, "gms answers /live or /metrics"),
    ({f"{A}.lifecycle.preStop.sleep.seconds": 45}, "streams would be cut"),
    ({f"{A}.command": swapped("20", "56")}, "5 s of preStop and 56 s of --drain-s"),
    ({f"{SPEC}.terminationGracePeriodSeconds": 20}, "more than the grace of 20 s"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "says"), ERRORS, ids=[f"{n}-{says}" for n, (_, says) in enumerate(ERRORS)])
def test_an_error_of_ours_is_found(edits: dict[str, Any], says: str) -> None:
    assert any(says in error for error in errors(broken(POD, edits))), errors(broken(POD, edits))


ON_HOST: list[tuple[dict[str, Any], str]] = [
    ({f"{A}.args": ["--kv-bytes", "x"]}, "is no size"),
    ({f"{GMS}.env[FAILOVER_HOST_DEVICES].value": "/run/devices"}, "the mount itself"),
    ({f"{GMS}.env[FAILOVER_HOST_DEVICES]": DROP}, "FAILOVER_HOST_DEVICES is missing"),
    ({f"{GMS}.command": swapped("40MiB", "258MiB")}, "don't fit into the volume devices"),
    ({f"{A}.args": ["--devices", "host:1"]}, "its --devices host:1: gms has host:0"),
    ({f"{GMS}.command": [*ON_TWO, "--capacity", "130MiB"]}, "2 device(s) of 130 MiB"),
]


@pytest.mark.parametrize(("edits", "says"), ON_HOST, ids=[f"{n}-{says}" for n, (_, says) in enumerate(ON_HOST)])
def test_an_error_with_host_devices_is_found(edits: dict[str, Any], says: str) -> None:
    assert any(says in error for error in errors(broken(REFERENCE, edits))), errors(broken(REFERENCE, edits))


IN_ONE: list[tuple[dict[str, Any], str]] = [
    ({f"{ONE}.command": swapped("--listen", "--lissten")}, "--lissten"),
    ({f"{ONE}.command": swapped(":8000", ":8001")}, "port 8001, which the container doesn't declare"),
    ({f"{ONE}.args": ["--max-model-len", "5"]}, "no model is named"),
    ({f"{ONE}.resources.limits": {"memory": "64Gi"}}, "vLLM has no GPU"),
    ({f"{ONE}.lifecycle.preStop.sleep.seconds": 50}, "streams would be cut"),
]


@pytest.mark.parametrize(("edits", "says"), IN_ONE, ids=[f"{n}-{says}" for n, (_, says) in enumerate(IN_ONE)])
def test_an_error_with_all_in_one_container_is_found(edits: dict[str, Any], says: str) -> None:
    found = broken((SHIPPED / "no-dra.yaml").read_text(), edits)
    assert any(says in error for error in errors(found)), errors(found)


PARTS = [
    ("FAILOVER_DOOR_METRICS", ""),
    ("FAILOVER_ENGINES_STALL_S", ""),
    ("FAILOVER_LOCK_WINDOW_S", ""),
    ("FAILOVER_GMS_PIDFDS", ""),
    ("FAILOVER_DOOR_METRISC", "none of our programs reads FAILOVER_DOOR_METRISC; FAILOVER_DOOR_METRICS is meant?"),
    ("FAILOVER_DOOR_WINDOW_S", "none of our programs reads FAILOVER_DOOR_WINDOW_S"),  # the lock server has one
    ("FAILOVER_METRICS", "FAILOVER_METRICS is passed on to no part"),
    ("FAILOVER_RESTART", "FAILOVER_RESTART is passed on to no part"),
]


@pytest.mark.parametrize(("name", "says"), PARTS, ids=[name for name, _ in PARTS])
def test_beside_failover_up_a_variable_of_one_part_is_known(name: str, says: str) -> None:
    found = broken((SHIPPED / "no-dra.yaml").read_text(), {f"{ONE}.env[+]": {"name": name, "value": "1"}})
    said = [each for each in warnings(found) if name in each]
    assert [says in each for each in said] == ([True] if says else []), said


def test_elsewhere_no_program_reads_a_variable_of_one_part() -> None:
    found = broken(POD, {f"{DOOR}.env[+]": {"name": "FAILOVER_DOOR_METRICS", "value": ":9402"}})
    assert any("none of our programs reads FAILOVER_DOOR_METRICS" in each for each in warnings(found))


def test_a_device_larger_than_its_containers_memory_is_warned_of() -> None:
    little = {f"{GMS}.resources.limits.memory": "32Mi", f"{GMS}.resources.requests.memory": "32Mi"}
    assert any("--capacity is more" in warning for warning in warnings(broken(REFERENCE, little)))


WARNINGS: list[tuple[dict[str, Any], str]] = [
    ({f"{LOCK}.command": ["locksrever", "--metrics", ":9400"]}, "lockserver is meant?"),
    ({f"{A}.env[FAILOVER_RUN_DIR].name": "FAILOVER_RUNDIR"}, "none of our programs reads FAILOVER_RUNDIR; FAILOVER_RUN_DIR is meant?"),
    ({f"{A}.env[+]": {"name": "ENGINE_IDD", "value": "x"}}, "ENGINE_ID is meant?"),
    ({f"{SPEC}.containers": lambda old: old[:1]}, "one engine alone"),
    ({f"{A}.args": ["/models/model", "--max-model-len", "5"]}, "other arguments than engine-a's"),
    ({f"{A}.args": ["/models/model", "--port", "5"]}, "--port means nothing here"),
    ({f"{A}.args": ["/weights"]}, "/weights lies on no volume"),
    ({f"{CLAIM}.count": 2}, "the rest would lie idle"),
    ({f"{LOCK}.command": ["lockserver", "--metrics", ":9400"]}, "nvml ends at once and says why"),
    ({f"{SPEC}.enableServiceLinks": DROP}, "VLLM_PORT"),
    ({f"{SPEC}.initContainers": lambda old: [each for each in old if each["name"] != "lockserver"]}, "no container runs lockserver"),
    ({f"{SPEC}.initContainers": lambda old: [each for each in old if each["name"] != "gms"]}, "no container runs gms"),
    ({f"{GMS}.command": DROP}, "of the same image has one"),
    ({f"{COPY}.command": ["install"]}, "this is no cp"),
    ({f"{A}.command": ["python3", "-m", "engine_shm", "--engine", "vllm"]}, "python -m engine_shim is meant?"),
    ({f"{LOCK}.env[FAILOVER_RESTART]": DROP}, "lockserver isn't told FAILOVER_RESTART"),
    ({f"{COPY}.command": ["cp", "-r", "/elsewhere/packages", "/gpu-failover/"]}, "our image has what the engines need"),
    ({f"{A}.env[PYTHONPATH]": DROP}, "PYTHONPATH isn't set"),
    ({"Deployment.spec.template.metadata.annotations": {"kubectl.kubernetes.io/default-container": "lock"}}, "there is no container lock"),
    ({"Service.spec.selector": DROP}, "it has no selector"),
    ({"NetworkPolicy.spec.ingress": lambda old: old[1:]}, "no client is let in to port http, which failover leads to"),
    ({f"{SPEC}.automountServiceAccountToken": DROP}, "nothing here needs the API server"),
    ({f"{SPEC}.hostNetwork": True}, "different run directories"),
    ({f"{A}.securityContext.readOnlyRootFilesystem": DROP}, "readOnlyRootFilesystem: true"),
    ({f"{A}.securityContext.capabilities": DROP}, "capabilities: {drop: [ALL]}"),
    ({f"{A}.securityContext.allowPrivilegeEscalation": DROP}, "allowPrivilegeEscalation: false"),
    ({f"{SPEC}.securityContext.runAsNonRoot": DROP}, "runAsNonRoot: true"),
    ({f"{SPEC}.securityContext.seccompProfile": DROP}, "seccompProfile"),
    ({f"{SPEC}.securityContext.fsGroup": DROP, f"{SPEC}.securityContext.fsGroupChangePolicy": DROP}, "the pod's fsGroup"),
    ({"Deployment.spec.strategy.rollingUpdate.maxSurge": 1}, "second set of GPUs"),
    ({f"{SPEC}.containers[+]": {"name": "lock2", "image": "x", "command": ["lockserver", "--run-dir", "/run/failover/pair"]}}, "should be a native sidecar"),
    ({place + ".env[FAILOVER_RUN_DIR].value": "/run/failover" for place in (LOCK, GMS, DOOR, A, B)}, "is the mount itself, 2777"),
    ({f"{SPEC}.volumes[run].emptyDir.medium": DROP}, "medium: Memory is meant for the run directory"),
    ({f"{SPEC}.volumes[run].emptyDir.sizeLimit": "4Mi"}, "is little for a run directory"),
    ({f"{SPEC}.volumes[run]": {"name": "run", "hostPath": {"path": "/run/x"}}}, "belongs into an emptyDir"),
    ({f"{SPEC}.volumes[shm-a].emptyDir.medium": DROP}, "/dev/shm belongs into memory"),
    ({f"{A}.env[HOME].name": "HOMES"}, "HOME isn't set"),
    ({f"{A}.env[USER].name": "LOGNAME"}, "USER isn't set"),
    ({f"{A}.env[+]": {"name": "PYTHONPATH", "value": "/opt/x"}}, "/opt/x, which is on no volume"),
    ({f"{A}.startupProbe": DROP}, "engine-shim has no startupProbe"),
    ({f"{GMS}.livenessProbe": DROP}, "gms has no livenessProbe"),
    ({f"{A}.readinessProbe": {"httpGet": {"path": "/ready", "port": "probe-a"}}}, "an engine that restarts would take it out"),
    ({f"{A}.lifecycle": DROP}, "there is no preStop sleep"),
    ({f"{A}.command": swapped("20", "51")}, "before the sidecars may end"),
    ({f"{A}.livenessProbe.terminationGracePeriodSeconds": DROP}, "a short terminationGracePeriodSeconds"),
    ({f"{LOCK}.startupProbe": {"exec": {"command": ["lockctl", "ping"]}}}, "each probe times out, and the pod never starts"),
    ({f"{LOCK}.livenessProbe": {"exec": {"command": ["lockctl", "ping"]}}}, "the container is ended again and again"),
    ({f"{LOCK}.readinessProbe": {"exec": {"command": ["lockctl", "ping"]}}}, "the pod is never Ready"),
    ({f"{COPY}.command": ["lockctl", "--run-dir", "/run/failover/pair", "ping"]}, "never ends, and the pod never starts"),
    ({f"{GMS}.startupProbe": {"exec": {"command": ["gmsctl", "ping"]}}}, "gms answers /startup over HTTP"),
    ({f"{LOCK}.startupProbe": {"exec": {"command": ["lockctl", "ping", "--count", "1"]}}}, "a Python that starts on a busy node takes longer"),
    ({f"{LOCK}.startupProbe": {"exec": {"command": ["gmsctl", "ping"]}}}, "lockctl ping is meant?"),
    ({f"{LOCK}.livenessProbe.httpGet": DROP, f"{LOCK}.livenessProbe.exec": {"command": ["lockctl", "ping", "--count", "1"]}}, "costs a start of Python"),
    ({f"{A}.env[FAILOVER_RESTART].value": "exit"}, "has to last for all of Init: 1 s x 60 is 60 s"),
]  # fmt: skip


@pytest.mark.parametrize(("edits", "says"), WARNINGS, ids=[f"{n}-{says}" for n, (_, says) in enumerate(WARNINGS)])
def test_a_warning_of_ours_is_given(edits: dict[str, Any], says: str) -> None:
    assert any(says in warning for warning in warnings(broken(POD, edits))), warnings(broken(POD, edits))


VALID: list[dict[str, Any]] = [
    {},
    {f"{A}.env[+]": {"name": "FAILOVER_DRAIN_S", "value": "10"}},
    {f"{SPEC}.initContainers[+]": {"name": "more", "image": "x", "restartPolicy": "Always"}},
    {f"{A}.command": ["python3.12", "-m", "engine_shim", "--engine", "vllm", "--probe", "[::]:9000", "--"]},
    {f"{A}.args": ["$(MODEL)"], f"{A}.env[+]": {"name": "MODEL", "value": "/models/model"}},
    {
        f"{CLAIM}.count": 2,
        f"{A}.args": ["/models/model", "--tensor-parallel-size=2"],
        f"{B}.args": ["/models/model", "--tensor-parallel-size=2"],
    },
]


@pytest.mark.parametrize("edits", VALID, ids=map(str, range(len(VALID))))
def test_a_valid_variation_of_ours_is_taken(edits: dict[str, Any]) -> None:
    assert errors(broken(POD, edits)) == []


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.name)
def test_what_is_shipped_has_nothing_to_warn_of(path: Path) -> None:
    texts = [(path.name, path.read_text())]
    if path.name == "monitoring.yaml":  # it is beside any of the others
        texts.append(("one-gpu.yaml", POD))
    assert check(texts) == []


def test_all_of_it_at_once_has_no_error() -> None:
    assert errors(check([(path.name, path.read_text()) for path in sorted(SHIPPED.glob("*.yaml"))])) == []
