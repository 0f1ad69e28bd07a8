"""Every field of the manifests that we ship is broken, one at a time, and the linter has to say something.

A field, an entry of a list or all below it is taken out; a text gets a letter more, a number becomes -1, a flag the
other one. What may pass unnoticed stands in `UNNOTICED`, with the reason why no linter could or should mind.
"""

import json
from collections.abc import Iterator
from fnmatch import fnmatchcase
from typing import Any

import pytest

from k8s.lint.check import judge
from k8s.lint.node import Document
from tests.k8s.manifests import SHIPPED, documents
from tests.k8s.test_variants import BASE, differing

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]  # hundreds of changes each, and a machine may be busy
SPEC = "Deployment/*.spec.template.spec"
ANYONE = f"{SPEC}.*ontainers.*"
OUT, CHANGED = "out", "changed"
Keys = tuple[str | int, ...]

UNNOTICED: dict[str, str] = {
    # Names and marks that nothing else in the file refers to.
    "* */*.metadata.labels*": "labels are for people and for clients that select by them",
    "* ResourceClaimTemplate/*.spec.metadata*": "labels of the claims that it makes, for people",
    "changed */*.metadata.name": "another name is a name, too, where nothing refers to it",
    f"changed {ANYONE}.name": "another name is a name, too, where nothing refers to it",
    "changed ResourceClaimTemplate/*.requests.gpu.name": "containers name the claim, and not the request in it",
    "* Service/*.spec.ports.http.name": "with one port the name is only for people",
    "out *.metadata.annotations*": "without it kubectl takes the first main container",
    f"changed {ANYONE}.image": "which images there are only a registry knows",
    f"changed {ANYONE}.env.ENGINE_ID.value": "any two names will do",
    f"changed {ANYONE}.env.USER.value": "any name will do",
    # Defaults of the API that are what is said, or another pace.
    "out Deployment/*.spec.replicas": "1 is the default",
    "out Deployment/*.spec.strategy.type": "RollingUpdate is the default",
    "out Deployment/*.spec.strategy.rollingUpdate.maxUnavailable": "25% of 1 is 0, for which the controller takes 1",
    "out Deployment/*.spec.progressDeadlineSeconds": "the default is earlier to give up, and gives up nothing but hope",
    "out ResourceClaimTemplate/*.exactly.allocationMode": "ExactCount is the default",
    "out ResourceClaimTemplate/*.exactly.count": "1 is the default",
    "out Service/*.spec.type": "ClusterIP is the default",
    "out NetworkPolicy/*.spec.policyTypes": "they follow from the rules",
    "out PodDisruptionBudget/*.unhealthyPodEvictionPolicy": "the default keeps a pod that isn't Ready for longer",
    f"out {SPEC}.shareProcessNamespace": "false is the default",
    f"out {SPEC}.terminationGracePeriodSeconds": "30 s is the default, and enough for what is asked of it here",
    f"out {SPEC}.securityContext.fsGroupChangePolicy": "the default is slower with a large volume, and does the same",
    f"out {SPEC}.securityContext.runAsGroup": "the image's group; ours are private to the user",
    f"out {ANYONE}.imagePullPolicy": "it follows from the image's tag",
    f"out {ANYONE}Probe.periodSeconds": "10 s is the default: another pace, and no fault",
    f"out {ANYONE}Probe.timeoutSeconds": "1 s is the default; where that is too short it is noticed",
    f"out {ANYONE}Probe.failureThreshold": "3 is the default: another pace, and no fault",
    f"out {ANYONE}.env.ENGINE_ROLE*": "primary is the default; two of them are noticed",
    f"out {SPEC}.containers.engine-*.env.FAILOVER_RESTART*": "in-place is the engines' default",
    f"out {ANYONE}.env.FAILOVER_LOG_FORMAT*": "text is the default, for people",
    # What a set of manifests may do differently.
    "out *.matchLabels.app.kubernetes.io/*": "a pod that is selected by two labels is selected by one",
    "out Service/*.spec.selector.app.kubernetes.io/*": "a pod that is selected by two labels is selected by one",
    "out NetworkPolicy/*.spec.podSelector*": "an empty one selects every pod, ours with them",
    "out PodDisruptionBudget/*.spec.selector*": "an empty one selects every pod, ours with them",
    "* NetworkPolicy/*.spec.ingress.1*": "who may read metrics is for the cluster's owner to say",
    "out NetworkPolicy/*.spec.ingress.0.ports*": "a rule without ports lets all of them in",
    "out NetworkPolicy/*.spec.egress*": "what may be called is for the cluster's owner to say",
    f"out {SPEC}.tolerations*": "which taints nodes have only the cluster knows",
    f"changed {SPEC}.tolerations.0.key": "which taints nodes have only the cluster knows",
    f"out {SPEC}.volumes.*.emptyDir.sizeLimit": "on a disk the node's own limit holds; in memory it is noticed",
    f"out {ANYONE}.resources*": "how much is for the cluster's owner to say; claims are noticed",
    f"out {ANYONE}.volumeMounts.*.readOnly": "it may be written, and no process does",
    f"changed {ANYONE}.volumeMounts.*.readOnly": "it may be written, and no process does",
    f"* {ANYONE}.env.*CACHE*": "below HOME, or /tmp, which is a volume, too",
    f"* {ANYONE}.env.HF_HOME*": "below HOME, which is a volume, too",
    f"changed {SPEC}.initContainers.gpu-failover.command.1": "letters of cp, which says itself what it doesn't know",
    # What the API server itself refuses: `--server` asks it.
    "changed *Probe.*Seconds": "the API server refuses -1",
    "changed *Probe.failureThreshold": "the API server refuses -1",
    "changed Deployment/*.spec.replicas": "the API server refuses -1",
    "changed Deployment/*.spec.progressDeadlineSeconds": "the API server refuses -1",
    "changed Deployment/*.spec.strategy.rollingUpdate.maxUnavailable": "the API server refuses it",
    "out Deployment/*.spec.selector.matchLabels": "the API server refuses an empty selector",
    f"changed {SPEC}.securityContext.run*": "the API server refuses -1",
    f"changed {SPEC}.securityContext.fsGroup": "the API server refuses -1",
    f"changed {SPEC}.securityContext.fsGroupChangePolicy": "the API server refuses an unknown word",
    f"changed {SPEC}.securityContext.seccompProfile.type": "the API server refuses an unknown word",
    "changed NetworkPolicy/*.spec.policyTypes.[01]": "the API server refuses an unknown word",
    "changed NetworkPolicy/*.spec.egress.*.port": "the API server refuses -1",
    "changed NetworkPolicy/*.spec.egress.*.protocol": "the API server refuses an unknown word",
    "changed PodDisruptionBudget/*.spec.maxUnavailable": "the API server refuses -1",
    "changed PodDisruptionBudget/*.unhealthyPodEvictionPolicy": "the API server refuses an unknown word",
    "changed Service/*.spec.type": "the API server refuses an unknown word",
    "out Service/*.spec.ports": "the API server refuses a Service without ports",
    "out Service/*.spec.ports.http": "the API server refuses a Service without ports",
    "changed Service/*.spec.ports.http.port": "the API server refuses -1",
    "* PersistentVolumeClaim/*.spec.accessModes.0": "the API server refuses none, and an unknown word",
    "* PersistentVolumeClaim/*.spec.resources.requests.storage": "the API server refuses none, and no amount",
    # Of one container for all, whose command nothing can be held against but itself.
    "out *.containers.pair.command": "an image may have a command of its own",
    "* *.containers.pair.command.[01]": "what else an image has only a registry knows",
    "out *.containers.pair.command.2": "what else an image has only a registry knows",
    "out *.containers.pair.command.8": "a flag's value that stands alone is taken for a model's name",
    "changed *.containers.pair.env.FAILOVER_*.value": "it meets no reader; `failover up` says itself what it minds",
    # Of the variants.
    f"changed {ANYONE}.args.*": "how an engine computes is for its operator; a model that is missing is noticed",
    f"out {ANYONE}.args.*": "how an engine computes is for its operator; a model that is missing is noticed",
}  # fmt: skip


