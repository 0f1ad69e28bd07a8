"""Manifests to break: the base set of the recorded verdicts, and a worked example of a whole pod of ours.

    findings = broken(GOOD, {"Deployment.spec.replicas": -1})

A path is KIND.field.field[0].field; DROP takes the field out, a function makes the new value from the old one.
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
GOOD = (HERE / "cases" / "good.yaml").read_text(encoding="utf-8")
POD = (HERE / "pod.yaml").read_text(encoding="utf-8")
DROP = object()
Edit = Mapping[str, Any]


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
    parts: list[Any] = [int(part[1:-1]) if part[0] == "[" else part for part in re.findall(r"[^.\[\]]+|\[\d+\]", path)]
    node: Any = document
    for part in parts[:-1]:
        if isinstance(node, dict) and part not in node:
            node[part] = {}
        node = node[part]
    last = parts[-1]
    if value is DROP:
        del node[last]
    elif isinstance(node, list) and last == len(node):
        node.append(value)
    else:
        change: Callable[[Any], Any] = value if callable(value) else lambda _: value
        old = node[last] if isinstance(node, list) or last in node else None
        node[last] = change(old)
