"""The server patch and what is made of it: the specification's example, the API server's own merge, and bad input."""

import json
import random
import re
from typing import Any

import pytest
import yaml

from dual_pods.rules import building, names, reading
from dual_pods.rules.strategic import BadPatch, expanded, mapping, merged
from tests.api_server import changes, schema

PATCH = """\
spec:
  containers:
  - name: inference-server
    image: docker.io/vllm/vllm-openai@v0.10.1.1
    command: [vllm, serve, --port=8000, /pvcs/local/hf/qwen, --max-model-len=32768]
    env:
    - name: VLLM_CACHE_ROOT
      value: /pvcs/shared/vllm
    resources:
      limits:
        cpu: "2"
        memory: 1Gi
    volumeMounts:
    - name: local
      readOnly: true
      mountPath: /pvcs/local
  volumes:
  - name: local
    persistentVolumeClaim:
      claimName: {{ .LocalVolume }}
"""
REQUESTER = """\
apiVersion: v1
kind: Pod
metadata:
  name: example-request
  namespace: default
  uid: u1
  resourceVersion: "1"
  creationTimestamp: "2026-11-24T10:00:00Z"
  labels: {app: qwen, pod-template-hash: abc}
spec:
  nodeName: somenode
  priority: 0
  serviceAccount: default
  containers:
  - name: inference-server
    image: some-registry/some-namespace/stub@v0.1.0
    command: [/proxy, --relay-port-1=8000, --admin-port=8001, --metrics-port=8002, --debug-port=8003]
    resources:
      limits:
        nvidia.com/gpu: "1"
        cpu: "1"
        memory: 250Mi
    volumeMounts:
    - name: shared
      mountPath: /pvcs/shared
    - name: kube-api-access-abcde
      readOnly: true
      mountPath: /var/run/secrets/kubernetes.io/serviceaccount
  volumes:
  - name: shared
    persistentVolumeClaim:
      claimName: shared
  - name: kube-api-access-abcde
    projected: {sources: []}
"""
EXPECTED = """\
affinity:
  nodeAffinity:
    requiredDuringSchedulingIgnoredDuringExecution:
      nodeSelectorTerms:
      - matchExpressions:
        - key: kubernetes.io/hostname
          operator: In
          values: [somenode]
containers:
- name: inference-server
  image: docker.io/vllm/vllm-openai@v0.10.1.1
  command: [vllm, serve, --port=8000, /pvcs/local/hf/qwen, --max-model-len=32768]
  env:
  - name: VLLM_CACHE_ROOT
    value: /pvcs/shared/vllm
  - name: CUDA_VISIBLE_DEVICES
    value: "3"
  resources:
    limits:
      nvidia.com/gpu: "0"
      cpu: "2"
      memory: 1Gi
  volumeMounts:
  - name: local
    readOnly: true
    mountPath: /pvcs/local
  - name: shared
    mountPath: /pvcs/shared
volumes:
- name: local
  persistentVolumeClaim:
    claimName: somenode-local
- name: shared
  persistentVolumeClaim:
    claimName: shared
"""


def _pod(prefix: str = names.PREFIX, patch: str = PATCH, **annotations: str) -> dict[str, Any]:
    pod: dict[str, Any] = yaml.safe_load(REQUESTER)
    said = {prefix + "server-patch": patch, prefix + "admin-port": "8001"}
    pod["metadata"]["annotations"] = said | {names.PREFIX + key: value for key, value in annotations.items()}
    return pod


@pytest.mark.parametrize("prefix", [names.PREFIX, names.OLD_PREFIX])
def test_the_specification_s_example_comes_out_as_it_says(prefix: str) -> None:
    ask = building.ask(_pod(prefix))
    made = building.single(ask, "i1", "somenode", ["3"], names.server_name("somenode", ["3"]), "nvidia.com/gpu")
    assert made["metadata"]["name"] == "somenode-8-dual"
    gates = made["spec"].pop("schedulingGates")  # ours, and gone before it is scheduled
    assert gates == [{"name": names.GATE}] and made["spec"] == yaml.safe_load(EXPECTED)
    assert "app" not in made["metadata"]["labels"] and made["metadata"]["finalizers"] == [names.FINALIZER]


