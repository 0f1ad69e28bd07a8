"""Puts an overlay over manifests: kubectl's strategic merge patch, as far as pods need it. Pure.

Mappings are merged, null takes a field out, lists of scalars are replaced. Lists of objects are merged by the key
that the API has for them; `$patch: delete` in an entry takes it out, `$patch: replace` in a mapping replaces it.
"""

from pathlib import Path
from typing import Any

import yaml

KEYS = {
    "containers": "name", "initContainers": "name", "ephemeralContainers": "name", "env": "name", "volumes": "name",
    "volumeMounts": "mountPath", "ports": "containerPort", "resourceClaims": "name", "claims": "name",
    "imagePullSecrets": "name", "hostAliases": "ip",
}  # fmt: skip


class CantMerge(Exception):
    """The overlay doesn't fit; the text says where."""


def overlaid(documents: list[Any], patches: list[Any]) -> list[Any]:
    """Each patch goes over the object of its kind and name, or is added where there is none."""
    found = list(documents)
    for patch in patches:
        kind, name = patch.get("kind"), (patch.get("metadata") or {}).get("name")
        places = [
            index
            for index, each in enumerate(found)
            if each.get("kind") == kind and (name is None or (each.get("metadata") or {}).get("name") == name)
        ]
        if not places and name is None:
            raise CantMerge(f"the overlay is for a {kind}, and there is none")
        if patch.get("$patch") == "delete":
            found = [each for index, each in enumerate(found) if index not in places]
        elif places:
            for index in places:
                found[index] = merged(found[index], patch)
        else:
            found.append(patch)
    return found


def patches_of(documents: list[Any], load: Any) -> list[Any]:
    """An overlay is a list of such patches, or a kustomization that has them as texts."""
    found = []
    for document in documents:
        if document.get("kind") != "Kustomization":
            found.append(document)
            continue
        for each in document.get("patches") or ():
            for patch in load(each.get("patch") or ""):
                target = each.get("target") or {}
                named = {**(patch.get("metadata") or {}), **({"name": target["name"]} if "name" in target else {})}
                found.append({"kind": target.get("kind"), **patch, "metadata": named})
    return found


def merged(old: Any, patch: Any, key: str = "") -> Any:
    if isinstance(patch, dict):
        return _mapping(old if isinstance(old, dict) else {}, patch)
    if isinstance(patch, list) and key in KEYS and all(isinstance(each, dict) for each in patch):
        return _list(old if isinstance(old, list) else [], patch, KEYS[key])
    return patch


def _mapping(old: dict[str, Any], patch: dict[str, Any]) -> dict[str, Any]:
    if patch.get("$patch") == "replace":
        return {name: value for name, value in patch.items() if name != "$patch"}
    found = dict(old)
    for name, value in patch.items():
        if value is None:
            found.pop(name, None)
        elif not name.startswith("$"):
            found[name] = merged(found.get(name), value, name)
    return found


def _list(old: list[Any], patch: list[Any], by: str) -> list[Any]:
    found = list(old)
    for entry in patch:
        if by not in entry:
            raise CantMerge(f"an entry of the overlay has no {by}, by which it would be found: {entry}")
        place = next((index for index, each in enumerate(found) if each.get(by) == entry[by]), None)
        if entry.get("$patch") == "delete":
            found = [each for index, each in enumerate(found) if index != place]
        elif place is None:
            found.append(merged({}, entry))
        else:
            found[place] = merged(found[place], entry)
    return found


def with_overlay(target: Path, manifest: Path, overlay: str) -> Path:
    """Writes the manifest with the overlay over it, for local-pod; its path."""
    documents = list(yaml.safe_load_all(manifest.read_text(encoding="utf-8")))
    found = overlaid(documents, list(yaml.safe_load_all(overlay)))
    target.write_text(yaml.safe_dump_all(found, sort_keys=False), encoding="utf-8")
    target.chmod(0o644)
    return target
