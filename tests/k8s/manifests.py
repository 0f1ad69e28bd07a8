"""Manifests to break: the base set of the recorded verdicts, and our own as they are shipped.

    findings = broken(GOOD, {"Deployment.spec.replicas": -1})

A path is KIND.field.field[0].field; an entry of a list is named by its place or its name, and [+] is one more. DROP
takes the field out, a function makes the new value from the old one.
"""

import functools
import json
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

from k8s.lint.check import check
from k8s.lint.node import Finding, Level

HERE = Path(__file__).parent
GOOD = (HERE / "good.yaml").read_text(encoding="utf-8")
SHIPPED = HERE.parent.parent / "k8s" / "dra"
POD = (SHIPPED / "one-gpu.yaml").read_text(encoding="utf-8")
REFERENCE = (SHIPPED / "reference.yaml").read_text(encoding="utf-8")
DROP = object()
Edit = Mapping[str, Any]


def recorded() -> dict[str, str]:
    """The manifests that a real API server was sent, by case: `good.yaml`, and what `cases.diff` changes in it."""
    good, found = GOOD.splitlines(keepends=True), {"good": GOOD}
    for case in (HERE / "cases.diff").read_text(encoding="utf-8").split("--- good.yaml\n+++ ")[1:]:
        name, _, changes = case.partition(".yaml\n")
        lines = list(good)
        for hunk in reversed(changes.split("@@ -")[1:]):  # from behind: the places before it stay where they are
            place, _, edited = hunk.partition("\n")
            first, _, count = place.split()[0].partition(",")
            added = [line[1:] for line in edited.splitlines(keepends=True) if line.startswith("+")]
            at = int(first) if count == "0" else int(first) - 1
            lines[at : at + int(count or 1)] = added
        found[name] = "".join(lines)
    return found


@functools.cache
def documents(text: str) -> str:
    """As JSON: each place its own copy, whatever anchors there are."""
    return json.dumps(list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))))


def edited(text: str, edits: Edit) -> str:
    """The manifests with these changes. JSON is YAML, too, and quickly written."""
    found = json.loads(documents(text))
    for path, value in edits.items():
        kind, _, rest = path.partition(".")
        document = next(each for each in found if each["kind"] == kind)
        _put(document, rest, value)
    return "\n---\n".join(map(json.dumps, found))


def broken(text: str, edits: Edit, *more: str, have: tuple[tuple[str, str], ...] = ()) -> list[Finding]:
    """What the linter says to it."""
    whole = "\n---\n".join([edited(text, edits), *more])
    return check([("edited.yaml", whole)], have=have)


def errors(findings: list[Finding]) -> list[str]:
    return [f"{found.path}: {found.message}" for found in findings if found.level is Level.ERROR]


def warnings(findings: list[Finding]) -> list[str]:
    return [f"{found.path}: {found.message}" for found in findings if found.level is Level.WARNING]


def _put(document: Any, path: str, value: Any) -> None:
    node: Any = document
    *parts, last = re.findall(r"[^.\[\]]+|\[[^\]]+\]", path)
    for part in parts:
        if isinstance(node, dict) and part not in node:
            node[part] = {}
        node = node[_key(node, part)]
    key = _key(node, last)
    if value is DROP:
        del node[key]
    elif isinstance(node, list) and key == len(node):
        node.append(value)
    else:
        change: Callable[[Any], Any] = value if callable(value) else lambda _: value
        old = node[key] if isinstance(node, list) or key in node else None
        node[key] = change(old)


def _key(node: Any, part: str) -> Any:
    """The field of a mapping; the place in a list."""
    if not part.startswith("["):
        return part
    inside = part[1:-1]
    if inside == "+":
        return len(node)
    return int(inside) if inside.isdigit() else next(n for n, each in enumerate(node) if each["name"] == inside)
