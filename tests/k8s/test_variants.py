"""In which fields each variant differs from one-gpu.yaml, and why.

So what is tried with one of them holds for the others.
"""

from fnmatch import fnmatchcase
from typing import Any

import pytest
import yaml

from tests.k8s.manifests import SHIPPED

BASE = "one-gpu.yaml"
POD = "Deployment/failover.spec.template.spec"
SERVERS = (f"{POD}.initContainers.lockserver", f"{POD}.initContainers.gms")
ENGINES = (f"{POD}.containers.engine-a", f"{POD}.containers.engine-b")

REFERENCE: dict[str, str] = {
    "ResourceClaimTemplate/failover-gpus.*": "there is no GPU to claim",
    f"{POD}.resourceClaims.*": "there is no GPU to claim",
    f"{POD}.*.resources.claims.*": "there is no GPU to claim",
    f"{POD}.tolerations.*": "so no node has to be tolerated",
    f"{POD}.volumes.devices.*": "host devices lie on a volume",
    f"{POD}.*.volumeMounts.devices.*": "host devices lie on a volume",
    f"{POD}.*.env.FAILOVER_HOST_DEVICES.*": "and all four who use them are told where",
    f"{SERVERS[0]}.command.2": "--memory host instead of nvml",
    f"{SERVERS[1]}.command.2": "--devices host:0 instead of cuda",
    f"{SERVERS[1]}.command.3": "a host device has the size that it is given",
    f"{SERVERS[1]}.command.4": "a host device has the size that it is given",
    f"{SERVERS[1]}.command.5": "what stood there stands two words further",
    f"{SERVERS[1]}.command.6": "what stood there stands two words further",
    f"{POD}.containers.*.image": "the reference engine needs no vLLM",
    f"{POD}.containers.*.command.4": "--engine reference instead of vllm",
    f"{POD}.containers.*.args.*": "each engine has its own arguments",
    f"{POD}.containers.*.resources.*": "and is small",
}
LARGER: dict[str, str] = {
    "ResourceClaimTemplate/failover-gpus.spec.spec.devices.requests.gpu.exactly.count": "more GPUs",
    f"{POD}.containers.*.args.*": "tensor parallelism, and another model",
    f"{POD}.*.resources.*": "a larger model needs more",
    f"{POD}.volumes.shm-*.emptyDir.sizeLimit": "ranks speak to each other through /dev/shm",
    f"{POD}.volumes.home-*.emptyDir.sizeLimit": "more is compiled",
    "PersistentVolumeClaim/failover-models.*": "a large model is downloaded once, and kept",
    f"{POD}.volumes.models.*": "a large model is downloaded once, and kept",
    f"{POD}.*.volumeMounts.models.*": "a large model is downloaded once, and kept",
    f"{POD}.containers.*.env.HF_HOME.value": "a large model is downloaded once, and kept",
}
EXPECTED = {"reference.yaml": REFERENCE, "tp2.yaml": LARGER, "tp8.yaml": LARGER}


def fields(file: str) -> dict[str, Any]:
    """Each field with its path; what has a name in a list is called by it."""
    found: dict[str, Any] = {}
    for document in yaml.safe_load_all((SHIPPED / file).read_text()):
        found |= _below(f"{document['kind']}/{document['metadata']['name']}", document)
    return found


def _below(path: str, node: Any) -> dict[str, Any]:
    if isinstance(node, dict):
        inner = list(node.items())
    elif isinstance(node, list):
        inner = [(_name(each, str(place)), each) for place, each in enumerate(node)]
    else:
        return {path: node}
    return {key: value for name, each in inner for key, value in _below(f"{path}.{name}", each).items()}


def _name(entry: Any, place: str) -> str:
    return str(entry["name"]) if isinstance(entry, dict) and "name" in entry else place


def differing(file: str) -> list[str]:
    base, other = fields(BASE), fields(file)
    missing = object()
    return [path for path in {**base, **other} if base.get(path, missing) != other.get(path, missing)]


@pytest.mark.parametrize("file", EXPECTED)
def test_it_differs_in_these_fields_and_in_no_others(file: str) -> None:
    unexplained = [path for path in differing(file) if not any(fnmatchcase(path, each) for each in EXPECTED[file])]
    assert unexplained == []


def test_each_reason_is_for_a_difference() -> None:
    for reasons, files in ((REFERENCE, ["reference.yaml"]), (LARGER, ["tp2.yaml", "tp8.yaml"])):
        every = [path for file in files for path in differing(file)]
        assert [each for each in reasons if not any(fnmatchcase(path, each) for path in every)] == []


def test_the_fields_that_keep_the_pod_ready_are_the_same_everywhere() -> None:
    """A net under the net: the patterns above must not swallow these."""
    kept = ("Probe", ".lifecycle.", ".securityContext.", ".ports.", "restartPolicy", "GracePeriod", "RESTART")
    for file in EXPECTED:
        assert [path for path in differing(file) if any(each in path for each in kept)] == []