def test_a_patch_s_own_gates_stay_beside_the_controller_s() -> None:
    ask = building.ask(_pod(patch=PATCH + "  schedulingGates: [{name: quota}]\n"))
    made = building.single(ask, "i1", "n", ["3"], "n-8-dual", "nvidia.com/gpu")
    assert made["spec"]["schedulingGates"] == [{"name": "quota"}, {"name": names.GATE}]


def test_what_a_pool_doesn_t_use_of_a_patch_is_known_and_its_engines_can_sleep_unasked() -> None:
    assert building.ask(_pod()).unused == ("image", "resources", "volumeMounts", "volumes")
    own = "{name: inference-server, command: [vllm, serve, --enable-sleep-mode, qwen]}"
    ask = building.ask(_pod(patch=f"spec: {{containers: [{own}, {{name: more, image: x}}]}}"))
    assert ask.unused == ("container more",) and ask.entry["arguments"] == ["qwen"]
    assert building.ask(_pod(patch="metadata: {labels: {a: b}}")).unused == ()
    others = "$patch: replace, containers: [{$patch: replace}, {name: more, $patch: delete}"
    own = "{name: inference-server, image: x, command: [vllm, serve, m], $retainKeys: [name, image, command]}"
    ask = building.ask(_pod(patch=f"spec: {{{others}, {own}]}}"))
    assert ask.unused == ("image",) and ask.entry["arguments"] == ["m"], "a directive is no field"


def test_what_is_said_of_a_requester_alone_or_of_where_its_like_are_is_no_other_wish() -> None:
    plain, owned = _pod(), _pod()
    owned["spec"] |= {"hostname": "web-0", "subdomain": "web", "activeDeadlineSeconds": 60}
    spread = {"topologyKey": "zone", "maxSkew": 1, "minDomains": 2, "whenUnsatisfiable": "DoNotSchedule"}
    owned["spec"]["topologySpreadConstraints"] = [spread]
    assert building.ask(owned) == building.ask(plain)
    asked = building.ask(_pod(patch=PATCH + "  hostname: engine\n"))
    assert asked.pod["spec"]["hostname"] == "engine", "what a patch says is meant"


def test_a_port_of_the_node_stays_the_requester_s_as_no_second_pod_there_can_have_it() -> None:
    plain, owned = _pod(), _pod()
    for pod, more in ((plain, {}), (owned, {"hostPort": 8080})):
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": 8080, **more}]
    assert building.ask(owned) == building.ask(plain)


def test_to_a_pool_the_same_command_and_environment_are_the_same_wish_whatever_the_requester_s_pod_is() -> None:
    before, after, other = _pod(), _pod(), _pod(patch=PATCH.replace("--max-model-len=32768", "--max-model-len=4096"))
    after["spec"]["containers"][0]["resources"]["limits"]["memory"] = "500Mi"
    after["spec"]["tolerations"] = [{"operator": "Exists"}]
    wishes = [[building.ask(pod, swaps=swaps).wish for pod in (before, after, other)] for swaps in (True, False)]
    assert [len({*each}) for each in wishes] == [2, 3] and wishes[0][0] == wishes[0][1]


def test_an_engine_begins_again_in_its_pod_though_its_requester_is_a_job_s() -> None:
    pod = _pod()
    pod["spec"]["restartPolicy"] = "Never"
    made = building.single(building.ask(pod), "i1", "n", ["3"], "n-8-dual", "nvidia.com/gpu")
    assert "restartPolicy" not in made["spec"]


def test_what_asks_whether_the_requester_is_well_isn_t_the_server_pod_s() -> None:
    pod = _pod()
    pod["spec"]["containers"][0]["readinessProbe"] = {"httpGet": {"path": "/ready", "port": "probes"}}
    uid = {"name": "POD_UID", "valueFrom": {"fieldRef": {"fieldPath": "metadata.uid"}}}
    pod["spec"]["containers"][0]["env"] = [uid, {"name": "A", "value": "b"}]
    ask = building.ask(pod)
    assert not ask.references and ask.entry["environment"] == {"A": "b", "VLLM_CACHE_ROOT": "/pvcs/shared/vllm"}
    assert building.endpoint(ask.pod["spec"]["containers"][0]) == (8000, (8000, "/health"))


