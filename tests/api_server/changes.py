"""What a patch or an apply makes of an object, and which manager owns which of its fields. Pure.

Patches are merge (RFC 7386), strategic merge (by the schema), JSON patch (RFC 6902). Every write keeps
`metadata.managedFields`: an apply owns what it names; any other write owns what it has changed.
"""

import copy
from typing import Any, NamedTuple

from tests.api_server import schema
from tests.api_server.schema import Node, Path

Object = dict[str, Any]
_SERVERS = {
    "name", "namespace", "uid", "resourceVersion", "generation", "creationTimestamp", "managedFields", "generateName",
    "deletionTimestamp", "deletionGracePeriodSeconds", "selfLink",
}  # fmt: skip
_UNOWNED = {("f:apiVersion",), ("f:kind",)} | {("f:metadata", f"f:{name}") for name in _SERVERS}
_WHOLES = {("f:metadata",), ("f:spec",), ("f:status",)}


class WrongPatch(Exception):
    """The patch doesn't fit the object (422)."""


class NotServed(Exception):
    """The server can't make anything of it (500)."""


def merge(old: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    found = dict(old) if isinstance(old, dict) else {}
    for key, value in patch.items():
        if value is None:
            found.pop(key, None)
        else:
            found[key] = merge(found.get(key), value)
    return found


def strategic(node: Node, old: Any, patch: Any) -> Any:
    """A merge in which lists with a key are merged item by item, and directives are followed."""
    if not isinstance(patch, dict):
        return patch
    patch = dict(patch)
    directive = patch.pop("$patch", "merge")
    if directive != "merge":
        return strategic(node, {}, patch) if directive == "replace" else {}
    found = dict(old) if isinstance(old, dict) else {}
    retained = patch.pop("$retainKeys", None)
    if retained is not None:
        found = {key: value for key, value in found.items() if key in retained}
    for key, value in patch.items():
        part = schema.field(node, key) or {}
        by = schema.merge_key(part)
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            found[name] = [entry for entry in found.get(name, []) if entry not in value]
        elif key.startswith("$"):
            raise NotServed(f"the directive {key} isn't served here")
        elif value is None:
            found.pop(key, None)
        elif isinstance(value, list) and by is not None:
            found[key] = _merged_list(part, found.get(key) or [], value, by)
        else:
            found[key] = strategic(part, found.get(key), value)
    return found


def _merged_list(node: Node, old: list[Any], patch: list[Any], by: str) -> list[Any]:
    if not by:
        return _ordered({value: value for value in (*old, *patch)}, patch, old)
    if any(by not in entry and entry.get("$patch") != "replace" for entry in patch):
        raise NotServed(f"an item does not contain declared merge key: {by}")
    if any(entry.get("$patch") == "replace" for entry in patch):
        old, patch = [], [entry for entry in patch if "$patch" not in entry]
    gone = [entry[by] for entry in patch if entry.get("$patch") == "delete"]
    before = {entry[by]: entry for entry in old if entry[by] not in gone}
    new = {e[by]: strategic(schema.item(node), before.get(e[by]), e) for e in patch if e[by] not in gone}
    theirs = [entry[by] for entry in patch if entry[by] not in gone]
    return _ordered(before | new, theirs, list(before))


def _ordered(merged: dict[Any, Any], theirs: list[Any], old: list[Any]) -> list[Any]:
    """Those of the patch in its order, and each other one before the first of them that it stood before."""
    mine, theirs = [key for key in old if key not in theirs], list(theirs)
    found = []
    while theirs and mine:
        first = theirs[0] in old and old.index(mine[0]) < old.index(theirs[0])
        found.append((mine if first else theirs).pop(0))
    return [merged[key] for key in (*found, *mine, *theirs)]


def json_patch(old: Any, operations: list[Any]) -> Any:
    document = copy.deepcopy(old)
    for operation in operations:
        try:
            _operate(document, operation, operation["op"])
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise WrongPatch(f"{operation}: {error}") from error
    return document


def _operate(document: Any, operation: Object, op: str) -> None:
    parent, last = _place(document, operation["path"])
    if op == "test":
        absent = isinstance(parent, dict) and last not in parent
        if (None if absent else parent[last]) != operation.get("value"):
            raise ValueError("the test fails")
    elif op == "remove":
        del parent[last]
    elif op in ("add", "replace"):
        _put(parent, last, operation["value"], inserts=op == "add")
    elif op in ("move", "copy"):
        source, name = _place(document, operation["from"])
        value = copy.deepcopy(source[name])
        if op == "move":
            del source[name]
        _put(*_place(document, operation["path"]), value, inserts=True)
    else:
        raise ValueError("no such operation")


def _place(document: Any, pointer: str) -> tuple[Any, Any]:
    *steps, last = (step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])
    for step in steps:
        document = document[int(step)] if isinstance(document, list) else document[step]
    if not isinstance(document, list):
        return document, last
    number = len(document) if last == "-" else int(last)
    if not 0 <= number <= len(document):
        raise IndexError(last)
    return document, number


def _put(parent: Any, last: Any, value: Any, *, inserts: bool) -> None:
    if isinstance(parent, list) and inserts:
        parent.insert(last, value)
    else:
        parent[last] = value


# -- who owns what -----------------------------------------------------------------------------------------------------


