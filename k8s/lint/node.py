"""A value in a manifest, the place where it stands, and what was found there.

Rules walk over `Node`s. A node never raises: what is missing or of another type reads as absent, because the schema
(`structure.py`) already says so. What this file may not do: know any rule.
"""

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

Path = tuple[str | int, ...]


class Level(enum.Enum):
    """How bad a finding is: an error rejects the manifests, a warning doesn't."""

    ERROR = "error"
    WARNING = "warning"


@dataclass(frozen=True)
class Finding:
    level: Level
    file: str
    line: int
    object: str
    path: str
    message: str

    def __str__(self) -> str:
        where = f"{self.object}: {self.path}: " if self.path else (f"{self.object}: " if self.object else "")
        said = f"{self.file}:{self.line}: {self.level.value}: {where}{self.message}"
        return "".join(each if each.isprintable() else repr(each)[1:-1] for each in said)


@dataclass(eq=False)
class Document:
    """One YAML document: its value, and on which line each part of it begins."""

    file: str
    value: Any
    lines: Mapping[Path, int]
    findings: dict[Finding, None] = field(default_factory=dict)
    """In their order, each once."""

    @property
    def root(self) -> "Node":
        return Node(self, (), self.value)

    @property
    def name(self) -> str:
        kind, name = self.root["kind"].text, self.root["metadata"]["name"].text
        return f"{kind or '?'}/{name or '?'}"

    def add(self, level: Level, path: Path, message: str) -> None:
        line = next((self.lines[path[:n]] for n in range(len(path), -1, -1) if path[:n] in self.lines), 1)
        self.findings.setdefault(Finding(level, self.file, line, self.name, written(path), message))


@dataclass(frozen=True, eq=False)
class Node:
    document: Document
    path: Path
    value: Any

    def __getitem__(self, key: str) -> "Node":
        value = self.value.get(key) if isinstance(self.value, dict) else None
        return Node(self.document, (*self.path, key), value)

    def at(self, *keys: str) -> "Node":
        node = self
        for key in keys:
            node = node[key]
        return node

    def __bool__(self) -> bool:
        """It is there. The API takes null for absent, too."""
        return self.value is not None

    @property
    def text(self) -> str:
        return self.value if isinstance(self.value, str) else ""

    @property
    def number(self) -> int | None:
        return self.value if isinstance(self.value, int) and not isinstance(self.value, bool) else None

    @property
    def port(self) -> int | str | None:
        """A number or a name."""
        return self.number if self.number is not None else (self.text or None)

    @property
    def flag(self) -> bool | None:
        return self.value if isinstance(self.value, bool) else None

    def items(self) -> "Iterator[Node]":
        """What is in a list."""
        if isinstance(self.value, list):
            for index, value in enumerate(self.value):
                yield Node(self.document, (*self.path, index), value)

    def fields(self) -> "Iterator[tuple[str, Node]]":
        """What is in a mapping; what is null isn't."""
        if isinstance(self.value, dict):
            for key, value in self.value.items():
                if value is not None:
                    yield str(key), Node(self.document, (*self.path, key), value)

    def texts(self) -> list[str]:
        return [item.value for item in self.items() if isinstance(item.value, str)]

    def nulls(self) -> list[str]:
        """In a mapping whose keys aren't the API's own (labels, limits) null is "" or 0 to it, and not absent."""
        return [str(key) for key, value in self.value.items() if value is None] if isinstance(self.value, dict) else []

    def mapping(self) -> dict[str, str]:
        return {key: node.text for key, node in self.fields()} | dict.fromkeys(self.nulls(), "")

    def error(self, message: str) -> None:
        self.document.add(Level.ERROR, self.path, message)

    def warn(self, message: str) -> None:
        self.document.add(Level.WARNING, self.path, message)


def written(path: Path) -> str:
    """As the API server writes it: spec.containers[0].name."""
    text = ""
    for part in path:
        if isinstance(part, int) or "." in part or "/" in part:
            text += f"[{part}]"
        else:
            text += f".{part}" if text else part
    return text


def without_nulls(value: Any) -> Any:
    """The API takes a field that is null for one that isn't there."""
    if isinstance(value, Mapping):
        return {key: without_nulls(item) for key, item in value.items() if item is not None}
    if isinstance(value, list):
        return [without_nulls(item) for item in value]
    return value