def test_what_a_requester_is_told_of_its_own_pod_is_no_engine_s_in_a_pool() -> None:
    """FMA's requesters have such variables for their own command."""
    pod, its = _pod(), {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}
    pod["spec"]["containers"][0]["env"] = [its]
    ask = building.ask(pod)
    assert "NODE_NAME" not in building.launch(ask, "i1", ["0"])["environment"]
    made = building.single(ask, "i1", "n", ["0"], "n-1-dual", "nvidia.com/gpu")
    assert its in made["spec"]["containers"][0]["env"], "there it is its server pod's"
    pod = _pod(patch=PATCH.replace("--max-model-len=32768", "--served-model-name=$(NODE_NAME)"))
    pod["spec"]["containers"][0]["env"] = [its]
    assert building.ask(pod).references == ("NODE_NAME",)
    secret = {"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    pod = _pod()
    pod["spec"]["containers"][0]["env"] = [its, secret]
    assert building.ask(pod).references == ("HF_TOKEN",)


_OF_FMA = [{"name": "probes", "containerPort": 8080}, {"name": "spi", "containerPort": 8081}]
"""A requester's own, which go over to its server pod."""


@pytest.mark.parametrize(
    ("container", "asked", "probe"),
    [
        ({}, 8000, (8000, "/health")),
        ({"ports": [{"containerPort": 9001}]}, 9001, (9001, "/health")),
        ({"ports": [{"containerPort": "http"}, {"containerPort": 9001}]}, 9001, (9001, "/health")),
        ({"args": ["--port=9001"], "ports": [{"containerPort": 1}]}, 9001, (9001, "/health")),
        ({"readinessProbe": {"httpGet": {"port": 9002, "path": "/up"}}}, 9002, (9002, "/up")),
        ({"args": ["--port=9001"], "readinessProbe": {"httpGet": {"port": 9002}}}, 9001, (9002, "/health")),
        ({"ports": _OF_FMA, "readinessProbe": {"httpGet": {"port": 8000, "path": "/up"}}}, 8000, (8000, "/up")),
        ({"ports": _OF_FMA, "readinessProbe": {"httpGet": {"port": "spi", "path": "/up"}}}, 8081, (8081, "/up")),
        ({"readinessProbe": {"httpGet": {"port": "http", "path": "/up"}}}, 8000, (8000, "/up")),
        ({"readinessProbe": {"httpGet": {"port": 8000, "path": "up"}}}, 8000, (8000, "/up")),
        ({"readinessProbe": {"httpGet": {"port": 8000, "path": "@elsewhere/up"}}}, 8000, (8000, "/@elsewhere/up")),
        ({"readinessProbe": {"exec": {}}}, 8000, (8000, "/health")),
    ],
)
def test_where_an_engine_is_asked_follows_from_its_command_its_ports_and_its_probe(
    container: dict[str, Any], asked: int, probe: tuple[int, str]
) -> None:
    assert building.endpoint(container) == (asked, probe)


def test_another_container_of_the_requester_comes_along_as_it_is() -> None:
    pod = _pod()
    helper = {"name": "helper", "image": "h", "readinessProbe": {"httpGet": {"port": 1}}, "resources": {}}
    pod["spec"]["containers"].insert(0, helper)
    ask = building.ask(pod)
    assert ask.entry["engine"] == "vllm", "what runs is the inference server's"
    made = building.single(ask, "i1", "somenode", ["3"], "n", "nvidia.com/gpu")
    assert made["spec"]["containers"][0] == helper


def test_a_server_pod_asks_for_what_the_patch_says_and_for_no_accelerator() -> None:
    more = """[vllm, serve, m]
    env: [{name: CUDA_VISIBLE_DEVICES, value: "7"}, {name: A, value: b}]
    resources: {requests: {nvidia.com/gpu: 1, cpu: 2}}"""
    patch = "spec:\n  containers:\n  - name: inference-server\n    image: x\n    command: " + more
    [container] = building.single(building.ask(_pod(patch=patch)), "i1", "n", ["3"], "n", "nvidia.com/gpu")["spec"][
        "containers"
    ]
    assert container["env"] == [{"name": "A", "value": "b"}, {"name": "CUDA_VISIBLE_DEVICES", "value": "3"}]
    assert container["resources"]["requests"] == {"cpu": 2}
    assert container["resources"]["limits"]["nvidia.com/gpu"] == "0"


def test_nor_does_another_container_of_it_which_the_requester_has_accelerators_for() -> None:
    """They would be counted twice, and none may be left on the node."""
    one = "resources: {limits: {nvidia.com/gpu: 1}}"
    patch = f"""
spec:
  initContainers: [{{name: first, image: x, {one}}}]
  containers: [{{name: beside, image: x, {one}}}, {{name: inference-server, image: x, command: [serve]}}]
"""
    spec = building.single(building.ask(_pod(patch=patch)), "i1", "n", ["3"], "n", "nvidia.com/gpu")["spec"]
    its = {
        c["name"]: c["resources"]["limits"]["nvidia.com/gpu"] for c in (*spec["initContainers"], *spec["containers"])
    }
    assert its == {"first": "0", "beside": "0", "inference-server": "0"}


def test_a_server_pod_belongs_to_the_node_that_it_was_made_for() -> None:
    made = building.pool({"spec": {"containers": [{"name": "c"}]}}, "n1", "n1-dual", "nvidia.com/gpu")
    assert building.pinned_to(made["spec"]) == "n1"
    assert building.pinned_to(yaml.safe_load(EXPECTED.replace("kubernetes.io/hostname", "zone"))) == ""
    assert building.pinned_to({}) == ""


def test_one_that_has_no_node_yet_is_understood_as_well() -> None:
    pod = _pod(patch=PATCH.replace("command:", "workingDir: '/{{ .NodeName }}'\n    command:"))
    del pod["spec"]["nodeName"]
    requester = reading.requester(pod, building.ask)
    assert not requester.wrong and requester.node == ""


def test_a_pod_without_a_patch_is_refused() -> None:
    pod = _pod()
    pod["metadata"]["annotations"] = {}
    with pytest.raises(BadPatch):
        building.ask(pod)


@pytest.mark.parametrize(
    ("said", "takes"),
    [
        ("12GiB", {"0": 12 << 30, "1": 12 << 30}),
        ("12Gi", {"0": 12 << 30, "1": 12 << 30}),
        ("12GB", {"0": 12 * 10**9, "1": 12 * 10**9}),
        ("4096", {"0": 4096, "1": 4096}),
        ('{"0": 1k, "1": 2 KiB}', None),
        ('{"0": 1K, "1": 2 KiB}', {"0": 1000, "1": 2048}),
    ],
)
def test_a_model_s_memory_is_said_for_all_its_accelerators_or_for_each(said: str, takes: dict[str, int] | None) -> None:
    pod = _pod(model=f"memory: {said}")
    if takes is None:
        assert "is no size" in reading.requester(pod, building.ask).wrong
    else:
        assert building.launch(building.ask(pod), "i1", ["0", "1"])["memory"] == takes


@pytest.mark.parametrize("deleted", [False, True])
@pytest.mark.parametrize(
    ("phase", "state", "ended"),
    [
        ("Running", "running", False),
        ("Running", "terminated", False),  # kubelet starts it again, and may have as it was deleted
        ("Failed", "running", False),  # its node has gone, and Kubernetes' collector says so; kubelet says no more
        ("Failed", "terminated", True),
        ("Succeeded", "terminated", True),
    ],
)
def test_a_server_pod_has_ended_when_its_phase_and_containers_say_so(
    phase: str, state: str, ended: bool, deleted: bool
) -> None:
    pod = _pod()
    pod["metadata"] |= {"labels": {names.SERVER: "pool"}} | (
        {"deletionTimestamp": "2026-01-01T00:00:00Z"} if deleted else {}
    )
    pod["status"] = {"phase": phase, "containerStatuses": [{"name": "c", "state": {state: {}}}]}
    assert reading.server(pod).ended == ended


def test_a_server_pod_that_no_node_ever_had_has_ended_with_its_deletion() -> None:
    pod = _pod()
    del pod["spec"]["nodeName"]
    pod["metadata"] |= {"labels": {names.SERVER: "pool"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert reading.server(pod).ended


def test_a_server_pod_that_its_node_says_nothing_of_yet_hasn_t_ended() -> None:
    pod = _pod()
    pod["metadata"] |= {"labels": {names.SERVER: "pool"}, "deletionTimestamp": "2026-01-01T00:00:00Z"}
    assert not reading.server(pod).ended


def test_what_no_controller_has_written_on_a_server_pod_counts_for_nothing() -> None:
    pod = _pod()
    marks = {names.BINDINGS: '{"i1": "u1"}', names.ASLEEP_SINCE: "12.5"}
    pod["metadata"] |= {"labels": {names.SERVER: "single"}, "annotations": marks}
    assert (reading.server(pod).bindings, reading.server(pod).asleep_since) == ({"i1": "u1"}, 12.5)
    pod["metadata"]["annotations"] = {names.BINDINGS: "[7]", names.ASLEEP_SINCE: "since when?"}
    assert (reading.server(pod).bindings, reading.server(pod).asleep_since) == ({}, 0.0)


def test_claims_that_are_the_requester_s_own_go_with_it() -> None:
    pod = _pod()
    claims = [{"name": "own", "resourceClaimTemplateName": "t"}, {"name": "shared", "resourceClaimName": "gpus"}]
    pod["spec"]["resourceClaims"] = claims
    pod["spec"]["containers"][0]["resources"]["claims"] = [{"name": "own"}, {"name": "shared"}]
    spec = building.ask(pod).pod["spec"]
    assert spec["resourceClaims"] == claims[1:] and spec["containers"][0]["resources"]["claims"] == [{"name": "shared"}]


def test_a_node_s_pool_tolerates_the_taint_of_its_node() -> None:
    template = {"spec": {"containers": [{"name": "c"}], "tolerations": [{"key": "x"}]}}
    made = building.pool(template, "n1", "n1-dual", "nvidia.com/gpu", "dual-pods")
    assert made["spec"]["tolerations"] == [{"key": "x"}, {"key": "dual-pods", "operator": "Exists"}]
    del template["spec"]["tolerations"]
    made = building.pool(template, "n1", "n1-dual", "nvidia.com/gpu", "dual-pods")
    assert made["spec"]["tolerations"] == [{"key": "dual-pods", "operator": "Exists"}]
    assert "tolerations" not in building.pool(template, "n1", "n1-dual", "nvidia.com/gpu")["spec"]


def test_a_node_s_pool_keeps_what_its_template_says_of_it() -> None:
    template = {"metadata": {"labels": {"a": "1"}, "annotations": {"b": "2"}}, "spec": {"containers": [{"name": "c"}]}}
    meta = building.pool(template, "n1", "n1-dual", "nvidia.com/gpu")["metadata"]
    assert meta["labels"] == {"a": "1", names.SERVER: "pool"} and meta["annotations"] == {"b": "2"}


def test_a_pool_is_asked_for_the_same_command() -> None:
    ask = building.ask(_pod(model="standby: true\nmemory: 12GiB"))
    entry = building.launch(ask, "i1", ["GPU-1", "GPU-0"])
    assert entry == {
        "id": "i1", "name": "i1", "engine": "vllm", "arguments": ["/pvcs/local/hf/qwen", "--max-model-len=32768"],
        "environment": {"VLLM_CACHE_ROOT": "/pvcs/shared/vllm"}, "devices": ["GPU-0", "GPU-1"], "standby": True,
        "memory": {"GPU-0": 12 << 30, "GPU-1": 12 << 30}, "pin": True, "own_port": True,
        "weights": building.weights_name(ask, ["GPU-0", "GPU-1"]),
    }  # fmt: skip


_SERVE = "spec: {{containers: [{{name: inference-server, image: x, command: [vllm, serve, m, {}]}}]}}"


@pytest.mark.parametrize(
    ("words", "model", "same"),
    [
        ("--max-num-seqs=4, --max-num-seqs, '8', --port=9", "priority: 3", True),
        ("--gpu-memory-utilization=0.5, --served-model-name=n, --api-key=k", "", True),
        ("--max-model-len=8", "", False),
        ("--tensor-parallel-size=2", "", False),
        ("--max-num-seqs=4", "environment: {X: y}", False),
        ("--max-num-seqs=4", "engine: reference", False),
    ],
)
def test_instances_share_weights_where_they_differ_only_in_what_changes_nothing_of_these(
    words: str, model: str, same: bool
) -> None:
    plain, asks = (building.ask(_pod(patch=_SERVE.format(w), model=m)) for w, m in (("", ""), (words, model)))
    name = building.weights_name(plain, ["0", "1"])
    assert re.fullmatch("w[0-9a-f]{15}", name)
    assert (building.weights_name(asks, ["1", "0"]) == name) is same and plain.wish != asks.wish
    assert building.weights_name(plain, ["0"]) != name, "they are another part of them there"


def test_what_a_user_calls_the_weights_they_are_called() -> None:
    asks = building.ask(_pod(model="weights: mine"))
    assert building.launch(asks, "i1", ["0"])["weights"] == "mine"


def test_any_other_program_is_started_where_the_pool_says() -> None:
    patch = 'spec: {containers: [{name: inference-server, image: x, command: [llama-server, --port, "9000", -m, m]}]}'
    ask = building.ask(_pod(patch=patch))
    entry = building.launch(ask, "i1", ["0"])
    assert entry == {
        "id": "i1", "name": "i1", "engine": "command", "command": ["llama-server", "--port", "{port}", "-m", "m"],
        "devices": ["0"], "pin": True, "own_port": True,
    }  # fmt: skip
    assert building.endpoint(ask.pod["spec"]["containers"][0]) == (9000, (9000, "/health"))


def test_which_accelerators_a_pool_s_engine_sees_is_no_user_s_to_say() -> None:
    """Else it runs beside an instance that they are promised to."""
    own = '{name: inference-server, command: [vllm, serve, m], env: [{name: CUDA_VISIBLE_DEVICES, value: "7"}]}'
    assert "environment" not in building.ask(_pod(patch=f"spec: {{containers: [{own}]}}")).entry
    with pytest.raises(BadPatch, match="what its requester has"):
        building.ask(_pod(model="environment: {CUDA_VISIBLE_DEVICES: '7'}"))


@pytest.mark.parametrize(
    ("newer", "older", "says"),
    [("a", "b", "a"), ("", "b", "b"), (None, "b", "b"), ("", None, None), (None, None, None)],
)
def test_an_annotation_that_is_empty_hides_nothing(newer: str | None, older: str | None, says: str | None) -> None:
    """Else one that the admission policies take for none would end a binding."""
    both = {f"{names.PREFIX}x": newer, f"{names.OLD_PREFIX}x": older}
    assert names.said({key: value for key, value in both.items() if value is not None}, "x") == says


def test_an_engine_s_own_place_is_left_out_even_where_it_is_said_by_half() -> None:
    patch = "spec: {containers: [{name: inference-server, image: x, command: [vllm, serve, m, --port=9, --host]}]}"
    assert building.ask(_pod(patch=patch)).entry["arguments"] == ["m"]


def test_names_are_the_node_and_the_accelerators_bits() -> None:
    assert names.server_name("n", ["3"]) == "n-8-dual" and names.server_name("n", ["0", "1"]) == "n-3-dual"
    long = [names.server_name("n" * 200 + end, ["GPU-1"], "3f9c2e81b07d4a6") for end in ("a", "b")]
    assert all(len(name) <= 63 for name in long) and long[0] != long[1]
    its, another = "3f9c2e81b07d4a6", "3f9c2e81b07d4a7"  # of five letters a thousand wishes have two alike
    assert names.server_name("n", ["3"], its) != names.server_name("n", ["3"], another)
    assert names.mask(["GPU-1", "GPU-2"]) == names.mask(["GPU-2", "GPU-1"]) != names.mask(["GPU-1"])


@pytest.mark.parametrize("name", ["\u00b2", "\u0663", "03", "999"])
def test_a_number_that_is_written_otherwise_or_has_no_room_in_a_name_is_a_name(name: str) -> None:
    """A requester says what it likes: no word of it ends a plan, nor stands for another accelerator."""
    assert names.mask([name]) not in (names.mask(["3"]), names.mask(["2"]))
    for its in ([name], ["99", name], ["99"]):
        assert len(names.server_name("n" * 200, its, "3f9c2e81b07d4a6")) <= 63


_SAME = {
    "containers": [{"name": "a", "image": "x", "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]}],
    "volumes": [{"name": "v", "emptyDir": {}}, {"name": "w", "hostPath": {"path": "/"}}],
    "tolerations": [{"key": "x"}],
    "nodeSelector": {"a": "1"},
    "hostAliases": [{"ip": "1.1.1.1", "hostnames": ["a"]}],
}  # fmt: skip


def _random_patch(draw: random.Random) -> dict[str, Any]:
    said: list[dict[str, str]] = [{"value": "9"}, {"$patch": "delete"}]
    env = [{"name": draw.choice("ABC"), **draw.choice(said)} for _ in range(2)]
    env = list({each["name"]: each for each in env}.values())
    container: dict[str, Any] = draw.choice(
        [{"image": "y"}, {"env": env}, {"$patch": "delete"}, {"command": ["c"], "env": None}]
    )
    containers = [{"name": name, **container} for name in draw.sample("abc", draw.randint(1, 2))]
    choices: list[dict[str, Any]] = [
        {"containers": containers},
        {"containers": [{"$patch": "replace"}, {"name": "only", "image": "o"}]},
        {"volumes": [{"name": "w", "$patch": "delete"}, {"name": "u", "emptyDir": {}}]},
        {"tolerations": [{"key": "y"}], "nodeSelector": {"a": None, "b": "2"}},
        {"hostAliases": [{"ip": "1.1.1.1", "hostnames": ["b"]}, {"ip": "2.2.2.2"}]},
        {"nodeSelector": {"$patch": "replace", "z": "1"}},
        {"nodeSelector": {"$retainKeys": ["q"], "q": "1"}},
    ]
    return draw.choice(choices) | draw.choice(choices)


@pytest.mark.parametrize("seed", range(60))
def test_a_merge_is_what_the_api_server_would_make_of_it(seed: int) -> None:
    patch = _random_patch(random.Random(seed))
    node = schema.of_kind("", "v1", "Pod")
    there = changes.strategic(node, {"spec": _SAME}, {"spec": patch})
    assert json.dumps(merged({"spec": _SAME}, {"spec": patch})) == json.dumps(there), f"seed {seed}: {patch}"


def test_a_mapping_that_is_deleted_holds_nothing_whatever_else_is_said() -> None:
    assert merged({"a": {"b": 1}}, {"a": {"$patch": "delete", "c": 2}}) == {"a": {}}


_MADE_FOR = "spec: {containers: [{name: inference-server, image: x, command: "


@pytest.mark.parametrize(
    ("patch", "says"),
    [
        ("spec: [", "it is no YAML"),
        ("- a", "server-patch: it is no mapping"),
        ("a: &x [1]\nb: *x", "an alias"),
        ("{{ range .X }}", "only {{ .NodeName }}"),
        ("spec: {x: {{ .Secret }}}", "it says {{ .Secret }}"),
        ("spec: {containers: [{image: x}]}", "each item of containers needs its name"),
        ("spec: {containers: [{name: inference-server, $patch: delete}]}", "removes the container inference-server"),
        ("spec: {containers: [{name: inference-server, image: null}]}", "or its image"),
        ("spec: {containers: [7]}", "each item of containers needs its name"),
        ("spec: null", "doesn't leave a pod"),
        ("spec: {containers: 7}", "doesn't leave a pod"),
        ("spec: {containers: [{name: inference-server, command: [vllm, serve, 7]}]}", "quote numbers"),
        ("spec: {containers: [{name: inference-server, command: vllm serve m}]}", "a command is a list"),
        *(
            (f"spec: {{containers: [{{name: inference-server, command: [vllm, serve, {port}]}}]}}", "is no port")
            for port in ("--port=x", "--port", "--port=0", "--port=70000", "--port=\u0663", "--port=\u00b2")
        ),
        ("spec: {$patch: frob}", "$patch may be"),
        ("spec: {$setElementOrder/containers: []}", "isn't understood"),
        ("{7: 8}", "a key is a text"),
        ("[" * 5000, ""),
        ("a: 2024-99-99", "in quotes"),
        pytest.param(f"a: {'59:' * 300}1.5", "in quotes", id="overflow"),
        pytest.param("a: " + "b" * 70_000, "64 KiB at most are read", id="huge"),
        ("spec: {priorityClassName: 2024-06-01}", "isn't understood"),
        ("spec: {containers: [{name: inference-server, env: {A: b}}]}", "isn't understood"),
        ("spec: {containers: [{name: inference-server, ports: 8000}]}", "isn't understood"),
        ("spec: {containers: [{name: inference-server, args: 5}]}", "a command is a list"),
        (f"spec: {{containers: [{{name: inference-server, command: [vllm, serve, --port={'9' * 5000}]}}]}}", ""),
        (_MADE_FOR + '[serve, "\\ud800"]}]}', "what JSON can't say"),
        (_MADE_FOR + "[serve]}], tolerations: [{? null : x}]}", "what JSON can't say"),
        (_MADE_FOR + "[serve], resources: 5}]}", "isn't understood"),
        (_MADE_FOR + "[serve], resources: {limits: [1]}}]}", "isn't understood"),
        ("metadata: {labels: [a]}\n" + _MADE_FOR + "[serve]}]}", "isn't understood"),
        pytest.param(f"spec: {{$patch: {'frob' * 1000}}}", "$patch may be", id="long"),
    ],
)
def test_what_can_t_be_understood_is_refused_with_a_sentence(patch: str, says: str) -> None:
    requester = reading.requester(_pod(patch=patch), building.ask)
    assert requester.wrong and says in requester.wrong and requester.ask is None
    assert len(requester.wrong) <= 500, "it is an annotation, too"


@pytest.mark.parametrize(
    ("annotations", "says"),
    [
        ({"model": "memory: much"}, "is no size"),
        ({"model": "memroy: 9GiB"}, "there is no field memroy; is memory meant?"),
        ({"model": "{7: x}"}, "there is no field 7"),
        ({"model": "- 1"}, "model: it is no mapping"),
        pytest.param({"model": f"memory: {'9' * 400}GiB"}, "is no size", id="memory"),
        ({"model": "arguments: [--seed, 1]"}, "model: Expected `str`, got `int` - at `$.arguments[1]`"),
        ({"model": "arguments: 5"}, "got `int` - at `$.arguments`"),
        ({"model": "engine: [vllm]"}, "got `array` - at `$.engine`"),
        ({"admin-port": "here"}, "neither a port's number nor the name"),
        ({"admin-port": "99999"}, "neither a port's number nor the name"),
    ],
)
def test_so_are_other_annotations(annotations: dict[str, str], says: str) -> None:
    assert says in reading.requester(_pod(**annotations), building.ask).wrong


def test_what_only_fma_s_own_resources_say_is_refused() -> None:
    pod = _pod()
    pod["metadata"]["annotations"] = {names.PREFIX + names.CONFIG: "qwen"}
    assert reading.is_requester(pod) and "custom resources" in reading.requester(pod, building.ask).wrong


def test_an_entry_that_no_pool_takes_is_refused() -> None:
    with pytest.raises(BadPatch, match="a pool can't run it"):
        building.launch(building.ask(_pod(model="priority: high")), "i1", ["0"])
    patch = PATCH.replace("      value: /pvcs/shared/vllm", "      valueFrom: {fieldRef: {fieldPath: status.podIP}}")
    for each in (patch, PATCH.replace("--max-model-len=32768", "--download-dir=$(VLLM_CACHE_ROOT)")):
        with pytest.raises(BadPatch, match="can't look up VLLM_CACHE_ROOT"):
            building.launch(building.ask(_pod(patch=each)), "i1", ["0"])


@pytest.mark.parametrize("model", ["remote: {url: 'http://elsewhere/v1'}", "ladder: [a]"])
def test_so_is_one_that_its_pool_would_take_and_never_show(model: str) -> None:
    with pytest.raises(BadPatch, match="no engine of its node would run it"):
        building.launch(building.ask(_pod(model=model)), "i1", ["0"])


def test_a_model_s_other_names_are_no_pool_s_which_may_have_a_second_instance_of_it() -> None:
    assert "aliases" not in building.launch(building.ask(_pod(model="aliases: [qwen]")), "i1", ["0"])


@pytest.mark.parametrize("body", [b"", b"{}", b"[]", b'["a", 1]', b'["a,b"]', b'["' + b"x" * 200 + b'"]', b"\xff"])
def test_a_requester_that_says_no_accelerators_is_asked_again(body: bytes) -> None:
    with pytest.raises(reading.BadAnswer):
        reading.accelerators(body)


def test_the_template_s_words() -> None:
    assert expanded("a {{ .NodeName }} {{- .LocalVolume -}}", {"NodeName": "n", "LocalVolume": "v"}) == "a n v"
    assert mapping("a: 1") == {"a": 1}
