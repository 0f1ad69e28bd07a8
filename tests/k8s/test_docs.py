"""What docs/using/kubernetes.md and the README tell a person to type: it names what the manifest has."""

import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml

from k8s.lint.check import check
from tests.k8s.manifests import POD, SHIPPED, errors
from tests.k8s.merging import overlaid, patches_of
from tests.support.processes import ROOT

DOCS = (ROOT / "docs" / "using" / "kubernetes.md").read_text(encoding="utf-8")
RUNBOOK = (ROOT / "docs" / "using" / "troubleshooting.md").read_text(encoding="utf-8")
CONFIGURATION = ROOT / "docs" / "using" / "configuration.md"
UPGRADE = (ROOT / "docs" / "using" / "upgrade.md").read_text(encoding="utf-8")
TYPED = DOCS + RUNBOOK + UPGRADE + (ROOT / "README.md").read_text(encoding="utf-8")
IMAGES = ROOT / "k8s" / "images"
SIDECAR_AND_ENGINE = "".join(path.read_text(encoding="utf-8") for path in IMAGES.glob("*.Containerfile"))
OBJECTS = list(yaml.safe_load_all(POD))
DEPLOYMENT, SERVICE = (next(each for each in OBJECTS if each["kind"] == kind) for kind in ("Deployment", "Service"))
SPEC = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINERS = {each["name"]: each for each in SPEC["initContainers"] + SPEC["containers"]}
WITHOUT_DRA = {
    each["name"]
    for document in yaml.safe_load_all((SHIPPED / "no-dra.yaml").read_text(encoding="utf-8"))
    if document["kind"] == "Deployment"
    for each in document["spec"]["template"]["spec"]["containers"]
}


