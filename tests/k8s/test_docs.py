"""What docs/kubernetes.md and the README tell a person to type: it names what the manifest has."""

import re

import pytest
import yaml

from k8s.lint.check import check
from tests.k8s.manifests import POD, errors
from tests.support.processes import ROOT
from tools.local_pod.merging import overlaid, patches_of

DOCS = (ROOT / "docs" / "kubernetes.md").read_text(encoding="utf-8")
TYPED = DOCS + (ROOT / "README.md").read_text(encoding="utf-8")
OBJECTS = list(yaml.safe_load_all(POD))
DEPLOYMENT, SERVICE = (next(each for each in OBJECTS if each["kind"] == kind) for kind in ("Deployment", "Service"))
SPEC = DEPLOYMENT["spec"]["template"]["spec"]
CONTAINERS = {each["name"]: each for each in SPEC["initContainers"] + SPEC["containers"]}


@pytest.mark.parametrize(
    ("pattern", "there"),
    [
        (r"\b(?:deployment|service)/(\S+)", {DEPLOYMENT["metadata"]["name"]}),
        (r"kubectl (?:exec|logs) [^`]*?-c\s+([a-z-]+)", set(CONTAINERS)),
        (r"http://([a-z]+)", {SERVICE["metadata"]["name"]}),
        (r"service/failover \d+:(\d+)", {str(port["port"]) for port in SERVICE["spec"]["ports"]}),
        (r"deviceclass (\S+)", {OBJECTS[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"]}),
        (r"kubectl [^`]*?-l (\S+=[\w-]+)", {"=".join(each) for each in SERVICE["spec"]["selector"].items()}),
    ],
)
def test_what_a_command_names_is_in_the_manifest(pattern: str, there: set[str]) -> None:
    named = set(re.findall(pattern, TYPED))
    assert named and named <= there


def test_the_model_that_is_asked_for_is_the_one_that_is_served() -> None:
    arguments = CONTAINERS["engine-a"]["args"]
    served = arguments[arguments.index("--served-model-name") + 1]
    assert set(re.findall(r'"model": "(\w+)"', DOCS)) == {served}


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
