"""The chart, and what is rendered from it. Needs Helm in a library: the extra helm."""

import importlib.util
import json
import re
import shutil
import subprocess
from typing import Any

import pytest
import yaml

from k8s import render
from k8s.lint.check import check
from k8s.lint.documents import read
from k8s.lint.node import Level
from sidecar.terminal.extras import how_to_get
from sidecar.terminal.names import VERSION
from tests.k8s.manifests import SHIPPED

helm = pytest.mark.skipif(
    importlib.util.find_spec("helm_python") is None, reason=f"Helm isn't installed: {how_to_get('helm')}"
)


def lines(text: str) -> list[str]:
    return text.splitlines()


@helm
def test_what_is_shipped_is_what_the_chart_renders() -> None:
    assert render.differences() == "", "python -m k8s.render writes it anew"


@helm
def test_a_file_that_was_edited_by_hand_is_noticed(monkeypatch: pytest.MonkeyPatch, tmp_path: Any) -> None:
    for path in SHIPPED.glob("*.yaml"):
        shutil.copy(path, tmp_path)
    monkeypatch.setattr(render, "RENDERED", tmp_path)
    assert render.differences() == ""
    edited = tmp_path / "one-gpu.yaml"
    edited.write_text(edited.read_text().replace("replicas: 1", "replicas: 2"))
    (tmp_path / "mine.yaml").write_text("a: 1\n")
    assert "-  replicas: 2" in lines(render.differences()) and "-a: 1" in lines(render.differences())


@helm
def test_helm_finds_nothing_wrong_with_the_chart() -> None:
    for values in ({}, {"layout": "container"}, {"monitoring": {"enabled": True}}):
        report = render.helm().lint(str(render.CHART), values, strict=True)
        assert report["errors"] == []
        assert [each["error"] for each in report["messages"]] == ["icon is recommended"]


@helm
@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"repicas": 2}, "'repicas' not allowed"),
        ({"replicas": -1}, "at '/replicas': minimum"),
        ({"restart": "never"}, "at '/restart'"),
        ({"engine": {"arguments": "--max-model-len 5"}}, "at '/engine/arguments'"),
        ({"gms": {"resources": {"limits": None}}}, "at '/gms/resources'"),
        ({"engine": {"shm": "2 GB"}}, "at '/engine/shm'"),
        ({"service": {"port": 70000}}, "at '/service/port'"),
        ({"user": 0}, "at '/user'"),
        ({"gpus": {"count": 0}}, "devices.kind cuda needs GPUs"),
        ({"layout": "container", "devices": {"kind": "host"}}, "layout container is for GPUs"),
        ({"engine": {"kind": "reference"}}, "the reference engine computes in host memory"),
        ({"engine": {"image": ""}}, "which image of vLLM?"),
        ({"model": {"readOnly": True}}, "needs a volume that has the model"),
        ({"model": {"readOnly": True, "claim": "x"}}, "has to be a path on the volume, below /models/"),
        ({"replicas": 2, "model": {"size": "1Ti"}}, "replicas 2: the volume that model.size makes is one node's"),
        ({"engine": {"drainSeconds": 50}}, "terminationGracePeriodSeconds 60 is too short"),
    ],
)  # fmt: skip
def test_values_that_are_wrong_are_refused_with_a_sentence(values: dict[str, Any], says: str) -> None:
    with pytest.raises(render.helm().HelmError, match=re.escape(says)):
        render.manifest(values)


