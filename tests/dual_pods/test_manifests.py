"""What `k8s/dual_pods` and `examples` say: rights as narrow as they can be, programs and flags that are there, metrics
that are served, alerts that the page explains.
"""

import json
import re
import tomllib
from typing import Any

import pytest
import yaml

from dual_pods.cli import controller, requester
from dual_pods.rules import building, names, reading
from dual_pods.rules.strategic import mapping
from k8s.lint import __main__ as lint
from tests.dual_pods.cluster import MANIFESTS
from tests.support.processes import ROOT

DOCUMENTS = [d for path in sorted(MANIFESTS.glob("*.yaml")) for d in yaml.safe_load_all(path.read_text()) if d]
ALERTS = yaml.safe_load((MANIFESTS / "monitoring" / "alerts.yaml").read_text())["spec"]["groups"][0]["rules"]


def _page() -> str:
    return "".join(path.read_text() for path in (ROOT / "docs" / "using").glob("dual-pods*.md"))


def _of(kind: str) -> list[dict[str, Any]]:
    return [document for document in DOCUMENTS if document["kind"] == kind]


def test_the_linter_has_nothing_to_say() -> None:
    scraping = MANIFESTS / "monitoring" / "scraping.yaml"
    assert lint.main(["--have", "Secret/dual-pods-keys", *map(str, (MANIFESTS, scraping, ROOT / "examples"))]) == 0


def test_the_rights_are_these_and_no_more() -> None:
    rules = [rule for role in (*_of("Role"), *_of("ClusterRole")) for rule in role["rules"]]
    assert not any("*" in str(rule) for rule in rules)
    said = {(r, verb) for rule in rules for r in rule["resources"] for verb in rule["verbs"]}
    pods = {("pods", verb) for verb in ("list", "watch", "create", "patch", "delete")}
    leases = {("leases", verb) for verb in ("create", "get", "update")}
    rest = {("events", "create"), ("nodes", "list"), ("nodes", "watch"), ("deployments", "get")}
    assert said == pods | leases | rest
    assert [rule["verbs"] for rule in _of("ClusterRole")[0]["rules"]] == [["list", "watch"]]


def test_each_right_is_used() -> None:
    """By its word in the shell: a request, a list, a watch."""
    text = "".join(path.read_text() for path in (ROOT / "dual_pods" / "shell").glob("*.py"))
    for word in ('"GET"', '"POST"', '"PUT"', '"PATCH"', '"DELETE"', '"watch": "true"', "/leases", "/events", "/nodes"):
        assert word in text, word


def test_what_the_pods_run_is_there() -> None:
    [deployment] = _of("Deployment")
    [container] = deployment["spec"]["template"]["spec"]["containers"]
    words = container["command"]
    assert words[0] in tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"]
    assert controller.parser({}).parse_args(words[1:]).owner == deployment["metadata"]["name"]
    [config] = _of("ConfigMap")
    template = mapping(config["data"]["server-pod.yaml"])
    made = building.pool(template, "n1", "n1-dual", "nvidia.com/gpu")
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"nvidia.com/gpu": "0"}}
    assert building.pinned_to(made["spec"]) == "n1"


def test_each_pod_is_let_in_where_pod_security_is_restricted() -> None:
    [config], [deployment] = _of("ConfigMap"), _of("Deployment")
    template = mapping(config["data"]["server-pod.yaml"])
    example = yaml.safe_load((ROOT / "examples" / "qwen.yaml").read_text())
    for spec in (template["spec"], deployment["spec"]["template"]["spec"], example["spec"]):
        whole = spec["securityContext"]
        assert whole["runAsNonRoot"] and whole["seccompProfile"] == {"type": "RuntimeDefault"}
        for its in (container["securityContext"] for container in spec["containers"]):
            assert its["allowPrivilegeEscalation"] is False and its["capabilities"] == {"drop": ["ALL"]}
        assert all(volume.keys() & {"emptyDir", "secret", "configMap"} for volume in spec.get("volumes", ()))


def test_what_a_second_installation_would_take_from_the_first_is_named() -> None:
    shared = {d["metadata"]["name"] for d in DOCUMENTS if "namespace" not in d["metadata"]} - {"dual-pods"}
    said = (MANIFESTS / "00-namespace.yaml").read_text().partition("namespace (")[2].partition(")")[0]
    assert {*said.split(", ")} == shared


def test_the_example_asks_for_what_a_pool_takes() -> None:
    pod = yaml.safe_load((ROOT / "examples" / "qwen.yaml").read_text())
    assert requester.parser({}).parse_args(pod["spec"]["containers"][0]["command"][1:]).relay_port == [8000]
    more = {"uid": "u", "resourceVersion": "1", "creationTimestamp": "2026-01-01T00:00:00Z"}
    seen = reading.requester({**pod, "metadata": {**pod["metadata"], **more}}, building.ask)
    assert seen.ask is not None and not seen.wrong and not seen.ask.unused
    entry = building.launch(seen.ask, "i1", ["GPU-0"])
    assert entry["arguments"][0] == "Qwen/Qwen3-0.6B" and entry["standby"] and entry["memory"] == {"GPU-0": 4 << 30}


def test_the_policies_know_the_same_words() -> None:
    text = (MANIFESTS / "policies.yaml").read_text()
    for word in (
        names.DUAL,
        names.INSTANCE,
        names.SERVER,
        names.BINDINGS,
        names.ACCELERATORS,
        names.ASLEEP_SINCE,
        names.MODEL,
        *(p + name for p in (names.PREFIX, names.OLD_PREFIX) for name in ("server-patch", "admin-port", "role")),
    ):
        assert f"['{word}']" in text
    assert {tuple(r["resources"]) for p in _of("ValidatingAdmissionPolicy") for r in
            p["spec"]["matchConstraints"]["resourceRules"]} == {("pods", "pods/status"), ("pods",)}  # fmt: skip


@pytest.mark.parametrize("rule", ALERTS, ids=lambda rule: rule["alert"])
def test_each_alert_says_what_is_so_and_what_to_do_and_is_on_the_page(rule: dict[str, Any]) -> None:
    assert rule["annotations"]["summary"] and rule["annotations"]["runbook"]
    assert f"| `{rule['alert']}` | {rule['labels']['severity']} |" in _page()


def test_what_the_operator_is_given_is_on_the_page_and_no_folder_with_what_it_refuses() -> None:
    """`kubectl apply -f FOLDER` takes each .json, too."""
    files = sorted((MANIFESTS / "monitoring").glob("*.yaml"), reverse=True)
    assert f"kubectl apply {' '.join(f'-f {file.relative_to(ROOT)}' for file in files)}\n" in _page()
    assert not re.search(r"apply -f \S+/monitoring/?\s", _page())


def test_what_is_asked_for_is_served_and_on_the_page() -> None:
    row = json.loads((MANIFESTS / "monitoring" / "dashboard-row.json").read_text())
    asked = " ".join([*(rule["expr"] for rule in ALERTS), *(t["expr"] for p in row["panels"] for t in p["targets"])])
    shell = (ROOT / "dual_pods" / "shell" / "pages.py").read_text()
    served = set(re.findall(r'"(dual_pods_[a-z_]+[a-z])"', shell))
    served |= {
        f"dual_pods_{name}_total"
        for name in re.findall(r'"(\w+)": "\w', shell.partition("_HELP = {")[2].partition("}")[0])
    }
    on_page = set(re.findall(r"`(dual_pods_\w+)", _page()))
    assert {name.removesuffix("_bucket") for name in re.findall(r"dual_pods_\w+", asked)} <= served
    assert on_page == served