class Manager(NamedTuple):
    name: str
    operation: str
    subresource: str
    version: str


class Conflicts(Exception):
    def __init__(self, found: list[tuple[Manager, str]]) -> None:
        self.found = found


Owned = dict[Manager, tuple[set[Path], str | None]]
"""The fields, and when they were written."""


def _fields(node: Node, value: Object | None, manager: Manager, *, applied: bool = False) -> dict[Path, Any]:
    """Those that a manager can own. What an apply names are the leaves and the items of lists with keys."""
    found = {}
    for path, inner, leaf in schema.entries(node, value or {}):
        is_status = path[:1] == ("f:status",)
        if path[:2] in _UNOWNED or path in _WHOLES or is_status != (manager.subresource == "status"):
            continue
        if leaf or not applied or path[-1].startswith("k:"):
            found[path] = inner if leaf else None
    return found


def _owned(value: Object | None) -> Owned:
    found: Owned = {}
    for entry in value["metadata"].get("managedFields", ()) if value else ():
        manager = Manager(entry["manager"], entry["operation"], entry.get("subresource", ""), entry["apiVersion"])
        found[manager] = set(_paths(entry["fieldsV1"])), entry.get("time")
    return found


def put_owned(value: Object, managers: Owned) -> None:
    entries = []
    for manager, (paths, time) in sorted(managers.items(), key=lambda item: item[0]):
        entry = {"manager": manager.name, "operation": manager.operation, "apiVersion": manager.version}
        entry |= {"time": time} if time else {}
        entry |= {"subresource": manager.subresource} if manager.subresource else {}
        entries += [entry | {"fieldsType": "FieldsV1", "fieldsV1": _tree(paths)}] if paths else []
    value["metadata"]["managedFields"] = entries


def _paths(tree: Object, path: Path = ()) -> list[Path]:
    found = [] if tree else [path]
    for key, inner in tree.items():
        found += [path] if key == "." else _paths(inner, (*path, key))
    return found


def _tree(paths: set[Path]) -> Object:
    tree: Object = {}
    for path in sorted(paths, key=len, reverse=True):
        place = tree
        for step in path:
            place = place.setdefault(step, {})
        if place:
            place["."] = {}
    return tree


def written(node: Node, old: Object | None, new: Object, manager: Manager, now: str) -> Owned:
    """After a write that isn't an apply: what it has changed is its own, and no other's."""
    managers, before, after = _owned(old), _fields(node, old, manager), _fields(node, new, manager)
    changed = {path for path, value in after.items() if path not in before or before[path] != value}
    gone = set(before) - set(after)
    if changed or gone:
        managers = {other: (paths - changed - gone, time) for other, (paths, time) in managers.items()}
        managers[manager] = managers.get(manager, (set(), None))[0] | changed, now
    return managers


def applied(node: Node, old: Object | None, patch: Object, manager: Manager, *, force: bool) -> tuple[Object, Owned]:
    """The object as the patch wants it, and who owns what then (without the time of this write)."""
    managers, wanted = _owned(old), set(_fields(node, patch, manager, applied=True))
    merged = _applied(node, copy.deepcopy(old or {}), patch)
    had, time = managers.pop(manager, (set[Path](), None))
    others: set[Path] = set().union(*(paths for paths, _ in managers.values()))
    for path in sorted(had - wanted - others, key=len, reverse=True):
        _remove(node, merged, path)
    before, after = _fields(node, old, manager), _fields(node, merged, manager)
    changed = {path for path in wanted if path not in before or before[path] != after[path]}
    conflicts = sorted((other, path) for other, (paths, _) in managers.items() for path in paths & changed)
    if conflicts and not force:
        raise Conflicts([(other, _shown(path)) for other, path in conflicts])
    managers = {other: (paths - changed, its) for other, (paths, its) in managers.items()}
    return merged, {**managers, manager: (wanted, time)}


def _applied(node: Node, old: Any, patch: Any) -> Any:
    keys = schema.map_keys(node) if isinstance(patch, list) else None
    if isinstance(patch, dict):
        found = dict(old) if isinstance(old, dict) else {}
        for key, inner in patch.items():
            found[key] = _applied(schema.field(node, key) or {}, found.get(key), inner)
        return found
    if keys is None:
        return patch
    known = {schema.step(keys, entry): entry for entry in old or []}
    for entry in patch:
        name = schema.step(keys, entry)
        known[name] = _applied(schema.item(node), known.get(name), entry)
    return list(known.values())


def _remove(node: Node, value: Any, path: Path) -> None:
    """Nothing is left to remove where a part of the way is gone already."""
    for number, step in enumerate(path, 1):
        if step.startswith("f:"):
            name: Any = step[2:]
            node = schema.field(node, name) or {}
            there = isinstance(value, dict) and name in value
            keeps = there and isinstance(value[name], dict | list) and value[name] and schema.is_map(node)
        else:
            keys = schema.map_keys(node)
            name = next((n for n, entry in enumerate(value) if schema.step(keys, entry) == step), None)
            there, keeps, node = name is not None, False, schema.item(node)
        if not there:
            return
        if number == len(path) and not keeps:
            del value[name]
            return
        value = value[name]


def _shown(path: Path) -> str:
    return "".join(f".{step[2:]}" if step.startswith("f:") else f"[{step[2:].strip('{}')}]" for step in path)
