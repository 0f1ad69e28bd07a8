"""How a patch changes an object: merge (RFC 7386), strategic merge (by the schema), JSON patch (RFC 6902). Pure."""

import copy
from typing import Any

from tests.api_server import schema
from tests.api_server.schema import Node


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
        if key.startswith("$deleteFromPrimitiveList/"):
            name = key.partition("/")[2]
            found[name] = [entry for entry in found.get(name, []) if entry not in value]
        elif key.startswith("$"):
            raise NotServed(f"the directive {key} isn't served here")
        elif value is None:
            found.pop(key, None)
        else:
            part = schema.field(node, key) or {}
            by = schema.merge_key(part)
            if isinstance(value, list) and by is not None:
                found[key] = _merged_list(part, found.get(key) or [], value, by)
            else:
                found[key] = strategic(part, found.get(key), value)
    return found


def _merged_list(node: Node, old: list[Any], patch: list[Any], by: str) -> list[Any]:
    if not by:
        known = [*old, *(value for value in patch if value not in old)]
        return _ordered(known, patch, old, lambda entry: entry)
    if any(by not in entry and entry.get("$patch") != "replace" for entry in patch):
        raise NotServed(f"an item does not contain declared merge key: {by}")
    if any(entry.get("$patch") == "replace" for entry in patch):
        old, patch = [], [entry for entry in patch if "$patch" not in entry]
    gone = [entry[by] for entry in patch if entry.get("$patch") == "delete"]
    old = [entry for entry in old if entry[by] not in gone]
    patch = [entry for entry in patch if entry[by] not in gone]
    before = {entry[by]: entry for entry in old}
    merged = before | {entry[by]: strategic(schema.item(node), before.get(entry[by]), entry) for entry in patch}
    return _ordered(list(merged.values()), patch, old, lambda entry: entry[by])


def _ordered(merged: list[Any], patch: list[Any], old: list[Any], name: Any) -> list[Any]:
    """Those of the patch in its order, and each other one before the first of them that it stood before."""
    by_name = {name(entry): entry for entry in merged}
    place = {name(entry): number for number, entry in enumerate(old)}
    theirs = [name(entry) for entry in patch]
    mine = [key for key in place if key not in theirs]
    found = []
    while theirs and mine:
        first = theirs[0] in place and place[mine[0]] < place[theirs[0]]
        found.append((mine if first else theirs).pop(0))
    return [by_name[key] for key in (*found, *mine, *theirs)]


def json_patch(old: Any, operations: list[Any]) -> Any:
    document = copy.deepcopy(old)
    for operation in operations:
        try:
            _operate(document, operation)
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise WrongPatch(f"{operation}: {error}") from error
    return document


def _operate(document: Any, operation: dict[str, Any]) -> None:
    op, path = operation["op"], _steps(operation["path"])
    if op == "test":
        if _at(document, path, absent=None) != operation.get("value"):
            raise ValueError("the test fails")
    elif op in ("add", "replace"):
        _put(document, path, operation["value"], inserts=op == "add")
    elif op == "remove":
        _take(document, path)
    elif op == "move":
        _put(document, path, _take(document, _steps(operation["from"])), inserts=True)
    elif op == "copy":
        _put(document, path, copy.deepcopy(_at(document, _steps(operation["from"]))), inserts=True)
    else:
        raise ValueError("no such operation")


def _steps(pointer: str) -> list[str]:
    return [step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:]]


def _at(document: Any, path: list[str], **absent: Any) -> Any:
    for step in path:
        if isinstance(document, dict) and step not in document and absent:
            return absent["absent"]
        document = document[int(step)] if isinstance(document, list) else document[step]
    return document


def _put(document: Any, path: list[str], value: Any, *, inserts: bool) -> None:
    parent, last = _at(document, path[:-1]), path[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif inserts:
        number = len(parent) if last == "-" else int(last)
        if not 0 <= number <= len(parent):
            raise IndexError(last)
        parent.insert(number, value)
    else:
        parent[int(last)] = value


def _take(document: Any, path: list[str]) -> Any:
    parent, last = _at(document, path[:-1]), path[-1]
    return parent.pop(int(last)) if isinstance(parent, list) else parent.pop(last)