@pytest.mark.parametrize(
    ("pattern", "there"),
    [
        (r"\b(?:deployment|service)/(\S+)", {DEPLOYMENT["metadata"]["name"]}),
        (r"kubectl (?:exec|logs) [^`]*?-c\s+([a-z-]+)", {*CONTAINERS, *WITHOUT_DRA}),
        (r"http://(?!localhost)([a-z]+)", {SERVICE["metadata"]["name"]}),
        (r"service/failover \d+:(\d+)", {str(port["port"]) for port in SERVICE["spec"]["ports"]}),
        (r"deviceclass (\S+)", {OBJECTS[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"]}),
        (r"kubectl [^`]*?-l (\S+=[\w-]+)", {"=".join(each) for each in SERVICE["spec"]["selector"].items()}),
    ],
)
def test_what_a_command_names_is_in_the_manifest(pattern: str, there: set[str]) -> None:
    named = set(re.findall(pattern, TYPED))
    assert named and named <= there


PODS = {
    path.name: each["spec"]["template"]["spec"]
    for path in sorted(SHIPPED.glob("*.yaml"))
    for each in yaml.safe_load_all(path.read_text(encoding="utf-8"))
    if each["kind"] == "Deployment"
}
BUILT = dict(
    each[::-1]
    for text in (TYPED, *(path.read_text() for path in IMAGES.glob("*.Containerfile")))
    for each in re.findall(r"podman build -f (\S+) -t (\S+) \.", text)
)
"""What the documented commands name what they build, and of which file."""


def containers(spec: dict[str, Any]) -> list[dict[str, Any]]:
    return [*spec.get("initContainers", []), *spec["containers"]]


@pytest.mark.parametrize("name", PODS)
def test_the_model_that_is_asked_for_is_the_one_that_is_served(name: str) -> None:
    served = set()
    for each in containers(PODS[name]):
        for option, value in pairwise(each.get("args", [])):
            if option in ("--served-model-name", "--model"):
                served.add(value)
    assert served == set(re.findall(r'"model": "(\w+)"', DOCS))


def test_every_image_is_named_whole_and_those_of_ours_as_the_documented_build_names_them() -> None:
    """A name without a registry is localhost/... for who builds it and docker.io/... for kubelet, which finds none."""
    named = {each["image"] for spec in PODS.values() for each in containers(spec)}
    named |= set(re.findall(r"--image=(\S+)", TYPED))
    named |= set(re.findall(r"^(?:ARG \w+=|FROM )([^$\s]+)", SIDECAR_AND_ENGINE, re.MULTILINE))
    assert [image for image in named if not re.fullmatch(r"(localhost|[\w-]+\.[\w.-]+)/[\w./-]+:[\w.-]+", image)] == []
    assert {image for image in named if "gpu-failover" in image} <= set(BUILT)
    assert all((ROOT / file).is_file() for file in BUILT.values())
    assert set(re.findall(r"podman save (\S+)", TYPED)) <= set(BUILT)


def test_containers_of_one_image_are_upgraded_by_one_command() -> None:
    commands = re.findall(r"^kubectl set image deployment/failover (.*)$", UPGRADE, re.M)
    typed = [dict(word.split("=") for word in command.split()) for command in commands]
    assert all(len(set(command.values())) == 1 for command in typed)
    images = {each["image"] for each in CONTAINERS.values()}
    of_one = [{name for name, each in CONTAINERS.items() if each["image"] == image} for image in images]
    assert sorted(map(sorted, typed)) == sorted(map(sorted, of_one))


@pytest.mark.parametrize("path", sorted(SHIPPED.glob("*.yaml")), ids=lambda path: path.name)
def test_an_upgrade_ends_one_pod_before_it_starts_another(path: Path) -> None:
    """No GPU is free for both."""
    for each in yaml.safe_load_all(path.read_text(encoding="utf-8")):
        if each["kind"] == "Deployment":
            assert each["spec"]["strategy"]["rollingUpdate"] == {"maxSurge": 0, "maxUnavailable": 1}
            assert each["spec"]["strategy"]["type"] == "RollingUpdate"


@pytest.fixture
def short_path() -> Iterator[Path]:
    """podman refuses a run root of more than 50 characters."""
    with tempfile.TemporaryDirectory() as directory:
        yield Path(directory)


@pytest.mark.skipif(shutil.which("podman") is None, reason="there is no podman here")
@pytest.mark.parametrize("image", BUILT)
def test_what_podman_builds_by_that_name_has_it(image: str, short_path: Path) -> None:
    """Of nothing, because no registry is in reach: it is the name that is tried."""
    (short_path / "Containerfile").write_text("FROM scratch\nLABEL tried=yes\n")
    stores = [f"--{each}={short_path / each}" for each in ("root", "runroot", "tmpdir")]

    def podman(*words: str) -> str:
        command = ["podman", *stores, "--storage-driver=vfs", *words]
        return subprocess.run(command, cwd=short_path, check=True, capture_output=True, text=True, timeout=120).stdout

    podman("build", "-f", "Containerfile", "-t", image, ".")
    assert podman("images", "--format", "{{.Repository}}:{{.Tag}}").split() == [image]


def test_the_kustomization_fits_the_manifest() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", DOCS, re.DOTALL)
    kustomization = yaml.safe_load(text)
    images = {f"{each['name']}:{each['newTag']}" for each in kustomization["images"]}
    assert images == {each["image"] for each in CONTAINERS.values()}
    made = overlaid(OBJECTS, patches_of([kustomization], yaml.safe_load_all))
    assert len(made) == len(OBJECTS)
    assert errors(check([("docs", yaml.safe_dump_all(made))], have=[("Secret", "huggingface")])) == []
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    spec = deployment["spec"]["template"]["spec"]
    assert [each["name"] for each in spec["initContainers"] + spec["containers"]] == list(CONTAINERS)
    for engine in spec["containers"]:
        assert "HF_TOKEN" in [each["name"] for each in engine["env"]]


def test_the_patch_for_the_doors_keys_fits_the_manifest() -> None:
    (text,) = re.findall(r"```yaml\n(.*?)```", CONFIGURATION.read_text(), re.DOTALL)
    made = overlaid(OBJECTS, patches_of([yaml.safe_load(text)], yaml.safe_load_all))
    assert errors(check([("docs", yaml.safe_dump_all(made))], have=[("Secret", "door-keys")])) == []
    (deployment,) = (each for each in made if each["kind"] == "Deployment")
    (door,) = (each for each in deployment["spec"]["template"]["spec"]["initContainers"] if each["name"] == "gateway")
    assert {"FAILOVER_API_KEYS", "FAILOVER_RUN_DIR"} <= {each["name"] for each in door["env"]}
