"""Reads YAML as the API server's own reader does, with the line of every field.

Strict as the server: a key that stands twice in a mapping is an error. What this file may not do: know Kubernetes.
"""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from .node import Document, Path

_Loader: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
_MERGE = "tag:yaml.org,2002:merge"
_STAMP = "tag:yaml.org,2002:timestamp"
MOST_NODES = 200_000


class Unreadable(Exception):
    """This is no YAML that a cluster would take; the text says where and why."""

    def __init__(self, line: int, why: str) -> None:
        super().__init__(why)
        self.line = line


def read(text: str, file: str) -> list[Document]:
    """Raises Unreadable. Empty documents are left out."""
    found = []
    try:
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
        raise Unreadable(1, f"this is no YAML: {error}") from None
    return found


class _Builder:
    def __init__(self, loader: Any) -> None:
        self.lines: dict[Path, int] = {}
        self._loader = loader
        self._inside: set[int] = set()
        self._count = 0

    def build(self, node: Any, path: Path) -> Any:
        line = node.start_mark.line + 1
        self.lines[path] = line
        self._count += 1
        if id(node) in self._inside:
            raise Unreadable(line, "an anchor contains itself")
        if self._count > MOST_NODES:
            raise Unreadable(line, f"there are more than {MOST_NODES} values in one document")
        self._inside.add(id(node))
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode):
                return [self.build(item, (*path, index)) for index, item in enumerate(node.value)]
            if node.tag == _STAMP:  # JSON has no dates: the server reads a text
                return node.value
            return self._loader.construct_object(node)
        finally:
            self._inside.discard(id(node))

    def _mapping(self, node: Any, path: Path) -> dict[str, Any]:
        own: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            if key_node.tag == _MERGE:
                for part in _parts(value_node):
                    if not isinstance(part, yaml.MappingNode):
                        raise Unreadable(line, "<< takes a mapping, or a list of mappings")
                    for key, value in self._mapping(part, path).items():
                        merged.setdefault(key, value)
                continue
            key = self._loader.construct_object(key_node)
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


def without_nulls(value: Any) -> Any:
    """The API takes a field that is null for one that isn't there."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
