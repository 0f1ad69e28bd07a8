"""What the API's schema says: which fields a kind has, of which type, how its lists merge, which fields an object has.

A node is a part of the schema. The schema is that of the linter's library; a custom kind brings its own.
"""

import importlib.resources
import json
import re
from collections.abc import Iterator
from functools import cache
from typing import Any, NamedTuple

Node = dict[str, Any]
Path = tuple[str, ...]

_VERSION = "v1.36.0-local"
_META = "io.k8s.apimachinery.pkg.apis.meta.v1."
_TIMES = {"Time": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\dZ", "MicroTime": r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z"}
_TYPES: dict[str, tuple[type, ...]] = {
    "string": (str,), "integer": (int,), "number": (int, float), "boolean": (bool,), "object": (dict,), "array": (list,)
}  # fmt: skip


class Fault(NamedTuple):
    unknown: bool
    """Else it is of a wrong type."""
    path: str


@cache
def _definitions() -> dict[str, Node]:
    files = importlib.resources.files("kubernetes_validate") / "kubernetes-json-schema" / _VERSION
    found: dict[str, Node] = json.loads((files / "_definitions.json").read_text())["$defs"]
    return found


@cache
def _by_kind() -> dict[tuple[str, str, str], Node]:
    named = {}
    for node in _definitions().values():
        for gvk in node.get("x-kubernetes-group-version-kind", ()):
            named[gvk["group"], gvk["version"], gvk["kind"]] = node
    return named


def of_kind(group: str, version: str, kind: str) -> Node:
    return _by_kind()[group, version, kind]


def of_custom(schema: Node) -> Node:
    text: Node = {"type": "string"}
    meta = {"$ref": f"#/$defs/{_META}ObjectMeta"}
    return {**schema, "properties": {"apiVersion": text, "kind": text, **schema["properties"], "metadata": meta}}


def _resolved(node: Node) -> Node:
    while "$ref" in node:
        node = _definitions()[node["$ref"].removeprefix("#/$defs/")]
    return node


def field(node: Node, name: str) -> Node | None:
    """The part that a field of an object is. None: there is no such field; empty: anything goes."""
    node = _resolved(node)
    if name in node.get("properties", {}):
        found: Node = node["properties"][name]
        return found
    if "additionalProperties" in node:
        return node["additionalProperties"] if isinstance(node["additionalProperties"], dict) else {}
    return None if "properties" in node else {}


def item(node: Node) -> Node:
    found: Node = _resolved(node).get("items", {})
    return found


def is_map(node: Node) -> bool:
    """Its keys are the user's: an empty one is as good as none."""
    return "additionalProperties" in _resolved(node)


def merge_key(node: Node) -> str | None:
    """By what a strategic merge tells a list's items apart; "" for plain values; None: it replaces the list."""
    if "merge" not in node.get("x-kubernetes-patch-strategy", "").split(","):
        return None
    key: str = node.get("x-kubernetes-patch-merge-key", "")
    return key


def map_keys(node: Node) -> list[str] | None:
    """By what an apply tells a list's items apart; [] for a set; None: the list is one value."""
    return {"map": node.get("x-kubernetes-list-map-keys", []), "set": []}.get(node.get("x-kubernetes-list-type", ""))


def faults(node: Node, value: Any, path: str = "") -> Iterator[Fault]:
    """What isn't as the schema says, in the order of the object."""
    if value is None:
        return
    time = _TIMES.get(node.get("$ref", "").rpartition(".")[2])
    node = _resolved(node)
    wanted = node.get("type")
    names = wanted if isinstance(wanted, list) else [wanted] if wanted else []
    allowed = tuple(t for name in names for t in _TYPES.get(name, ()))
    right = not allowed or (isinstance(value, allowed) and (not isinstance(value, bool) or bool in allowed))
    bits = {"int32": 31, "int64": 63}.get(node.get("format", ""))
    if bits and isinstance(value, int):
        right = right and -(1 << bits) <= value < 1 << bits
    if not right or (time is not None and not re.fullmatch(time, str(value))):
        yield Fault(False, path)
    elif isinstance(value, dict):
        for key, inner in value.items():
            where, part = f"{path}.{key}" if path else key, field(node, key)
            if part is not None:
                yield from faults(part, inner, where)
            else:
                yield Fault(True, where)
    elif isinstance(value, list):
        for number, inner in enumerate(value):
            yield from faults(item(node), inner, f"{path}[{number}]")


def cleaned(node: Node, value: Any) -> Any:
    """As it is stored: no field that isn't known, nothing that is null or an empty list or map; defaults of custom
    kinds."""
    if isinstance(value, list):
        return [cleaned(item(node), inner) for inner in value]
    if not isinstance(value, dict):
        return value
    found = {}
    for key, inner in value.items():
        part = field(node, key)
        if part is None or inner is None or inner == [] or (inner == {} and is_map(part)):
            continue
        found[key] = cleaned(part, inner)
    for key, part in _resolved(node).get("properties", {}).items():
        if "default" in part and "$ref" not in part and key not in found and "description" not in part:
            found[key] = part["default"]
    return found


def step(keys: list[str] | None, entry: Any) -> str:
    """How an item of a list is called in a path of fields."""
    if keys:
        return "k:" + json.dumps({key: entry[key] for key in sorted(keys) if key in entry}, separators=(",", ":"))
    return "v:" + json.dumps(entry)


def entries(node: Node, value: Any, path: Path = ()) -> Iterator[tuple[Path, Any, bool]]:
    """Every field of an object: its path, its value, and whether it is a value of its own (a leaf)."""
    keys = map_keys(node) if isinstance(value, list) else None
    atomic = _resolved(node).get("x-kubernetes-map-type") == "atomic" or node.get("x-kubernetes-map-type") == "atomic"
    if isinstance(value, dict) and value and not atomic:
        if path:
            yield path, value, False
        for key, inner in value.items():
            yield from entries(field(node, key) or {}, inner, (*path, f"f:{key}"))
    elif isinstance(value, list) and value and keys is not None:
        yield path, value, False
        for inner in value:
            yield from entries(item(node), inner, (*path, step(keys, inner)))
    else:
        yield path, value, True