def values(node: Any, path: str, keys: Keys) -> Iterator[tuple[str, Keys, Any]]:
    """Everything below: its path in words, its path in the document, and what it is."""
    if isinstance(node, dict):
        inner: list[tuple[str, str | int, Any]] = [(key, key, value) for key, value in node.items()]
    elif isinstance(node, list):
        inner = [(_name(value, place), place, value) for place, value in enumerate(node)]
    else:
        return
    for word, key, value in inner:
        yield f"{path}.{word}", (*keys, key), value
        yield from values(value, f"{path}.{word}", (*keys, key))


def _name(entry: Any, place: int) -> str:
    return str(entry["name"]) if isinstance(entry, dict) and isinstance(entry.get("name"), str) else str(place)


def every(file: str) -> list[tuple[str, Keys, Any]]:
    found = []
    for place, document in enumerate(json.loads(documents((SHIPPED / file).read_text()))):
        found += list(values(document, f"{document['kind']}/{document['metadata']['name']}", (place,)))
    return found


def ways(value: Any) -> Iterator[tuple[str, Any]]:
    yield OUT, None
    if isinstance(value, bool):
        yield CHANGED, not value
    elif isinstance(value, int):
        yield CHANGED, -1
    elif isinstance(value, str):
        yield CHANGED, value + "x"