VALUES: dict[str, dict[str, Any]] = {
    "no door": {"gateway": {"enabled": False}},
    "restart exit": {"restart": "exit"},
    "an image with gpu-failover in it": {"engine": {"copy": False, "image": "registry.example/engine:1"}},
    "everything said": {
        "replicas": 2,
        "image": {"repository": "registry.example/sidecar", "tag": "1.2", "pullPolicy": "Always"},
        "pullSecrets": [{"name": "registry"}],
        "gpus": {"count": 2, "selectors": [{"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}]},
        "engine": {
            "arguments": ["--tensor-parallel-size", "2"],
            "env": [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}],
        },
        "model": {"name": "/models/mine", "claim": "models", "readOnly": True},
        "serviceAccount": "failover",
        "priorityClass": "high",
        "nodeSelector": {"gpu": "h200", "count": "8"},
        "tolerations": [{"operator": "Exists"}],
        "podLabels": {"team": "a"},
        "podAnnotations": {"note": "yes"},
        "service": {"type": "LoadBalancer", "port": 8080},
        "networkPolicy": {"clients": [{"podSelector": {}}], "monitoring": "prometheus"},
        "monitoring": {"enabled": True, "interval": "30s", "labels": {"release": "prometheus"}},
    },
    "one container, everything said": {
        "layout": "container",
        "gpus": {"count": 2},
        "engine": {"copy": False, "arguments": ["--tensor-parallel-size=2"]},
        "model": {"name": "/models/mine", "claim": "models", "readOnly": True},
        "podAnnotations": {"note": "yes"},
        "networkPolicy": {"clients": [{"podSelector": {}}]},
    },
    "nothing around it": {"networkPolicy": {"enabled": False}, "podDisruptionBudget": {"enabled": False}},
}
HAVE = [("Secret", "registry"), ("Secret", "hf"), ("PersistentVolumeClaim", "models"), ("ServiceAccount", "failover"),
        ("PriorityClass", "high")]  # fmt: skip


@helm
@pytest.mark.parametrize("name", VALUES)
def test_whatever_the_values_a_cluster_takes_it(name: str) -> None:
    text = render.manifest(VALUES[name], name="pair-1")
    found = [each for each in check([(name, text)], have=HAVE) if each.level is Level.ERROR]
    assert found == []


@helm
def test_a_value_that_yaml_would_read_otherwise_stays_a_text() -> None:
    words = ["yes", "1", "1e3", "y", "N", "08", "0o17", "0xAB", "2GiB", "<<"]
    words += ["a b", "x: y", "--on", "{}", "~", "#", "a,b", "'", '"', ""]
    deployment = render.objects({"engine": {"arguments": words}})["deployment"]
    for read_as in (yaml.safe_load, lambda text: read(text, "as a cluster does")[0].value):
        assert read_as(deployment)["spec"]["template"]["spec"]["containers"][0]["args"][1:] == words


@helm
def test_two_releases_share_no_name_and_select_only_their_own() -> None:
    one, two = (render.manifest({}, name=name) for name in ("pair-1", "pair-2"))
    both = [each for text in (one, two) for each in yaml.safe_load_all(text)]
    names = [(each["kind"], each["metadata"]["name"]) for each in both]
    assert len(set(names)) == len(names)
    assert check([("both.yaml", one + "---\n" + two)]) == []
    services = [each["spec"]["selector"] for each in both if each["kind"] == "Service"]
    assert services[0] != services[1]


@helm
def test_the_command_writes_says_what_differs_and_what_is_wrong(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(render, "RENDERED", tmp_path)
    assert render.main(["--check"]) == 1
    assert render.main([]) == 0
    assert render.main(["--check"]) == 0
    mine = tmp_path / "mine.values"
    mine.write_text("replicas: 3\n")
    capsys.readouterr()
    assert render.main(["--values", str(mine), "--name", "mine"]) == 0
    deployment = next(each for each in yaml.safe_load_all(capsys.readouterr().out) if each["kind"] == "Deployment")
    assert (deployment["metadata"]["name"], deployment["spec"]["replicas"]) == ("mine", 3)
    mine.write_text("replica: 3\n")
    assert render.main(["--values", str(mine)]) == 1
    assert "'replica' not allowed" in capsys.readouterr().err


def test_without_helm_the_command_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "helm_python", None)
    assert render.main([]) == 2
    assert how_to_get("helm") in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "can't be read: No such file or directory"),
        (b"\xff\xfe", "no text in UTF-8"),
        (b"a: [", "this is no YAML"),
        (b"- replicas\n", "values are a mapping"),
    ],
)
def test_values_that_cant_be_used_are_a_sentence_with_helm_and_without(
    text: bytes | None, says: str, tmp_path: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "mine.yaml"
    if text is not None:
        path.write_bytes(text)
    for without in (False, True):
        if without:
            monkeypatch.setitem(__import__("sys").modules, "helm_python", None)
        assert render.main(["--values", str(path), "--name", "x"]) == 1
        said = capsys.readouterr().err
        assert said.startswith(f"k8s.render: {path}") and says in said and len(said.splitlines()) == 1


def test_the_help_shows_how_a_pair_of_ones_own_is_rendered(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        render.main(["--help"])
    assert "--values my.yaml --name pair-1 >" in capsys.readouterr().out


def test_the_charts_version_is_this_software_s() -> None:
    chart = yaml.safe_load((render.CHART / "Chart.yaml").read_text())
    assert chart["appVersion"] == VERSION


def test_every_value_is_in_the_schema_and_the_other_way_round() -> None:
    schema = json.loads((render.CHART / "values.schema.json").read_text())
    definitions = schema["definitions"]

    def fields(node: dict[str, Any]) -> set[str]:
        node = definitions[node["$ref"].rsplit("/", 1)[1]] if "$ref" in node else node
        found = set()
        for name, inner in node.get("properties", {}).items():
            below = fields(inner)
            found |= {f"{name}.{each}" for each in below} or {name}
        return found

    def said(node: dict[str, Any], schema_fields: set[str], before: str = "") -> set[str]:
        found = set()
        for name, value in node.items():
            path = before + name
            inner = isinstance(value, dict) and any(each.startswith(path + ".") for each in schema_fields)
            found |= said(value, schema_fields, path + ".") if inner else {path}
        return found

    known = fields(schema) - {"global"}  # Helm's own
    assert said(render.values(render.CHART / "values.yaml"), known) == known


def test_kustomize_makes_the_rendered_file_of_it() -> None:
    kubectl = shutil.which("kubectl")
    if kubectl is None:
        pytest.skip("there is no kubectl")
    said = subprocess.run([kubectl, "version", "--client", "-o", "json"], capture_output=True, text=True, check=False)
    version = json.loads(said.stdout)["clientVersion"] if said.returncode == 0 else {"major": "1", "minor": "0"}
    if (int(version["major"]), int(re.sub(r"\D", "", version["minor"]) or 0)) < (1, 21):
        pytest.skip(f"kubectl {version['major']}.{version['minor']} has a kustomize of before 1.21")
    made = subprocess.run([kubectl, "kustomize", str(SHIPPED)], capture_output=True, text=True, check=False, timeout=60)
    assert made.returncode == 0, made.stderr

    def objects(text: str) -> dict[tuple[str, str], Any]:
        return {(each["kind"], each["metadata"]["name"]): each for each in yaml.safe_load_all(text)}

    assert objects(made.stdout) == objects((SHIPPED / "one-gpu.yaml").read_text())
