"""An overlay over manifests, as the tests put one over those that are shipped."""

from typing import Any

import pytest
import yaml

from tests.k8s import merging

BASE = [{"kind": "Pod", "metadata": {"name": "p"}, "spec": {"a": 1, "b": 2, "containers": [
    {"name": "x", "args": [1, 2], "env": [{"name": "E", "value": "1"}]}, {"name": "y"}]}}]  # fmt: skip


@pytest.mark.parametrize(
    ("patch", "spec"),
    [
        ({"a": 5, "b": None}, {"a": 5, "containers": BASE[0]["spec"]["containers"]}),  # type: ignore[index]
        ({"containers": [{"name": "y", "$patch": "delete"}]}, {"a": 1, "b": 2, "containers": [BASE[0]["spec"]["containers"][0]]}),  # type: ignore[index]
        (
            {"containers": [{"name": "x", "args": [3], "env": [{"name": "E", "value": "2"}, {"name": "F"}]}, {"name": "z"}]},
            {"a": 1, "b": 2, "containers": [{"name": "x", "args": [3], "env": [{"name": "E", "value": "2"}, {"name": "F"}]},
                                            {"name": "y"}, {"name": "z"}]},
        ),
        ({"$patch": "replace", "c": 1}, {"c": 1}),
    ],
)  # fmt: skip
def test_an_overlay(patch: dict[str, Any], spec: dict[str, Any]) -> None:
    (found,) = merging.overlaid(BASE, [{"kind": "Pod", "metadata": {"name": "p"}, "spec": patch}])
    assert found["spec"] == spec


def test_an_overlay_adds_takes_out_and_says_what_it_is_for() -> None:
    assert merging.overlaid(BASE, [{"kind": "Pod", "$patch": "delete"}]) == []
    assert len(merging.overlaid(BASE, [{"kind": "Service", "metadata": {"name": "s"}}])) == 2
    with pytest.raises(merging.CantMerge, match="for a Service, and there is none"):
        merging.overlaid(BASE, [{"kind": "Service"}])
    with pytest.raises(merging.CantMerge, match="has no name"):
        merging.overlaid(BASE, [{"kind": "Pod", "spec": {"containers": [{"image": "x"}]}}])


def test_a_kustomization_with_patches_is_an_overlay_too() -> None:
    text = "kind: Kustomization\npatches:\n  - target: {kind: Pod}\n    patch: |\n      spec: {a: 7}\n"
    patches = merging.patches_of(list(yaml.safe_load_all(text)), yaml.safe_load_all)
    assert merging.overlaid(BASE, patches)[0]["spec"]["a"] == 7
