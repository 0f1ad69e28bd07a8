"""The objects, each state that they ever had, and the watches that are told. No state is changed in place."""

import itertools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

Object = dict[str, Any]
FIRST_VERSION = 1000
"""So that a version from another server's life is too old here."""


class Key(NamedTuple):
    resource: str
    namespace: str
    name: str


@dataclass(frozen=True)
class Change:
    version: int
    key: Key
    old: Object | None
    new: Object | None
    """None: it is deleted, and `last` is what its watchers are told."""
    last: Object


class Store:
    def __init__(self) -> None:
        self.version = FIRST_VERSION
        self.oldest_event = FIRST_VERSION
        """A watch from before it is told that it is too old."""
        self.oldest_list = FIRST_VERSION
        self.objects: dict[Key, Object] = {}
        self.changes: list[Change] = []
        self.told: list[Callable[[Change], None]] = []
        self._numbers = itertools.count(1)

    def uid(self) -> str:
        return f"11111111-1111-4111-8111-{next(self._numbers):012x}"

    def suffix(self) -> str:
        number, letters = next(self._numbers), "bcdfghjklmnpqrstvwxz2456789"
        return "".join(letters[number // len(letters) ** place % len(letters)] for place in range(5))

    def write(self, key: Key, value: Object, *, gone: bool = False) -> Object:
        old = self.objects.pop(key, None) if gone else self.objects.get(key)
        self.version += 1
        value = {**value, "metadata": {**value["metadata"], "resourceVersion": str(self.version)}}
        if not gone:
            self.objects[key] = value
        change = Change(self.version, key, old, None if gone else value, value)
        self.changes.append(change)
        for tell in list(self.told):
            tell(change)
        return value

    def listed(self, resource: str, namespace: str, version: int | None = None) -> list[Object]:
        found: dict[Key, Object | None] = {**self.objects}
        if version is not None and version < self.version:
            found = {change.key: change.new for change in self.changes if change.version <= version}
        wanted = [(k, v) for k, v in found.items() if k.resource == resource and v is not None]
        return [v for k, v in sorted(wanted, key=lambda kv: kv[0]) if namespace in ("", k.namespace)]

    def compact(self) -> None:
        """As etcd does: lists of old versions go; the watches' own memory stays."""
        self.oldest_list = self.version

    def forget_events(self) -> None:
        """Watches from versions before this one are too old."""
        self.oldest_event = self.version