def listed(change: str) -> bool:
    return any(fnmatchcase(change, pattern) for pattern in UNNOTICED)


def unnoticed(file: str, chosen: list[tuple[str, Keys, Any]]) -> list[str]:
    """Those of these changes to which the linter says nothing, and for which no reason is listed."""
    text = documents((SHIPPED / file).read_text())
    found = []
    for path, keys, value in chosen:
        for way, other in ways(value):
            if listed(f"{way} {path}"):
                continue
            changed = json.loads(text)
            node = changed
            for key in keys[:-1]:
                node = node[key]
            if way == OUT:
                del node[keys[-1]]
            else:
                node[keys[-1]] = other
            these = [Document(file, document, {}) for document in changed]
            # The shape takes the most time; it is looked at where nothing else was found.
            if not judge(these, NO_SHAPES) and not judge(these):
                found.append(f"{way} {path}")
    return found


def part(path: str) -> str:
    """Which of the tests below looks at it."""
    inside = path.removeprefix("Deployment/failover.spec.template.spec.")
    return next((each for each in PARTS if inside.startswith(each)), "")


NO_SHAPES = "none"
"""A version of Kubernetes that there is not."""
PARTS = (
    *(f"initContainers.{name}" for name in ("gpu-failover", "lockserver", "gms", "gateway")),
    *(f"containers.engine-{name}.{field}" for name in "ab" for field in ("env", "")),
    "volumes", "NetworkPolicy", "PodDisruptionBudget", "Service", "ResourceClaimTemplate",
)  # fmt: skip


@pytest.mark.parametrize("which", [*PARTS, ""], ids=lambda which: which or "the rest")
def test_no_field_can_be_broken_unnoticed(which: str) -> None:
    chosen = [each for each in every(BASE) if part(each[0]) == which]
    assert chosen
    assert unnoticed(BASE, chosen) == []


@pytest.mark.parametrize("file", ["reference.yaml", "tp2.yaml"])
def test_nor_can_one_in_which_a_variant_differs(file: str) -> None:
    paths = set(differing(file))
    chosen = [each for each in every(file) if each[0] in paths]
    assert chosen
    assert unnoticed(file, chosen) == []


def test_nor_can_one_of_all_in_one_container() -> None:
    chosen = [each for each in every("no-dra.yaml") if ".containers." in each[0]]
    assert unnoticed("no-dra.yaml", chosen) == []


def test_each_reason_is_for_a_change() -> None:
    files = (BASE, "reference.yaml", "tp2.yaml", "no-dra.yaml")
    changes = [f"{way} {path}" for file in files for path, _, value in every(file)
               for way, _ in ways(value)]  # fmt: skip
    assert [pattern for pattern in UNNOTICED if not any(fnmatchcase(change, pattern) for change in changes)] == []
