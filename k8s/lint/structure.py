"""The shape of an object: which fields there are, of which type. Everything that a schema can say, and nothing else.

The schemas are those of `kubernetes-validate` (an extra: without it the shape isn't checked, and a warning says so).
The kinds of the Prometheus operator that we ship have none there: their shape is for a cluster that has the operator to
say (`--server`), and what they select and scrape is looked at here (`set_rules.py`).
"""

import difflib
import functools
import importlib
import json
from collections.abc import Iterator
from typing import Any

from sidecar.terminal.extras import how_to_get

from .node import Document, Level, Path, without_nulls

NEWEST = "1.36"  # what the recorded verdicts of tests/k8s are from
OLDEST = "1.34"  # the first that serves resource.k8s.io/v1
HOW_TO_GET_IT = how_to_get("k8s")
_CLIENT_SIDE = "kustomize.config.k8s.io"
_OPERATOR = "monitoring.coreos.com"


class NoSchemas(Exception):
    """kubernetes-validate isn't installed, or knows no such version; the text says what to do."""


class Schemas:
    """The schemas of one version of Kubernetes."""

    def __init__(self, version: str) -> None:
        try:
            library = importlib.import_module("kubernetes_validate.utils")
            self._jsonschema = importlib.import_module("jsonschema")
            referencing = importlib.import_module("referencing")
        except ImportError:
            raise NoSchemas(f"the shape of objects isn't checked: {HOW_TO_GET_IT}") from None
        self._load = library.schema_contents
        known = {library.major_minor(each): each for each in library.all_versions()}
        if version not in known:
            raise NoSchemas(f"there are no schemas of Kubernetes {version}; there are: {', '.join(known)}")
        self.version = version
        self._directory = f"kubernetes-json-schema/v{known[version]}-local-strict"
        self._definitions = self._load(f"{self._directory}/_definitions.json", version)
        self._registry = referencing.Registry().with_resources(
            [("https://kubernetes.io/api/_definitions.json", referencing.Resource.from_contents(self._definitions))]
        )

    @functools.cached_property
    def kinds(self) -> dict[tuple[str, str], str]:
        """(apiVersion, kind) -> name of its definition."""
        found = {}
        for name, definition in self._definitions["$defs"].items():
            for known in definition.get("x-kubernetes-group-version-kind", ()):
                group, version, kind = known["group"], known["version"], known["kind"]
                found[f"{group}/{version}" if group else version, kind] = name
        return found

    def errors(self, api_version: str, kind: str, value: Any) -> Iterator[tuple[Path, str]]:
        """What is wrong with the shape of this object."""
        schema = {"$ref": f"https://kubernetes.io/api/_definitions.json#/$defs/{self.kinds[api_version, kind]}"}
        validator = self._jsonschema.validators.Draft202012Validator(schema, registry=self._registry)
        for error in validator.iter_errors(without_nulls(value)):
            yield tuple(error.absolute_path), _said(error)


@functools.cache
def schemas(version: str) -> Schemas:
    return Schemas(version)


def check(document: Document, version: str) -> bool:
    """True if this is an object that the rules may look at."""
    root = document.root
    if not isinstance(document.value, dict):
        root.error(f"this is no object but {json.dumps(document.value, default=str)[:60]}")
        return False
    api_version, kind = root["apiVersion"].text, root["kind"].text
    for key in ("apiVersion", "kind"):
        if not root[key].text:
            root.error(f"{key} is missing")
    if not api_version or not kind:
        return False
    group = api_version.partition("/")[0] if "/" in api_version else ""
    if group == _CLIENT_SIDE:
        return False
    try:
        known = schemas(version)
    except NoSchemas:  # the command says it once
        return True
    if (api_version, kind) in known.kinds:
        found = as_v1 = list(known.errors(api_version, kind, document.value))
        stable = f"{group}/v1"
        if found and (stable, kind) in known.kinds:
            as_v1 = list(known.errors(stable, kind, {**document.value, "apiVersion": stable}))
        for path, message in found:
            written_for_v1 = len(as_v1) < len(found) and (path, message) not in as_v1
            document.add(Level.ERROR, path, message + f"; use {stable}, where this is right" * written_for_v1)
    elif "." not in group or group.endswith(".k8s.io"):
        served = sorted({f"{kind} in {one}" for one, other in known.kinds if other == kind})
        near = difflib.get_close_matches(kind, {other for _, other in known.kinds}, 1)
        hint = f"; there is {', '.join(served or near)}" if served or near else ""
        root["apiVersion"].error(f"Kubernetes {version} has no {kind} in version {api_version}{hint}")
        return False
    elif group != _OPERATOR:
        root.warn(f"{kind} of {api_version} is nothing that this knows: only its metadata is checked")
    return True


def _said(error: Any) -> str:
    if error.validator == "additionalProperties" and isinstance(error.instance, dict):
        fields = error.schema.get("properties", {})
        unknown = [key for key in error.instance if key not in fields]
        near = [difflib.get_close_matches(str(key), fields, 1) for key in unknown]
        hints = [f"; {other[0]} is meant?" if other else "" for other in near]
        return "; ".join(f"there is no field {key}{hint}" for key, hint in zip(unknown, hints, strict=True))
    if error.validator == "required":
        return "missing: " + ", ".join(key for key in error.validator_value if key not in error.instance)
    if error.validator in ("type", "oneOf"):
        types = error.validator_value if error.validator == "type" else [_type(one) for one in error.validator_value]
        flat = [one for entry in ([types] if isinstance(types, str) else types) for one in _flat(entry)]
        wanted = " or ".join(dict.fromkeys(one for one in flat if one != "null"))
        return f"{json.dumps(error.instance, default=str)[:60]} has the wrong type; it has to be: {wanted}"
    return str(error.message)[:200]


def _flat(entry: Any) -> list[str]:
    return [entry] if isinstance(entry, str) else list(entry)


def _type(schema: dict[str, Any]) -> Any:
    return schema.get("type", "something else")
