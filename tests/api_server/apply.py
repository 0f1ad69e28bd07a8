"""Server-side apply: which manager owns which field, what an apply takes, gives up and conflicts with. Pure.

Every write keeps `metadata.managedFields`. An apply owns what it names; any other write owns what it has changed.
"""

import copy
from dataclasses import dataclass
from typing import Any

from tests.api_server import schema
from tests.api_server.schema import Node, Path

Object = dict[str, Any]
_SERVERS = {
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "generateName",
    "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink",
}  # fmt: skip
_UNOWNED = {("f:apiVersion",), ("f:kind",)} | {("f:metadata", f"f:{name}") for name in _SERVERS}
_WHOLES = {("f:metadata",), ("f:spec",), ("f:status",)}


@dataclass(frozen=True)
class Manager:
    name: str
    operation: str
    version: str
    subresource: str = ""


class Conflicts(Exception):
    def __init__(self, found: list[tuple[Manager, str]]) -> None:
        self.found = found


Owned = dict[Manager, tuple[set[Path], str | None]]
"""The fields, and when they were written."""


def fields(node: Node, value: Object, subresource: str, *, applied: bool = False) -> dict[Path, Any]:
    """Those that a manager can own. What an apply names are the leaves and the items of lists with keys."""
    found = {}
    for path, inner, leaf in schema.entries(node, value):
        status = path[:1] == ("f:status",)
        if path[:2] in _UNOWNED or path in _WHOLES or status != (subresource == "status"):
            continue
        if leaf or not applied or path[-1].startswith("k:"):
            found[path] = inner if leaf else None
    return found


def owned(value: Object) -> Owned:
    found: Owned = {}
    for entry in value.get("metadata", {}).get("managedFields", ()):
        manager = Manager(entry["manager"], entry["operation"], entry["apiVersion"], entry.get("subresource", ""))
        found[manager] = set(_paths(entry["fieldsV1"])), entry.get("time")
    return found


def put_owned(value: Object, managers: Owned) -> None:
    entries = []
    for manager in sorted(managers, key=lambda m: (m.name, m.operation, m.subresource)):
        paths, time = managers[manager]
        if not paths:
            continue
        entry: Object = {"manager": manager.name, "operation": manager.operation, "apiVersion": manager.version}
        entry |= {"time": time} if time else {}
        entry |= {"fieldsType": "FieldsV1", "fieldsV1": _tree(paths)}
        entries.append(entry | ({"subresource": manager.subresource} if manager.subresource else {}))
    value["metadata"]["managedFields"] = entries


def _paths(tree: Object, path: Path = ()) -> list[Path]:
    found = []
    for key, inner in tree.items():
        if key == ".":
            found.append(path)
        else:
            found += _paths(inner, (*path, key)) if inner else [(*path, key)]
    return found


def _tree(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths):
        place = tree
        for step in path:
            place = place.setdefault(step, {})
    for path in paths:
        place = tree
        for step in path:
            place = place[step]
        if place:
            place["."] = {}
    return tree


def written(node: Node, old: Object | None, new: Object, manager: Manager, now: str) -> Owned:
    """After a write that isn't an apply: what it has changed is its own, and no other's."""
    managers = owned(old or {})
    before = fields(node, old or {}, manager.subresource)
    after = fields(node, new, manager.subresource)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    gone = set(before) - set(after)
    if not changed and not gone:
        return managers
    for other in managers:
        managers[other] = managers[other][0] - changed - gone, managers[other][1]
    managers[manager] = managers.get(manager, (set(), None))[0] | changed, now
    return managers


def applied(node: Node, old: Object | None, patch: Object, manager: Manager, *, force: bool) -> tuple[Object, Owned]:
    """The object as the patch wants it, and who owns what then (without the time of this write)."""
    managers = owned(old or {})
    wanted = set(fields(node, patch, manager.subresource, applied=True))
    merged = _merge(node, copy.deepcopy(old) if old else {}, patch)
    others: set[Path] = set().union(*(paths for other, (paths, _) in managers.items() if other != manager))
    for path in sorted(managers.get(manager, (set(), None))[0] - wanted - others, key=len, reverse=True):
        _remove(node, merged, path)
    before = fields(node, old or {}, manager.subresource)
    after = fields(node, merged, manager.subresource)
    changed = {path for path in wanted if path not in before or before[path] != after[path]}
    conflicts = [(other, path) for other in managers if other != manager for path in managers[other][0] & changed]
    if conflicts and not force:
        raise Conflicts([(other, _shown(path)) for other, path in sorted(conflicts, key=lambda c: (c[0].name, c[1]))])
    for other, path in conflicts:
        managers[other] = managers[other][0] - {path}, managers[other][1]
    managers[manager] = wanted, managers.get(manager, (set(), None))[1]
    return merged, managers


def _merge(node: Node, old: Any, patch: Any) -> Any:
    keys = schema.map_keys(node) if isinstance(patch, list) else None
    if isinstance(patch, dict):
        found = dict(old) if isinstance(old, dict) else {}
        for key, inner in patch.items():
            found[key] = _merge(schema.field(node, key) or {}, found.get(key), inner)
        return found
    if keys is None:
        return patch
    known = {schema.step(keys, entry): entry for entry in old or []}
    for entry in patch:
        name = schema.step(keys, entry)
        known[name] = _merge(schema.item(node), known.get(name), entry)
    return list(known.values())


def _remove(node: Node, value: Any, path: Path) -> None:
    """Nothing is left to remove where a part of the way is gone already."""
    for number, step in enumerate(path):
        last = number == len(path) - 1
        if step.startswith("f:"):
            name, node = step[2:], schema.field(node, step[2:]) or {}
            if not isinstance(value, dict) or name not in value:
                return
            if last and not (isinstance(value[name], dict | list) and value[name] and schema.is_map(node)):
                del value[name]
                return
            value = value[name]
        else:
            keys = schema.map_keys(node)
            there = [entry for entry in value if schema.step(keys, entry) == step]
            if not there:
                return
            if last:
                value.remove(there[0])
                return
            value, node = there[0], schema.item(node)


def _shown(path: Path) -> str:
    return "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[2:].strip('{}')}]" for step in path)
