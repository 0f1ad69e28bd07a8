"""Reads YAML as the API server's own reader does, with the line of every field.

Strict as the server: a key that stands twice in a mapping is an error. What a word without quotes means is the server's
own, too (sigs.k8s.io/yaml, goyaml.v2/resolve.go), which is neither YAML 1.1 nor 1.2: y and n are booleans, 1e3 and 010
numbers, and 1:30 and a date texts. What this file may not do: know Kubernetes.
"""

import re
from collections.abc import Iterator
from typing import Any

import yaml

from .node import Document, Path

_Base: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_TAG = "tag:yaml.org,2002:"
_MERGE, _STAMP = _TAG + "merge", _TAG + "timestamp"
_BOOLEANS = {
    form: word in ("y", "yes", "true", "on")
    for word in ("y", "yes", "true", "on", "n", "no", "false", "off")
    for form in (word, word.title(), word.upper())
}
_NULLS = ("", "~", "null", "Null", "NULL")
_NOT_FINITE = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_INTEGER = re.compile(r"[-+]?(0[xX][0-9a-fA-F]+|0[oO]?[0-7]+|0[bB][01]+|0|[1-9][0-9]*)")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_EXACT = 1e21
"""From there on JSON writes a whole number with an exponent."""
MOST_NODES = 200_000
MOST_DEEP = 200
"""Levels of nesting. An object of Kubernetes has a few dozen; libyaml's composer, which recurses, ends the process with
a segmentation fault at some ten thousand.
"""


class Unreadable(Exception):
    """This is no YAML that a cluster would take; the text says where and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


class _Loader(_Base):  # type: ignore[misc]
    """Knows by itself what a word without quotes is."""

    def resolve(self, kind: Any, value: Any, implicit: Any) -> Any:
        if kind is yaml.ScalarNode and implicit[0]:
            return _TAG + _type_of(value)
        return super().resolve(kind, value, implicit)


def _type_of(word: str) -> str:
    if word in _BOOLEANS:
        return "bool"
    if word in _NULLS:
        return "null"
    if word == "<<":
        return "merge"
    digits = word.replace("_", "") if word[0] != "." else word
    if _INTEGER.fullmatch(digits):
        return "int"
    return "float" if _FLOAT.fullmatch(digits) or _NOT_FINITE.fullmatch(word) else "str"


def _value_of(kind: str, word: str) -> Any:
    """Raises KeyError or ValueError for a tag that doesn't fit."""
    digits = word.replace("_", "")
    if kind == "bool":
        return _BOOLEANS[word]
    if kind == "int":
        return int(digits, 8 if re.match(r"[-+]?0[0-7]", digits) else 0)
    if kind == "float":
        number = float(word.lower().replace(".", "") if _NOT_FINITE.fullmatch(word) else digits)
        return int(number) if abs(number) < _EXACT and number.is_integer() else number
    return None if kind == "null" else word


def read(text: str, file: str) -> list[Document]:
    """Raises Unreadable. Empty documents are left out."""
    found = []
    try:
        _check_depth(text)
        loader = _Loader(text)
        try:
            while loader.check_node():
                node = loader.get_node()
                builder = _Builder(loader)
                value = builder.build(node, ())
                if value is not None:
                    found.append(Document(file, value, builder.lines))
        finally:
            loader.dispose()
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        why = " ".join(part for part in (error.context, error.problem) if part)
        raise Unreadable(mark.line + 1 if mark else 1, f"this is no YAML: {why}") from None
    except yaml.YAMLError as error:
        raise Unreadable(1, f"this is no YAML: {' '.join(str(error).split())}") from None
    return found


def _check_depth(text: str) -> None:
    """Before it is composed. Aliases are followed later, by the builder, which has the same limit."""
    depth = 0
    for event in yaml.parse(text, Loader=_Loader):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        if depth > MOST_DEEP:
            raise _too_deep(event.start_mark.line + 1)


def _too_deep(line: int) -> Unreadable:
    return Unreadable(line, f"it is nested more than {MOST_DEEP} levels deep")


class _Builder:
    def __init__(self, loader: Any) -> None:
        self.lines: dict[Path, int] = {}
        self._loader = loader
        self._inside: set[int] = set()
        self._count = 0

    def build(self, node: Any, path: Path) -> Any:
        self.lines[path] = node.start_mark.line + 1
        self._enter(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            return self._scalar(node)
        finally:
            self._inside.discard(id(node))

    def _scalar(self, node: Any) -> Any:
        kind = node.tag.removeprefix(_TAG)
        if kind not in ("bool", "int", "float", "null", "str", "merge", "timestamp"):  # JSON has no dates
            return self._loader.construct_object(node)
        try:
            return _value_of(kind, node.value)
        except (KeyError, ValueError):
            raise Unreadable(node.start_mark.line + 1, f"{node.value[:40]!r} can't be read as {kind}") from None

    def _enter(self, node: Any) -> None:
        line = node.start_mark.line + 1
        self._count += 1
        if id(node) in self._inside:
            raise Unreadable(line, "an anchor contains itself")
        if self._count > MOST_NODES:
            raise Unreadable(line, f"there are more than {MOST_NODES} values in one document")
        if len(self._inside) >= MOST_DEEP:
            raise _too_deep(line)
        self._inside.add(id(node))

    def _merged(self, node: Any, path: Path) -> dict[str, Any]:
        """What << brings in."""
        if not isinstance(node, yaml.MappingNode):
            raise Unreadable(node.start_mark.line + 1, "<< takes a mapping, or a list of mappings")
        self._enter(node)
        try:
            return self._mapping(node, path)
        finally:
            self._inside.discard(id(node))

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                for part in _parts(value_node):
                    for key, value in self._merged(part, path).items():
                        merged.setdefault(key, value)
                continue
            if not isinstance(key_node, yaml.ScalarNode):
                raise Unreadable(line, "a key has to be a text, and this is a list or a mapping")
            key = self._scalar(key_node)
            if isinstance(key, int) and not isinstance(key, bool):
                key = str(key)
            if not isinstance(key, str):
                raise Unreadable(line, f"the key {key_node.value} isn't a text: put it in quotes")
            if key in own:
                raise Unreadable(line, f"the key {key} stands twice in one mapping")
            own[key] = self.build(value_node, (*path, key))
            self.lines[(*path, key)] = line
        return {**merged, **own}


def _parts(node: Any) -> Iterator[Any]:
    if isinstance(node, yaml.SequenceNode):
        yield from node.value
    else:
        yield node
